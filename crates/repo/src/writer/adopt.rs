//! Adoption: pages that an earlier run stored before it died are found again by their hash.
//!
//! Only a sample of all hashes is kept, as many as memory allows; where one is met, the pages of its whole pack are
//! looked at, since a repeated read meets pages in much the same order as the read before.

use std::{collections::HashMap, sync::Mutex};

use holdfast_pipe::PageHash;

use crate::{
    columns::StoredPage,
    error::RepoError,
    lock::lock,
    names::{ChunkRef, PackId, RunNo},
    pack::pages_in,
    reader::{
        ChunkSource,
        catalog::{is_of_the_object, list_index_parts, read_index_part},
    },
};

/// What one sampled hash costs, with the room a hash map keeps.
const SAMPLE_BYTES: u64 = 48;
/// Packs whose pages are all known at one time.
const PACKS_KEPT: usize = 8;

/// The pages of adopted runs.
pub(super) struct Adopted {
    packs: Vec<PackId>,
    /// A hash is in the sample if these bits of it are 0.
    mask: u16,
    sample: HashMap<PageHash, u32>,
    recent: Mutex<Vec<(u32, HashMap<PageHash, StoredPage>)>>,
}

impl Adopted {
    /// Reads the directories of what `runs`, which ended without effect, had stored and listed. Packs that are not
    /// whole any more are left out.
    pub(super) fn open(source: &ChunkSource, runs: &[RunNo], memory_bytes: usize) -> Result<Self, RepoError> {
        let mut adopted =
            Self { packs: Vec::new(), mask: 0, sample: HashMap::new(), recent: Mutex::default() };
        let mut pages = 0_u64;
        if runs.is_empty() {
            return Ok(adopted);
        }
        let index_parts = list_index_parts(source.repo(), source.log())?;
        for run in runs {
            for part in index_parts.get(run).into_iter().flatten() {
                let listed = match read_index_part(source.repo(), source.log(), *run, *part) {
                    Ok(listed) => listed,
                    Err(error) if is_of_the_object(&error) => continue,
                    Err(error) => return Err(error),
                };
                for (part, rows) in listed {
                    let pack = PackId { run: *run, part };
                    if source.prunes().may_reference(pack) {
                        adopted.packs.push(pack);
                        pages += rows.rows().iter().map(|row| u64::from(pages_in(row))).sum::<u64>();
                    }
                }
            }
        }
        while (pages >> adopted.mask.count_ones()) * SAMPLE_BYTES > memory_bytes as u64
            && adopted.mask != u16::MAX
        {
            adopted.mask = adopted.mask << 1 | 1;
        }
        for position in 0..adopted.packs.len() {
            let number = position as u32;
            for (hash, _) in adopted.pages_of(source, number)? {
                if adopted.is_sampled(hash) {
                    adopted.sample.insert(hash, number);
                }
            }
        }
        Ok(adopted)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sample.is_empty()
    }

    fn is_sampled(&self, hash: PageHash) -> bool {
        u16::from_le_bytes([hash.0[0], hash.0[1]]) & self.mask == 0
    }

    fn pages_of(
        &self,
        source: &ChunkSource,
        number: u32,
    ) -> Result<HashMap<PageHash, StoredPage>, RepoError> {
        let Some(pack) = self.packs.get(number as usize).copied() else { return Ok(HashMap::new()) };
        let directory = match source.directory(pack) {
            Ok((_, directory)) => directory,
            Err(error) if is_of_the_object(&error) => return Ok(HashMap::new()),
            Err(error) => return Err(error),
        };
        let mut pages = HashMap::with_capacity(directory.hashes.len());
        for (ordinal, (_, hashes)) in directory.chunks().enumerate() {
            let chunk = ChunkRef { pack, ordinal: ordinal as u32 };
            for (slot, hash) in hashes.iter().enumerate() {
                pages.insert(*hash, StoredPage { hash: *hash, chunk, slot: slot as u32 });
            }
        }
        Ok(pages)
    }

    /// Where each of `hashes` is stored, if it is found.
    pub(super) fn find(
        &self,
        source: &ChunkSource,
        hashes: &[Option<PageHash>],
    ) -> Result<Vec<Option<StoredPage>>, RepoError> {
        for hash in hashes.iter().flatten() {
            let Some(number) = self.is_sampled(*hash).then(|| self.sample.get(hash)).flatten() else {
                continue;
            };
            if lock(&self.recent).iter().any(|(known, _)| known == number) {
                continue;
            }
            let pages = self.pages_of(source, *number)?;
            let mut recent = lock(&self.recent);
            if recent.len() >= PACKS_KEPT {
                recent.remove(0);
            }
            recent.push((*number, pages));
        }
        let recent = lock(&self.recent);
        let find = |hash: &PageHash| recent.iter().rev().find_map(|(_, pages)| pages.get(hash).copied());
        Ok(hashes.iter().map(|hash| hash.as_ref().and_then(find)).collect())
    }
}
