//! The options of a writer, and how its memory is divided.

use std::{sync::Arc, time::Duration};

use holdfast_pipe::{Compression, Headroom};

use crate::hooks::Hooks;

const MIB: usize = 1 << 20;

/// Options of a writer.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// How chunks are compressed.
    pub compression: Compression,
    /// Threads that compress.
    pub compress_threads: usize,
    /// Threads that seal.
    pub encrypt_threads: usize,
    /// Memory for the writer: half of it for chunks in its queues, an eighth each for gathering, for the
    /// base's maps and for the hashes of adopted runs, and the rest for maps being made. On top come about
    /// half a KiB for each file and 40 bytes for each MiB that the backup needs. If the base, or `expected`,
    /// shows that this will exceed 96 MiB, then queues, gathering and adoption shrink by about the excess,
    /// together to no less than half. While adopted chunks are read, each thread that gives pages takes 2 MiB
    /// more. Tables take 2 MiB for each open range of rows, 8 MiB for each compressing thread, for patches,
    /// and 16 bytes for each chunk of the tables being compared.
    pub memory_bytes: usize,
    /// The size of the backup, if it is known before the base is read, as it is for a copy.
    pub expected: Expected,
    /// A pack is closed once it holds this many stored bytes.
    pub pack_target_bytes: u64,
    /// A pack is closed by the first chunk that comes this long after the pack was begun: another run cannot
    /// take up an open pack, and the store may give up its upload.
    pub pack_age: Duration,
    /// Fraction of the bytes given that may be stored again although
    /// unchanged, because their chunks are mostly dead.
    pub max_rewrite_fraction: f64,
    /// An index part is written after this many stored bytes.
    pub index_every_bytes: u64,
    /// An index part is written at least this often while there is something to list.
    pub index_every: Duration,
    /// How many packs may be made durable at one time while the next ones are written.
    pub finishing_packs: usize,
    /// How much processor time the compressing threads leave to others.
    pub headroom: Arc<Headroom>,
    /// Hooks for tests.
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

/// Expected size of a backup.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Its files.
    pub files: u64,
    /// Chunks that it needs.
    pub chunks: u64,
}

/// Bytes held for each file, from the beginning of the backup to its end.
const FILE_BYTES: u64 = 512;
/// Bytes held for each chunk that the backup needs: the base's refs, the needs, and a row of the new refs.
const CHUNK_BYTES: u64 = 28;
/// What files and chunks may take on top of the writer's memory.
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
    /// The budget while the base is not known.
    pub(super) fn budget(&self) -> Budget {
        self.budget_of(0, 0)
    }

    /// The budget for a backup whose base has this many files and chunks.
    pub(super) fn budget_of(&self, files: u64, chunks: u64) -> Budget {
        let (files, chunks) = (files.max(self.expected.files), chunks.max(self.expected.chunks));
        let beside = files.saturating_mul(FILE_BYTES).saturating_add(chunks.saturating_mul(CHUNK_BYTES));
        let beside = usize::try_from(beside.saturating_sub(BESIDE_BYTES)).unwrap_or(usize::MAX);
        let eighth = (self.memory_bytes - beside.min(self.memory_bytes / 2)) / 8;
        Budget {
            queue_chunks: (eighth * 4 / MIB / 3).clamp(2, 64),
            gathering_files: (eighth / MIB).max(2),
            // Fixed, since the base is read within it before its size is known.
            base_bytes: (self.memory_bytes / 8).max(4 * MIB),
            adoption_bytes: eighth,
            waiting_bytes: eighth.max(MIB),
            // At about 20 bytes each. The same for every backup of a source,
            // or the items of many files would change.
            inline_entries: self.memory_bytes / 16 / 20,
        }
    }
}
