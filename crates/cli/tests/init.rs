use crate::program::{Program, bare, run};

#[test]
fn a_repository_is_made_once() {
    let program = Program::new();
    let made = program.run(&["init"]).expect_code(0);
    assert!(made.out.contains("(encrypted)"), "{made:#?}");
    let again = program.run(&["init"]).expect_code(1);
    assert!(again.err.contains("not empty") && again.err.contains("hint: "), "{again:#?}");
}

#[test]
fn init_says_in_json_what_it_made() {
    let program = Program::new();
    let last = program.run(&["init", "--json", "--no-encryption"]).expect_code(0).last();
    assert_eq!((&last["type"], &last["verb"]), (&"result".into(), &"init".into()));
    assert_eq!(last["data"]["encrypted"], false);
    assert_eq!(last["data"]["repository_id"].as_str().map(str::len), Some(32));
}

#[test]
fn without_a_password_and_a_terminal_nothing_is_made() {
    let program = Program::new();
    let it = run(bare(&program.path("")).args(["init", "--repo"]).arg(program.repository())).expect_code(2);
    assert!(it.err.contains("HOLDFAST_PASSWORD_COMMAND"), "{it:#?}");
    assert!(!program.repository().join("holdfast.json").exists());
}

#[test]
fn every_way_to_give_the_password_opens_the_same_repository() {
    use crate::program::PASSWORD;
    let program = Program::new();
    program.run(&["init"]).expect_code(0);
    let file = program.write("password", &format!("{PASSWORD}\nsecond line\n"));
    let config = program.write(
        "holdfast.toml",
        &format!("repo = {:?}\npassword-command = \"cat {}\"\n", program.repository(), file.display()),
    );
    let home = program.path("");
    let repo = program.repository();
    let mut ways = [bare(&home), bare(&home), bare(&home), bare(&home)];
    ways[0].arg("list").arg("--repo").arg(&repo).arg("--password-file").arg(&file);
    ways[1].arg("list").env("HOLDFAST_REPO", &repo).env("HOLDFAST_PASSWORD_FILE", &file);
    ways[2]
        .arg("list")
        .env("HOLDFAST_REPO", &repo)
        .env("HOLDFAST_PASSWORD_COMMAND", format!("cat {}", file.display()));
    ways[3].arg("list").arg("--config").arg(&config);
    for way in &mut ways {
        run(way).expect_code(0);
    }
}
