//! The rows of some chunks of a table, one after the other, and the values of each.

use std::ops::Range;

use holdfast_repo::{
    data::reader::{ReadRows, RowsRead, TableReader},
    format::rows::{Piece, RowChunk, RowTotals},
};

use crate::{
    error::{Error, Result},
    event::Cancel,
};

/// Calls `each` with every row that begins in these chunks, and `go_on` for each chunk, until one of them
/// fails. Returns the totals of these rows, without a checksum.
pub(crate) fn each_row(
    table: &TableReader<'_>,
    chunks: Range<u64>,
    options: ReadRows,
    go_on: &dyn Fn() -> Result<()>,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<RowTotals> {
    // Collects a row that spans several chunks.
    let mut long: Vec<u8> = Vec::new();
    let mut sink = |read: RowsRead<'_>| -> Result<()> {
        go_on()?;
        match read.rows {
            RowChunk::Whole(rows) => rows.into_iter().try_for_each(&mut *each),
            RowChunk::Piece(piece, bytes) => {
                long.extend_from_slice(bytes);
                if piece == Piece::Last {
                    each(&long)?;
                    long = Vec::new();
                }
                Ok(())
            }
        }
    };
    table.read(chunks, options, &mut sink)
}

/// Passes all rows of a table to `each`. It must have as many rows and bytes as when it was saved.
pub(crate) fn all_rows(
    table: &TableReader<'_>,
    cancel: &Cancel,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<RowTotals> {
    let read = each_row(table, 0..table.chunk_count(), ReadRows::default(), &|| cancel.check(), each)?;
    as_stored(table, read)
}

/// Fails unless as many rows and bytes were read as were saved.
pub(crate) fn as_stored(table: &TableReader<'_>, read: RowTotals) -> Result<RowTotals> {
    let stored = table.totals();
    if (read.rows, read.bytes) == (stored.rows, stored.bytes) {
        return Ok(read);
    }
    let text = format!(
        "read {} rows ({} bytes), but {} ({} bytes) were stored",
        read.rows, read.bytes, stored.rows, stored.bytes
    );
    Err(Error::damaged(text))
}

/// Iterates over the values of a row; ends early if the bytes do.
pub(crate) struct Values<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Iterator for Values<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.bytes.split_first()?;
        let number = |count: usize| {
            let bytes = rest.get(..count)?;
            let length = bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            Some((usize::try_from(length).ok()?, &rest[count..]))
        };
        let (length, rest) = match first {
            0..=250 => (usize::from(*first), rest),
            0xFB => {
                self.bytes = rest;
                return Some(None);
            }
            0xFC => number(2)?,
            0xFD => number(3)?,
            0xFE => number(8)?,
            0xFF => return None,
        };
        let value = rest.get(..length)?;
        self.bytes = &rest[length..];
        Some(Some(value))
    }
}
