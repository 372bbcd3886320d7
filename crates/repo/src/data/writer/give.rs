//! Takes pages: hashes and compares them on the thread that gives them, then gathers them into chunks.

use std::sync::{Arc, atomic::Ordering};

use holdfast_pipe::{PageHash, lock::lock};

use super::{
    BackupWriter, FileId, FileProblem, PAGE_SIZES, WriteError,
    chunk::{PageGatherer, Pending},
    file::{File, FileState, Slot, leaf_of},
    leaf::{BaseLeaf, Change, OpenLeaf},
    readable,
};
use crate::format::{
    columns::{PageEntry, StoredPage},
    page_map::PAGES_PER_LEAF,
};

/// A file gathers a chunk of its own once this many of the bytes given at once
/// are new; less goes into the shared chunk.
const OWN_CHUNK_BYTES_MIN: usize = 256 << 10;

/// What was found out about a page, before any lock is taken.
enum Found {
    Change(Change),
    /// The page must be stored. `again`: although the base has it.
    New {
        hash: PageHash,
        again: bool,
    },
}

impl BackupWriter {
    /// Gives whole pages of a file, from page `first` on; the last page of a file is padded with zeros. Pages
    /// should mostly ascend; a page given again replaces the earlier one.
    pub fn pages(&self, id: FileId, first: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let page_bytes = file.page_size.bytes();
        if !bytes.len().is_multiple_of(page_bytes) {
            let problem = FileProblem::NotPages { len: bytes.len(), page_size: page_bytes };
            return Err(self.file_error(&file, problem));
        }
        self.bytes_given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let hashes: Vec<Option<PageHash>> = self.meters.compare.time(|| {
            let pages = bytes.chunks_exact(page_bytes);
            pages.map(|page| (!is_zero(page)).then(|| self.hash_key.hash(page))).collect()
        });
        self.meters.compare.add_many(hashes.len() as u64, bytes.len() as u64);
        let mut done = 0;
        while done < hashes.len() {
            let (leaf, from) = leaf_of(first + done as u64);
            let count = (hashes.len() - done).min((PAGES_PER_LEAF - from) as usize);
            let range = done..done + count;
            let bytes = &bytes[range.start * page_bytes..range.end * page_bytes];
            self.pages_of_leaf(&file, leaf, from, &hashes[range], bytes)?;
            done += count;
        }
        self.seal_waiting()
    }

    /// Declares that the source has no blocks for `count` pages from `first` on.
    pub fn holes(&self, id: FileId, first: u64, count: u64) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let mut page = first;
        while page < first + count {
            let (leaf, from) = leaf_of(page);
            let pages = (first + count - page).min(u64::from(PAGES_PER_LEAF - from)) as u32;
            let base = self.base_leaf(&file, leaf)?;
            let changes = (from..from + pages).map(|page| {
                let same = base_entry(base.as_deref(), page) == Some(PageEntry::Hole);
                (page, if same { Change::Same } else { Change::Known(PageEntry::Hole) })
            });
            let changes = changes.collect();
            self.record(&file, leaf, base, changes)?;
            page += u64::from(pages);
        }
        self.meters.empty.add_many(count, count * file.page_size.bytes() as u64);
        self.seal_waiting()
    }

    fn pages_of_leaf(
        &self,
        file: &Arc<File>,
        leaf: u32,
        from: u32,
        hashes: &[Option<PageHash>],
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        let page_bytes = file.page_size.bytes();
        let base = self.base_leaf(file, leaf)?;
        let mut found = self.meters.compare.time(|| self.compare(base.as_deref(), from, hashes, page_bytes));
        self.adopt(&mut found, page_bytes)?;
        let mut rewritten = 0;
        let new: Vec<(usize, PageHash)> = found
            .iter()
            .enumerate()
            .filter_map(|(position, found)| match found {
                Found::New { hash, again } => {
                    rewritten += u64::from(*again);
                    Some((position, *hash))
                }
                Found::Change(_) => None,
            })
            .collect();
        self.meters.rewritten.add_many(rewritten, rewritten * page_bytes as u64);
        let mut places = self.gather(file, &new, bytes)?.into_iter();
        let changes = found.into_iter().zip(from..).filter_map(|(found, page)| match found {
            Found::Change(change) => Some((page, change)),
            Found::New { hash, .. } => Some((page, Change::New(hash, places.next()?))),
        });
        let changes = changes.collect();
        self.record(file, leaf, base, changes)
    }

    fn compare(
        &self,
        base: Option<&BaseLeaf>,
        from: u32,
        hashes: &[Option<PageHash>],
        page_bytes: usize,
    ) -> Vec<Found> {
        let (mut empty, mut reused) = (0_u64, 0_u64);
        let page_bytes = page_bytes as u64;
        let found = hashes.iter().zip(from..).map(|(hash, page)| {
            let before = base_entry(base, page);
            let Some(hash) = hash else {
                empty += 1;
                let same = before == Some(PageEntry::Zero);
                return Found::Change(if same { Change::Same } else { Change::Known(PageEntry::Zero) });
            };
            match before {
                Some(PageEntry::Stored(StoredPage { hash: known, chunk, .. })) if known == *hash => {
                    let Some(base) = &self.base else { return Found::New { hash: *hash, again: false } };
                    if !base.is_there(chunk) {
                        Found::New { hash: *hash, again: false }
                    } else if base.is_sparse(chunk) && self.may_rewrite(page_bytes) {
                        Found::New { hash: *hash, again: true }
                    } else {
                        reused += 1;
                        Found::Change(Change::Same)
                    }
                }
                _ => Found::New { hash: *hash, again: false },
            }
        });
        let found = found.collect();
        self.meters.empty.add_many(empty, empty * page_bytes);
        self.meters.reused.add_many(reused, reused * page_bytes);
        found
    }

    /// Whether the limit allows this many `bytes_again` to have been stored again by now.
    fn is_rewrite_within(&self, bytes_again: u64) -> bool {
        let given = self.bytes_given.load(Ordering::Relaxed) as f64;
        bytes_again as f64 <= given * self.options.max_rewrite_fraction
    }

    /// Whether `bytes` more may be stored again, if they are given now. Reserves nothing.
    pub(super) fn could_rewrite(&self, bytes: u64) -> bool {
        self.is_rewrite_within(self.bytes_again.load(Ordering::Relaxed) + bytes)
    }

    /// Reserves `bytes` of the limit for pages that are stored again although unchanged.
    fn may_rewrite(&self, bytes: u64) -> bool {
        let may = self.is_rewrite_within(self.bytes_again.fetch_add(bytes, Ordering::Relaxed) + bytes);
        if !may {
            self.bytes_again.fetch_sub(bytes, Ordering::Relaxed);
        }
        may
    }

    fn adopt(&self, found: &mut [Found], page_bytes: usize) -> Result<(), WriteError> {
        if self.adopted.is_empty() {
            return Ok(());
        }
        let hashes: Vec<_> = found
            .iter()
            .map(|found| match found {
                Found::New { hash, .. } => Some(*hash),
                Found::Change(_) => None,
            })
            .collect();
        let places = self.adopted.find(&self.source, &hashes, &self.meters.adopted_unreadable)?;
        for (found, place) in found.iter_mut().zip(places) {
            if let Some(place) = place {
                self.meters.adopted.add(page_bytes as u64);
                if matches!(found, Found::New { again: true, .. }) {
                    self.bytes_again.fetch_sub(page_bytes as u64, Ordering::Relaxed);
                }
                *found = Found::Change(Change::Known(PageEntry::Stored(place)));
            }
        }
        Ok(())
    }

    /// Copies new pages into chunks; returns the future place of each.
    fn gather(
        &self,
        file: &Arc<File>,
        new: &[(usize, PageHash)],
        bytes: &[u8],
    ) -> Result<Vec<Pending>, WriteError> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let page_bytes = file.page_size.bytes();
        let new_bytes = new.len() * page_bytes;
        self.meters.new.add_many(new.len() as u64, new_bytes as u64);
        let common = &self.gatherers[(file.page_size.log2() as usize - 10).min(PAGE_SIZES - 1)];
        let mut gatherer = lock(&file.gatherer);
        let own = gatherer.is_some() || new_bytes >= OWN_CHUNK_BYTES_MIN && self.may_gather(file);
        if !own {
            drop(gatherer);
            gatherer = lock(common);
        }
        let mut places = Vec::with_capacity(new.len());
        for (position, hash) in new {
            let page = &bytes[position * page_bytes..(position + 1) * page_bytes];
            let open =
                gatherer.get_or_insert_with(|| Box::new(PageGatherer::new(file.page_size, &self.buffers)));
            places.push(open.push(page, *hash));
            if open.is_full()
                && let Some(full) = gatherer.take()
            {
                self.pipeline()?.submit(full.into_chunk())?;
            }
        }
        if own && gatherer.is_none() {
            self.gathers_no_more(file);
        }
        Ok(places)
    }

    fn may_gather(&self, file: &Arc<File>) -> bool {
        let mut gathering = lock(&self.gathering);
        let may = gathering.len() < self.budget.gathering_files;
        if may {
            gathering.push(Arc::clone(file));
        }
        may
    }

    pub(super) fn gathers_no_more(&self, file: &Arc<File>) {
        lock(&self.gathering).retain(|other| !Arc::ptr_eq(other, file));
    }

    /// The leaf of the base that leaf `leaf` of the file is compared with.
    pub(super) fn base_leaf(&self, file: &File, leaf: u32) -> Result<Option<Arc<BaseLeaf>>, WriteError> {
        let inner = lock(&file.inner);
        if let Some(known) = inner.base_in_memory(leaf) {
            return Ok(known);
        }
        let Some(base_file) = inner.base.clone() else { return Ok(None) };
        drop(inner);
        let Some(base) = &self.base else { return Ok(None) };
        Ok(readable(&self.meters, base.leaf(&base_file, leaf))?.flatten().map(Arc::new))
    }

    /// Records what was found about pages of a leaf. A leaf that this completes then waits for its chunks.
    pub(super) fn record(
        &self,
        file: &Arc<File>,
        leaf: u32,
        base: Option<Arc<BaseLeaf>>,
        changes: Vec<(u32, Change)>,
    ) -> Result<(), WriteError> {
        let mut inner = lock(&file.inner);
        if inner.state != FileState::Open {
            let path = inner.spec.path.clone();
            return Err(WriteError::File { path, problem: FileProblem::NotOpen });
        }
        let slot = inner.slot(leaf);
        if let Slot::Empty = slot {
            *slot = Slot::Open(Box::new(OpenLeaf::new(base.clone())));
        }
        match slot {
            Slot::Open(open) => {
                for (page, change) in changes {
                    open.set(page, change);
                }
                if open.is_complete() {
                    self.close_leaf(slot, PAGES_PER_LEAF);
                }
            }
            Slot::Closed(_) | Slot::Empty => {
                let late = changes.into_iter().map(|(page, change)| {
                    let change = match (change, base_entry(base.as_deref(), page)) {
                        // The base's entry may differ from that of the closed leaf, so it is given in full.
                        (Change::Same, Some(entry)) => Change::Known(entry),
                        (change, _) => change,
                    };
                    (page as u16, change)
                });
                inner.late.entry(leaf).or_default().extend(late);
            }
        }
        Ok(())
    }
}

pub(super) fn base_entry(base: Option<&BaseLeaf>, page: u32) -> Option<PageEntry> {
    base?.entries.get(page as usize).copied()
}

/// Whether all bytes are zero. Checks a block of 256 bytes at a time, up to the first that has another.
pub(super) fn is_zero(page: &[u8]) -> bool {
    page.chunks(256).all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
}
