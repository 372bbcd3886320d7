//! What all locks have in common: a session that holds them, limits, release, and a record of how long they
//! were held.

use std::time::{Duration, Instant};

use super::{
    held_session::HeldSession,
    lock::{Attempt, LockLimits, LockRecord, Recorder},
};
use crate::{
    error::Result,
    server::{ConnectOptions, Purpose, Session, SqlError},
};

/// A session that takes locks of one kind and holds them. Dropping it releases them.
///
/// The kinds are [`BackupStages`](super::BackupStages), [`InstanceLock`](super::InstanceLock) and
/// [`TableLock`](super::TableLock); each says how its locks are taken.
#[derive(Debug)]
pub struct HeldLock<K: LockKind> {
    pub(super) session: HeldSession,
    pub(super) limits: LockLimits,
    pub(super) recorder: Recorder,
    pub(super) holds: K,
}

/// What a session holds of one kind (by default nothing), and how to release it.
pub trait LockKind: Default {
    /// What the session is for.
    const PURPOSE: Purpose;

    /// Whether anything is held.
    fn has_any(&self) -> bool;

    /// Makes the server release everything.
    fn unlock(&self, session: &mut Session) -> Result<(), SqlError>;
}

impl<K: LockKind> HeldLock<K> {
    /// Opens the session without locking anything.
    pub fn open(options: &ConnectOptions, limits: LockLimits) -> Result<HeldLock<K>> {
        let session = HeldSession::open(options, K::PURPOSE)?;
        session.with(|session| session.set_lock_wait(limits.wait_max))?;
        Ok(HeldLock { session, limits, recorder: Recorder::default(), holds: K::default() })
    }

    /// Requests a lock once. The outcome is recorded as `name`, unless the request failed for a reason other
    /// than the wait.
    pub(super) fn ask(
        &mut self,
        statement: &str,
        name: &'static str,
        answer_max: Duration,
    ) -> Result<Attempt, SqlError> {
        let asked_at = Instant::now();
        match self.session.exec_within(statement, answer_max) {
            Ok(()) => {
                self.recorder.granted(name, asked_at);
                Ok(Attempt::Granted)
            }
            Err(error) if error.is_lock_timeout() => {
                self.recorder.timed_out(name, asked_at);
                Ok(Attempt::TimedOut)
            }
            Err(error) => Err(error),
        }
    }

    /// Releases everything. Fails if it had been lost before. The session stays open and may lock again, unless the
    /// server refused to release: then the session has been ended, and the locks with it.
    pub fn release(&mut self) -> Result<(), SqlError> {
        if !self.holds.has_any() {
            return Ok(());
        }
        let unlocked = self.session.with(|session| self.holds.unlock(session));
        if let Err(error) = &unlocked {
            // Otherwise a session that is kept alive would hold on, without a limit.
            self.session.end(error.clone());
        }
        self.holds = K::default();
        self.recorder.all_released();
        self.session.unlimit();
        unlocked
    }

    /// The session itself, for whatever must be read while a lock is held. If the lock was lost in the
    /// meantime, reading fails instead of returning a result from after the lock.
    #[must_use]
    pub fn session(&self) -> &HeldSession {
        &self.session
    }

    /// What was held, and for how long. Complete after [`release`](Self::release).
    #[must_use]
    pub fn records(&self) -> &[LockRecord] {
        self.recorder.records()
    }

    /// Fails if what was held is lost.
    pub fn alive(&self) -> Result<(), SqlError> {
        self.session.alive()
    }
}

impl<K: LockKind> Drop for HeldLock<K> {
    fn drop(&mut self) {
        // Closing the session releases everything too, but only once the server notices.
        let _ = self.release();
    }
}
