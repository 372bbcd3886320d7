//! Matches the rows of windows.
//!
//! One side is held in memory, but not one that is much larger than the other, which streams past it. If even
//! that is too large, both are read several times, and each time rows with other hashes are compared: nothing
//! is written anywhere.

use std::collections::HashMap;

use holdfast_repo::{
    data::reader::{ReadRows, TableReader},
    format::rows::RowHashKey,
};

use super::{
    Counts, RowChange,
    layout::{Side, TablePair},
    windows::Span,
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    logical::stored::rows::each_row,
};

/// Memory that a row takes besides its bytes.
const HELD_ROW_BYTES: u64 = 96;
/// With at least this many chunks, they are read ahead.
const READ_AHEAD_FROM: u64 = 4;

/// Both sides of a table.
pub(super) struct Rows<'a> {
    pub(super) pair: &'a TablePair,
    pub(super) before: &'a TableReader<'a>,
    pub(super) after: &'a TableReader<'a>,
    /// Memory for the rows that are held.
    pub(super) memory_bytes: u64,
    pub(super) cancel: &'a Cancel,
}

/// The differences reported so far, which in the end must add up to what the tables hold.
pub(super) struct Told<'s> {
    pub(super) counts: Counts,
    pub(super) row_key: RowHashKey,
    /// Checksum of the rows after minus that of the rows before.
    pub(super) checksum: u128,
    pub(super) sink: &'s mut dyn FnMut(RowChange<'_>) -> Result<()>,
}

impl Told<'_> {
    fn tell(&mut self, change: RowChange<'_>) -> Result<()> {
        let (removed, added) = match change {
            RowChange::Added(row) => {
                self.counts.added += 1;
                (None, Some(row))
            }
            RowChange::Removed(row) => {
                self.counts.removed += 1;
                (Some(row), None)
            }
            RowChange::Changed { before, after } => {
                self.counts.changed += 1;
                (Some(before), Some(after))
            }
        };
        if let Some(row) = removed {
            self.checksum = self.checksum.wrapping_sub(self.row_key.checksum(row).0);
        }
        if let Some(row) = added {
            self.checksum = self.checksum.wrapping_add(self.row_key.checksum(row).0);
        }
        (self.sink)(change)
    }
}

/// No further row.
const NONE: u32 = u32::MAX;

/// The rows of the side that is held.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    rows: Vec<HeldRow>,
    /// The first row with an identity of this hash.
    by_identity: HashMap<u128, u32>,
}

struct HeldRow {
    begin: usize,
    /// The next row with this identity.
    next: u32,
    is_told: bool,
}

impl Held {
    fn push(&mut self, identity: u128, row: &[u8]) -> Result<()> {
        let number = u32::try_from(self.rows.len()).ok().filter(|number| *number != NONE);
        let number = number.ok_or_else(|| Error::failed("more rows are to be compared than can be held"))?;
        // Without a key, a row may occur several times; which of them is matched makes no difference.
        let next = self.by_identity.insert(identity, number).unwrap_or(NONE);
        self.rows.push(HeldRow { begin: self.bytes.len(), next, is_told: false });
        self.bytes.extend_from_slice(row);
        Ok(())
    }

    fn row(&self, number: usize) -> &[u8] {
        let end = self.rows.get(number + 1).map_or(self.bytes.len(), |next| next.begin);
        &self.bytes[self.rows[number].begin..end]
    }

    /// Takes a row with this identity that was not reported yet.
    fn take(&mut self, identity: u128) -> Option<usize> {
        let first = self.by_identity.get_mut(&identity)?;
        while *first != NONE {
            let number = *first as usize;
            *first = self.rows[number].next;
            if !std::mem::replace(&mut self.rows[number].is_told, true) {
                return Some(number);
            }
        }
        None
    }
}

impl Rows<'_> {
    fn table(&self, side: Side) -> &TableReader<'_> {
        match side {
            Side::Before => self.before,
            Side::After => self.after,
        }
    }

    /// Reports how the rows of these chunks differ.
    pub(super) fn compare(&self, before: &[Span], after: &[Span], told: &mut Told<'_>) -> Result<()> {
        let cost = |spans: &[Span]| {
            let of = |span: &Span| span.rows.saturating_mul(HELD_ROW_BYTES).saturating_add(span.bytes);
            spans.iter().map(of).fold(0, u64::saturating_add)
        };
        let (held, cost) = match (cost(before), cost(after)) {
            // The later side is read first if it makes little difference: its chunks may be patches on those
            // of the other, which are at hand then.
            (before, after) if before < after / 2 => (Side::Before, before),
            (_, after) => (Side::After, after),
        };
        let (own, other) = if held == Side::Before { (before, after) } else { (after, before) };
        let passes = cost.div_ceil(self.memory_bytes.max(1)).max(1);
        for pass in 0..passes {
            self.pass((held, own), other, (u128::from(pass), u128::from(passes)), told)?;
        }
        Ok(())
    }

    fn pass(
        &self,
        (side, own): (Side, &[Span]),
        other: &[Span],
        (pass, passes): (u128, u128),
        told: &mut Told<'_>,
    ) -> Result<()> {
        let pair = self.pair;
        let identity = |side: Side, row: &[u8]| -> Result<Option<u128>> {
            let mut digest = [0; 16];
            let hash = blake3::hash(&pair.identity(side, row)?);
            digest.copy_from_slice(&hash.as_bytes()[..16]);
            let digest = u128::from_le_bytes(digest);
            Ok((digest % passes == pass).then_some(digest))
        };
        let mut held = Held::default();
        self.each_row(side, own, &mut |row| match identity(side, row)? {
            Some(identity) => held.push(identity, row),
            None => Ok(()),
        })?;
        // If the sides are in order, a row that is passed by has no match.
        let is_ordered = pair.is_same_order();
        let mut passed = 0;
        self.each_row(side.other(), other, &mut |row| {
            let Some(identity) = identity(side.other(), row)? else { return Ok(()) };
            let Some(number) = held.take(identity) else {
                return told.tell(one_sided(side.other(), row));
            };
            while is_ordered && passed < number {
                tell_held(&mut held, passed, side, told)?;
                passed += 1;
            }
            let own = held.row(number);
            if pair.content(side, own)? == pair.content(side.other(), row)? {
                // Equal, but perhaps in other bytes.
                let sum = told.row_key.checksum(row).0.wrapping_sub(told.row_key.checksum(own).0);
                told.checksum = match side {
                    Side::Before => told.checksum.wrapping_add(sum),
                    Side::After => told.checksum.wrapping_sub(sum),
                };
                return Ok(());
            }
            told.tell(match side {
                Side::Before => RowChange::Changed { before: own, after: row },
                Side::After => RowChange::Changed { before: row, after: own },
            })
        })?;
        for number in 0..held.rows.len() {
            tell_held(&mut held, number, side, told)?;
        }
        Ok(())
    }

    fn each_row(&self, side: Side, spans: &[Span], each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for span in spans {
            let count = span.chunks.end - span.chunks.start;
            let threads = usize::from(count >= READ_AHEAD_FROM);
            let options = ReadRows { threads, ..ReadRows::default() };
            each_row(self.table(side), span.chunks.clone(), options, &|| self.cancel.check(), each)?;
        }
        Ok(())
    }
}

fn one_sided(side: Side, row: &[u8]) -> RowChange<'_> {
    match side {
        Side::Before => RowChange::Removed(row),
        Side::After => RowChange::Added(row),
    }
}

fn tell_held(held: &mut Held, number: usize, side: Side, told: &mut Told<'_>) -> Result<()> {
    if std::mem::replace(&mut held.rows[number].is_told, true) {
        return Ok(());
    }
    told.tell(one_sided(side, held.row(number)))
}

/// Checks that the reported differences lead from one table to the other.
pub(super) fn adds_up(rows: &Rows<'_>, told: &Told<'_>) -> Result<()> {
    let (before, after) = (rows.before.totals(), rows.after.totals());
    let Counts { added, removed, .. } = told.counts;
    let checksum = before.checksum.0.wrapping_add(told.checksum);
    let is_sum = checksum == after.checksum.0;
    if before.rows.checked_sub(removed).and_then(|kept| kept.checked_add(added)) == Some(after.rows) && is_sum
    {
        return Ok(());
    }
    let text = format!(
        "{} rows, less {removed} and plus {added}, are not the {} rows of the second backup",
        before.rows, after.rows
    );
    Err(Error::damaged(text))
}
