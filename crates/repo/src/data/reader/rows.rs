//! Reads the rows of a logical backup: its tables and definitions.
//!
//! Several threads can read one table at once, each its own range of chunks ([`TableReader::read`]). A row
//! belongs to the range of the chunk in which it begins, so every row is read exactly once. Every chunk is
//! verified by its recorded hash.

use std::{collections::VecDeque, ops::Range, sync::Arc, thread};

use crossbeam_channel::{Receiver, Sender, bounded};
use holdfast_pipe::PageHash;

use super::{Backup, ChunkSource, pages::GAP_BYTES_MAX};
use crate::{
    error::{Damage, RepoError},
    format::{
        item::{Item, ItemMap, ItemPath},
        names::ChunkRef,
        pack::{ChunkKind, ChunkRow},
        rows::{
            DefinitionText, Piece, RowChunk, RowEntry, RowHashKey, RowHasher, RowLeafRef, RowTotals,
            RowsChecksum, TableRows,
        },
    },
};

/// How to read rows.
#[derive(Clone, Copy, Debug)]
pub struct ReadRows {
    /// Threads that read, open and decompress for one reader; with 0, the caller's thread does it.
    pub threads: usize,
    /// Chunks to read ahead, of at most 1 MiB each. Neighbouring chunks are read
    /// at once, up to half of one thread's share.
    pub ahead: usize,
    /// Computes the checksum of the rows again. It proves no more than the hashes of the chunks do, but can
    /// be compared with a checksum that was computed elsewhere.
    pub checksum: bool,
}

impl Default for ReadRows {
    fn default() -> Self {
        Self { threads: 1, ahead: 8, checksum: false }
    }
}

/// A verified chunk of rows.
#[derive(Debug)]
pub struct RowsRead<'a> {
    /// Number of the chunk in the table.
    pub number: u64,
    /// The entry of the chunk in the table's leaf.
    pub entry: &'a RowEntry,
    /// The rows of the chunk, or the piece of a row that it holds; that row began in a chunk of the range.
    pub rows: RowChunk<'a>,
    /// All plain bytes of the chunk.
    pub plain: &'a [u8],
    /// Whether the chunk is the last one that its leaf lists.
    pub ends_leaf: bool,
}

/// A table of a backup. Shared between threads.
pub struct TableReader<'b> {
    source: &'b Arc<ChunkSource>,
    path: ItemPath,
    totals: RowTotals,
    rows: TableRows,
    /// Number of the first chunk of each leaf.
    firsts: Vec<u64>,
    count: u64,
}

fn row_key_of(source: &ChunkSource) -> Result<RowHashKey, RepoError> {
    Ok(RowHashKey::new(source.repo().hash_key()?))
}

impl Backup {
    /// The key that its rows are hashed with.
    pub fn row_key(&self) -> Result<RowHashKey, RepoError> {
        row_key_of(self.source())
    }

    /// A reader of the rows of a table; `None` if the item is not a table.
    #[must_use]
    pub fn table(&self, item: &Item) -> Option<TableReader<'_>> {
        let ItemMap::Table(map) = &item.map else { return None };
        let (mut firsts, mut count) = (Vec::new(), 0);
        match &map.rows {
            TableRows::Inline(entries) => count = entries.len() as u64,
            TableRows::Leaves(leaves) => {
                for leaf in leaves {
                    firsts.push(count);
                    count += u64::from(leaf.entries);
                }
            }
        }
        let source = self.source();
        Some(TableReader {
            source,
            path: item.path.clone(),
            totals: map.totals,
            rows: map.rows.clone(),
            firsts,
            count,
        })
    }

    /// The definition of a table or any other object; `None` if the item has none.
    pub fn definition(&self, item: &Item) -> Result<Option<Vec<u8>>, RepoError> {
        let text = match &item.map {
            ItemMap::Table(table) => &table.definition,
            ItemMap::Definition(definition) => &definition.text,
            ItemMap::Inline(_) | ItemMap::Leaves(_) => return Ok(None),
        };
        let (len, chunks) = match text {
            DefinitionText::Inline(text) => return Ok(Some(text.clone())),
            DefinitionText::Chunks { len, chunks } => (*len, chunks),
        };
        let mut whole = Vec::new();
        for (position, (chunk, hash)) in chunks.iter().enumerate() {
            let named = |error| of_item(&item.path, "definition", error);
            let plain = verified(self.source(), *chunk, *hash).map_err(named)?;
            let expected = match (position, chunks.len() - 1 - position) {
                (0, 0) => None,
                (0, _) => Some(Piece::First),
                (_, 0) => Some(Piece::Last),
                _ => Some(Piece::Middle),
            };
            let damaged = |damage| named(self.source().damaged(*chunk, damage));
            match RowChunk::parse(&plain).map_err(|error| damaged(Damage::from(error)))? {
                RowChunk::Whole(rows) if expected.is_none() => {
                    rows.for_each(|row| whole.extend_from_slice(row))
                }
                RowChunk::Piece(piece, bytes) if expected == Some(piece) => whole.extend_from_slice(bytes),
                _ => {
                    return Err(damaged(Damage::Malformed {
                        what: "it is not the expected part of a definition",
                    }));
                }
            }
        }
        if whole.len() as u64 != len {
            let what = "its length differs from that recorded in its item";
            return Err(RepoError::malformed(&item.path, what));
        }
        Ok(Some(whole))
    }
}

/// Plain bytes of a chunk of rows, verified to have this hash, wherever the chunk is now.
pub(crate) fn verified(source: &ChunkSource, chunk: ChunkRef, hash: PageHash) -> Result<Vec<u8>, RepoError> {
    let read = || verify(source, chunk, hash, source.follow_chunk(chunk)?);
    match read() {
        // No seal vouches for which chunk this is a patch on, so the index may have been wrong about that.
        Err(error) if error.is_of_the_object() && !error.is_missing() => {
            let pack = source.resolve(chunk).pack;
            source.past_the_index(pack, &mut || read())
        }
        done => done,
    }
}

fn verify(
    source: &ChunkSource,
    chunk: ChunkRef,
    hash: PageHash,
    (row, plain): (ChunkRow, Vec<u8>),
) -> Result<Vec<u8>, RepoError> {
    if row.kind != ChunkKind::Rows {
        let what = "it is not of the kind that the reference to it names";
        return Err(source.damaged(chunk, Damage::Malformed { what }));
    }
    if source.is_page(&plain, hash)? { Ok(plain) } else { Err(source.damaged(chunk, Damage::NotAsRecorded)) }
}

fn of_item(path: &ItemPath, what: &str, error: RepoError) -> RepoError {
    match error {
        RepoError::Damaged { object, damage } => {
            RepoError::Damaged { object: format!("{path} {what} ({object})"), damage }
        }
        other => other,
    }
}

/// Joins pieces of rows: checks that each piece is in its place, and sums up rows as they end.
#[derive(Default)]
pub(crate) struct Joints {
    /// `None`: without checksums.
    key: Option<RowHashKey>,
    /// Hasher and length of the row that has begun and not ended.
    open: Option<(Option<RowHasher>, u64)>,
}

impl Joints {
    /// Sums up rows with checksums.
    pub(crate) fn summed(key: RowHashKey) -> Self {
        Self { key: Some(key), open: None }
    }

    /// Forgets the row that has begun.
    pub(crate) fn forget(&mut self) {
        self.open = None;
    }

    /// Totals of the rows that end in the next chunk, if that chunk fits what came before it.
    pub(crate) fn next(&mut self, rows: &RowChunk<'_>) -> Result<RowTotals, &'static str> {
        const OUT_OF_PLACE: &str = "it is a part of a row that is out of place";
        let mut totals = RowTotals::default();
        match rows {
            RowChunk::Whole(_) | RowChunk::Piece(Piece::First, _) if self.open.is_some() => {
                return Err(OUT_OF_PLACE);
            }
            RowChunk::Whole(rows) => {
                let sum = |row| self.key.as_ref().map_or(RowsChecksum::default(), |key| key.checksum(row));
                rows.clone().for_each(|row| totals.add_row(row.len() as u64, sum(row)));
            }
            RowChunk::Piece(piece, bytes) => {
                let (mut hasher, len) = match piece {
                    Piece::First => (self.key.as_ref().map(RowHashKey::begin), 0),
                    Piece::Middle | Piece::Last => self.open.take().ok_or(OUT_OF_PLACE)?,
                };
                if let Some(hasher) = &mut hasher {
                    hasher.update(bytes);
                }
                let len = len + bytes.len() as u64;
                if *piece == Piece::Last {
                    totals.add_row(len, hasher.map_or(RowsChecksum::default(), |hasher| hasher.checksum()));
                } else {
                    self.open = Some((hasher, len));
                }
            }
        }
        Ok(totals)
    }

    /// Whether a row has begun and not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

type Fetched = Result<Vec<u8>, RepoError>;
/// Entries of chunks that are read in one go, with their numbers.
type Group = Vec<(u64, RowEntry)>;

impl TableReader<'_> {
    /// Totals of its rows, as computed when the backup was taken.
    #[must_use]
    pub fn totals(&self) -> RowTotals {
        self.totals
    }

    /// How many chunks of rows it has.
    #[must_use]
    pub fn chunk_count(&self) -> u64 {
        self.count
    }

    /// Its leaves, without reading any: the chunks that each lists, and the hash of the list. Leaves with
    /// equal hashes list the same chunks. Empty if the item lists the chunks itself.
    pub fn leaves(&self) -> impl ExactSizeIterator<Item = (Range<u64>, PageHash)> + '_ {
        let leaves: &[RowLeafRef] = match &self.rows {
            TableRows::Inline(_) => &[],
            TableRows::Leaves(leaves) => leaves,
        };
        leaves
            .iter()
            .zip(&self.firsts)
            .map(|(leaf, first)| (*first..*first + u64::from(leaf.entries), leaf.hash))
    }

    fn leaf(&self, leaf: &RowLeafRef) -> Result<Vec<RowEntry>, RepoError> {
        self.source.row_leaf(leaf).map_err(|error| of_item(&self.path, "list of rows", error))
    }

    /// The chunks of `range`, in order, with the keys at which they
    /// begin: what is known without reading rows.
    pub fn chunks(&self, range: Range<u64>) -> impl Iterator<Item = Result<(u64, RowEntry), RepoError>> + '_ {
        let Range { start, end } = range;
        let end = end.min(self.count);
        let mut next = start;
        let mut leaf: VecDeque<RowEntry> = VecDeque::new();
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            if leaf.is_empty() {
                let entries = match &self.rows {
                    TableRows::Inline(entries) => {
                        let mut entries = entries.clone();
                        self.source.resolve_rows(&mut entries);
                        Ok((0, entries))
                    }
                    TableRows::Leaves(leaves) => {
                        let position = self.firsts.partition_point(|first| *first <= next) - 1;
                        self.leaf(&leaves[position]).map(|entries| (self.firsts[position], entries))
                    }
                };
                match entries {
                    Ok((first, entries)) => {
                        let skipped = usize::try_from(next - first).unwrap_or(usize::MAX);
                        leaf = entries.into_iter().skip(skipped).collect();
                    }
                    Err(error) => {
                        next = end;
                        return Some(Err(error));
                    }
                }
            }
            let number = next;
            next += 1;
            leaf.pop_front().map(|entry| Ok((number, entry)))
        })
    }

    fn of_rows(&self, number: u64, error: RepoError) -> RepoError {
        of_item(&self.path, &format!("rows {number}"), error)
    }

    fn fetch(&self, number: u64, entry: &RowEntry) -> Fetched {
        // When two backups are read side by side, the chunk may have just been read
        // as the base of a patch in the other one.
        if let Some(plain) = self.source.known_prefix(entry.chunk)
            && self.source.is_page(&plain, entry.hash)?
        {
            return Ok(plain.to_vec());
        }
        verified(self.source, entry.chunk, entry.hash).map_err(|error| self.of_rows(number, error))
    }

    /// Whether one read is cheaper than two.
    fn are_neighbours(&self, before: ChunkRef, next: ChunkRef) -> bool {
        let gap = || {
            let rows = self.source.pack(before.pack).ok()?;
            let (row, begin) = rows.chunk(before.ordinal)?;
            rows.chunk(next.ordinal)?.1.checked_sub(begin + u64::from(row.sealed_len))
        };
        before.pack == next.pack && gap().is_some_and(|gap| gap <= GAP_BYTES_MAX)
    }

    fn fetch_group(&self, group: &Group) -> Vec<Fetched> {
        let chunks: Vec<ChunkRef> = group.iter().map(|(_, entry)| entry.chunk).collect();
        match self.source.read_neighbours(&chunks) {
            Ok(read) => {
                let read = group.iter().zip(read).map(|((number, entry), read)| {
                    let verified = verify(self.source, entry.chunk, entry.hash, read);
                    verified.or_else(|_| self.fetch(*number, entry))
                });
                read.collect()
            }
            // Fetched one by one: the chunks may have moved, and only some may be damaged.
            Err(_) => group.iter().map(|(number, entry)| self.fetch(*number, entry)).collect(),
        }
    }

    /// Calls `sink` with the chunks of `range`, in order: with all rows that begin in the range, and no
    /// others. Returns their totals, with a checksum only if `options` ask for it.
    pub fn read<E: From<RepoError>>(
        &self,
        range: Range<u64>,
        options: ReadRows,
        sink: &mut dyn FnMut(RowsRead<'_>) -> Result<(), E>,
    ) -> Result<RowTotals, E> {
        // A row that begins in the range may end after it.
        let mut entries = self.chunks(range.start..self.count).peekable();
        // Number of the next entry.
        let (mut next, end) = (range.start, range.end);
        let joints =
            if options.checksum { Joints::summed(row_key_of(self.source)?) } else { Joints::default() };
        let mut reading = Reading { table: self, end, options, joints, totals: RowTotals::default() };
        if options.threads == 0 {
            while !reading.is_past(next)
                && let Some(entry) = entries.next()
            {
                let (number, entry) = entry?;
                next += 1;
                reading.give(number, &entry, &self.fetch(number, &entry)?, sink)?;
            }
            return Ok(reading.totals);
        }
        let ahead = options.ahead.max(options.threads);
        let group_max = (ahead / options.threads / 2).max(1);
        let (jobs, work) = bounded::<(Group, Sender<Vec<Fetched>>)>(ahead);
        thread::scope(|scope| {
            // Dropped before the scope joins its threads, however this ends.
            let jobs = jobs;
            for _ in 0..options.threads {
                let work = work.clone();
                scope.spawn(move || {
                    for (group, done) in work {
                        // The receiver is gone once the sink has failed.
                        let _ = done.send(self.fetch_group(&group));
                    }
                });
            }
            drop(work);
            let mut under_way: VecDeque<(Group, Receiver<Vec<Fetched>>)> = VecDeque::new();
            let mut chunks_under_way = 0;
            loop {
                // After the range, only the rest of its last row is needed:
                // read one chunk at a time until that ends.
                while chunks_under_way < ahead
                    && (next < end || under_way.is_empty() && !reading.is_past(next))
                    && let Some(entry) = entries.next()
                {
                    let mut group = vec![entry?];
                    next += 1;
                    while group.len() < group_max
                        && next < end
                        && let Some(Ok(neighbour)) = entries.next_if(|next| {
                            let last = group.last().map(|(_, entry)| entry.chunk);
                            matches!((next, last), (Ok((_, next)), Some(last)) if self.are_neighbours(last, next.chunk))
                        })
                    {
                        group.push(neighbour);
                        next += 1;
                    }
                    chunks_under_way += group.len();
                    let (done, fetched) = bounded(1);
                    let _ = jobs.send((group.clone(), done));
                    under_way.push_back((group, fetched));
                }
                let Some((group, fetched)) = under_way.pop_front() else { break };
                chunks_under_way -= group.len();
                let fetched = fetched.recv().unwrap_or_else(|_| self.fetch_group(&group));
                for ((number, entry), plain) in group.iter().zip(fetched) {
                    reading.give(*number, entry, &plain?, sink)?;
                }
            }
            Ok(reading.totals)
        })
    }
}

struct Reading<'t, 'b> {
    table: &'t TableReader<'b>,
    end: u64,
    options: ReadRows,
    joints: Joints,
    totals: RowTotals,
}

impl Reading<'_, '_> {
    /// Whether the range, including the rest of its last row, ends before the chunk `number`.
    fn is_past(&self, number: u64) -> bool {
        number >= self.end && !self.joints.is_open()
    }

    fn give<E: From<RepoError>>(
        &mut self,
        number: u64,
        entry: &RowEntry,
        plain: &[u8],
        sink: &mut dyn FnMut(RowsRead<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let source = self.table.source;
        let damaged = |damage| {
            of_item(&self.table.path, &format!("rows {number}"), source.damaged(entry.chunk, damage))
        };
        let rows = RowChunk::parse(plain).map_err(|error| damaged(Damage::from(error)))?;
        // At the beginning of the range: the rest of a row that belongs to the range before.
        let goes_on = matches!(rows, RowChunk::Piece(Piece::Middle | Piece::Last, _));
        if goes_on && !self.joints.is_open() && self.totals.rows == 0 && number > 0 {
            return Ok(());
        }
        let totals = self.joints.next(&rows);
        let totals = totals.map_err(|what| damaged(Damage::Malformed { what }))?;
        let recorded = entry.totals;
        if (totals.rows, totals.bytes) != (recorded.rows, recorded.bytes)
            || self.options.checksum && totals.checksum != recorded.checksum
        {
            return Err(damaged(Damage::Malformed { what: "its rows differ from those recorded" }).into());
        }
        let sum = self.totals.and(totals);
        self.totals = sum.ok_or_else(|| damaged(Damage::Malformed { what: "it has too many rows" }))?;
        let ends_leaf = self.table.firsts.binary_search(&(number + 1)).is_ok();
        sink(RowsRead { number, entry, rows, plain, ends_leaf })
    }
}
