//! What the caller decides about a writer, and what follows for its memory.

use std::{sync::Arc, time::Duration};

use holdfast_pipe::{Compression, Headroom};

use crate::hooks::Hooks;

const MIB: usize = 1 << 20;

/// What the caller decides.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// How chunks are made smaller.
    pub compression: Compression,
    /// Threads that compress.
    pub compress_threads: usize,
    /// Threads that seal.
    pub encrypt_threads: usize,
    /// What the writer may hold: half for chunks in its queues, an eighth each for gathering, for the base's maps,
    /// and for the hashes of adopted runs, and the rest for maps in the making. On top come about half a KiB for
    /// each file and 40 bytes for each MiB that the backup needs; where the base, or `expected`, tells that this will be
    /// more than 96 MiB, queues, gathering and what is adopted become smaller by as much, together down to a half. While adopted
    /// chunks are read, there are 2 MiB more for each thread that gives pages. With tables: 2 MiB for each range of rows
    /// that is open, 8 MiB for each thread that compresses, for patches, and 16 bytes for each chunk of the tables that
    /// are being compared.
    pub memory_bytes: usize,
    /// What is known of the backup before its base is: whoever copies one knows it.
    pub expected: Expected,
    /// A pack is closed when it has so many stored bytes.
    pub pack_target_bytes: u64,
    /// A pack is closed with the first chunk that comes so long after it was begun: what is not closed cannot be taken up
    /// by another run, and its upload may be given up by the store.
    pub pack_age: Duration,
    /// Of the bytes given, how much may be stored again although unchanged, because its chunk is mostly dead.
    pub max_rewrite_fraction: f64,
    /// An index part is written after so many stored bytes.
    pub index_every_bytes: u64,
    /// An index part is written at least so often while there is something to list.
    pub index_every: Duration,
    /// Packs whose upload is being made durable while the next ones are written.
    pub finishing_packs: usize,
    /// What the threads that compress leave to others.
    pub headroom: Arc<Headroom>,
    /// For tests.
    pub hooks: Hooks,
}

impl Default for WriterOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            compression: Compression::default(),
            compress_threads: threads,
            encrypt_threads: 1,
            memory_bytes: 256 * MIB,
            expected: Expected::default(),
            pack_target_bytes: 64 << 20,
            pack_age: Duration::from_secs(3600),
            max_rewrite_fraction: 0.05,
            index_every_bytes: 2 << 30,
            index_every: Duration::from_secs(300),
            finishing_packs: 2,
            headroom: Arc::default(),
            hooks: Hooks::default(),
        }
    }
}

/// How large a backup is going to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Its files.
    pub files: u64,
    /// Chunks that it needs.
    pub chunks: u64,
}

/// A file of the backup, from its beginning to the end.
const FILE_BYTES: u64 = 512;
/// A chunk that the backup needs: what the base's refs say of it, what is needed, and a row of the new refs.
const CHUNK_BYTES: u64 = 28;
/// What files and chunks may take beside the writer's memory.
const BESIDE_BYTES: u64 = 96 << 20;

/// How the memory is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Chunks in each of the three queues.
    pub(super) queue_chunks: usize,
    /// Files that may gather a chunk of their own at one time.
    pub(super) gathering_files: usize,
    /// Bytes of the base's items and leaves.
    pub(super) base_bytes: usize,
    /// Bytes of hashes of adopted runs.
    pub(super) adoption_bytes: usize,
    /// Bytes of complete leaves that wait for their chunks.
    pub(super) waiting_bytes: usize,
    /// Page entries of small files that wait for the item table.
    pub(super) inline_entries: usize,
}

impl WriterOptions {
    /// Where no base tells what is to come.
    pub(super) fn budget(&self) -> Budget {
        self.budget_of(0, 0)
    }

    /// Of a backup whose base has so many files, and chunks.
    pub(super) fn budget_of(&self, files: u64, chunks: u64) -> Budget {
        let (files, chunks) = (files.max(self.expected.files), chunks.max(self.expected.chunks));
        let beside = files.saturating_mul(FILE_BYTES).saturating_add(chunks.saturating_mul(CHUNK_BYTES));
        let beside = usize::try_from(beside.saturating_sub(BESIDE_BYTES)).unwrap_or(usize::MAX);
        let eighth = (self.memory_bytes - beside.min(self.memory_bytes / 2)) / 8;
        Budget {
            queue_chunks: (eighth * 4 / MIB / 3).clamp(2, 64),
            gathering_files: (eighth / MIB).max(2),
            // The base is read with it before it tells anything.
            base_bytes: (self.memory_bytes / 8).max(4 * MIB),
            adoption_bytes: eighth,
            waiting_bytes: eighth.max(MIB),
            // Of some 20 bytes each. As in the first backup, or the items of many files would change.
            inline_entries: self.memory_bytes / 16 / 20,
        }
    }
}
