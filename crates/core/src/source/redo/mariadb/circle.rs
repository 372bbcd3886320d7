//! The log file, a circle of bytes that the server overwrites.

use std::path::{Path, PathBuf};

use holdfast_formats::{
    Lsn,
    redo::mariadb::{DATA_START, LogHeader},
};
use holdfast_pipe::AlignedBuffer;

use crate::{
    error::{Context, Error, Result},
    source::{
        files::{Inode, read_failed},
        page_reader::{PageReader, ReadMode},
    },
};

/// Bytes read at once. Up to 80 % of the log has yet to be read at the start, so that must be fast.
pub(super) const READ_BYTES: usize = 4 << 20;

/// An open log.
pub(super) struct Circle {
    path: PathBuf,
    reader: PageReader,
    inode: Inode,
    first: LogHeader,
    buffer: AlignedBuffer,
}

impl Circle {
    pub(super) fn open(path: &Path, mode: ReadMode) -> Result<Circle> {
        let reader = PageReader::open(path, mode).map_err(|error| read_failed(path, error))?;
        let inode = Inode::of(reader.file()).map_err(|error| read_failed(path, error))?;
        let mut buffer = AlignedBuffer::new(READ_BYTES + (64 << 10));
        let first = read_header(path, &reader, &mut buffer)?;
        Ok(Circle { path: path.to_owned(), reader, inode, first, buffer })
    }

    /// The header as it was when the log was opened.
    pub(super) fn header(&self) -> &LogHeader {
        &self.first
    }

    /// Fills `window` with `want` bytes from `at` on, around the end of the circle; at most its capacity.
    pub(super) fn read(&mut self, at: Lsn, want: usize, window: &mut Vec<u8>) -> Result<()> {
        window.clear();
        let capacity = self.first.capacity();
        let want = want.min(usize::try_from(capacity).unwrap_or(usize::MAX));
        let mut lsn = at;
        while window.len() < want {
            let offset = self.first.offset(lsn);
            let to_end = usize::try_from(DATA_START + capacity - offset).unwrap_or(usize::MAX);
            let len = (want - window.len()).min(to_end).min(READ_BYTES);
            let start = offset / 4096 * 4096;
            let skip = usize::try_from(offset - start).unwrap_or(0);
            let got = self
                .reader
                .read(start, skip + len, &mut self.buffer)
                .map_err(|error| read_failed(&self.path, error))?;
            if got != skip + len {
                return Err(self.replaced());
            }
            window.extend_from_slice(&self.buffer.bytes(got)[skip..]);
            lsn = Lsn(lsn.0 + len as u64);
        }
        Ok(())
    }

    /// The header as it is now; fails if the log was replaced by another one.
    pub(super) fn header_again(&mut self) -> Result<LogHeader> {
        let named = std::fs::File::open(&self.path).and_then(|file| Inode::of(&file));
        if !named.is_ok_and(|inode| inode == self.inode) {
            return Err(self.replaced());
        }
        // A checkpoint block that is being written can be torn; the one before it is still valid then.
        let now = read_header(&self.path, &self.reader, &mut self.buffer)?;
        if now.first_lsn() != self.first.first_lsn() || now.capacity() != self.first.capacity() {
            return Err(self.replaced());
        }
        Ok(now)
    }

    fn replaced(&self) -> Error {
        Error::failed(format!("{}: the redo log was replaced during the backup", self.path.display()))
            .hinted("innodb_log_file_size was changed; run the backup again")
    }

    pub(super) fn overwritten(&self, at: Lsn, checkpoint: Lsn) -> Error {
        Error::failed(format!(
            "the redo log was overwritten before it was copied (need LSN {at}, the server's checkpoint is {checkpoint}, the log holds {} bytes)",
            self.first.capacity()
        ))
        .hinted("raise innodb_log_file_size on the server, or give the host more room; the redo copy itself is never throttled")
    }

    pub(super) fn unreadable(&self, at: Lsn, durable: Lsn) -> Error {
        Error::failed(format!(
            "{}: no valid redo at LSN {at}, although the server says that everything up to {durable} is on disk",
            self.path.display()
        ))
        .hinted("check that this is the redo log of that server, and that its disk is sound")
    }
}

fn read_header(path: &Path, reader: &PageReader, buffer: &mut AlignedBuffer) -> Result<LogHeader> {
    let got = reader.read(0, DATA_START as usize, buffer).map_err(|error| read_failed(path, error))?;
    let size = reader.file().metadata().map_err(|error| read_failed(path, error))?.len();
    LogHeader::parse(buffer.bytes(got), size).context(format_args!("read the redo log {}", path.display()))
}
