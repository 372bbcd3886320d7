//! The contestants. Each provides shell commands that back up and restore a server.
//!
//! To be comparable, all commands share these properties: a command ends only when its result is durable
//! (Holdfast syncs its own files; the others are followed by `sync -f`), it uses as many threads as there are
//! processors where it can, and it keeps its result on the filesystem of the data directory.

mod archiver;
mod dumpers;
mod floor;
mod holdfast;
mod mariadb_backup;
mod mysql_tools;
mod restic;
mod rustic;
mod several;

use std::path::{Path, PathBuf};

use anyhow::Result;
use holdfast_testkit::ServerKind;

use crate::machine::ToolVersion;
use crate::process::Script;
use crate::source::Source;

pub(crate) use archiver::{Archiver, BinlogClient, RUNS_S};
pub(crate) use dumpers::{ClientDump, Drain, Mydumper};
pub(crate) use floor::{CopyDatadir, ReadOnce};
pub(crate) use holdfast::Holdfast;
pub(crate) use mariadb_backup::{MariadbBackup, Output, Placing};
pub(crate) use mysql_tools::{CloneLocal, Dump};
pub(crate) use restic::Restic;
pub(crate) use rustic::Rustic;
pub(crate) use several::FiveBackups;

/// One timed command and its surroundings.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Runs untimed, before the timed command.
    pub(crate) before: Option<Script>,
    pub(crate) timed: Script,
    /// The result, whose size on disk is reported.
    pub(crate) stored_in: Option<PathBuf>,
}

impl Job {
    /// A command whose result is `stored_in`.
    fn new(timed: Script, stored_in: &Path) -> Job {
        Job { before: None, timed, stored_in: Some(stored_in.to_path_buf()) }
    }
}

/// The operation requested from a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Backup,
    Incremental,
    Restore,
}

/// A contestant.
pub(crate) trait Tool {
    /// A stable identifier for programs and `--tool`.
    fn id(&self) -> &'static str;

    /// A description for people.
    fn label(&self) -> &'static str;

    /// Why it cannot be measured on this host with this server, if so.
    fn missing(&self, kind: ServerKind) -> Option<String>;

    /// The programs that it uses.
    fn versions(&self, _kind: ServerKind) -> Vec<ToolVersion> {
        Vec::new()
    }

    /// Whether its result goes to object storage, which the scenario starts.
    fn needs_object_storage(&self) -> bool {
        false
    }

    /// Seconds per GB of data on a machine with two processors, for the forecast.
    fn expected_s_per_gb(&self, verb: Verb) -> f64;

    /// Takes a full backup into the empty directory `dir`.
    fn backup(&self, source: &Source, dir: &Path) -> Result<Job>;

    /// Takes a backup of the changes since the one in `base`, into `dir` or, for tools with a
    /// repository, into `base`.
    fn incremental(&self, _source: &Source, _base: &Path, _dir: &Path) -> Result<Job> {
        anyhow::bail!("{} makes no incremental backups", self.id())
    }

    /// Restores the backup in `backup` to `target`, which does not exist yet, so that a server can start on
    /// it; `dir` is empty, for temporary files of the tool.
    fn restore(&self, _kind: ServerKind, _backup: &Path, _target: &Path, _dir: &Path) -> Result<Job> {
        anyhow::bail!("restores by {} are not measured", self.id())
    }

    /// Loads the rows of the backup in `backup` into the empty server `target`.
    fn load(&self, _backup: &Path, _target: &Source) -> Result<Job> {
        anyhow::bail!("loads by {} are not measured", self.id())
    }
}

/// Whether a program is in the search path.
fn in_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// The first of the programs that is not installed on this host, as the reason why a tool is missing.
fn missing_program(programs: &[&str]) -> Option<String> {
    programs.iter().find(|program| !in_path(program)).map(|program| format!("{program} is not installed"))
}
