//! Copies files that are not tablespaces: as they are, page by page, or so that data appended later can
//! follow.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    path::{Path, PathBuf},
};

use holdfast_formats::PageSize;

use super::{
    FileId, FileSpec, Pages, Role,
    aria_pages::{AriaPages, Doubts},
    context::CopyContext,
    files::{Entry, Inode, Signature, path_text, read_failed},
    page_reader::{PageReader, ReadMode},
    reread::WRITE_MAX,
    running_clock::Moment,
    unproven::at_rest,
    workers::{Buffers, EXTENT_BYTES},
};
use crate::error::{Error, Result};

/// The part that is read is bounded, so it comes to rest. After this many reads a lock has been held for two
/// seconds.
const SETTLING_READS_MAX: u32 = 8;

/// A file to be copied.
#[derive(Clone, Debug)]
pub struct PlainFile {
    /// The file.
    pub entry: Entry,
    /// Its role.
    pub role: Role,
    /// How it is copied.
    pub manner: Manner,
}

impl PlainFile {
    /// A file that is copied as it is.
    #[must_use]
    pub fn whole(entry: Entry, role: Role) -> Self {
        Self { entry, role, manner: Manner::Whole }
    }
}

/// How a file is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As it is: writes to it meanwhile are noticed, and it is copied again.
    Whole,
    /// As a file of the Aria table that has this index file. Where the Aria log repairs the copy, pages must
    /// be whole.
    Aria {
        /// The index file, which describes the table.
        index: PathBuf,
    },
    /// So that data appended later can follow; see [`CopyContext::grow`]. The copy is not ended here.
    Growing,
}

/// A file that was copied.
#[derive(Clone, Debug)]
pub struct CopiedFile {
    /// Its id in the sink.
    pub file: FileId,
    /// The file that was read.
    pub inode: Inode,
    /// Signature of the file just before it was read.
    pub signature: Signature,
    /// Bytes copied.
    pub size_bytes: u64,
    /// When its last read began.
    pub read_at: Moment,
}

/// A copy of a file with pages that have yet to be proved.
pub(super) struct Unfinished {
    entry: Entry,
    file: FileId,
    size_bytes: u64,
    pages: AriaPages,
    doubts: Doubts,
}

/// A copy, and what remains to be done for it.
pub(super) struct PlainCopy {
    pub(super) copied: CopiedFile,
    pub(super) unfinished: Option<Unfinished>,
}

impl CopyContext<'_> {
    /// Copies a file that is not a tablespace. Returns `None` if it vanished.
    pub(super) fn plain(&self, plain: &PlainFile, buffers: &mut Buffers) -> Result<Option<PlainCopy>> {
        let PlainFile { entry: listed, role, manner } = plain;
        let failed = |error| read_failed(&listed.real, error);
        let open = std::fs::metadata(&listed.real)
            .and_then(|metadata| Ok((metadata, PageReader::open(&listed.real, ReadMode::Buffered)?)));
        let (metadata, reader) = match open {
            Ok(open) => open,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.vanished();
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        let (signature, read_at) = (Signature::of(&metadata), self.clock.now());
        // Another file may have got the name since it was listed.
        let inode = Inode::of(reader.file()).map_err(failed)?;
        let mut entry = listed.clone();
        entry.stat.inode = inode;
        let entry = &entry;
        self.damage.file_begins(entry);
        let logged = match manner {
            Manner::Aria { index } => AriaPages::of(entry, index)?,
            Manner::Whole | Manner::Growing => None,
        };
        let file = self.sink.file_begin(FileSpec {
            path: entry.path.clone(),
            role: *role,
            mode: entry.mode,
            page_size: PageSize::DEFAULT_FILE,
            space: None,
            outside: entry.outside.then(|| path_text(&entry.real)),
        })?;
        let mut copied = CopiedFile { file, inode, signature, size_bytes: 0, read_at };
        let mut unfinished = None;
        match logged {
            Some(pages) => {
                let doubts;
                (copied.size_bytes, doubts) = self.aria_pages(entry, &reader, &pages, file, buffers)?;
                if !doubts.is_empty() {
                    let (entry, size_bytes) = (entry.clone(), copied.size_bytes);
                    unfinished = Some(Unfinished { entry, file, size_bytes, pages, doubts });
                }
            }
            None => copied.size_bytes = self.plain_pages(entry, &reader, file, 0, buffers)?,
        }
        if *manner != Manner::Growing && unfinished.is_none() {
            self.sink.file_end(file, copied.size_bytes)?;
        }
        Ok(Some(PlainCopy { copied, unfinished }))
    }

    /// Proves the remaining pages of a copy, and ends it.
    pub(super) fn finish(&self, unfinished: Unfinished, buffers: &mut Buffers) -> Result<()> {
        let Unfinished { entry, file, size_bytes, pages, mut doubts } = unfinished;
        let open = PageReader::open(&entry.real, ReadMode::Buffered)
            .and_then(|reader| Ok((Inode::of(reader.file())?, reader)));
        match open {
            Ok((now, reader)) if now == entry.stat.inode => {
                self.prove_aria(&entry, &reader, &pages, file, &mut doubts, buffers)?;
            }
            // The file is gone, so its copy is dropped at the next rescan.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(read_failed(&entry.real, error)),
        }
        self.sink.file_end(file, size_bytes)
    }

    /// Sends what a file has grown by since it was copied. Also sends its header and the last `margin_bytes`
    /// of the copy again: both may have been rewritten, the header once a log continues in another file.
    /// Returns `false` if the file was replaced by another. [`CopyContext::end`] ends the copy.
    pub(super) fn grow(
        &self,
        entry: &Entry,
        copied: &mut CopiedFile,
        margin_bytes: u64,
        buffers: &mut Buffers,
    ) -> Result<bool> {
        if !copied.signature.same_inode(&entry.stat.signature) {
            return Ok(false);
        }
        let reader = match PageReader::open(&entry.real, ReadMode::Buffered) {
            Ok(reader) => reader,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(read_failed(&entry.real, error)),
        };
        copied.read_at = self.clock.now();
        let page_bytes = PageSize::DEFAULT_FILE.bytes();
        let got = reader
            .read(0, page_bytes, &mut buffers.extent)
            .map_err(|error| read_failed(&entry.real, error))?;
        self.send(copied.file, 0, got, buffers)?;
        let start = copied.size_bytes.saturating_sub(margin_bytes) / page_bytes as u64 * page_bytes as u64;
        copied.size_bytes = self.plain_pages(entry, &reader, copied.file, start, buffers)?;
        Ok(true)
    }

    /// Sends the last `tail_bytes` of the copy of a log again until two reads in a row are equal, unless the
    /// log was not written to lately. Between two reads is a pause, since a writer whose pages the kernel
    /// throttles can sleep in the middle of a write. A write that was under way during a read can have left
    /// half of its data in the copy, and nothing in Aria's log reveals that. This ends although the log
    /// grows: a page is rewritten only until it is full.
    pub(super) fn send_tail_again(
        &self,
        entry: &Entry,
        copied: &CopiedFile,
        tail_bytes: u64,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let failed = |error| read_failed(&entry.real, error);
        let reader = PageReader::open(&entry.real, ReadMode::Buffered).map_err(failed)?;
        if at_rest(&reader, self.clock, copied.read_at).map_err(failed)? {
            return Ok(());
        }
        let page_bytes = PageSize::DEFAULT_FILE.bytes() as u64;
        let start = copied.size_bytes.saturating_sub(tail_bytes) / page_bytes * page_bytes;
        let hashing = RandomState::new();
        let mut before = None;
        for _ in 0..SETTLING_READS_MAX {
            self.check_not_stopped()?;
            let mut hasher = hashing.build_hasher();
            let mut offset = start;
            while offset < copied.size_bytes {
                let left = copied.size_bytes - offset;
                let len = usize::try_from(left).map_or(EXTENT_BYTES, |left| left.min(EXTENT_BYTES));
                let got = reader.read(offset, len, &mut buffers.extent).map_err(failed)?;
                if got < len {
                    return Err(Error::failed(format!("{}: became shorter while it was copied", entry.path)));
                }
                hasher.write(buffers.extent.bytes(got));
                self.send(copied.file, offset, got, buffers)?;
                offset += got as u64;
            }
            let (now, read_at) = (hasher.finish(), self.clock.now());
            if before.replace(now) == Some(now) {
                return Ok(());
            }
            self.clock.wait(read_at, WRITE_MAX);
        }
        Err(Error::failed(format!("{}: the end of the file kept changing while it was read", entry.path)))
    }

    /// Ends the copy of a file that grew.
    pub(super) fn end(&self, copied: &CopiedFile) -> Result<()> {
        self.sink.file_end(copied.file, copied.size_bytes)
    }

    /// Sends `bytes`, which were made from `entry`, in its place. At most a page.
    pub(super) fn made(&self, entry: &Entry, role: Role, bytes: &[u8]) -> Result<FileId> {
        let page_size = PageSize::DEFAULT_FILE;
        let file = self.sink.file_begin(FileSpec {
            path: entry.path.clone(),
            role,
            mode: entry.mode,
            page_size,
            space: None,
            outside: entry.outside.then(|| path_text(&entry.real)),
        })?;
        let mut page = vec![0; page_size.bytes()];
        match page.get_mut(..bytes.len()) {
            Some(start) => start.copy_from_slice(bytes),
            None => return Err(Error::failed(format!("{}: larger than it can be", entry.path))),
        }
        if !bytes.is_empty() {
            self.sink.pages(file, Pages { first: 0, page_size, bytes: &page, holes: &[] })?;
        }
        self.sink.file_end(file, bytes.len() as u64)?;
        Ok(file)
    }

    /// As [`made`](Self::made), for a file that may have vanished: then it returns `None`.
    pub(super) fn made_of(&self, entry: &Entry, role: Role, bytes: &[u8]) -> Result<Option<CopiedFile>> {
        let signature = match std::fs::metadata(&entry.real) {
            Ok(metadata) => Signature::of(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read_failed(&entry.real, error)),
        };
        let file = self.made(entry, role, bytes)?;
        let (inode, size_bytes) = (entry.stat.inode, bytes.len() as u64);
        Ok(Some(CopiedFile { file, inode, signature, size_bytes, read_at: self.clock.now() }))
    }

    /// Sends everything from `start` on, which must be the beginning of a page. Returns the size of the file.
    pub(super) fn plain_pages(
        &self,
        entry: &Entry,
        reader: &PageReader,
        file: FileId,
        start: u64,
        buffers: &mut Buffers,
    ) -> Result<u64> {
        let mut offset = start;
        loop {
            self.check_not_stopped()?;
            let got = reader
                .read(offset, EXTENT_BYTES, &mut buffers.extent)
                .map_err(|error| read_failed(&entry.real, error))?;
            self.send(file, offset, got, buffers)?;
            self.count(got);
            offset += got as u64;
            if got < EXTENT_BYTES {
                return Ok(offset);
            }
        }
    }

    /// Sends the first `len` bytes of the extent, which were read at `offset`.
    pub(super) fn send(&self, file: FileId, offset: u64, len: usize, buffers: &mut Buffers) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let page_size = PageSize::DEFAULT_FILE;
        let padded = len.next_multiple_of(page_size.bytes());
        buffers.extent.bytes_mut(padded)[len..].fill(0);
        let first = offset / page_size.bytes() as u64;
        self.sink.pages(file, Pages { first, page_size, bytes: buffers.extent.bytes(padded), holes: &[] })
    }
}

/// Whether the Aria log repairs copies of the table that has this index file.
pub(super) fn is_logged(entry: &Entry, index: &Path) -> Result<bool> {
    Ok(AriaPages::of(entry, index)?.is_some())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt, sync::Mutex};

    use holdfast_formats::Flavor;

    use super::*;
    use crate::source::{
        Sink,
        unproven::tests::{OneFile, copy_into, entry},
    };

    /// Continues the server's write each time the log was read.
    struct Overtaken {
        inner: OneFile,
        log: File,
        to_come: Mutex<Vec<(Vec<u8>, u64)>>,
    }

    impl Sink for Overtaken {
        fn file_begin(&self, spec: FileSpec) -> Result<FileId> {
            self.inner.file_begin(spec)
        }
        fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()> {
            self.inner.pages(file, pages)?;
            if let Some((bytes, offset)) = self.to_come.lock().unwrap().pop() {
                self.log.write_all_at(&bytes, offset).unwrap();
            }
            Ok(())
        }
        fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()> {
            self.inner.file_end(file, size_bytes)
        }
        fn file_renamed(&self, file: FileId, path: &str) -> Result<()> {
            self.inner.file_renamed(file, path)
        }
        fn file_gone(&self, file: FileId) -> Result<()> {
            self.inner.file_gone(file)
        }
        fn directory(&self, path: &str, mode: u16) -> Result<()> {
            self.inner.directory(path, mode)
        }
        fn directory_gone(&self, path: &str) -> Result<()> {
            self.inner.directory_gone(path)
        }
        fn is_drained(&self) -> Result<bool> {
            Ok(true)
        }
    }

    /// A page at the end of a log that was read in the middle of its write is read again until its write is
    /// over, but no further than the first read went.
    #[test]
    fn the_end_of_a_log_is_not_taken_in_the_middle_of_a_write() {
        const PAGE: usize = 8192;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("aria_log.00000001");
        std::fs::write(&path, [vec![1; 5 * PAGE], vec![2; PAGE / 2], vec![0; PAGE / 2]].concat()).unwrap();
        let log = File::options().write(true).open(&path).unwrap();
        let rest = (vec![2; PAGE / 2], (5 * PAGE + PAGE / 2) as u64);
        let next = (vec![3; PAGE], 6 * PAGE as u64);
        let sink = Overtaken { inner: OneFile::default(), log, to_come: Mutex::new(vec![next, rest]) };
        let entry = entry("aria_log.00000001", &path);
        let plain = PlainFile { entry: entry.clone(), role: Role::AriaLog, manner: Manner::Growing };
        copy_into(&sink, Flavor::MariaDb, |context| {
            let mut buffers = Buffers::default();
            let copy = context.plain(&plain, &mut buffers).unwrap().unwrap().copied;
            assert_eq!(copy.size_bytes, 6 * PAGE as u64);
            context.send_tail_again(&entry, &copy, 4 * PAGE as u64, &mut buffers).unwrap();
        });
        let bytes = sink.inner.0.into_inner().unwrap();
        assert!(bytes[..6 * PAGE] == [vec![1; 5 * PAGE], vec![2; PAGE]].concat(), "the last page is torn");
    }
}
