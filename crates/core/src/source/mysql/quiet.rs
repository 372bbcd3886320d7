//! A moment without changes of definitions, as early as it can be had.
//!
//! All builds of indexes that were under way have ended by then, and have written all of their pages. Some of those
//! that began before the redo that is followed leave nothing in it: a copy that began before the moment may have one
//! half built, and is good only if its file has not changed since. The redo tells everything about those that begin
//! later: their indexes get ids, and their first pages are created. So what looks like the load of an index that
//! nothing else tells of is a chance match. Without this, each match would have a tablespace copied again, and redo
//! of the dictionary is full of them (`docs/guide/hot-backup.md`).

use std::time::Duration;

use holdfast_formats::Lsn;

use super::{Capture, looks::Looks};
use crate::{
    error::Result,
    event::Event,
    points::point,
    server::{InstanceLock, LockLimits},
    source::attempt::{Stopped, granted},
};

/// How long new changes may wait behind one that is under way.
const WAIT_MAX: Duration = Duration::from_secs(1);

impl Capture<'_> {
    /// Waits for such a moment, unless there has been one. If it does not come, more is copied again than would
    /// have to be.
    pub(super) fn wait_for_quiet(&mut self) -> Result<()> {
        if self.copier.had_quiet {
            return Ok(());
        }
        let wait_max = self.options.locks.wait_max.min(WAIT_MAX);
        let limits = LockLimits { wait_max, ..self.options.locks.ddl_limits() };
        let mut lock = InstanceLock::open(self.connect, limits)?;
        let mut looks = Looks::open(self.connect, wait_max)?;
        let found = end_while_locked(&mut lock, &mut looks);
        if found.is_err() {
            drop(lock.release());
        }
        self.stats.add_locks(lock.records(), self.listener);
        match found {
            Ok(end) => (self.quiet, self.copier.had_quiet) = (Some(end), true),
            Err(Stopped::TryAgain(error) | Stopped::HeldTooLong(error)) => {
                let text = format!(
                    "no moment without changes of definitions yet: {error}; tables that are written to until there \
                     is one are copied again"
                );
                self.listener.event(Event::Note { text });
            }
            Err(Stopped::Failed(error)) => return Err(error),
        }
        Ok(())
    }
}

/// Where the redo ended at such a moment.
fn end_while_locked(lock: &mut InstanceLock, looks: &mut Looks) -> std::result::Result<Lsn, Stopped> {
    // As long as this has to wait, no lock is worth taking.
    looks.status()?;
    granted(lock.try_lock()?, "LOCK INSTANCE FOR BACKUP")?;
    point("backup.quiet");
    let end = looks.status()?.lsn;
    // Fails if it was not held until now.
    lock.release()?;
    Ok(end)
}
