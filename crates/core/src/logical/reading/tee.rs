//! Writes tables, rows and definitions to several repositories, each through its own writer.
//!
//! Each repository cuts rows into chunks by its own secret, and compares them with its own last backup. Only
//! the ranges in which a table is read follow the chunks of one repository, the guide. In the others a range
//! begins within a chunk, which costs that chunk.

use holdfast_repo::{
    data::writer::{BackupWriter, BaseChunks, LongRow, RangeNo, RangeStart, RowRange, TableId, TableSpec},
    format::{item::ItemPath, rows::RowTotals},
};

use crate::{
    error::{Error, Result},
    taking::Writers,
};

/// The writers of several repositories as one.
pub(crate) struct Tee<'a> {
    writers: &'a Writers<'a>,
}

/// A table's id in each repository.
#[derive(Clone, Debug)]
pub(crate) struct TeeTable(Vec<Option<TableId>>);

/// The reserved place of a range in each repository.
#[derive(Clone, Debug)]
pub(crate) struct ReservedRange(Vec<Option<RangeNo>>);

/// Index of the guide.
const GUIDE: usize = 0;

impl<'a> Tee<'a> {
    pub(crate) fn new(writers: &'a Writers<'a>) -> Self {
        Self { writers }
    }

    pub(crate) fn definition(&self, path: &ItemPath, kind: &str, text: &[u8]) -> Result<()> {
        self.writers.each(|_, writer| Ok(writer.definition(path.clone(), kind, text)?))
    }

    pub(crate) fn begin_table(&self, spec: &TableSpec) -> Result<TeeTable> {
        self.writers.each_says(|_, writer| Ok(writer.begin_table(spec.clone())?)).map(TeeTable)
    }

    /// Ends a table. Returns the totals of its rows; the checksum is that of one repository.
    pub(crate) fn end_table(&self, table: &TeeTable, definition: &[u8]) -> Result<RowTotals> {
        let ended = self
            .writers
            .each_says(|position, writer| Ok(writer.end_table(known(&table.0, position)?, definition)?))?;
        let mut ended = ended.into_iter().flatten();
        let totals = ended.next().unwrap_or_default();
        match ended.all(|other| (other.rows, other.bytes) == (totals.rows, totals.bytes)) {
            true => Ok(totals),
            false => Err(Error::failed("repositories got different rows of one table")),
        }
    }

    /// The chunks of a table in the guide's base.
    pub(crate) fn base_chunks(&self, table: &TeeTable) -> Result<Option<BaseChunks>> {
        let mut chunks = None;
        self.writers.each(|position, writer| {
            if position == GUIDE {
                chunks = writer.base_chunks(known(&table.0, position)?)?;
            }
            Ok(())
        })?;
        Ok(chunks)
    }

    /// Begins a range: at its reserved place, if any, and in the guide at this chunk of the base, if any.
    pub(crate) fn begin_range(
        &self,
        table: &TeeTable,
        reserved: Option<&ReservedRange>,
        base_chunk: Option<u64>,
    ) -> Result<TeeRange<'a>> {
        let ranges = self.writers.each_says(|position, writer| {
            let start = RangeStart {
                reserved: reserved.map(|reserved| known(&reserved.0, position)).transpose()?,
                base_chunk: base_chunk.filter(|_| position == GUIDE),
            };
            Ok(writer.begin_range(known(&table.0, position)?, start)?)
        })?;
        Ok(TeeRange { writers: self.writers, ranges })
    }

    /// Reserves the place right after a range.
    pub(crate) fn reserve_range(&self, table: &TeeTable, after: &TeeRange<'_>) -> Result<ReservedRange> {
        let reserve = |position: usize, writer: &BackupWriter| {
            let after = after.ranges.get(position).and_then(Option::as_ref).ok_or_else(not_begun)?;
            Ok(writer.reserve_range(known(&table.0, position)?, after.no())?)
        };
        self.writers.each_says(reserve).map(ReservedRange)
    }
}

/// A range of a table, on its way into each repository.
pub(crate) struct TeeRange<'a> {
    writers: &'a Writers<'a>,
    ranges: Vec<Option<RowRange<'a>>>,
}

impl<'a> TeeRange<'a> {
    pub(crate) fn row(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        let Self { writers, ranges } = self;
        writers.each(|position, _| Ok(begun(ranges, position)?.row(key, row)?))
    }

    pub(crate) fn long_row(&mut self) -> TeeLongRow<'_, 'a> {
        let rows = self.ranges.iter_mut().map(|range| range.as_mut().map(RowRange::long_row));
        TeeLongRow { writers: self.writers, rows: rows.collect() }
    }

    pub(crate) fn finish(self) -> Result<()> {
        let Self { writers, mut ranges } = self;
        writers.each(|position, _| {
            let range = ranges.get_mut(position).and_then(Option::take).ok_or_else(not_begun)?;
            Ok(range.finish().map(drop)?)
        })
    }
}

/// A long row, written piece by piece.
pub(crate) struct TeeLongRow<'r, 'a> {
    writers: &'a Writers<'a>,
    rows: Vec<Option<LongRow<'r, 'a>>>,
}

impl TeeLongRow<'_, '_> {
    pub(crate) fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        let Self { writers, rows } = self;
        writers.each(|position, _| Ok(begun(rows, position)?.piece(bytes)?))
    }

    pub(crate) fn end(self, key: &[u8]) -> Result<()> {
        let Self { writers, mut rows } = self;
        writers.each(|position, _| {
            let row = rows.get_mut(position).and_then(Option::take).ok_or_else(not_begun)?;
            Ok(row.end(key)?)
        })
    }
}

fn known<T: Copy>(all: &[Option<T>], position: usize) -> Result<T> {
    all.get(position).copied().flatten().ok_or_else(not_begun)
}

fn begun<T>(all: &mut [Option<T>], position: usize) -> Result<&mut T> {
    all.get_mut(position).and_then(Option::as_mut).ok_or_else(not_begun)
}

/// This error is never reported: the writer has already failed.
fn not_begun() -> Error {
    Error::failed("rows were sent of a table that had not begun")
}
