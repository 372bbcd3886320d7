//! Leaves of rows being made: entries wait until their chunks are placed, and are cut into leaves in order.

use std::{collections::VecDeque, sync::Arc};

use holdfast_pipe::PageHash;

use super::{BackupWriter, WriteError, base::BaseTable};
use crate::{
    data::writer::chunk::Ticket,
    format::{
        names::{ChunkRef, RunNo},
        pack::ChunkKind,
        rows::{
            ENTRIES_PER_LEAF_MAX, INLINE_ENTRIES_MAX, LEAF_BYTES_MAX, RowEntry, RowLeafRef, RowTotals,
            encode_leaf, put_entry,
        },
    },
};

/// A chunk of rows whose place may not be known yet.
#[derive(Debug)]
pub(super) struct OpenEntry {
    pub(super) totals: RowTotals,
    pub(super) hash: PageHash,
    pub(super) place: OpenPlace,
    pub(super) key: Option<Box<[u8]>>,
    /// Whether a leaf ends with this chunk.
    pub(super) ends_leaf: bool,
}

#[derive(Debug)]
pub(super) enum OpenPlace {
    /// In the base, with the chunk that it is a patch on.
    Known(ChunkRef, Option<ChunkRef>),
    /// Submitted, with the chunk that it may have become a patch on.
    Own(Arc<Ticket>, Option<ChunkRef>),
}

impl OpenEntry {
    fn is_placed(&self) -> bool {
        match &self.place {
            OpenPlace::Known(..) => true,
            OpenPlace::Own(ticket, _) => ticket.is_placed(),
        }
    }

    /// The entry. Its chunk must be placed.
    pub(super) fn into_entry(self, run: RunNo) -> Result<RowEntry, WriteError> {
        let (chunk, base) = match self.place {
            OpenPlace::Known(chunk, base) => (chunk, base),
            OpenPlace::Own(ticket, base) => {
                let chunk = ticket.chunk(run).ok_or(WriteError::Lost)?;
                (chunk, base.filter(|_| ticket.is_patch()))
            }
        };
        Ok(RowEntry { totals: self.totals, hash: self.hash, chunk, base, key: self.key })
    }
}

/// A leaf that is stored, or submitted.
#[derive(Debug)]
pub(super) struct MadeLeaf {
    pub(super) entries: u32,
    pub(super) totals: RowTotals,
    pub(super) place: LeafPlace,
}

#[derive(Debug)]
pub(super) enum LeafPlace {
    Known(ChunkRef, PageHash),
    Own(Arc<Ticket>),
}

impl MadeLeaf {
    /// The reference to the leaf, which must be placed.
    pub(super) fn leaf_ref(&self, run: RunNo) -> Result<RowLeafRef, WriteError> {
        let (chunk, hash) = match &self.place {
            LeafPlace::Known(chunk, hash) => (*chunk, *hash),
            LeafPlace::Own(ticket) => ticket.chunk(run).zip(ticket.hash()).ok_or(WriteError::Lost)?,
        };
        Ok(RowLeafRef { chunk, hash, entries: self.entries, totals: self.totals })
    }
}

/// Makes the leaves of one range.
#[derive(Debug, Default)]
pub(super) struct LeafMaker {
    waiting: VecDeque<OpenEntry>,
    /// Encoded entries of the leaf being made.
    encoded: Vec<u8>,
    entries: u32,
    totals: RowTotals,
    made: Vec<MadeLeaf>,
}

impl LeafMaker {
    pub(super) fn push(&mut self, entry: OpenEntry) {
        self.waiting.push_back(entry);
    }

    /// Adds the entries whose chunks are placed to leaves, in order, once
    /// there are more than an item can hold itself.
    pub(super) fn seal_placed(
        &mut self,
        writer: &BackupWriter,
        base: Option<&BaseTable>,
    ) -> Result<(), WriteError> {
        let is_begun = self.entries > 0 || !self.made.is_empty();
        if is_begun || self.waiting.len() > INLINE_ENTRIES_MAX {
            self.seal_rest(writer, base)?;
        }
        Ok(())
    }

    /// Adds the entries whose chunks are placed to leaves, in order.
    pub(super) fn seal_rest(
        &mut self,
        writer: &BackupWriter,
        base: Option<&BaseTable>,
    ) -> Result<(), WriteError> {
        while self.waiting.front().is_some_and(OpenEntry::is_placed) {
            let Some(entry) = self.waiting.pop_front() else { break };
            let ends_leaf = entry.ends_leaf;
            let entry = entry.into_entry(writer.run)?;
            self.add(writer, base, &entry)?;
            if ends_leaf {
                self.end_leaf(writer, base)?;
            }
        }
        Ok(())
    }

    /// Whether all chunks of waiting entries are placed.
    pub(super) fn is_placed(&self) -> bool {
        self.waiting.iter().all(OpenEntry::is_placed)
    }

    /// Takes all entries, if no leaf has been begun and there are at most
    /// `most`: they may go into the item of the table.
    pub(super) fn take_few(&mut self, most: usize) -> Option<Vec<OpenEntry>> {
        let is_few = self.made.is_empty() && self.entries == 0 && self.waiting.len() <= most;
        is_few.then(|| std::mem::take(&mut self.waiting).into())
    }

    pub(super) fn add(
        &mut self,
        writer: &BackupWriter,
        base: Option<&BaseTable>,
        entry: &RowEntry,
    ) -> Result<(), WriteError> {
        let before = self.encoded.len();
        put_entry(&mut self.encoded, entry);
        let is_full = self.encoded.len() > LEAF_BYTES_MAX || self.entries as usize == ENTRIES_PER_LEAF_MAX;
        if is_full && self.entries > 0 {
            let next = self.encoded.split_off(before);
            self.end_leaf(writer, base)?;
            self.encoded = next;
        }
        writer.need_entry(entry);
        self.entries += 1;
        self.totals = self.totals.and(entry.totals).ok_or(WriteError::Lost)?;
        Ok(())
    }

    /// Ends the leaf being made, if there is one.
    pub(super) fn end_leaf(
        &mut self,
        writer: &BackupWriter,
        base: Option<&BaseTable>,
    ) -> Result<(), WriteError> {
        if self.entries == 0 {
            return Ok(());
        }
        let plain = encode_leaf(self.entries as usize, &self.encoded);
        let hash = writer.hash_key.hash(&plain);
        writer.remember(hash, &plain);
        let known = base.and_then(|base| base.leaf_of_hash(writer, hash));
        let place = match known {
            Some(chunk) => LeafPlace::Known(chunk, hash),
            None => {
                let ticket = Arc::<Ticket>::default();
                ticket.set_hash(hash);
                writer.submit_small(ChunkKind::RowLeaf, plain, 1, Arc::clone(&ticket))?;
                LeafPlace::Own(ticket)
            }
        };
        self.made.push(MadeLeaf { entries: self.entries, totals: self.totals, place });
        self.encoded.clear();
        self.entries = 0;
        self.totals = RowTotals::default();
        Ok(())
    }

    /// Appends leaves that were made elsewhere.
    pub(super) fn take_over(
        &mut self,
        writer: &BackupWriter,
        base: Option<&BaseTable>,
        made: Vec<MadeLeaf>,
    ) -> Result<(), WriteError> {
        self.end_leaf(writer, base)?;
        self.made.extend(made);
        Ok(())
    }

    /// The leaves made. No entry may be waiting for its chunk.
    pub(super) fn into_made(
        mut self,
        writer: &BackupWriter,
        base: Option<&BaseTable>,
    ) -> Result<Vec<MadeLeaf>, WriteError> {
        self.end_leaf(writer, base)?;
        Ok(self.made)
    }
}

impl BackupWriter {
    /// Marks the chunks of an entry as needed: its own, and the one that it is a patch on.
    pub(super) fn need_entry(&self, entry: &RowEntry) {
        self.need_whole(entry.chunk);
        if let Some(base) = entry.base {
            self.need_whole(base);
        }
    }
}
