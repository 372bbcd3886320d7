//! What all locks have in common: a session that holds them, limits, release, and the record of how long they were held.

use std::time::{Duration, Instant};

use super::{
    held_session::HeldSession,
    lock::{Attempt, LockLimits, LockRecord, Recorder},
};
use crate::{
    error::Result,
    server::{ConnectOptions, Purpose, Session, SqlError},
};

/// A session that takes locks of one kind and holds them. Dropping it lets go of them.
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

/// What a session holds of its kind, by default nothing, and how it lets go of that.
pub trait LockKind: Default {
    /// What the session is for.
    const PURPOSE: Purpose;

    /// Whether it holds anything.
    fn has_any(&self) -> bool;

    /// Has the server let go of everything.
    fn unlock(&self, session: &mut Session) -> Result<(), SqlError>;
}

impl<K: LockKind> HeldLock<K> {
    /// Opens the session; nothing is locked.
    pub fn open(options: &ConnectOptions, limits: LockLimits) -> Result<HeldLock<K>> {
        let session = HeldSession::open(options, K::PURPOSE)?;
        session.with(|session| session.set_lock_wait(limits.wait_max))?;
        Ok(HeldLock { session, limits, recorder: Recorder::default(), holds: K::default() })
    }

    /// Asks for a lock once. What came of it is recorded as `name`, unless it failed for another reason than the wait.
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

    /// Lets go of everything. Fails where it was lost before. The session stays and may lock again.
    pub fn release(&mut self) -> Result<(), SqlError> {
        if !self.holds.has_any() {
            return Ok(());
        }
        let unlocked = self.session.with(|session| self.holds.unlock(session));
        self.holds = K::default();
        self.recorder.all_released();
        self.session.unlimit();
        unlocked
    }

    /// The session itself: what must be read while something is held is read here. It fails, instead of giving an answer
    /// from after the lock, when the lock was lost meanwhile.
    #[must_use]
    pub fn session(&self) -> &HeldSession {
        &self.session
    }

    /// What was held, and how long. Complete after [`release`](Self::release).
    #[must_use]
    pub fn records(&self) -> &[LockRecord] {
        self.recorder.records()
    }

    /// Fails when what was held is lost.
    pub fn alive(&self) -> Result<(), SqlError> {
        self.session.alive()
    }
}

impl<K: LockKind> Drop for HeldLock<K> {
    fn drop(&mut self) {
        // Closing the session lets go as well; this does it without waiting for the server to notice.
        let _ = self.release();
    }
}
