//! Pages of Aria tables whose changes are in the Aria log.
//!
//! The log repairs any page that is whole, whether older or newer than the rest. A page that was read in the
//! middle of a write can have the new LSN in front and old rows behind it, and recovery leaves it as it is.
//! So pages are checked, and a bad page is read again. A page that cannot be checked here (created without
//! checksum, or encrypted; the header of an index) is believed if no write of it can have been under way;
//! [`super::unproven`] explains how to tell. But Aria writes through the page cache, so the page is read
//! through it, too. Tables that the log does not cover need none of this: if they have changed, they are
//! copied again while nobody may write to them.

use std::{
    fs::File,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    io::{self, Read},
    ops::Range,
    path::Path,
    sync::atomic::Ordering,
};

use holdfast_formats::{PageNo, PageSize, aria::AriaTable, page::PageState};

use super::{
    FileId,
    context::CopyContext,
    files::{Entry, read_failed},
    page_reader::PageReader,
    reread::{BadPage, REREADS_MAX, WRITE_MAX},
    running_clock::Moment,
    unproven::at_rest,
    workers::{Buffers, EXTENT_BYTES},
};
use crate::error::{Error, Result};

/// The longest page of Aria; the header of an index file is in the first page.
const HEADER_BYTES: u64 = 32 << 10;
/// This many extents are read before the first of them are read again: most of the wait is spent reading.
const DOUBTS_MAX: usize = 128;

/// How to check the pages of a file.
pub(super) struct AriaPages {
    /// How the table is made; `None` if its index file does not tell, or does not yet.
    table: Option<AriaTable>,
    is_index: bool,
}

impl AriaPages {
    /// For a file of the table that has this index file. `None` if the Aria log does not cover the table.
    pub(super) fn of(entry: &Entry, index: &Path) -> Result<Option<Self>> {
        let mut header = Vec::new();
        match File::open(index).and_then(|file| file.take(HEADER_BYTES).read_to_end(&mut header)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(read_failed(index, error)),
        }
        let table = AriaTable::parse(&header).ok();
        let is_covered = table.is_none_or(|table| table.is_transactional());
        Ok(is_covered.then(|| Self { table, is_index: entry.path.ends_with(".MAI") }))
    }

    fn page_bytes(&self) -> usize {
        self.table.map_or(PageSize::DEFAULT_FILE, |table| table.block_size()).bytes()
    }

    fn check(&self, number: u64, page: &[u8]) -> PageState {
        let (Some(table), Ok(number)) = (self.table, u32::try_from(number)) else {
            return PageState::Unverifiable;
        };
        if page.len() < self.page_bytes() {
            // The page is being appended.
            return PageState::Unverifiable;
        }
        match self.is_index {
            true => table.check_index_page(PageNo(number), page),
            false => table.check_data_page(PageNo(number), page),
        }
    }
}

/// Extents with pages that cannot be checked, read while the file was being written to.
#[derive(Default)]
pub(super) struct Doubts {
    extents: Vec<Doubt>,
    /// Only compared with other hashes of this process.
    hasher: RandomState,
}

struct Doubt {
    offset: u64,
    len: usize,
    read_at: Moment,
    /// Hash of the pages that cannot be checked.
    hash: u64,
}

impl Doubts {
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }
}

/// An extent in the buffer.
struct Extent {
    len: usize,
    /// Where the pages are that cannot be checked.
    beyond_check: Vec<Range<usize>>,
    /// Whether no write was under way.
    at_rest: bool,
    /// When the read was over.
    read_at: Moment,
}

impl Extent {
    fn is_proved(&self) -> bool {
        self.at_rest || self.beyond_check.is_empty()
    }

    fn hash(&self, hasher: &RandomState, buffers: &Buffers) -> u64 {
        let mut hash = hasher.build_hasher();
        for page in &self.beyond_check {
            page.start.hash(&mut hash);
            buffers.extent.bytes(page.end)[page.start..].hash(&mut hash);
        }
        hash.finish()
    }
}

impl CopyContext<'_> {
    /// Sends all pages; returns the size, and what has yet to be proved.
    pub(super) fn aria_pages(
        &self,
        entry: &Entry,
        reader: &PageReader,
        pages: &AriaPages,
        file: FileId,
        buffers: &mut Buffers,
    ) -> Result<(u64, Doubts)> {
        let mut doubts = Doubts::default();
        let mut offset = 0;
        loop {
            self.check_not_stopped()?;
            let extent = self.aria_extent(entry, reader, pages, (offset, EXTENT_BYTES), buffers)?;
            let (len, read_at) = (extent.len, extent.read_at);
            self.send(file, offset, len, buffers)?;
            if !extent.is_proved() {
                let hash = extent.hash(&doubts.hasher, buffers);
                doubts.extents.push(Doubt { offset, len, read_at, hash });
            }
            if doubts.extents.len() >= DOUBTS_MAX {
                self.prove_aria(entry, reader, pages, file, &mut doubts, buffers)?;
            }
            self.count(len);
            offset += len as u64;
            if len < EXTENT_BYTES {
                return Ok((offset, doubts));
            }
        }
    }

    /// Reads extents again until the pages that cannot be checked stay the same, and sends changed extents
    /// anew.
    pub(super) fn prove_aria(
        &self,
        entry: &Entry,
        reader: &PageReader,
        pages: &AriaPages,
        file: FileId,
        doubts: &mut Doubts,
        buffers: &mut Buffers,
    ) -> Result<()> {
        for mut doubt in std::mem::take(&mut doubts.extents) {
            for reads in 1.. {
                self.check_not_stopped()?;
                self.clock.wait(doubt.read_at, WRITE_MAX);
                let extent = self.aria_extent(entry, reader, pages, (doubt.offset, doubt.len), buffers)?;
                let (len, read_at) = (extent.len, extent.read_at);
                self.count_again(len);
                let hash = extent.hash(&doubts.hasher, buffers);
                if hash == doubt.hash && len == doubt.len {
                    break;
                }
                self.send(file, doubt.offset, len, buffers)?;
                if extent.is_proved() {
                    break;
                }
                if reads > REREADS_MAX {
                    return Err(Error::failed(format!(
                        "{}: changes too fast for two equal reads of it",
                        entry.path
                    )));
                }
                doubt = Doubt { len, read_at, hash, ..doubt };
            }
        }
        Ok(())
    }

    /// Reads up to `len` bytes at `offset`. Each page is good, or cannot be checked.
    fn aria_extent(
        &self,
        entry: &Entry,
        reader: &PageReader,
        pages: &AriaPages,
        (offset, len): (u64, usize),
        buffers: &mut Buffers,
    ) -> Result<Extent> {
        let failed = |error| read_failed(&entry.real, error);
        let began = self.clock.now();
        let mut len = reader.read(offset, len, &mut buffers.extent).map_err(failed)?;
        let page_bytes = pages.page_bytes();
        let mut beyond_check = Vec::new();
        let mut start = 0;
        while start < len {
            let end = len.min(start + page_bytes);
            let number = (offset + start as u64) / page_bytes as u64;
            match pages.check(number, &buffers.extent.bytes(end)[start..]) {
                PageState::Good | PageState::Zero => {}
                PageState::Unverifiable => beyond_check.push(start..end),
                PageState::Bad => {
                    let bad = BadPage { number, offset: offset + start as u64, bytes: page_bytes };
                    let check = |page: &[u8]| pages.check(number, page);
                    match self.read_page_until_good(entry, reader, &bad, &check, buffers)? {
                        Some(page) => buffers.extent.bytes_mut(end)[start..].copy_from_slice(&page),
                        // The table was emptied, which is in the log.
                        None => len = start,
                    }
                }
            }
            start = end;
        }
        self.counters.unverifiable.fetch_add(beyond_check.len() as u64, Ordering::Relaxed);
        let at_rest = at_rest(reader, self.clock, began).map_err(failed)?;
        Ok(Extent { len, beyond_check, at_rest, read_at: self.clock.now() })
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::FileExt, thread, time::Duration};

    use holdfast_formats::Flavor;

    use super::*;
    use crate::source::{
        Role,
        plain::{Manner, PlainFile},
        unproven::tests::{OneFile, copy_into, entry},
    };

    const PAGE: usize = 8192;
    const PAGES: usize = 5;
    const NO_CHECKSUM: u32 = 0xFFFF_FFFF;
    /// Where the header says whether the log covers the table.
    const TRANSACTIONAL_AT: usize = 0x107 + 106;

    /// The header of an index file: 8 KiB pages, transactional.
    fn index() -> Vec<u8> {
        let mut header = vec![0; PAGE];
        header[..24].copy_from_slice(&[
            0xFE, 0xFE, 9, 3, 0x0C, 2, 2, 0x0C, 0, 0xD7, 0, 0x87, 1, 7, 0, 2, 0, 0, 2, 0, 0, 0, 3, 3,
        ]);
        header[12..14].copy_from_slice(&0x107_u16.to_be_bytes());
        header[0x107 + 22..0x107 + 24].copy_from_slice(&[0x20, 0]);
        header[0x107 + 100..0x107 + 102].copy_from_slice(&[0x20, 0]);
        header[TRANSACTIONAL_AT] = 1;
        header
    }

    fn page(number: usize, body: u8, with_checksum: bool) -> Vec<u8> {
        let mut page = vec![body; PAGE];
        let mut crc = crc32fast::Hasher::new_with_initial(u32::try_from(number).unwrap());
        crc.update(&page[..PAGE - 4]);
        let sum = if with_checksum { crc.finalize() } else { NO_CHECKSUM };
        page[PAGE - 4..].copy_from_slice(&sum.to_le_bytes());
        page
    }

    fn copied(data: &Path, index: &Path) -> Vec<u8> {
        let sink = OneFile::default();
        let manner = Manner::Aria { index: index.to_owned() };
        let plain = PlainFile { entry: entry("db/t.MAD", data), role: Role::Aria, manner };
        let copied = copy_into(&sink, Flavor::MariaDb, |context| {
            let mut buffers = Buffers::default();
            let copy = context.plain(&plain, &mut buffers).unwrap().unwrap();
            if let Some(unfinished) = copy.unfinished {
                context.finish(unfinished, &mut buffers).unwrap();
            }
            copy.copied
        });
        let mut bytes = sink.0.into_inner().unwrap();
        bytes.truncate(usize::try_from(copied.size_bytes).unwrap());
        bytes
    }

    /// A page whose write takes much longer than two reads of it is caught in mid-write, and the end of the
    /// write is waited for: with a checksum, without one, and where nothing is known about the table.
    #[test]
    fn a_page_is_not_taken_in_the_middle_of_its_write() {
        for (with_checksum, is_known) in [(true, true), (false, true), (false, false)] {
            let dir = tempfile::tempdir().unwrap();
            let (data, header) = (dir.path().join("t.MAD"), dir.path().join("t.MAI"));
            if is_known {
                std::fs::write(&header, index()).unwrap();
            }
            let before: Vec<u8> = (0..PAGES).flat_map(|number| page(number, 1, with_checksum)).collect();
            std::fs::write(&data, before).unwrap();
            thread::sleep(2 * WRITE_MAX);
            let file = File::options().write(true).open(&data).unwrap();
            let (at, new) = (3 * PAGE, page(3, 2, with_checksum));
            file.write_all_at(&new[..PAGE / 2], at as u64).unwrap();
            let writer = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                file.write_all_at(&new[PAGE / 2..], (at + PAGE / 2) as u64).unwrap();
            });
            let copy = copied(&data, &header);
            writer.join().unwrap();
            assert!(copy == std::fs::read(&data).unwrap(), "the page is torn: {with_checksum} {is_known}");
        }
    }

    /// A table that the log does not cover is copied again instead, while nobody may write to it.
    #[test]
    fn only_tables_that_the_log_covers_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (data, header) = (dir.path().join("t.MAD"), dir.path().join("t.MAI"));
        let mut uncovered = index();
        uncovered[TRANSACTIONAL_AT] = 0;
        std::fs::write(&header, uncovered).unwrap();
        let torn = vec![7; PAGE + 100];
        std::fs::write(&data, &torn).unwrap();
        assert!(copied(&data, &header) == torn);
    }
}
