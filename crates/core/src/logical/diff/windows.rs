//! Finds where two tables can differ, by what is known of their chunks without reading them.
//!
//! Chunks with the same hash hold the same rows, and leaves with the same hash list the same chunks. Between
//! them are *windows*: runs of chunks on either side that have to be read. If both sides are in the order of
//! one key, a chunk that begins with the same key on both sides ends a window, too: rows before it on one
//! side are in no later window of the other.
//!
//! A row that takes several chunks forms one *unit* with all of them; a chunk of whole rows is a unit by
//! itself. A leaf may end within such a row. So a leaf is skipped only if the one after it is the same on
//! both sides as well: the rest of its last row is then the same on both sides, and is never read.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
};

use holdfast_pipe::PageHash;
use holdfast_repo::{RepoError, data::reader::TableReader, format::rows::RowEntry};

use crate::{error::Result, event::Cancel};

/// How many units one side may be ahead of what both have: some 64 GiB of rows. Beyond that, everything that
/// follows is one window.
const AHEAD_MAX: usize = 1 << 18;

/// Chunks of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) chunks: Range<u64>,
    /// The number of rows in them, or more.
    pub(super) rows: u64,
    /// Bytes of these rows.
    pub(super) bytes: u64,
}

/// What has to be read on both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) before: Span,
    pub(super) after: Span,
}

/// What two tables can be relied on to have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alike {
    /// Whether the same bytes are the same row.
    pub(super) rows: bool,
    /// Whether both are in the order of one key.
    pub(super) order: bool,
}

/// Calls `each` with every window, in order.
pub(super) fn windows(
    before: &TableReader<'_>,
    after: &TableReader<'_>,
    alike: Alike,
    cancel: &Cancel,
    each: &mut dyn FnMut(Window) -> Result<()>,
) -> Result<()> {
    let segments = if alike.rows {
        segments(&leaves(before), &leaves(after), before.chunk_count(), after.chunk_count())
    } else {
        vec![(0..before.chunk_count(), 0..after.chunk_count())]
    };
    for (of_before, of_after) in segments {
        let mut walk =
            Walk { before: Side::new(before, of_before), after: Side::new(after, of_after), alike };
        if walk.run(cancel, each)? == Walked::GaveUp {
            break;
        }
    }
    Ok(())
}

type Leaf = (Range<u64>, PageHash);

fn leaves(table: &TableReader<'_>) -> Vec<Leaf> {
    table.leaves().collect()
}

/// The segments that are left when leaves that both have are skipped.
fn segments(
    before: &[Leaf],
    after: &[Leaf],
    before_end: u64,
    after_end: u64,
) -> Vec<(Range<u64>, Range<u64>)> {
    let places: HashMap<PageHash, usize> =
        after.iter().enumerate().map(|(place, (_, hash))| (*hash, place)).collect();
    let mut segments = Vec::new();
    let (mut from_before, mut from_after) = (0, 0);
    let (mut in_before, mut in_after) = (0, 0);
    while in_before < before.len() {
        let Some(place) = places.get(&before[in_before].1).filter(|place| **place >= in_after) else {
            in_before += 1;
            continue;
        };
        let same = before[in_before..].iter().zip(&after[*place..]);
        let run = same.take_while(|(one, other)| one.1 == other.1).count();
        let (end_before, end_after) = (in_before + run, place + run);
        // The last of them is looked at, unless nothing follows it.
        let is_end = end_before == before.len() && end_after == after.len();
        if is_end || run > 1 {
            let segment = (from_before..before[in_before].0.start, from_after..after[*place].0.start);
            if !segment.0.is_empty() || !segment.1.is_empty() {
                segments.push(segment);
            }
            (from_before, from_after) = if is_end {
                (before_end, after_end)
            } else {
                (before[end_before - 1].0.start, after[end_after - 1].0.start)
            };
        }
        (in_before, in_after) = (end_before, end_after);
    }
    if from_before < before_end || from_after < after_end {
        segments.push((from_before..before_end, from_after..after_end));
    }
    segments
}

/// A place between units, and the totals of the rows before it.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    chunk: u64,
    rows: u64,
    bytes: u64,
}

impl Mark {
    fn until(self, end: Mark) -> Span {
        Span { chunks: self.chunk..end.chunk, rows: end.rows - self.rows, bytes: end.bytes - self.bytes }
    }
}

type Digest = [u8; 16];

/// Chunks that are taken together.
#[derive(Clone, Copy, Debug)]
struct Unit {
    begin: Mark,
    end: Mark,
    hash: Digest,
    key: Option<Digest>,
}

/// One side of a segment, as far as it was examined.
struct Side<'r> {
    table: &'r TableReader<'r>,
    entries: Box<dyn Iterator<Item = Result<(u64, RowEntry), RepoError>> + 'r>,
    /// Where the segment ends; its last row may go on after it.
    end: u64,
    /// How far it was examined.
    at: Mark,
    /// Where the window begins.
    start: Mark,
    /// Units from there on.
    pending: VecDeque<Unit>,
    /// Where they begin.
    by_hash: HashMap<Digest, u64>,
    by_key: HashMap<Digest, u64>,
}

impl<'r> Side<'r> {
    fn new(table: &'r TableReader<'r>, chunks: Range<u64>) -> Self {
        let at = Mark { chunk: chunks.start, rows: 0, bytes: 0 };
        Self {
            table,
            entries: Box::new(table.chunks(chunks.start..table.chunk_count())),
            end: chunks.end,
            at,
            start: at,
            pending: VecDeque::new(),
            by_hash: HashMap::new(),
            by_key: HashMap::new(),
        }
    }

    /// Reads the next unit.
    fn pull(&mut self, alike: Alike) -> Result<Option<Unit>> {
        if self.at.chunk >= self.end {
            return Ok(None);
        }
        let (begin, mut first, mut hasher) = (self.at, None, None::<blake3::Hasher>);
        let (hash, key) = loop {
            let Some(next) = self.entries.next() else { break (Digest::default(), None) };
            let (number, entry) = next?;
            self.at = Mark {
                chunk: number + 1,
                rows: self.at.rows + entry.totals.rows,
                bytes: self.at.bytes + entry.totals.bytes,
            };
            // No row ends in it: one goes on.
            let goes_on = entry.totals.rows == 0;
            if first.is_none() {
                first = Some(entry.hash.0);
                if !goes_on {
                    break (entry.hash.0, entry.key);
                }
            }
            let hasher = hasher.get_or_insert_default();
            hasher.update(&entry.hash.0);
            if !goes_on {
                break (digest(hasher.finalize()), None);
            }
        };
        let key = key.filter(|_| alike.order).map(|key| digest(blake3::hash(&key)));
        Ok(Some(Unit { begin, end: self.at, hash, key }))
    }

    fn keep(&mut self, unit: Unit, alike: Alike) {
        self.pending.push_back(unit);
        if alike.rows {
            self.by_hash.insert(unit.hash, unit.begin.chunk);
        }
        if let Some(key) = unit.key {
            self.by_key.insert(key, unit.begin.chunk);
        }
    }

    fn unit(&self, begin: u64) -> Option<Unit> {
        let place = self.pending.binary_search_by_key(&begin, |unit| unit.begin.chunk).ok()?;
        self.pending.get(place).copied()
    }

    /// Moves the beginning of the window to `start`. `unit` and those before it are no longer looked for.
    fn begin_at(&mut self, start: Mark, unit: &Unit) {
        self.start = start;
        while let Some(passed) = self.pending.front().copied()
            && passed.begin.chunk <= unit.begin.chunk
        {
            self.pending.pop_front();
            if self.by_hash.get(&passed.hash) == Some(&passed.begin.chunk) {
                self.by_hash.remove(&passed.hash);
            }
            if let Some(key) = passed.key {
                self.by_key.remove(&key);
            }
        }
    }

    /// Everything that follows, to the end of the table.
    fn rest(&self) -> Span {
        let totals = self.table.totals();
        Span { chunks: self.start.chunk..self.table.chunk_count(), rows: totals.rows, bytes: totals.bytes }
    }
}

fn digest(hash: blake3::Hash) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(&hash.as_bytes()[..16]);
    digest
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    /// It reached the end of the segment.
    ToEnd,
    /// Its last window extends to the end of the tables.
    GaveUp,
}

struct Walk<'r> {
    before: Side<'r>,
    after: Side<'r>,
    alike: Alike,
}

/// Units that both sides have, and whether they are the same or only begin with the same key.
type Met = (Unit, Unit, bool);

impl Walk<'_> {
    fn run(&mut self, cancel: &Cancel, each: &mut dyn FnMut(Window) -> Result<()>) -> Result<Walked> {
        loop {
            cancel.check()?;
            let of_before = self.before.pull(self.alike)?;
            if let Some(unit) = of_before {
                self.before.keep(unit, self.alike);
                if let Some((other, is_same)) = meet(&self.after, &unit) {
                    self.sync((unit, other, is_same), each)?;
                }
            }
            let of_after = self.after.pull(self.alike)?;
            if let Some(unit) = of_after {
                self.after.keep(unit, self.alike);
                if let Some((other, is_same)) = meet(&self.before, &unit) {
                    self.sync((other, unit, is_same), each)?;
                }
            }
            if of_before.is_none() && of_after.is_none() {
                let (before, after) = (&self.before, &self.after);
                let window =
                    Window { before: before.start.until(before.at), after: after.start.until(after.at) };
                give(window, each)?;
                return Ok(Walked::ToEnd);
            }
            if self.before.pending.len().max(self.after.pending.len()) > AHEAD_MAX {
                give(Window { before: self.before.rest(), after: self.after.rest() }, each)?;
                return Ok(Walked::GaveUp);
            }
        }
    }

    fn sync(
        &mut self,
        (before, after, is_same): Met,
        each: &mut dyn FnMut(Window) -> Result<()>,
    ) -> Result<()> {
        let window = Window {
            before: self.before.start.until(before.begin),
            after: self.after.start.until(after.begin),
        };
        let start = |unit: &Unit| if is_same { unit.end } else { unit.begin };
        self.before.begin_at(start(&before), &before);
        self.after.begin_at(start(&after), &after);
        give(window, each)
    }
}

/// The same unit on a side, or else the one that begins with the same key.
fn meet(side: &Side<'_>, unit: &Unit) -> Option<(Unit, bool)> {
    let same = side.by_hash.get(&unit.hash).and_then(|begin| side.unit(*begin));
    let alike = || unit.key.and_then(|key| side.by_key.get(&key)).and_then(|begin| side.unit(*begin));
    same.map(|unit| (unit, true)).or_else(|| alike().map(|unit| (unit, false)))
}

fn give(window: Window, each: &mut dyn FnMut(Window) -> Result<()>) -> Result<()> {
    if window.before.chunks.is_empty() && window.after.chunks.is_empty() { Ok(()) } else { each(window) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves_of(names: &str) -> Vec<Leaf> {
        let place =
            |(place, name): (usize, u8)| (place as u64 * 10..place as u64 * 10 + 10, PageHash([name; 16]));
        names.bytes().enumerate().map(place).collect()
    }

    /// Leaves that both have are skipped, except the last of each run: a row may go on after it.
    #[test]
    fn leaves_that_both_have_are_passed_over() {
        let of = |before: &str, after: &str| {
            let (before, after) = (leaves_of(before), leaves_of(after));
            segments(&before, &after, before.len() as u64 * 10, after.len() as u64 * 10)
        };
        assert_eq!(of("abc", "abc"), []);
        assert_eq!(of("abcx", "abcy"), [(20..40, 20..40)]);
        assert_eq!(of("xabc", "yabc"), [(0..10, 0..10)]);
        assert_eq!(of("abxcde", "abycde"), [(10..30, 10..30)]);
        assert_eq!(of("abxcyef", "abcef"), [(10..50, 10..30)]);
        assert_eq!(of("", "ab"), [(0..0, 0..20)]);
        assert_eq!(of("ab", "ba"), [(0..20, 0..20)]);
        assert_eq!(of("abc", "ab"), [(10..30, 10..20)]);
    }
}
