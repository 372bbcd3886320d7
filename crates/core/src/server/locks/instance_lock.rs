//! MySQL: the instance's backup lock, and tables locked for reading.
//!
//! `LOCK INSTANCE FOR BACKUP` waits for definition changes in progress, and blocks new ones while it waits:
//! use short attempts, and retry. Two things couple it to table locks, both verified on 9.7:
//!
//! - `FLUSH TABLES .. WITH READ LOCK`, or `.. FOR EXPORT`, waits while *another* session holds the instance
//!   lock, even if this session holds it too. So both locks belong to one session, and nobody else may hold
//!   the instance lock for long.
//! - `UNLOCK TABLES` in that session releases the instance lock too, so there is only one release, of
//!   everything. Finish all work on files before it.

use std::time::{Duration, Instant};

use super::{
    held_lock::{HeldLock, LockKind},
    lock::Attempt,
};
use crate::server::{Purpose, Session, SqlError, TableName};

const LOCK_INSTANCE: &str = "LOCK INSTANCE FOR BACKUP";
const LOCK_TABLES: &str = "FLUSH TABLES WITH READ LOCK";
const CLOSE_TABLES: &str = "FLUSH TABLES FOR EXPORT";

/// The session that holds the instance's backup lock, and tables.
pub type InstanceLock = HeldLock<Instance>;

/// Which of the two locks are held.
#[derive(Debug, Default)]
pub struct Instance {
    is_locked: bool,
    /// When the instance lock must be released.
    deadline: Option<(Instant, Duration)>,
    has_tables: bool,
}

impl LockKind for Instance {
    const PURPOSE: Purpose = Purpose::InstanceLock;

    fn has_any(&self) -> bool {
        self.is_locked || self.has_tables
    }

    fn unlock(&self, session: &mut Session) -> Result<(), SqlError> {
        if self.has_tables {
            session.exec("UNLOCK TABLES")?;
        }
        session.exec("UNLOCK INSTANCE")
    }
}

impl InstanceLock {
    /// Tries once to lock the instance: definitions do not change until [`release`](Self::release).
    pub fn try_lock(&mut self) -> Result<Attempt, SqlError> {
        if self.holds.is_locked {
            return Ok(Attempt::Granted);
        }
        let attempt = self.ask(LOCK_INSTANCE, LOCK_INSTANCE, self.limits.answer_max())?;
        if attempt == Attempt::Granted {
            self.holds.is_locked = true;
            self.holds.deadline = self.limits.held_max.map(|held_max| (Instant::now() + held_max, held_max));
            self.limit(None);
        }
        Ok(attempt)
    }

    /// Tries once to lock tables for reading and to flush them: their files are then complete, and do not
    /// change until [`release`](Self::release). Held for `held_max` at most, and never beyond the instance
    /// lock's own limit. An empty list locks nothing.
    pub fn try_lock_tables(
        &mut self,
        tables: &[TableName],
        held_max: Option<Duration>,
    ) -> Result<Attempt, SqlError> {
        self.try_flush(tables, LOCK_TABLES, "WITH READ LOCK", held_max)
    }

    /// Tries once to close InnoDB tables to writes: they are then written out completely, and do not change
    /// until [`release`](Self::release). The server first waits for transactions that have written to them.
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
        if self.holds.has_tables {
            return Err(SqlError::misuse("tables are locked already"));
        }
        let names: Vec<String> = tables.iter().map(TableName::quoted).collect();
        let statement = format!("FLUSH LOCAL TABLES {} {how}", names.join(", "));
        let attempt = self.ask(&statement, name, self.limits.answer_max())?;
        if attempt == Attempt::Granted {
            self.holds.has_tables = true;
            self.limit(held_max);
        }
        Ok(attempt)
    }

    /// The tables that the server cannot open, and why: crashed tables, or merge tables with parts missing.
    pub fn not_to_be_opened(&self, tables: &[TableName]) -> Result<Vec<(TableName, SqlError)>, SqlError> {
        let mut broken = Vec::new();
        for table in tables {
            match self.session.rows(&format!("SELECT 1 FROM {} LIMIT 0", table.quoted())) {
                Err(error) if error.is_of_a_broken_table() => broken.push((table.clone(), error)),
                Err(error) if !error.is_lock_timeout() => return Err(error),
                _ => {}
            }
        }
        Ok(broken)
    }

    /// Applies the nearer of the two limits.
    fn limit(&self, tables_held_max: Option<Duration>) {
        let tables = tables_held_max.map(|held_max| (Instant::now() + held_max, held_max));
        if let Some((at, held_max)) = [self.holds.deadline, tables].into_iter().flatten().min() {
            self.session.limit_until(at, held_max);
        }
    }

    /// Whether tables are locked.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.holds.has_tables
    }
}
