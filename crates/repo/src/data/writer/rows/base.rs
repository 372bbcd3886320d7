//! The base's chunks of a table: found by hash and by place.
//!
//! Leaves are read as the rows get near them. Only if neither a chunk nor the key at which it begins is in
//! the current leaf or the next one are all leaves read, once, to build an index of 16 bytes for each chunk.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use holdfast_pipe::{PageHash, lock::lock};

use super::{BackupWriter, WriteError};
use crate::{
    data::{
        reader::ChunkSource,
        writer::{WriterMeters, base::Base, chunk::PatchBase, readable},
    },
    error::RepoError,
    format::{
        item::{ItemMap, ItemPath},
        names::ChunkRef,
        rows::{DefinitionText, RowEntry, RowLeafRef, RowTotals, TableRows},
    },
};

/// A table of the base.
pub(super) struct BaseTable {
    source: Arc<ChunkSource>,
    leaves: Vec<BaseLeaf>,
    by_hash: HashMap<PageHash, ChunkRef>,
    count: u64,
    totals: RowTotals,
    index: Mutex<Option<Arc<Index>>>,
}

/// Numbers of all chunks, sorted by the first bytes of what they are looked up by.
#[derive(Default)]
struct Index {
    /// By the hash of the chunk.
    by_hash: Vec<(u32, u32)>,
    /// By the hash of the key at which the chunk begins.
    by_key: Vec<(u32, u32)>,
}

impl Index {
    fn candidates(list: &[(u32, u32)], begin: u32) -> impl Iterator<Item = u64> {
        let first = list.partition_point(|(known, _)| *known < begin);
        list[first..]
            .iter()
            .take_while(move |(known, _)| *known == begin)
            .map(|(_, number)| u64::from(*number))
    }
}

struct BaseLeaf {
    /// Number of the first entry in the leaf.
    first: u64,
    place: BaseLeafPlace,
}

enum BaseLeafPlace {
    Stored(RowLeafRef),
    /// The item held its entries.
    Inline(Arc<Vec<RowEntry>>),
}

impl BaseTable {
    pub(super) fn open(base: &Base, path: &ItemPath) -> Result<Option<Self>, RepoError> {
        let Some(item) = base.backup().find(path)? else { return Ok(None) };
        let ItemMap::Table(map) = item.map else { return Ok(None) };
        let source = Arc::clone(base.backup().source());
        let mut count = 0;
        let (mut leaves, mut by_hash) = (Vec::new(), HashMap::new());
        match map.rows {
            TableRows::Inline(mut entries) => {
                count = entries.len() as u64;
                source.resolve_rows(&mut entries);
                leaves.push(BaseLeaf { first: 0, place: BaseLeafPlace::Inline(Arc::new(entries)) });
            }
            TableRows::Leaves(refs) => {
                for leaf in refs {
                    by_hash.insert(leaf.hash, source.resolve(leaf.chunk));
                    leaves.push(BaseLeaf { first: count, place: BaseLeafPlace::Stored(leaf) });
                    count += u64::from(leaf.entries);
                }
            }
        }
        let index = Mutex::default();
        Ok(Some(Self { source, leaves, by_hash, count, totals: map.totals, index }))
    }

    /// Position of the leaf in which entry `number` is.
    fn leaf_of(&self, number: u64) -> usize {
        self.leaves.partition_point(|leaf| leaf.first <= number).saturating_sub(1)
    }

    /// The entries of a leaf, resolved to where their chunks are now; none if the leaf cannot be read.
    fn entries(&self, meters: &WriterMeters, leaf: usize) -> Result<Arc<Vec<RowEntry>>, WriteError> {
        let Some(leaf) = self.leaves.get(leaf) else { return Ok(Arc::default()) };
        match &leaf.place {
            BaseLeafPlace::Inline(entries) => Ok(Arc::clone(entries)),
            BaseLeafPlace::Stored(leaf) => {
                Ok(readable(meters, self.source.row_leaf(leaf))?.map(Arc::new).unwrap_or_default())
            }
        }
    }

    /// The chunk in which the base has a leaf with exactly these bytes, if it may be referenced.
    pub(super) fn leaf_of_hash(&self, writer: &BackupWriter, hash: PageHash) -> Option<ChunkRef> {
        let chunk = *self.by_hash.get(&hash)?;
        writer.base.as_ref().is_some_and(|base| base.is_there(chunk)).then_some(chunk)
    }

    fn index(&self, writer: &BackupWriter) -> Result<Arc<Index>, WriteError> {
        // Other threads that need the index meanwhile wait here, instead of reading everything again.
        let mut index = lock(&self.index);
        if let Some(index) = &*index {
            return Ok(Arc::clone(index));
        }
        let mut all = Index::default();
        all.by_hash.reserve(usize::try_from(self.count).unwrap_or_default());
        for (position, leaf) in self.leaves.iter().enumerate() {
            for (entry, number) in self.entries(&writer.meters, position)?.iter().zip(leaf.first..) {
                let Ok(number) = u32::try_from(number) else { break };
                all.by_hash.push((begin_of(entry.hash), number));
                if let Some(key) = &entry.key {
                    all.by_key.push((begin_of(writer.hash_key.hash(key)), number));
                }
            }
        }
        all.by_hash.sort_unstable();
        all.by_key.sort_unstable();
        Ok(Arc::clone(index.insert(Arc::new(all))))
    }
}

fn begin_of(hash: PageHash) -> u32 {
    let PageHash([a, b, c, d, ..]) = hash;
    u32::from_le_bytes([a, b, c, d])
}

/// The chunks of the base's definition with this path, where they are now, with their hashes. Chunks that may
/// not be referenced are left out.
pub(super) fn definition_chunks(
    base: &Base,
    path: &ItemPath,
) -> Result<Vec<(ChunkRef, PageHash)>, RepoError> {
    let text = match base.backup().find(path)?.map(|item| item.map) {
        Some(ItemMap::Table(table)) => table.definition,
        Some(ItemMap::Definition(definition)) => definition.text,
        _ => return Ok(Vec::new()),
    };
    let DefinitionText::Chunks { chunks, .. } = text else { return Ok(Vec::new()) };
    let source = base.backup().source();
    let chunks = chunks.into_iter().map(|(chunk, hash)| (source.resolve(chunk), hash));
    Ok(chunks.filter(|(chunk, _)| base.is_there(*chunk)).collect())
}

/// A chunk of the base that equals or resembles a new chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// The same chunk, and the chunk that it is a patch on.
    pub(super) same: Option<(ChunkRef, Option<ChunkRef>)>,
    /// Otherwise: a chunk that is likely to have much in common with the new one.
    pub(super) alike: Option<PatchBase>,
}

/// Follows the chunks of the base alongside the rows of a range.
pub(super) struct Cursor {
    base: Arc<BaseTable>,
    /// The entry expected next if the rows are unchanged; `None` until one is found.
    at: Option<u64>,
    /// The leaves used last, with their positions.
    leaves: [Option<(usize, Arc<Vec<RowEntry>>)>; 2],
}

impl Cursor {
    pub(super) fn new(base: Arc<BaseTable>, at: Option<u64>) -> Self {
        Self { base, at, leaves: [None, None] }
    }

    fn leaf(&mut self, meters: &WriterMeters, leaf: usize) -> Result<Arc<Vec<RowEntry>>, WriteError> {
        let slot = &mut self.leaves[leaf % 2];
        match slot {
            Some((known, entries)) if *known == leaf => Ok(Arc::clone(entries)),
            _ => {
                let entries = self.base.entries(meters, leaf)?;
                *slot = Some((leaf, Arc::clone(&entries)));
                Ok(entries)
            }
        }
    }

    fn entry(&mut self, meters: &WriterMeters, number: u64) -> Result<Option<RowEntry>, WriteError> {
        let leaf = self.base.leaf_of(number);
        let first = self.base.leaves.get(leaf).map_or(0, |leaf| leaf.first);
        let entries = self.leaf(meters, leaf)?;
        Ok(entries.get(usize::try_from(number - first).unwrap_or(usize::MAX)).cloned())
    }

    /// The key at which the chunk after the expected one begins.
    pub(super) fn next_key(&mut self, meters: &WriterMeters) -> Result<Option<Box<[u8]>>, WriteError> {
        let Some(at) = self.at else { return Ok(None) };
        if at + 1 >= self.base.count {
            return Ok(None);
        }
        Ok(self.entry(meters, at + 1)?.and_then(|entry| entry.key))
    }

    /// The first entry that `is` accepts, in the leaf of `at` and the next one.
    fn near(
        &mut self,
        meters: &WriterMeters,
        at: u64,
        is: &dyn Fn(&RowEntry) -> bool,
    ) -> Result<Option<(u64, RowEntry)>, WriteError> {
        let here = self.base.leaf_of(at);
        for leaf in [here, here + 1] {
            let Some(first) = self.base.leaves.get(leaf).map(|leaf| leaf.first) else { break };
            let entries = self.leaf(meters, leaf)?;
            // Usually it is the expected entry itself.
            let expected = usize::try_from(at.saturating_sub(first)).unwrap_or(usize::MAX).min(entries.len());
            let later = entries[expected..].iter().position(is).map(|position| position + expected);
            if let Some(position) = later.or_else(|| entries[..expected].iter().position(is)) {
                return Ok(Some((first + position as u64, entries[position].clone())));
            }
        }
        Ok(None)
    }

    /// The first of `candidates` that `is` accepts.
    fn first_of(
        &mut self,
        meters: &WriterMeters,
        candidates: impl Iterator<Item = u64>,
        is: &dyn Fn(&RowEntry) -> bool,
    ) -> Result<Option<(u64, RowEntry)>, WriteError> {
        for number in candidates {
            if let Some(entry) = self.entry(meters, number)?.filter(is) {
                return Ok(Some((number, entry)));
            }
        }
        Ok(None)
    }

    /// The base's counterpart of the next chunk, which has `bytes` bytes of rows
    /// and this hash, and begins with this key.
    pub(super) fn find(
        &mut self,
        writer: &BackupWriter,
        bytes: u64,
        hash: PageHash,
        key: Option<&[u8]>,
    ) -> Result<Found, WriteError> {
        let meters = &*writer.meters;
        let Some(base) = &writer.base else { return Ok(Found::default()) };
        // Past the end there is nothing to find. In many tables, appended rows are the only change.
        let at = self.at.filter(|at| *at < self.base.count);
        if at.is_none() && self.at.is_some() {
            return Ok(Found::default());
        }
        let is_same = |entry: &RowEntry| entry.hash == hash;
        let is_alike = |entry: &RowEntry| key.is_some() && entry.key.as_deref() == key;
        let (mut same, mut alike) = (None, None);
        if let Some(at) = at {
            same = self.near(meters, at, &is_same)?;
            if same.is_none() && key.is_some() {
                alike = self.near(meters, at, &is_alike)?;
            }
        }
        if same.is_none() && alike.is_none() {
            let index = self.base.index(writer)?;
            same = self.first_of(meters, Index::candidates(&index.by_hash, begin_of(hash)), &is_same)?;
            if let (None, Some(key)) = (&same, key) {
                let begin = begin_of(writer.hash_key.hash(key));
                alike = self.first_of(meters, Index::candidates(&index.by_key, begin), &is_alike)?;
            }
        }
        if let Some((number, entry)) = same {
            self.at = Some(number + 1);
            let is_there =
                base.is_there(entry.chunk) && entry.base.is_none_or(|prefix| base.is_there(prefix));
            let same = is_there.then_some((entry.chunk, entry.base));
            return Ok(Found { same, alike: None });
        }
        if alike.is_none()
            && let Some(at) = at
        {
            alike = self.entry(meters, at)?.map(|entry| (at, entry));
        }
        let Some((mut number, mut entry)) = alike else { return Ok(Found::default()) };
        // Two chunks may have become one: the new one has more in common with the longer of them.
        if entry.totals.bytes * 2 < bytes
            && let Some(next) = self.entry(meters, number + 1)?
            && next.totals.bytes > entry.totals.bytes
        {
            (number, entry) = (number + 1, next);
        }
        self.at = Some(number + 1);
        let chunk = entry.base.unwrap_or(entry.chunk);
        let is_of_use = writer.source.repo().can_read() && base.is_there(chunk);
        Ok(Found {
            same: None,
            alike: is_of_use.then_some(PatchBase { chunk, is_again: entry.base.is_some() }),
        })
    }
}

/// The base's chunks of a table, by number.
pub struct BaseChunks {
    cursor: Cursor,
    meters: Arc<WriterMeters>,
}

/// A chunk of the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChunk {
    /// Its number, for [`super::RangeStart::base_chunk`].
    pub number: u64,
    /// Totals of the rows that end in it.
    pub totals: RowTotals,
    /// Key of its first row, as it was given; `None` if it has none,
    /// or begins with the rest of an earlier row.
    pub key: Option<Box<[u8]>>,
}

impl BaseChunks {
    pub(super) fn new(base: Arc<BaseTable>, meters: Arc<WriterMeters>) -> Self {
        Self { cursor: Cursor::new(base, None), meters }
    }

    /// How many chunks there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.cursor.base.count
    }

    /// Totals of all their rows.
    #[must_use]
    pub fn totals(&self) -> RowTotals {
        self.cursor.base.totals
    }

    /// The chunk with this number, from 0; `None` if there is none, or its leaf cannot be read. Asking in
    /// order costs one read for some hundred MiB of rows.
    pub fn get(&mut self, number: u64) -> Result<Option<BaseChunk>, WriteError> {
        if number >= self.count() {
            return Ok(None);
        }
        let entry = self.cursor.entry(&self.meters, number)?;
        Ok(entry.map(|entry| BaseChunk { number, totals: entry.totals, key: entry.key }))
    }
}
