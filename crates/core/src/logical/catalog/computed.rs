//! Columns that servers compute for each row and store. Their values are in no row of a backup, but in a
//! checksum.
//!
//! A load has them computed again. The results may differ: servers compute by the settings of the session
//! that writes, by the date, by their version. So a backup reads these columns after the others of each row,
//! and sums up hashes of both together; a load compares the sum (`docs/reference/repository.md` section 9).

use holdfast_pipe::HashKey;
use holdfast_repo::format::{
    hex::to_hex,
    rows::{RowHashKey, RowHasher, RowsChecksum},
};

use super::tables::Table;
use crate::{
    logical::stored::{definition::ComputedDefinition, rows::Values},
    server::SqlError,
};

/// Anyone who could make rows with the same sum may write to the table anyway, so the key need not be secret;
/// and with one key for all, a definition stays the same as long as its table does.
const CONTEXT: &str = "holdfast 2026-11 computed columns 1";

/// Sums up rows with their computed values, and strips these values.
pub(crate) struct ComputedRows {
    key: RowHashKey,
    /// Number of columns that a backup holds. Those after them are computed.
    columns: usize,
    sum: RowsChecksum,
    long: Option<(RowHasher, Front)>,
}

impl ComputedRows {
    /// For the rows of a table; `None` if no computed columns are read.
    pub(crate) fn of(table: &Table) -> Option<Self> {
        let is_read = table.definition.computed.is_some();
        is_read.then(|| Self {
            key: RowHashKey::new(&HashKey::new(blake3::derive_key(CONTEXT, &[]))),
            columns: table.definition.columns.len(),
            sum: RowsChecksum::default(),
            long: None,
        })
    }

    /// Adds a row. Returns it without its computed values.
    pub(crate) fn row<'r>(&mut self, row: &'r [u8]) -> Result<&'r [u8], SqlError> {
        self.sum = self.sum.and(self.key.checksum(row));
        let mut values = Values { bytes: row };
        for _ in 0..self.columns {
            values.next().ok_or_else(too_short)?;
        }
        Ok(&row[..row.len() - values.bytes.len()])
    }

    /// Adds the first piece of a long row. Returns it without computed values.
    pub(crate) fn first<'r>(&mut self, piece: &'r [u8]) -> &'r [u8] {
        self.long = Some((self.key.begin(), Front::new(self.columns)));
        self.more(piece)
    }

    /// Adds the next piece of a long row. Returns it without computed values.
    pub(crate) fn more<'r>(&mut self, piece: &'r [u8]) -> &'r [u8] {
        let Some((hasher, front)) = &mut self.long else { return piece };
        hasher.update(piece);
        front.of(piece)
    }

    /// Whether the rest of the long row is computed.
    pub(crate) fn is_behind_columns(&self) -> bool {
        self.long.as_ref().is_some_and(|(_, front)| front.is_over())
    }

    /// Ends the long row.
    pub(crate) fn end(&mut self) -> Result<(), SqlError> {
        let Some((hasher, front)) = self.long.take() else { return Ok(()) };
        self.sum = self.sum.and(hasher.checksum());
        if front.is_over() { Ok(()) } else { Err(too_short()) }
    }

    /// The sum of all rows.
    pub(crate) fn sum(&self) -> RowsChecksum {
        self.sum
    }
}

impl ComputedDefinition {
    /// Whether the rows of a whole table came to this sum.
    pub(crate) fn is(&self, sum: RowsChecksum) -> bool {
        self.checksum == written(sum)
    }

    /// Records this sum.
    pub(crate) fn note(&mut self, sum: RowsChecksum) {
        self.checksum = written(sum);
    }
}

fn written(sum: RowsChecksum) -> String {
    to_hex(&sum.0.to_be_bytes())
}

fn too_short() -> SqlError {
    SqlError::unexpected("a row that is too short")
}

/// Finds the end of the first values of a row that comes in pieces.
struct Front {
    /// Values whose length is not known yet.
    values_left: usize,
    /// Bytes to come of the current value.
    bytes_left: u64,
    /// Bytes read so far of the length of a value.
    length: Vec<u8>,
}

impl Front {
    fn new(values: usize) -> Self {
        Self { values_left: values, bytes_left: 0, length: Vec::with_capacity(9) }
    }

    fn is_over(&self) -> bool {
        self.values_left == 0 && self.bytes_left == 0
    }

    /// The part of a piece that belongs to these values.
    fn of<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let mut at = 0;
        while at < piece.len() && !self.is_over() {
            if self.bytes_left > 0 {
                let step = usize::try_from(self.bytes_left).unwrap_or(usize::MAX).min(piece.len() - at);
                self.bytes_left -= step as u64;
                at += step;
                continue;
            }
            self.length.push(piece[at]);
            at += 1;
            let bytes_of_length = match self.length[0] {
                0xFC => 2,
                0xFD => 3,
                0xFE => 8,
                _ => 0,
            };
            if self.length.len() <= bytes_of_length {
                continue;
            }
            self.bytes_left = match self.length[0] {
                short @ 0..=250 => u64::from(short),
                // NULL, or a byte that begins no value.
                0xFB | 0xFF => 0,
                _ => self.length[1..].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
            };
            self.length.clear();
            self.values_left -= 1;
        }
        &piece[..at]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(values: &[Option<Vec<u8>>]) -> Vec<u8> {
        let mut row = Vec::new();
        for value in values {
            match value {
                None => row.push(0xFB),
                Some(value) => {
                    match value.len() {
                        short @ 0..=250 => row.push(short as u8),
                        long => {
                            row.push(0xFC);
                            row.extend_from_slice(&(long as u16).to_le_bytes());
                        }
                    }
                    row.extend_from_slice(value);
                }
            }
        }
        row
    }

    proptest! {
        /// Wherever a long row is cut, exactly the computed values are stripped, and they count in the sum.
        #[test]
        fn pieces_are_the_row(
            stored in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..400)), 1..4),
            computed in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..400)), 1..3),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let (front, back) = (row(&stored), row(&computed));
            let whole = [front.as_slice(), &back].concat();
            let new = || ComputedRows {
                key: RowHashKey::new(&HashKey::new([1; 32])),
                columns: stored.len(),
                sum: RowsChecksum::default(),
                long: None,
            };
            let mut at_once = new();
            prop_assert_eq!(at_once.row(&whole).unwrap(), front.as_slice());
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len())).collect();
            cuts.sort_unstable();
            cuts.push(whole.len());
            let (mut in_pieces, mut seen, mut from) = (new(), Vec::new(), 0);
            for (number, cut) in cuts.into_iter().enumerate() {
                let piece = &whole[from..cut];
                seen.extend_from_slice(if number == 0 { in_pieces.first(piece) } else { in_pieces.more(piece) });
                prop_assert_eq!(in_pieces.is_behind_columns(), cut >= front.len());
                from = cut;
            }
            in_pieces.end().unwrap();
            prop_assert_eq!(seen, front);
            prop_assert_eq!(in_pieces.sum(), at_once.sum());
            let other = [whole.as_slice(), b"\x00"].concat();
            let mut another = new();
            another.row(&other).unwrap();
            prop_assert_ne!(another.sum(), at_once.sum());
        }
    }
}
