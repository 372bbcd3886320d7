//! The restore side: a backup's head, items and page maps, and the pages themselves.
//!
//! Nothing is trusted before its seal is opened, its lengths are checked and its hash is computed again. The
//! signed outcome has the hashes of the roots; the roots have those of the items, the items those of the
//! leaves, and the leaves those of the pages.

use std::sync::{Arc, Mutex};

use holdfast_pipe::lock::lock;

use crate::{
    error::{Damage, RepoError},
    format::{
        columns::PageEntry,
        item::{Item, ItemMap, ItemPath, RootEntry, decode_items, decode_roots},
        manifest::Head,
        names::{ChunkRef, RunNo},
        pack::ChunkKind,
        page_map::LeafRef,
    },
    log::history::History,
    repo::Repo,
};

pub(crate) mod cache;
pub(crate) mod catalog;
mod file;
mod pages;
pub(crate) mod rows;
mod source;

use cache::Cache;
pub use pages::{ChunkPages, FetchOptions, PageWant, WholeChunk};
pub use rows::{ReadRows, RowsRead, TableReader};
pub use source::ChunkSource;
pub(crate) use source::LoadedLeaf;

/// Cache of items and leaves for a restore.
const CACHE_BYTES: usize = 32 << 20;
/// Cache of items that have been read and checked.
pub(crate) const ITEM_CACHE_BYTES: usize = 8 << 20;

/// Size of all caches of a [`Backup`]: maps, items and pack directories, however much is read.
pub const CACHES_BYTES: usize = CACHE_BYTES + ITEM_CACHE_BYTES + catalog::CACHE_BYTES;

/// A backup that stands, opened for reading. Shared between threads.
pub struct Backup {
    source: Arc<ChunkSource>,
    run: RunNo,
    head: Head,
    roots: Vec<RootEntry>,
    /// Chunks of the item table that have been read and checked.
    items: Mutex<Cache<ChunkRef, Vec<Item>>>,
}

impl Backup {
    /// Opens the backup of run `run`.
    pub fn open(repo: &Arc<Repo>, history: &History, run: RunNo) -> Result<Self, RepoError> {
        let source = ChunkSource::new(Arc::clone(repo), history, CACHE_BYTES)?;
        Self::open_with(Arc::new(source), history, run)
    }

    /// Opens the backup of run `run` with an existing source of chunks.
    pub fn open_with(source: Arc<ChunkSource>, history: &History, run: RunNo) -> Result<Self, RepoError> {
        let head = source.head(history, run)?;
        let mut roots: Vec<RootEntry> = Vec::new();
        for place in &head.roots {
            let chunk = place.chunk();
            let plain = source.small_chunk(chunk, place.page_hash(), ChunkKind::Roots)?;
            let entries = decode_roots(&plain).map_err(|error| source.damaged(chunk, Damage::from(error)))?;
            roots.extend(entries);
        }
        if !roots.is_sorted_by(|a, b| a.first_path < b.first_path) {
            let path = source.log().outcome(run);
            return Err(RepoError::malformed(path, "its roots are not in path order"));
        }
        Ok(Self { source, run, head, roots, items: Mutex::new(Cache::new(ITEM_CACHE_BYTES)) })
    }

    /// Opens another backup of the same log, to be read side by side
    /// with this one: the two share their caches.
    pub fn beside(&self, history: &History, run: RunNo) -> Result<Self, RepoError> {
        Self::open_with(Arc::clone(&self.source), history, run)
    }

    /// The run that made it.
    #[must_use]
    pub fn run(&self) -> RunNo {
        self.run
    }

    /// The manifest head.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The source of its chunks.
    #[must_use]
    pub fn source(&self) -> &Arc<ChunkSource> {
        &self.source
    }

    /// The chunks of the item table.
    #[must_use]
    pub fn roots(&self) -> &[RootEntry] {
        &self.roots
    }

    /// How many items it has.
    #[must_use]
    pub fn item_count(&self) -> u64 {
        self.roots.iter().map(|root| u64::from(root.item_count)).sum()
    }

    /// The items in one chunk of the item table.
    pub fn items_of(&self, root: &RootEntry) -> Result<Arc<Vec<Item>>, RepoError> {
        if let Some(items) = lock(&self.items).get(&root.chunk) {
            return Ok(items);
        }
        let plain = self.source.small_chunk(root.chunk, root.hash, ChunkKind::Items)?;
        let damaged = |damage| self.source.damaged(root.chunk, damage);
        let items = decode_items(&plain).map_err(|error| damaged(Damage::from(error)))?;
        if items.len() != root.item_count as usize
            || items.first().is_none_or(|item| item.path != root.first_path)
        {
            return Err(damaged(Damage::NotAsRecorded));
        }
        let items = Arc::new(items);
        // In memory, items take about three times their bytes in a chunk.
        lock(&self.items).insert(root.chunk, Arc::clone(&items), plain.len() * 3);
        Ok(items)
    }

    /// All items in path order, loaded one chunk of the item table at a time.
    pub fn items(&self) -> impl Iterator<Item = Result<Item, RepoError>> + '_ {
        self.roots.iter().flat_map(|root| {
            let (items, error) = match self.items_of(root) {
                Ok(items) => (items, None),
                Err(error) => (Arc::default(), Some(Err(error))),
            };
            (0..items.len()).filter_map(move |position| items.get(position).cloned().map(Ok)).chain(error)
        })
    }

    /// The item with this path.
    pub fn find(&self, path: &ItemPath) -> Result<Option<Item>, RepoError> {
        let after = self.roots.partition_point(|root| root.first_path <= *path);
        let Some(root) = after.checked_sub(1).and_then(|position| self.roots.get(position)) else {
            return Ok(None);
        };
        let items = self.items_of(root)?;
        let position = items.binary_search_by(|item| item.path.cmp(path));
        Ok(position.ok().and_then(|position| items.get(position).cloned()))
    }

    /// Where the pages from 4096 × `leaf` on of an item are stored now: at most 4,096 entries, none beyond
    /// the end of the item.
    pub fn leaf(&self, item: &Item, leaf: u64) -> Result<Vec<PageEntry>, RepoError> {
        let position = usize::try_from(leaf).unwrap_or(usize::MAX);
        match &item.map {
            ItemMap::Inline(entries) if leaf == 0 => {
                let mut entries = entries.clone();
                self.source.resolve_entries(&mut entries);
                Ok(entries)
            }
            ItemMap::Leaves(leaves) => match leaves.get(position) {
                Some(leaf_ref) => self.full_leaf(item, leaf, *leaf_ref),
                None => Ok(Vec::new()),
            },
            ItemMap::Inline(_) | ItemMap::Table(_) | ItemMap::Definition(_) => Ok(Vec::new()),
        }
    }

    fn full_leaf(&self, item: &Item, leaf: u64, leaf_ref: LeafRef) -> Result<Vec<PageEntry>, RepoError> {
        let loaded = self.source.load_leaf(leaf_ref)?;
        let pages = u64::from(crate::format::page_map::PAGES_PER_LEAF);
        let expected = item.page_count().saturating_sub(leaf.saturating_mul(pages)).min(pages);
        if loaded.entries.len() as u64 == expected {
            Ok(loaded.entries)
        } else {
            let what = "a leaf does not map as many pages as its file has there";
            Err(self.source.damaged(leaf_ref.chunk, Damage::Malformed { what }))
        }
    }
}
