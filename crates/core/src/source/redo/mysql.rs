//! Follows `#innodb_redo/#ib_redoN` of MySQL 8.0.30 and later.
//!
//! The log is a chain of files of 512-byte blocks. A registered consumer keeps the server from reusing what was not
//! yet captured, so falling behind stalls the server instead of losing redo: the guard in the caller gives up before
//! that. A block that was lost all the same is recognised by its number.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use holdfast_formats::{
    Lsn, SpaceId,
    redo::{
        index_load::{IndexLoad, IndexLoadFinder},
        mysql::{
            BLOCK_BYTES, BLOCK_HEADER_BYTES, BlockState, CutError, FILE_HEADER_BYTES, RedoFileHeader,
            RedoFileName, checkpoint, classify, cut_block, encryption_block,
        },
    },
};

use super::{Follow, lock};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    points::point,
    source::{RedoProgress, files::read_failed, spool::Spool},
};

const READ_BYTES: usize = 1 << 20;
const POLL: Duration = Duration::from_millis(5);

/// A running follower.
pub struct Follower {
    follow: Arc<Follow>,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<Option<Spool>>>,
    start: Start,
}

/// Where the capture begins.
#[derive(Clone, Debug)]
pub struct Start {
    /// The checkpoint that recovery starts from.
    pub checkpoint: Lsn,
    /// The block that contains it.
    pub begin: Lsn,
    /// The first 2,048 bytes of the file that holds it.
    pub header: Vec<u8>,
    /// Whether redo is encrypted.
    pub encrypted: bool,
    /// Identity of the log.
    pub log_uuid: u32,
}

/// Tablespaces that are told apart. Real loads are few; what merely looks like one can name any space.
const LOADED_SPACES_MAX: usize = 1 << 18;

/// What looks like the ends of bulk loads of indexes: the newest in each tablespace.
#[derive(Clone, Debug, Default)]
pub struct IndexLoads {
    newest: HashMap<SpaceId, Lsn>,
    /// The newest of those in tablespaces that are too many to be told apart.
    newest_elsewhere: Option<Lsn>,
}

impl IndexLoads {
    fn note(&mut self, load: IndexLoad) {
        if self.newest.len() < LOADED_SPACES_MAX || self.newest.contains_key(&load.space) {
            let newest = self.newest.entry(load.space).or_insert(load.lsn);
            *newest = load.lsn.max(*newest);
        } else {
            self.newest_elsewhere = self.newest_elsewhere.max(Some(load.lsn));
        }
    }

    /// Where the newest load into `space` begins, to the block.
    #[must_use]
    pub fn newest(&self, space: SpaceId) -> Option<Lsn> {
        self.newest.get(&space).copied().or(self.newest_elsewhere)
    }
}

/// What others may look at while it runs.
#[derive(Default)]
struct State {
    /// The block that the log ended in when it was last read.
    partial: Option<(Lsn, [u8; BLOCK_BYTES])>,
    loads: IndexLoads,
}

/// What was captured.
pub struct Captured {
    /// Whole blocks from [`Start::begin`] on; may go beyond the stop.
    pub spool: Spool,
    /// How many bytes of it count.
    pub keep_bytes: u64,
    /// The last block, cut at the stop; follows them.
    pub last_block: [u8; BLOCK_BYTES],
}

/// The block that the log ends in for now: bytes in use, and the block.
type PartialBlock = (u16, [u8; BLOCK_BYTES]);

struct Log {
    dir: PathBuf,
    file: File,
    number: u64,
    header: RedoFileHeader,
    at: Lsn,
}

impl Follower {
    /// Starts at the newest checkpoint of the log in `dir`. `highest_index_id`, asked for when that is known, is not
    /// below the id of any index of then.
    pub fn start(dir: &Path, spool: Spool, highest_index_id: impl FnOnce() -> Result<u64>) -> Result<Self> {
        let (log, start) = Log::open(dir)?;
        let highest_index_id = highest_index_id()?;
        let follow = Arc::new(Follow::default());
        follow.advance(start.begin);
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, shared_state) = (Arc::clone(&follow), Arc::clone(&state));
        let thread = std::thread::Builder::new()
            .name("redo".to_owned())
            .spawn(move || match log.follow(&shared, &shared_state, spool, highest_index_id) {
                Ok(spool) => Some(spool),
                Err(error) => {
                    shared.fail(error);
                    None
                }
            })
            .context("start the redo thread")?;
        Ok(Self { follow, state, thread: Some(thread), start })
    }

    /// Where the capture begins.
    #[must_use]
    pub fn begin(&self) -> &Start {
        &self.start
    }

    /// Waits until everything before `lsn` has been read, the last block's part of it included.
    pub fn wait_for(&self, lsn: Lsn, limit: Duration) -> Result<()> {
        // At the start of a block's records there may be no block yet.
        let block = lsn.align_down(BLOCK_BYTES as u64);
        let needed = if lsn.0 - block.0 <= BLOCK_HEADER_BYTES as u64 { block } else { lsn };
        self.follow.wait_for(needed, limit)
    }

    /// What looks like the load of an index into a tablespace, in the redo read so far.
    #[must_use]
    pub fn loads(&self) -> IndexLoads {
        self.lock().loads.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Ends the capture with the error; for a guard that sees the server suffer.
    pub fn give_up(&self, error: Error) {
        self.follow.fail(error);
    }

    /// Cuts the capture at `stop`.
    pub fn finish(mut self, stop: Lsn, limit: Duration) -> Result<Captured> {
        self.wait_for(stop, limit)?;
        self.follow.finish();
        let spool = self.thread.take().and_then(|thread| thread.join().ok()).flatten();
        let Some(spool) = spool else {
            return Err(self
                .follow
                .check()
                .err()
                .unwrap_or_else(|| Error::failed("the redo thread ended early")));
        };
        let last = stop.align_down(BLOCK_BYTES as u64);
        let keep_bytes = last.bytes_since(self.start.begin).unwrap_or(0);
        let partial = self.lock().partial;
        let block = match partial {
            Some((at, block)) if at == last => block.to_vec(),
            _ if keep_bytes + BLOCK_BYTES as u64 <= spool.len() => spool.read_at(keep_bytes, BLOCK_BYTES)?,
            // Stop at the very start of a block that is not there yet: an empty one is made.
            _ => vec![0; BLOCK_BYTES],
        };
        let last_block = match cut_block(&block, stop) {
            Ok(block) => block,
            Err(CutError::Encrypted { .. }) => {
                return Err(Error::failed("the redo log is encrypted, so it cannot be cut at the position")
                    .hinted("backups of servers with innodb_redo_log_encrypt are not supported yet"));
            }
            Err(error) => return Err(Error::failed("cut the captured redo").caused_by(error)),
        };
        Ok(Captured { spool, keep_bytes, last_block })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.follow.abandon();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl RedoProgress for Follower {
    fn captured(&self) -> Lsn {
        self.follow.captured()
    }

    fn check(&self) -> Result<()> {
        self.follow.check()
    }

    fn has_failed(&self) -> bool {
        self.follow.abandoned()
    }
}

impl Log {
    /// Opens the file with the newest checkpoint. Files can vanish and appear meanwhile.
    fn open(dir: &Path) -> Result<(Self, Start)> {
        let mut newest: Option<(Lsn, u64, File, Vec<u8>)> = None;
        let mut encrypted = false;
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
            encrypted |= encryption_block(&header).is_some();
            if let Some(lsn) = checkpoint(&header)
                && newest.as_ref().is_none_or(|(best, ..)| lsn > *best)
            {
                newest = Some((lsn, number, file, header));
            }
        }
        let Some((checkpoint, number, file, raw)) = newest else {
            return Err(Error::failed(format!("{}: no redo file holds a checkpoint", dir.display()))
                .hinted("is this the redo directory of the server, of MySQL 8.0.30 or later?"));
        };
        let header = RedoFileHeader::parse(&raw).context(format_args!("read redo in {}", dir.display()))?;
        let begin = checkpoint.align_down(BLOCK_BYTES as u64);
        let log_uuid = header.log_uuid();
        let log = Self { dir: dir.to_owned(), file, number, header, at: begin };
        Ok((log, Start { checkpoint, begin, header: raw, encrypted, log_uuid }))
    }

    fn follow(
        mut self,
        shared: &Follow,
        state: &Mutex<State>,
        mut spool: Spool,
        highest_index_id: u64,
    ) -> Result<Spool> {
        let mut finder = IndexLoadFinder::new(self.at, highest_index_id);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if shared.is_finished() {
                return Ok(spool);
            }
            if shared.abandoned() {
                return Err(Error::new(ErrorKind::Interrupted, "the capture of the redo log was given up"));
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
            let (full_bytes, partial) = self.judge(&buffer[..got])?;
            let full = &buffer[..full_bytes];
            spool.append(full)?;
            self.at = Lsn(self.at.0 + full_bytes as u64);
            let mut loads = Vec::new();
            let searched = finder.feed(full, |load| loads.push(load)).and_then(|()| match &partial {
                Some((_, block)) => finder.peek(block, |load| loads.push(load)),
                None => Ok(()),
            });
            // A bulk build of an index that is not seen would make a backup that cannot be recovered.
            searched.map_err(|cause| {
                Error::failed("encryption of the redo log was switched on during the backup").caused_by(cause)
            })?;
            {
                let mut state = lock(state);
                loads.into_iter().for_each(|load| state.loads.note(load));
                state.partial = partial.map(|(_, block)| (self.at, block));
            }
            shared.advance(match partial {
                Some((used_bytes, _)) => Lsn(self.at.0 + u64::from(used_bytes)),
                None => self.at,
            });
            if full_bytes == 0 {
                self.still_mine()?;
                std::thread::sleep(POLL);
            }
        }
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

    /// The first LSN that is not in this file. The newest file can be shortened by a resize.
    fn end(&self) -> Result<Lsn> {
        let size = self.file.metadata().map_err(|error| read_failed(&self.path(), error))?.len();
        self.header.end_lsn(size).ok_or_else(|| self.overwritten(self.at, "its file was cut off"))
    }

    /// Goes on to the file that begins where this one ends; `false` while the server has not made it.
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

#[cfg(test)]
mod tests {
    use holdfast_formats::PageNo;

    use super::*;

    /// What looks like a load can name any space: memory stays bounded, and nothing is forgotten.
    #[test]
    fn more_loads_than_can_be_told_apart_are_still_known() {
        let mut loads = IndexLoads::default();
        let note = |loads: &mut IndexLoads, space: u32, lsn: u64| {
            loads.note(IndexLoad { space: SpaceId(space), root: PageNo(4), index_id: 1, lsn: Lsn(lsn) });
        };
        note(&mut loads, 7, 50);
        note(&mut loads, 7, 40);
        assert_eq!((loads.newest(SpaceId(7)), loads.newest(SpaceId(8))), (Some(Lsn(50)), None));
        for space in 0..LOADED_SPACES_MAX as u32 + 10 {
            note(&mut loads, space, 100);
        }
        assert!(loads.newest.len() <= LOADED_SPACES_MAX);
        assert_eq!(loads.newest(SpaceId(7)), Some(Lsn(100)));
        assert_eq!(loads.newest(SpaceId(u32::MAX)), Some(Lsn(100)));
    }
}
