//! Locks on tables against writes, for a moment or until they are read, held by a session of their own.
//!
//! - `FLUSH TABLES .. FOR EXPORT` makes InnoDB write tables out completely and keeps them unchanged. On
//!   MariaDB it works under `BLOCK_DDL` of another session (verified on 10.11), and waits for transactions
//!   that have written to the tables.
//! - On MariaDB an export first stops the purge, with its tables already locked, and neither a limit nor
//!   `KILL` ends that wait. The purge in turn waits for tables that are being altered, and for tables that
//!   another session wants exclusively. So two situations must be avoided: an export while the backup blocks
//!   a statement that the purge waits for (`ADD FULLTEXT` under `BLOCK_DDL`); and a `TRUNCATE`, `DROP` or
//!   `RENAME` of an exported table queued behind the export, because then purge, export and that statement
//!   wait for each other until somebody kills the statement (tested on 10.11.19 and 11.8.6). Therefore the
//!   purge is stopped before any lock that could be in anybody's way, by exporting a table that nobody wants
//!   exclusively. While the purge is stopped, exports do not wait for it.
//! - `LOCK TABLES .. READ` waits for the same transactions, and lets other sessions read.
//! - `FLUSH TABLES WITH READ LOCK` stops every write and every commit. It waits for statements that write,
//!   and on MySQL for statements that read tables which it must close; while it waits, new writes queue
//!   behind it. If it gives up, sessions that want to open such a table wait until that statement ends
//!   (verified on 9.7): check first which statements are in its way.

use std::time::{Duration, Instant};

use super::{
    held_lock::{HeldLock, LockKind},
    lock::Attempt,
};
use crate::server::{Purpose, Session, SqlError, TableName, connection::ANSWER_MARGIN};

const ALL: &str = "FLUSH TABLES WITH READ LOCK";
/// Name in the records: all the table names would fill pages.
const FOR_READING: &str = "LOCK TABLES ... READ";
const FOR_EXPORT: &str = "FLUSH TABLES FOR EXPORT";
/// Statements that change definitions share this table, the server's own writes to it bypass such locks, and
/// nobody else writes to it. If it is in the system tablespace, it can be exported without stopping the purge
/// (a warning says so).
const STOP_PURGE: &str = "FLUSH TABLES mysql.innodb_table_stats FOR EXPORT";
/// The file that the server keeps in the data directory while its purge is stopped this way.
pub const STOPPED_PURGE_NOTE: &str = "mysql/innodb_table_stats.cfg";

/// Whether this is the table that stays exported while the purge is stopped.
#[must_use]
pub fn is_held_to_stop_purge(table: &TableName) -> bool {
    (table.schema.as_str(), table.table.as_str()) == ("mysql", "innodb_table_stats")
}

/// A session that blocks writes of others.
pub type TableLock = HeldLock<Tables>;

/// Whether tables are held.
#[derive(Debug, Default)]
pub struct Tables(bool);

impl LockKind for Tables {
    const PURPOSE: Purpose = Purpose::TableLock;

    fn has_any(&self) -> bool {
        self.0
    }

    fn unlock(&self, session: &mut Session) -> Result<(), SqlError> {
        session.exec("UNLOCK TABLES")
    }
}

impl TableLock {
    /// Tries once to stop all writes.
    pub fn try_all(&mut self) -> Result<Attempt, SqlError> {
        self.attempt(ALL, ALL, self.limits.answer_max())
    }

    /// Tries once to stop writes to `tables`. An empty list locks nothing.
    ///
    /// # Errors
    /// [`SqlCause::Lost`](crate::server::SqlCause::Lost) if the server has not opened all of them within the
    /// time that they may be held. Tables that it had locked by then were closed to writes in the meantime.
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
        let space = self.session.with(|session| session.value(space))?;
        Ok(space.is_some_and(|space| space != "0"))
    }

    /// Tries once to stop MariaDB's purge, for [`try_export`](Self::try_export) by another session. The table
    /// exported for this is locked like any exported table.
    ///
    /// # Errors
    /// [`SqlCause::Lost`](crate::server::SqlCause::Lost) if the purge has not stopped within `stopping_max`:
    /// the session is cut.
    pub fn try_stopping_purge(&mut self, stopping_max: Duration) -> Result<Attempt, SqlError> {
        let attempt = self.attempt(STOP_PURGE, STOP_PURGE, stopping_max)?;
        if attempt == Attempt::Granted {
            // Only the first session that wants the purge stopped is made to wait for it.
            let others = "SELECT COUNT(*) FROM information_schema.processlist
                WHERE command <> 'Sleep' AND info LIKE 'FLUSH%FOR%EXPORT%' AND id <> CONNECTION_ID()";
            if self.session.with(|session| session.number::<u64>(others))? > 0 {
                self.release()?;
                return Ok(Attempt::TimedOut);
            }
        }
        Ok(attempt)
    }

    /// Tries once to have all of `tables` written out, and to keep them unchanged. On MariaDB use it with the
    /// purge stopped, or on a server where nobody changes definitions. An empty list locks nothing.
    ///
    /// # Errors
    /// [`SqlCause::Lost`](crate::server::SqlCause::Lost) if this takes longer than `writing_max`, locks
    /// included: the session is cut.
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
        if self.holds.has_any() {
            return Err(SqlError::misuse("something is locked already"));
        }
        let asked_at = Instant::now();
        let attempt = self.ask(statement, name, answer_max);
        if attempt.is_err() {
            // Recorded, because tables that the server had locked by then were closed to writes in the
            // meantime.
            self.recorder.timed_out(name, asked_at);
        }
        let attempt = attempt?;
        if attempt == Attempt::Granted {
            self.holds = Tables(true);
            if let Some(held_max) = self.limits.held_max {
                self.session.limit(held_max);
            }
        }
        Ok(attempt)
    }
}
