//! Copies files that are no tablespaces: as they are, page by page, or so that what they grow by can follow.

use std::{
    io,
    path::{Path, PathBuf},
};

use holdfast_formats::PageSize;

use super::{
    FileId, FileSpec, Pages, Role,
    aria_pages::{AriaPages, Doubts},
    copy::{Buffers, CopyContext, EXTENT_BYTES},
    files::{Entry, Inode, Signature, path_text, read_failed},
    page_reader::{PageReader, ReadMode},
};
use crate::error::{Error, Result};

/// A file that is to be copied.
#[derive(Clone, Debug)]
pub struct PlainFile {
    /// The file.
    pub entry: Entry,
    /// What it is.
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
    /// As it is: who writes to it meanwhile is noticed, and it is copied again.
    Whole,
    /// As a file of an Aria table, whose index file this is. Where the Aria log repairs the copy, pages must be whole.
    Aria {
        /// The index file, which tells how the table is made.
        index: PathBuf,
    },
    /// So that what it grows by can follow; see [`CopyContext::grow`]. It is not ended here.
    Growing,
}

/// A file that was copied.
#[derive(Clone, Debug)]
pub struct CopiedFile {
    /// In the sink.
    pub file: FileId,
    /// As the file was just before it was read.
    pub signature: Signature,
    /// Bytes copied.
    pub size_bytes: u64,
}

/// Pages of a file that was copied are still to be proved.
pub(super) struct Unfinished {
    entry: Entry,
    inode: Inode,
    file: FileId,
    size_bytes: u64,
    pages: AriaPages,
    doubts: Doubts,
}

/// A copy, and what is left to do about it.
pub(super) struct PlainCopy {
    pub(super) copied: CopiedFile,
    pub(super) unfinished: Option<Unfinished>,
}

impl CopyContext<'_> {
    /// Copies a file that is no tablespace. `None`: it vanished.
    pub(super) fn plain(&self, plain: &PlainFile, buffers: &mut Buffers) -> Result<Option<PlainCopy>> {
        let PlainFile { entry, role, manner } = plain;
        let failed = |error| read_failed(&entry.real, error);
        let open = std::fs::metadata(&entry.real)
            .and_then(|metadata| Ok((metadata, PageReader::open(&entry.real, ReadMode::Buffered)?)));
        let (metadata, reader) = match open {
            Ok(open) => open,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.vanished();
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        let signature = Signature::of(&metadata);
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
        let mut copied = CopiedFile { file, signature, size_bytes: 0 };
        let mut unfinished = None;
        match logged {
            Some(pages) => {
                let doubts;
                (copied.size_bytes, doubts) = self.aria_pages(entry, &reader, &pages, file, buffers)?;
                if !doubts.is_empty() {
                    let inode = Inode::of(reader.file()).map_err(failed)?;
                    let (entry, size_bytes) = (entry.clone(), copied.size_bytes);
                    unfinished = Some(Unfinished { entry, inode, file, size_bytes, pages, doubts });
                }
            }
            None => copied.size_bytes = self.plain_pages(entry, &reader, file, 0, buffers)?,
        }
        if *manner != Manner::Growing && unfinished.is_none() {
            self.sink.file_end(file, copied.size_bytes)?;
        }
        Ok(Some(PlainCopy { copied, unfinished }))
    }

    /// Proves what is still to be proved of a copy, and ends it.
    pub(super) fn finish(&self, unfinished: Unfinished, buffers: &mut Buffers) -> Result<()> {
        let Unfinished { entry, inode, file, size_bytes, pages, mut doubts } = unfinished;
        let open = PageReader::open(&entry.real, ReadMode::Buffered)
            .and_then(|reader| Ok((Inode::of(reader.file())?, reader)));
        match open {
            Ok((now, reader)) if now == inode => {
                self.prove_aria(&entry, &reader, &pages, file, &mut doubts, buffers)?;
            }
            // The file is no more, so its copy is dropped at the next look.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(read_failed(&entry.real, error)),
        }
        self.sink.file_end(file, size_bytes)
    }

    /// Sends what a file has grown by since it was copied. `margin_bytes` before its end then may have been written
    /// again, and its header, once a log goes on in another file. `false`: it is another file by now. It is ended by
    /// [`CopyContext::end`].
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
        let page_bytes = PageSize::DEFAULT_FILE.bytes();
        let got = reader
            .read(0, page_bytes, &mut buffers.extent)
            .map_err(|error| read_failed(&entry.real, error))?;
        self.send(copied.file, 0, got, buffers)?;
        let start = copied.size_bytes.saturating_sub(margin_bytes) / page_bytes as u64 * page_bytes as u64;
        copied.size_bytes = self.plain_pages(entry, &reader, copied.file, start, buffers)?;
        Ok(true)
    }

    /// Ends the copy of a file that grew.
    pub(super) fn end(&self, copied: &CopiedFile) -> Result<()> {
        self.sink.file_end(copied.file, copied.size_bytes)
    }

    /// Sends `bytes`, which were made of `entry`, in its place. Less than a page.
    pub fn made(&self, entry: &Entry, role: Role, bytes: &[u8]) -> Result<FileId> {
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

    /// The same, of a file that may have vanished: `None`.
    pub fn made_of(&self, entry: &Entry, role: Role, bytes: &[u8]) -> Result<Option<CopiedFile>> {
        let signature = match std::fs::metadata(&entry.real) {
            Ok(metadata) => Signature::of(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read_failed(&entry.real, error)),
        };
        let file = self.made(entry, role, bytes)?;
        Ok(Some(CopiedFile { file, signature, size_bytes: bytes.len() as u64 }))
    }

    /// Sends everything from `start` on, the beginning of a page; returns the size.
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
            self.may_go_on()?;
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

    /// Sends the first `len` bytes of the extent, which begins at `offset`.
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
