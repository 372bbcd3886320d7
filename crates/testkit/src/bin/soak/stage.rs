//! The server that all rounds share, and the repository of its backups.

use std::path::{Path, PathBuf};

use anyhow::Result;
use holdfast_testkit::data::{misc, shop};
use holdfast_testkit::encryption::Encryption;
use holdfast_testkit::network::Network;
use holdfast_testkit::program::{Holdfast, Invocation};
use holdfast_testkit::{Server, ServerKind, ServerOptions};
use tempfile::TempDir;

use super::{Options, Reach};

/// Name of the source.
pub(crate) const NAME: &str = "soak";
/// When a backup takes a silent connection to the server for a lost one.
const ANSWER_TIMEOUT_S: u64 = 20;

/// All state that rounds share. Fields are dropped in order: the server before its directory.
pub(crate) struct Stage {
    pub(crate) source: Server,
    /// What lies between the program on one side and server and repository on the other.
    pub(crate) network: Option<Network>,
    pub(crate) holdfast: Holdfast,
    /// Backups that a replica of the source can start from, each with the binlog that was current before it.
    pub(crate) backups: Vec<Backup>,
    /// Duration of the last backup; fault times are drawn from it.
    pub(crate) backup_takes_s: f64,
    pub(crate) restore_takes_s: f64,
    encryption: Option<Encryption>,
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
fn usual_options(kind: ServerKind) -> ServerOptions {
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
        let usual = usual_options(options.kind);
        let encryption = match options.encrypted {
            true => Some(Encryption::new(options.kind, dir.path(), usual.clone())?),
            false => None,
        };
        let server_options =
            encryption.as_ref().map_or(usual, |encryption| encryption.server_options.clone());
        let source = Server::start(options.kind, server_options.parent(dir.path()))?;
        let shop = shop::ShopOptions { size_mib: options.size_mib, seed: options.seed, ..Default::default() };
        shop::load(&source, shop)?;
        // A path outside cannot be rewritten in MariaDB's encrypted redo, so the source must be away.
        let outside = !(options.encrypted && options.kind.is_mariadb());
        misc::create(&source, misc::MiscOptions { seed: options.seed, outside, ..Default::default() })?;
        if let Some(encryption) = &encryption {
            encryption.encrypt_tables(&source)?;
        }
        let network = match options.reach {
            Reach::Local => None,
            Reach::Network => Some(Network::to(&source)?),
        };
        let holdfast = match &network {
            None => Holdfast::new(options.program.clone(), dir.path())?,
            Some(network) => network.holdfast(options.program.clone(), dir.path(), NAME)?,
        };
        holdfast.init()?;
        let (backups, backup_takes_s, restore_takes_s) = (Vec::new(), 2.0, 3.0);
        Ok(Stage { source, network, holdfast, backups, backup_takes_s, restore_takes_s, encryption, dir })
    }

    /// A backup of the source, not yet started.
    pub(crate) fn back_up(&self, words: &str) -> Invocation {
        match &self.network {
            None => self.holdfast.command(format!("backup --name {NAME} {words}")).of(&self.source),
            Some(network) => {
                let limit = format!("--answer-timeout {ANSWER_TIMEOUT_S}");
                let backup = self.holdfast.command(format!("backup --name {NAME} {limit} {words}"));
                backup.at_port(network.to_source.port())
            }
        }
    }

    /// A restore, not yet started.
    pub(crate) fn restore(&self, id: &str, target: &Path) -> Result<Invocation> {
        let options = self.encryption.iter().flat_map(|encryption| &encryption.prepare_options);
        let words: String = options.map(|option| format!(" --prepare-option={option}")).collect();
        // The source's own program loads its keyring.
        Ok(self.holdfast.command(format!("restore {id}{words}")).into(&self.source.program()?, target))
    }

    /// A server on a restored directory.
    pub(crate) fn attach(&self, target: &Path) -> Result<Server> {
        let kind = self.source.kind();
        let options = match &self.encryption {
            None => usual_options(kind),
            Some(encryption) => {
                encryption.hand_over(target)?;
                encryption.server_options.clone()
            }
        };
        Server::attach(kind, target, options.parent(self.dir()))
    }

    /// Starts the source again.
    pub(crate) fn run_source(&mut self) -> Result<()> {
        self.source.run()?;
        if let Some(network) = &self.network {
            network.to_source.lead_to(self.source.port());
        }
        Ok(())
    }

    pub(crate) fn reach(&self) -> Reach {
        if self.network.is_some() { Reach::Network } else { Reach::Local }
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
        if let Some(network) = &mut self.network {
            network.store.keep();
        }
        self.dir.keep()
    }
}
