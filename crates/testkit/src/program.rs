//! The `holdfast` program, run as an operator runs it, so that tests cover what people will type.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, getegid, geteuid, kill_process};
use serde_json::Value;

use crate::kind::ServerKind;
use crate::replica::Position;
use crate::server::Server;
use crate::spawn::spawn;

/// The program and its repository.
#[derive(Debug)]
pub struct Holdfast {
    program: PathBuf,
    repo: PathBuf,
    password_file: PathBuf,
    /// Environment variables for a repository beyond a network.
    environment: Vec<(&'static str, String)>,
}

/// A command that succeeded.
#[derive(Clone, Debug)]
pub struct Done {
    /// The command as typed, without the options that all commands share.
    pub typed: String,
    /// How long it took.
    pub elapsed: Duration,
    /// The last line that it printed.
    pub last_line: String,
}

impl Holdfast {
    /// The program, with its repository and password file in `dir`.
    pub fn new(program: PathBuf, dir: &Path) -> Result<Holdfast> {
        Holdfast::at(program, dir, dir.join("repo"), Vec::new())
    }

    /// The program, with the repository at `location`, which is reached by the environment; the
    /// password file is in `dir`.
    pub fn beyond_network(
        program: PathBuf,
        dir: &Path,
        location: &str,
        environment: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Holdfast> {
        Holdfast::at(program, dir, location.into(), environment.into_iter().collect())
    }

    fn at(
        program: PathBuf,
        dir: &Path,
        repo: PathBuf,
        environment: Vec<(&'static str, String)>,
    ) -> Result<Holdfast> {
        let password_file = dir.join("password");
        fs::write(&password_file, "not a secret\n")?;
        Ok(Holdfast { program, repo, password_file, environment })
    }

    /// The directory of the repository, if it is a directory.
    pub fn repo(&self) -> &Path {
        &self.repo
    }

    /// Makes the repository.
    pub fn init(&self) -> Result<Done> {
        self.command("init").done()
    }

    /// Backs up a server, as the source `name`.
    pub fn backup(&self, server: &Server, name: &str) -> Result<Done> {
        self.command(format!("backup --name {name}")).of(server).done()
    }

    /// Restores a backup: `latest`, or an id from a list.
    pub fn restore(&self, kind: ServerKind, backup: &str, target: &Path) -> Result<Done> {
        self.command(format!("restore {backup}")).into(&kind.server_program()?, target).done()
    }

    /// Builds a command from a verb and its plain options.
    pub fn command(&self, typed: impl Into<String>) -> Invocation {
        let typed = typed.into();
        let mut command = Command::new(&self.program);
        command
            .args(typed.split_whitespace())
            .arg("--repo")
            .arg(&self.repo)
            .arg("--password-file")
            .arg(&self.password_file)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        Invocation { typed, command }
    }
}

/// A command that has not been run yet.
#[derive(Debug)]
pub struct Invocation {
    typed: String,
    command: Command,
}

impl Invocation {
    /// Runs the command on this server.
    #[must_use]
    pub fn of(mut self, server: &Server) -> Invocation {
        self.command.arg("--no-defaults").arg("--socket").arg(server.socket()).args(["--user", "root"]);
        self
    }

    /// Runs the command on the server at this port of 127.0.0.1.
    #[must_use]
    pub fn at_port(mut self, port: u16) -> Invocation {
        self.command.args(["--no-defaults", "--host", "127.0.0.1", "--user", "root", "--port"]);
        self.command.arg(port.to_string());
        self
    }

    /// Restores into this directory, with recovery by the server program `server`.
    #[must_use]
    pub fn into(mut self, server: &Path, target: &Path) -> Invocation {
        self.command.arg("--target-dir").arg(target).arg("--server-binary").arg(server);
        // No other user can enter our scratch directories.
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        self.command.arg("--owner").arg(format!("{user}:{group}"));
        self
    }

    /// Runs the command; fails if the command fails.
    pub fn done(self) -> Result<Done> {
        let typed = self.typed.clone();
        let ended = self.start()?.wait()?;
        ensure!(ended.succeeded(), "holdfast {typed} ended with {}:\n{}", ended.status, ended.output);
        let last_line =
            ended.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
        Ok(Done { typed: format!("holdfast {typed}"), elapsed: ended.elapsed, last_line })
    }

    /// Starts the command.
    /// It dies with this process: an orphan might find another test's server where its own was.
    pub fn start(self) -> Result<Running> {
        let output = tempfile::tempfile()?;
        let (errors, out) = (output.try_clone()?, output.try_clone()?);
        let begun = Instant::now();
        let child = spawn(Path::new(self.command.get_program()), |command| {
            command.args(self.command.get_args());
            command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command.stdin(Stdio::null()).stderr(errors).stdout(out);
        })?;
        Ok(Running { child, output, begun })
    }
}

/// A running command. Dropping it kills the process.
#[derive(Debug)]
pub struct Running {
    child: Child,
    output: File,
    begun: Instant,
}

/// A command that has ended, successfully or not.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// Its output on both channels.
    pub output: String,
    /// How long it took.
    pub elapsed: Duration,
}

impl Ended {
    /// Whether it succeeded.
    pub fn succeeded(&self) -> bool {
        self.status.success()
    }
}

impl Running {
    /// Sends a signal, unless it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), signal)?;
        }
        Ok(())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for it to end.
    pub fn wait(mut self) -> Result<Ended> {
        let status = self.child.wait()?;
        let elapsed = self.begun.elapsed();
        let mut output = Vec::new();
        self.output.rewind()?;
        self.output.read_to_end(&mut output)?;
        Ok(Ended { status, output: String::from_utf8_lossy(&output).into_owned(), elapsed })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Usually it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The path of `holdfast` beside the running executable: both come from one build.
pub fn built_program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("holdfast"))
}

/// Reads the position that a restore has left in the restored directory.
pub fn restored_position(target: &Path) -> Result<Position> {
    let path = target.join("holdfast-restore.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let value: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let gtid = value["position"]["gtid"].as_str();
    let gtid = gtid.with_context(|| format!("no position.gtid in {text}"))?.to_owned();
    match value["position"]["precision"].as_str() {
        Some("exact") => Ok(Position::Gtid(gtid)),
        Some("at_restore") => Ok(Position::AtLeast(gtid)),
        _ => bail!("no position.precision in {text}"),
    }
}
