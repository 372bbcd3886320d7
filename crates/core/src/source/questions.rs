//! Questions to the server between long copies.
//!
//! The server drops a session that is silent for as long as its `wait_timeout`, and networks forget idle
//! connections earlier. A copy of a large server asks nothing for hours, so a session that was idle is
//! replaced before it is used.

use std::time::{Duration, Instant};

use crate::{
    error::Result,
    server::{ConnectOptions, Purpose, Session, SqlCause, SqlError},
};

/// Far below any timeout that servers or firewalls are configured with.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Asks the server questions, over a session that holds nothing on it.
pub(super) struct Questions {
    connect: ConnectOptions,
    session: Session,
    used: Instant,
    /// How long an answer may take, if not the default.
    patience: Option<Duration>,
}

impl Questions {
    /// Asks over `session`, and over a new one like it once that has been idle for too long.
    pub(super) fn new(connect: ConnectOptions, session: Session) -> Self {
        Self { connect, session, used: Instant::now(), patience: None }
    }

    /// Gives up on an answer after `patience`.
    pub(super) fn patient_for(mut self, patience: Duration) -> Result<Self> {
        self.session.set_answer_timeout(patience)?;
        self.patience = Some(patience);
        Ok(self)
    }

    /// Asks a question, which may be sent twice.
    pub(super) fn ask<T>(&mut self, question: impl Fn(&mut Session) -> Result<T, SqlError>) -> Result<T> {
        let was_idle = self.used.elapsed() >= IDLE_MAX;
        if was_idle {
            self.reconnect()?;
        }
        let answer = match question(&mut self.session) {
            Err(error) if *error.cause() == SqlCause::Lost && !was_idle => {
                self.reconnect()?;
                question(&mut self.session)
            }
            answer => answer,
        };
        self.used = Instant::now();
        Ok(answer?)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.session = Session::open_patiently(&self.connect, Purpose::Control)?;
        if let Some(patience) = self.patience {
            self.session.set_answer_timeout(patience)?;
        }
        Ok(())
    }
}
