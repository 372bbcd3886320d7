//! Leaves being made: which of their 4,096 pages are new, and how the leaf is stored.
//!
//! The last change to a page counts. A leaf without changes is the base's leaf; few changes become an overlay
//! on the base's full leaf; anything else becomes a full leaf.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use holdfast_pipe::PageHash;

use super::chunk::Pending;
use crate::format::{
    columns::{PageEntry, StoredPage},
    names::RunNo,
    page_map::{LeafRef, Overlay, PAGES_PER_LEAF, PATCHES_MAX},
};

/// What was found out about a page.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// As in the base; undoes an earlier change.
    Same,
    /// Its entry is known.
    Known(PageEntry),
    /// The page is new, and its chunk may not be placed yet.
    New(PageHash, Pending),
}

impl Change {
    fn is_placed(&self) -> bool {
        match self {
            Self::Same | Self::Known(_) => true,
            Self::New(_, pending) => pending.ticket.is_placed(),
        }
    }
}

/// A leaf of the base, to be compared with and built upon. Its entries
/// are resolved to where the chunks are now.
#[derive(Debug)]
pub(super) struct BaseLeaf {
    /// The entry of every page.
    pub(super) entries: Vec<PageEntry>,
    /// How the leaf can be referenced; `None` if it cannot: it was inline, its
    /// chunk is mostly dead, or its pack is lost.
    pub(super) form: Option<BaseForm>,
    /// Pages whose stored entries name chunks that have moved since.
    pub(super) moved: Vec<u32>,
}

/// How a leaf of the base can be referenced.
#[derive(Debug)]
pub(super) struct BaseForm {
    /// The leaf itself; `None` if it would name something that has moved.
    pub(super) leaf: Option<LeafRef>,
    /// The full leaf: this one, or the one that it is an overlay on.
    pub(super) under: LeafRef,
    /// Pages that it patches, if it is an overlay.
    pub(super) patched: Vec<u32>,
}

/// An open leaf: which pages have been given, and what was found.
#[derive(Debug)]
pub(super) struct OpenLeaf {
    pub(super) base: Option<Arc<BaseLeaf>>,
    seen: [u64; PAGES_PER_LEAF as usize / 64],
    seen_count: u32,
    changes: Vec<(u16, Change)>,
}

impl OpenLeaf {
    pub(super) fn new(base: Option<Arc<BaseLeaf>>) -> Self {
        Self { base, seen: [0; PAGES_PER_LEAF as usize / 64], seen_count: 0, changes: Vec::new() }
    }

    /// Records what was found about page `page` of the leaf.
    pub(super) fn set(&mut self, page: u32, change: Change) {
        let (word, bit) = (&mut self.seen[page as usize / 64], 1 << (page % 64));
        let again = *word & bit != 0;
        if !again {
            *word |= bit;
            self.seen_count += 1;
        }
        if again || !matches!(change, Change::Same) {
            self.changes.push((page as u16, change));
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.seen_count == PAGES_PER_LEAF
    }

    /// A leaf that was closed before, with the changes found since.
    pub(super) fn amend(base: BaseLeaf, changes: Vec<(u16, Change)>) -> ClosedLeaf {
        let page_count = base.entries.len() as u32;
        let open = Self { changes, ..Self::new(Some(Arc::new(base))) };
        open.close(page_count)
    }

    /// The first page below `count` that was not given, or else the first from `count` on that was.
    pub(super) fn first_wrong(&self, count: u32) -> Option<u32> {
        (0..PAGES_PER_LEAF)
            .find(|page| (self.seen[*page as usize / 64] >> (page % 64) & 1 == 1) != (*page < count))
    }

    /// Closes the leaf, with the first `page_count` pages. No more pages come.
    pub(super) fn close(self, page_count: u32) -> ClosedLeaf {
        let changes: BTreeMap<u32, Change> =
            self.changes.into_iter().map(|(page, change)| (u32::from(page), change)).collect();
        let changes = changes.into_iter().filter(|(_, change)| !matches!(change, Change::Same)).collect();
        ClosedLeaf { base: self.base, page_count, changes }
    }
}

/// A leaf whose pages are all known, but not the places of all their chunks.
#[derive(Debug)]
pub(super) struct ClosedLeaf {
    base: Option<Arc<BaseLeaf>>,
    page_count: u32,
    /// One change for each page that differs, by page.
    changes: Vec<(u32, Change)>,
}

/// How a leaf is stored.
#[derive(Debug)]
pub(super) enum Sealed {
    /// The base's leaf, and the full leaf below it if it is an overlay.
    Base(LeafRef, Option<LeafRef>),
    /// An overlay on a full leaf of the base.
    Overlay(Overlay),
    /// A full leaf.
    Full,
}

impl ClosedLeaf {
    pub(super) fn change_count(&self) -> usize {
        self.changes.len()
    }

    /// Memory that the leaf holds until it is sealed.
    pub(super) fn memory_bytes(&self) -> usize {
        let base = self.base.as_ref().map_or(0, |base| base.entries.len() * size_of::<PageEntry>());
        base + self.changes.len() * size_of::<(u32, Change)>()
    }

    pub(super) fn is_placed(&self) -> bool {
        self.changes.iter().all(|(_, change)| change.is_placed())
    }

    /// The entries, and how to store them. Every chunk must be placed.
    pub(super) fn seal(self, run: RunNo) -> (Vec<PageEntry>, Sealed) {
        let Self { base, page_count, changes } = self;
        let count = page_count as usize;
        let mut entries = base.as_ref().map_or_else(Vec::new, |base| base.entries.clone());
        let base_count = entries.len();
        entries.resize(count, PageEntry::Zero);
        for (page, change) in &changes {
            if let (Some(place), Some(entry)) = (entries.get_mut(*page as usize), change.entry(run)) {
                *place = entry;
            }
        }
        let sealed = base.as_deref().and_then(|base| {
            let form = base.form.as_ref()?;
            if changes.is_empty()
                && base.moved.is_empty()
                && base_count == count
                && let Some(leaf) = form.leaf
            {
                return Some(Sealed::Base(leaf, Some(form.under).filter(|under| *under != leaf)));
            }
            let own = changes.iter().map(|(page, _)| *page);
            let mut pages: Vec<u32> =
                own.chain(form.patched.iter().copied()).chain(base.moved.iter().copied()).collect();
            pages.sort_unstable();
            pages.dedup();
            pages.retain(|page| *page < page_count);
            if pages.len() > PATCHES_MAX.min(count / 8) {
                return None;
            }
            let patches = pages.into_iter().map(|page| (page, entries[page as usize])).collect();
            Some(Sealed::Overlay(Overlay { under: form.under, page_count, patches }))
        });
        (entries, sealed.unwrap_or(Sealed::Full))
    }
}

impl Change {
    fn entry(&self, run: RunNo) -> Option<PageEntry> {
        match self {
            Self::Same => None,
            Self::Known(entry) => Some(*entry),
            Self::New(hash, pending) => {
                let chunk = pending.ticket.chunk(run)?;
                Some(PageEntry::Stored(StoredPage { hash: *hash, chunk, slot: pending.slot }))
            }
        }
    }
}

/// Where a leaf is stored.
#[derive(Debug)]
pub(super) struct LeafPlace {
    pub(super) leaf: LeafAt,
    /// The full leaf below it, if it is an overlay.
    pub(super) under: Option<LeafRef>,
}

/// The leaf itself.
#[derive(Debug)]
pub(super) enum LeafAt {
    /// The reference is known.
    Known(LeafRef),
    /// In a chunk of leaves that may not be placed yet.
    Own(Pending),
}

impl LeafPlace {
    pub(super) fn leaf_ref(&self, run: RunNo) -> Option<LeafRef> {
        match &self.leaf {
            LeafAt::Known(leaf) => Some(*leaf),
            LeafAt::Own(Pending { ticket, slot }) => {
                Some(LeafRef { chunk: ticket.chunk(run)?, hash: ticket.hash()?, slot: *slot })
            }
        }
    }
}

/// Set once the leaf is gathered into a chunk, or found to be the base's.
pub(super) type LeafSlot = Arc<OnceLock<LeafPlace>>;
