//! The server being backed up: a copy of kept data, with the settings of a production server.

use std::path::{Path, PathBuf};

use anyhow::Result;
use holdfast_testkit::observe::directory_bytes;
use holdfast_testkit::server::copy_datadir;
use holdfast_testkit::{Server, ServerKind, ServerOptions};
use tempfile::TempDir;

use crate::dataset::{Dataset, REDO_MIB};
use crate::machine;
use crate::pages;
use crate::progress::Progress;
use crate::results::Data;
use crate::scratch::Scratch;

const BUFFER_POOL_MIB: u32 = 1024;

/// A server with data.
pub(crate) struct Source {
    pub(crate) server: Server,
    dataset: Dataset,
    running: bool,
    /// Removed after the server has ended, since fields are dropped in order.
    _dir: TempDir,
}

impl Source {
    /// Copies the data and starts a server on the copy.
    pub(crate) fn start(dataset: Dataset, scratch: &Scratch, progress: &Progress) -> Result<Source> {
        let kept = dataset.datadir(scratch, progress)?;
        let dir = scratch.dir("source-")?;
        let datadir = dir.path().join("data");
        copy_datadir(&kept, &datadir)?;
        let server = Server::attach(dataset.kind, &datadir, options(dataset.kind, scratch))?;
        Ok(Source { server, dataset, running: true, _dir: dir })
    }

    /// A new, empty server with the same settings, as the target of loads.
    pub(crate) fn empty(kind: ServerKind, scratch: &Scratch) -> Result<Source> {
        let server = Server::start(kind, options(kind, scratch))?;
        Ok(Source {
            server,
            dataset: Dataset { kind, size_mib: 0 },
            running: true,
            _dir: scratch.dir("empty-")?,
        })
    }

    pub(crate) fn kind(&self) -> ServerKind {
        self.server.kind()
    }

    pub(crate) fn datadir(&self) -> &Path {
        self.server.datadir()
    }

    /// Shuts the server down, so that every page is on disk and the redo log is empty.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if self.running {
            self.server.stop()?;
            self.running = false;
        }
        Ok(())
    }

    /// Starts the server if it is not running.
    pub(crate) fn run(&mut self) -> Result<()> {
        if !self.running {
            self.server.run()?;
            self.running = true;
        }
        Ok(())
    }

    /// CPU time of the server so far; `None` while it is not running.
    pub(crate) fn cpu_s(&self) -> Result<Option<f64>> {
        if !self.running {
            return Ok(None);
        }
        machine::process_cpu_s(self.server.pid()?).map(Some)
    }

    /// The files that any backup must read.
    pub(crate) fn data_files(&self) -> Result<Vec<PathBuf>> {
        pages::data_files(self.datadir())
    }

    /// Describes the data for the report.
    pub(crate) fn describe(&self, scenario: Option<&str>) -> Result<Data> {
        Ok(Data {
            server: self.kind().name().to_owned(),
            scenario: scenario.map(str::to_owned),
            server_version: self.kind().version()?,
            datadir_bytes: directory_bytes(self.datadir())?,
            data_file_bytes: pages::total_bytes(&self.data_files()?)?,
            description: format!(
                "{}; buffer pool {BUFFER_POOL_MIB} MiB, redo log {REDO_MIB} MiB, binlog, every commit durable",
                self.dataset.description()
            ),
        })
    }
}

/// The settings of every measured server, and of servers started on restored directories.
pub(crate) fn options(kind: ServerKind, scratch: &Scratch) -> ServerOptions {
    // mydumper 1.0.1 reads columns of EXPLAIN that MySQL 9's default format lacks, and crashes.
    let extra = if kind.is_mariadb() { vec![] } else { vec!["--explain-format=TRADITIONAL".to_owned()] };
    ServerOptions {
        buffer_pool_mib: Some(BUFFER_POOL_MIB),
        redo_mib: Some(REDO_MIB),
        lean: false,
        extra,
        ..ServerOptions::default()
    }
    .parent(scratch.path())
}
