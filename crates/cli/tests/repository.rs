use std::process::Command;

use serde_json::Value;

use crate::program::{Program, bare, run};

const READERS: [&[&str]; 3] = [&["list"], &["check"], &["prune", "--dry-run"]];

#[test]
fn an_empty_repository_is_whole_and_lists_nothing() {
    let program = Program::with_repository();
    let it = program.run(&["list"]).expect_code(0);
    assert_eq!(it.out, "no backups\n");
    let last = program.run(&["list", "--json"]).expect_code(0).last();
    assert_eq!(last["data"]["backups"], serde_json::json!([]));
    for words in [&["check"][..], &["check", "--read-data"], &["prune"], &["expire", "--keep-last", "1"]] {
        program.run(words).expect_code(0);
    }
    let it = program.run(&["show", "latest"]).expect_code(1);
    assert!(it.err.contains("no backup"), "{it:#?}");
}

#[test]
fn a_wrong_password_is_exit_6() {
    let program = Program::with_repository();
    for words in READERS {
        let it = run(program.command(words).env("HOLDFAST_PASSWORD", "battery staple")).expect_code(6);
        assert!(it.err.starts_with("error: wrong password"), "{it:#?}");
    }
    let last = run(program.command(&["list", "--json"]).env("HOLDFAST_PASSWORD", "x")).expect_code(6).last();
    assert_eq!((&last["kind"], &last["exit_code"]), (&"key".into(), &6.into()));
    run(program.command(&["list"]).env_remove("HOLDFAST_PASSWORD")).expect_code(6);
}

#[test]
fn a_password_command_that_fails_is_not_shown() {
    let program = Program::with_repository();
    let mut command = program.command(&["list"]);
    command.env_remove("HOLDFAST_PASSWORD").env("HOLDFAST_PASSWORD_COMMAND", "test hush = hush && exit 3");
    let it = run(&mut command).expect_code(2);
    assert!(it.err.contains("HOLDFAST_PASSWORD_COMMAND") && it.err.contains("exit status: 3"), "{it:#?}");
    assert!(!it.err.contains("hush"), "{it:#?}");
}

#[test]
fn a_repository_that_is_not_there_is_exit_5() {
    let program = Program::new();
    for words in READERS {
        let it = program.run(words).expect_code(5);
        assert!(it.err.contains("hint: ") && it.err.contains("init"), "{it:#?}");
    }
    std::fs::create_dir(program.repository()).unwrap();
    let it = program.run(&["list"]).expect_code(5);
    assert!(it.err.contains("there is no repository at"), "{it:#?}");
}

/// A command on the program's repository that is given no password.
fn without_password(program: &Program, words: &[&str]) -> Command {
    let mut command = bare(&program.path(""));
    command.args(words).arg("--repo").arg(program.repository());
    command
}

#[test]
fn a_repository_without_encryption_asks_for_no_password_and_takes_none() {
    let program = Program::new();
    let with = |words: &[&str]| without_password(&program, words);
    run(&mut with(&["init", "--no-encryption"])).expect_code(0);
    run(&mut with(&["list"])).expect_code(0);
    let it = run(with(&["list"]).env("HOLDFAST_PASSWORD", "x")).expect_code(6);
    assert!(it.err.contains("not encrypted"), "{it:#?}");
}

/// Whoever writes the store can put a repository without encryption in the place of an encrypted one: each verb tells,
/// unless the configuration says that it is meant.
#[test]
fn a_repository_without_encryption_is_told_unless_it_is_meant() {
    let program = Program::new();
    let with = |words: &[&str]| without_password(&program, words);
    run(&mut with(&["init", "--no-encryption"])).expect_code(0);
    let warning = format!("the repository {} is not encrypted", program.repository().display());
    for words in [&["list"][..], &["check"], &["prune"], &["key", "list"], &["doctor", "--no-server"]] {
        let it = run(&mut with(words));
        let told = it.err.lines().filter(|line| line.contains(&warning)).count();
        assert!(told == 1 && it.err.contains("warning: "), "{words:?}: {it:#?}");
    }
    let lines = run(&mut with(&["list", "--json"])).expect_code(0).json();
    let is_it =
        |line: &&Value| line["type"] == "warning" && line["text"].as_str().unwrap().contains(&warning);
    assert_eq!(lines.iter().filter(is_it).count(), 1, "{lines:#?}");

    let config = program.write("holdfast.toml", "no-encryption = true\n").display().to_string();
    let it = run(&mut with(&["list", "--config", &config])).expect_code(0);
    assert!(!it.err.contains("encrypted"), "{it:#?}");
    // As the target of a copy.
    let from = Program::with_repository();
    let to = format!("[[repository]]\nname = \"plain\"\nrepo = \"{}\"\n", program.repository().display());
    for (meant, told) in [("", 1), ("no-encryption = true\n", 0)] {
        let config = from.write("to.toml", &format!("{to}{meant}")).display().to_string();
        let it = from.run(&["copy", "--all", "--to", "plain", "--config", &config]).expect_code(0);
        assert_eq!(it.err.matches(&warning).count(), told, "{it:#?}");
    }
}

#[test]
fn damage_to_the_keys_is_exit_7_and_names_the_object() {
    let program = Program::with_repository();
    let keys = program.repository().join("keys");
    let key = std::fs::read_dir(keys).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&key).unwrap();
    std::fs::write(&key, &text[..text.len() / 2]).unwrap();
    let it = program.run(&["list"]).expect_code(7);
    assert!(it.err.contains(key.file_name().unwrap().to_str().unwrap()), "{it:#?}");
}

#[test]
fn expire_without_rules_is_a_mistake() {
    let program = Program::with_repository();
    let it = program.run(&["expire"]).expect_code(2);
    assert!(it.err.contains("--keep-last"), "{it:#?}");
    program.run(&["expire", "1", "--keep-last", "1"]).expect_code(2);
}
