//! Takes tables: rows from several threads, in several ranges of one table at
//! once, cut into chunks with stable borders.
//!
//! A table is begun with [`BackupWriter::begin_table`], its rows are given through [`RowRange`]s, and it is
//! ended with its definition by [`BackupWriter::end_table`]. Objects without rows are given with
//! [`BackupWriter::definition`]. [`BackupWriter::finish`] ends the backup, whether of tables or of files.
//!
//! A range belongs to one thread, and takes rows in the table's order. Ranges of one table run at the same
//! time, and a running range can be split: the new one comes right after it. Each row costs a copy, a
//! checksum and a hash of its key; locks and allocations happen only once per chunk.
//!
//! A chunk ends where the hash of a row's key says so, so that inserted or deleted rows move only one border.
//! It also ends where a range begins or ends, and where the base has a border, if a row with that key still
//! exists. A caller that splits a table that the base has into ranges should therefore begin them where
//! chunks of the base begin ([`BackupWriter::base_chunks`]), and say at which chunk
//! ([`RangeStart::base_chunk`]).
//!
//! A chunk that the base has, anywhere in the same table, is referenced. A chunk that the base has with other
//! rows is stored as a patch on the base's chunk where this is worthwhile, by a key that can read the base.

use std::sync::{Arc, Mutex, RwLock};

use holdfast_pipe::lock::{lock, read, write};

use super::{BackupWriter, FileProblem, WriteError, chunk::Chunk, chunk::Ticket, readable};
use crate::format::{
    item::{Item, ItemMap, ItemPath},
    names::ChunkRef,
    pack::ChunkKind,
    rows::{
        DEFINITION_PIECE_BYTES, DefinitionMap, DefinitionText, INLINE_DEFINITION_BYTES_MAX, Piece, RowTotals,
        is_definition_kind,
    },
    wire::FormatError,
};

mod base;
mod leaf;
mod range;
mod table;

pub use base::{BaseChunk, BaseChunks};
pub use range::{LongRow, RowRange};
pub(super) use table::{PlacedTable, Tails};
use table::{Table, TableState};

/// A table that is about to be given.
#[derive(Clone, Debug)]
pub struct TableSpec {
    /// The path of the table in the backup: `schema/table`, as made by [`ItemPath::of_names`].
    pub path: ItemPath,
    /// Whether rows come with keys: bytes that identify a row, which no other row of the table has. In a
    /// table without such a key, the whole row stands in for it, and chunks do not record where they begin.
    pub has_key: bool,
}

/// A table of one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId(usize);

/// A range of one table, numbered in the order in which ranges were reserved, not in the order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeNo(u32);

/// Where a range begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeStart {
    /// The reserved range; `None`: the range comes after all existing ones.
    pub reserved: Option<RangeNo>,
    /// The chunk of the base whose first key is where this range begins, if there is one
    /// ([`BaseChunk::number`]). Only saves a search.
    pub base_chunk: Option<u64>,
}

/// All tables and definitions of a writer.
#[derive(Default)]
pub(super) struct Tables {
    list: RwLock<Vec<Arc<Table>>>,
    definitions: Mutex<Vec<OpenDefinition>>,
    /// What ended ranges left, until their last chunks are placed.
    tails: Tails,
}

/// A definition, with the tickets of those of its chunks that were submitted.
type OpenDefinition = (ItemPath, DefinitionMap, Vec<Arc<Ticket>>);

impl BackupWriter {
    /// Begins a table. No other table or definition of this backup may have its path.
    pub fn begin_table(&self, spec: TableSpec) -> Result<TableId, WriteError> {
        let base = match &self.base {
            Some(base) => readable(&self.meters, base::BaseTable::open(base, &spec.path))?.flatten(),
            None => None,
        };
        let mut list = write(&self.tables.list);
        list.push(Arc::new(Table::new(spec, base.map(Arc::new))));
        Ok(TableId(list.len() - 1))
    }

    fn table(&self, id: TableId) -> Result<Arc<Table>, WriteError> {
        let list = read(&self.tables.list);
        list.get(id.0).cloned().ok_or(WriteError::Stopped)
    }

    /// The chunks that the base has of the table, in order, with the keys at which they begin: where to cut
    /// the table. `None` if the base has no such table. Chunks are read on demand.
    pub fn base_chunks(&self, id: TableId) -> Result<Option<BaseChunks>, WriteError> {
        let base = self.table(id)?.base.clone();
        Ok(base.map(|base| BaseChunks::new(base, Arc::clone(&self.meters))))
    }

    /// Reserves the place of a range right after another. Of the other range's rows, those not given yet
    /// belong to the new range from now on: rows are in the order of the places, whenever the ranges begin.
    pub fn reserve_range(&self, id: TableId, after: RangeNo) -> Result<RangeNo, WriteError> {
        self.table(id)?.reserve_range(Some(after))
    }

    /// Begins a range of an open table. Other ranges of it may be running, in any thread.
    pub fn begin_range(&self, id: TableId, start: RangeStart) -> Result<RowRange<'_>, WriteError> {
        let table = self.table(id)?;
        let (no, is_first) = table.begin_range(start.reserved)?;
        let base_chunk = start.base_chunk.or(is_first.then_some(0));
        RowRange::new(self, table, no, base_chunk)
    }

    /// Ends a table, all of whose ranges have ended. `definition` is what it takes to create the table: any
    /// bytes, of any length. Returns the totals of its rows.
    pub fn end_table(&self, id: TableId, definition: &[u8]) -> Result<RowTotals, WriteError> {
        let table = self.table(id)?;
        let (text, tickets) = self.place_definition(&table.spec.path, definition)?;
        table.end(text, tickets)
    }

    /// Drops a table from the backup: it is gone, or its rows could not be read. Its ranges have ended, or
    /// their results no longer matter.
    pub fn drop_table(&self, id: TableId) -> Result<(), WriteError> {
        lock(&self.table(id)?.inner).state = TableState::Dropped;
        Ok(())
    }

    /// Adds a definition of any object but a table, of any length. `kind` is a
    /// word of lower-case letters, digits and `-`.
    pub fn definition(&self, path: ItemPath, kind: &str, text: &[u8]) -> Result<(), WriteError> {
        if !is_definition_kind(kind) {
            let rule = FormatError::rule("kind of a definition", "is not a word of a-z, 0-9 and -");
            return Err(WriteError::File { path, problem: FileProblem::Format(rule) });
        }
        let (text, tickets) = self.place_definition(&path, text)?;
        let map = DefinitionMap { kind: kind.to_owned(), text };
        lock(&self.tables.definitions).push((path, map, tickets));
        Ok(())
    }

    /// Submits the chunks of a definition that is too long for its item. The
    /// tickets tell the places of those that are new.
    fn place_definition(
        &self,
        path: &ItemPath,
        text: &[u8],
    ) -> Result<(DefinitionText, Vec<Arc<Ticket>>), WriteError> {
        if text.len() <= INLINE_DEFINITION_BYTES_MAX {
            return Ok((DefinitionText::Inline(text.to_vec()), Vec::new()));
        }
        let known = match &self.base {
            Some(base) => readable(&self.meters, base::definition_chunks(base, path))?.unwrap_or_default(),
            None => Vec::new(),
        };
        let (mut chunks, mut tickets) = (Vec::new(), Vec::new());
        let count = text.len().div_ceil(DEFINITION_PIECE_BYTES);
        for (position, bytes) in text.chunks(DEFINITION_PIECE_BYTES).enumerate() {
            let mut plain = self.buffers.take();
            match (position, count - 1 - position) {
                (0, 0) => {
                    crate::format::rows::begin_rows(&mut plain);
                    crate::format::rows::put_row(&mut plain, bytes);
                }
                (0, _) => begin_piece(&mut plain, Piece::First, bytes),
                (_, 0) => begin_piece(&mut plain, Piece::Last, bytes),
                _ => begin_piece(&mut plain, Piece::Middle, bytes),
            }
            let hash = self.hash_key.hash(&plain);
            let ticket = Arc::<Ticket>::default();
            match known.iter().find(|(_, known)| *known == hash) {
                Some((chunk, _)) => {
                    self.meters.reused.add_many(0, bytes.len() as u64);
                    self.buffers.give(plain);
                    chunks.push((*chunk, hash));
                    continue;
                }
                None => {
                    self.meters.new.add_many(0, bytes.len() as u64);
                    ticket.set_hash(hash);
                    self.submit_small(ChunkKind::Rows, plain, 1, Arc::clone(&ticket))?;
                }
            }
            chunks.push((table::UNPLACED, hash));
            tickets.push(ticket);
        }
        Ok((DefinitionText::Chunks { len: text.len() as u64, chunks }, tickets))
    }

    /// Submits a chunk of rows to the pipeline.
    fn submit_rows(
        &self,
        plain: Vec<u8>,
        ticket: Arc<Ticket>,
        patch_base: Option<super::chunk::PatchBase>,
    ) -> Result<(), WriteError> {
        let kind = ChunkKind::Rows;
        let chunk = Chunk { kind, plain, unit_count: 1, hashes: Vec::new(), ticket, patch_base };
        self.pipeline()?.submit(chunk)
    }

    /// Checks that every table has ended. [`Self::place_tables`] does what
    /// has to wait until all chunks are placed.
    pub(super) fn tables_ended(&self) -> Result<(), WriteError> {
        let list = read(&self.tables.list);
        match list.iter().find(|table| matches!(lock(&table.inner).state, TableState::Open)) {
            None => Ok(()),
            Some(table) => Err(table.error(FileProblem::NotEnded)),
        }
    }

    /// Items of all tables and definitions, in no particular order. Every chunk submitted before must be
    /// placed; after this call, only the leaves that it submits may not be.
    pub(super) fn place_tables(&self) -> Result<Vec<PlacedTable>, WriteError> {
        self.seal_tails()?;
        let list = std::mem::take(&mut *write(&self.tables.list));
        let mut placed = Vec::new();
        for table in list {
            placed.extend(self.place_table(&table)?);
        }
        for (path, mut map, tickets) in std::mem::take(&mut *lock(&self.tables.definitions)) {
            self.settle_definition(&mut map.text, &tickets)?;
            let size_bytes = map.text.len();
            let item = Item::logical(path, size_bytes, ItemMap::Definition(Box::new(map)));
            placed.push(PlacedTable::whole(item));
        }
        Ok(placed)
    }

    /// Fills in the places of the chunks of a definition, and marks them as needed.
    fn settle_definition(
        &self,
        text: &mut DefinitionText,
        tickets: &[Arc<Ticket>],
    ) -> Result<(), WriteError> {
        let DefinitionText::Chunks { chunks, .. } = text else { return Ok(()) };
        let mut tickets = tickets.iter();
        for (chunk, _) in chunks {
            if *chunk == table::UNPLACED {
                let ticket = tickets.next().ok_or(WriteError::Lost)?;
                *chunk = ticket.chunk(self.run).ok_or(WriteError::Lost)?;
            }
            self.need_whole(*chunk);
        }
        Ok(())
    }

    fn need_whole(&self, chunk: ChunkRef) {
        lock(&self.needs).need(chunk, 0);
    }
}

fn begin_piece(plain: &mut Vec<u8>, piece: Piece, bytes: &[u8]) {
    crate::format::rows::begin_piece(plain, piece);
    plain.extend_from_slice(bytes);
}
