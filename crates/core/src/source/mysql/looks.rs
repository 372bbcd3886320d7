//! Reads where the server's logs end.
//!
//! `performance_schema.log_status` waits until commits under way are done, and KILL does not end the wait:
//! while a semi-synchronous replica is silent, it lasts as long as the replica likes. A session that waits
//! there keeps its locks, even after it was killed and its connection was cut (verified on 9.7.4). So the
//! session that looks holds nothing, and does not wait for long.

use std::time::Duration;

use holdfast_formats::Lsn;

use crate::{
    error::Result,
    server::{
        ConnectOptions, Purpose, Session, SqlCause, SqlError,
        status::{self, LogStatus},
    },
    source::attempt::Stopped,
};

/// A session that holds nothing, and looks.
pub(super) struct Looks {
    session: Session,
}

impl Looks {
    /// Opens the session. Each look may take as long as `patience`.
    pub(super) fn open(connect: &ConnectOptions, patience: Duration) -> Result<Self> {
        let mut session = Session::open_patiently(connect, Purpose::Monitor)?;
        session.set_answer_timeout(patience)?;
        Ok(Self { session })
    }

    /// Positions and ends of all logs at one moment.
    pub(super) fn status(&mut self) -> std::result::Result<LogStatus, Stopped> {
        LogStatus::read(&mut self.session).map_err(unanswered)
    }

    /// See [`status::mysql_durable_end`].
    pub(super) fn durable_end(&mut self) -> std::result::Result<Lsn, Stopped> {
        status::mysql_durable_end(&mut self.session).map_err(unanswered)
    }
}

fn unanswered(error: SqlError) -> Stopped {
    match error.cause() {
        SqlCause::Lost => Stopped::TryAgain(LogStatus::unanswered(error)),
        _ => error.into(),
    }
}
