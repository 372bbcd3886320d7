//! What an operation tells while it runs. Command line, web page and tests are listeners of the same events.

use std::time::Duration;

use holdfast_repo::Interrupt;

use crate::error::{Error, ErrorKind, Result};

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A named part of the operation begins; the one before has ended.
    Phase {
        /// `start`, `copy`, `stop`, `complete`; `plan`, `assemble`, `prepare`, `place` …
        name: &'static str,
    },
    /// How far the current phase is. At most a few times each second.
    Progress {
        /// Bytes done.
        bytes_done: u64,
        /// Bytes in all, as far as known; 0 where they are not.
        bytes_total: u64,
    },
    /// Something a person may want to know.
    Note {
        /// One sentence.
        text: String,
    },
    /// Something a person should look at; the result is sound all the same.
    Warning {
        /// One sentence.
        text: String,
    },
    /// A lock on the server was taken and is released again.
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
    /// Takes note. Must return quickly.
    fn event(&self, event: Event);
}

/// Listens to nothing.
pub struct Silent;

impl Listener for Silent {
    fn event(&self, _: Event) {}
}

/// Asks a running operation to end. Cheap to clone, safe to trigger from a signal handler's thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Interrupt);

impl Cancel {
    /// Asks.
    pub fn cancel(&self) {
        self.0.interrupt();
    }

    /// Whether somebody asked.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_set()
    }

    /// The same, for work on the repository itself.
    #[must_use]
    pub fn interrupt(&self) -> Interrupt {
        self.0.clone()
    }

    /// [`ErrorKind::Interrupted`] if somebody asked.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::new(ErrorKind::Interrupted, "interrupted")) } else { Ok(()) }
    }
}
