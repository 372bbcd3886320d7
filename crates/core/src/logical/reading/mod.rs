//! Reads the rows of all tables into the repositories, by several readers of one view.
//!
//! Work comes from one queue: locked tables first, then the largest. A table whose key can be compared is
//! read in segments, each a statement of its own with a `LIMIT` that continues after the last row, so the
//! range that a reader is in can be cut in two while it is being read: an idle reader finds a place well
//! ahead of it, and at the end of a segment the first reader hands over what comes after that place. So no
//! plan depends on what servers only estimate, and a skewed or sparse key costs nothing.
//!
//! If a table was read by several statements, the server's idea of what comes after a key decides whether that
//! was all of it. Of integers there is only one idea; rows with other keys are counted in the same view.
//!
//! A table that an earlier backup has is cut where chunks of that backup begin, as far as possible, so that
//! no new border is made.

mod between;
mod cut;
mod guess;
mod queue;
mod range;
pub(super) mod tee;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use holdfast_pipe::throttle::Throttle;
use holdfast_repo::format::rows::{RowTotals, RowsChecksum};

use super::{catalog::tables::Table, crew, reading::tee::Tee};
use crate::{
    error::{Error, Result},
    event::{Cancel, Listener},
    meter::Meter,
    server::{Session, bulk::RawReader},
};

/// How often a waiting reader sends something to its server.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// What all readers share.
pub(super) struct Reading<'a> {
    tables: &'a [Table],
    tee: &'a Tee<'a>,
    queue: queue::Queue,
    /// By table: checksum of the ranges read so far, with their computed columns.
    computed: Vec<Mutex<RowsChecksum>>,
    meter: Meter<'a>,
    /// Never holds up tables that are locked while they are read.
    throttle: Throttle,
    cancel: &'a Cancel,
    statements: AtomicU64,
    /// By table: whether more than one statement read it.
    in_parts: Vec<AtomicBool>,
}

/// Totals of what was read.
#[derive(Debug, Default)]
pub(super) struct ReadTables {
    /// By number of the table.
    pub(super) totals: Vec<RowTotals>,
    pub(super) statements: u64,
    pub(super) ranges: u64,
}

/// Reads all rows of `tables`, those of tables that are not locked no faster than `bytes_per_s_max`. Calls
/// `locked_done` once, when the locked ones are read.
pub(super) fn read(
    tables: &[Table],
    readers: &mut [Session],
    tee: &Tee<'_>,
    locked_done: &(dyn Fn() -> Result<()> + Sync),
    bytes_per_s_max: Option<u64>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<ReadTables> {
    let reading = Reading {
        tables,
        tee,
        queue: queue::Queue::new(tables, tee)?,
        computed: tables.iter().map(|_| Mutex::default()).collect(),
        meter: Meter::new(listener, tables.iter().map(|table| table.bytes_estimated).sum()),
        throttle: Throttle::new(bytes_per_s_max),
        cancel,
        statements: AtomicU64::new(0),
        in_parts: tables.iter().map(|_| AtomicBool::new(false)).collect(),
    };
    crew::all(readers, || reading.queue.fail(), |reader| reading.work(reader, locked_done))?;
    let (totals, ranges) = reading.queue.finished()?;
    Ok(ReadTables { totals, statements: reading.statements.load(Relaxed), ranges })
}

impl Reading<'_> {
    /// The loop of one reader.
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

    /// Fails once the work is no longer wanted.
    fn check(&self) -> Result<()> {
        self.cancel.check()?;
        if self.queue.has_failed() {
            return Err(Error::failed("another reader has failed"));
        }
        Ok(())
    }
}
