//! MariaDB's `BACKUP STAGE`: one session holds the stages, and they end with it.
//!
//! What each stage blocks (verified on 10.11): `START` nothing; `FLUSH` writes to non-transactional tables;
//! `BLOCK_DDL` also changes of definitions; `BLOCK_COMMIT` also commits. New writers queue behind a stage
//! that waits, so each attempt is short. An attempt that times out leaves the previous stage in force: retry
//! it, or [`release`](BackupStages::release) everything. Between `END` and a new `START` Aria may purge its
//! log, so Aria's files must be copied again after that.

use super::{
    held_lock::{HeldLock, LockKind},
    lock::Attempt,
};
use crate::server::{Purpose, Session, SqlError};

/// The stages in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// A backup has begun: Aria keeps its logs, and the server records definitions that change.
    Start,
    /// Non-transactional tables are flushed, and nobody writes to them.
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

/// The session that holds the stages.
pub type BackupStages = HeldLock<Stages>;

/// The stage in force.
#[derive(Debug, Default)]
pub struct Stages(Option<Stage>);

impl LockKind for Stages {
    const PURPOSE: Purpose = Purpose::Stages;

    fn has_any(&self) -> bool {
        self.0.is_some()
    }

    fn unlock(&self, session: &mut Session) -> Result<(), SqlError> {
        session.exec("BACKUP STAGE END")
    }
}

impl BackupStages {
    /// Tries once to enter a stage later than the current one; the server passes through the stages between.
    /// The time limit [`LockLimits::held_max`](super::LockLimits) starts with [`Stage::Flush`], the first
    /// stage that makes others wait.
    pub fn enter(&mut self, stage: Stage) -> Result<Attempt, SqlError> {
        let before = self.stage();
        if before.is_some_and(|now| now >= stage) || (before.is_none() && stage != Stage::Start) {
            let now = before.map_or("no stage", Stage::statement);
            return Err(SqlError::misuse(format_args!("cannot enter {} from {now}", stage.statement())));
        }
        let attempt = self.ask(stage.statement(), stage.statement(), self.limits.answer_max())?;
        if attempt == Attempt::Granted {
            if let Some(held_max) = self.limits.held_max
                && stage > Stage::Start
                && before <= Some(Stage::Start)
            {
                self.session.limit(held_max);
            }
            self.holds = Stages(Some(stage));
        }
        Ok(attempt)
    }

    /// The stage in force.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.holds.0
    }
}
