//! The files of the log, and the thread that reads them as the server writes.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use holdfast_formats::{
    Lsn, SpaceId,
    redo::mysql::{
        BLOCK_BYTES, BlockState, FILE_HEADER_BYTES, RedoFileHeader, RedoFileName, checkpoint, classify,
        encryption_block, set_encryption_block,
    },
};

use super::{
    Start, encryption_switched_on, needed_for,
    notes::{Found, Notes, Search},
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    points::point,
    source::{
        files::read_failed,
        redo::{Follow, lock},
        spool::Spool,
    },
};

const READ_BYTES: usize = 1 << 20;
pub(super) const POLL: Duration = Duration::from_millis(5);

/// Whether some of the redo in `dir` may be encrypted.
pub fn is_encrypted(dir: &Path) -> Result<bool> {
    Ok(Log::open(dir)?.1.encrypted)
}

/// What others may look at while the log is followed.
#[derive(Default)]
pub(super) struct State {
    /// The block that the log ended in when it was last read.
    pub(super) partial: Option<(Lsn, [u8; BLOCK_BYTES])>,
    pub(super) notes: Notes,
    /// Encrypted: everything before this is on disk.
    pub(super) durable: Lsn,
    /// Encrypted: where to stop.
    pub(super) stop: Option<Lsn>,
    /// Whether the stop has been reached.
    pub(super) is_stopped: bool,
}

/// The block that the log ends in for now: bytes in use, and the block.
type PartialBlock = (u16, [u8; BLOCK_BYTES]);

/// The log, read up to some place.
pub(super) struct Log {
    dir: PathBuf,
    file: File,
    number: u64,
    header: RedoFileHeader,
    at: Lsn,
    pub(super) encrypted: bool,
}

impl Log {
    /// Opens the file with the newest checkpoint. Files can vanish and appear meanwhile.
    pub(super) fn open(dir: &Path) -> Result<(Self, Start)> {
        let mut newest: Option<(Lsn, u64, File, Vec<u8>)> = None;
        let mut encryption = None;
        for number in active_files(dir)? {
            let path = dir.join(RedoFileName::Active(number).to_string());
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(read_failed(&path, error)),
            };
            let mut header = vec![0; FILE_HEADER_BYTES];
            if file.read_exact_at(&mut header, 0).is_err() || RedoFileHeader::parse(&header).is_err() {
                continue; // being prepared
            }
            if let Some(block) = encryption_block(&header)
                && encryption.as_ref().is_none_or(|(of, _)| number > *of)
            {
                encryption = Some((number, *block));
            }
            if let Some(lsn) = checkpoint(&header)
                && newest.as_ref().is_none_or(|(best, ..)| lsn > *best)
            {
                newest = Some((lsn, number, file, header));
            }
        }
        let Some((checkpoint, number, file, mut raw)) = newest else {
            return Err(Error::failed(format!("{}: no redo file contains a checkpoint", dir.display()))
                .hinted(
                    "check that this is the redo directory of this server, and that it is MySQL 8.0.30 or \
                     later",
                ));
        };
        let header = RedoFileHeader::parse(&raw).context(format_args!("read redo in {}", dir.display()))?;
        let begin = checkpoint.align_down(BLOCK_BYTES as u64);
        let log_uuid = header.log_uuid();
        let encrypted = encryption.is_some();
        if let Some((_, block)) = encryption {
            // The newest file has the key as the newest master key wraps it.
            set_encryption_block(&mut raw, &block);
        }
        let log = Self { dir: dir.to_owned(), file, number, header, at: begin, encrypted };
        Ok((log, Start { checkpoint, begin, header: raw, encrypted, log_uuid }))
    }

    /// Reads on until the capture ends, into the spool.
    pub(super) fn follow(
        mut self,
        shared: &Follow,
        state: &Mutex<State>,
        mut spool: Spool,
        highest_index_id: u64,
        watched: &BTreeSet<SpaceId>,
    ) -> Result<Spool> {
        let mut search = Search::new(self.at, highest_index_id, watched);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if shared.is_finished() {
                return Ok(spool);
            }
            if shared.abandoned() {
                return Err(Error::new(ErrorKind::Interrupted, "the capture of the redo log was given up"));
            }
            if self.is_stopped(shared, state) {
                shared.sleep(POLL);
                continue;
            }
            point("backup.redo.read");
            let end = self.end()?;
            if self.at >= end {
                if !self.next_file()? {
                    std::thread::sleep(POLL);
                }
                continue;
            }
            let want = end.bytes_since(self.at).unwrap_or(0).min(READ_BYTES as u64);
            let want = usize::try_from(want).unwrap_or(READ_BYTES);
            let offset = self.header.offset(self.at).unwrap_or(FILE_HEADER_BYTES as u64);
            let got = read_up_to(&self.file, &mut buffer[..want], offset)
                .map_err(|error| read_failed(&self.path(), error))?;
            let (full_bytes, partial) = if self.encrypted {
                let state = lock(state);
                let end = state.stop.map_or(state.durable, |stop| stop.min(state.durable));
                drop(state);
                self.judge_encrypted(&buffer[..got], end)?
            } else {
                self.judge(&buffer[..got])?
            };
            let full = &buffer[..full_bytes];
            spool.append(full)?;
            self.at = Lsn(self.at.0 + full_bytes as u64);
            let found = match self.encrypted {
                true => Found::default(),
                false => {
                    let peeked = partial.as_ref().map(|(_, block)| &block[..]);
                    // A bulk build of an index that goes unseen would make a backup that cannot be recovered; an
                    // unseen import, one that lacks rows.
                    let found = search.search(full, peeked);
                    found.map_err(|cause| encryption_switched_on().caused_by(cause))?
                }
            };
            {
                let mut state = lock(state);
                state.notes.add(found)?;
                match partial {
                    Some((_, block)) => state.partial = Some((self.at, block)),
                    // The block is being written: the version that was read before is as good as it was.
                    None if state.partial.is_some_and(|(at, _)| at == self.at) => {}
                    None => state.partial = None,
                }
            }
            let end = partial.map_or(self.at, |(used_bytes, _)| Lsn(self.at.0 + u64::from(used_bytes)));
            shared.advance(end.max(shared.captured()));
            if full_bytes == 0 {
                self.still_mine()?;
                std::thread::sleep(POLL);
            }
        }
    }

    /// Whether the capture has reached its stop.
    fn is_stopped(&self, shared: &Follow, state: &Mutex<State>) -> bool {
        let mut state = lock(state);
        state.is_stopped = state.stop.is_some_and(|stop| shared.captured() >= needed_for(stop));
        state.is_stopped
    }

    /// How many of `bytes` are complete blocks, and the block that the log ends in.
    fn judge(&self, bytes: &[u8]) -> Result<(usize, Option<PartialBlock>)> {
        let mut full = 0;
        for block in bytes.chunks_exact(BLOCK_BYTES) {
            let lsn = Lsn(self.at.0 + full as u64);
            match classify(block, lsn) {
                BlockState::Full { .. } => full += BLOCK_BYTES,
                BlockState::Partial { used_bytes, .. } => {
                    let block = <[u8; BLOCK_BYTES]>::try_from(block).ok();
                    return Ok((full, block.map(|block| (used_bytes, block))));
                }
                BlockState::Old | BlockState::Torn => break,
                BlockState::Overwritten { by } => {
                    return Err(self.overwritten(lsn, &format!("the block of LSN {by} is in its place")));
                }
            }
        }
        Ok((full, None))
    }

    /// Judges a log of whose blocks only the headers can be read: the blocks before `durable` are full, and the
    /// one that contains it is partial.
    fn judge_encrypted(&self, bytes: &[u8], durable: Lsn) -> Result<(usize, Option<PartialBlock>)> {
        let mut full = 0;
        for block in bytes.chunks_exact(BLOCK_BYTES) {
            let lsn = Lsn(self.at.0 + full as u64);
            if lsn >= durable {
                break;
            }
            let state = classify(block, lsn);
            match state {
                BlockState::Full { .. } if lsn.0 + BLOCK_BYTES as u64 <= durable.0 => full += BLOCK_BYTES,
                BlockState::Full { .. } | BlockState::Partial { .. } => {
                    let used_bytes = match state {
                        BlockState::Partial { used_bytes, .. } => used_bytes,
                        _ => BLOCK_BYTES as u16,
                    };
                    let settled = self.reads_the_same(block, lsn)?;
                    let block = <[u8; BLOCK_BYTES]>::try_from(block).ok().filter(|_| settled);
                    return Ok((full, block.map(|block| (used_bytes, block))));
                }
                BlockState::Old | BlockState::Torn => break,
                BlockState::Overwritten { by } => {
                    return Err(self.overwritten(lsn, &format!("the block of LSN {by} is in its place")));
                }
            }
        }
        Ok((full, None))
    }

    /// Whether a second read of the block at `lsn`, a while later, gives the same: then neither read fell
    /// into a write of it.
    fn reads_the_same(&self, block: &[u8], lsn: Lsn) -> Result<bool> {
        std::thread::sleep(POLL);
        let mut again = [0; BLOCK_BYTES];
        let offset = self.header.offset(lsn).unwrap_or(FILE_HEADER_BYTES as u64);
        let got =
            read_up_to(&self.file, &mut again, offset).map_err(|error| read_failed(&self.path(), error))?;
        Ok(got == BLOCK_BYTES && again == block)
    }

    /// The first LSN that is not in this file. A resize can shorten the newest file.
    fn end(&self) -> Result<Lsn> {
        let size = self.file.metadata().map_err(|error| read_failed(&self.path(), error))?.len();
        self.header.end_lsn(size).ok_or_else(|| self.overwritten(self.at, "its file was cut off"))
    }

    /// Moves on to the file that begins where this one ends. Returns `false` while the server has not created
    /// it.
    fn next_file(&mut self) -> Result<bool> {
        let path = self.dir.join(RedoFileName::Active(self.number + 1).to_string());
        match File::open(&path) {
            Ok(file) => {
                let mut header = vec![0; FILE_HEADER_BYTES];
                let parsed = file
                    .read_exact_at(&mut header, 0)
                    .ok()
                    .and_then(|()| RedoFileHeader::parse(&header).ok());
                match parsed {
                    Some(header) if header.start_lsn() == self.at => {
                        self.file = file;
                        self.header = header;
                        self.number += 1;
                        Ok(true)
                    }
                    Some(header) if header.start_lsn() > self.at => {
                        Err(self.overwritten(self.at, "its file is gone"))
                    }
                    _ => Ok(false),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if active_files(&self.dir)?.into_iter().min().is_some_and(|oldest| oldest > self.number + 1) {
                    return Err(self.overwritten(self.at, "its file is gone"));
                }
                Ok(false)
            }
            Err(error) => Err(read_failed(&path, error)),
        }
    }

    /// Fails if the open file was reused for later redo.
    fn still_mine(&self) -> Result<()> {
        let mut block = vec![0; BLOCK_BYTES];
        let now =
            self.file.read_exact_at(&mut block, 0).ok().and_then(|()| RedoFileHeader::parse(&block).ok());
        match now {
            Some(header) if header.start_lsn() > self.header.start_lsn() => {
                Err(self.overwritten(self.at, "its file was reused"))
            }
            _ => Ok(()),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(RedoFileName::Active(self.number).to_string())
    }

    fn overwritten(&self, at: Lsn, why: &str) -> Error {
        Error::failed(format!("the redo log was overwritten before it was copied (need LSN {at}, {why})"))
            .hinted("raise innodb_redo_log_capacity on the server; the redo copy itself is never throttled")
    }
}

fn active_files(dir: &Path) -> Result<Vec<u64>> {
    let listing = std::fs::read_dir(dir).map_err(|error| read_failed(dir, error))?;
    let mut numbers = Vec::new();
    for entry in listing {
        let entry = entry.map_err(|error| read_failed(dir, error))?;
        if let Some(RedoFileName::Active(number)) = entry.file_name().to_str().and_then(RedoFileName::parse) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
