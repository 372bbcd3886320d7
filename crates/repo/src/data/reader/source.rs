//! Fetches chunks: resolves them through the moves of all prunes, then reads, opens and decompresses them.
//!
//! A chunk *where it is now* has been resolved through the moves known at that time. If a prune has moved it
//! since, readers find it again ([`Moves`]); writers do not, and must plan anew.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use holdfast_pipe::{
    ObjectKey, PageHash, TAG_BYTES,
    codec::{decompress, decompress_patch},
    lock::lock,
};

use super::{
    cache::Cache,
    catalog::{self, Catalog, OwnDirectory},
};
use crate::{
    data::local_maps::LocalMaps,
    error::{Damage, RepoError},
    format::{
        columns::PageEntry,
        manifest::Head,
        names::{ChunkRef, LogName, PackId, RunNo},
        pack::{ChunkKind, ChunkRow, Directory, PackRows},
        page_map::{Leaf, LeafRef, leaf_of_chunk},
        place::{HEADER_BYTES, ObjectKind, Place},
        rows::{RowEntry, RowLeafRef, decode_leaf, totals_of},
        wire::FormatError,
    },
    log::{
        history::{History, Prunes},
        moves::Moves,
    },
    repo::Repo,
};

const KEYS_MAX: usize = 4_096;
/// Cache of chunks that others are patches on: as many as a few threads read at a time.
pub(crate) const PREFIXES_BYTES: usize = 8 << 20;

/// The chunks of one log. Shared between threads.
pub struct ChunkSource {
    repo: Arc<Repo>,
    log: LogName,
    moves: Moves,
    catalog: Catalog,
    keys: Mutex<HashMap<PackId, Arc<ObjectKey>>>,
    /// The page maps that a writer has kept on its host.
    local: Option<Arc<LocalMaps>>,
    /// Plain chunks of items and leaves, by where they are now and by their hash.
    chunks: Mutex<Cache<(ChunkRef, PageHash), Vec<u8>>>,
    /// Plain chunks that others are patches on, by where they are now.
    prefixes: Mutex<Cache<ChunkRef, Vec<u8>>>,
}

/// A loaded leaf, resolved to where everything is now.
#[derive(Debug)]
pub(crate) struct LoadedLeaf {
    /// Every page, where its chunk is now.
    pub(crate) entries: Vec<PageEntry>,
    /// Pages whose chunks have moved.
    pub(crate) moved: Vec<u32>,
    /// Where the leaf is now.
    pub(crate) leaf: LeafRef,
    /// For an overlay: the full leaf below it, as the overlay names it and
    /// where that is now, and the pages it patches.
    pub(crate) overlay: Option<(LeafRef, LeafRef, Vec<u32>)>,
}

impl ChunkSource {
    /// Reads the chunks of the log of `history`; caches at most `cache_bytes` of items and leaves.
    pub fn new(repo: Arc<Repo>, history: &History, cache_bytes: usize) -> Result<Self, RepoError> {
        let prunes = history.prunes(&repo)?;
        Ok(Self::with_prunes(repo, history, prunes, cache_bytes))
    }

    pub(crate) fn with_prunes(
        repo: Arc<Repo>,
        history: &History,
        prunes: Prunes,
        cache_bytes: usize,
    ) -> Self {
        Self {
            repo,
            log: history.log().clone(),
            moves: Moves::new(history, prunes),
            catalog: Catalog::new(),
            keys: Mutex::default(),
            local: None,
            chunks: Mutex::new(Cache::new(cache_bytes)),
            prefixes: Mutex::new(Cache::new(PREFIXES_BYTES)),
        }
    }

    /// Reads page maps from what a writer has kept, where that has them.
    #[must_use]
    pub fn with_local(self, local: Option<Arc<LocalMaps>>) -> Self {
        Self { local, ..self }
    }

    /// The manifest head of a backup.
    pub(crate) fn head(&self, history: &History, run: RunNo) -> Result<Head, RepoError> {
        let json = match self.local.as_ref().and_then(|local| local.head(history, run)) {
            Some(head) => head.to_vec(),
            None => history.head(&self.repo, run)?,
        };
        Head::decode(&json).map_err(|error| {
            RepoError::damaged(self.log.outcome(run), Damage::unknown("a manifest head", &error))
        })
    }

    /// The repository.
    #[must_use]
    pub fn repo(&self) -> &Arc<Repo> {
        &self.repo
    }

    /// The log that the chunks belong to.
    #[must_use]
    pub fn log(&self) -> &LogName {
        &self.log
    }

    /// What prunes have declared dead or moved, as known so far.
    #[must_use]
    pub fn prunes(&self) -> Arc<Prunes> {
        self.moves.prunes()
    }

    pub(crate) fn moves(&self) -> &Moves {
        &self.moves
    }

    /// Where a chunk is now, as known so far.
    #[must_use]
    pub fn resolve(&self, chunk: ChunkRef) -> ChunkRef {
        self.prunes().resolve(chunk)
    }

    /// Size and chunks of a pack.
    pub fn pack(&self, pack: PackId) -> Result<Arc<PackRows>, RepoError> {
        self.catalog.rows(&self.repo, &self.log, pack)
    }

    /// Size and chunks of a pack from its own directory, which counts instead of the index from now on.
    pub(crate) fn confirmed_pack(&self, pack: PackId) -> Result<Arc<PackRows>, RepoError> {
        self.catalog.confirm(&self.repo, &self.log, pack)
    }

    /// Takes over the rows of a pack's own directory, which the caller has read.
    pub(crate) fn take_own(&self, pack: PackId, own: PackRows) -> Result<(), RepoError> {
        self.catalog.take_own(&self.repo, &self.log, pack, own)
    }

    /// Packs whose own directory was found to differ from the index.
    pub(crate) fn misled(&self) -> BTreeSet<PackId> {
        self.catalog.misled()
    }

    /// Whether `said`, by which `pack` was read, differs from the pack's own
    /// directory: then another attempt is worthwhile.
    pub(super) fn was_misled(&self, pack: PackId, said: &PackRows) -> Result<bool, RepoError> {
        match self.confirmed_pack(pack) {
            Ok(own) => Ok(*own != *said),
            Err(error) if error.is_of_the_object() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Calls `read`. If that fails because of what is in `pack`, and the
    /// index was wrong about it, calls it once more.
    pub(super) fn past_the_index<T>(
        &self,
        pack: PackId,
        read: &mut dyn FnMut() -> Result<T, RepoError>,
    ) -> Result<T, RepoError> {
        // The pack may be gone: then `read` has to look elsewhere.
        let said = match self.pack(pack) {
            Err(error) if error.is_of_the_object() => None,
            said => Some(said?),
        };
        match (read(), said) {
            (Err(error), Some(said))
                if error.is_of_the_object() && !error.is_missing() && self.was_misled(pack, &said)? =>
            {
                read()
            }
            (done, _) => done,
        }
    }

    /// Size and directory of a pack, read from the pack itself.
    pub fn directory(&self, pack: PackId) -> Result<(u64, Directory), RepoError> {
        let own = self.directory_of(pack, None)?;
        Ok((own.size_bytes, own.directory))
    }

    /// Like [`Self::directory`], given the size if a listing has told it. Caches the key of the pack.
    pub(crate) fn directory_of(
        &self,
        pack: PackId,
        size_bytes: Option<u64>,
    ) -> Result<OwnDirectory, RepoError> {
        let own = catalog::read_directory(&self.repo, &self.log, pack, size_bytes)?;
        self.know_key(pack, Arc::clone(&own.key));
        Ok(own)
    }

    pub(crate) fn place(&self, pack: PackId) -> Place<'_> {
        Place { log: &self.log, kind: ObjectKind::Pack, run: pack.run, part: pack.part }
    }

    pub(crate) fn key(&self, pack: PackId) -> Result<Arc<ObjectKey>, RepoError> {
        if let Some(key) = lock(&self.keys).get(&pack) {
            return Ok(Arc::clone(key));
        }
        let place = self.place(pack);
        let mut header = [0; HEADER_BYTES];
        let read = self.repo.store().read_exact_at(&place.path(), 0, &mut header);
        read.map_err(RepoError::of_needed)?;
        let key = Arc::new(self.repo.object_key(&place, &header)?);
        self.know_key(pack, Arc::clone(&key));
        Ok(key)
    }

    fn know_key(&self, pack: PackId, key: Arc<ObjectKey>) {
        let mut keys = lock(&self.keys);
        if keys.len() >= KEYS_MAX {
            keys.clear();
        }
        keys.insert(pack, key);
    }

    /// Opens a sealed chunk in place and decompresses it into `plain`.
    pub(crate) fn open_chunk(
        &self,
        chunk: ChunkRef,
        row: &ChunkRow,
        key: &ObjectKey,
        sealed: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> Result<(), RepoError> {
        let broken = |what| self.damaged(chunk, Damage::Sealed { what });
        let context = row.seal_context(chunk.ordinal);
        let opened = key.open(context, sealed).map_err(|_| broken("its seal"))?;
        let plain_len = row.plain_len as usize;
        let made = match row.base {
            None => decompress(row.codec, opened, plain_len, plain),
            Some(base) => decompress_patch(&self.prefix(chunk, base)?, opened, plain_len, plain),
        };
        made.map_err(|_| broken("its compression"))
    }

    /// Plain bytes of `base`, as stored, on which `chunk` is a patch.
    fn prefix(&self, chunk: ChunkRef, base: ChunkRef) -> Result<Arc<Vec<u8>>, RepoError> {
        let known = lock(&self.prefixes).get(&self.resolve(base));
        if let Some(plain) = known {
            return Ok(plain);
        }
        let read = &mut |base: ChunkRef| {
            self.past_the_index(base.pack, &mut || {
                let (row, mut sealed) = self.read_sealed(base)?;
                // Checked before anything is opened: patches on patches could recurse for ever.
                if row.base.is_some() || row.kind != ChunkKind::Rows {
                    let what = "it is a patch on a chunk that is not a full chunk of rows";
                    return Err(self.damaged(chunk, Damage::Malformed { what }));
                }
                let mut plain = Vec::new();
                self.open_chunk(base, &row, &*self.key(base.pack)?, &mut sealed, &mut plain)?;
                Ok(plain)
            })
        };
        let plain = Arc::new(self.moves.follow(&self.repo, base, read)?);
        lock(&self.prefixes).insert(self.resolve(base), Arc::clone(&plain), plain.len());
        Ok(plain)
    }

    /// Plain bytes of a chunk, if it was the base of a patch recently.
    pub(crate) fn known_prefix(&self, chunk: ChunkRef) -> Option<Arc<Vec<u8>>> {
        lock(&self.prefixes).get(&self.resolve(chunk))
    }

    /// Checks that the pages of a plain chunk are those that the directory of its pack names.
    pub(crate) fn compare_pages(
        &self,
        chunk: ChunkRef,
        row: &ChunkRow,
        plain: &[u8],
        hashes: &[PageHash],
    ) -> Result<(), RepoError> {
        let is_same = match row.kind {
            ChunkKind::Pages(size) => {
                let key = self.repo.hash_key()?;
                plain.chunks_exact(size.bytes()).map(|page| key.hash(page)).eq(hashes.iter().copied())
            }
            _ => hashes.is_empty(),
        };
        let what = "the hash of a page differs from that in the directory";
        if is_same { Ok(()) } else { Err(self.damaged(chunk, Damage::Malformed { what })) }
    }

    pub(crate) fn damaged(&self, chunk: ChunkRef, damage: Damage) -> RepoError {
        let object = format!("{}, chunk {}", self.log.pack(chunk.pack), chunk.ordinal);
        RepoError::damaged(object, damage)
    }

    /// The row of a chunk, and the offset at which the chunk begins.
    pub(crate) fn row(&self, rows: &PackRows, chunk: ChunkRef) -> Result<(ChunkRow, u64), RepoError> {
        rows.chunk(chunk.ordinal)
            .map(|(row, offset)| (*row, offset))
            .ok_or_else(|| self.damaged(chunk, Damage::Malformed { what: "the pack has no such chunk" }))
    }

    fn read_sealed(&self, chunk: ChunkRef) -> Result<(ChunkRow, Vec<u8>), RepoError> {
        let (row, offset) = self.row(&*self.pack(chunk.pack)?, chunk)?;
        let mut sealed = vec![0; row.sealed_len as usize];
        let read = self.repo.store().read_exact_at(&self.log.pack(chunk.pack), offset, &mut sealed);
        read.map_err(RepoError::of_needed)?;
        Ok((row, sealed))
    }

    /// Reads one chunk where it is now, without the cache.
    pub(crate) fn read_chunk(&self, chunk: ChunkRef) -> Result<(ChunkRow, Vec<u8>), RepoError> {
        self.past_the_index(chunk.pack, &mut || {
            let (row, mut sealed) = self.read_sealed(chunk)?;
            let mut plain = Vec::new();
            self.open_chunk(chunk, &row, &*self.key(chunk.pack)?, &mut sealed, &mut plain)?;
            Ok((row, plain))
        })
    }

    /// Reads chunks of one pack where they are now, in the order of their place in the pack, in one read.
    pub(crate) fn read_neighbours(&self, chunks: &[ChunkRef]) -> Result<Vec<(ChunkRow, Vec<u8>)>, RepoError> {
        let (Some(first), Some(last)) = (chunks.first(), chunks.last()) else { return Ok(Vec::new()) };
        let rows = self.pack(first.pack)?;
        let (_, begin) = self.row(&rows, *first)?;
        let (last_row, last_begin) = self.row(&rows, *last)?;
        let len = (last_begin + u64::from(last_row.sealed_len)).saturating_sub(begin);
        let mut sealed = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = self.repo.store().read_exact_at(&self.log.pack(first.pack), begin, &mut sealed);
        read.map_err(RepoError::of_needed)?;
        let key = self.key(first.pack)?;
        let open = |chunk: &ChunkRef| {
            let (row, offset) = self.row(&rows, *chunk)?;
            let from = usize::try_from(offset.saturating_sub(begin)).unwrap_or(usize::MAX);
            let bytes = sealed.get_mut(from..from.saturating_add(row.sealed_len as usize));
            let out_of_order = Damage::Malformed { what: "it is not next to its neighbours" };
            let bytes = bytes.ok_or_else(|| self.damaged(*chunk, out_of_order))?;
            let mut plain = Vec::new();
            self.open_chunk(*chunk, &row, &key, bytes, &mut plain)?;
            Ok((row, plain))
        };
        chunks.iter().map(open).collect()
    }

    /// Reads one chunk without the cache, even if it was moved since `chunk` was looked up.
    pub(crate) fn follow_chunk(&self, chunk: ChunkRef) -> Result<(ChunkRow, Vec<u8>), RepoError> {
        self.moves.follow(&self.repo, chunk, &mut |chunk| self.read_chunk(chunk))
    }

    /// Reads one chunk where it is now: returns its row and its compressed bytes, and puts the decompressed
    /// ones in `plain`. The pack's own directory counts, not the index.
    pub(crate) fn read_compressed(
        &self,
        chunk: ChunkRef,
        plain: &mut Vec<u8>,
    ) -> Result<(ChunkRow, Vec<u8>), RepoError> {
        self.confirmed_pack(chunk.pack)?;
        let (row, mut bytes) = self.read_sealed(chunk)?;
        self.open_chunk(chunk, &row, &*self.key(chunk.pack)?, &mut bytes, plain)?;
        // Opened in place: of the seal, the tag is left at the end.
        bytes.truncate(bytes.len().saturating_sub(TAG_BYTES));
        Ok((row, bytes))
    }

    /// Plain bytes of a chunk of items, leaves or roots, verified to have this hash. `chunk` may be as stored
    /// or where it is now.
    pub(crate) fn small_chunk(
        &self,
        chunk: ChunkRef,
        hash: PageHash,
        kind: ChunkKind,
    ) -> Result<Arc<Vec<u8>>, RepoError> {
        if let Some(plain) = lock(&self.chunks).get(&(self.resolve(chunk), hash)) {
            return Ok(plain);
        }
        if let Some(plain) = self.local.as_ref().and_then(|local| local.get(hash)) {
            return Ok(self.keep_chunk(self.resolve(chunk), hash, plain));
        }
        let read = self.follow_chunk(chunk);
        let chunk = self.resolve(chunk);
        let (row, plain) = match read {
            Err(RepoError::NotReadable { .. }) if self.local.is_some() => {
                return Err(self.damaged(chunk, Damage::NotRemembered));
            }
            read => read?,
        };
        if row.kind != kind {
            let what = "it is not of the kind that the reference to it names";
            return Err(self.damaged(chunk, Damage::Malformed { what }));
        }
        if !self.is_page(&plain, hash)? {
            return Err(self.damaged(chunk, Damage::NotAsRecorded));
        }
        Ok(self.keep_chunk(chunk, hash, plain))
    }

    fn keep_chunk(&self, chunk: ChunkRef, hash: PageHash, plain: Vec<u8>) -> Arc<Vec<u8>> {
        let plain = Arc::new(plain);
        let bytes = plain.len() + 64;
        lock(&self.chunks).insert((chunk, hash), Arc::clone(&plain), bytes);
        plain
    }

    fn leaf(&self, leaf: LeafRef) -> Result<Leaf, RepoError> {
        let plain = self.small_chunk(leaf.chunk, leaf.hash, ChunkKind::Leaves)?;
        leaf_of_chunk(&plain, leaf.slot)
            .and_then(Leaf::decode)
            .map_err(|error| self.damaged(leaf.chunk, Damage::from(error)))
    }

    /// The chunks of rows that a leaf lists, resolved to where they are now.
    pub(crate) fn row_leaf(&self, leaf: &RowLeafRef) -> Result<Vec<RowEntry>, RepoError> {
        let plain = self.small_chunk(leaf.chunk, leaf.hash, ChunkKind::RowLeaf)?;
        let damaged = |damage| self.damaged(leaf.chunk, damage);
        let mut entries = decode_leaf(&plain).map_err(|error| damaged(Damage::from(error)))?;
        if entries.len() != leaf.entries as usize || totals_of(&entries) != Ok(leaf.totals) {
            return Err(damaged(Damage::NotAsRecorded));
        }
        self.resolve_rows(&mut entries);
        Ok(entries)
    }

    /// Resolves every chunk of rows to where it is now.
    pub(crate) fn resolve_rows(&self, entries: &mut [RowEntry]) {
        let prunes = self.prunes();
        for entry in entries {
            entry.chunk = prunes.resolve(entry.chunk);
            entry.base = entry.base.map(|base| prunes.resolve(base));
        }
    }

    fn resolve_leaf(&self, leaf: LeafRef) -> LeafRef {
        LeafRef { chunk: self.resolve(leaf.chunk), ..leaf }
    }

    /// Loads a leaf with its overlay applied, and every chunk resolved to where it is now.
    pub(crate) fn load_leaf(&self, stored: LeafRef) -> Result<LoadedLeaf, RepoError> {
        let leaf = self.resolve_leaf(stored);
        let (mut entries, overlay) = match self.leaf(leaf)? {
            Leaf::Full(entries) => (entries, None),
            Leaf::Overlay(overlay) => {
                let damaged = |error: FormatError| self.damaged(leaf.chunk, Damage::from(error));
                let under = self.resolve_leaf(overlay.under);
                let Leaf::Full(full) = self.leaf(under)? else {
                    return Err(damaged(FormatError::rule("overlay", "lies on another overlay")));
                };
                let entries = overlay.apply(&full).map_err(damaged)?;
                let patched = overlay.patches.iter().map(|(page, _)| *page).collect();
                (entries, Some((overlay.under, under, patched)))
            }
        };
        let moved = self.resolve_entries(&mut entries);
        Ok(LoadedLeaf { entries, moved, leaf, overlay })
    }

    /// The full leaf below `stored`, where it is now; `None` if `stored` is a full leaf itself.
    pub(crate) fn under(&self, stored: LeafRef) -> Result<Option<LeafRef>, RepoError> {
        Ok(match self.leaf(self.resolve_leaf(stored))? {
            Leaf::Full(_) => None,
            Leaf::Overlay(overlay) => Some(self.resolve_leaf(overlay.under)),
        })
    }

    /// Resolves every chunk to where it is now; returns the positions of the entries that this changed.
    pub(crate) fn resolve_entries(&self, entries: &mut [PageEntry]) -> Vec<u32> {
        let mut moved = Vec::new();
        let prunes = self.prunes();
        for (position, entry) in entries.iter_mut().enumerate() {
            if let PageEntry::Stored(page) = entry {
                let chunk = prunes.resolve(page.chunk);
                if chunk != page.chunk {
                    page.chunk = chunk;
                    moved.push(position as u32);
                }
            }
        }
        moved
    }

    /// Whether `hash` is the hash of `bytes`.
    pub(crate) fn is_page(&self, bytes: &[u8], hash: PageHash) -> Result<bool, RepoError> {
        Ok(self.repo.hash_key()?.hash(bytes) == hash)
    }
}
