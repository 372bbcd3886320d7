use crate::program::{Program, bare, run};

#[test]
fn bad_usage_is_exit_2_and_changes_nothing() {
    let program = Program::new();
    for words in [&["frobnicate"][..], &["init", "--bogus"], &[], &["init", "-q", "-v"]] {
        run(bare(&program.path("")).args(words)).expect_code(2);
    }
    let it = run(bare(&program.path("")).arg("init")).expect_code(2);
    assert!(it.err.contains("--repo"), "{it:#?}");
    let it =
        run(bare(&program.path("")).args(["init", "--no-encryption", "--repo", "http://user:secret@host/"]))
            .expect_code(2);
    assert!(it.err.contains("s3://") && !it.err.contains("secret"), "{it:#?}");
    // Arguments that the environment provides are not listed as missing.
    let it = run(bare(&program.path("")).arg("report").env("HOLDFAST_CONFIG", "absent.toml")).expect_code(2);
    assert!(it.err.contains("Usage: holdfast report [OPTIONS] <ID>"), "{it:#?}");
    let it = run(bare(&program.path("")).args(["init", "--no-encryption", "--repo", "tm3/r"])).expect_code(2);
    let meant = program.path("tm3/r").display().to_string();
    assert!(it.err.contains("\"tm3/r\"") && it.err.contains(&meant), "{it:#?}");
    for (words, why) in [
        (&["--spool-max", "1G", "--method", "logical"][..], "--spool-max is for physical backups"),
        (&["--table", "shop.orders"], "--table is for logical backups"),
    ] {
        let it = program.run(&[&["backup", "--no-defaults"], words].concat()).expect_code(2);
        assert!(it.err.contains(why) && it.err.contains("hint: "), "{it:#?}");
    }
    assert!(!program.repository().exists());
}

#[test]
fn a_configuration_file_that_cannot_be_used_is_named() {
    let program = Program::new();
    let bad = program.write("bad.toml", "repo = 5\n");
    for config in [bad, program.path("absent.toml")] {
        let it = run(bare(&program.path("")).arg("version").arg("--config").arg(&config)).expect_code(2);
        assert!(it.err.contains(config.to_str().unwrap()), "{it:#?}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    let program = Program::new();
    for words in [&["--help"][..], &["-?"], &["-h"], &["init", "--help"], &["help", "init"], &["--version"]] {
        let it = run(bare(&program.path("")).args(words)).expect_code(0);
        assert!(!it.out.is_empty() && it.err.is_empty(), "{it:#?}");
    }
}
