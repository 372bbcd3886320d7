//! Adoption: finds pages that an earlier run stored before it died, by their hash.
//!
//! Memory holds only a sample of all hashes, as large as the budget allows. When a page
//! hits the sample, all pages of that pack are loaded, since a repeated read meets pages
//! in much the same order as the read before.
//!
//! No backup needs what a dead run stored, so no check reads it. Before the first page of a chunk is adopted,
//! the chunk is read, and its pages are compared with their hashes. Damaged chunks are left out.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use holdfast_pipe::{PageHash, lock::lock, meter::Meter};

use crate::{
    data::reader::{ChunkSource, catalog::read_index_parts},
    error::RepoError,
    format::{
        columns::StoredPage,
        names::{ChunkRef, Folder, PackId, RunNo},
        pack::{Directory, pages_in},
    },
    store::ahead::in_order,
};

/// Memory for one sampled hash, with the spare room of a hash map.
const SAMPLE_BYTES: u64 = 48;
/// Packs whose pages are all in memory at one time.
const PACKS_KEPT: usize = 8;

/// The pages of adopted runs.
pub(super) struct Adopted {
    packs: Vec<PackId>,
    /// A hash is in the sample if these bits of it are 0.
    mask: u16,
    sample: HashMap<PageHash, u32>,
    recent: Mutex<Vec<Arc<KnownPack>>>,
    /// For packs in which pages were found: which chunks have been read, and whether they were intact.
    verdicts: Mutex<HashMap<u32, Vec<Option<bool>>>>,
}

/// A pack whose pages are all known.
struct KnownPack {
    number: u32,
    pack: PackId,
    directory: Directory,
    /// Chunk and slot of each page.
    places: HashMap<PageHash, (u32, u32)>,
}

impl KnownPack {
    fn new(number: u32, pack: PackId, directory: Directory) -> Self {
        let mut places = HashMap::with_capacity(directory.hashes.len());
        for ((_, hashes), ordinal) in directory.chunks().zip(0..) {
            places.extend(hashes.iter().zip(0..).map(|(hash, slot)| (*hash, (ordinal, slot))));
        }
        Self { number, pack, directory, places }
    }

    fn find(&self, hash: PageHash) -> Option<StoredPage> {
        let (ordinal, slot) = *self.places.get(&hash)?;
        Some(StoredPage { hash, chunk: ChunkRef { pack: self.pack, ordinal }, slot })
    }

    /// Whether a chunk can be read, as by a restore, and holds the pages that the directory names.
    fn is_whole(&self, source: &ChunkSource, ordinal: u32) -> Result<bool, RepoError> {
        let chunk = ChunkRef { pack: self.pack, ordinal };
        let hashes = self.directory.chunks().nth(ordinal as usize).map_or(&[][..], |(_, hashes)| hashes);
        let read = source.read_chunk(chunk);
        match read.and_then(|(row, plain)| source.compare_pages(chunk, &row, &plain, hashes)) {
            Ok(()) => Ok(true),
            Err(error) if error.is_of_the_object() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Adopted {
    /// Reads the directories of the packs that `runs`, which ended without effect, stored and listed. Packs
    /// that prunes have declared dead or emptied, or that cannot be read, are left out.
    pub(super) fn open(source: &ChunkSource, runs: &[RunNo], memory_bytes: usize) -> Result<Self, RepoError> {
        let mut adopted = Self {
            packs: Vec::new(),
            mask: 0,
            sample: HashMap::new(),
            recent: Mutex::default(),
            verdicts: Mutex::default(),
        };
        let mut pages = 0_u64;
        if runs.is_empty() {
            return Ok(adopted);
        }
        let prunes = source.prunes();
        let (repo, log) = (source.repo(), source.log());
        let index_parts = repo.list_folder(log, Folder::Index)?.into_iter();
        let index_parts: Vec<_> = index_parts.filter(|((run, _), _)| runs.contains(run)).collect();
        read_index_parts(repo, log, &index_parts, |(run, _), listed| {
            let listed = match listed {
                Err(error) if error.is_of_the_object() => return Ok(()),
                listed => listed?,
            };
            for (part, rows) in listed {
                let pack = PackId { run, part };
                if prunes.may_reference(pack) {
                    adopted.packs.push(pack);
                    pages += rows.rows().iter().map(|row| u64::from(pages_in(row))).sum::<u64>();
                }
            }
            Ok::<_, RepoError>(())
        })?;
        while (pages >> adopted.mask.count_ones()) * SAMPLE_BYTES > memory_bytes as u64
            && adopted.mask != u16::MAX
        {
            adopted.mask = adopted.mask << 1 | 1;
        }
        let numbers: Vec<u32> = (0..adopted.packs.len() as u32).collect();
        let mut sample = HashMap::new();
        let ask = |number: &u32| {
            let known = adopted.known_pack(source, *number)?;
            let hashes = known.into_iter().flat_map(|known| known.places.into_keys());
            Ok(hashes.filter(|hash| adopted.is_sampled(*hash)).collect::<Vec<_>>())
        };
        in_order(repo.store().reads_at_once(), &numbers, ask, |number, sampled| {
            sample.extend(sampled.into_iter().map(|hash| (hash, *number)));
            Ok::<_, RepoError>(())
        })?;
        Ok(Self { sample, ..adopted })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sample.is_empty()
    }

    fn is_sampled(&self, hash: PageHash) -> bool {
        u16::from_le_bytes([hash.0[0], hash.0[1]]) & self.mask == 0
    }

    /// The pages of a pack; `None` if its directory cannot be read.
    fn known_pack(&self, source: &ChunkSource, number: u32) -> Result<Option<KnownPack>, RepoError> {
        let Some(pack) = self.packs.get(number as usize).copied() else { return Ok(None) };
        match source.directory(pack) {
            Ok((_, directory)) => Ok(Some(KnownPack::new(number, pack, directory))),
            Err(error) if error.is_of_the_object() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where each of `hashes` is stored, if it is found and its chunk is intact. Counts chunks that are not.
    pub(super) fn find(
        &self,
        source: &ChunkSource,
        hashes: &[Option<PageHash>],
        unreadable: &Meter,
    ) -> Result<Vec<Option<StoredPage>>, RepoError> {
        for hash in hashes.iter().flatten() {
            if let Some(number) = self.is_sampled(*hash).then(|| self.sample.get(hash)).flatten() {
                self.know(source, *number)?;
            }
        }
        let recent = lock(&self.recent).clone();
        let find = |hash: &PageHash| -> Result<_, RepoError> {
            let found = recent.iter().rev().find_map(|known| Some((known, known.find(*hash)?)));
            let Some((known, page)) = found else { return Ok(None) };
            Ok(self.is_whole(source, known, page.chunk.ordinal, unreadable)?.then_some(page))
        };
        hashes.iter().map(|hash| hash.as_ref().map_or(Ok(None), find)).collect()
    }

    /// Loads a pack into the recent ones, if it is not there.
    fn know(&self, source: &ChunkSource, number: u32) -> Result<(), RepoError> {
        if lock(&self.recent).iter().any(|known| known.number == number) {
            return Ok(());
        }
        let Some(known) = self.known_pack(source, number)? else { return Ok(()) };
        let mut recent = lock(&self.recent);
        if recent.len() >= PACKS_KEPT {
            recent.remove(0);
        }
        recent.push(Arc::new(known));
        Ok(())
    }

    /// Whether a chunk is intact. It is read once, or once by each of
    /// several threads that meet it at the same time.
    fn is_whole(
        &self,
        source: &ChunkSource,
        known: &KnownPack,
        ordinal: u32,
        unreadable: &Meter,
    ) -> Result<bool, RepoError> {
        let at = ordinal as usize;
        let verdict = lock(&self.verdicts).get(&known.number).and_then(|chunks| *chunks.get(at)?);
        if let Some(is_whole) = verdict {
            return Ok(is_whole);
        }
        let is_whole = known.is_whole(source, ordinal)?;
        let mut verdicts = lock(&self.verdicts);
        let chunks = verdicts.entry(known.number).or_insert_with(|| vec![None; known.directory.rows.len()]);
        if let Some(verdict) = chunks.get_mut(at)
            && verdict.replace(is_whole).is_none()
            && !is_whole
        {
            unreadable.add(0);
        }
        Ok(is_whole)
    }
}
