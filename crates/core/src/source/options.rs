//! How to capture a server's files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use holdfast_pipe::Headroom;

use super::spool::Spool;
use crate::{error::Result, server::LockPolicy};

/// Options of a capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The data directory, as this process sees it.
    pub datadir: PathBuf,
    /// The directory of the redo log, as this process sees it.
    pub redo_dir: PathBuf,
    /// How the server's paths map to those of this process: its prefix, ours.
    pub path_map: Vec<(PathBuf, PathBuf)>,
    /// Reader threads.
    pub parallel: usize,
    /// How long locks may be held and waited for.
    pub locks: LockPolicy,
    /// Most bytes to read per second while the server writes. Limits neither the redo nor reads under a lock.
    pub read_bytes_per_s_max: Option<u64>,
    /// What copying and compressing leave to the server while it is written to.
    pub headroom: Arc<Headroom>,
    /// Whether to take pages that are damaged on the source as they are, and mark the backup.
    pub allow_corrupt: bool,
    /// The directory for the redo spool.
    pub spool_dir: PathBuf,
    /// Most bytes of redo that may be captured.
    pub redo_spool_max_bytes: u64,
    /// How much of its file system the spool leaves free.
    pub spool_reserve_bytes: u64,
}

impl CaptureOptions {
    pub(super) fn spool(&self) -> Result<Spool> {
        Spool::create(&self.spool_dir, self.redo_spool_max_bytes, self.spool_reserve_bytes)
    }

    /// A path of the server, as this process sees it.
    #[must_use]
    pub fn map_path(&self, path: &Path) -> PathBuf {
        map_path(&self.path_map, path)
    }
}

/// A path of the server, as this process sees it: the first prefix in `map` that matches is replaced.
#[must_use]
pub(crate) fn map_path(map: &[(PathBuf, PathBuf)], path: &Path) -> PathBuf {
    map.iter()
        .find_map(|(theirs, ours)| path.strip_prefix(theirs).ok().map(|rest| ours.join(rest)))
        .unwrap_or_else(|| path.to_owned())
}
