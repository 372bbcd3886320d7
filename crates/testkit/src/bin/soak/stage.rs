//! The server that all rounds share, and the repository of its backups.

use std::path::{Path, PathBuf};

use anyhow::Result;
use holdfast_testkit::data::{misc, shop};
use holdfast_testkit::program::Holdfast;
use holdfast_testkit::{Server, ServerKind, ServerOptions};
use tempfile::TempDir;

use super::Options;

/// Name of the source.
pub(crate) const NAME: &str = "soak";

/// All state that rounds share. Fields are dropped in order: the server before its directory.
pub(crate) struct Stage {
    pub(crate) source: Server,
    pub(crate) holdfast: Holdfast,
    /// Backups that a replica of the source can start from, each with the binlog that was current before it.
    pub(crate) backups: Vec<Backup>,
    /// Duration of the last backup; fault times are drawn from it.
    pub(crate) backup_takes_s: f64,
    pub(crate) restore_takes_s: f64,
    dir: TempDir,
}

/// A completed backup.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    /// Its id on the command line.
    pub(crate) id: String,
    /// The source's current binlog before the backup.
    pub(crate) binlog: String,
}

/// Options that include undo tablespaces, of which MariaDB 10.11 has none by default.
pub(crate) fn server_options(kind: ServerKind) -> ServerOptions {
    let usual = ServerOptions { lean: false, ..ServerOptions::default() };
    match kind.is_mariadb() {
        true => usual.init_arg("--innodb-undo-tablespaces=3"),
        false => usual,
    }
}

impl Stage {
    /// Starts and fills the server, and creates the repository.
    pub(crate) fn set(options: &Options) -> Result<Stage> {
        let dir = tempfile::Builder::new().prefix("holdfast-soak-").tempdir()?;
        let source = Server::start(options.kind, server_options(options.kind).parent(dir.path()))?;
        let shop = shop::ShopOptions { size_mib: options.size_mib, seed: options.seed, ..Default::default() };
        shop::load(&source, shop)?;
        misc::create(&source, misc::MiscOptions { seed: options.seed, ..Default::default() })?;
        let holdfast = Holdfast::new(options.program.clone(), dir.path())?;
        holdfast.init()?;
        let backups = Vec::new();
        Ok(Stage { source, holdfast, backups, backup_takes_s: 2.0, restore_takes_s: 3.0, dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The source's current binlog.
    pub(crate) fn binlog(&self) -> Result<String> {
        let statement = match self.source.kind().is_mariadb() {
            true => "SHOW MASTER STATUS",
            false => "SHOW BINARY LOG STATUS",
        };
        let row: mysql::Row = self.source.query(statement)?.remove(0);
        Ok(row.get(0).unwrap_or_default())
    }

    /// Forgets all but the last `keep` backups, and lets the source purge binlogs that no replica will need.
    pub(crate) fn forget(&mut self, keep: usize) -> Result<()> {
        let surplus = self.backups.len().saturating_sub(keep);
        self.backups.drain(..surplus);
        match self.backups.first() {
            Some(oldest) => self.source.exec(format!("PURGE BINARY LOGS TO '{}'", oldest.binlog)),
            None => Ok(()),
        }
    }

    /// Keeps all files for an investigation, and ends the server.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.source.keep();
        self.dir.keep()
    }
}
