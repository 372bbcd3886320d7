//! Pages that are fetched together.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use holdfast_pipe::lock::{into_inner, lock};
use holdfast_repo::{
    data::reader::{CACHES_BYTES, ChunkPages, FetchOptions, PageWant},
    format::columns::PageEntry,
};

use super::{
    super::{opened::Opened, options::RestoreOptions},
    file::TargetFile,
    syncer::Syncer,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Listener},
    meter::Meter,
};

/// The most open files: the usual limit of a process is 1,024, and as many again wait to be synced.
const FILES_MAX: usize = 256;
/// The fewest pages of a window, so that chunks with pages of several files are not read too often.
const PAGES_MIN: usize = 16 << 10;
/// Memory that a fetching thread takes: one read and one chunk.
const THREAD_BYTES: u64 = 10 << 20;
/// Memory for a wanted page: the wants take twice their size while they are sorted,
/// and half is left for what decides on them.
const WANT_BYTES: u64 = 4 * size_of::<PageWant>() as u64;

/// The least memory with which this many threads fetch.
pub(in super::super) const fn least_bytes(threads: u64) -> u64 {
    CACHES_BYTES as u64 + PAGES_MIN as u64 * WANT_BYTES + threads * THREAD_BYTES
}

const _: () = assert!(RestoreOptions::MEMORY_BYTES_MIN >= least_bytes(1));

/// How many threads fetch, and how many pages a window takes, so that the memory suffices.
fn within(parallel: usize, memory_bytes: u64) -> (usize, usize) {
    let for_threads = memory_bytes.saturating_sub(least_bytes(0)) / THREAD_BYTES;
    let threads = parallel.clamp(1, usize::try_from(for_threads).unwrap_or(usize::MAX).max(1));
    let left = memory_bytes.saturating_sub(CACHES_BYTES as u64 + THREAD_BYTES * threads as u64);
    (threads, usize::try_from(left / WANT_BYTES).unwrap_or(usize::MAX).max(PAGES_MIN))
}

/// Existing pages are read and hashed in runs of this length.
const COMPARE_BYTES: usize = 1 << 20;

/// A file of the window: its number, as the high bits of a token.
#[derive(Clone, Copy)]
pub(super) struct FileNo(usize);

/// A token is the number of a file and of a page in it; 2^40 pages are more than a file can have.
const PAGE_BITS: u32 = 40;

fn token(file: usize, page: u64) -> u64 {
    (file as u64) << PAGE_BITS | page
}

fn of_token(token: u64) -> (usize, u64) {
    ((token >> PAGE_BITS) as usize, token & ((1 << PAGE_BITS) - 1))
}

/// Open files, and the pages that are wanted for them.
pub(super) struct Window<'a> {
    opened: &'a Opened,
    threads: usize,
    pages_max: usize,
    files: Vec<TargetFile>,
    /// In file and page order until they are fetched.
    wants: Vec<PageWant>,
    syncer: Syncer,
}

impl<'a> Window<'a> {
    pub(super) fn new(opened: &'a Opened, options: &RestoreOptions) -> Result<Self> {
        let (threads, pages_max) = within(options.parallel, options.memory_bytes);
        let syncer = Syncer::start()?;
        Ok(Self { opened, threads, pages_max, files: Vec::new(), wants: Vec::new(), syncer })
    }

    /// Takes in a file; if there are too many, first fetches what is wanted so far.
    pub(super) fn add_file(&mut self, file: TargetFile, progress: &Progress<'_>) -> Result<FileNo> {
        if self.files.len() >= FILES_MAX {
            self.flush(progress)?;
        }
        self.files.push(file);
        Ok(FileNo(self.files.len() - 1))
    }

    pub(super) fn file(&self, file: FileNo) -> Result<&TargetFile> {
        self.files.get(file.0).ok_or_else(|| Error::failed("a file was closed while it was written"))
    }

    /// Whether this many more pages do not fit.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.wants.len() + more > self.pages_max
    }

    /// Adds to the wanted pages those from `first` on that are stored.
    pub(super) fn want(&mut self, file: FileNo, first: u64, entries: &[PageEntry]) {
        let stored = (first..).zip(entries).filter_map(|(page, entry)| Some((page, entry.stored()?)));
        self.wants.extend(stored.map(|(page, stored)| PageWant {
            chunk: stored.chunk,
            slot: stored.slot,
            hash: stored.hash,
            token: token(file.0, page),
        }));
    }

    /// Fetches what is wanted, and continues with `file` in the next window.
    pub(super) fn turn(&mut self, file: FileNo, progress: &Progress<'_>) -> Result<FileNo> {
        self.fetch(progress)?;
        if file.0 + 1 != self.files.len() {
            return Err(Error::failed("a file was written after the next was begun"));
        }
        self.complete(file.0)?;
        Ok(FileNo(0))
    }

    /// Fetches what is wanted, and closes the files.
    pub(super) fn flush(&mut self, progress: &Progress<'_>) -> Result<()> {
        self.fetch(progress)?;
        self.complete(self.files.len())
    }

    /// Passes the first `count` files, which are complete, on to be synced.
    fn complete(&mut self, count: usize) -> Result<()> {
        self.files.drain(..count).try_for_each(|mut file| {
            file.end_writing();
            self.syncer.push(file)
        })
    }

    /// Waits until all files are durable.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.syncer.finish()
    }

    fn fetch(&mut self, progress: &Progress<'_>) -> Result<()> {
        let mut wants = std::mem::take(&mut self.wants);
        if self.files.iter().any(|file| !file.is_new()) {
            wants = self.without_equal(&wants, progress)?;
        }
        wants.sort_unstable_by_key(|want| (want.chunk, want.slot, want.token));
        let files = &self.files;
        let name = |token| {
            let (file, page) = of_token(token);
            files.get(file).map_or_else(String::new, |file| file.describe(page))
        };
        let each = |pages: ChunkPages<'_>| -> Result<()> {
            progress.check()?;
            write_chunk(files, &pages, progress)
        };
        self.opened.backup.source().fetch_pages(
            &wants,
            FetchOptions { threads: self.threads },
            &name,
            &each,
        )?;
        wants.clear();
        self.wants = wants;
        Ok(())
    }

    /// The wants that the files do not already fulfil.
    fn without_equal(&self, wants: &[PageWant], progress: &Progress<'_>) -> Result<Vec<PageWant>> {
        let runs: Vec<&[PageWant]> = self.runs(wants);
        let next = AtomicUsize::new(0);
        let different = Mutex::new(Vec::new());
        let work = || -> Result<()> {
            let mut buffer = Vec::new();
            let mut mine = Vec::new();
            while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                progress.check()?;
                self.compare(run, &mut buffer, &mut mine, progress)?;
            }
            lock(&different).append(&mut mine);
            Ok(())
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads.min(runs.len())).map(|_| scope.spawn(work)).collect();
            let mine = work();
            others.into_iter().fold(mine, |result, other| {
                let other =
                    other.join().unwrap_or_else(|_| Err(Error::failed("a comparing thread panicked")));
                result.and(other)
            })
        })?;
        Ok(into_inner(different))
    }

    /// Runs of neighbouring pages of one file.
    fn runs<'w>(&self, wants: &'w [PageWant]) -> Vec<&'w [PageWant]> {
        let neighbours = wants.chunk_by(|a, b| a.token + 1 == b.token);
        neighbours
            .flat_map(|run| {
                let file = run.first().and_then(|want| self.files.get(of_token(want.token).0));
                let pages = file.map_or(1, |file| (COMPARE_BYTES / file.page_bytes()).max(1));
                run.chunks(pages)
            })
            .collect()
    }

    fn compare(
        &self,
        run: &[PageWant],
        buffer: &mut Vec<u8>,
        different: &mut Vec<PageWant>,
        progress: &Progress<'_>,
    ) -> Result<()> {
        let Some(first) = run.first() else { return Ok(()) };
        let (file, page) = of_token(first.token);
        let Some(file) = self.files.get(file) else { return Ok(()) };
        if file.is_new() {
            different.extend_from_slice(run);
            return Ok(());
        }
        buffer.resize(run.len() * file.page_bytes(), 0);
        file.read(page, buffer)?;
        for (want, bytes) in run.iter().zip(buffer.chunks_exact(file.page_bytes())) {
            if self.opened.hash_key.hash(bytes) == want.hash {
                progress.kept(bytes.len() as u64);
            } else {
                different.push(*want);
            }
        }
        Ok(())
    }
}

/// Writes the pages of a chunk; pages that are neighbours in the file as well are written at once.
fn write_chunk(files: &[TargetFile], pages: &ChunkPages<'_>, progress: &Progress<'_>) -> Result<()> {
    let follows = |a: &PageWant, b: &PageWant| b.token == a.token + 1 && b.slot == a.slot + 1;
    let mut position = 0;
    for run in pages.wants.chunk_by(follows) {
        let (file, page) = of_token(run[0].token);
        let bytes = pages.run(position..position + run.len());
        position += run.len();
        let file = files.get(file).ok_or_else(|| Error::failed("a page belongs to no file"))?;
        if file.page_bytes() != pages.page_size.bytes() {
            return Err(Error::damaged(format!(
                "{}: the pages of its chunk have another size",
                file.describe(page)
            )));
        }
        progress.written(file.write(page, bytes)?);
    }
    Ok(())
}

/// Counts and reports bytes, and checks for cancellation.
pub(super) struct Progress<'a> {
    meter: Meter<'a>,
    cancel: &'a Cancel,
    bytes_written: AtomicU64,
    bytes_kept: AtomicU64,
}

impl<'a> Progress<'a> {
    pub(super) fn new(listener: &'a dyn Listener, cancel: &'a Cancel, bytes_total: u64) -> Self {
        let meter = Meter::new(listener, bytes_total);
        Self { meter, cancel, bytes_written: AtomicU64::new(0), bytes_kept: AtomicU64::new(0) }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.cancel.check()
    }

    pub(super) fn written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        self.meter.add(bytes);
    }

    /// Counts bytes that were right already, or zeros that cost nothing.
    pub(super) fn kept(&self, bytes: u64) {
        self.bytes_kept.fetch_add(bytes, Ordering::Relaxed);
        self.meter.add(bytes);
    }

    /// Bytes written, and bytes that were right or zeros.
    pub(super) fn finish(&self) -> (u64, u64) {
        self.meter.finish();
        (self.bytes_written.load(Ordering::Relaxed), self.bytes_kept.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory that was asked for is not exceeded:
    /// if it does not suffice for all threads, there are fewer.
    #[test]
    fn memory_is_a_bound() {
        let mut before = (0, 0);
        for memory in [RestoreOptions::MEMORY_BYTES_MIN, 100 << 20, 256 << 20, 1 << 30, 8 << 30] {
            let (threads, pages) = within(256, memory);
            let taken = CACHES_BYTES as u64 + threads as u64 * THREAD_BYTES + pages as u64 * WANT_BYTES;
            assert!(taken <= memory, "{taken} of {memory}");
            assert!(threads >= before.0 && pages >= PAGES_MIN, "{before:?} {threads} {pages}");
            before = (threads, pages);
        }
        assert_eq!(within(8, 256 << 20).0, 8);
        assert_eq!(within(2, least_bytes(2)), (2, PAGES_MIN));
        assert_eq!(within(0, 0), (1, PAGES_MIN));
    }
}
