//! Fetches many pages at once: neighbouring chunks in one read, several threads, every page verified.
//!
//! A restore can take longer than the grace. Pages whose pack is gone are looked for where a prune has moved them since
//! they were looked up: whole chunks move, so that slots stay what they are.

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

/// Chunks of a pack are read together when no more than this lies between them.
pub(super) const GAP_BYTES_MAX: u64 = 256 << 10;
/// One read is at most this long.
const READ_BYTES_MAX: u64 = 8 << 20;

/// One page that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWant {
    /// Where it is: from entries that [`super::Backup::leaf`] gave.
    pub chunk: ChunkRef,
    /// Position in the chunk.
    pub slot: u32,
    /// What it must be.
    pub hash: PageHash,
    /// The caller's name for it.
    pub token: u64,
}

/// How to fetch.
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
    /// What was wanted of it, by slot. The chunk is where it was found.
    pub wants: &'a [PageWant],
    /// Size of its pages.
    pub page_size: PageSize,
    plain: &'a [u8],
    codec: Codec,
    /// What it was decompressed from; `None` where that was not all.
    compressed: Option<&'a [u8]>,
}

/// A chunk of pages of one size.
#[derive(Clone, Copy, Debug)]
pub struct WholeChunk<'a> {
    /// The size.
    pub page_size: PageSize,
    /// Its bytes.
    pub plain: &'a [u8],
    /// How they became `compressed`.
    pub codec: Codec,
    /// What `plain` was made from: nobody compares the two again.
    pub compressed: &'a [u8],
}

impl<'a> ChunkPages<'a> {
    /// The bytes of `wants[position]`.
    #[must_use]
    pub fn page(&self, position: usize) -> &'a [u8] {
        self.run(position..position + 1)
    }

    /// The chunk, where each page of it is wanted once.
    #[must_use]
    pub fn whole(&self) -> Option<WholeChunk<'a>> {
        let each_once = self.wants.iter().zip(0..).all(|(want, slot)| want.slot == slot);
        let all = each_once && self.wants.len() * self.page_size.bytes() == self.plain.len();
        let compressed = self.compressed.filter(|_| all)?;
        Some(WholeChunk { page_size: self.page_size, plain: self.plain, codec: self.codec, compressed })
    }

    /// The bytes of several wants whose slots follow one another; empty if they do not.
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

/// The bytes of a group, sealed, with what opens them.
struct SealedGroup {
    rows: Arc<PackRows>,
    key: Arc<ObjectKey>,
    begin: u64,
}

/// What a thread reads into.
type GroupBuffers = (Vec<u8>, Vec<u8>);

impl ChunkSource {
    /// Fetches `wants`, which are sorted by chunk and slot, and calls `each` for every chunk of them, from several
    /// threads and in no order. `name` gives the caller's words for a token; errors use it. The first error ends it.
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

    /// The wants where their chunks are now, sorted by that, and cut into groups.
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

    /// Cuts the wants where another pack begins, where much lies between, or where a read would become long.
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

    /// Reads all chunks of one group, by what is `said` of their pack.
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
        sealed.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        let read = self.repo().store().read_exact_at(&self.log().pack(pack), begin, sealed);
        read.map_err(RepoError::of_needed)?;
        Ok(SealedGroup { rows, key: self.key(pack)?, begin })
    }

    /// Gives the chunks of a group, and counts the wants that were `given`, until one is not what it must be: then says
    /// so. What comes of the caller fails it.
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
            // Opened in place; what is left of the seal is its tag.
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
