//! How to capture a server's files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use holdfast_pipe::Headroom;

use super::spool::Spool;
use crate::{error::Result, server::LockLimits};

/// How to capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The data directory, as this process sees it.
    pub datadir: PathBuf,
    /// The directory of the redo log, as this process sees it.
    pub redo_dir: PathBuf,
    /// Where this process sees paths of the server: its prefix, ours.
    pub path_map: Vec<(PathBuf, PathBuf)>,
    /// Reader threads.
    pub parallel: usize,
    /// Longest time that commits (MariaDB), or writes to tables of other engines (MySQL), may be blocked in one try.
    pub lock_max: Duration,
    /// Longest time that DDL, on MariaDB also writes to tables that are not transactional, may be blocked in one try.
    pub ddl_lock_max: Duration,
    /// Longest time to wait for a lock in one try.
    pub lock_wait: Duration,
    /// Tries to take the locks before the backup fails.
    pub lock_tries: u32,
    /// How long it goes on asking, beyond that, for locks that somebody is in the way of.
    pub lock_patience: Duration,
    /// Most bytes to read each second while the server writes; never bounds the redo, nor what is read under a lock.
    pub read_bytes_per_s_max: Option<u64>,
    /// What copy and compression leave to the server while it is written to.
    pub headroom: Arc<Headroom>,
    /// Take pages that are damaged on the source as they are, and mark the backup.
    pub allow_corrupt: bool,
    /// Where the redo spool goes.
    pub spool_dir: PathBuf,
    /// Most redo that may be captured.
    pub redo_spool_max_bytes: u64,
    /// What the spool leaves free of its file system.
    pub spool_reserve_bytes: u64,
}

impl CaptureOptions {
    /// Limits of the locks that block DDL; commits are blocked for [`CaptureOptions::lock_max`] at most.
    #[must_use]
    pub fn stage_limits(&self) -> LockLimits {
        LockLimits { wait_max: self.lock_wait, held_max: Some(self.ddl_lock_max) }
    }

    pub(super) fn spool(&self) -> Result<Spool> {
        Spool::create(&self.spool_dir, self.redo_spool_max_bytes, self.spool_reserve_bytes)
    }

    /// A path of the server, as this process sees it.
    #[must_use]
    pub fn map_path(&self, path: &Path) -> PathBuf {
        map_path(&self.path_map, path)
    }
}

/// A path of the server, as this process sees it: the first prefix in `map` that fits is replaced.
#[must_use]
pub fn map_path(map: &[(PathBuf, PathBuf)], path: &Path) -> PathBuf {
    map.iter()
        .find_map(|(theirs, ours)| path.strip_prefix(theirs).ok().map(|rest| ours.join(rest)))
        .unwrap_or_else(|| path.to_owned())
}
