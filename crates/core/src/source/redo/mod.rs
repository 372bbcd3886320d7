//! Follows the redo log while the server writes it, on a thread of its own that waits for nobody.
//!
//! The redo is the one thing that can be lost. If it is overwritten before it was read, if it is resized, or
//! if the spool is full, the backup fails, with the numbers.

use std::{
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use holdfast_formats::{Lsn, PageSize};
use holdfast_pipe::lock::lock;

use super::{FileSpec, Pages, Role, Sink, spool::Spool};
use crate::{
    captured_redo::REDO_ITEM,
    error::{Error, Result},
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

/// What a follower shares with those who wait for it: how far it is, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Follow {
    captured: AtomicU64,
    /// No more is wanted than what was captured.
    finish: AtomicBool,
    ended: AtomicBool,
    failure: Mutex<Option<Error>>,
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

    fn finish(&self) {
        self.finish.store(true, Ordering::Release);
        self.wake();
    }

    fn is_finished(&self) -> bool {
        self.finish.load(Ordering::Acquire)
    }

    fn abandon(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    fn abandoned(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn wake(&self) {
        let _guard = lock(&self.moved_lock);
        self.moved.notify_all();
    }

    /// Sleeps until the next [`Follow::wake`], but for `time` at most.
    fn sleep(&self, time: Duration) {
        drop(self.moved.wait_timeout(lock(&self.moved_lock), time));
    }

    /// Ends the following with `error`, unless it has ended before.
    fn fail(&self, error: Error) {
        if self.abandoned() {
            return;
        }
        *lock(&self.failure) = Some(error);
        self.abandon();
    }

    /// The failure. Every caller gets it, since nobody knows which of them will be heard.
    fn check(&self) -> Result<()> {
        if !self.abandoned() {
            return Ok(());
        }
        match &*lock(&self.failure) {
            Some(error) => Err(error.again()),
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
                    "the redo log could not be read up to LSN {lsn} within {} s (captured up to {})",
                    limit.as_secs(),
                    self.captured()
                )));
            }
            self.sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_hears_why_it_has_failed() {
        let follow = Follow::default();
        follow.check().unwrap();
        let cause = std::io::Error::other("no room");
        follow.fail(Error::failed("write the spool").caused_by(cause).hinted("make room"));
        follow.fail(Error::failed("too late"));
        for error in [follow.check().unwrap_err(), follow.wait_for(Lsn(1), Duration::ZERO).unwrap_err()] {
            assert_eq!(
                (error.to_string().as_str(), error.hint()),
                ("write the spool: no room", Some("make room"))
            );
        }
    }
}
