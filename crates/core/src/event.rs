//! What an operation reports while it runs. Command line and tests listen to the same events.

use std::time::Duration;

use holdfast_repo::Interrupt;

use crate::error::{Error, ErrorKind, Result};

/// An event of an operation.
#[derive(Clone, Debug)]
pub enum Event {
    /// A named phase of the operation begins; the previous one has ended.
    Phase {
        /// A backup: `start`, `copy`, `stop`, `complete`. A restore: `plan`, `assemble`, `place`, `prepare` …
        name: &'static str,
    },
    /// Progress of the current phase. At most a few times per second.
    Progress {
        /// Bytes done.
        bytes_done: u64,
        /// Bytes in total, as far as known; 0 if unknown.
        bytes_total: u64,
    },
    /// Something that the user may want to know.
    Note {
        /// One sentence.
        text: String,
    },
    /// Something that the user should look at; the result is sound nevertheless.
    Warning {
        /// One sentence.
        text: String,
    },
    /// A lock on the server was taken and has been released.
    Lock {
        /// The statement that took it.
        statement: String,
        /// How long the statement waited.
        wait: Duration,
        /// How long the lock was held.
        held: Duration,
    },
}

/// Receives events; called from several threads.
pub trait Listener: Send + Sync {
    /// Receives an event. Must return quickly.
    fn event(&self, event: Event);
}

/// Ignores all events.
pub struct Silent;

impl Listener for Silent {
    fn event(&self, _: Event) {}
}

/// Asks a running operation to end. Cheap to clone, safe to trigger from a signal handler's thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Interrupt);

impl Cancel {
    /// Requests the end.
    pub fn cancel(&self) {
        self.0.interrupt();
    }

    /// Whether the end was requested.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_set()
    }

    /// The same request, for work on the repository itself.
    #[must_use]
    pub fn interrupt(&self) -> Interrupt {
        self.0.clone()
    }

    /// Fails with [`ErrorKind::Interrupted`] if the end was requested.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::new(ErrorKind::Interrupted, "interrupted")) } else { Ok(()) }
    }
}
