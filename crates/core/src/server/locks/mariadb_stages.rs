//! MariaDB's `BACKUP STAGE`: one session holds the stages, and they go with it.
//!
//! What each stage blocks (verified on 10.11): `START` nothing; `FLUSH` writes to tables without transactions;
//! `BLOCK_DDL` changes of definitions too; `BLOCK_COMMIT` commits. A stage that waits makes new writers queue behind it,
//! so each attempt is short. An attempt that times out leaves the stage before it in force: the same stage can be asked
//! for again, or [`end`](BackupStages::end) lets go of everything. Between `END` and a new `START` Aria may purge its
//! log, so Aria's files must be copied again after that.

use std::time::Instant;

use super::{
    held_session::HeldSession,
    lock::{Attempt, LockLimits, LockRecord, Recorder},
};
use crate::{
    error::Result,
    server::{ConnectOptions, Purpose, SqlError},
};

/// The stages in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A backup has begun: Aria keeps its logs, the server notes definitions that change.
    Start,
    /// Tables without transactions are flushed and not written.
    Flush,
    /// Definitions do not change.
    BlockDdl,
    /// Nothing is committed.
    BlockCommit,
}

impl Stage {
    fn statement(self) -> &'static str {
        match self {
            Stage::Start => "BACKUP STAGE START",
            Stage::Flush => "BACKUP STAGE FLUSH",
            Stage::BlockDdl => "BACKUP STAGE BLOCK_DDL",
            Stage::BlockCommit => "BACKUP STAGE BLOCK_COMMIT",
        }
    }
}

/// The session that holds the stages. Dropping it ends them.
#[derive(Debug)]
pub struct BackupStages {
    held: HeldSession,
    limits: LockLimits,
    stage: Option<Stage>,
    recorder: Recorder,
}

impl BackupStages {
    /// Opens the session; no stage is entered.
    pub fn open(options: &ConnectOptions, limits: LockLimits) -> Result<BackupStages> {
        let held = HeldSession::open(options, Purpose::Stages)?;
        held.with(|session| session.set_lock_wait(limits.wait_max))?;
        Ok(BackupStages { held, limits, stage: None, recorder: Recorder::default() })
    }

    /// Tries once to enter a stage later than the one in force; the server passes through those between. From
    /// [`Stage::Flush`] on, which is the first that makes others wait, [`LockLimits::held_max`] runs.
    pub fn enter(&mut self, stage: Stage) -> Result<Attempt, SqlError> {
        if self.stage.is_some_and(|now| now >= stage) || (self.stage.is_none() && stage != Stage::Start) {
            let now = self.stage.map_or("no stage", Stage::statement);
            return Err(SqlError::misuse(format_args!("cannot enter {} from {now}", stage.statement())));
        }
        let asked_at = Instant::now();
        match self.held.exec_within(stage.statement(), self.limits.answer_max()) {
            Ok(()) => {}
            Err(error) if error.is_lock_timeout() => {
                self.recorder.timed_out(stage.statement(), asked_at);
                return Ok(Attempt::TimedOut);
            }
            Err(error) => return Err(error),
        }
        if let Some(held_max) = self.limits.held_max
            && stage > Stage::Start
            && self.stage <= Some(Stage::Start)
        {
            self.held.limit(held_max);
        }
        self.stage = Some(stage);
        self.recorder.granted(stage.statement(), asked_at);
        Ok(Attempt::Granted)
    }

    /// Lets go of everything. The session stays and may start again.
    pub fn end(&mut self) -> Result<(), SqlError> {
        if self.stage.is_none() {
            return Ok(());
        }
        let ended = self.held.exec("BACKUP STAGE END");
        self.stage = None;
        self.recorder.all_released();
        self.held.unlimit();
        ended
    }

    /// The stage in force.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// The session itself: what must be read while a stage is in force is read here. It fails, instead of giving an
    /// answer from after the stage, when the stage was lost meanwhile.
    #[must_use]
    pub fn session(&self) -> &HeldSession {
        &self.held
    }

    /// What was held, and how long. Complete after [`end`](Self::end).
    #[must_use]
    pub fn records(&self) -> &[LockRecord] {
        self.recorder.records()
    }

    /// Fails when the stages are lost.
    pub fn alive(&self) -> Result<(), SqlError> {
        self.held.alive()
    }
}

impl Drop for BackupStages {
    fn drop(&mut self) {
        // Closing the session ends the stages as well; this does it without waiting for the server to notice.
        let _ = self.end();
    }
}
