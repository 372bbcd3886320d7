//! MariaDB: tables that must not change until the end of a backup, held by a session of their own beside the stages.
//!
//! `FLUSH TABLES .. FOR EXPORT` makes InnoDB write a table out completely and keeps it so. It works under `BLOCK_DDL`
//! from another session (verified on 10.11), and waits for transactions that have written to the table.

use std::time::Instant;

use super::{
    connect::{ConnectOptions, Purpose},
    inventory::TableName,
    lock::{Attempt, LockLimits, LockRecord, Recorder},
    session::HeldSession,
    sql_error::SqlError,
};
use crate::error::Result;

const FOR_EXPORT: &str = "FLUSH TABLES FOR EXPORT";

/// A session that holds tables. Dropping it unlocks them.
#[derive(Debug)]
pub struct ExportLock {
    held: HeldSession,
    limits: LockLimits,
    recorder: Recorder,
    is_held: bool,
}

impl ExportLock {
    /// Opens the session; nothing is locked.
    pub fn open(options: &ConnectOptions, limits: LockLimits) -> Result<ExportLock> {
        let held = HeldSession::open(options, Purpose::TableLock)?;
        held.with(|session| session.set_lock_wait(limits.wait_max))?;
        Ok(ExportLock { held, limits, recorder: Recorder::default(), is_held: false })
    }

    /// Tries once to lock all of `tables`.
    pub fn try_lock(&mut self, tables: &[TableName]) -> Result<Attempt, SqlError> {
        if self.is_held {
            return Err(SqlError::misuse("tables are locked already"));
        }
        let names: Vec<String> = tables.iter().map(TableName::quoted).collect();
        let asked_at = Instant::now();
        match self.held.exec(&format!("FLUSH TABLES {} FOR EXPORT", names.join(", "))) {
            Ok(()) => {}
            Err(error) if error.is_lock_timeout() => {
                self.recorder.timed_out(FOR_EXPORT, asked_at);
                return Ok(Attempt::TimedOut);
            }
            Err(error) => return Err(error),
        }
        self.is_held = true;
        self.recorder.granted(FOR_EXPORT, asked_at);
        if let Some(held_max) = self.limits.held_max {
            self.held.limit(held_max);
        }
        Ok(Attempt::Granted)
    }

    /// Unlocks the tables.
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

    /// What was held, and how long. Complete after [`release`](Self::release).
    #[must_use]
    pub fn records(&self) -> &[LockRecord] {
        self.recorder.records()
    }

    /// Fails when the tables are no longer held.
    pub fn alive(&self) -> Result<(), SqlError> {
        self.held.alive()
    }
}

impl Drop for ExportLock {
    fn drop(&mut self) {
        let _ = self.release();
    }
}
