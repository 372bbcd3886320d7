//! The program's surroundings: where its result goes, signals, file modes.

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt as _, chown},
    process::Stdio,
};

use rustix::process::geteuid;

use crate::{
    backups::three,
    program::{PASSWORD, Program, bare_of, run},
};

/// A result that cannot be written is a failure, unless the reader has gone.
#[test]
fn a_result_that_is_not_written_is_no_success() {
    let program = three();
    let with_out = |words: &[&str], out: Stdio| {
        let mut command = program.command(words);
        let child = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        (child.status.code().unwrap(), String::from_utf8(child.stderr).unwrap())
    };
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for words in [&["list"][..], &["list", "--json"], &["ls", "latest"]] {
        let (code, said) = with_out(words, full());
        assert_eq!(code, 1, "{words:?}: {said}");
        assert!(said.contains("not all of the result could be written to standard output"), "{said}");
    }
    // The backup is held all the same.
    let (code, said) = with_out(&["hold", "1"], full());
    assert!(code == 3 && said.contains("warning: not all of the result"), "{code}: {said}");
    let (gone, out) = std::io::pipe().unwrap();
    drop(gone);
    assert_eq!(with_out(&["list"], out.into()).0, 0);
}

/// The configuration can name commands, which would run with this user's rights.
#[test]
fn a_configuration_that_others_may_write_is_refused() {
    let program = three();
    let path = program.write("shared.toml", "name = \"db1\"\n");
    let list = ["list", "--config", "shared.toml"];
    program.run(&list).expect_code(0);
    let refused = |mode: u32, why: &str| {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = program.run(&list).expect_code(2);
        assert!(refused.err.contains(why), "{refused:#?}");
    };
    refused(0o666, "everybody can write to it (mode 666)");
    // Only root can give files to others; the unit tests of `config` have these cases for everybody.
    if geteuid().is_root() {
        const STRANGER: u32 = 4_000_000;
        chown(&path, None, Some(STRANGER)).unwrap();
        refused(0o664, "its group can write to it (mode 664, group 4000000)");
        chown(&path, Some(STRANGER), Some(0)).unwrap();
        refused(0o644, "it belongs to another user (4000000)");
        chown(&path, Some(0), None).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    program.run(&list).expect_code(0);
}

/// As with `nohup`: the caller decides which signals are ignored.
#[test]
fn a_signal_that_is_to_be_ignored_ends_nothing() {
    let program = Program::with_repository();
    let ended = |trap: &str| {
        // The hook sends the signal to its parent, which then has time to end.
        let script = format!("{trap} exec \"$@\" --hook-before 'kill -HUP $PPID; sleep 1'");
        let backup = ["backup", "--name", "db1", "--no-defaults", "--socket", "nowhere"];
        let words = ["-c", &script, "sh", env!("CARGO_BIN_EXE_holdfast")];
        let mut shell = bare_of(&program.path(""), "/bin/sh");
        shell.args(words).args(backup).arg("--repo").arg(program.repository());
        run(shell.env("HOLDFAST_PASSWORD", PASSWORD))
    };
    // It gets as far as connecting to the server.
    ended("trap '' HUP;").expect_code(4);
    ended("").expect_code(130);
}
