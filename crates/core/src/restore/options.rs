//! The user's choices for a restore.

use std::{num::NonZero, path::PathBuf, thread};

use holdfast_formats::redo::mysql::FILE_BYTES_MAX;

use super::{part::TablePart, planned::RestorePlan};

/// Threads that fetch and write, unless told otherwise: one for each processor, at most this many.
const PARALLEL_MAX: usize = 8;
const MEMORY_BYTES: u64 = 256 << 20;

/// How to restore.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// The directory to restore into: absent, empty, or left by an interrupted restore of the same backup;
    /// anything else only with `delta`.
    pub target_dir: PathBuf,
    /// Make the data directory in the target into the backup: write only pages that differ, delete what the
    /// backup does not have.
    pub delta: bool,
    /// The plan that the user has agreed to: nothing else is done.
    pub agreed: Option<Box<RestorePlan>>,
    /// Let the server recover the files now, and check that recovery ends where the backup ends.
    pub prepare: bool,
    /// Prefixes of paths outside the source's data directory, and where such files go.
    pub maps: Vec<(PathBuf, PathBuf)>,
    /// The server program that recovers; `None`: one of the same release series is searched for.
    pub server_binary: Option<PathBuf>,
    /// Directories to search for it first.
    pub search_path: Vec<PathBuf>,
    /// User and group of everything restored, which only root may set. `None`: those of an existing target;
    /// if these are root's, or there is no target yet, those of `server_user`, else our own.
    pub owner: Option<(u32, u32)>,
    /// User and group that servers run as on this host.
    pub server_user: Option<(u32, u32)>,
    /// Threads.
    pub parallel: usize,
    /// Memory for buffers, caches and page maps, at least [`MEMORY_BYTES_MIN`](Self::MEMORY_BYTES_MIN). If it
    /// does not suffice for all threads, fewer are used.
    pub memory_bytes: u64,
    /// Buffer pool of the recovery; `None`: by the amount of redo.
    pub prepare_memory_bytes: Option<u64>,
    /// Recover with a server of another series, or an older one.
    pub allow_version: bool,
    /// Further options for the recovering server, such as those of a key provider. They come last and win.
    pub prepare_options: Vec<String>,
    /// MySQL: the file with the keys of `component_keyring_file`; only read. `None`: where the source had it.
    pub keyring: Option<PathBuf>,
    /// The zone of the source's host, for replayed transactions; `None`: the backup's, if that is UTC.
    pub time_zone: Option<String>,
    /// A logical backup: leave out, and name, what no server can make, such as a view that could not be used
    /// when it was saved. Otherwise such a restore is refused.
    pub leave_out: bool,
    /// Make holes for all pages of zeros, not only for those that were holes.
    pub sparse: bool,
    /// The part of the backup to restore; `None`: all of it.
    /// A part is only for a server of ours ([`super::run_in_scratch`]).
    pub part: Option<TablePart>,
    /// MySQL: the most bytes in one file of the laid-out redo.
    pub redo_file_bytes_max: u64,
}

impl RestoreOptions {
    /// No restore takes less memory.
    pub const MEMORY_BYTES_MIN: u64 = 80 << 20;

    /// The settings that an expert would choose.
    #[must_use]
    pub fn new(target_dir: impl Into<PathBuf>) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            target_dir: target_dir.into(),
            delta: false,
            agreed: None,
            prepare: true,
            maps: Vec::new(),
            server_binary: None,
            search_path: Vec::new(),
            owner: None,
            server_user: None,
            // Each thread waits for the disk while it writes.
            parallel: (2 * processors).min(PARALLEL_MAX),
            memory_bytes: MEMORY_BYTES,
            prepare_memory_bytes: None,
            allow_version: false,
            prepare_options: Vec::new(),
            keyring: None,
            time_zone: None,
            leave_out: false,
            sparse: false,
            part: None,
            redo_file_bytes_max: FILE_BYTES_MAX,
        }
    }
}
