//! The options of a backup.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use holdfast_pipe::Headroom;
use holdfast_repo::{SourceName, data::writer::WriterOptions, hooks::Hooks, log::run::RunOptions};

use crate::{
    points::point,
    server::{ConnectOptions, LockPolicy, facts::Identity},
    source::workers::BUFFERS_BYTES,
};

/// Default directory of the redo spool. Not `/tmp`, which is often in memory.
const SPOOL_DIR: &str = "/var/tmp";

/// Everything that the user decides about a backup.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// How to reach the server.
    pub connect: ConnectOptions,
    /// The history that the backup belongs to; `None`: host and port of the server.
    pub name: Option<SourceName>,
    /// The data directory, if this process sees it at another path than the server.
    pub datadir: Option<PathBuf>,
    /// Where this process sees paths of the server: the server's prefix, and ours.
    pub path_map: Vec<(PathBuf, PathBuf)>,
    /// Reader threads; fewer if their buffers would take more than half of the memory.
    pub parallel: usize,
    /// How chunks are compressed and packs are written. What depends on the source beside it is set for each
    /// repository.
    pub writer: WriterOptions,
    /// Memory for everything that grows.
    pub memory_bytes: usize,
    /// How long locks may be held and waited for.
    pub locks: LockPolicy,
    /// Most bytes to read per second; never limits reading redo, nor reading under a lock.
    pub read_bytes_per_s_max: Option<u64>,
    /// Directory of the redo spool; `None`: the system's directory for temporary files that survive a
    /// restart.
    pub spool_dir: Option<PathBuf>,
    /// Most redo to capture.
    pub redo_spool_max_bytes: u64,
    /// Where a key that cannot read backups keeps the page maps of its last one, so that the next can build
    /// on it; `None`: nowhere, and everything is stored each time.
    pub cache_dir: Option<PathBuf>,
    /// Build on no earlier backup: everything is stored, and damage to earlier backups is not shared.
    pub full: bool,
    /// The server may be another than the one in earlier backups of this name, and is the named one from now
    /// on.
    pub new_identity: bool,
    /// Keep damaged pages of the source as they are, and mark the backup; otherwise it fails.
    pub allow_corrupt: bool,
    /// Longest time, in all, that one of several repositories may hold up the backup to the others.
    pub hold_up_max: Duration,
    /// Longest time that any store may accept nothing while the source is read: a server may have to wait
    /// meanwhile. Longer than stores retry failed requests.
    pub silence_max: Duration,
    /// Tags that the user attaches.
    pub tags: Vec<String>,
    /// How the run presents itself and keeps its lease.
    pub run: RunOptions,
    /// The server is one of our own: nobody else waits for it, and its settings are not those that its data
    /// were written under.
    pub is_private: bool,
}

/// How long a server of our own may be locked.
const PRIVATE_LOCK_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

impl BackupOptions {
    /// These options, with sessions on this server only.
    pub(crate) fn leading_to(&self, identity: &Identity) -> Self {
        Self { connect: self.connect.leading_to(identity), ..self.clone() }
    }

    /// The options that an expert would choose on this host.
    #[must_use]
    pub fn new(connect: ConnectOptions) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            connect,
            name: None,
            datadir: None,
            path_map: Vec::new(),
            parallel: threads.clamp(1, 4),
            writer: WriterOptions { compress_threads: threads, ..WriterOptions::default() },
            memory_bytes: 256 << 20,
            locks: LockPolicy::default(),
            read_bytes_per_s_max: None,
            spool_dir: None,
            redo_spool_max_bytes: 64 << 30,
            cache_dir: None,
            full: false,
            new_identity: false,
            allow_corrupt: false,
            hold_up_max: Duration::from_secs(600),
            silence_max: Duration::from_secs(1_200),
            tags: Vec::new(),
            run: RunOptions::of_this_process(),
            is_private: false,
        }
    }

    /// These options, for a server of our own.
    pub(crate) fn of_private(self) -> Self {
        let locks = LockPolicy { held_max: PRIVATE_LOCK_MAX, ..self.locks };
        Self { locks, is_private: true, ..self }
    }

    /// The directory in which redo waits for the repository.
    pub(crate) fn spool_dir(&self) -> &Path {
        self.spool_dir.as_deref().unwrap_or(Path::new(SPOOL_DIR))
    }

    /// Number of reader threads.
    pub(crate) fn readers(&self) -> usize {
        self.parallel.clamp(1, (self.memory_bytes / 2 / BUFFERS_BYTES).max(1))
    }

    /// Options for the writer of one repository, next to a source that needs `headroom`.
    pub(crate) fn writing(&self, headroom: Arc<Headroom>) -> WriterOptions {
        WriterOptions {
            memory_bytes: self.memory_bytes.saturating_sub(self.readers() * BUFFERS_BYTES),
            headroom,
            hooks: Hooks::new(point),
            ..self.writer.clone()
        }
    }
}
