//! Data directories: created once by real servers, kept, and copied for each run.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use holdfast_testkit::data::shop::{self, ShopOptions};
use holdfast_testkit::{Server, ServerKind, ServerOptions};

use crate::progress::Progress;
use crate::scratch::Scratch;

/// The tables of the schema `shop`.
pub(crate) const TABLES: [&str; 3] = ["shop.customers", "shop.orders", "shop.events"];
/// Raised when the data change for the same options.
const LAYOUT: u32 = 3;
const SEED: u64 = 1;
/// Tables take more space than the literals they are loaded from, because of indexes and half-filled pages.
const LITERALS_PERCENT: u64 = 66;
/// The default of both servers, and the size in a kept directory.
pub(crate) const REDO_MIB: u32 = 96;

/// Selects a data set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dataset {
    pub(crate) kind: ServerKind,
    /// The approximate size of the tables.
    pub(crate) size_mib: u64,
}

impl Dataset {
    /// A description of the data.
    pub(crate) fn description(&self) -> String {
        format!(
            "schema shop of holdfast-testkit, seed {SEED}, {} MiB of SQL literals: customers, orders and events with words by \
             Zipf's law, numbers, decimals, JSON, random identifiers and blobs, and indexes in random order",
            self.literals_mib()
        )
    }

    fn literals_mib(&self) -> u64 {
        (self.size_mib * LITERALS_PERCENT / 100).max(1)
    }

    /// The directory of a stopped server that holds the data; created if it does not exist.
    pub(crate) fn datadir(&self, scratch: &Scratch, progress: &Progress) -> Result<PathBuf> {
        let datasets = scratch.datasets();
        fs::create_dir_all(&datasets)?;
        let kept =
            datasets.join(format!("{}-{}-{}mib-v{LAYOUT}", self.kind, self.kind.version()?, self.size_mib));
        if !kept.is_dir() {
            progress.note(&format!("loading about {} MiB into {}, once", self.size_mib, self.kind));
            let made = self.make(scratch).with_context(|| format!("make data for {}", self.kind))?;
            fs::rename(made.datadir(), &kept).with_context(|| kept.display().to_string())?;
        }
        Ok(kept)
    }

    /// Loads a server as fast as possible and stops it with no background work left.
    fn make(&self, scratch: &Scratch) -> Result<Server> {
        let quick_and_volatile = [
            "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0",
            "--sync-binlog=0",
        ];
        let mut options = ServerOptions {
            buffer_pool_mib: Some(3072),
            redo_mib: Some(1024),
            lean: false,
            ..ServerOptions::default()
        };
        options = quick_and_volatile.into_iter().fold(options, ServerOptions::arg);
        let mut server = Server::start(self.kind, options.parent(scratch.path()))?;
        shop::load(
            &server,
            ShopOptions { size_mib: self.literals_mib(), seed: SEED, ..ShopOptions::default() },
        )?;
        let redo_size =
            if self.kind.is_mariadb() { "innodb_log_file_size" } else { "innodb_redo_log_capacity" };
        server.exec_all([
            format!("ANALYZE TABLE {}", TABLES.join(", ")),
            format!("SET GLOBAL {redo_size} = {}", u64::from(REDO_MIB) << 20),
            "SET GLOBAL innodb_fast_shutdown = 0".to_owned(),
        ])?;
        server.stop()?;
        Ok(server)
    }
}
