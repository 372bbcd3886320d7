//! The `holdfast` program, run as an operator runs it: whoever uses this tests what people will type.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{getegid, geteuid};
use serde_json::Value;

use crate::kind::ServerKind;
use crate::replica::Position;
use crate::server::Server;

/// A program and its repository.
#[derive(Debug)]
pub struct Holdfast {
    program: PathBuf,
    repo: PathBuf,
    password_file: PathBuf,
}

/// A command that succeeded.
#[derive(Clone, Debug)]
pub struct Done {
    /// As typed, less what every command has in common.
    pub typed: String,
    /// How long it took.
    pub elapsed: Duration,
    /// The last line that it printed.
    pub last_line: String,
}

impl Holdfast {
    /// A program that keeps its repository, and the file with its password, in `dir`.
    pub fn new(program: PathBuf, dir: &Path) -> Result<Holdfast> {
        let password_file = dir.join("password");
        fs::write(&password_file, "demo\n")?;
        Ok(Holdfast { program, repo: dir.join("repo"), password_file })
    }

    /// Directory of the repository.
    pub fn repo(&self) -> &Path {
        &self.repo
    }

    /// Makes the repository.
    pub fn init(&self) -> Result<Done> {
        self.run("init", |_| {})
    }

    /// Backs up a server.
    pub fn backup(&self, server: &Server) -> Result<Done> {
        self.run("backup --name demo", |command| {
            command.arg("--no-defaults").arg("--socket").arg(server.socket()).args(["--user", "root"]);
        })
    }

    /// Restores the last backup.
    pub fn restore(&self, kind: ServerKind, target: &Path) -> Result<Done> {
        let program = kind.server_program()?;
        self.run("restore latest", |command| {
            command.arg("--target-dir").arg(target).arg("--server-binary").arg(&program);
            // Nobody else can enter our scratch directories.
            let (user, group) = (geteuid().as_raw(), getegid().as_raw());
            command.arg("--owner").arg(format!("{user}:{group}"));
        })
    }

    fn run(&self, verb: &str, options: impl FnOnce(&mut Command)) -> Result<Done> {
        let mut command = Command::new(&self.program);
        command
            .args(verb.split(' '))
            .arg("--repo")
            .arg(&self.repo)
            .arg("--password-file")
            .arg(&self.password_file);
        options(&mut command);
        let begun = Instant::now();
        let output =
            command.stdin(Stdio::null()).output().with_context(|| self.program.display().to_string())?;
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "holdfast {verb} ended with {}:\n{text}{errors}", output.status);
        let last_line =
            text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
        Ok(Done { typed: format!("holdfast {verb}"), elapsed: begun.elapsed(), last_line })
    }
}

/// The program beside the running one: both come from one build.
pub fn built_program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("holdfast"))
}

/// The position that a restore leaves in the restored directory.
pub fn restored_position(target: &Path) -> Result<Position> {
    let path = target.join("holdfast-restore.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let value: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let gtid = value["position"]["gtid"].as_str();
    Ok(Position::Gtid(gtid.with_context(|| format!("no position.gtid in {text}"))?.to_owned()))
}
