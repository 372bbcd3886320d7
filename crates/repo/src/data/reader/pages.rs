//! Fetches many pages at once: neighbouring chunks in one read, several threads, every page verified.
//!
//! A restore can take longer than the grace. If the pack of a page is gone, the page is looked up again,
//! since a prune may have moved it. Prunes move whole chunks, so slots stay the same.

use std::{
    borrow::Cow,
    num::NonZero,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use holdfast_formats::PageSize;
use holdfast_pipe::{Codec, ObjectKey, PageHash, TAG_BYTES, lock::lock};

use super::source::ChunkSource;
use crate::{
    error::{Damage, RepoError},
    format::{
        names::ChunkRef,
        pack::{ChunkKind, PackRows},
    },
};

/// Chunks of a pack are read together if the gap between them is at most this long.
pub(super) const GAP_BYTES_MAX: u64 = 256 << 10;
/// Maximum length of one read.
const READ_BYTES_MAX: u64 = 8 << 20;

/// A page to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWant {
    /// Its chunk, from the entries that [`super::Backup::leaf`] returned.
    pub chunk: ChunkRef,
    /// Its position in the chunk.
    pub slot: u32,
    /// The hash that it must have.
    pub hash: PageHash,
    /// A number of the caller's choice, to recognize it.
    pub token: u64,
}

/// How to fetch pages.
#[derive(Clone, Copy, Debug)]
pub struct FetchOptions {
    /// Threads that read, open, decompress and verify; each holds one read (at most 8 MiB) and one chunk.
    pub threads: usize,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self { threads: thread::available_parallelism().map_or(1, NonZero::get) }
    }
}

/// The wanted pages of one chunk, verified.
#[derive(Debug)]
pub struct ChunkPages<'a> {
    /// The pages wanted from this chunk, by slot. Their `chunk` is where the chunk was found.
    pub wants: &'a [PageWant],
    /// Size of its pages.
    pub page_size: PageSize,
    plain: &'a [u8],
    codec: Codec,
    /// What `plain` was decompressed from; `None` if that took another chunk, too.
    compressed: Option<&'a [u8]>,
}

/// A chunk of pages of one size.
#[derive(Clone, Copy, Debug)]
pub struct WholeChunk<'a> {
    /// The size of its pages.
    pub page_size: PageSize,
    /// Its plain bytes.
    pub plain: &'a [u8],
    /// The codec that made `compressed` from `plain`.
    pub codec: Codec,
    /// The bytes that `plain` was decompressed from; the two are not compared again.
    pub compressed: &'a [u8],
}

impl<'a> ChunkPages<'a> {
    /// The bytes of `wants[position]`.
    #[must_use]
    pub fn page(&self, position: usize) -> &'a [u8] {
        self.run(position..position + 1)
    }

    /// The chunk, if each of its pages is wanted exactly once.
    #[must_use]
    pub fn whole(&self) -> Option<WholeChunk<'a>> {
        let each_once = self.wants.iter().zip(0..).all(|(want, slot)| want.slot == slot);
        let all = each_once && self.wants.len() * self.page_size.bytes() == self.plain.len();
        let compressed = self.compressed.filter(|_| all)?;
        Some(WholeChunk { page_size: self.page_size, plain: self.plain, codec: self.codec, compressed })
    }

    /// The bytes of several wants whose slots are consecutive; empty if they are not.
    #[must_use]
    pub fn run(&self, positions: Range<usize>) -> &'a [u8] {
        let page = self.page_size.bytes();
        let Some(wants) = self.wants.get(positions) else { return &[] };
        let (Some(first), Some(last)) = (wants.first(), wants.last()) else { return &[] };
        if (last.slot - first.slot) as usize != wants.len() - 1 {
            return &[];
        }
        let begin = first.slot as usize * page;
        self.plain.get(begin..begin + wants.len() * page).unwrap_or_default()
    }
}

/// Chunks of one pack that are read together.
struct Group {
    wants: Range<usize>,
}

/// What is needed to open the sealed bytes of a group.
struct SealedGroup {
    rows: Arc<PackRows>,
    key: Arc<ObjectKey>,
    begin: u64,
}

/// A thread's buffers for sealed and plain bytes.
type GroupBuffers = (Vec<u8>, Vec<u8>);

impl ChunkSource {
    /// Fetches `wants`, which must be sorted by chunk and slot, and calls `each` for each of their chunks,
    /// from several threads and in no particular order. `name` describes a token in error messages. The first
    /// error stops all threads.
    pub fn fetch_pages<E>(
        &self,
        wants: &[PageWant],
        options: FetchOptions,
        name: &(dyn Fn(u64) -> String + Sync),
        each: &(dyn Fn(ChunkPages<'_>) -> Result<(), E> + Sync),
    ) -> Result<(), E>
    where
        E: From<RepoError> + Send,
    {
        let (wants, groups) = self.located(wants)?;
        let next = AtomicUsize::new(0);
        let stopped = AtomicBool::new(false);
        let first_error = std::sync::Mutex::new(None);
        let work = || {
            let mut buffers = (Vec::new(), Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let fetched = self.fetch_group(&wants[group.wants.clone()], &mut buffers, name, each);
                if let Err(error) = fetched {
                    stopped.store(true, Ordering::Relaxed);
                    lock(&first_error).get_or_insert(error);
                }
            }
        };
        let others = options.threads.clamp(1, groups.len().max(1)) - 1;
        thread::scope(|scope| {
            for _ in 0..others {
                scope.spawn(work);
            }
            work();
        });
        lock(&first_error).take().map_or(Ok(()), Err)
    }

    /// Resolves the wants to where their chunks are now, sorts them by that, and cuts them into groups.
    fn located<'w>(&self, wants: &'w [PageWant]) -> Result<(Cow<'w, [PageWant]>, Vec<Group>), RepoError> {
        loop {
            let known = self.prunes();
            let has_moved = |want: &PageWant| known.resolve(want.chunk) != want.chunk;
            let mut wants = Cow::Borrowed(wants);
            if wants.iter().any(has_moved) {
                let wants = wants.to_mut();
                wants.iter_mut().for_each(|want| want.chunk = known.resolve(want.chunk));
                wants.sort_by_key(|want| (want.chunk, want.slot));
            }
            match self.groups(&wants) {
                Err(error) if error.is_missing() && self.moves().look_again(self.repo(), &known)? => {}
                groups => return Ok((wants, groups?)),
            }
        }
    }

    /// Cuts the wants into groups: where another pack begins, after a long
    /// gap, or when a read would become too long.
    fn groups(&self, wants: &[PageWant]) -> Result<Vec<Group>, RepoError> {
        let mut groups: Vec<Group> = Vec::new();
        let mut open: Option<(ChunkRef, u64, u64)> = None;
        let mut at = 0;
        for wants_of_chunk in wants.chunk_by(|a, b| a.chunk == b.chunk) {
            let chunk = wants_of_chunk[0].chunk;
            let (row, begin) =
                self.past_the_index(chunk.pack, &mut || self.row(&*self.pack(chunk.pack)?, chunk))?;
            let end = begin + u64::from(row.sealed_len);
            let wants = at..at + wants_of_chunk.len();
            at = wants.end;
            match (&mut open, groups.last_mut()) {
                (Some((first, group_begin, group_end)), Some(group))
                    if first.pack == chunk.pack
                        && begin >= *group_end
                        && begin - *group_end <= GAP_BYTES_MAX
                        && end - *group_begin <= READ_BYTES_MAX =>
                {
                    *group_end = end;
                    group.wants.end = wants.end;
                }
                _ => {
                    open = Some((chunk, begin, end));
                    groups.push(Group { wants });
                }
            }
        }
        Ok(groups)
    }

    fn fetch_group<E: From<RepoError>>(
        &self,
        wants: &[PageWant],
        buffers: &mut GroupBuffers,
        name: &(dyn Fn(u64) -> String + Sync),
        each: &(dyn Fn(ChunkPages<'_>) -> Result<(), E> + Sync),
    ) -> Result<(), E> {
        let known = self.prunes();
        let Some(pack) = wants.first().map(|want| want.chunk.pack) else { return Ok(()) };
        let mut given = 0;
        let mut said = None;
        let error = match self.read_group(wants, &mut buffers.0, &mut said) {
            Ok(group) => match self.give_group(wants, &group, buffers, name, each, &mut given)? {
                None => return Ok(()),
                Some(error) => error,
            },
            Err(error) => error,
        };
        let is_elsewhere = match (error.is_missing(), said) {
            (true, _) => self.moves().look_again(self.repo(), &known)?,
            (false, Some(said)) => error.is_of_the_object() && self.was_misled(pack, &said)?,
            (false, None) => false,
        };
        if !is_elsewhere {
            return Err(error.into());
        }
        let (wants, groups) = self.located(&wants[given..])?;
        groups.iter().try_for_each(|group| self.fetch_group(&wants[group.wants.clone()], buffers, name, each))
    }

    /// Reads all chunks of one group, as located by the rows of their pack, which are put in `said`.
    fn read_group(
        &self,
        wants: &[PageWant],
        sealed: &mut Vec<u8>,
        said: &mut Option<Arc<PackRows>>,
    ) -> Result<SealedGroup, RepoError> {
        let (Some(first), Some(last)) = (wants.first(), wants.last()) else {
            unreachable!("groups are cut where there is something wanted");
        };
        let pack = first.chunk.pack;
        let rows = Arc::clone(said.insert(self.pack(pack)?));
        let (_, begin) = self.row(&rows, first.chunk)?;
        let (last_row, last_begin) = self.row(&rows, last.chunk)?;
        let len = last_begin + u64::from(last_row.sealed_len) - begin;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // What an earlier group left beyond it need not be zeroed when a larger one comes.
        if sealed.len() < len {
            sealed.resize(len, 0);
        }
        let read = self.repo().store().read_exact_at(&self.log().pack(pack), begin, &mut sealed[..len]);
        read.map_err(RepoError::of_needed)?;
        Ok(SealedGroup { rows, key: self.key(pack)?, begin })
    }

    /// Passes the chunks of a group to `each`, and counts in `given` the wants passed on. Stops at the first
    /// chunk that is not what it must be, and returns why. An error of `each` fails the call.
    fn give_group<E: From<RepoError>>(
        &self,
        wants: &[PageWant],
        SealedGroup { rows, key, begin }: &SealedGroup,
        (sealed, plain): &mut GroupBuffers,
        name: &(dyn Fn(u64) -> String + Sync),
        each: &(dyn Fn(ChunkPages<'_>) -> Result<(), E> + Sync),
        given: &mut usize,
    ) -> Result<Option<RepoError>, E> {
        for wants in wants.chunk_by(|a, b| a.chunk == b.chunk) {
            let mut open = || {
                let chunk = wants[0].chunk;
                let (row, offset) = self.row(rows, chunk)?;
                let from = usize::try_from(offset - begin).unwrap_or(usize::MAX);
                let bytes = &mut sealed[from..from + row.sealed_len as usize];
                self.open_chunk(chunk, &row, key, bytes, plain)?;
                let ChunkKind::Pages(page_size) = row.kind else {
                    return Err(self.page_error(&wants[0], name, "its chunk holds no pages"));
                };
                Ok((row, page_size, from))
            };
            let (row, page_size, from) = match open() {
                Ok(opened) => opened,
                Err(error) => return Ok(Some(error)),
            };
            // Opened in place: of the seal, the tag is left at the end.
            let bytes = &sealed[from..from + (row.sealed_len as usize).saturating_sub(TAG_BYTES)];
            let compressed = row.base.is_none().then_some(bytes);
            let pages = ChunkPages { wants, page_size, plain, codec: row.codec, compressed };
            for (position, want) in wants.iter().enumerate() {
                let page = pages.page(position);
                if page.is_empty() {
                    return Ok(Some(self.page_error(want, name, "its chunk has fewer pages")));
                }
                if !self.is_page(page, want.hash)? {
                    return Ok(Some(self.page_error(want, name, "its hash is not the recorded one")));
                }
            }
            each(pages)?;
            *given += wants.len();
        }
        Ok(None)
    }

    fn page_error(
        &self,
        want: &PageWant,
        name: &(dyn Fn(u64) -> String + Sync),
        what: &'static str,
    ) -> RepoError {
        let pack = self.log().pack(want.chunk.pack);
        let object =
            format!("{} ({pack}, chunk {}, slot {})", name(want.token), want.chunk.ordinal, want.slot);
        RepoError::damaged(object, Damage::Malformed { what })
    }
}
