//! Hooks around backups that fail because there is no server.

use std::fs;

use crate::backups::begun;
use crate::program::{PASSWORD, Program, Run, run};

/// A hook that appends its environment variables to a file, one line per call.
const TELL: &str = "echo \"$HOLDFAST_HOOK $HOLDFAST_HOOK_METHOD $HOLDFAST_HOOK_NAME $HOLDFAST_HOOK_EXIT_CODE \
    $HOLDFAST_HOOK_OUTCOME [$HOLDFAST_HOOK_BACKUPS] $HOLDFAST_HOOK_ERROR\" >> told; env >> environment";

fn backup(program: &Program, words: &[&str]) -> Run {
    let mut command = program.command(&["backup", "--name", "db1", "--socket", "no-server", "--no-defaults"]);
    run(command.env("MYSQL_PWD", "the-servers").args(words))
}

fn told(program: &Program) -> String {
    fs::read_to_string(program.path("told")).unwrap()
}

/// If the hook before a backup fails, the backup does not begin, and the hook after it can clean up.
/// Their output is passed on, and they get no password.
#[test]
fn a_hook_that_fails_ends_the_backup_before_it_begins() {
    let program = Program::with_repository();
    let before = format!("{TELL}; echo busy; echo 'the line is busy' >&2; exit 3");
    let failed = backup(&program, &["--hook-before", &before, "--hook-after", TELL]).expect_code(1);
    assert!(failed.err.contains("hook-before: busy\n"), "{failed:?}");
    assert!(failed.err.contains("error: hook-before failed (exit status: 3)"), "{failed:?}");
    assert!(!failed.err.contains("no-server"), "{failed:?}");
    let told = told(&program);
    let [first, second] = told.lines().collect::<Vec<_>>()[..] else { panic!("{told}") };
    assert_eq!(first.split_whitespace().collect::<Vec<_>>(), ["before", "physical", "db1", "[]"]);
    assert!(second.starts_with("after physical db1 1 failed"), "{second}");
    assert!(second.contains("hook-before failed"), "{second}");
    let environment = fs::read_to_string(program.path("environment")).unwrap();
    assert!(environment.contains("HOLDFAST_HOOK=before") && !environment.contains(PASSWORD), "{environment}");
    assert!(!environment.contains("the-servers"), "{environment}");
}

/// The hook after a backup learns how the backup failed, and its own failure does not change that.
/// Typed hooks override configured ones.
#[test]
fn a_hook_is_told_how_the_backup_failed() {
    let program = Program::with_repository();
    let config =
        format!("[backup]\nhook-before = \"exit 1\"\nhook-after = {:?}\n", format!("{TELL}; exit 7"));
    program.write("hooks.toml", &config);
    let failed = backup(&program, &["--config", "hooks.toml", "--hook-before", "exit 0"]).expect_code(4);
    assert!(failed.err.contains("warning: hook-after failed (exit status: 7)"), "{failed:?}");
    let told = told(&program);
    assert!(told.starts_with("after physical db1 4 server") && told.contains("no-server"), "{told}");
}

/// `timeout` signals the program, and then its process group: that is one request to end.
#[test]
fn a_signal_that_comes_twice_at_once_skips_no_hook() {
    let program = Program::with_repository();
    let before = "kill -TERM $PPID; kill -TERM $PPID; kill -INT $PPID; sleep 1";
    backup(&program, &["--hook-before", before, "--hook-after", TELL]).expect_code(130);
    assert!(told(&program).starts_with("after physical db1 130 interrupted"), "{}", told(&program));
}

/// If the repository cannot be opened, the first hook does not run, and the second one is informed.
#[test]
fn a_hook_is_told_that_the_repository_is_away() {
    let program = Program::new();
    let words =
        ["--hook-before", TELL, "--hook-after", &format!("{TELL}; echo $HOLDFAST_HOOK_BEFORE >> told")];
    backup(&program, &words).expect_code(5);
    let told = told(&program);
    assert!(
        told.starts_with("after physical db1 5 repository []") && told.ends_with("\nnot-run\n"),
        "{told}"
    );
}

/// The hook after a backup undoes what the one before has done, so neither may run during
/// another backup of the source.
#[test]
fn a_second_backup_runs_no_hooks() {
    let program = Program::with_repository();
    let first = begun(&program, "db1");
    let words = ["--hook-before", TELL, "--hook-after", TELL];
    for method in ["physical", "logical"] {
        let words = [&words, &["--method", method][..]].concat();
        let second = backup(&program, &words).expect_code(8);
        assert!(second.err.contains("a backup (process"), "{second:?}");
        assert!(!program.path("told").exists());
    }
    first.abandon("the test goes on").unwrap();
    backup(&program, &words).expect_code(4);
    assert!(told(&program).starts_with("before physical db1"));
}

/// The repository does not show a backup while its hooks run. No other one runs hooks then, until the
/// first has ended, and be it by SIGKILL.
#[test]
fn a_backup_that_is_at_its_hooks_is_a_backup_already() {
    let program = Program::with_repository();
    program.write("password", &format!("{PASSWORD}\n"));
    let second = format!(
        "{} backup --name db1 --method logical --socket no-server --no-defaults --password-file password \
         --hook-before 'echo second >> told' --hook-after 'echo second >> told'; echo code $? >> told",
        env!("CARGO_BIN_EXE_holdfast")
    );
    let first = backup(&program, &["--hook-before", &second, "--hook-after", &second]).expect_code(4);
    assert!(first.err.contains("another backup of db1 with hooks is active on this host"), "{first:?}");
    assert_eq!(told(&program), "code 8\ncode 8\n");
    backup(&program, &["--hook-before", "kill -KILL $PPID"]).expect_code(-1);
    backup(&program, &["--hook-before", "echo after all >> told"]).expect_code(4);
    assert!(told(&program).ends_with("code 8\nafter all\n"), "{}", told(&program));
}

/// Options that cannot be used are a failure to report as any other.
#[test]
fn a_hook_is_told_that_an_option_is_wrong() {
    for words in [&["--ssl-ca", "absent.pem"][..], &["--ssh-tunnel", "bastion"]] {
        let program = Program::with_repository();
        let hooks = ["--hook-before", "echo never >> told", "--hook-after", TELL];
        backup(&program, &[&hooks, words].concat()).expect_code(2);
        assert!(told(&program).starts_with("after physical db1 2 usage"), "{}", told(&program));
    }
}

/// A hook that takes too long is killed, with everything that it has started.
#[test]
fn a_hook_that_hangs_is_ended() {
    let program = Program::with_repository();
    let hang = "echo $$ > pid; sleep 1000; echo never";
    let failed = backup(&program, &["--hook-before", hang, "--hook-timeout", "3s"]).expect_code(1);
    assert!(failed.err.contains("hook-before had not ended after 3.0 s"), "{failed:?}");
    let group = fs::read_to_string(program.path("pid")).unwrap();
    let is_of_group = |stat: String| {
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[0] != "Z" && fields[2] == group.trim()
    };
    let is_running = || {
        let mut all = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
        all.any(is_of_group)
    };
    // Killed processes may take a moment to disappear.
    let begun = std::time::Instant::now();
    while is_running() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "something of it still runs");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
