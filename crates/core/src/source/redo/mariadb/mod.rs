//! Follows `ib_logfile0` of MariaDB 10.8 and later.
//!
//! The log is a circle that the server overwrites. It is read up to what the server says is durable
//! (`bound`), and after each read the checkpoint is read again: as long as it is no more than the log's
//! capacity past the position that was read, the bytes belong to this lap or the next, which the marker byte
//! of each mini-transaction tells apart. A log file that was replaced (resize) ends the backup.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use holdfast_formats::{
    Lsn,
    redo::mariadb::{AbsolutePaths, LogHeader, MtrWalker, WalkStop},
};

use self::{
    bound::Bound,
    circle::{Circle, READ_BYTES},
    notes::Notebook,
};
use super::{Follow, lock};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    points::point,
    source::{RedoProgress, page_reader::ReadMode, spool::Spool},
};

pub use self::notes::{FileNotes, HiddenNotes};

mod bound;
mod circle;
mod notes;

/// No mini-transaction is longer than this.
const MTR_BYTES_MAX: usize = 64 << 20;
/// How long durable redo may look invalid before that is believed.
const UNREADABLE_MAX: Duration = Duration::from_secs(10);
/// The pause between two looks at durable redo that looks invalid.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A running follower.
pub struct Follower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Option<Captured>>>,
    header: LogHeader,
}

/// What was captured.
pub struct Captured {
    /// The redo, linear, from the checkpoint on.
    pub spool: Spool,
    /// Its end, a boundary between mini-transactions.
    pub stop: Lsn,
    /// Paths outside the data directory that file records name.
    pub absolute_paths: AbsolutePaths,
    /// The largest lag of the reader behind what is durable, once it had first caught up.
    pub lag_bytes_max: u64,
}

struct Shared {
    follow: Follow,
    bound: Bound,
    notes: Mutex<FileNotes>,
}

impl Follower {
    /// Starts at the newest checkpoint of the log at `path`. `durable` asks the server up to which LSN its
    /// redo is certainly on disk.
    pub fn start(
        path: &Path,
        mode: ReadMode,
        spool: Spool,
        durable: impl FnMut() -> Result<Lsn> + Send + 'static,
    ) -> Result<Self> {
        let circle = Circle::open(path, mode)?;
        let header = circle.header().clone();
        let begin = header.checkpoint().lsn;
        let shared = Arc::new(Shared {
            follow: Follow::default(),
            bound: Bound::new(begin),
            notes: Mutex::new(FileNotes::default()),
        });
        shared.follow.advance(begin);
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("redo".to_owned()).spawn(move || {
                match follow(circle, &shared, spool, durable) {
                    Ok(captured) => Some(captured),
                    Err(error) => {
                        shared.follow.fail(error);
                        None
                    }
                }
            })
        };
        Ok(Self { shared, thread: Some(thread.context("start the redo thread")?), header })
    }

    /// The log as it was at the start, with the checkpoint that the capture begins with.
    #[must_use]
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// Waits until everything before `lsn` is captured, so the server must make that durable meanwhile.
    pub fn wait_for(&self, lsn: Lsn, limit: Duration) -> Result<()> {
        self.shared.bound.want(lsn);
        self.shared.follow.wake();
        self.shared.follow.wait_for(lsn, limit)
    }

    /// Captures nothing beyond what the server has reported as durable so far, until it is known where to
    /// stop: every LSN that it reports from now on is at or after what is captured. The follower catches up
    /// afterwards, so this must not last long.
    pub fn hold(&self) {
        self.shared.bound.hold();
    }

    /// Tells where to stop, after [`Follower::hold`]: nothing at or after `lsn`, a boundary between
    /// mini-transactions, is captured, unless [`Follower::go_on`] takes it back.
    pub fn stop_at(&self, lsn: Lsn) {
        self.shared.bound.stop_at(lsn);
        self.shared.follow.wake();
    }

    /// Takes back the hold and the stop: the end will be a different one.
    pub fn go_on(&self) {
        self.shared.bound.go_on();
        self.shared.follow.wake();
    }

    /// What the redo captured so far notes about files.
    #[must_use]
    pub fn file_notes(&self) -> FileNotes {
        lock(&self.shared.notes).clone()
    }

    /// Waits for the end given by [`Follower::stop_at`].
    pub fn finish(mut self, limit: Duration) -> Result<Captured> {
        let Shared { follow, bound, .. } = &*self.shared;
        let stop = bound
            .stop()
            .ok_or_else(|| Error::failed("the redo capture was asked to finish without a stop LSN"))?;
        self.wait_for(stop, limit)?;
        follow.finish();
        let captured = self.thread.take().and_then(|thread| thread.join().ok()).flatten();
        captured.ok_or_else(|| {
            follow.check().err().unwrap_or_else(|| Error::failed("the redo thread ended early"))
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.follow.abandon();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl RedoProgress for Follower {
    fn captured(&self) -> Lsn {
        self.shared.follow.captured()
    }

    fn check(&self) -> Result<()> {
        self.shared.follow.check()
    }

    fn has_failed(&self) -> bool {
        self.shared.follow.abandoned()
    }
}

fn follow(
    mut circle: Circle,
    shared: &Shared,
    mut spool: Spool,
    mut durable: impl FnMut() -> Result<Lsn>,
) -> Result<Captured> {
    let Shared { follow, bound, notes } = shared;
    let walker = MtrWalker::new(circle.header());
    let mtr_bytes_max = MTR_BYTES_MAX.min(usize::try_from(circle.header().capacity()).unwrap_or(usize::MAX));
    let mut at = circle.header().checkpoint().lsn;
    let mut notebook = Notebook::default();
    let mut window = Vec::new();
    let mut want_bytes = READ_BYTES;
    let mut invalid_since = None;
    let mut caught_up = false;
    let mut lag_bytes_max = 0;
    loop {
        if follow.abandoned() {
            return Err(Error::new(ErrorKind::Interrupted, "the capture of the redo log was given up"));
        }
        let end = bound.get();
        let readable_bytes = end.bytes_since(at).unwrap_or(0);
        if readable_bytes == 0 {
            if follow.is_finished() {
                let absolute_paths = notebook.absolute_paths;
                return Ok(Captured { spool, stop: at, absolute_paths, lag_bytes_max });
            }
            caught_up = true;
            ask(shared, &mut durable)?;
            continue;
        }
        if caught_up {
            lag_bytes_max = lag_bytes_max.max(readable_bytes);
        }
        point("backup.redo.read");
        let readable = usize::try_from(readable_bytes).unwrap_or(usize::MAX);
        circle.read(at, want_bytes.min(readable), &mut window)?;
        let checkpoint = {
            let now = circle.header_again()?;
            if now.may_have_lapped(at) {
                return Err(circle.overwritten(at, now.checkpoint().lsn));
            }
            now.checkpoint().lsn
        };
        let walked = walker.walk(&mut window, at, Some(end), |lsn, op| notebook.note(lsn, op));
        notebook.check()?;
        if walked.bytes > 0 {
            spool.append(&window[..walked.bytes])?;
            at = Lsn(at.0 + walked.bytes as u64);
            share(&notebook.notes, notes);
            follow.advance(at);
            (want_bytes, invalid_since) = (READ_BYTES, None);
        } else if walked.stop == WalkStop::NeedMore && window.len() < readable.min(mtr_bytes_max) {
            want_bytes = want_bytes.saturating_mul(2);
        } else if checkpoint > at {
            // The redo was durable before it was read, so this is another lap.
            return Err(circle.overwritten(at, checkpoint));
        } else if invalid_since.get_or_insert_with(Instant::now).elapsed() < UNREADABLE_MAX {
            follow.sleep(LOOK_AGAIN);
            ask(shared, &mut durable)?;
        } else {
            return Err(circle.unreadable(at, end));
        }
    }
}

/// Asks the server how much more is durable, once it is time to. If no answer would help, waits for a
/// direction.
fn ask(shared: &Shared, durable: &mut impl FnMut() -> Result<Lsn>) -> Result<()> {
    let Shared { follow, bound, .. } = shared;
    match bound.ask_after() {
        None => follow.sleep(Duration::from_millis(10)),
        Some(time) => {
            follow.sleep(time);
            bound.learn(durable()?);
        }
    }
    Ok(())
}

/// Shares what the redo notes about files, before the LSN advances past it.
fn share(notes: &FileNotes, with: &Mutex<FileNotes>) {
    let mut shared = lock(with);
    if *shared != *notes {
        shared.clone_from(notes);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::unix::fs::FileExt,
        sync::atomic::{AtomicU64, Ordering},
    };

    use holdfast_formats::{checksum::crc32c, redo::mariadb::DATA_START};

    use super::*;

    const CAPACITY: u64 = 1 << 20;
    const WAIT: Duration = Duration::from_secs(10);

    /// A log file that a test writes as a server would.
    struct FakeLog {
        dir: tempfile::TempDir,
        file: File,
        durable: Arc<AtomicU64>,
    }

    impl FakeLog {
        fn new() -> FakeLog {
            let dir = tempfile::tempdir().unwrap();
            let file = File::create_new(dir.path().join("ib_logfile0")).unwrap();
            file.set_len(DATA_START + CAPACITY).unwrap();
            let mut header = [0; 512];
            header[..4].copy_from_slice(b"Phys");
            header[8..16].copy_from_slice(&DATA_START.to_be_bytes());
            let crc = crc32c(&header[..508]);
            header[508..].copy_from_slice(&crc.to_be_bytes());
            file.write_all_at(&header, 0).unwrap();
            let log = FakeLog { dir, file, durable: Arc::new(AtomicU64::new(DATA_START)) };
            log.checkpoint(DATA_START);
            log
        }

        fn checkpoint(&self, lsn: u64) {
            let mut block = [0; 64];
            block[..8].copy_from_slice(&lsn.to_be_bytes());
            block[8..16].copy_from_slice(&lsn.to_be_bytes());
            let crc = crc32c(&block[..60]);
            block[60..].copy_from_slice(&crc.to_be_bytes());
            self.file.write_all_at(&block, 0x1000).unwrap();
        }

        /// Writes mini-transactions; returns the LSN after them.
        fn write(&self, lsn: u64, mtrs: &[Vec<u8>]) -> u64 {
            let bytes = mtrs.concat();
            self.file.write_all_at(&bytes, DATA_START + (lsn - DATA_START) % CAPACITY).unwrap();
            lsn + bytes.len() as u64
        }

        fn is_durable(&self, lsn: u64) {
            self.durable.store(lsn, Ordering::Release);
        }

        fn follower(&self) -> Follower {
            let durable = Arc::clone(&self.durable);
            self.follower_that_asks(move || Ok(Lsn(durable.load(Ordering::Acquire))))
        }

        fn follower_that_asks(&self, ask: impl FnMut() -> Result<Lsn> + Send + 'static) -> Follower {
            let spool = Spool::create(self.dir.path(), 1 << 20, 0).unwrap();
            Follower::start(&self.dir.path().join("ib_logfile0"), ReadMode::Buffered, spool, ask).unwrap()
        }
    }

    /// A mini-transaction of one record, whose marker is `marker`.
    fn mtr(content: u8, bytes: u8, marker: u8) -> Vec<u8> {
        let mut mtr = vec![content; usize::from(bytes) + 1];
        mtr[0] = 0x30 | bytes;
        let crc = crc32c(&mtr);
        mtr.push(marker);
        mtr.extend_from_slice(&crc.to_be_bytes());
        mtr
    }

    fn captured(follower: Follower, stop: u64) -> Vec<u8> {
        follower.hold();
        follower.stop_at(Lsn(stop));
        let captured = follower.finish(WAIT).unwrap();
        assert_eq!(captured.stop, Lsn(stop));
        captured.spool.read_at(0, usize::try_from(captured.spool.len()).unwrap()).unwrap()
    }

    /// What follows the end of the log in its last block is valid in all that can be checked, and is not the
    /// log.
    #[test]
    fn only_what_is_durable_counts_however_valid_the_rest_looks() {
        let log = FakeLog::new();
        let (first, stale, second) = (mtr(1, 10, 1), mtr(2, 7, 1), mtr(3, 12, 1));
        let end = log.write(DATA_START, std::slice::from_ref(&first));
        log.write(end, &[stale]);
        log.is_durable(end);
        let follower = log.follower();
        follower.wait_for(Lsn(end), WAIT).unwrap();
        let later = log.write(end, std::slice::from_ref(&second));
        log.is_durable(later);
        assert_eq!(captured(follower, later), [first, second].concat());
    }

    #[test]
    fn durable_redo_that_is_no_longer_there_was_overwritten() {
        let log = FakeLog::new();
        let end = log.write(DATA_START, &[mtr(1, 10, 1)]);
        log.write(DATA_START, &[mtr(2, 11, 0)]); // the next lap
        let follower = log.follower();
        log.checkpoint(end);
        log.is_durable(end);
        let error = follower.wait_for(Lsn(end), WAIT).unwrap_err();
        assert!(error.to_string().contains("overwritten before it was copied"), "{error}");
    }

    #[test]
    fn the_end_is_waited_for_until_it_is_durable() {
        let log = FakeLog::new();
        let first = mtr(1, 10, 1);
        let end = log.write(DATA_START, std::slice::from_ref(&first));
        let follower = log.follower();
        follower.hold();
        follower.stop_at(Lsn(end));
        assert!(follower.wait_for(Lsn(end), Duration::from_millis(100)).is_err());
        log.is_durable(end + 1000);
        assert_eq!(captured(follower, end), first);
    }

    /// Durable redo whose checksum is wrong when it is read, as a disk or a file system may return it for a moment,
    /// is read again until it is right.
    #[test]
    fn durable_redo_that_is_bad_for_a_moment_is_read_again() {
        let log = FakeLog::new();
        let mtrs = [mtr(1, 10, 1), mtr(2, 7, 1), mtr(3, 12, 1)];
        let end = log.write(DATA_START, &mtrs);
        let at = DATA_START + mtrs[0].len() as u64 + 3;
        log.file.write_all_at(&[0x55], at).unwrap();
        let (file, mut asked) = (log.file.try_clone().unwrap(), 0);
        let follower = log.follower_that_asks(move || {
            asked += 1;
            // Once the server has told the end, it is asked again only when what was read up to there was bad.
            if asked == 4 {
                file.write_all_at(&[2], at).unwrap();
            }
            Ok(Lsn(end))
        });
        follower.wait_for(Lsn(end), WAIT).unwrap();
        assert_eq!(captured(follower, end), mtrs.concat());
    }

    /// What comes before durable redo that stays bad is captured, and then the capture fails with the place.
    #[test]
    fn durable_redo_that_stays_bad_is_named() {
        let log = FakeLog::new();
        let mtrs = [mtr(1, 10, 1), mtr(2, 7, 1), mtr(3, 12, 1)];
        let end = log.write(DATA_START, &mtrs);
        let second = DATA_START + mtrs[0].len() as u64;
        log.file.write_all_at(&[0x55], second + 3).unwrap();
        log.is_durable(end);
        let follower = log.follower();
        follower.wait_for(Lsn(second), WAIT).unwrap();
        let error = follower.wait_for(Lsn(end), 3 * UNREADABLE_MAX).unwrap_err();
        let expected =
            format!("no valid redo at LSN {second}, although the server says that everything up to {end}");
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(follower.has_failed());
    }
}
