//! Following the redo log while the server writes it: a thread of its own that waits for nobody.
//!
//! The redo is the one thing that can be lost. Overwritten before it was read, resized, or a full spool: the backup
//! fails, with the numbers.

use std::{
    collections::BTreeSet,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use holdfast_formats::{Lsn, PageSize, SpaceId};

use super::{FileSpec, Pages, Role, Sink, spool::Spool};
use crate::{
    error::{Error, Result},
    physical::REDO_ITEM,
};

pub mod mariadb;
pub mod mysql;

/// Sends the first `keep_bytes` of captured redo and then `last` into the sink, as one file.
pub(crate) fn send(spool: &Spool, keep_bytes: u64, last: &[u8], sink: &dyn Sink) -> Result<()> {
    let page_bytes = PageSize::DEFAULT_FILE.bytes();
    let file = sink.file_begin(FileSpec {
        path: REDO_ITEM.to_owned(),
        role: Role::Other,
        mode: 0o600,
        page_size: PageSize::DEFAULT_FILE,
        space: None,
        outside: None,
    })?;
    let mut sent_pages = 0;
    let mut held = Vec::new();
    let mut send_whole_pages = |held: &mut Vec<u8>| -> Result<()> {
        let whole = held.len() / page_bytes * page_bytes;
        if whole > 0 {
            let bytes = &held[..whole];
            sink.pages(
                file,
                Pages { first: sent_pages, page_size: PageSize::DEFAULT_FILE, bytes, holes: &[] },
            )?;
            sent_pages += (whole / page_bytes) as u64;
            held.drain(..whole);
        }
        Ok(())
    };
    spool.read(keep_bytes, |piece| {
        held.extend_from_slice(piece);
        send_whole_pages(&mut held)
    })?;
    held.extend_from_slice(last);
    held.resize(held.len().next_multiple_of(page_bytes), 0);
    send_whole_pages(&mut held)?;
    sink.file_end(file, keep_bytes + last.len() as u64)
}

/// Tablespaces that captured redo says were created or deleted (MariaDB).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileNotes {
    /// Created since the capture began: all of their pages are in the redo.
    pub created: BTreeSet<SpaceId>,
    /// Dropped or discarded since.
    pub deleted: BTreeSet<SpaceId>,
}

/// What a follower and those who wait for it share.
#[derive(Debug, Default)]
pub(crate) struct Follow {
    captured: AtomicU64,
    /// Stop at the first boundary at or after this LSN; 0: not yet known.
    stop_at: AtomicU64,
    /// Capture nothing more until `stop_at` is known.
    rest: AtomicBool,
    /// Nothing is being captured, in answer to `rest`.
    resting: AtomicBool,
    /// The stop is final.
    finish: AtomicBool,
    ended: AtomicBool,
    failure: Mutex<Option<Error>>,
    noted: Mutex<FileNotes>,
    moved: Condvar,
    moved_lock: Mutex<()>,
}

impl Follow {
    fn captured(&self) -> Lsn {
        Lsn(self.captured.load(Ordering::Acquire))
    }

    fn advance(&self, lsn: Lsn) {
        self.captured.store(lsn.0, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let _guard = self.moved_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.moved.notify_all();
    }

    fn stop_at(&self) -> Option<Lsn> {
        Some(self.stop_at.load(Ordering::Acquire)).filter(|lsn| *lsn != 0).map(Lsn)
    }

    fn sleep(&self, time: Duration) {
        let guard = self.moved_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(self.moved.wait_timeout(guard, time));
    }

    /// For the follower: waits while it is to rest.
    fn rest_if_asked(&self) {
        while self.rest.load(Ordering::Acquire) && self.stop_at().is_none() && !self.abandoned() {
            if !self.resting.swap(true, Ordering::AcqRel) {
                self.wake();
            }
            self.sleep(Duration::from_millis(10));
        }
        self.resting.store(false, Ordering::Release);
    }

    /// For the follower, at the stop: waits until it is final, or taken back. `true`: it is final.
    fn is_final(&self, stop: Lsn) -> bool {
        loop {
            if self.finish.load(Ordering::Acquire) {
                return true;
            }
            if self.stop_at() != Some(stop) || self.abandoned() {
                return false;
            }
            self.sleep(Duration::from_millis(10));
        }
    }

    /// Waits until nothing is being captured any more, after `rest` was asked for.
    fn wait_for_rest(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.resting.load(Ordering::Acquire) {
            self.check()?;
            if Instant::now() >= deadline {
                return Err(Error::failed(format!(
                    "the redo reader did not come to rest within {} s",
                    limit.as_secs()
                )));
            }
            self.sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Shares what the redo notes about files; before the LSN advances past it.
    fn note_files(&self, notes: &FileNotes) {
        let mut noted = self.noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *noted != *notes {
            noted.clone_from(notes);
        }
    }

    fn abandoned(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the following with `error`, unless it has ended before.
    fn fail(&self, error: Error) {
        if self.abandoned() {
            return;
        }
        *self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// The failure, once. Later callers hear that there was one.
    fn check(&self) -> Result<()> {
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Err(Error::failed("following the redo log has failed")),
        }
    }

    /// Waits until everything before `lsn` is captured.
    fn wait_for(&self, lsn: Lsn, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            self.check()?;
            if self.captured() >= lsn {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::failed(format!(
                    "the redo log was not readable up to LSN {lsn} within {} s (captured up to {})",
                    limit.as_secs(),
                    self.captured()
                )));
            }
            self.sleep(Duration::from_millis(10));
        }
    }
}
