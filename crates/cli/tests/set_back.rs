//! Whoever can write a store can put an old state of it back, in which everything is genuine. A host that has seen
//! what came later notices.

use std::{path::Path, process::Command};

use crate::{
    backups::three,
    program::{PASSWORD, Program, Run, bare, run},
};

fn copied(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

fn on_another_host(program: &Program, words: &[&str]) -> Run {
    let home = tempfile::TempDir::new().unwrap();
    let mut command = bare(home.path());
    command.args(words).env("HOLDFAST_REPO", program.repository()).env("HOLDFAST_PASSWORD", PASSWORD);
    run(&mut command)
}

#[test]
fn a_host_notices_that_a_store_was_set_back() {
    let program = three();
    let (repository, earlier, later) = (program.repository(), program.path("earlier"), program.path("later"));
    copied(&repository, &earlier);
    // What this drops stands again in the earlier state.
    let dropped = program.run(&["expire", "1"]).expect_code(0);
    assert!(!dropped.err.contains("earlier state"), "{dropped:#?}");

    std::fs::rename(&repository, &later).unwrap();
    copied(&earlier, &repository);
    let gone = "sources/db1/physical/outcomes/0000000004 is gone, and this host has seen it";
    // It says so each time, and everything else works: an earlier state may be all that is left.
    for _ in 0..2 {
        let listed = program.run(&["list"]).expect_code(0);
        assert!(listed.out.contains("db1#1") && listed.err.contains(gone), "{listed:#?}");
    }
    let checked = program.run(&["check", "--json"]).expect_code(3).last();
    let finding = &checked["data"]["findings"][0];
    assert_eq!(finding["severity"], "suspicious", "{checked}");
    assert!(finding["object"].as_str().unwrap().ends_with("outcomes/0000000004"), "{checked}");
    // Who has not seen it cannot know, and a replica elsewhere may lag behind.
    on_another_host(&program, &["check"]).expect_code(0);
    let replica = run(program.command(&["list"]).env("HOLDFAST_REPO", &earlier)).expect_code(0);
    assert!(!replica.err.contains("is gone"), "{replica:#?}");

    // The log goes on from the earlier state.
    on_another_host(&program, &["hold", "2"]).expect_code(0);
    on_another_host(&program, &["release", "2"]).expect_code(0);
    let listed = program.run(&["list"]).expect_code(0);
    assert!(listed.err.contains("outcomes/0000000004 is not the one that this host has seen"), "{listed:#?}");
    program.run(&["check"]).expect_code(3);

    // Somebody did it on purpose, and does what the warning says.
    let file = listed.err.split("delete ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    std::fs::remove_file(file).unwrap();
    program.run(&["check"]).expect_code(0);
    std::fs::remove_dir_all(&repository).unwrap();
    std::fs::rename(&later, &repository).unwrap();
    program.run(&["check"]).expect_code(3);
}

/// The memory is only a memory: where it cannot be kept, or is none, everything works.
#[test]
fn no_memory_is_no_obstacle() {
    let program = three();
    let directory = program.path(".cache/holdfast/seen");
    program.run(&["list"]).expect_code(0);
    let file = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    for nonsense in ["", "{", "[]", r#"{"x":{"db1/physical":{"run":9,"outcome":"00"}}}"#] {
        std::fs::write(&file, nonsense).unwrap();
        let listed = program.run(&["list"]).expect_code(0);
        assert!(listed.err.is_empty(), "{listed:#?}");
        program.run(&["check"]).expect_code(0);
    }
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::write(&directory, "no directory").unwrap();
    program.run(&["check"]).expect_code(0);
}
