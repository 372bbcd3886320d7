//! Chunks before they are placed: pages gathered until a chunk is full, and the ticket that tells its place.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use holdfast_formats::PageSize;
use holdfast_pipe::{PageHash, TAG_BYTES, lock::lock};

use crate::format::{
    columns::CHUNK_BYTES_MAX,
    names::{ChunkRef, PackId, RunNo},
    pack::ChunkKind,
};

/// Tells the place of a chunk, once the pipeline has given it one.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    place: AtomicU64,
    hash: OnceLock<PageHash>,
    is_patch: AtomicBool,
}

impl Ticket {
    const ORDINAL_BITS: u32 = 12;

    /// Sets the place. Called once, by the pipeline.
    pub(super) fn place(&self, part: u32, ordinal: u32) {
        let place = (u64::from(part) << Self::ORDINAL_BITS | u64::from(ordinal)) + 1;
        self.place.store(place, Ordering::Release);
    }

    /// Sets the hash. Called once, before the chunk is placed, for a chunk that is referenced by its hash.
    pub(super) fn set_hash(&self, hash: PageHash) {
        if self.hash.set(hash).is_err() {
            unreachable!("a chunk is complete once");
        }
    }

    /// Hash of the chunk's plain bytes, if it was set.
    pub(super) fn hash(&self) -> Option<PageHash> {
        self.hash.get().copied()
    }

    /// The reference to the chunk, once it is placed. `run` is the run of all tickets.
    pub(super) fn chunk(&self, run: RunNo) -> Option<ChunkRef> {
        let place = self.place.load(Ordering::Acquire).checked_sub(1)?;
        let part = u32::try_from(place >> Self::ORDINAL_BITS).unwrap_or(u32::MAX);
        let ordinal = (place & ((1 << Self::ORDINAL_BITS) - 1)) as u32;
        Some(ChunkRef { pack: PackId { run, part }, ordinal })
    }

    /// Notes that the chunk became a patch on its [`PatchBase`]. Called before the chunk is placed.
    pub(super) fn set_patch(&self) {
        self.is_patch.store(true, Ordering::Relaxed);
    }

    /// Whether the chunk, once placed, is a patch on its [`PatchBase`].
    pub(super) fn is_patch(&self) -> bool {
        self.is_patch.load(Ordering::Relaxed)
    }

    pub(super) fn is_placed(&self) -> bool {
        self.place.load(Ordering::Acquire) != 0
    }
}

/// A chunk that is complete, but not compressed yet.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) kind: ChunkKind,
    pub(super) plain: Vec<u8>,
    pub(super) unit_count: u32,
    /// For chunks of pages: the hash of each.
    pub(super) hashes: Vec<PageHash>,
    pub(super) ticket: Arc<Ticket>,
    /// The chunk that a patch could be made on.
    pub(super) patch_base: Option<PatchBase>,
}

/// A chunk of the base that is likely to have much in common with a new one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchBase {
    /// Where it is now. It is not a patch itself.
    pub(super) chunk: ChunkRef,
    /// Whether the base's version of the new chunk is a patch on this one already.
    pub(super) is_again: bool,
}

/// The future place of a page, whose chunk may not be placed yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) ticket: Arc<Ticket>,
    pub(super) slot: u32,
}

/// Gathers pages of one size into one chunk.
#[derive(Debug)]
pub(super) struct PageGatherer {
    page_size: PageSize,
    plain: Vec<u8>,
    hashes: Vec<PageHash>,
    ticket: Arc<Ticket>,
}

impl PageGatherer {
    pub(super) fn new(page_size: PageSize, buffers: &Buffers) -> Self {
        Self { page_size, plain: buffers.take(), hashes: Vec::new(), ticket: Arc::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Appends one page. [`Self::is_full`] must be false.
    pub(super) fn push(&mut self, page: &[u8], hash: PageHash) -> Pending {
        let slot = self.hashes.len() as u32;
        self.plain.extend_from_slice(page);
        self.hashes.push(hash);
        Pending { ticket: Arc::clone(&self.ticket), slot }
    }

    pub(super) fn is_full(&self) -> bool {
        self.plain.len() + self.page_size.bytes() > CHUNK_BYTES_MAX
    }

    pub(super) fn into_chunk(self) -> Chunk {
        Chunk {
            kind: ChunkKind::Pages(self.page_size),
            plain: self.plain,
            unit_count: self.hashes.len() as u32,
            hashes: self.hashes,
            ticket: self.ticket,
            patch_base: None,
        }
    }
}

/// A pool of buffers of chunks that are done. It does not limit how many buffers exist: the queues do.
#[derive(Debug)]
pub(super) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    keep: usize,
}

impl Buffers {
    const CAPACITY: usize = CHUNK_BYTES_MAX + TAG_BYTES;

    /// Keeps at most `keep` free buffers.
    pub(super) fn new(keep: usize) -> Self {
        Self { free: Mutex::default(), keep }
    }

    /// An empty buffer with room for a sealed chunk.
    pub(super) fn take(&self) -> Vec<u8> {
        let free = lock(&self.free).pop();
        free.unwrap_or_else(|| Vec::with_capacity(Self::CAPACITY))
    }

    /// Frees the buffers that are not in use.
    pub(super) fn let_go(&self) {
        lock(&self.free).clear();
    }

    pub(super) fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut free = lock(&self.free);
        if buffer.capacity() >= Self::CAPACITY && free.len() < self.keep {
            free.push(buffer);
        }
    }
}
