//! A file of a tablespace: as it was found, while it is read, and once it is copied.

use std::{io, os::unix::fs::MetadataExt, path::PathBuf};

use holdfast_formats::{PageNo, PageSize, SpaceId, tablespace::Geometry};
use rustix::fs::{SeekFrom, seek};

use super::{
    FileId, Role,
    files::{Entry, FileKey, Inode, Signature},
    page_reader::PageReader,
};
use crate::error::{Error, Result};

/// A tablespace file and what it is to the server.
#[derive(Clone, Debug)]
pub struct TablespaceEntry {
    /// The file.
    pub entry: Entry,
    /// Its role.
    pub role: Role,
    /// Set for every file of a tablespace but its first.
    pub continues: Option<Continues>,
}

/// A file that continues where another file of its tablespace ends: `ibdata2`.
#[derive(Clone, Debug)]
pub struct Continues {
    /// The first file: its page 0 tells the geometry.
    pub first_file: PathBuf,
    /// The number of this file's first page.
    pub first_page: u64,
}

impl TablespaceEntry {
    /// The first, or only, file of a tablespace.
    #[must_use]
    pub fn new(entry: Entry, role: Role) -> Self {
        Self { entry, role, continues: None }
    }

    /// This entry, of the file that was opened: it may be another one than was listed under that name.
    pub(super) fn opened(&self, inode: Inode) -> Self {
        let mut opened = self.clone();
        opened.entry.stat.inode = inode;
        opened
    }

    /// The tablespace it belongs to, given the space id `own` in its own page 0, if it has one. Only the
    /// system tablespace has further files, which have none.
    pub(super) fn space(&self, own: Option<SpaceId>) -> Option<SpaceId> {
        own.or_else(|| self.continues.as_ref().map(|_| SpaceId(0)))
    }
}

/// A tablespace file that is being copied.
#[derive(Clone, Copy)]
pub(super) struct OpenTablespace<'a> {
    pub(super) found: &'a TablespaceEntry,
    pub(super) reader: &'a PageReader,
    pub(super) geometry: &'a Geometry,
    /// The number of the file's first page in the tablespace.
    pub(super) first_page: u64,
    /// Its copy.
    pub(super) file: FileId,
}

impl OpenTablespace<'_> {
    /// The number in the tablespace of the file's `nth` page.
    pub(super) fn page_no(&self, nth: u64) -> Result<PageNo> {
        let too_many =
            || Error::failed(format!("{}: more pages than a tablespace can have", self.found.entry.path));
        u32::try_from(self.first_page + nth).map(PageNo).map_err(|_| too_many())
    }

    /// Which of the pages in `len` bytes from `offset` on lie in holes of the file; empty where it has none.
    pub(super) fn holes(&self, offset: u64, len: usize) -> io::Result<Vec<bool>> {
        holes(self.reader, offset, len, self.geometry.page_size().bytes())
    }
}

/// Which pages of an extent lie in holes of the file; empty where the file has none.
fn holes(reader: &PageReader, offset: u64, len: usize, page_bytes: usize) -> io::Result<Vec<bool>> {
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
    pub(super) real: PathBuf,
    pub(super) page_size: PageSize,
    pub(super) size_bytes: u64,
    /// Whether the copy must be as long as its file is then. Recovery extends a tablespace to the length that
    /// the redo tells, but MySQL's recovery judges the system tablespace by the length that it finds
    /// (verified on 9.7.4).
    pub(super) follows_its_file: bool,
}

impl Unended {
    /// Records that the copy has pages up to here, at least.
    pub(super) fn is_now(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }
}
