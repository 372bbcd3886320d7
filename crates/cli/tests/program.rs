//! Runs the program in an environment that contains only what a test sets.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use holdfast_repo::{
    Password, Repo,
    keys::{KdfParams, Protection},
    store::fs::FsStore,
};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const PASSWORD: &str = "correct horse";

/// Lock time limits for tests that do not test them.
pub(crate) const LOCKS: [&str; 4] = ["--lock-max", "30s", "--ddl-lock-max", "120s"];

/// A place for a repository, and the program that works on it.
pub(crate) struct Program {
    directory: TempDir,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Program {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    /// Creates a repository with [`PASSWORD`], which costs a fifth of the usual time to try: every run does so.
    pub(crate) fn with_repository() -> Self {
        let program = Self::new();
        let store = Arc::new(FsStore::create(program.repository()).unwrap());
        let password = Password::new(PASSWORD.to_owned()).unwrap();
        Repo::init(store, &Protection::Password { password: &password, kdf: KdfParams::MINIMUM }).unwrap();
        program
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.path("repo")
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The program, with the repository and the password in the environment.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = bare(self.directory.path());
        command.args(words).env("HOLDFAST_REPO", self.repository()).env("HOLDFAST_PASSWORD", PASSWORD);
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Run {
        run(&mut self.command(words))
    }
}

/// The program with an empty environment, and `home` as its home directory.
pub(crate) fn bare(home: &Path) -> Command {
    bare_of(home, env!("CARGO_BIN_EXE_holdfast"))
}

/// Another program, likewise.
/// Signals that the caller of the tests ignores (`nohup`, background jobs) are reset.
pub(crate) fn bare_of(home: &Path, program: &str) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=HUP,INT", program]);
    command.env_clear().env("HOME", home).current_dir(home).stdin(Stdio::null());
    command
}

pub(crate) fn run(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Run {
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// The lines of `--json`, checked for the fields that every line must have.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
        let lines: Vec<Value> = self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (line, seq) in lines.iter().zip(1..) {
            assert_eq!(line["schema_version"], 1, "{line}");
            assert_eq!(line["run_id"], lines[0]["run_id"], "{line}");
            assert_eq!(line["seq"], seq, "{line}");
            assert!(
                line["time"].as_str().is_some_and(|time| time.ends_with('Z') && time.len() == 24),
                "{line}"
            );
        }
        lines
    }

    /// The last line of `--json`.
    #[track_caller]
    pub(crate) fn last(&self) -> Value {
        self.json().pop().unwrap_or_else(|| panic!("nothing on standard output: {self:#?}"))
    }
}
