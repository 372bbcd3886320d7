//! Reads a file in extents, the way the server writes it.
//!
//! A server that writes with `O_DIRECT` can leave a stale page in the page cache, with a good checksum. So
//! the reader bypasses the cache whenever the server does, and a second read of a page never comes from the
//! cache: either the file is open with `O_DIRECT`, or the range is dropped from the cache first.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use holdfast_pipe::aligned::{ALIGNMENT, AlignedBuffer};
use rustix::fs::{Advice, OFlags, fadvise};

/// How to read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Bypassing the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// An open file.
#[derive(Debug)]
pub struct PageReader {
    file: File,
    mode: ReadMode,
}

impl PageReader {
    /// Opens `path`. Falls back to buffered reads if the file system does not support direct ones.
    pub fn open(path: &Path, mode: ReadMode) -> io::Result<Self> {
        if mode == ReadMode::Direct {
            let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
            match OpenOptions::new().read(true).custom_flags(flags).open(path) {
                Ok(file) => return Ok(Self { file, mode }),
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { file: File::open(path)?, mode: ReadMode::Buffered })
    }

    /// The open file, for its metadata.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// How the file is being read.
    #[must_use]
    pub fn mode(&self) -> ReadMode {
        self.mode
    }

    /// Reads up to `len` bytes at `offset`, which must be a multiple of 4,096 if reads are direct. Returns
    /// fewer only at the end of the file.
    pub fn read(&self, offset: u64, len: usize, buffer: &mut AlignedBuffer) -> io::Result<usize> {
        self.read_in_pieces(offset, len, len, buffer)
    }

    /// Reads like [`Self::read`], `piece` bytes at a time, rounded up to a multiple of 4,096.
    pub fn read_in_pieces(
        &self,
        offset: u64,
        len: usize,
        piece: usize,
        buffer: &mut AlignedBuffer,
    ) -> io::Result<usize> {
        let room = buffer.room(len);
        let piece = piece.next_multiple_of(ALIGNMENT);
        let mut done = 0;
        while done < room.len() {
            let end = room.len().min(done + piece);
            match self.file.read_at(&mut room[done..end], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // A direct read that stops unaligned has reached the end of the file.
            if self.mode == ReadMode::Direct && !done.is_multiple_of(ALIGNMENT) {
                break;
            }
        }
        Ok(done.min(len))
    }

    /// Drops `len` bytes at `offset` from the cache, so that the next read fetches them from the device. The
    /// range is widened to whole pages of the cache: the kernel keeps a page that is covered only in part.
    pub fn forget(&self, offset: u64, len: usize) -> io::Result<()> {
        if self.mode == ReadMode::Buffered {
            let alignment = ALIGNMENT as u64;
            let start = offset / alignment * alignment;
            let end = (offset + len as u64).next_multiple_of(alignment);
            fadvise(&self.file, start, std::num::NonZeroU64::new(end - start), Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Reads one page again, never from the cache. `offset` is that of the page. Returns `None` if the file
    /// has become shorter.
    pub fn read_again(
        &self,
        offset: u64,
        len: usize,
        buffer: &mut AlignedBuffer,
    ) -> io::Result<Option<Vec<u8>>> {
        let start = offset / ALIGNMENT as u64 * ALIGNMENT as u64;
        let skip = usize::try_from(offset - start).unwrap_or(0);
        self.forget(start, skip + len)?;
        let got = self.read(start, skip + len, buffer)?;
        Ok((got == skip + len).then(|| buffer.bytes(got)[skip..].to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modes_read_the_same_up_to_an_odd_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let content: Vec<u8> = (0..100_003_u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        for mode in [ReadMode::Direct, ReadMode::Buffered] {
            let reader = PageReader::open(&path, mode).unwrap();
            let mut buffer = AlignedBuffer::new(1 << 16);
            let mut all = Vec::new();
            loop {
                let got = reader.read(all.len() as u64, 1 << 16, &mut buffer).unwrap();
                all.extend_from_slice(buffer.bytes(got));
                if got < 1 << 16 {
                    break;
                }
            }
            assert!(all == content, "{mode:?}");
            assert_eq!(reader.read_again(1024, 512, &mut buffer).unwrap().unwrap(), content[1024..1536]);
            assert_eq!(reader.read_again(99_999, 512, &mut buffer).unwrap(), None);
        }
    }
}
