//! A range of a table's rows, on the thread that gives them: cuts rows into chunks, compares these with the
//! base, and submits them.

use std::sync::Arc;

use holdfast_pipe::PageHash;

use super::{
    BackupWriter, RangeNo, WriteError,
    base::{Cursor, Found},
    leaf::{LeafMaker, OpenEntry, OpenPlace},
    table::Table,
};
use crate::{
    data::{reader::rows::Joints, writer::chunk::Ticket},
    format::rows::{
        Border, KEY_BYTES_MAX, PIECE_BYTES, Piece, RowChunk, RowHasher, RowTotals, begin_piece, begin_rows,
        has_room, put_row,
    },
};

/// Takes the rows of one range of a table, in order. If a range is dropped without [`RowRange::finish`], its
/// table cannot be ended.
pub struct RowRange<'w> {
    writer: &'w BackupWriter,
    table: Arc<Table>,
    no: RangeNo,
    plain: Vec<u8>,
    /// Rows in `plain`.
    open: RowTotals,
    /// Key of the first row in `plain`.
    key: Vec<u8>,
    totals: RowTotals,
    cursor: Option<Cursor>,
    /// The key at which the base's next chunk begins: the base has a border
    /// there, by content or because a range ended.
    next_key: Option<Box<[u8]>>,
    leaves: LeafMaker,
    /// Joins the rows of chunks that are given whole.
    joints: Joints,
    is_finished: bool,
}

/// A border of the base is kept only if the chunk holds at least this much; otherwise a chunk whose rows are
/// deleted would stay, ever smaller.
const KEPT_CHUNK_BYTES_MIN: usize = 4 << 10;

impl<'w> RowRange<'w> {
    pub(super) fn new(
        writer: &'w BackupWriter,
        table: Arc<Table>,
        no: RangeNo,
        base_chunk: Option<u64>,
    ) -> Result<Self, WriteError> {
        let mut cursor = table.base.clone().map(|base| Cursor::new(base, base_chunk));
        let next_key = match &mut cursor {
            Some(cursor) => cursor.next_key(&writer.meters)?,
            None => None,
        };
        let mut plain = writer.buffers.take();
        begin_rows(&mut plain);
        Ok(Self {
            writer,
            table,
            no,
            plain,
            open: RowTotals::default(),
            key: Vec::new(),
            totals: RowTotals::default(),
            cursor,
            next_key,
            leaves: LeafMaker::default(),
            joints: Joints::summed(writer.row_key.clone()),
            is_finished: false,
        })
    }

    /// Number of the range in its table.
    #[must_use]
    pub fn no(&self) -> RangeNo {
        self.no
    }

    /// Gives the next row. `key`: bytes that identify it, as [`super::TableSpec::has_key`] says; ignored if
    /// the table has no keys.
    pub fn row(&mut self, key: &[u8], row: &[u8]) -> Result<(), WriteError> {
        let is_border_of_base = self.plain.len() >= KEPT_CHUNK_BYTES_MIN
            && self.next_key.as_deref().is_some_and(|next| next == key);
        if is_border_of_base || !has_room(self.plain.len(), row.len()) {
            self.end_chunk(Border::Chunk)?;
            if !has_room(self.plain.len(), row.len()) {
                let mut long = self.long_row();
                long.piece(row)?;
                return long.end(key);
            }
        }
        let checksum = self.writer.row_key.checksum(row);
        let border = match self.table.spec.has_key {
            true => Border::after(&self.writer.row_key, key, row.len()),
            false => Border::by(checksum, row.len()),
        };
        self.keep_key(key);
        put_row(&mut self.plain, row);
        self.open.add_row(row.len() as u64, checksum);
        if border == Border::None { Ok(()) } else { self.end_chunk(border) }
    }

    /// Gives the next row piece by piece: however long it is, at most one chunk of it is in memory.
    pub fn long_row(&mut self) -> LongRow<'_, 'w> {
        let hasher = self.writer.row_key.begin();
        LongRow { range: self, hasher, bytes: Vec::new(), len: 0, given: 0 }
    }

    /// Gives a whole chunk as it is in another repository: its rows, its plain bytes, the key of its first
    /// row, and whether it ends a leaf.
    pub(crate) fn chunk(
        &mut self,
        rows: &RowChunk<'_>,
        plain: &[u8],
        key: Option<&[u8]>,
        ends_leaf: bool,
    ) -> Result<(), WriteError> {
        self.end_chunk(Border::Chunk)?;
        // Checksums depend on this repository's key.
        let totals = self.joints.next(rows).map_err(|_| WriteError::Lost)?;
        let mut own = self.writer.buffers.take();
        own.extend_from_slice(plain);
        let border = if ends_leaf { Border::Leaf } else { Border::Chunk };
        self.place(own, totals, key.map(<[u8]>::to_vec), border)
    }

    /// Keeps the key of the next row if it is the first of a chunk.
    fn keep_key(&mut self, key: &[u8]) {
        if self.table.spec.has_key && self.open.rows == 0 {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
    }

    /// Submits the rows gathered so far as a chunk.
    fn end_chunk(&mut self, border: Border) -> Result<(), WriteError> {
        if self.open.rows == 0 {
            return Ok(());
        }
        let totals = std::mem::take(&mut self.open);
        let has_key = self.table.spec.has_key && self.key.len() <= KEY_BYTES_MAX;
        let key = has_key.then(|| std::mem::take(&mut self.key));
        let plain = std::mem::replace(&mut self.plain, self.writer.buffers.take());
        begin_rows(&mut self.plain);
        self.place(plain, totals, key, border)
    }

    /// Stores a chunk, unless the base has it, and adds its entry.
    fn place(
        &mut self,
        plain: Vec<u8>,
        totals: RowTotals,
        key: Option<Vec<u8>>,
        border: Border,
    ) -> Result<(), WriteError> {
        let writer = self.writer;
        let meters = &writer.meters;
        let hash: PageHash = meters.compare.time(|| writer.hash_key.hash(&plain));
        meters.compare.add_many(totals.rows, plain.len() as u64);
        let bytes = plain.len() as u64;
        let mut found = Found::default();
        if let Some(cursor) = &mut self.cursor {
            found = cursor.find(writer, totals.bytes, hash, key.as_deref())?;
            self.next_key = cursor.next_key(meters)?;
        }
        let place = match found.same {
            Some((chunk, base)) => {
                meters.reused.add_many(totals.rows, bytes);
                writer.buffers.give(plain);
                OpenPlace::Known(chunk, base)
            }
            None => {
                meters.new.add_many(totals.rows, bytes);
                let ticket = Arc::<Ticket>::default();
                writer.submit_rows(plain, Arc::clone(&ticket), found.alike)?;
                OpenPlace::Own(ticket, found.alike.map(|base| base.chunk))
            }
        };
        self.totals = self.totals.and(totals).ok_or(WriteError::Lost)?;
        let key = key.map(Vec::into_boxed_slice);
        let ends_leaf = border == Border::Leaf;
        self.leaves.push(OpenEntry { totals, hash, place, key, ends_leaf });
        self.leaves.seal_placed(writer, self.table.base.as_deref())?;
        writer.seal_tails()
    }

    /// Ends the range. Returns the totals of its rows.
    pub fn finish(mut self) -> Result<RowTotals, WriteError> {
        self.end_chunk(Border::Chunk)?;
        self.writer.buffers.give(std::mem::take(&mut self.plain));
        self.is_finished = true;
        let leaves = std::mem::take(&mut self.leaves);
        self.writer.end_range(Arc::clone(&self.table), self.no, self.totals, leaves)?;
        Ok(self.totals)
    }
}

impl Drop for RowRange<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.table.give_up(self.writer, self.no, std::mem::take(&mut self.leaves));
        }
    }
}

/// A row that is given piece by piece.
pub struct LongRow<'r, 'w> {
    range: &'r mut RowRange<'w>,
    hasher: RowHasher,
    /// The bytes of the row that are not stored yet.
    bytes: Vec<u8>,
    len: u64,
    /// How many pieces of it have been stored.
    given: u32,
}

impl LongRow<'_, '_> {
    /// Gives the next bytes of the row.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // A full piece is stored only when more bytes come: the last piece has to be marked as such.
            if self.bytes.len() == PIECE_BYTES {
                self.store(if self.given == 0 { Piece::First } else { Piece::Middle }, RowTotals::default())?;
            }
            let (now, later) = rest.split_at(rest.len().min(PIECE_BYTES - self.bytes.len()));
            self.bytes.extend_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Ends the row. `key` as in [`RowRange::row`]. A row that takes several chunks is alone in them, and
    /// none of them records a key.
    pub fn end(mut self, key: &[u8]) -> Result<(), WriteError> {
        if self.given == 0 && has_room(1, self.bytes.len()) {
            let row = std::mem::take(&mut self.bytes);
            return self.range.row(key, &row);
        }
        if self.given == 0 {
            // It fits into one piece, but not into a chunk of whole rows: split it into two pieces.
            let last = self.bytes.split_off(self.bytes.len() / 2);
            self.store(Piece::First, RowTotals::default())?;
            self.bytes = last;
        }
        self.hasher.update(&self.bytes);
        let len = self.len + self.bytes.len() as u64;
        let mut totals = RowTotals::default();
        totals.add_row(len, self.hasher.checksum());
        self.store_hashed(Piece::Last, totals)
    }

    fn store(&mut self, piece: Piece, totals: RowTotals) -> Result<(), WriteError> {
        self.hasher.update(&self.bytes);
        self.len += self.bytes.len() as u64;
        self.store_hashed(piece, totals)
    }

    fn store_hashed(&mut self, piece: Piece, totals: RowTotals) -> Result<(), WriteError> {
        if self.given == 0 {
            self.range.end_chunk(Border::Chunk)?;
        }
        self.given += 1;
        let mut plain = self.range.writer.buffers.take();
        begin_piece(&mut plain, piece);
        plain.extend_from_slice(&self.bytes);
        self.bytes.clear();
        self.range.place(plain, totals, None, Border::Chunk)
    }
}
