//! One file being written, page by page, from several threads.

use std::{
    cell::RefCell,
    fs::{File, Permissions},
    io,
    num::NonZero,
    os::unix::fs::{FileExt, PermissionsExt},
    path::PathBuf,
};

use holdfast_formats::Flavor;
use holdfast_pipe::aligned::{ALIGNMENT, AlignedBuffer};
use rustix::{
    fs::{Advice, FallocateFlags, fadvise, fallocate},
    io::Errno,
};

use super::super::target::io_failed;
use crate::error::Result;

/// Writeback is started for runs of at least this length; shorter ones are left for the kernel to gather.
const WRITE_BACK_BYTES_MIN: u64 = 256 << 10;
/// Files of at least this size are written past the page cache, where runs of pages are long enough.
pub(super) const DIRECT_FILE_BYTES_MIN: u64 = 4 << 20;
const DIRECT_RUN_BYTES_MIN: usize = 128 << 10;
/// Zeros are written in pieces of this size where the filesystem cannot allocate them.
const ZEROS: &[u8] = &[0; 64 << 10];

thread_local! {
    /// What is written past the page cache must be aligned in memory; one for each writing thread.
    static ALIGNED: RefCell<AlignedBuffer> = RefCell::new(AlignedBuffer::new(1 << 20));
}

/// What a file is to become.
pub(super) struct FileSpec {
    /// For messages.
    pub(super) shown: PathBuf,
    pub(super) page_bytes: usize,
    /// Where the first page is.
    pub(super) base: u64,
    /// Bytes that the pages stand for; they may end within the last page.
    pub(super) data_bytes: u64,
    /// Size of the file.
    pub(super) size_bytes: u64,
    pub(super) mode: u16,
    /// Whether it was made just now, so that nothing of it needs to be read.
    pub(super) is_new: bool,
    /// Whether zeros may be holes.
    pub(super) sparse: bool,
    /// Whose tablespace it is, if it is one: the server leaves holes behind compressed pages.
    pub(super) tablespace_of: Option<Flavor>,
}

/// An open file.
pub(super) struct TargetFile {
    file: File,
    /// The same, for writing past the page cache: a restored server reads past it as well, so pages left
    /// there would cost a copy and be of no use.
    direct: Option<File>,
    spec: FileSpec,
}

impl TargetFile {
    /// Gives the file its size and mode.
    pub(super) fn begin(file: File, direct: Option<File>, spec: FileSpec) -> Result<Self> {
        let begin = || {
            if !spec.is_new {
                // After a writeback has failed, the page cache takes its pages for what is on the disk: only
                // the disk itself tells what need not be written again.
                file.sync_all()?;
                fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            file.set_len(spec.size_bytes)?;
            // The owner must be able to read and write what a later restore may continue.
            file.set_permissions(Permissions::from_mode(u32::from(spec.mode & 0o777 | 0o600)))
        };
        begin().map_err(|error| io_failed("make", &spec.shown, error))?;
        Ok(Self { file, direct, spec })
    }

    pub(super) fn is_new(&self) -> bool {
        self.spec.is_new
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.spec.page_bytes
    }

    /// For messages.
    pub(super) fn describe(&self, page: u64) -> String {
        format!("{} page {page}", self.spec.shown.display())
    }

    /// Offset and length of `count` pages, as far as the file has them.
    fn range(&self, first: u64, count: u64) -> (u64, u64) {
        let page = self.spec.page_bytes as u64;
        let begin = first.saturating_mul(page);
        let bytes = count.saturating_mul(page).min(self.spec.data_bytes.saturating_sub(begin));
        (self.spec.base.saturating_add(begin), bytes)
    }

    /// Writes what precedes the pages.
    pub(super) fn write_header(&self, header: &[u8]) -> Result<()> {
        self.file.write_all_at(header, 0).map_err(|error| io_failed("write", &self.spec.shown, error))
    }

    /// Writes whole pages; what the last has beyond the file's end is dropped. Returns the bytes written.
    pub(super) fn write(&self, first: u64, pages: &[u8]) -> Result<u64> {
        let (at, bytes) = self.range(first, (pages.len() / self.spec.page_bytes) as u64);
        let pages = pages.get(..usize::try_from(bytes).unwrap_or(usize::MAX)).unwrap_or_default();
        let failed = |error| io_failed("write", &self.spec.shown, error);
        if self.write_direct(at, pages).map_err(failed)? {
            return Ok(bytes);
        }
        self.write_with_holes(at, pages).map_err(failed)?;
        if let (true, Some(len)) = (bytes >= WRITE_BACK_BYTES_MIN, NonZero::new(bytes)) {
            // Starts writeback, and drops clean pages, which these are not yet. Only advice.
            let _ = fadvise(&self.file, at, Some(len), Advice::DontNeed);
        }
        Ok(bytes)
    }

    /// Writes past the page cache. `false`: this run cannot be written so,
    /// and all of it is still to be written.
    fn write_direct(&self, at: u64, pages: &[u8]) -> io::Result<bool> {
        let Some(direct) = &self.direct else { return Ok(false) };
        let is_aligned = at.is_multiple_of(ALIGNMENT as u64) && pages.len().is_multiple_of(ALIGNMENT);
        let has_holes = || {
            let flavor = self.spec.tablespace_of;
            flavor.is_some_and(|flavor| {
                pages.chunks(self.spec.page_bytes).any(|page| used_of_compressed(flavor, page).is_some())
            })
        };
        if pages.len() < DIRECT_RUN_BYTES_MIN || !is_aligned || has_holes() {
            return Ok(false);
        }
        ALIGNED.with_borrow_mut(|buffer| {
            let mut done = 0;
            for piece in pages.chunks(buffer.capacity()) {
                buffer.bytes_mut(piece.len()).copy_from_slice(piece);
                match direct.write_all_at(buffer.bytes(piece.len()), at + done) {
                    // The disk requires another alignment.
                    Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                        return Ok(false);
                    }
                    result => result?,
                }
                done += piece.len() as u64;
            }
            Ok(true)
        })
    }

    /// Nothing more will be written.
    pub(super) fn end_writing(&mut self) {
        self.direct = None;
    }

    fn write_with_holes(&self, at: u64, pages: &[u8]) -> io::Result<()> {
        let mut written = 0;
        if let Some(flavor) = self.spec.tablespace_of {
            for (number, page) in pages.chunks(self.spec.page_bytes).enumerate() {
                let Some(used) = used_of_compressed(flavor, page) else { continue };
                let begin = number * self.spec.page_bytes;
                self.file.write_all_at(&pages[written..begin + used], at + written as u64)?;
                written = begin + page.len();
                self.make_zeros(at + (begin + used) as u64, (page.len() - used) as u64, true)?;
            }
        }
        self.file.write_all_at(&pages[written..], at + written as u64)
    }

    /// Makes the file durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|error| io_failed("write", &self.spec.shown, error))
    }

    /// Reads whole pages as they are now, the last padded with zeros.
    pub(super) fn read(&self, first: u64, pages: &mut [u8]) -> Result<()> {
        let (at, bytes) = self.range(first, (pages.len() / self.spec.page_bytes) as u64);
        let (present, beyond) =
            pages.split_at_mut(usize::try_from(bytes).unwrap_or(usize::MAX).min(pages.len()));
        self.file.read_exact_at(present, at).map_err(|error| io_failed("read", &self.spec.shown, error))?;
        beyond.fill(0);
        Ok(())
    }

    /// Makes `count` pages zero: a hole where the source had one, else allocated space. Returns the bytes.
    pub(super) fn zeros(&self, first: u64, count: u64, hole: bool) -> Result<u64> {
        let (at, bytes) = self.range(first, count);
        self.make_zeros(at, bytes, hole || self.spec.sparse)
            .map_err(|error| io_failed("write", &self.spec.shown, error))?;
        Ok(bytes)
    }

    fn make_zeros(&self, at: u64, bytes: u64, hole: bool) -> io::Result<()> {
        let flags = match (hole, self.spec.is_new) {
            _ if bytes == 0 => return Ok(()),
            (true, true) => return Ok(()),
            (true, false) => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            (false, true) => FallocateFlags::empty(),
            (false, false) => FallocateFlags::ZERO_RANGE,
        };
        match fallocate(&self.file, flags, at, bytes) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(at, bytes),
            Err(error) => Err(error.into()),
        }
    }

    fn write_zeros(&self, at: u64, bytes: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let piece = ZEROS.len().min(usize::try_from(bytes - done).unwrap_or(usize::MAX));
            self.file.write_all_at(&ZEROS[..piece], at + done)?;
            done += piece as u64;
        }
        Ok(())
    }
}

/// How much of a page that InnoDB compressed in place is used, in whole blocks; the rest was a hole. `None`
/// if all of it is used, or if it is no such page.
fn used_of_compressed(flavor: Flavor, page: &[u8]) -> Option<usize> {
    const TYPE: std::ops::Range<usize> = 24..26;
    const BLOCK: usize = 4096;
    let page_type = u16::from_be_bytes(page.get(TYPE)?.try_into().ok()?);
    let compressed = match flavor {
        // Page compression, encrypted or not; in the full_crc32 format the bit marks it for any page type.
        Flavor::MariaDb => page_type & 0x8000 != 0,
        Flavor::MySql => matches!(page_type, 14 | 16),
    };
    if !compressed {
        return None;
    }
    let used = page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1).next_multiple_of(BLOCK);
    (used < page.len()).then_some(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 16 << 10;

    fn spec(size_bytes: u64) -> FileSpec {
        FileSpec {
            shown: "t.ibd".into(),
            page_bytes: PAGE,
            base: 0,
            data_bytes: size_bytes,
            size_bytes,
            mode: 0o440,
            is_new: true,
            sparse: false,
            tablespace_of: Some(Flavor::MariaDb),
        }
    }

    fn target(size_bytes: u64, is_new: bool, content: &[u8]) -> (File, TargetFile) {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(content, 0).unwrap();
        let spec = FileSpec { is_new, ..spec(size_bytes) };
        (file.try_clone().unwrap(), TargetFile::begin(file, None, spec).unwrap())
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// The last page is cut where the file ends, and reads as it was stored.
    #[test]
    fn last_page() {
        let size = PAGE as u64 + 100;
        let (file, target) = target(size, true, &[]);
        let mut pages = vec![1; 2 * PAGE];
        pages[PAGE + 100..].fill(0);
        assert_eq!(target.write(0, &pages).unwrap(), size);
        assert_eq!(content(&file), pages[..size as usize]);
        let mut back = vec![9; 2 * PAGE];
        target.read(0, &mut back).unwrap();
        assert_eq!(back, pages);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o640);
    }

    /// What is there already is read from the disk, not from a cache whose pages may never have reached it.
    #[test]
    fn the_cache_is_not_believed() {
        use std::io::IoSliceMut;

        use rustix::io::{ReadWriteFlags, preadv2};
        // Not on a filesystem in memory, where there is no disk.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&[7; 4 * PAGE], 0).unwrap();
        let is_cached = |file: &File| {
            let mut byte = [0];
            let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
            assert_ne!(read, Err(Errno::OPNOTSUPP), "this filesystem does not tell what is cached");
            read != Err(Errno::AGAIN)
        };
        assert!(is_cached(&file));
        let spec = FileSpec { is_new: false, ..spec(4 * PAGE as u64) };
        let target = TargetFile::begin(file.try_clone().unwrap(), None, spec).unwrap();
        assert!(!is_cached(&file));
        let mut pages = vec![0; PAGE];
        target.read(3, &mut pages).unwrap();
        assert_eq!(pages, [7; PAGE]);
    }

    /// Zeros replace what was there, and nothing beside them; a file that was too long is cut.
    #[test]
    fn zeros_over_old_content() {
        for hole in [false, true] {
            let (file, target) = target(4 * PAGE as u64 - 5, false, &[7; 6 * PAGE]);
            target.zeros(1, 1, hole).unwrap();
            target.zeros(3, 1, hole).unwrap();
            let mut expected = vec![7; 4 * PAGE - 5];
            expected[PAGE..2 * PAGE].fill(0);
            expected[3 * PAGE..].fill(0);
            assert_eq!(content(&file), expected);
        }
    }

    /// Zeros take room, unless they were a hole.
    #[test]
    fn room_for_zeros() {
        use std::os::unix::fs::MetadataExt;
        let (file, target) = target(64 * PAGE as u64, true, &[]);
        target.zeros(0, 32, true).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        target.zeros(32, 32, false).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 >= 32 * PAGE as u64);
    }

    /// After the data of a page that the server compressed there is a hole again; the bytes are the same.
    #[test]
    fn compressed_pages() {
        use std::os::unix::fs::MetadataExt;
        for is_new in [true, false] {
            let old = if is_new { vec![] } else { vec![7; 8 * PAGE] };
            let (file, target) = target(8 * PAGE as u64, is_new, &old);
            let mut pages = vec![1; 8 * PAGE];
            for page in [1, 2, 7] {
                pages[page * PAGE + 24..page * PAGE + 26].copy_from_slice(&34354_u16.to_be_bytes());
                pages[page * PAGE + 5_000..(page + 1) * PAGE].fill(0);
            }
            pages[4 * PAGE + 100..5 * PAGE].fill(0);
            target.write(0, &pages).unwrap();
            file.sync_all().unwrap();
            assert_eq!(content(&file), pages);
            assert_eq!(file.metadata().unwrap().blocks() * 512, 5 * PAGE as u64 + 3 * 8192);
        }
    }
}
