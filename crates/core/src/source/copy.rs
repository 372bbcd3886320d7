//! Copies tablespaces into the sink and checks each page. For other files, see [`super::plain`].
//!
//! For a page with a bad checksum see [`super::reread`], for one whose checksum cannot be checked without a key
//! [`super::unproven`].

use std::{collections::BTreeSet, io, ops::Range, os::unix::fs::MetadataExt, sync::atomic::Ordering};

use holdfast_formats::{
    Flavor, PageNo, PageSize,
    page::{Checksum, PageState, check_page, doublewrite_ranges, judge_page, page_compressed_with},
    redo::page_allocation::AllocationByte,
    tablespace::Geometry,
};
use holdfast_pipe::aligned::ALIGNMENT;

use super::{
    FileId, FileSpec, Pages, Role,
    context::CopyContext,
    damage::BAD_ON_THE_SOURCE,
    files::{Entry, FileKey, Inode, Signature, path_text, read_failed},
    page_reader::PageReader,
    reread::{REREADS_MAX, pause},
    tablespace::{CopiedTablespace, OpenTablespace, TablespaceEntry, Unended},
    unproven::{self, Unproven},
    workers::{Buffers, EXTENT_BYTES, PAGE0_BYTES},
};
use crate::error::{Error, Result};

/// All bytes of a file, however long it is when its end is read.
const WHOLE: Range<u64> = 0..u64::MAX;

/// What page 0 of a tablespace says about it.
#[derive(Clone, Copy)]
struct FirstPage {
    geometry: Geometry,
    /// MariaDB: whether it says how pages are encrypted. Pages can be encrypted only after page 0 says so.
    says_encryption: bool,
}

/// What [`CopyContext::judge`] found in an extent.
struct Judged {
    /// How many of its bytes there are; fewer than were read if the file was truncated or dropped since.
    whole: usize,
    /// Where pages begin that cannot be checked.
    unverifiable: Vec<usize>,
}

impl CopyContext<'_> {
    /// Copies a tablespace. Returns `None` if it vanished; whether that matters shows at the end.
    pub(super) fn tablespace(
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
                let source = OpenTablespace { found, reader: &reader, geometry: &geometry, first_page, file };
                self.checked_pages(&source, std::slice::from_ref(&WHOLE), buffers)?
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
        let file = copied.file;
        let source = OpenTablespace { found, reader: &reader, geometry: &geometry, first_page, file };
        self.checked_pages(&source, &ranges, buffers).map(Some)
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
            self.check_not_stopped()?;
            pause(reads);
        }
    }

    /// Sends the pages in these byte ranges of a file; returns where the last of them ends. Pages that cannot
    /// be checked are collected and proved together, since the proof takes a wait.
    fn checked_pages(
        &self,
        source: &OpenTablespace<'_>,
        ranges: &[Range<u64>],
        buffers: &mut Buffers,
    ) -> Result<u64> {
        let failed = |error| read_failed(&source.found.entry.real, error);
        let unchecked = self.doublewrite_ranges(source, buffers)?;
        let page_size = source.geometry.page_size();
        let page_bytes = page_size.bytes();
        let mut unproven = Unproven::new();
        let mut ranges = ranges.iter().cloned();
        let Some(mut range) = ranges.next() else { return Ok(0) };
        let mut offset = range.start;
        loop {
            self.check_not_stopped()?;
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
            let got =
                source.reader.read_in_pieces(offset, want, piece, &mut buffers.extent).map_err(failed)?;
            let read_at = self.clock.now();
            let whole = got / page_bytes * page_bytes;
            if whole == 0 {
                break;
            }
            let Judged { whole, unverifiable } = self.judge(source, offset, whole, &unchecked, buffers)?;
            let holes = source.holes(offset, whole).map_err(failed)?;
            let bytes = buffers.extent.bytes(whole);
            let first = offset / page_bytes as u64;
            self.sink.pages(source.file, Pages { first, page_size, bytes, holes: &holes })?;
            if !unverifiable.is_empty()
                && !unproven::at_rest(source.reader, self.clock, began).map_err(failed)?
            {
                unproven.add(offset, bytes, page_bytes, &unverifiable, read_at);
            }
            if unproven.is_full() {
                self.prove(source, &mut unproven, buffers)?;
            }
            self.counters.pages.fetch_add((whole / page_bytes) as u64, Ordering::Relaxed);
            self.count(whole);
            offset += whole as u64;
            // The file ends here, and with it all ranges.
            if whole < want {
                break;
            }
        }
        self.prove(source, &mut unproven, buffers)?;
        Ok(offset)
    }

    /// The pages of the doublewrite area, which may hold anything.
    fn doublewrite_ranges(
        &self,
        source: &OpenTablespace<'_>,
        buffers: &mut Buffers,
    ) -> Result<Vec<Range<PageNo>>> {
        let OpenTablespace { found, reader, geometry, first_page, .. } = *source;
        if geometry.space_id().0 != 0 || first_page != 0 {
            return Ok(Vec::new());
        }
        let page_bytes = geometry.page_size().bytes();
        let page5 = reader.read_again(5 * page_bytes as u64, page_bytes, &mut buffers.page);
        let page5 = page5.map_err(|error| read_failed(&found.entry.real, error))?.unwrap_or_default();
        Ok(doublewrite_ranges(&page5, geometry.page_size()))
    }

    /// Judges the pages in the extent that was read at `offset`, and puts good ones in place of bad ones.
    fn judge(
        &self,
        source: &OpenTablespace<'_>,
        offset: u64,
        whole: usize,
        unchecked: &[Range<PageNo>],
        buffers: &mut Buffers,
    ) -> Result<Judged> {
        let geometry = source.geometry;
        let page_bytes = geometry.page_size().bytes();
        let first = offset / page_bytes as u64;
        let mut judged = Judged { whole, unverifiable: Vec::new() };
        let mut by_checksum = [0; Checksum::ALL.len()];
        for (i, start) in (0..whole).step_by(page_bytes).enumerate() {
            let page_no = source.page_no(first + i as u64)?;
            if unchecked.iter().any(|range| range.contains(&page_no)) {
                continue;
            }
            let page = &buffers.extent.bytes(whole)[start..start + page_bytes];
            let verdict = judge_page(geometry, page_no, page);
            if let Some(checksum) = verdict.checksum {
                by_checksum[checksum as usize] += 1;
            }
            match verdict.state {
                PageState::Good | PageState::Zero => {}
                PageState::Unverifiable => {
                    self.counters.unverifiable.fetch_add(1, Ordering::Relaxed);
                    if let Some(algorithm) = page_compressed_with(geometry, page) {
                        self.counters.compressed_with.fetch_or(1 << algorithm, Ordering::Relaxed);
                    }
                    judged.unverifiable.push(start);
                }
                PageState::Bad => {
                    let at = offset + start as u64;
                    let Some(good) = self.read_until_good(source, page_no, at, buffers)? else {
                        judged.whole = start;
                        break;
                    };
                    buffers.extent.bytes_mut(whole)[start..start + page_bytes].copy_from_slice(&good);
                }
            }
        }
        for (count, found) in self.counters.by_checksum.iter().zip(by_checksum) {
            count.fetch_add(found, Ordering::Relaxed);
        }
        Ok(judged)
    }
}

/// The error for a page 0 of zeros that the server is not about to write.
pub(super) fn zeroed_first_page(path: &str) -> Error {
    damaged_first_page(path, "it is all zeros, although the table was not created just now")
}

/// The error for a damaged page 0. Without it nothing is known about the tablespace, so it is never taken.
fn damaged_first_page(path: &str, how: &str) -> Error {
    Error::failed(format!("page 0 of {path} is damaged: {how}")).hinted(BAD_ON_THE_SOURCE)
}
