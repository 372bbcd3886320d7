//! Tables that nobody writes to, for a moment or until they are read, held by a session of their own.
//!
//! - `FLUSH TABLES .. FOR EXPORT` makes InnoDB write tables out completely and keeps them so. On MariaDB it works under
//!   `BLOCK_DDL` from another session (verified on 10.11), and waits for transactions that have written to the tables.
//! - On MariaDB it stops the purge first, with its tables locked already, and neither a limit nor `KILL` ends that wait. The
//!   purge in turn waits for tables that are being altered, and for those that somebody wants exclusively. So two things
//!   must not be: an export while a statement that the purge waits for is kept waiting by the backup (`ADD FULLTEXT` under
//!   `BLOCK_DDL`); and a `TRUNCATE`, `DROP` or `RENAME` of an exported table behind it, because then purge, export and
//!   that statement wait for each other until somebody kills the third (put to 10.11.19 and 11.8.6). Therefore the
//!   purge is stopped before any lock that is in anybody's way, by exporting a table that nobody wants exclusively; while
//!   it is stopped, exports do not wait for it.
//! - `LOCK TABLES .. READ` waits for the same, and holds while other sessions read.
//! - `FLUSH TABLES WITH READ LOCK` stops every write and every commit. It waits for statements that write, and on MySQL for
//!   those that read tables which it must close; while it waits, new writes queue behind it. When it is given up, whoever
//!   wants to open such a table waits until that statement ends (verified on 9.7): look first who is in its way.

use std::time::{Duration, Instant};

use super::{
    held_session::HeldSession,
    lock::{Attempt, LockLimits, LockRecord, Recorder},
};
use crate::{
    error::Result,
    server::{ConnectOptions, Purpose, SqlError, TableName, connection::ANSWER_MARGIN},
};

const ALL: &str = "FLUSH TABLES WITH READ LOCK";
/// As it is recorded: the names would fill pages.
const FOR_READING: &str = "LOCK TABLES ... READ";
const FOR_EXPORT: &str = "FLUSH TABLES FOR EXPORT";
/// Statements that change definitions share this table, the server writes to it past such locks, and nobody else writes to
/// it. In the system tablespace it can be exported without a stop of the purge (a warning says so).
const STOP_PURGE: &str = "FLUSH TABLES mysql.innodb_table_stats FOR EXPORT";
/// What the server keeps in the data directory while its purge is stopped so.
pub const STOPPED_PURGE_NOTE: &str = "mysql/innodb_table_stats.cfg";

/// Whether a table is exported as long as the purge is stopped.
#[must_use]
pub fn is_held_to_stop_purge(table: &TableName) -> bool {
    (table.schema.as_str(), table.table.as_str()) == ("mysql", "innodb_table_stats")
}

/// A session that keeps others from writing. Dropping it lets them.
#[derive(Debug)]
pub struct TableLock {
    held: HeldSession,
    limits: LockLimits,
    recorder: Recorder,
    is_held: bool,
}

impl TableLock {
    /// Opens the session; nothing is locked.
    pub fn open(options: &ConnectOptions, limits: LockLimits) -> Result<TableLock> {
        let held = HeldSession::open(options, Purpose::TableLock)?;
        held.with(|session| session.set_lock_wait(limits.wait_max))?;
        Ok(TableLock { held, limits, recorder: Recorder::default(), is_held: false })
    }

    /// Tries once to stop all writes.
    pub fn try_all(&mut self) -> Result<Attempt, SqlError> {
        self.attempt(ALL, ALL, self.limits.answer_max())
    }

    /// Tries once to stop writes to `tables`. With an empty list nothing is locked.
    ///
    /// # Errors
    /// [`SqlCause::Lost`](crate::server::SqlCause::Lost) when the server has not opened all of them within the time that
    /// they may be held: those that it has locked by then are not written to meanwhile.
    pub fn try_reading(&mut self, tables: &[TableName]) -> Result<Attempt, SqlError> {
        if tables.is_empty() {
            return Ok(Attempt::Granted);
        }
        let names: Vec<String> = tables.iter().map(|table| format!("{} READ", table.quoted())).collect();
        let opening_max = self.limits.held_max.unwrap_or(ANSWER_MARGIN);
        let answer_max = self.limits.wait_max.saturating_add(opening_max);
        self.attempt(&format!("LOCK TABLES {}", names.join(", ")), FOR_READING, answer_max)
    }

    /// Whether MariaDB's purge can be stopped.
    pub fn can_stop_purge(&self) -> Result<bool, SqlError> {
        let space =
            "SELECT space FROM information_schema.innodb_sys_tables WHERE name = 'mysql/innodb_table_stats'";
        let space = self.held.with(|session| session.value(space))?;
        Ok(space.is_some_and(|space| space != "0"))
    }

    /// Tries once to stop MariaDB's purge, for [`try_export`](Self::try_export) by another session. Of that table the same
    /// is true then as of exported ones.
    ///
    /// # Errors
    /// [`SqlCause::Lost`](crate::server::SqlCause::Lost) when it has not stopped within `stopping_max`: the session is
    /// cut.
    pub fn try_stopping_purge(&mut self, stopping_max: Duration) -> Result<Attempt, SqlError> {
        let attempt = self.attempt(STOP_PURGE, STOP_PURGE, stopping_max)?;
        if attempt == Attempt::Granted {
            // The server makes only the first wait who wants the purge stopped.
            let others = "SELECT COUNT(*) FROM information_schema.processlist
                WHERE command <> 'Sleep' AND info LIKE 'FLUSH%FOR%EXPORT%' AND id <> CONNECTION_ID()";
            if self.held.with(|session| session.number::<u64>(others))? > 0 {
                self.release()?;
                return Ok(Attempt::TimedOut);
            }
        }
        Ok(attempt)
    }

    /// Tries once to have all of `tables` written out, and to keep them so. On MariaDB with the purge stopped, or on a
    /// server where nobody changes definitions. With an empty list nothing is locked.
    ///
    /// # Errors
    /// [`SqlCause::Lost`](crate::server::SqlCause::Lost) when that has taken `writing_max`, locks included: the session
    /// is cut.
    pub fn try_export(&mut self, tables: &[TableName], writing_max: Duration) -> Result<Attempt, SqlError> {
        if tables.is_empty() {
            return Ok(Attempt::Granted);
        }
        let names: Vec<String> = tables.iter().map(TableName::quoted).collect();
        let statement = format!("FLUSH TABLES {} FOR EXPORT", names.join(", "));
        self.attempt(&statement, FOR_EXPORT, writing_max)
    }

    fn attempt(
        &mut self,
        statement: &str,
        name: &'static str,
        answer_max: Duration,
    ) -> Result<Attempt, SqlError> {
        if self.is_held {
            return Err(SqlError::misuse("something is locked already"));
        }
        let asked_at = Instant::now();
        match self.held.exec_within(statement, answer_max) {
            Ok(()) => {}
            Err(error) => {
                self.recorder.timed_out(name, asked_at);
                return if error.is_lock_timeout() { Ok(Attempt::TimedOut) } else { Err(error) };
            }
        }
        self.is_held = true;
        self.recorder.granted(name, asked_at);
        if let Some(held_max) = self.limits.held_max {
            self.held.limit(held_max);
        }
        Ok(Attempt::Granted)
    }

    /// Lets go. Fails where the lock was lost before.
    pub fn release(&mut self) -> Result<(), SqlError> {
        if !self.is_held {
            return Ok(());
        }
        let unlocked = self.held.exec("UNLOCK TABLES");
        self.is_held = false;
        self.recorder.all_released();
        self.held.unlimit();
        unlocked
    }

    /// The session itself: what must be read while the lock is held is read here. It fails, instead of giving an answer
    /// from after the lock, when the lock was lost meanwhile.
    #[must_use]
    pub fn session(&self) -> &HeldSession {
        &self.held
    }

    /// What was held, and how long. Complete after [`release`](Self::release).
    #[must_use]
    pub fn records(&self) -> &[LockRecord] {
        self.recorder.records()
    }

    /// Fails when the lock is lost.
    pub fn alive(&self) -> Result<(), SqlError> {
        self.held.alive()
    }
}

impl Drop for TableLock {
    fn drop(&mut self) {
        let _ = self.release();
    }
}
