//! Copies tablespaces into the sink and checks each page. For other files, see [`super::plain`].
//!
//! A page with a bad checksum was torn by a write in progress, so it is read again until it is good; one that
//! stays bad is [damaged](super::damage). For a page whose checksum cannot be checked without a key, see
//! [`super::unproven`].

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_formats::{
    Flavor, PageNo, PageSize,
    page::{Checksum, PageState, check_page, doublewrite_ranges, judge_page, page_compressed_with},
    redo::page_allocation::AllocationByte,
    tablespace::Geometry,
};
use holdfast_pipe::{
    AlignedBuffer, Headroom, Stop,
    aligned::ALIGNMENT,
    lock::{into_inner, lock},
    throttle::Throttle,
};
use rustix::fs::{SeekFrom, seek};

use super::{
    FileId, FileSpec, Pages, RedoProgress, Role, Sink,
    damage::Damage,
    files::{Entry, FileKey, Inode, Signature, path_text, read_failed},
    inventory::TablespaceEntry,
    page_reader::{PageReader, ReadMode},
    running_clock::{Moment, RunningClock},
    unproven::{self, Unproven, WRITE_MAX},
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    meter::Meter,
};

/// Bytes read at once: the largest chunk the repository makes.
pub(super) const EXTENT_BYTES: usize = 1 << 20;
/// A torn page is good again within milliseconds. A page that is still bad after this many reads is damaged.
pub(super) const REREADS_MAX: u32 = 200;
/// Bytes from the start of a file that suffice to tell the geometry of any tablespace: the largest page 0.
const PAGE0_BYTES: usize = 65_536;
/// Room for one page that need not begin at a block of the disk.
const PAGE_BUFFER_BYTES: usize = PAGE0_BYTES + 4096;

/// Counters of all copies, shared by the threads.
#[derive(Debug, Default)]
pub struct CopyCounters {
    /// Pages of tablespaces.
    pub pages: AtomicU64,
    /// Bytes of any file.
    pub bytes: AtomicU64,
    /// Pages that were bad at first.
    pub torn_pages: AtomicU64,
    /// Reads needed to get them right.
    pub torn_reads: AtomicU64,
    /// Pages accepted after two equal reads.
    pub unverifiable: AtomicU64,
    /// Good pages by checksum, in the order of [`Checksum::ALL`].
    pub by_checksum: [AtomicU64; Checksum::ALL.len()],
    /// MariaDB: the algorithms of page compression that pages told, a bit for each.
    pub compressed_with: AtomicU8,
    /// Files that vanished.
    pub vanished: AtomicU64,
}

impl CopyCounters {
    /// Bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Pages read so far.
    #[must_use]
    pub fn pages_read(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }
}

/// What every copy needs.
pub struct CopyContext<'a> {
    /// The flavor of the server.
    pub flavor: Flavor,
    /// Tells how long ago a read was.
    pub clock: &'a RunningClock,
    /// How tablespaces are read.
    pub mode: ReadMode,
    /// Where the pages go.
    pub sink: &'a dyn Sink,
    /// Counters that all copies share.
    pub counters: &'a CopyCounters,
    /// Reports the progress.
    pub progress: &'a Meter<'a>,
    /// Limits the rate of reading. No lock is held while it does.
    pub throttle: &'a Throttle,
    /// What the copy leaves to the server.
    pub headroom: &'a Headroom,
    /// Ends the copy early.
    pub cancel: &'a Cancel,
    /// Also ends the copy early: without the redo no copy is worth anything.
    pub redo: &'a dyn RedoProgress,
    /// Decides about pages that are damaged on the source.
    pub damage: &'a Damage<'a>,
}

/// A tablespace that was copied.
#[derive(Clone, Debug)]
pub struct CopiedTablespace {
    /// Its id in the sink.
    pub file: FileId,
    /// Which incarnation of which space it is.
    pub key: FileKey,
    /// Signature of the file just before it was opened.
    pub signature: Signature,
    /// MariaDB: whether page 0, as it was sent, says how pages are encrypted. For a further file of a
    /// tablespace: whether page 0 of the first file said so when the copy ended.
    pub says_encryption: bool,
    /// Set for files of tablespaces that tables share, which can still gain pages.
    pub unended: Option<Unended>,
    /// Set if page 0 was all zeros: nothing of the file was checked.
    pub unwritten: Option<TablespaceEntry>,
}

/// A copy that is ended when the capture ends.
#[derive(Clone, Debug)]
pub struct Unended {
    real: PathBuf,
    page_size: PageSize,
    size_bytes: u64,
    /// Whether the copy must be as long as its file is then. Recovery extends a tablespace to the length that
    /// the redo tells, but MySQL's recovery judges the system tablespace by the length that it finds
    /// (verified on 9.7.4).
    follows_its_file: bool,
}

impl Unended {
    /// Records that the copy has pages up to here, at least.
    pub(super) fn is_now(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }
}

/// What page 0 of a tablespace says about it.
#[derive(Clone, Copy)]
struct FirstPage {
    geometry: Geometry,
    /// MariaDB: whether it says how pages are encrypted. Pages can be encrypted only after page 0 says so.
    says_encryption: bool,
}

/// A tablespace file that is being read.
#[derive(Clone, Copy)]
struct Source<'a> {
    found: &'a TablespaceEntry,
    reader: &'a PageReader,
    geometry: &'a Geometry,
    /// The number of the file's first page in the tablespace.
    first_page: u64,
}

/// A page that was bad when it was read.
pub(super) struct BadPage {
    /// Its number, for messages.
    pub(super) number: u64,
    /// Its offset in the file.
    pub(super) offset: u64,
    /// Its size.
    pub(super) bytes: usize,
}

impl CopyContext<'_> {
    pub(super) fn may_go_on(&self) -> Result<()> {
        self.cancel.check()?;
        self.redo.check()
    }

    /// Waits until the processors are no longer busy with what was sent. Called before a lock is taken.
    pub(super) fn drain(&self) -> Result<()> {
        while !self.sink.is_drained()? {
            self.may_go_on()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Copies a tablespace. Returns `None` if it vanished; whether that matters shows at the end.
    pub fn tablespace(
        &self,
        found: &TablespaceEntry,
        buffers: &mut Buffers,
    ) -> Result<Option<CopiedTablespace>> {
        let (entry, role) = (&found.entry, found.role);
        let gone = || {
            self.vanished();
            Ok(None)
        };
        let failed = |error| read_failed(&entry.real, error);
        let signature = match std::fs::metadata(&entry.real) {
            Ok(metadata) => Signature::of(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return gone(),
            Err(error) => return Err(failed(error)),
        };
        let reader = match PageReader::open(&entry.real, self.mode) {
            Ok(reader) => reader,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return gone(),
            Err(error) => return Err(failed(error)),
        };
        let inode = Inode::of(reader.file()).map_err(failed)?;
        let (listed, found) = (found, &found.opened(inode));
        let entry = &found.entry;
        let size_at_start = reader.file().metadata().map_err(failed)?.len();
        let first_file = match &found.continues {
            None => None,
            Some(continues) => Some(
                PageReader::open(&continues.first_file, self.mode)
                    .map_err(|error| read_failed(&continues.first_file, error))?,
            ),
        };
        let first_page = found.continues.as_ref().map_or(0, |continues| continues.first_page);
        let first_reader = first_file.as_ref().unwrap_or(&reader);
        let before = self.first_page(entry, first_reader, buffers)?;
        let geometry = before.map(|before| before.geometry);
        if geometry.is_none() && role == Role::System {
            return Err(zeroed_first_page(&entry.path));
        }
        let own_space = geometry.filter(|_| found.continues.is_none()).map(|g| g.space_id());
        let key = FileKey { space: own_space, inode };
        let page_size = geometry.map_or(PageSize::DEFAULT_FILE, |g| g.page_size());
        self.damage.file_begins(entry);
        let file = self.sink.file_begin(FileSpec {
            path: entry.path.clone(),
            role,
            mode: entry.mode,
            page_size,
            space: geometry.map(|g| (g.space_id(), g.flags())),
            outside: entry.outside.then(|| path_text(&entry.real)),
        })?;
        let size = match geometry {
            Some(geometry) => {
                let source = Source { found, reader: &reader, geometry: &geometry, first_page };
                self.checked_pages(&source, std::slice::from_ref(&WHOLE), file, buffers)?
            }
            // The file was created during this backup, and its page 0 is still in the buffer pool only. The
            // redo initialises all of its pages, but the file must exist: a crashed server would find it like
            // this, too. Once definitions cannot change, it is verified that this is the case.
            None => self.plain_pages(entry, &reader, file, 0, buffers)?,
        };
        // A partial page at the end was never written as a page.
        let whole_at_start = size_at_start / page_size.bytes() as u64 * page_size.bytes() as u64;
        if size < whole_at_start && role != Role::Undo {
            let links = reader.file().metadata().map_err(failed)?.nlink();
            if links > 0 {
                return Err(Error::failed(format!(
                    "{}: became shorter while it was copied ({size_at_start} to {size} bytes)",
                    entry.path
                )));
            }
        }
        let mut says_encryption = before.is_some_and(|before| before.says_encryption);
        if before.is_some() && self.flavor == Flavor::MariaDb && !says_encryption {
            // Encryption threads may have begun meanwhile. They first write to page 0 how pages are
            // encrypted; without that, recovery could not read the pages copied since.
            let now = self.first_page(entry, first_reader, buffers)?;
            says_encryption = now.is_some_and(|now| now.says_encryption);
            if says_encryption && found.continues.is_none() {
                let bytes = buffers.extent.bytes(page_size.bytes());
                self.sink.pages(file, Pages { first: 0, page_size, bytes, holes: &[] })?;
            }
        }
        let is_system = role == Role::System;
        let is_shared = is_system || geometry.is_some_and(|geometry| geometry.is_shared());
        let unended = is_shared.then(|| Unended {
            real: entry.real.clone(),
            page_size,
            size_bytes: size,
            follows_its_file: is_system,
        });
        if unended.is_none() {
            self.sink.file_end(file, size)?;
        }
        let unwritten = geometry.is_none().then(|| listed.clone());
        Ok(Some(CopiedTablespace { file, key, signature, says_encryption, unended, unwritten }))
    }

    /// Reads the pages of a copied file that `allocated` names again, and those that the file has grown by.
    /// Returns the new length of the copy, or `None` if the file is gone or was replaced.
    pub(super) fn amend(
        &self,
        found: &TablespaceEntry,
        copied: &CopiedTablespace,
        allocated: &[AllocationByte],
        buffers: &mut Buffers,
    ) -> Result<Option<u64>> {
        let entry = &found.entry;
        let failed = |error| read_failed(&entry.real, error);
        let open = |path| match PageReader::open(path, self.mode) {
            Ok(reader) => Ok(Some(reader)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(read_failed(path, error)),
        };
        let Some(reader) = open(&entry.real)? else { return Ok(None) };
        let is_the_same = Inode::of(reader.file()).map_err(failed)? == copied.key.inode;
        let Some(Unended { size_bytes, .. }) = copied.unended.as_ref().filter(|_| is_the_same) else {
            return Ok(None);
        };
        let found = &found.opened(copied.key.inode);
        let entry = &found.entry;
        let first_file = match &found.continues {
            None => None,
            Some(continues) => open(&continues.first_file)?,
        };
        let first_page = found.continues.as_ref().map_or(0, |continues| continues.first_page);
        let first = self.first_page(entry, first_file.as_ref().unwrap_or(&reader), buffers)?;
        let Some(FirstPage { geometry, .. }) = first else { return Ok(None) };
        let page_bytes = geometry.page_size().bytes() as u64;
        let pages: BTreeSet<_> = allocated
            .iter()
            .filter_map(|byte| byte.first_page(geometry.page_size(), geometry.logical_page_size()))
            .filter_map(|page| u64::from(page.0).checked_sub(first_page))
            .collect();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for page in pages {
            let start = page * page_bytes;
            let end = (start + u64::from(AllocationByte::PAGES) * page_bytes).min(*size_bytes);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ if start < end => ranges.push(start..end),
                _ => (),
            }
        }
        // From a block of the disk on: pages can be smaller.
        ranges.push(*size_bytes / ALIGNMENT as u64 * ALIGNMENT as u64..u64::MAX);
        let source = Source { found, reader: &reader, geometry: &geometry, first_page };
        self.checked_pages(&source, &ranges, copied.file, buffers).map(Some)
    }

    /// Ends a copy whose file may have grown. The pages it grew by were written after the captured redo
    /// began, which builds them from pages of zeros. The file may be longer than the redo tells; InnoDB takes
    /// the excess for free space.
    pub(super) fn end_tablespace(&self, file: FileId, unended: &Unended) -> Result<()> {
        let Unended { real, page_size, size_bytes, follows_its_file } = unended;
        if !follows_its_file {
            return self.sink.file_end(file, *size_bytes);
        }
        let now = std::fs::metadata(real).map_err(|error| read_failed(real, error))?;
        let page_bytes = page_size.bytes() as u64;
        let pages = (size_bytes / page_bytes)..(now.len() / page_bytes);
        let zeros = vec![0; EXTENT_BYTES];
        let step = EXTENT_BYTES / page_size.bytes();
        for first in pages.clone().step_by(step) {
            let count = usize::try_from(pages.end - first).map_or(step, |left| left.min(step));
            let bytes = &zeros[..count * page_size.bytes()];
            self.sink.pages(file, Pages { first, page_size: *page_size, bytes, holes: &[] })?;
        }
        self.sink.file_end(file, pages.end.max(pages.start) * page_bytes)
    }

    /// What a good page 0 says; the page is then in the buffer. `None` while page 0 is all zeros.
    fn first_page(
        &self,
        entry: &Entry,
        reader: &PageReader,
        buffers: &mut Buffers,
    ) -> Result<Option<FirstPage>> {
        let mut reads = 0;
        loop {
            let failed = |error| read_failed(&entry.real, error);
            if reads > 0 {
                reader.forget(0, PAGE0_BYTES).map_err(failed)?;
            }
            let got = reader.read(0, PAGE0_BYTES, &mut buffers.extent).map_err(failed)?;
            let prefix = buffers.extent.bytes(got);
            if prefix.iter().take(1024).all(|byte| *byte == 0) {
                return Ok(None);
            }
            let parsed = Geometry::parse(self.flavor, prefix);
            if let Ok(Some(geometry)) = parsed
                && let Some(page) = prefix.get(..geometry.page_size().bytes())
                && check_page(&geometry, PageNo(0), page) != PageState::Bad
            {
                if reads > 0 {
                    self.counters.torn_pages.fetch_add(1, Ordering::Relaxed);
                }
                let says_encryption = geometry.encrypted(page) == Some(true);
                return Ok(Some(FirstPage { geometry, says_encryption }));
            }
            reads += 1;
            self.counters.torn_reads.fetch_add(1, Ordering::Relaxed);
            if reads > REREADS_MAX {
                let how = format!("{REREADS_MAX} reads gave no good checksum");
                let error = damaged_first_page(&entry.path, &how);
                return Err(match parsed {
                    Err(cause) => error.caused_by(cause),
                    Ok(_) => error,
                });
            }
            self.may_go_on()?;
            pause(reads);
        }
    }

    /// Sends the pages in these byte ranges of a file; returns where the last of them ends. Pages that cannot
    /// be checked are collected and proved together, since the proof takes a wait.
    fn checked_pages(
        &self,
        source: &Source<'_>,
        ranges: &[Range<u64>],
        file: FileId,
        buffers: &mut Buffers,
    ) -> Result<u64> {
        let Source { found, reader, geometry, first_page: space_page } = *source;
        let entry = &found.entry;
        let failed = |error| read_failed(&entry.real, error);
        let page_bytes = geometry.page_size().bytes();
        let unchecked = if geometry.space_id().0 == 0 && space_page == 0 {
            let page5 = reader
                .read_again(5 * page_bytes as u64, page_bytes, &mut buffers.page)
                .map_err(failed)?
                .unwrap_or_default();
            doublewrite_ranges(&page5, geometry.page_size())
        } else {
            Vec::new()
        };
        let mut unproven = Unproven::new(space_page);
        let mut ranges = ranges.iter().cloned();
        let Some(mut range) = ranges.next() else { return Ok(0) };
        let mut offset = range.start;
        loop {
            self.may_go_on()?;
            if offset >= range.end {
                let Some(next) = ranges.next() else { break };
                range = next;
                offset = range.start;
            }
            let began = self.clock.now();
            self.headroom.saw_log(self.redo.captured().0);
            let piece = self.headroom.read_bytes(EXTENT_BYTES);
            let left = range.end.saturating_sub(offset);
            let want = usize::try_from(left).map_or(EXTENT_BYTES, |left| left.min(EXTENT_BYTES));
            let got = reader.read_in_pieces(offset, want, piece, &mut buffers.extent).map_err(failed)?;
            let read_at = self.clock.now();
            let mut whole = got / page_bytes * page_bytes;
            if whole == 0 {
                break;
            }
            let first = offset / page_bytes as u64;
            let mut doubtful = Vec::new();
            let mut by_checksum = [0; Checksum::ALL.len()];
            for (i, start) in (0..whole).step_by(page_bytes).enumerate() {
                let page_no = page_no(entry, space_page + first + i as u64)?;
                if unchecked.iter().any(|range| range.contains(&page_no)) {
                    continue;
                }
                let page = &buffers.extent.bytes(whole)[start..start + page_bytes];
                let judged = judge_page(geometry, page_no, page);
                if let Some(checksum) = judged.checksum {
                    by_checksum[checksum as usize] += 1;
                }
                let good = match judged.state {
                    PageState::Good | PageState::Zero => true,
                    PageState::Bad => false,
                    PageState::Unverifiable => {
                        self.counters.unverifiable.fetch_add(1, Ordering::Relaxed);
                        if let Some(algorithm) = page_compressed_with(geometry, page) {
                            self.counters.compressed_with.fetch_or(1 << algorithm, Ordering::Relaxed);
                        }
                        doubtful.push(start);
                        true
                    }
                };
                if !good {
                    let at = offset + start as u64;
                    let mended = self.read_until_good(entry, reader, geometry, page_no, at, buffers)?;
                    let Some(mended) = mended else {
                        whole = start;
                        break;
                    };
                    buffers.extent.bytes_mut(whole)[start..start + page_bytes].copy_from_slice(&mended);
                }
            }
            let holes = holes(reader, offset, whole, page_bytes).map_err(failed)?;
            let bytes = buffers.extent.bytes(whole);
            let page_size = geometry.page_size();
            self.sink.pages(file, Pages { first, page_size, bytes, holes: &holes })?;
            doubtful.retain(|start| *start < whole);
            if !doubtful.is_empty() && !unproven::at_rest(reader, self.clock, began).map_err(failed)? {
                unproven.add(offset, bytes, page_bytes, &doubtful, read_at);
            }
            if unproven.is_full() {
                self.prove(found, reader, geometry, file, &mut unproven, buffers)?;
            }
            self.counters.pages.fetch_add((whole / page_bytes) as u64, Ordering::Relaxed);
            for (count, found) in self.counters.by_checksum.iter().zip(by_checksum) {
                count.fetch_add(found, Ordering::Relaxed);
            }
            self.count(whole);
            offset += whole as u64;
            // The file ends here, and with it all ranges.
            if whole < want {
                break;
            }
        }
        self.prove(found, reader, geometry, file, &mut unproven, buffers)?;
        Ok(offset)
    }

    /// Reads a bad page again until it is good. Returns `None` if the file now ends before it, or was
    /// deleted.
    pub(super) fn read_until_good(
        &self,
        entry: &Entry,
        reader: &PageReader,
        geometry: &Geometry,
        page_no: PageNo,
        offset: u64,
        buffers: &mut Buffers,
    ) -> Result<Option<Vec<u8>>> {
        let page = BadPage { number: page_no.0.into(), offset, bytes: geometry.page_size().bytes() };
        self.read_page_until_good(entry, reader, &page, &|page| check_page(geometry, page_no, page), buffers)
    }

    /// The same for any kind of page, as judged by `check`.
    pub(super) fn read_page_until_good(
        &self,
        entry: &Entry,
        reader: &PageReader,
        page: &BadPage,
        check: &dyn Fn(&[u8]) -> PageState,
        buffers: &mut Buffers,
    ) -> Result<Option<Vec<u8>>> {
        self.counters.torn_pages.fetch_add(1, Ordering::Relaxed);
        let mut before: Option<Same> = None;
        let mut reads = 0;
        while reads < REREADS_MAX {
            reads += 1;
            pause(reads);
            self.may_go_on()?;
            self.counters.torn_reads.fetch_add(1, Ordering::Relaxed);
            let now = reader
                .read_again(page.offset, page.bytes, &mut buffers.page)
                .map_err(|error| read_failed(&entry.real, error))?;
            let Some(now) = now else { return Ok(None) };
            let state = check(&now);
            if matches!(state, PageState::Good | PageState::Zero) {
                return Ok(Some(now));
            }
            if state == PageState::Bad && self.damage.again(entry, page.number, &now) {
                return Ok(Some(now));
            }
            let read_at = self.clock.now();
            let same = match before.take() {
                Some(same) if same.page == now => Same { reads: same.reads + 1, ..same },
                _ => Same { page: now, since: read_at, reads: 1 },
            };
            let is_long = read_at.ran - same.since.ran >= WRITE_MAX;
            match state {
                PageState::Unverifiable if is_long => return Ok(Some(same.page)),
                PageState::Unverifiable => self.clock.wait(same.since, WRITE_MAX),
                // No write lasts this long: the page must be on disk like this.
                _ if is_long && same.reads >= Same::READS_MIN => {
                    before = Some(same);
                    break;
                }
                _ => {}
            }
            before = Some(same);
        }
        // A file that was dropped meanwhile may end in any state: it is not part of the backup.
        let links = reader.file().metadata().map_or(1, |metadata| metadata.nlink());
        if links == 0 {
            return Ok(None);
        }
        let Some(Same { page: last, .. }) = before else { return Ok(None) };
        self.damage.page(entry, page.number, &last, reads)?;
        Ok(Some(last))
    }

    /// Lifts the limits: a lock is held, or about to be taken.
    pub(super) fn hurry(&self) {
        self.throttle.set_rate(None);
        self.headroom.end();
    }

    /// Restores the limits: the lock was released, and the server comes first again.
    pub(super) fn take_time(&self, read_bytes_per_s_max: Option<u64>) {
        self.throttle.set_rate(read_bytes_per_s_max);
        self.headroom.go_on();
    }

    pub(super) fn vanished(&self) {
        self.counters.vanished.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self, bytes: usize) {
        self.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.progress.add(bytes as u64);
        self.throttle.take(bytes as u64, || self.cancel.is_cancelled() || self.redo.has_failed());
    }
}

/// A page that was read several times with the same content.
struct Same {
    page: Vec<u8>,
    since: Moment,
    reads: u32,
}

impl Same {
    const READS_MIN: u32 = 20;
}

/// Buffers of one reader thread.
#[derive(Debug)]
pub struct Buffers {
    pub(super) extent: AlignedBuffer,
    pub(super) second: AlignedBuffer,
    page: AlignedBuffer,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            extent: AlignedBuffer::new(EXTENT_BYTES),
            second: AlignedBuffer::new(EXTENT_BYTES),
            page: AlignedBuffer::new(PAGE_BUFFER_BYTES),
        }
    }
}

/// All bytes of a file, however long it is when its end is read.
const WHOLE: Range<u64> = 0..u64::MAX;

/// Bytes that the buffers of one reader thread take.
pub const BUFFERS_BYTES: usize = 2 * EXTENT_BYTES + PAGE_BUFFER_BYTES;

/// Which pages of an extent lie in holes of the file; empty where the file has none.
pub(super) fn holes(
    reader: &PageReader,
    offset: u64,
    len: usize,
    page_bytes: usize,
) -> io::Result<Vec<bool>> {
    let metadata = reader.file().metadata()?;
    if metadata.blocks() * 512 >= metadata.len() {
        return Ok(Vec::new());
    }
    let mut holes = vec![false; len / page_bytes];
    let end = offset + len as u64;
    let mut at = offset;
    while at < end {
        let data = match seek(reader.file(), SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(rustix::io::Errno::NXIO) => end,
            // The file system does not report holes.
            Err(rustix::io::Errno::INVAL) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        for (i, hole) in holes.iter_mut().enumerate() {
            let page = offset + (i * page_bytes) as u64;
            *hole |= page >= at && page + page_bytes as u64 <= data;
        }
        if data >= end {
            break;
        }
        at = seek(reader.file(), SeekFrom::Hole(data))?;
    }
    Ok(holes)
}

/// Runs `work` over `jobs` on `threads` threads. Jobs are started in order, results are returned as they
/// come. The first error ends it.
pub fn on_threads<J: Send, R: Send>(
    jobs: Vec<J>,
    threads: usize,
    work: impl Fn(J, &mut Buffers) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Mutex::new(jobs.into_iter());
    let results = Mutex::new(Vec::new());
    let stop = Stop::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut buffers = Buffers::default();
                while !stop.is_stopped() {
                    let job = lock(&queue).next();
                    let Some(job) = job else { break };
                    match work(job, &mut buffers) {
                        Ok(result) => {
                            lock(&results).push(result);
                        }
                        Err(error) => stop.fail(error),
                    }
                }
            });
        }
    });
    match stop.take() {
        Some(error) => Err(error),
        None => Ok(into_inner(results)),
    }
}

fn page_no(entry: &Entry, page: u64) -> Result<PageNo> {
    u32::try_from(page)
        .map(PageNo)
        .map_err(|_| Error::failed(format!("{}: more pages than a tablespace can have", entry.path)))
}

fn pause(reads: u32) {
    std::thread::sleep(Duration::from_millis(u64::from(reads.min(5)) * 2));
}

/// The error for a page 0 of zeros that the server is not about to write.
pub(super) fn zeroed_first_page(path: &str) -> Error {
    damaged_first_page(path, "it is all zeros, although the table was not created just now")
}

/// The error for a damaged page 0. Without it nothing is known about the tablespace, so it is never taken.
fn damaged_first_page(path: &str, how: &str) -> Error {
    Error::failed(format!("page 0 of {path} is damaged: {how}"))
        .hinted("the page is bad on the source itself; run CHECK TABLE there, and see the server's error log")
}
