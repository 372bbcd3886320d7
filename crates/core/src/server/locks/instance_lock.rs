//! MySQL: the instance's backup lock, and tables locked for reading.
//!
//! `LOCK INSTANCE FOR BACKUP` waits for definitions that are being changed, and while it waits it blocks new changes:
//! ask briefly, and try again. Two things bind it to locked tables, both verified on 9.7:
//!
//! - `FLUSH TABLES .. WITH READ LOCK`, or `.. FOR EXPORT`, waits while *another* session holds the instance, even if this
//!   one holds it, too. So both locks belong to one session, and nobody else may hold the instance for long.
//! - `UNLOCK TABLES` in that session lets go of the instance too, so there is only one release, of everything. Do all
//!   work on files before it.

use std::time::{Duration, Instant};

use super::{
    held_session::HeldSession,
    lock::{Attempt, LockLimits, LockRecord, Recorder},
};
use crate::{
    error::Result,
    server::{ConnectOptions, Purpose, SqlError, TableName},
};

const LOCK_INSTANCE: &str = "LOCK INSTANCE FOR BACKUP";
const LOCK_TABLES: &str = "FLUSH TABLES WITH READ LOCK";
const CLOSE_TABLES: &str = "FLUSH TABLES FOR EXPORT";

/// The session that holds the instance's backup lock, and tables. Dropping it releases both.
#[derive(Debug)]
pub struct InstanceLock {
    held: HeldSession,
    limits: LockLimits,
    /// When the instance's lock must be given up.
    deadline: Option<(Instant, Duration)>,
    recorder: Recorder,
    is_held: bool,
    has_tables: bool,
}

impl InstanceLock {
    /// Opens the session; nothing is locked.
    pub fn open(options: &ConnectOptions, limits: LockLimits) -> Result<InstanceLock> {
        let held = HeldSession::open(options, Purpose::InstanceLock)?;
        held.with(|session| session.set_lock_wait(limits.wait_max))?;
        let recorder = Recorder::default();
        Ok(InstanceLock { held, limits, deadline: None, recorder, is_held: false, has_tables: false })
    }

    /// Tries once to lock the instance: definitions do not change until [`release`](Self::release).
    pub fn try_lock(&mut self) -> Result<Attempt, SqlError> {
        if self.is_held {
            return Ok(Attempt::Granted);
        }
        let attempt = self.attempt(LOCK_INSTANCE, LOCK_INSTANCE)?;
        if attempt == Attempt::Granted {
            self.is_held = true;
            self.deadline = self.limits.held_max.map(|held_max| (Instant::now() + held_max, held_max));
            self.limit(None);
        }
        Ok(attempt)
    }

    /// Tries once to lock tables for reading and to flush them: their files are then complete and do not change until
    /// [`release`](Self::release). For `held_max` at most, and never beyond the instance's own limit. With an empty list
    /// nothing is locked.
    pub fn try_lock_tables(
        &mut self,
        tables: &[TableName],
        held_max: Option<Duration>,
    ) -> Result<Attempt, SqlError> {
        self.try_flush(tables, LOCK_TABLES, "WITH READ LOCK", held_max)
    }

    /// Tries once to close tables of InnoDB to writes: they are then written out completely, and stay so until
    /// [`release`](Self::release). Before the server does so, it waits for transactions that have written to them.
    pub fn try_close_tables(&mut self, tables: &[TableName]) -> Result<Attempt, SqlError> {
        self.try_flush(tables, CLOSE_TABLES, "FOR EXPORT", None)
    }

    fn try_flush(
        &mut self,
        tables: &[TableName],
        name: &'static str,
        how: &str,
        held_max: Option<Duration>,
    ) -> Result<Attempt, SqlError> {
        if tables.is_empty() {
            return Ok(Attempt::Granted);
        }
        if self.has_tables {
            return Err(SqlError::misuse("tables are locked already"));
        }
        let names: Vec<String> = tables.iter().map(TableName::quoted).collect();
        let attempt = self.attempt(&format!("FLUSH LOCAL TABLES {} {how}", names.join(", ")), name)?;
        if attempt == Attempt::Granted {
            self.has_tables = true;
            self.limit(held_max);
        }
        Ok(attempt)
    }

    /// Which of `tables` the server cannot open, and why: crashed ones, merge tables without all their parts.
    pub fn not_to_be_opened(&self, tables: &[TableName]) -> Result<Vec<(TableName, SqlError)>, SqlError> {
        let mut broken = Vec::new();
        for table in tables {
            match self.held.rows(&format!("SELECT 1 FROM {} LIMIT 0", table.quoted())) {
                Err(error) if error.code().is_none() => return Err(error),
                Err(error) if !error.is_lock_timeout() => broken.push((table.clone(), error)),
                _ => {}
            }
        }
        Ok(broken)
    }

    fn attempt(&mut self, statement: &str, name: &'static str) -> Result<Attempt, SqlError> {
        let asked_at = Instant::now();
        match self.held.exec_within(statement, self.limits.answer_max()) {
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

    /// Puts the nearer of the two limits into force.
    fn limit(&self, tables_held_max: Option<Duration>) {
        let tables = tables_held_max.map(|held_max| (Instant::now() + held_max, held_max));
        if let Some((at, held_max)) = [self.deadline, tables].into_iter().flatten().min() {
            self.held.limit_until(at, held_max);
        }
    }

    /// Unlocks everything. The session stays and may lock again.
    pub fn release(&mut self) -> Result<(), SqlError> {
        if !self.is_held && !self.has_tables {
            return Ok(());
        }
        let unlocked = self.held.with(|session| {
            if self.has_tables {
                session.exec("UNLOCK TABLES")?;
            }
            session.exec("UNLOCK INSTANCE")
        });
        self.is_held = false;
        self.has_tables = false;
        self.deadline = None;
        self.recorder.all_released();
        self.held.unlimit();
        unlocked
    }

    /// Whether the instance is locked.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether tables are locked.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.has_tables
    }

    /// The session itself, for statements that must run while the locks are held.
    #[must_use]
    pub fn session(&self) -> &HeldSession {
        &self.held
    }

    /// What was held, and how long. Complete after [`release`](Self::release).
    #[must_use]
    pub fn records(&self) -> &[LockRecord] {
        self.recorder.records()
    }

    /// Fails when the locks are lost.
    pub fn alive(&self) -> Result<(), SqlError> {
        self.held.alive()
    }
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        // Closing the session releases them as well; this does it without waiting for the server to notice.
        let _ = self.release();
    }
}
