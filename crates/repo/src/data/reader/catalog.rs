//! Finds the rows of a pack: in the index of its run or, if that is missing or damaged, in the pack itself.
//!
//! An index part is sealed for a public key and signed by nobody, so it only says where to look. Where a
//! pack's own directory differs from the index, the directory counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock},
};

use holdfast_pipe::{ObjectKey, lock::lock};

use super::cache::Cache;
use crate::{
    error::{Damage, RepoError},
    format::{
        index,
        names::{Folder, LogName, PackId, RunNo},
        pack::{ChunkRow, Directory, PackRows, TRAILER_BYTES, Trailer, directory_seal_context},
        place::{HEADER_BYTES, ObjectKind, Place},
    },
    repo::Repo,
    store::{ObjectInfo, ahead::sized_in_order},
};

/// Maximum plain bytes of an index part.
const INDEX_BYTES_MAX: u64 = 1 << 25;
/// How much of the end of a pack is read first to get its directory: most directories are smaller.
const END_BYTES: u64 = 128 << 10;
pub(crate) const CACHE_BYTES: usize = 16 << 20;

/// The index parts of each run, by number.
type PartsOfRuns = BTreeMap<RunNo, Vec<(u32, ObjectInfo)>>;

/// The rows of packs, with as few as needed in memory.
pub(crate) struct Catalog {
    /// Existing index parts of each run, in order.
    parts: OnceLock<PartsOfRuns>,
    state: Mutex<State>,
}

struct State {
    rows: Cache<PackId, PackRows>,
    /// First and last pack part that each index part read so far lists; `None` if it could not be read.
    ranges: BTreeMap<(RunNo, u32), Option<(u32, u32)>>,
    /// Packs whose own directory has been read, so that the index no longer counts for them. The value says
    /// whether the index had differed.
    asked: BTreeMap<PackId, bool>,
}

impl Catalog {
    pub(crate) fn new() -> Self {
        let state = State { rows: Cache::new(CACHE_BYTES), ranges: BTreeMap::new(), asked: BTreeMap::new() };
        Self { parts: OnceLock::new(), state: Mutex::new(state) }
    }

    /// The rows of a pack.
    pub(crate) fn rows(&self, repo: &Repo, log: &LogName, pack: PackId) -> Result<Arc<PackRows>, RepoError> {
        if let Some(rows) = lock(&self.state).rows.get(&pack) {
            return Ok(rows);
        }
        let is_asked = lock(&self.state).asked.contains_key(&pack);
        if !is_asked && let Some(rows) = self.rows_of_index(repo, log, pack)? {
            return Ok(rows);
        }
        let rows = Arc::new(own_rows(repo, log, pack)?);
        self.keep(pack, &rows);
        Ok(rows)
    }

    /// The rows from the pack's own directory, which [`rows`](Self::rows) returns from now on.
    pub(crate) fn confirm(
        &self,
        repo: &Repo,
        log: &LogName,
        pack: PackId,
    ) -> Result<Arc<PackRows>, RepoError> {
        if lock(&self.state).asked.contains_key(&pack) {
            return self.rows(repo, log, pack);
        }
        let own = Arc::new(own_rows(repo, log, pack)?);
        let is_misled = self.rows(repo, log, pack)? != own;
        lock(&self.state).asked.entry(pack).or_insert(is_misled);
        self.keep(pack, &own);
        Ok(own)
    }

    /// Takes over the rows of a pack's own directory if they differ from those known so far.
    pub(crate) fn take_own(
        &self,
        repo: &Repo,
        log: &LogName,
        pack: PackId,
        own: PackRows,
    ) -> Result<(), RepoError> {
        if *self.rows(repo, log, pack)? != own {
            lock(&self.state).asked.insert(pack, true);
            self.keep(pack, &Arc::new(own));
        }
        Ok(())
    }

    /// Packs whose own directory was found to differ from the index.
    pub(crate) fn misled(&self) -> BTreeSet<PackId> {
        lock(&self.state).asked.iter().filter(|(_, is_misled)| **is_misled).map(|(pack, _)| *pack).collect()
    }

    fn keep(&self, pack: PackId, rows: &Arc<PackRows>) {
        lock(&self.state).rows.insert(pack, Arc::clone(rows), cached_bytes(rows));
    }

    /// Caches what an index part says of its packs, and returns the rows of `pack`. Reading continues with
    /// the packs after `pack`: if not all of the part can be kept, those stay.
    fn keep_from(&self, pack: PackId, mut listed: Vec<(u32, PackRows)>) -> Option<Arc<PackRows>> {
        let mut state = lock(&self.state);
        let State { rows: kept, asked, .. } = &mut *state;
        let id = |part| PackId { run: pack.run, part };
        listed.retain(|(part, _)| !asked.contains_key(&id(*part)));
        let before = listed.partition_point(|(part, _)| *part < pack.part);
        listed.rotate_left(before);
        let mut room_bytes = CACHE_BYTES;
        let fitting = listed.iter().take_while(|(_, rows)| {
            let left = room_bytes.checked_sub(cached_bytes(rows));
            room_bytes = left.unwrap_or(0);
            left.is_some()
        });
        let fitting = fitting.count();
        listed.truncate(fitting.max(1));
        let mut found = None;
        // The wanted pack is inserted last, so that it is evicted last.
        for (part, rows) in listed.into_iter().rev() {
            let rows = Arc::new(rows);
            kept.insert(id(part), Arc::clone(&rows), cached_bytes(&rows));
            found = (part == pack.part).then_some(rows);
        }
        found
    }

    fn rows_of_index(
        &self,
        repo: &Repo,
        log: &LogName,
        pack: PackId,
    ) -> Result<Option<Arc<PackRows>>, RepoError> {
        let parts = self.parts(repo, log)?;
        let Some(parts) = parts.get(&pack.run) else { return Ok(None) };
        let (mut low, mut high) = (0, parts.len());
        while low < high {
            let middle = low.midpoint(high);
            let (part, info) = &parts[middle];
            let key = (pack.run, *part);
            let known = lock(&self.state).ranges.get(&key).copied();
            let range = match known {
                // Known not to list the pack, or unreadable: no need to read it again.
                Some(None) => None,
                Some(Some(range)) if !(range.0..=range.1).contains(&pack.part) => Some(range),
                _ => {
                    let packs = match read_index_part(repo, log, key, info) {
                        Ok(packs) => packs,
                        Err(error) if error.is_of_the_object() => Vec::new(),
                        Err(error) => return Err(error),
                    };
                    let range = packs.first().zip(packs.last()).map(|(first, last)| (first.0, last.0));
                    lock(&self.state).ranges.insert(key, range);
                    let found = self.keep_from(pack, packs);
                    if found.is_some() {
                        return Ok(found);
                    }
                    range
                }
            };
            match range {
                Some((first, _)) if pack.part < first => high = middle,
                Some((_, last)) if pack.part > last => low = middle + 1,
                // The part is unreadable, or lacks the pack: the pack itself has to tell.
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn parts(&self, repo: &Repo, log: &LogName) -> Result<&PartsOfRuns, RepoError> {
        if let Some(parts) = self.parts.get() {
            return Ok(parts);
        }
        let mut parts = PartsOfRuns::new();
        for ((run, part), info) in repo.list_folder(log, Folder::Index)? {
            parts.entry(run).or_default().push((part, info));
        }
        Ok(self.parts.get_or_init(|| parts))
    }
}

fn cached_bytes(rows: &PackRows) -> usize {
    rows.rows().len() * (size_of::<ChunkRow>() + 8) + 64
}

/// The packs that one index part lists, with their rows.
pub(crate) type IndexedRows = Vec<(u32, PackRows)>;

/// Reads these index parts, several at a time if the store is remote; `each` gets what they list, in order.
pub(crate) fn read_index_parts<E: From<RepoError> + Send>(
    repo: &Repo,
    log: &LogName,
    parts: &[((RunNo, u32), ObjectInfo)],
    mut each: impl FnMut((RunNo, u32), Result<IndexedRows, RepoError>) -> Result<(), E>,
) -> Result<(), E> {
    sized_in_order(
        repo.store().reads_at_once(),
        parts,
        &|(_, info)| info.size_bytes,
        |(part, info)| Ok(read_index_part(repo, log, *part, info)),
        |(part, _), listed| each(*part, listed),
    )
}

fn read_index_part(
    repo: &Repo,
    log: &LogName,
    (run, part): (RunNo, u32),
    info: &ObjectInfo,
) -> Result<IndexedRows, RepoError> {
    let place = Place { log, kind: ObjectKind::Index, run, part };
    let plain = repo.read_known_object(&place, Some(info), INDEX_BYTES_MAX)?;
    let damaged = |error| RepoError::damaged(place, Damage::from(error));
    let packs = index::decode(&plain).map_err(damaged)?;
    packs
        .into_iter()
        .map(|pack| Ok((pack.part, PackRows::new(pack.size_bytes, pack.rows).map_err(damaged)?)))
        .collect()
}

/// The rows of a pack, from the pack itself.
fn own_rows(repo: &Repo, log: &LogName, pack: PackId) -> Result<PackRows, RepoError> {
    let own = read_directory(repo, log, pack, None)?;
    PackRows::new(own.size_bytes, own.directory.rows)
        .map_err(|error| RepoError::damaged(log.pack(pack), Damage::from(error)))
}

/// The directory of a pack, as read from the pack itself.
pub(crate) struct OwnDirectory {
    /// Bytes of the pack.
    pub(crate) size_bytes: u64,
    /// Where the directory begins in it.
    pub(crate) offset: u64,
    pub(crate) directory: Directory,
    /// The key of the pack, which its chunks are sealed with, too.
    pub(crate) key: Arc<ObjectKey>,
}

/// Reads the directory of a pack from the pack itself. `size_bytes` is its size, if a listing has told it.
pub(crate) fn read_directory(
    repo: &Repo,
    log: &LogName,
    pack: PackId,
    size_bytes: Option<u64>,
) -> Result<OwnDirectory, RepoError> {
    let place = Place { log, kind: ObjectKind::Pack, run: pack.run, part: pack.part };
    let path = place.path();
    let damaged = |error| RepoError::damaged(&path, Damage::from(error));
    let store = repo.store();
    let size_bytes = match size_bytes {
        Some(size_bytes) => size_bytes,
        None => store.head(&path).map_err(RepoError::of_needed)?.size_bytes,
    };
    let mut end = vec![0; size_bytes.saturating_sub(HEADER_BYTES as u64).min(END_BYTES) as usize];
    let end_at = size_bytes - end.len() as u64;
    store.read_exact_at(&path, end_at, &mut end).map_err(RepoError::of_needed)?;
    let too_short = || RepoError::malformed(&path, "it is too short for a pack");
    let (before, trailer) = end.split_last_chunk::<TRAILER_BYTES>().ok_or_else(too_short)?;
    let trailer = Trailer::decode(trailer, size_bytes).map_err(damaged)?;
    let mut header = [0; HEADER_BYTES];
    store.read_exact_at(&path, 0, &mut header).map_err(RepoError::of_needed)?;
    let key = repo.object_key(&place, &header)?;
    // The directory ends where the trailer begins.
    let mut sealed = match before.len().checked_sub(trailer.sealed_len as usize) {
        Some(begin) => before[begin..].to_vec(),
        None => {
            let mut sealed = vec![0; trailer.sealed_len as usize];
            store.read_exact_at(&path, trailer.offset, &mut sealed).map_err(RepoError::of_needed)?;
            sealed
        }
    };
    let plain = key
        .open(directory_seal_context(trailer.plain_len), &mut sealed)
        .map_err(|_| RepoError::damaged(&path, Damage::Sealed { what: "its directory" }))?;
    let directory = Directory::decode(plain).map_err(damaged)?;
    Ok(OwnDirectory { size_bytes, offset: trailer.offset, directory, key: Arc::new(key) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use holdfast_pipe::{Codec, Suite};

    use super::*;
    use crate::{
        format::{columns::CHUNKS_PER_PACK_MAX, index::IndexedPack, pack::ChunkKind},
        repo::tests::{log, new_repo},
        store::faulty::{FaultyStore, Op},
    };

    #[test]
    fn who_goes_through_the_packs_of_a_large_part_in_order_reads_it_once_for_each_cacheful() {
        const PACKS: u32 = 100;
        const CHUNKS_MAX: usize = CHUNKS_PER_PACK_MAX as usize;
        let (store, repo) = new_repo(Suite::None);
        let (log, run) = (log(), RunNo(1));
        let row = ChunkRow {
            kind: ChunkKind::Leaves,
            codec: Codec::None,
            plain_len: 100,
            sealed_len: 116,
            unit_count: 1,
            base: None,
        };
        let pack = |part| IndexedPack { part, size_bytes: 64 << 20, rows: vec![row; CHUNKS_MAX] };
        let packs: Vec<IndexedPack> = (0..PACKS).map(pack).collect();
        let secrets = repo.draw_secrets(&log, run).unwrap();
        let object = secrets.seal_index(0, &index::encode(&packs)).unwrap();
        repo.put(&Place { log: &log, kind: ObjectKind::Index, run, part: 0 }, &object).unwrap();

        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let counting = FaultyStore::new(Arc::new(store), move |call| {
            if call.op == Op::Read && call.path.contains("/index/") {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        let repo = Repo::open(Arc::new(counting), None).unwrap();
        let catalog = Catalog::new();
        let pass = || {
            for part in 0..PACKS {
                for _ in 0..2 {
                    let rows = catalog.rows(&repo, &log, PackId { run, part }).unwrap();
                    assert_eq!(rows.rows().len(), CHUNKS_MAX);
                }
            }
            reads.swap(0, Ordering::Relaxed)
        };
        let cacheful = CACHE_BYTES / (CHUNKS_MAX * (size_of::<ChunkRow>() + 8));
        assert!(cacheful < PACKS as usize && cacheful * 2 > PACKS as usize);
        assert_eq!(pass(), 2);
        assert!(pass() <= 2, "once more from the first");
    }
}
