//! Pages that are fetched together, sorted by where they are stored, so that each chunk is read once.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_formats::PageSize;

use super::{CopyError, Files};
use crate::{
    data::{
        reader::{ChunkPages, FetchOptions, PageWant},
        writer::{FileId, WriteError},
    },
    error::RepoError,
    format::{
        columns::{PageEntry, StoredPage},
        item::{Item, ItemPath},
    },
};

/// Memory of a fetching thread: one read and one chunk.
pub(super) const THREAD_BYTES: usize = 10 << 20;
/// Memory for each wanted page: sorting doubles the wants, and the
/// writer notes each page of an incomplete leaf.
pub(super) const PAGE_BYTES: usize = 3 * size_of::<PageWant>();
/// Minimum memory of a window, enough for this many pages, so that chunks with pages
/// of several files are not read too often.
pub(super) const BYTES_MIN: usize = (16 << 10) * PAGE_BYTES;
/// Memory of a leaf that the writer has open: which of its pages it was given.
const LEAF_BYTES: usize = 1 << 10;
/// Maximum number of files in a window.
const FILES_MAX: usize = 64 << 10;

/// A token holds the number of a file and of a page in it; no file can have more than 2^40 pages.
const PAGE_BITS: u32 = 40;

fn token(file: usize, page: u64) -> u64 {
    (file as u64) << PAGE_BITS | page
}

fn of_token(token: u64) -> (usize, u64) {
    ((token >> PAGE_BITS) as usize, token & ((1 << PAGE_BITS) - 1))
}

/// Memory that the window and the writer hold for a leaf, `wanted` pages of which are wanted.
fn held_bytes(wanted: usize, base_entries: usize) -> usize {
    wanted * PAGE_BYTES + LEAF_BYTES + base_entries * size_of::<PageEntry>()
}

struct OpenFile {
    id: FileId,
    path: ItemPath,
    page_size: PageSize,
    /// Whether the window wants pages of it.
    is_wanted: bool,
    /// Its size, once all of it is wanted.
    end: Option<u64>,
}

/// Number of a file in the window: the high bits of a token.
#[derive(Clone, Copy)]
pub(super) struct FileNo(usize);

/// The files being copied, and the pages wanted of them.
pub(super) struct Window<'a> {
    files: &'a Files<'a>,
    open: Vec<OpenFile>,
    wants: Vec<PageWant>,
    /// Memory of the wants, and of what the writer holds until it has them.
    held_bytes: usize,
    bytes_done: AtomicU64,
}

impl<'a> Window<'a> {
    pub(super) fn new(files: &'a Files<'a>) -> Self {
        Self { files, open: Vec::new(), wants: Vec::new(), held_bytes: 0, bytes_done: AtomicU64::new(0) }
    }

    /// Adds a file.
    pub(super) fn file(&mut self, item: &Item, id: FileId) -> Result<FileNo, CopyError> {
        if self.open.len() >= FILES_MAX {
            self.flush()?;
        }
        let (path, page_size) = (item.path.clone(), item.page_size);
        self.open.push(OpenFile { id, path, page_size, is_wanted: false, end: None });
        Ok(FileNo(self.open.len() - 1))
    }

    /// Whether the wants of another leaf, which the writer compares with
    /// `base_entries` entries of its base, do not fit.
    pub(super) fn is_full(&self, wanted: usize, base_entries: usize) -> bool {
        !self.wants.is_empty()
            && self.held_bytes + held_bytes(wanted, base_entries) > self.files.budget.window_bytes
    }

    /// Adds wanted pages of a leaf, which the writer compares with `base_entries` entries of its base.
    pub(super) fn want(&mut self, file: FileNo, pages: &[(u64, StoredPage)], base_entries: usize) {
        if pages.is_empty() {
            return;
        }
        self.held_bytes += held_bytes(pages.len(), base_entries);
        if let Some(file) = self.open.get_mut(file.0) {
            file.is_wanted = true;
        }
        self.wants.extend(pages.iter().map(|(page, stored)| PageWant {
            chunk: stored.chunk,
            slot: stored.slot,
            hash: stored.hash,
            token: token(file.0, *page),
        }));
    }

    /// Notes that all pages of the file, the last one, are wanted. If there are none, ends it right away: of
    /// many files, most are unchanged.
    pub(super) fn end(&mut self, file: FileNo, size_bytes: u64) -> Result<(), CopyError> {
        debug_assert!(file.0 + 1 == self.open.len());
        match self.open.get_mut(file.0) {
            Some(open) if open.is_wanted => open.end = Some(size_bytes),
            Some(open) => {
                self.files.writer.end_file(open.id, size_bytes)?;
                self.open.truncate(file.0);
            }
            None => {}
        }
        Ok(())
    }

    /// Fetches what is wanted, and continues with `file`, the last one, in the next window.
    pub(super) fn turn(&mut self, file: FileNo) -> Result<FileNo, CopyError> {
        self.flush()?;
        debug_assert!(file.0 >= self.open.len() || self.open.len() == 1);
        Ok(FileNo(0))
    }

    /// Reports that `bytes` more are done.
    pub(super) fn done(&self, bytes: u64) {
        let done = self.bytes_done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.files.steps.bytes(done, self.files.from.head().totals.bytes);
    }

    /// Fetches what is wanted, and ends the files of which everything has been wanted.
    pub(super) fn flush(&mut self) -> Result<(), CopyError> {
        let mut wants = std::mem::take(&mut self.wants);
        wants.sort_unstable_by_key(|want| (want.chunk, want.slot, want.token));
        let name = |token| {
            let (file, page) = of_token(token);
            self.open.get(file).map_or_else(String::new, |file| format!("{} page {page}", file.path))
        };
        let each = |pages: ChunkPages<'_>| self.give(&pages);
        let options = FetchOptions { threads: self.files.budget.threads };
        self.files.from.source().fetch_pages(&wants, options, &name, &each)?;
        for file in &self.open {
            if let Some(size_bytes) = file.end {
                self.files.writer.end_file(file.id, size_bytes)?;
            }
        }
        self.open.retain(|file| file.end.is_none());
        self.open.iter_mut().for_each(|file| file.is_wanted = false);
        self.held_bytes = 0;
        wants.clear();
        self.wants = wants;
        Ok(())
    }

    /// Gives the pages of one chunk, consecutive ones together.
    fn give(&self, pages: &ChunkPages<'_>) -> Result<(), CopyError> {
        self.files.interrupt.check()?;
        if self.files.keep_chunks && self.give_whole(pages)? {
            return Ok(());
        }
        let follows = |a: &PageWant, b: &PageWant| b.token == a.token + 1 && b.slot == a.slot + 1;
        let mut from = 0;
        for run in pages.wants.chunk_by(follows) {
            let to = from + run.len();
            let bytes = pages.run(from..to);
            from = to;
            let (file, page) = of_token(run[0].token);
            let Some(file) = self.open.get(file) else { return Err(WriteError::Lost.into()) };
            if pages.page_size != file.page_size {
                let what = "its chunk holds no pages of its size";
                return Err(RepoError::malformed(format!("{} page {page}", file.path), what).into());
            }
            self.files.writer.pages(file.id, page, bytes)?;
            self.files.bytes_read.add_many(run.len() as u64, bytes.len() as u64);
            self.done(bytes.len() as u64);
        }
        Ok(())
    }

    /// Gives a chunk as it is, if all of its pages are new. Returns whether it did.
    fn give_whole(&self, pages: &ChunkPages<'_>) -> Result<bool, CopyError> {
        let Some(chunk) = pages.whole() else { return Ok(false) };
        let place = |want: &PageWant| {
            let (file, page) = of_token(want.token);
            Some((self.open.get(file)?.id, page))
        };
        let Some(places) = pages.wants.iter().map(place).collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        if !self.files.writer.whole_chunk(&places, &chunk)? {
            return Ok(false);
        }
        let bytes = chunk.plain.len() as u64;
        self.files.bytes_read.add_many(places.len() as u64, bytes);
        self.done(bytes);
        Ok(true)
    }
}
