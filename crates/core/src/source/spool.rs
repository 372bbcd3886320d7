//! Where captured redo waits until the lock is released and the store takes it: a local file, sealed with a
//! key that exists only in this process. The file has no name, so it is gone however the process ends.
//!
//! The redo reader appends, and never waits for the copy or for the store.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use holdfast_pipe::{ObjectKey, SealContext, Suite, TAG_BYTES};
use rustix::fs::{fstatvfs, statvfs};
use zeroize::Zeroizing;

use crate::{
    error::{Context, Error, Result},
    size::ByteSize,
};

const FRAME_BYTES: usize = 1 << 20;
/// How often the free space is checked, in frames.
const LOOK_EVERY_FRAMES: u64 = 4;
/// The most to leave to a server that writes to the same file system; on a small one, a twentieth of it.
const RESERVE_BYTES_MAX: u64 = 1 << 30;
const CHOOSE_ANOTHER: &str = "choose a directory with enough room (--spool-dir)";

/// An append-only sequence of bytes.
pub struct Spool {
    file: File,
    dir: PathBuf,
    key: ObjectKey,
    frame: Vec<u8>,
    frames: u64,
    bytes_max: u64,
    reserve_bytes: u64,
}

/// What a spool in `dir` leaves free for a server that writes to any of `places`. A server that finds its
/// disk full stops, and nobody would see what had filled it. Places that cannot be looked at are ignored.
pub(crate) fn reserve_bytes<'a>(dir: &Path, places: impl IntoIterator<Item = &'a Path>) -> u64 {
    let device = |path: &Path| fs::metadata(path).ok().map(|about| about.dev());
    let Some(spool) = device(dir) else { return 0 };
    if !places.into_iter().any(|place| device(place) == Some(spool)) {
        return 0;
    }
    statvfs(dir).map_or(0, |it| (it.f_blocks.saturating_mul(it.f_frsize) / 20).min(RESERVE_BYTES_MAX))
}

impl Spool {
    /// Creates an empty spool in `dir` that takes at most `bytes_max` and leaves `reserve_bytes` of the file
    /// system free.
    pub fn create(dir: &Path, bytes_max: u64, reserve_bytes: u64) -> Result<Self> {
        let file = tempfile::tempfile_in(dir)
            .context(format_args!("create the redo spool in {}", dir.display()))
            .map_err(|error| error.hinted(CHOOSE_ANOTHER))?;
        let mut secret = Zeroizing::new([0; 32]);
        getrandom::fill(secret.as_mut_slice()).context("draw a key for the redo spool")?;
        let key = ObjectKey::derive(Suite::X25519Aes256Gcm, &secret, b"redo spool");
        Ok(Self {
            file,
            dir: dir.to_owned(),
            key,
            frame: Vec::with_capacity(FRAME_BYTES + TAG_BYTES),
            frames: 0,
            bytes_max,
            reserve_bytes,
        })
    }

    /// Bytes appended so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.frames * FRAME_BYTES as u64 + self.frame.len() as u64
    }

    /// Whether nothing was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`. A full spool is an error that gives the numbers.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.len() + bytes.len() as u64 > self.bytes_max {
            return Err(Error::failed(format!(
                "the redo spool in {} is full: the server wrote more than {} bytes of redo during the backup",
                self.dir.display(),
                self.bytes_max
            ))
            .hinted("allow more (--spool-max), or take the backup when the server writes less"));
        }
        while !bytes.is_empty() {
            let take = bytes.len().min(FRAME_BYTES - self.frame.len());
            self.frame.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.frame.len() == FRAME_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.reserve_bytes > 0 && self.frames.is_multiple_of(LOOK_EVERY_FRAMES) {
            self.leave_reserve()?;
        }
        self.key.seal(context(self.frames), &mut self.frame);
        self.file
            .write_all_at(&self.frame, self.frames * (FRAME_BYTES + TAG_BYTES) as u64)
            .context(format_args!("write the redo spool in {}", self.dir.display()))
            .map_err(|error| error.hinted(CHOOSE_ANOTHER))?;
        self.frame.clear();
        self.frames += 1;
        Ok(())
    }

    /// Fails if little space is left, early enough that the server can still write.
    fn leave_reserve(&self) -> Result<()> {
        let space = fstatvfs(&self.file).context(format_args!("look at {}", self.dir.display()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free >= self.reserve_bytes + LOOK_EVERY_FRAMES * FRAME_BYTES as u64 {
            return Ok(());
        }
        Err(Error::failed(format!(
            "the redo spool has grown to {}, and only {} are left in {}, on a file system that the server \
             writes to",
            ByteSize(self.len()),
            ByteSize(free),
            self.dir.display()
        ))
        .hinted(CHOOSE_ANOTHER))
    }

    /// Passes the first `len` bytes to `each` in order, in pieces of 1 MiB except for the last.
    pub fn read(&self, len: u64, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut left = len.min(self.len());
        let mut frame = 0;
        while left > 0 {
            let bytes = self.frame(frame)?;
            let take = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            each(&bytes[..take])?;
            left -= take as u64;
            frame += 1;
        }
        Ok(())
    }

    /// Reads `len` bytes at `offset`, which must be within what was appended, and within one frame.
    pub fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let bytes = self.frame(offset / FRAME_BYTES as u64)?;
        let start = usize::try_from(offset % FRAME_BYTES as u64).unwrap_or(0);
        match bytes.get(start..start + len) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => Err(Error::failed(format!("the redo spool has no {len} bytes at {offset}"))),
        }
    }

    fn frame(&self, frame: u64) -> Result<std::borrow::Cow<'_, [u8]>> {
        if frame >= self.frames {
            return Ok(self.frame.as_slice().into());
        }
        let mut sealed = vec![0; FRAME_BYTES + TAG_BYTES];
        self.file
            .read_exact_at(&mut sealed, frame * (FRAME_BYTES + TAG_BYTES) as u64)
            .context(format_args!("read the redo spool in {}", self.dir.display()))?;
        let len = self
            .key
            .open(context(frame), &mut sealed)
            .map_err(io::Error::other)
            .context(format_args!("the redo spool in {} was altered", self.dir.display()))?
            .len();
        sealed.truncate(len);
        Ok(sealed.into())
    }
}

fn context(frame: u64) -> SealContext {
    SealContext {
        object_kind: 0,
        chunk_kind: 0,
        codec: 0,
        last: false,
        ordinal: frame,
        plain_len: FRAME_BYTES as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_is_not_readable_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(dir.path(), 10 << 20, 0).unwrap();
        let bytes: Vec<u8> = (0..3_500_000_u32).map(|i| (i % 253) as u8).collect();
        for piece in bytes.chunks(777_777) {
            spool.append(piece).unwrap();
        }
        assert_eq!(spool.len(), bytes.len() as u64);
        let mut out = Vec::new();
        spool
            .read(3_400_000, |piece| {
                out.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
        assert!(out == bytes[..3_400_000]);
        assert_eq!(spool.read_at(2 << 20, 512).unwrap(), bytes[2 << 20..(2 << 20) + 512]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the spool has a name");
        let mut stored = vec![0; 1000];
        spool.file.read_exact_at(&mut stored, 0).unwrap();
        assert!(stored != bytes[..1000]);
    }

    #[test]
    fn a_full_spool_fails_with_the_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(dir.path(), 1000, 0).unwrap();
        spool.append(&[1; 1000]).unwrap();
        assert!(spool.append(&[1]).unwrap_err().to_string().contains("1000 bytes"));
    }
}
