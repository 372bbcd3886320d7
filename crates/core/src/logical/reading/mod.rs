//! Rows of all tables into the repository, by several readers of one view.
//!
//! Work is taken from one queue, tables that are locked first, then the largest. A table whose key can be compared is read
//! in segments, each its own statement with a `LIMIT` that goes on behind the last row, so the range that a reader is
//! in can be cut in two while it is being read: whoever has nothing to do finds a place well ahead of it, and it hands
//! over what is behind that place when it comes to the end of a segment. So no plan is made of what servers only guess,
//! and a skewed or sparse key costs nothing.
//!
//! A table that an earlier backup has is cut where chunks of that backup begin, as far as it can be, so that no new border
//! is made.

mod cut;
mod guess;
mod queue;
mod range;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use holdfast_repo::{rows::RowTotals, writer::BackupWriter};

use super::{on_panic::OnPanic, tables::Table};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    server::{Session, raw::RawReader},
};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// How often a reader that waits says something to its server.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// What every reader shares.
pub(super) struct Reading<'a> {
    tables: &'a [Table],
    writer: &'a BackupWriter,
    queue: queue::Queue,
    listener: &'a dyn Listener,
    cancel: &'a Cancel,
    bytes_total: u64,
    bytes_done: AtomicU64,
    told_at: Mutex<Option<Instant>>,
    statements: AtomicU64,
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct ReadTables {
    /// By number of the table.
    pub(super) totals: Vec<RowTotals>,
    pub(super) statements: u64,
    pub(super) ranges: u64,
}

/// Reads all rows of `tables`. `locked_done` is called once, when those that are locked are read.
pub(super) fn read(
    tables: &[Table],
    readers: &mut [Session],
    writer: &BackupWriter,
    locked_done: &(dyn Fn() -> Result<()> + Sync),
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<ReadTables> {
    let reading = Reading {
        tables,
        writer,
        queue: queue::Queue::new(tables, writer)?,
        listener,
        cancel,
        bytes_total: tables.iter().map(|table| table.bytes_estimated).sum(),
        bytes_done: AtomicU64::new(0),
        told_at: Mutex::new(None),
        statements: AtomicU64::new(0),
    };
    let failure = Mutex::new(None::<Error>);
    thread::scope(|scope| {
        for reader in readers {
            scope.spawn(|| {
                let _guard = OnPanic(|| reading.queue.fail());
                if let Err(error) = reading.work(reader, locked_done) {
                    reading.queue.fail();
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(error);
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let (totals, ranges) = reading.queue.finished()?;
    Ok(ReadTables { totals, statements: reading.statements.load(Relaxed), ranges })
}

impl Reading<'_> {
    /// One reader.
    fn work(&self, session: &mut Session, locked_done: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        let mut raw = RawReader::default();
        loop {
            match self.queue.next(SIGN_OF_LIFE) {
                queue::Next::Read(range) => {
                    let number = range.table;
                    self.read_range(session, &mut raw, range).map_err(|error| {
                        error.context(format_args!("read table {}", self.tables[number].name))
                    })?;
                    if self.queue.locked_are_done() {
                        locked_done()?;
                    }
                }
                queue::Next::Cut(cut) => {
                    let place = self.find_cut(session, &cut).map_err(|error| {
                        error.context(format_args!("cut table {}", self.tables[cut.table].name))
                    })?;
                    self.queue.offer(cut.running, place);
                }
                queue::Next::Wait => session.ping()?,
                queue::Next::Over => return Ok(()),
            }
        }
    }

    /// Fails when the work is not wanted any more.
    fn check(&self) -> Result<()> {
        self.cancel.check()?;
        if self.queue.has_failed() {
            return Err(Error::failed("another reader has failed"));
        }
        Ok(())
    }

    fn progress(&self, bytes: u64) {
        let done = self.bytes_done.fetch_add(bytes, Relaxed) + bytes;
        let mut told_at = self.told_at.lock().unwrap_or_else(PoisonError::into_inner);
        if told_at.is_none_or(|told_at| told_at.elapsed() >= PROGRESS_INTERVAL) {
            *told_at = Some(Instant::now());
            drop(told_at);
            let bytes_total = self.bytes_total.max(done);
            self.listener.event(Event::Progress { bytes_done: done, bytes_total });
        }
    }
}
