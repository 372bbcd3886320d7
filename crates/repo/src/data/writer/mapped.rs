//! Pages of which something is known before they are read: a copy of a backup has its page maps.

use std::sync::atomic::Ordering;

use holdfast_pipe::lock::lock;

use super::{BackupWriter, FileId, WriteError, file::leaf_of, give::base_entry, leaf::Change};
use crate::format::{
    columns::{PageEntry, StoredPage},
    item::ItemPath,
    page_map::PAGES_PER_LEAF,
};

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedPage {
    /// All its bytes are zero.
    Zero,
    /// The source had no block for it.
    Hole,
    /// It equals this page of the file of the base that [`BackupWriter::base_path`] names.
    AsInBase,
    /// Nothing is known.
    Unknown,
}

impl BackupWriter {
    /// Path, in the base, of the file that this file is compared with.
    pub fn base_path(&self, id: FileId) -> Result<Option<ItemPath>, WriteError> {
        let file = self.file(id)?;
        let inner = lock(&file.inner);
        Ok(inner.base.as_ref().map(|base| base.item.path.clone()))
    }

    /// Records what is known of the pages from `first` on. Returns the numbers of the pages whose bytes must
    /// still be given: unknown pages, pages of the base that cannot be read, and those better stored again.
    pub fn mapped(&self, id: FileId, first: u64, pages: &[MappedPage]) -> Result<Vec<u64>, WriteError> {
        let file = self.file(id)?;
        let page_bytes = file.page_size.bytes() as u64;
        let mut missing = Vec::new();
        let mut done = 0;
        while done < pages.len() {
            let at = first + done as u64;
            let (leaf, from) = leaf_of(at);
            let count = (pages.len() - done).min((PAGES_PER_LEAF - from) as usize);
            let base = self.base_leaf(&file, leaf)?;
            let (mut empty, mut reused) = (0, 0);
            let mut changes = Vec::with_capacity(count);
            for ((mapped, page), number) in pages[done..done + count].iter().zip(from..).zip(at..) {
                match self.change_of(*mapped, base_entry(base.as_deref(), page), page_bytes) {
                    Some(change) if *mapped == MappedPage::AsInBase => {
                        reused += 1;
                        changes.push((page, change));
                    }
                    Some(change) => {
                        empty += 1;
                        changes.push((page, change));
                    }
                    None => missing.push(number),
                }
            }
            self.bytes_given.fetch_add((empty + reused) * page_bytes, Ordering::Relaxed);
            self.meters.empty.add_many(empty, empty * page_bytes);
            self.meters.reused.add_many(reused, reused * page_bytes);
            self.record(&file, leaf, base, changes)?;
            done += count;
        }
        self.seal_waiting()?;
        Ok(missing)
    }

    fn change_of(&self, mapped: MappedPage, before: Option<PageEntry>, page_bytes: u64) -> Option<Change> {
        let known = |entry| if before == Some(entry) { Change::Same } else { Change::Known(entry) };
        match (mapped, before) {
            (MappedPage::Zero, _) => Some(known(PageEntry::Zero)),
            (MappedPage::Hole, _) => Some(known(PageEntry::Hole)),
            (MappedPage::AsInBase, Some(PageEntry::Stored(StoredPage { chunk, .. }))) => {
                let base = self.base.as_ref()?;
                let is_better_stored_again = base.is_sparse(chunk) && self.could_rewrite(page_bytes);
                (base.is_there(chunk) && !is_better_stored_again).then_some(Change::Same)
            }
            // The base does not store this page, so there are no bytes in it to be equal to.
            (MappedPage::AsInBase | MappedPage::Unknown, _) => None,
        }
    }
}
