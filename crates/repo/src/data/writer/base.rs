//! The base that a backup builds on: its items and leaves, looked up as they are needed.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use holdfast_formats::SpaceId;
use holdfast_pipe::PageHash;

use super::leaf::{BaseForm, BaseLeaf};
use crate::{
    data::reader::{Backup, ChunkSource, LoadedLeaf},
    error::RepoError,
    format::{
        item::{Item, ItemMap, ItemPath},
        names::{ChunkRef, Folder, PackId, RunNo},
        page_map::LeafRef,
        refs::{ChunkNeed, NeededPack},
    },
    log::{check_record::Checked, history::History},
};

/// A standing backup to compare with.
pub(super) struct Base {
    backup: Backup,
    /// What the base needs of each pack, from its refs.
    packs: HashMap<PackId, NeededPack>,
    /// Chunks of which less than a quarter is needed, where they are now.
    sparse: HashSet<ChunkRef>,
    /// Packs that the base needs, after all moves, and that are missing, have another size, or were found
    /// damaged by the last check that read them: nothing in them is referenced again.
    lost: HashSet<PackId>,
    /// Packs into which a prune has moved something of the base, and whose directories this key cannot read:
    /// nothing in them is referenced either.
    out_of_reach: HashSet<PackId>,
    /// For renamed files; built when a path is not found for the first time.
    by_space: OnceLock<HashMap<SpaceId, u32>>,
}

/// A file of the base.
#[derive(Debug)]
pub(super) struct BaseFile {
    pub(super) item: Item,
}

impl Base {
    pub(super) fn open(source: Arc<ChunkSource>, history: &History, run: RunNo) -> Result<Self, RepoError> {
        let refs = history.backup_refs(source.repo(), run)?;
        let present = source.repo().list_folder(source.log(), Folder::Packs)?;
        let checked = Checked::read(source.repo(), source.log(), &mut |_| {})?;
        let present = |pack: PackId| {
            let info = present.get(&(pack.run, pack.part)).filter(|_| !checked.is_bad(pack));
            info.map(|info| info.size_bytes)
        };
        let mut sparse = HashSet::new();
        let mut lost = HashSet::new();
        // Packs into which prunes have moved chunks since.
        let mut moved_to = HashSet::new();
        for pack in &refs.packs {
            let mut stays = false;
            for (ordinal, need) in pack.chunks.iter().enumerate().filter(|(_, need)| need.needed > 0) {
                let stored = ChunkRef { pack: pack.pack, ordinal: ordinal as u32 };
                let chunk = source.resolve(stored);
                if chunk == stored {
                    stays = true;
                } else {
                    moved_to.insert(chunk.pack);
                }
                if is_sparse(need) {
                    sparse.insert(chunk);
                }
            }
            if stays && present(pack.pack) != Some(pack.size_bytes) {
                lost.insert(pack.pack);
            }
        }
        let can_read = source.repo().can_read();
        let out_of_reach = moved_to.iter().copied().filter(|_| !can_read).collect();
        for pack in moved_to.into_iter().filter(|_| can_read) {
            if !is_whole(&source, pack, present(pack))? {
                lost.insert(pack);
            }
        }
        let packs = refs.packs.into_iter().map(|pack| (pack.pack, pack)).collect();
        let backup = Backup::open_with(source, history, run)?;
        Ok(Self { backup, packs, sparse, lost, out_of_reach, by_space: OnceLock::new() })
    }

    pub(super) fn backup(&self) -> &Backup {
        &self.backup
    }

    pub(super) fn is_sparse(&self, chunk: ChunkRef) -> bool {
        !self.sparse.is_empty() && self.sparse.contains(&chunk)
    }

    /// Whether the pack that holds the chunk now is intact and may be referenced.
    pub(super) fn is_there(&self, chunk: ChunkRef) -> bool {
        let is_in = |packs: &HashSet<PackId>| !packs.is_empty() && packs.contains(&chunk.pack);
        !is_in(&self.lost) && !is_in(&self.out_of_reach)
    }

    /// How many files the base has.
    pub(super) fn files(&self) -> u64 {
        self.backup.head().totals.files
    }

    /// How many chunks the packs have that the base needs.
    pub(super) fn chunks(&self) -> u64 {
        self.packs.values().map(|pack| pack.chunks.len() as u64).sum()
    }

    /// How many packs of the base are missing or damaged.
    pub(super) fn lost_packs(&self) -> usize {
        self.lost.len()
    }

    /// Size and units of a pack, from the base's refs.
    pub(super) fn pack(&self, pack: PackId) -> Option<&NeededPack> {
        self.packs.get(&pack)
    }

    /// The file with this path or, failing that, of this tablespace; `None` if its page size differs.
    pub(super) fn find(
        &self,
        path: &ItemPath,
        space: Option<SpaceId>,
        page_bytes: usize,
    ) -> Result<Option<BaseFile>, RepoError> {
        let mut item = self.backup.find(path)?;
        if let (None, Some(space)) = (&item, space) {
            item = self.find_space(space)?;
        }
        Ok(item.filter(|item| item.page_size.bytes() == page_bytes).map(|item| BaseFile { item }))
    }

    fn find_space(&self, space: SpaceId) -> Result<Option<Item>, RepoError> {
        let by_space = match self.by_space.get() {
            Some(by_space) => by_space,
            None => {
                let by_space = self.spaces()?;
                self.by_space.get_or_init(|| by_space)
            }
        };
        let Some(position) = by_space.get(&space) else { return Ok(None) };
        let Some(root) = self.backup.roots().get(*position as usize) else { return Ok(None) };
        Ok(self.backup.items_of(root)?.iter().find(|item| space_of(item) == Some(space)).cloned())
    }

    /// The chunk of the item table that each tablespace is in. Ids that occur twice (partitions of an import,
    /// copies under other names) are left out.
    fn spaces(&self) -> Result<HashMap<SpaceId, u32>, RepoError> {
        let mut spaces = HashMap::new();
        let mut twice = HashSet::new();
        for (position, root) in self.backup.roots().iter().enumerate() {
            for item in self.backup.items_of(root)?.iter() {
                if let Some(space) = space_of(item)
                    && spaces.insert(space, position as u32).is_some()
                {
                    twice.insert(space);
                }
            }
        }
        spaces.retain(|space, _| !twice.contains(space));
        Ok(spaces)
    }

    /// Leaf `leaf` of a file; `None` beyond the end of the file.
    pub(super) fn leaf(&self, file: &BaseFile, leaf: u32) -> Result<Option<BaseLeaf>, RepoError> {
        let source = self.backup.source();
        match &file.item.map {
            ItemMap::Inline(entries) if leaf == 0 => {
                let mut entries = entries.clone();
                let moved = source.resolve_entries(&mut entries);
                Ok(Some(BaseLeaf { entries, form: None, moved }))
            }
            ItemMap::Inline(_) | ItemMap::Table(_) | ItemMap::Definition(_) => Ok(None),
            ItemMap::Leaves(leaves) => match leaves.get(leaf as usize) {
                Some(stored) => Ok(Some(self.form(*stored, source.load_leaf(*stored)?))),
                None => Ok(None),
            },
        }
    }

    fn form(&self, stored: LeafRef, loaded: LoadedLeaf) -> BaseLeaf {
        let LoadedLeaf { entries, moved, leaf, overlay } = loaded;
        let form = match overlay {
            None => Some(BaseForm { leaf: Some(leaf), under: leaf, patched: Vec::new() }),
            // An overlay that names a full leaf that has moved is not referenced again, only built upon.
            Some((named, under, patched)) => {
                Some(BaseForm { leaf: (named == under).then_some(leaf), under, patched })
            }
        };
        debug_assert_eq!(leaf.slot, stored.slot);
        // A leaf that would keep a mostly dead chunk alive, or whose
        // pack may not be referenced, is written anew.
        let form = form.filter(|form| {
            let good = |chunk| !self.is_sparse(chunk) && self.is_there(chunk);
            good(form.under.chunk) && form.leaf.is_none_or(|leaf| good(leaf.chunk))
        });
        BaseLeaf { entries, form, moved }
    }

    /// Chunks of the item table by the hash of their plain bytes, where they are now.
    pub(super) fn item_chunks(&self) -> HashMap<PageHash, ChunkRef> {
        let source = self.backup.source();
        self.backup.roots().iter().map(|root| (root.hash, source.resolve(root.chunk))).collect()
    }
}

fn space_of(item: &Item) -> Option<SpaceId> {
    item.tablespace.map(|tablespace| tablespace.space)
}

/// Whether a pack that the base's refs do not list exists with its recorded size.
fn is_whole(source: &ChunkSource, pack: PackId, size_bytes: Option<u64>) -> Result<bool, RepoError> {
    let Some(size_bytes) = size_bytes else { return Ok(false) };
    match source.pack(pack) {
        Ok(rows) => Ok(rows.size_bytes == size_bytes),
        Err(error) if error.is_of_the_object() => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_sparse(need: &ChunkNeed) -> bool {
    need.needed > 0 && need.needed.saturating_mul(4) < need.units
}
