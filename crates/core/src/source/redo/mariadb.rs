//! Follows `ib_logfile0` of MariaDB 10.8 and later.
//!
//! The log is a circle that the server overwrites. After each read the checkpoint is read again: as long as it is not
//! more than the log's capacity past the position that was read, the bytes belong to this lap or the next, which the
//! marker byte of each mini-transaction tells apart. A log file that was replaced (resize) ends the backup.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Release},
    thread::JoinHandle,
    time::Duration,
};

use holdfast_formats::{
    Lsn,
    redo::mariadb::{AbsolutePaths, DATA_START, FileOp, LogHeader, MtrWalker, WalkStop},
};

use super::{FileNotes, Follow};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    source::{
        RedoProgress,
        files::{Inode, read_failed},
        page_reader::{ExtentBuffer, PageReader, ReadMode},
        spool::Spool,
    },
};

/// Bytes read at once while behind: the first read covers up to 80 % of the log, so the start must be fast.
const READ_BYTES: usize = 4 << 20;
/// Bytes read at once to see whether the server has written more.
const POLL_BYTES: usize = 64 << 10;
/// A mini-transaction longer than this does not exist; what looks like one is stale bytes.
const MTR_BYTES_MAX: usize = 64 << 20;
/// How long to wait when the end of the log is reached.
const POLL: Duration = Duration::from_millis(8);

/// A running follower.
pub struct Follower {
    follow: Arc<Follow>,
    thread: Option<JoinHandle<Option<Captured>>>,
    header: LogHeader,
}

/// What was captured.
pub struct Captured {
    /// The redo, linear, from the checkpoint on.
    pub spool: Spool,
    /// Its end: a boundary of mini-transactions.
    pub stop: Lsn,
    /// What file records name outside the data directory.
    pub absolute_paths: AbsolutePaths,
    /// The furthest the newest checkpoint was ahead of the reader.
    pub lag_bytes_max: u64,
}

struct Log {
    path: PathBuf,
    reader: PageReader,
    inode: Inode,
    first: LogHeader,
    buffer: ExtentBuffer,
    window: Vec<u8>,
}

impl Follower {
    /// Starts at the newest checkpoint of the log at `path`.
    pub fn start(path: &Path, mode: ReadMode, spool: Spool) -> Result<Self> {
        let log = Log::open(path, mode)?;
        let header = log.first.clone();
        let follow = Arc::new(Follow::default());
        follow.advance(header.checkpoint().lsn);
        let shared = Arc::clone(&follow);
        let thread = std::thread::Builder::new()
            .name("redo".to_owned())
            .spawn(move || match log.follow(&shared, spool) {
                Ok(captured) => Some(captured),
                Err(error) => {
                    shared.fail(error);
                    None
                }
            })
            .context("start the redo thread")?;
        Ok(Self { follow, thread: Some(thread), header })
    }

    /// The log as it was at the start, with the checkpoint that the capture begins with.
    #[must_use]
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// Waits until everything before `lsn` is captured.
    pub fn wait_for(&self, lsn: Lsn, limit: Duration) -> Result<()> {
        self.follow.wait_for(lsn, limit)
    }

    /// Asks the follower to capture nothing more until it knows where to stop. Otherwise it could be past the end that
    /// is about to be read. It catches up afterwards, so this may not last.
    pub fn rest(&self) {
        self.follow.rest.store(true, Release);
        self.follow.wake();
    }

    /// Waits until [`Follower::rest`] is obeyed: every LSN that the server tells from now on is not captured beyond.
    pub fn wait_for_rest(&self, limit: Duration) -> Result<()> {
        self.follow.wait_for_rest(limit)
    }

    /// Says where to stop: nothing from the first boundary at or after `lsn` on is captured, unless [`Follower::go_on`]
    /// takes it back.
    pub fn stop_at(&self, lsn: Lsn) {
        self.follow.stop_at.store(lsn.0, Release);
        self.follow.wake();
    }

    /// Takes back the rest and the stop: the end will be another.
    pub fn go_on(&self) {
        self.follow.rest.store(false, Release);
        self.follow.stop_at.store(0, Release);
        self.follow.wake();
    }

    /// What is noted about files in what was captured so far.
    #[must_use]
    pub fn file_notes(&self) -> FileNotes {
        self.follow.noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Waits for the end said by [`Follower::stop_at`].
    pub fn finish(mut self, limit: Duration) -> Result<Captured> {
        let stop = self
            .follow
            .stop_at()
            .ok_or_else(|| Error::failed("the redo capture is to finish and was not told where"))?;
        self.follow.wait_for(stop, limit)?;
        self.follow.finish.store(true, Release);
        self.follow.wake();
        let captured = self.thread.take().and_then(|thread| thread.join().ok()).flatten();
        captured.ok_or_else(|| {
            self.follow.check().err().unwrap_or_else(|| Error::failed("the redo thread ended early"))
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.follow.ended.store(true, Release);
        self.follow.wake();
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
    fn open(path: &Path, mode: ReadMode) -> Result<Self> {
        let reader = PageReader::open(path, mode).map_err(|error| read_failed(path, error))?;
        let inode = Inode::of(reader.file()).map_err(|error| read_failed(path, error))?;
        let mut buffer = ExtentBuffer::new(READ_BYTES + (64 << 10));
        let first = read_header(path, &reader, &mut buffer)?;
        Ok(Self { path: path.to_owned(), reader, inode, first, buffer, window: Vec::new() })
    }

    fn follow(mut self, shared: &Follow, mut spool: Spool) -> Result<Captured> {
        let walker = MtrWalker::new(&self.first);
        let mut at = self.first.checkpoint().lsn;
        let mut want = READ_BYTES;
        let mut absolute_paths = AbsolutePaths::default();
        let mut lag_bytes_max = 0;
        let mut notes = FileNotes::default();
        loop {
            shared.rest_if_asked();
            let limit = shared.stop_at();
            self.read(at, want)?;
            let now = self.header_again()?;
            let checkpoint = now.checkpoint().lsn;
            lag_bytes_max = lag_bytes_max.max(checkpoint.bytes_since(at).unwrap_or(0));
            if now.may_have_lapped(at) {
                return Err(self.overwritten(at, checkpoint));
            }
            let mut unknown = None;
            let walked = walker.walk(&mut self.window, at, limit, |lsn, op| {
                absolute_paths.observe(op);
                match op {
                    FileOp::Create { space, .. } => drop(notes.created.insert(space)),
                    FileOp::Delete { space, .. } => drop(notes.deleted.insert(space)),
                    FileOp::Unknown { kind } => unknown = Some((lsn, kind)),
                    _ => {}
                }
            });
            if let Some((lsn, kind)) = unknown {
                return Err(Error::failed(format!(
                    "unknown file record 0x{kind:02x} in the redo log at LSN {lsn}"
                ))
                .hinted("this server writes a redo format that holdfast does not know"));
            }
            if walked.bytes > 0 {
                spool.append(&self.window[..walked.bytes])?;
                at = Lsn(at.0 + walked.bytes as u64);
                shared.note_files(&notes);
                shared.advance(at);
            }
            match walked.stop {
                WalkStop::Limit => {
                    if limit.is_some_and(|limit| shared.is_final(limit)) {
                        return Ok(Captured { spool, stop: at, absolute_paths, lag_bytes_max });
                    }
                }
                WalkStop::NeedMore if walked.bytes == 0 => {
                    let most =
                        MTR_BYTES_MAX.min(usize::try_from(self.first.capacity()).unwrap_or(usize::MAX));
                    if want < most {
                        want = (want * 2).min(most);
                        continue;
                    }
                    if checkpoint > at {
                        return Err(self.overwritten(at, checkpoint));
                    }
                }
                WalkStop::NeedMore => {
                    want = (want * 2).min(READ_BYTES);
                    continue;
                }
                WalkStop::SequenceMismatch | WalkStop::CrcMismatch => {
                    // Written once for sure, if the checkpoint is past it; so this is another lap.
                    if walked.bytes == 0 && checkpoint > at {
                        return Err(self.overwritten(at, checkpoint));
                    }
                }
            }
            if shared.abandoned() {
                return Err(Error::new(ErrorKind::Interrupted, "the capture of the redo log was given up"));
            }
            want = POLL_BYTES;
            if walked.bytes == 0 {
                shared.sleep(POLL);
            }
        }
    }

    /// Fills the window with up to `want` bytes from `at` on, around the end of the circle.
    fn read(&mut self, at: Lsn, want: usize) -> Result<()> {
        self.window.clear();
        let capacity = self.first.capacity();
        let want = want.min(usize::try_from(capacity).unwrap_or(usize::MAX));
        let mut lsn = at;
        while self.window.len() < want {
            let offset = self.first.offset(lsn);
            let to_end = DATA_START + capacity - offset;
            let len = (want - self.window.len()).min(usize::try_from(to_end).unwrap_or(usize::MAX));
            let start = offset / 4096 * 4096;
            let skip = usize::try_from(offset - start).unwrap_or(0);
            let len = len.min(READ_BYTES);
            let got = self
                .reader
                .read(start, skip + len, &mut self.buffer)
                .map_err(|error| read_failed(&self.path, error))?;
            if got != skip + len {
                return Err(self.replaced());
            }
            self.window.extend_from_slice(&self.buffer.bytes(got)[skip..]);
            lsn = Lsn(lsn.0 + len as u64);
        }
        Ok(())
    }

    /// The header as it is now; fails if the log was replaced by another one.
    fn header_again(&mut self) -> Result<LogHeader> {
        let named = std::fs::File::open(&self.path).and_then(|file| Inode::of(&file));
        if !named.is_ok_and(|inode| inode == self.inode) {
            return Err(self.replaced());
        }
        // A checkpoint that is being written can be torn; the block before it is still valid then.
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

    fn overwritten(&self, at: Lsn, checkpoint: Lsn) -> Error {
        Error::failed(format!(
            "the redo log was overwritten before it was copied (need LSN {at}, the server's checkpoint is {checkpoint}, the log holds {} bytes)",
            self.first.capacity()
        ))
        .hinted("raise innodb_log_file_size on the server, or give the host more room; the redo copy itself is never throttled")
    }
}

fn read_header(path: &Path, reader: &PageReader, buffer: &mut ExtentBuffer) -> Result<LogHeader> {
    let got = reader.read(0, DATA_START as usize, buffer).map_err(|error| read_failed(path, error))?;
    let size = reader.file().metadata().map_err(|error| read_failed(path, error))?.len();
    LogHeader::parse(buffer.bytes(got), size).context(format_args!("read the redo log {}", path.display()))
}
