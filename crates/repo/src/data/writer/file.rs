//! A file being written: its leaves, and pages that come late.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use holdfast_formats::PageSize;

use super::{
    base::BaseFile,
    chunk::PageGatherer,
    leaf::{BaseLeaf, Change, LeafSlot, OpenLeaf},
};
use crate::format::{
    item::{FileRole, ItemMap, ItemPath, ItemType, Tablespace},
    page_map::PAGES_PER_LEAF,
};

/// A file that is about to be given.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// Its path below the data directory.
    pub path: ItemPath,
    /// A file, or the captured redo.
    pub item_type: ItemType,
    /// Its role for the server.
    pub role: FileRole,
    /// Permission bits, at most 0777.
    pub mode: u16,
    /// Size of the pages that it is cut into.
    pub page_size: PageSize,
    /// Set for tablespaces; also finds the base of a renamed one.
    pub tablespace: Option<Tablespace>,
    /// Absolute path of the file, if it is not below the data directory.
    pub outside: Option<Vec<u8>>,
}

/// A file of one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub usize);

#[derive(Debug)]
pub(super) struct File {
    pub(super) page_size: PageSize,
    pub(super) inner: Mutex<FileInner>,
    /// Gathers pages of this file alone.
    pub(super) gatherer: Mutex<Option<Box<PageGatherer>>>,
}

#[derive(Debug)]
pub(super) struct FileInner {
    pub(super) spec: Box<FileSpec>,
    pub(super) state: FileState,
    pub(super) base: Option<Arc<BaseFile>>,
    pub(super) leaves: Vec<Slot>,
    /// Pages that came again after their leaf was closed, by leaf.
    pub(super) late: BTreeMap<u32, Vec<(u16, Change)>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileState {
    Open,
    /// Ended with this size; its pages are in the leaves.
    Ended(u64),
    /// Ended with this size; its page entries are these columns.
    Small(u64, Box<[u8]>),
    Dropped,
}

#[derive(Debug, Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    Open(Box<OpenLeaf>),
    Closed(LeafSlot),
}

impl File {
    pub(super) fn new(spec: FileSpec, base: Option<BaseFile>) -> Self {
        Self {
            page_size: spec.page_size,
            inner: Mutex::new(FileInner {
                spec: Box::new(spec),
                state: FileState::Open,
                base: base.map(Arc::new),
                leaves: Vec::new(),
                late: BTreeMap::new(),
            }),
            gatherer: Mutex::default(),
        }
    }
}

impl FileInner {
    /// Whether the base has leaves for this file, however small the file is.
    pub(super) fn has_leaves_in_base(&self) -> bool {
        self.base.as_ref().is_some_and(|base| matches!(base.item.map, ItemMap::Leaves(_)))
    }

    /// What the pages of an open leaf are compared with; `None` if the leaf is not in memory.
    pub(super) fn base_in_memory(&self, leaf: u32) -> Option<Option<Arc<BaseLeaf>>> {
        match self.leaves.get(leaf as usize) {
            Some(Slot::Open(open)) => Some(open.base.clone()),
            _ => None,
        }
    }

    /// The slot of a leaf, created if needed.
    pub(super) fn slot(&mut self, leaf: u32) -> &mut Slot {
        let position = leaf as usize;
        if self.leaves.len() <= position {
            self.leaves.resize_with(position + 1, Slot::default);
        }
        &mut self.leaves[position]
    }
}

/// The leaf that a page is in, and the page's position there.
pub(super) fn leaf_of(page: u64) -> (u32, u32) {
    let per_leaf = u64::from(PAGES_PER_LEAF);
    (u32::try_from(page / per_leaf).unwrap_or(u32::MAX), (page % per_leaf) as u32)
}
