//! A moment without changes of definitions, before anything is copied.
//!
//! All builds of indexes that were under way have ended by then. The redo tells everything about those that begin
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
    server::{ConnectOptions, InstanceLock, LockLimits},
    source::attempt::{Stopped, granted},
};

/// How long new changes may wait behind one that is under way.
const WAIT_MAX: Duration = Duration::from_secs(1);

impl Capture<'_> {
    /// Waits for such a moment. If it does not come, more is copied again than would have to be.
    pub(super) fn wait_for_quiet(&mut self, connect: &ConnectOptions) -> Result<()> {
        let wait_max = self.options.lock_wait.min(WAIT_MAX);
        let limits = LockLimits { wait_max, ..self.options.stage_limits() };
        let mut lock = InstanceLock::open(connect, limits)?;
        let mut looks = Looks::open(connect, wait_max)?;
        let found = end_while_locked(&mut lock, &mut looks);
        if found.is_err() {
            drop(lock.release());
        }
        self.stats.add_locks(lock.records(), self.listener);
        match found {
            Ok(end) => (self.quiet, self.knows_builds) = (Some(end), true),
            Err(Stopped::TryAgain(error) | Stopped::HeldTooLong(error)) => {
                let text = format!(
                    "no moment without changes of definitions before the copy: {error}; tables may be copied twice \
                     that need not be"
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
