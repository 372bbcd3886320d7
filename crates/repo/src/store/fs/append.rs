//! A file that only grows, written past the page cache where the file system allows it.
//!
//! A pack is not read again soon: in the cache, it would cost a copy of every byte, and push out what the
//! database on this host needs. The rest of the last block is written through the cache.

use std::{
    fs::{File, Metadata},
    io,
    num::NonZeroU64,
    os::unix::fs::FileExt,
};

use holdfast_pipe::aligned::{ALIGNMENT, AlignedBuffer};
use rustix::{
    fs::{Advice, Gid, OFlags, Uid, fadvise, fchown, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use super::folder::Folder;

/// Bytes of one write to the disk: large enough to keep it busy, small enough that a database's sync queued
/// after it waits for less than a millisecond. Larger writes were no faster.
const BLOCK_BYTES: usize = 256 << 10;
/// Write-back is started whenever this much is new, so that the final fsync finds little to do.
const WRITE_BACK_BYTES: u64 = 8 << 20;

/// The file, and what is not yet written to it.
pub(super) struct Appender {
    file: File,
    is_direct: bool,
    buffer: AlignedBuffer,
    buffered_bytes: usize,
    written_bytes: u64,
    write_back_from: u64,
}

impl Appender {
    /// Creates the file, which must not exist. Small files are not worth bypassing the cache for.
    pub(super) fn create(folder: &Folder, name: &str, is_small: bool) -> io::Result<Appender> {
        let (file, is_direct) = match is_small {
            true => (folder.create(name, OFlags::empty())?, false),
            false => match folder.create(name, OFlags::DIRECT) {
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    // Some file systems have created the file before they refuse.
                    let _ = folder.remove_file(name);
                    (folder.create(name, OFlags::empty())?, false)
                }
                file => (file?, true),
            },
        };
        let block_bytes = if is_small { ALIGNMENT } else { BLOCK_BYTES };
        let buffer = AlignedBuffer::new(block_bytes);
        Ok(Appender { file, is_direct, buffer, buffered_bytes: 0, written_bytes: 0, write_back_from: 0 })
    }

    /// Gives the file to another owner. If that is refused, the file stays as it is.
    pub(super) fn give_to(&self, user: Uid, group: Gid) {
        let _kept = fchown(&self.file, Some(user), Some(group));
    }

    pub(super) fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.buffer.capacity() - self.buffered_bytes;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            let end = self.buffered_bytes + now.len();
            self.buffer.bytes_mut(end)[self.buffered_bytes..].copy_from_slice(now);
            self.buffered_bytes = end;
            bytes = later;
            if end == self.buffer.capacity() {
                self.write_block()?;
            }
        }
        Ok(())
    }

    /// Metadata of the file as it is on the disk.
    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Writes what is left, and makes all of it durable.
    pub(super) fn finish(mut self) -> io::Result<File> {
        if self.buffered_bytes > 0 {
            self.leave_direct()?;
            self.write_block()?;
        }
        self.file.sync_all()?;
        Ok(self.file)
    }

    fn write_block(&mut self) -> io::Result<()> {
        let block = self.buffer.bytes(self.buffered_bytes);
        let written = self.file.write_all_at(block, self.written_bytes);
        if let Err(error) = &written
            && self.is_direct
            && error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
        {
            // The disk needs another alignment.
            self.leave_direct()?;
            return self.write_block();
        }
        written?;
        self.written_bytes += self.buffered_bytes as u64;
        self.buffered_bytes = 0;
        if !self.is_direct && self.written_bytes - self.write_back_from >= WRITE_BACK_BYTES {
            // Starts write-back of dirty pages, and drops those written since the last time.
            // This is advice: its failure costs only time.
            let from = self.write_back_from.saturating_sub(WRITE_BACK_BYTES);
            let len = NonZeroU64::new(self.written_bytes - from);
            let _ = fadvise(&self.file, from, len, Advice::DontNeed);
            self.write_back_from = self.written_bytes;
        }
        Ok(())
    }

    fn leave_direct(&mut self) -> io::Result<()> {
        if self.is_direct {
            let flags = fcntl_getfl(&self.file)?;
            fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
            self.is_direct = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_written_as_it_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), "").unwrap();
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES as u32).map(|i| (i % 251) as u8).collect();
        for is_small in [true, false] {
            for len in [0, 1, 4096, 5000, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES - 4095] {
                let name = format!("{is_small}-{len}");
                let mut appender = Appender::create(&folder, &name, is_small).unwrap();
                for piece in bytes[..len].chunks(70_001) {
                    appender.append(piece).unwrap();
                }
                appender.finish().unwrap();
                assert!(std::fs::read(dir.path().join(&name)).unwrap() == bytes[..len], "{is_small} {len}");
            }
        }
    }
}
