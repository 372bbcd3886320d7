//! Copies the files of a backup, from its page maps into the writer of another repository.

use super::{CopyError, Files, window::Window};
use crate::{
    data::writer::{FileSpec, MappedPage},
    format::{
        columns::PageEntry,
        item::{Item, ItemMap, ItemType, leaf_count},
        page_map::PAGES_PER_LEAF,
    },
};

impl Files<'_> {
    /// Gives all items to the writer.
    pub(super) fn give(&self) -> Result<(), CopyError> {
        let mut window = Window::new(self);
        for item in self.from.items() {
            let item = item?;
            match item.item_type {
                ItemType::Directory => self.writer.directory(item.path, item.mode),
                // The file of a tablespace, or captured redo: both consist of pages.
                _ if is_of_pages(&item) => self.file(item, &mut window)?,
                _ => {
                    let bytes = self.logical(&item)?;
                    window.done(bytes);
                }
            }
        }
        window.flush()
    }

    fn file(&self, item: Item, window: &mut Window<'_>) -> Result<(), CopyError> {
        let spec = FileSpec {
            path: item.path.clone(),
            item_type: item.item_type,
            role: item.role,
            mode: item.mode,
            page_size: item.page_size,
            tablespace: item.tablespace,
            outside: item.outside.clone(),
        };
        let id = self.writer.begin_file(spec)?;
        let base_path = self.writer.base_path(id)?;
        let has_base = base_path.is_some();
        let twin = match (self.twin, base_path) {
            (Some(twin), Some(path)) => {
                twin.find(&path)?.filter(|twin| is_of_pages(twin) && twin.page_size == item.page_size)
            }
            _ => None,
        };
        let mut file = window.file(&item, id)?;
        let page_bytes = item.page_size.bytes() as u64;
        for leaf in 0..leaf_count(item.page_count()) {
            self.interrupt.check()?;
            let entries = self.from.leaf(&item, leaf)?;
            let pages = self.compared(&item, twin.as_ref(), leaf, &entries)?;
            let first = leaf * u64::from(PAGES_PER_LEAF);
            let missing = self.writer.mapped(id, first, &pages)?;
            window.done((entries.len() - missing.len()) as u64 * page_bytes);
            let wanted = missing.into_iter().filter_map(|page| {
                let stored = entries.get(usize::try_from(page - first).ok()?)?.stored()?;
                Some((page, *stored))
            });
            let wanted: Vec<_> = wanted.collect();
            // The writer keeps its base's entries until it has all pages of
            // the leaf. Their number is about the same.
            let base_entries = if has_base { entries.len() } else { 0 };
            if window.is_full(wanted.len(), base_entries) {
                file = window.turn(file)?;
            }
            window.want(file, &wanted, base_entries);
        }
        window.end(file, item.size_bytes)
    }

    /// What the page maps alone tell of the pages of a leaf.
    fn compared(
        &self,
        item: &Item,
        twin: Option<&Item>,
        leaf: u64,
        entries: &[PageEntry],
    ) -> Result<Vec<MappedPage>, CopyError> {
        let before = match (self.twin, twin) {
            (Some(_), Some(twin)) if is_same_leaf(item, twin, leaf) => None,
            (Some(backup), Some(twin)) => Some(backup.leaf(twin, leaf)?),
            _ => Some(Vec::new()),
        };
        let page = |(position, entry): (usize, &PageEntry)| match (entry, &before) {
            (PageEntry::Zero, _) => MappedPage::Zero,
            (PageEntry::Hole, _) => MappedPage::Hole,
            // The whole leaf is equal.
            (PageEntry::Stored(_), None) => MappedPage::AsInBase,
            (PageEntry::Stored(stored), Some(before)) => match before.get(position) {
                Some(PageEntry::Stored(known)) if known.hash == stored.hash => MappedPage::AsInBase,
                _ => MappedPage::Unknown,
            },
        };
        Ok(entries.iter().enumerate().map(page).collect())
    }
}

fn is_of_pages(item: &Item) -> bool {
    matches!(item.item_type, ItemType::File | ItemType::CapturedRedo)
}

/// Whether both files reference the same leaf.
fn is_same_leaf(item: &Item, twin: &Item, leaf: u64) -> bool {
    let position = usize::try_from(leaf).unwrap_or(usize::MAX);
    match (&item.map, &twin.map) {
        (ItemMap::Leaves(leaves), ItemMap::Leaves(of_twin)) => {
            leaves.get(position).is_some_and(|leaf| of_twin.get(position) == Some(leaf))
        }
        _ => false,
    }
}
