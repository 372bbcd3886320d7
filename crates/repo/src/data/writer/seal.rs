//! Leaves wait until all their chunks are placed, and are then encoded and gathered into chunks.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use holdfast_pipe::{PageHash, lock::lock};

use super::{
    BackupWriter, WriteError,
    chunk::{Chunk, Pending, Ticket},
    file::{File, FileState, Slot},
    leaf::{ClosedLeaf, LeafAt, LeafPlace, LeafSlot, Sealed},
};
use crate::format::{
    columns::{self, CHUNK_BYTES_MAX},
    item::INLINE_PAGES_MAX,
    pack::ChunkKind,
    page_map::{LEAVES_PER_CHUNK_MAX, Leaf, encode_full, encode_leaf_chunk},
};

/// Limit for chunks with leaves of small files. Such files are restored in path order but were copied in
/// another, so a chunk has to be opened for each of them.
const SMALL_LEAVES_CHUNK_BYTES: usize = 64 << 10;

/// Encoded leaves gathered for one chunk.
#[derive(Default)]
pub(super) struct LeafGatherer {
    leaves: Vec<Vec<u8>>,
    bytes: usize,
    ticket: Arc<Ticket>,
}

/// Leaves whose pages are all known, but not the places of all their chunks.
#[derive(Default)]
pub(super) struct Waiting {
    /// Leaves in the order of their completion, so that related leaves come into one chunk.
    queue: VecDeque<(ClosedLeaf, Target)>,
    /// Memory that they hold, most of it in the leaves of the base that they are compared with.
    bytes: usize,
    /// Leaves without changes, which wait for nothing. Queued after a change whose chunk is not placed yet,
    /// which takes long if changes are few, they would come to hold all of the base in memory.
    unchanged: Vec<(ClosedLeaf, Target)>,
}

pub(super) enum Target {
    Leaf(LeafSlot),
    Small(Arc<File>, u64),
}

impl BackupWriter {
    pub(super) fn close_leaf(&self, slot: &mut Slot, page_count: u32) {
        let place = LeafSlot::default();
        match std::mem::replace(slot, Slot::Closed(Arc::clone(&place))) {
            Slot::Open(open) => self.wait(open.close(page_count), Target::Leaf(place)),
            other => *slot = other,
        }
    }

    pub(super) fn wait(&self, leaf: ClosedLeaf, target: Target) {
        let mut waiting = lock(&self.waiting);
        if leaf.change_count() == 0 {
            waiting.unchanged.push((leaf, target));
            return;
        }
        waiting.bytes += leaf.memory_bytes();
        waiting.queue.push_back((leaf, target));
        self.meters.leaves_waiting_max.fetch_max(waiting.queue.len(), Ordering::Relaxed);
    }

    /// Seals the leaves whose chunks are placed. If the others hold too much memory, sends gathered pages to
    /// the pipeline, and waits for places.
    pub(super) fn seal_waiting(&self) -> Result<(), WriteError> {
        loop {
            let mut waiting = lock(&self.waiting);
            let unchanged = std::mem::take(&mut waiting.unchanged);
            let is_ready = waiting.queue.front().is_some_and(|(leaf, _)| leaf.is_placed());
            let ready = if is_ready { waiting.queue.pop_front() } else { None };
            waiting.bytes -= ready.as_ref().map_or(0, |(leaf, _)| leaf.memory_bytes());
            let is_too_much = waiting.bytes > self.budget.waiting_bytes;
            drop(waiting);
            for (leaf, target) in unchanged {
                self.seal(leaf, target)?;
            }
            match ready {
                Some((leaf, target)) => self.seal(leaf, target)?,
                None if is_too_much => {
                    self.flush_all()?;
                    // The thread that takes the first leaf must check the next one itself, since that one's
                    // pages may still be gathered.
                    self.pipeline()?.wait_until(|| {
                        let waiting = lock(&self.waiting);
                        waiting.bytes <= self.budget.waiting_bytes
                            || waiting.queue.front().is_none_or(|(leaf, _)| leaf.is_placed())
                    })?;
                }
                None => return Ok(()),
            }
        }
    }

    fn seal(&self, leaf: ClosedLeaf, target: Target) -> Result<(), WriteError> {
        let (entries, sealed) = leaf.seal(self.run);
        let pages = entries.len();
        match target {
            Target::Small(file, size_bytes) => {
                let mut columns = Vec::with_capacity(entries.len() * 20 + 8);
                columns::encode(&entries, &mut columns);
                let mut inner = lock(&file.inner);
                if inner.state != FileState::Dropped {
                    inner.state = FileState::Small(size_bytes, columns.into());
                }
            }
            Target::Leaf(slot) => {
                lock(&self.needs).add_pages(&entries);
                let place = match sealed {
                    Sealed::Base(leaf, under) => LeafPlace { leaf: LeafAt::Known(leaf), under },
                    Sealed::Overlay(overlay) => {
                        let under = Some(overlay.under);
                        let mut encoded = Vec::with_capacity(overlay.patches.len() * 24 + 32);
                        Leaf::Overlay(overlay).encode(&mut encoded);
                        LeafPlace { leaf: LeafAt::Own(self.gather_leaf(encoded, pages)?), under }
                    }
                    Sealed::Full => {
                        let mut encoded = Vec::with_capacity(entries.len() * 20 + 32);
                        encode_full(&entries, &mut encoded);
                        LeafPlace { leaf: LeafAt::Own(self.gather_leaf(encoded, pages)?), under: None }
                    }
                };
                if slot.set(place).is_err() {
                    unreachable!("a leaf is sealed once");
                }
            }
        }
        Ok(())
    }

    fn gather_leaf(&self, encoded: Vec<u8>, pages: usize) -> Result<Pending, WriteError> {
        const LENGTH_BYTES: usize = 3;
        let is_small = pages as u64 <= INLINE_PAGES_MAX;
        let (leaves, most_bytes) = match is_small {
            true => (&self.small_leaves, SMALL_LEAVES_CHUNK_BYTES),
            false => (&self.leaves, CHUNK_BYTES_MAX),
        };
        let mut gatherer = lock(leaves);
        let bytes = encoded.len() + LENGTH_BYTES;
        let full = gatherer.bytes + bytes + LENGTH_BYTES > most_bytes
            || gatherer.leaves.len() == LEAVES_PER_CHUNK_MAX as usize;
        if full {
            self.submit_leaves(&mut gatherer)?;
        }
        let pending = Pending { ticket: Arc::clone(&gatherer.ticket), slot: gatherer.leaves.len() as u32 };
        gatherer.bytes += bytes;
        gatherer.leaves.push(encoded);
        Ok(pending)
    }

    pub(super) fn submit_leaves(&self, gatherer: &mut LeafGatherer) -> Result<(), WriteError> {
        let LeafGatherer { leaves, ticket, .. } = std::mem::take(gatherer);
        if leaves.is_empty() {
            return Ok(());
        }
        let plain = encode_leaf_chunk(&leaves);
        let hash = self.hash_key.hash(&plain);
        ticket.set_hash(hash);
        self.remember(hash, &plain);
        self.submit_small(ChunkKind::Leaves, plain, leaves.len() as u32, ticket)
    }

    /// Keeps a chunk in the local maps of a writer, which could not read it back.
    pub(super) fn remember(&self, hash: PageHash, plain: &[u8]) {
        if let Some(local) = &self.local {
            local.remember(hash, plain);
        }
    }

    pub(super) fn submit_small(
        &self,
        kind: ChunkKind,
        plain: Vec<u8>,
        unit_count: u32,
        ticket: Arc<Ticket>,
    ) -> Result<(), WriteError> {
        let chunk = Chunk { kind, plain, unit_count, hashes: Vec::new(), ticket, patch_base: None };
        self.pipeline()?.submit(chunk)
    }

    /// Submits all pages that are gathered for several files together.
    pub(super) fn flush_pages(&self) -> Result<(), WriteError> {
        for common in &self.gatherers {
            let open = lock(common).take();
            if let Some(open) = open.filter(|open| !open.is_empty()) {
                self.pipeline()?.submit(open.into_chunk())?;
            }
        }
        Ok(())
    }

    /// Submits all pages that are being gathered.
    fn flush_all(&self) -> Result<(), WriteError> {
        let gathering = lock(&self.gathering).clone();
        gathering.iter().try_for_each(|file| self.flush_file(file))?;
        self.flush_pages()
    }

    pub(super) fn flush_file(&self, file: &Arc<File>) -> Result<(), WriteError> {
        if let Some(open) = lock(&file.gatherer).take() {
            self.gathers_no_more(file);
            self.pipeline()?.submit(open.into_chunk())?;
        }
        Ok(())
    }
}
