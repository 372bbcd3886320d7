//! Files come and go while the server runs: they are begun, ended, replaced, renamed and dropped.

use std::sync::{Arc, atomic::Ordering};

use holdfast_pipe::lock::{lock, write};

use super::{
    BackupWriter, FileId, FileProblem, FileSpec, WriteError,
    file::{File, FileInner, FileState, Slot},
    leaf::OpenLeaf,
    readable,
    seal::Target,
};
use crate::format::{
    item::{INLINE_PAGES_MAX, ItemPath, leaf_count, page_count},
    page_map::PAGES_PER_LEAF,
    wire::FormatError,
};

/// This few page entries take no more memory than a leaf would, until the item table is written.
const ALWAYS_INLINE_PAGES: u64 = 12;

impl BackupWriter {
    /// Begins a file. A file that has the same path is dropped.
    pub fn begin_file(&self, spec: FileSpec) -> Result<FileId, WriteError> {
        if spec.mode > 0o777 {
            let rule = FormatError::rule("mode", "has bits other than permissions");
            return Err(WriteError::File { path: spec.path, problem: FileProblem::Format(rule) });
        }
        let base = match &self.base {
            Some(base) => {
                let space = spec.tablespace.map(|tablespace| tablespace.space);
                readable(&self.meters, base.find(&spec.path, space, spec.page_size.bytes()))?.flatten()
            }
            None => None,
        };
        let path = spec.path.clone();
        let file = Arc::new(File::new(spec, base));
        let mut files = write(&self.files);
        let id = FileId(files.list.len());
        files.list.push(file);
        let replaced = files.by_path.insert(path, id);
        let replaced = replaced.and_then(|FileId(position)| files.list.get(position).cloned());
        drop(files);
        self.discard(replaced)?;
        Ok(id)
    }

    /// Ends a file, which is `size_bytes` long: no more pages come for it.
    pub fn end_file(&self, id: FileId, size_bytes: u64) -> Result<(), WriteError> {
        let file = self.file(id)?;
        self.flush_file(&file)?;
        let pages = page_count(size_bytes, file.page_size);
        let mut inner = lock(&file.inner);
        let problem = match inner.state {
            FileState::Open => wrong_page(&inner.leaves, pages),
            _ => Some(FileProblem::NotOpen),
        };
        if let Some(problem) = problem {
            let path = inner.spec.path.clone();
            return Err(WriteError::File { path, problem });
        }
        inner.state = FileState::Ended(size_bytes);
        let is_inline = pages <= INLINE_PAGES_MAX && self.may_be_inline(&inner, pages);
        inner.base = None;
        if is_inline {
            let open = match inner.leaves.pop() {
                Some(Slot::Open(open)) => *open,
                _ => OpenLeaf::new(None),
            };
            inner.leaves = Vec::new();
            self.wait(open.close(pages as u32), Target::Small(Arc::clone(&file), size_bytes));
        } else if let Some(last) = inner.leaves.last_mut() {
            // Zero if the last leaf is full, in which case it is closed already.
            self.close_leaf(last, (pages % u64::from(PAGES_PER_LEAF)) as u32);
        }
        inner.leaves.shrink_to_fit();
        drop(inner);
        self.seal_waiting()
    }

    /// Whether the page entries of a small file stay in memory, to become part of its item. If all did,
    /// hundreds of thousands of files would exhaust the memory. When there are too many, files that need less
    /// memory with a leaf get one, and keep it from backup to backup, so that items do not change.
    fn may_be_inline(&self, inner: &FileInner, pages: u64) -> bool {
        if pages <= ALWAYS_INLINE_PAGES {
            return true;
        }
        if inner.has_leaves_in_base() {
            return false;
        }
        let entries = pages as usize;
        let may =
            self.entries_inline.fetch_add(entries, Ordering::Relaxed) + entries <= self.budget.inline_entries;
        if !may {
            self.entries_inline.fetch_sub(entries, Ordering::Relaxed);
        }
        may
    }

    /// Drops a file that is gone: it is not part of the backup.
    pub fn drop_file(&self, id: FileId) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let path = lock(&file.inner).spec.path.clone();
        let mut files = write(&self.files);
        if files.by_path.get(&path) == Some(&id) {
            files.by_path.remove(&path);
        }
        drop(files);
        self.discard(Some(file))
    }

    pub(super) fn discard(&self, file: Option<Arc<File>>) -> Result<(), WriteError> {
        let Some(file) = file else { return Ok(()) };
        // Closed leaves may wait for these pages: they are not needed, but must be stored all the same.
        self.flush_file(&file)?;
        let mut inner = lock(&file.inner);
        inner.state = FileState::Dropped;
        inner.base = None;
        inner.late.clear();
        let leaves = std::mem::take(&mut inner.leaves);
        drop(inner);
        let closed = leaves.into_iter().filter_map(|slot| match slot {
            Slot::Closed(place) => Some(place),
            Slot::Empty | Slot::Open(_) => None,
        });
        lock(&self.undone).extend(closed);
        Ok(())
    }

    /// Gives the file another path. A file that has this path is dropped.
    pub fn rename_file(&self, id: FileId, path: &ItemPath) -> Result<(), WriteError> {
        let file = self.file(id)?;
        let mut files = write(&self.files);
        let mut inner = lock(&file.inner);
        if inner.spec.path == *path {
            return Ok(());
        }
        if files.by_path.get(&inner.spec.path) == Some(&id) {
            files.by_path.remove(&inner.spec.path);
        }
        inner.spec.path = path.clone();
        drop(inner);
        let replaced = files.by_path.insert(path.clone(), id);
        let replaced = replaced.and_then(|FileId(position)| files.list.get(position).cloned());
        drop(files);
        self.discard(replaced)
    }

    /// Adds a directory to the backup.
    pub fn directory(&self, path: ItemPath, mode: u16) {
        let mut files = write(&self.files);
        files.directories.insert(path, mode & 0o777);
    }

    /// Drops a directory.
    pub fn drop_directory(&self, path: &ItemPath) {
        let mut files = write(&self.files);
        files.directories.remove(path);
    }
}

/// The first page that is missing among the first `pages`, or that was given beyond them.
fn wrong_page(leaves: &[Slot], pages: u64) -> Option<FileProblem> {
    let per_leaf = u64::from(PAGES_PER_LEAF);
    let count = leaf_count(pages).max(leaves.len() as u64);
    (0..count).find_map(|leaf| {
        let first = leaf * per_leaf;
        let expected = pages.saturating_sub(first).min(per_leaf) as u32;
        let wrong = match usize::try_from(leaf).ok().and_then(|leaf| leaves.get(leaf)) {
            Some(Slot::Open(open)) => open.first_wrong(expected)?,
            Some(Slot::Closed(_)) if expected == PAGES_PER_LEAF => return None,
            Some(Slot::Closed(_)) => expected,
            Some(Slot::Empty) | None if expected == 0 => return None,
            Some(Slot::Empty) | None => 0,
        };
        let page = first + u64::from(wrong);
        Some(if wrong < expected {
            FileProblem::PageMissing { page }
        } else {
            FileProblem::PageBeyondEnd { page, page_count: pages }
        })
    })
}
