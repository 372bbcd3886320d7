//! MySQL: the redo consumer, which makes the server keep redo.

use std::time::Duration;

use holdfast_formats::Lsn;

use super::held_session::HeldSession;
use crate::{
    error::{Error, ErrorKind, Result},
    server::{ConnectOptions, Purpose},
};

/// The server's only redo consumer: it keeps redo that we have not read. Dropping it unregisters.
///
/// A consumer that is not advanced stops every writer once the redo log is full. So its owner must advance it
/// all the time, and drop it when that is no longer possible. If [`advance`](Self::advance) is not called for
/// the time given at registration, for whatever reason, it unregisters by itself.
#[derive(Debug)]
pub struct RedoConsumer {
    held: HeldSession,
    advanced_to: Lsn,
    silence_max: Duration,
}

impl RedoConsumer {
    /// The registration ends if the server does not answer, or the caller is stuck, for this long: we must
    /// never keep redo that nobody reads.
    pub const SILENCE_MAX: Duration = Duration::from_secs(20);

    /// Registers. Redo is kept from the checkpoint at this moment on, so read the newest checkpoint
    /// afterwards.
    pub fn register(options: &ConnectOptions) -> Result<RedoConsumer> {
        Self::register_within(options, Self::SILENCE_MAX)
    }

    /// Like [`register`](Self::register), but with `silence_max` as the longest time between calls of
    /// [`advance`](Self::advance).
    pub fn register_within(options: &ConnectOptions, silence_max: Duration) -> Result<RedoConsumer> {
        let held = HeldSession::open(options, Purpose::RedoConsumer)?;
        held.with(|session| session.set_answer_timeout(silence_max))?;
        held.attended(silence_max);
        let consumer = RedoConsumer { held, advanced_to: Lsn(0), silence_max };
        match consumer.call("innodb_redo_log_consumer_register()")? {
            0 => Ok(consumer),
            _ => Err(Error::new(ErrorKind::Server, "the server's only redo consumer is in use").hinted(
                "another backup is running, or one has died less than 20 s ago: SHOW PROCESSLIST lists its sessions",
            )),
        }
    }

    /// Lets the server discard redo before `lsn`. Never pass an LSN beyond what has been read: the server
    /// trusts it.
    pub fn advance(&mut self, lsn: Lsn) -> Result<()> {
        self.held.alive()?;
        self.held.attended(self.silence_max);
        if lsn <= self.advanced_to {
            return Ok(());
        }
        match self.call(&format!("innodb_redo_log_consumer_advance({lsn})"))? {
            0 => {
                self.advanced_to = lsn;
                Ok(())
            }
            // The server had discarded redo up to this point before we registered.
            _ if self.advanced_to == Lsn(0) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Server,
                format!("the server refused to advance the redo consumer to {lsn}"),
            )),
        }
    }

    /// Unregisters. Fails if the registration was lost before, by the word of the server and not only by what is
    /// known of the session: redo may then have been overwritten.
    pub fn unregister(self) -> Result<()> {
        match self.call("innodb_redo_log_consumer_unregister()")? {
            0 => Ok(()),
            _ => Err(Error::new(ErrorKind::Server, "the server no longer had the redo consumer")),
        }
    }

    fn call(&self, function: &str) -> Result<u64> {
        Ok(self.held.with(|session| session.number(&format!("SELECT {function}")))?)
    }
}
