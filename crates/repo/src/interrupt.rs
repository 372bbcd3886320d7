//! Asks long-running work on a repository to stop:
//! between two objects, with nothing half done that would count.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::error::RepoError;

/// Asks the work that holds a clone of it to stop. It can be triggered from any thread, and cannot be reset.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks the work to stop.
    pub fn interrupt(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// [`RepoError::Interrupted`] if a stop was requested.
    pub fn check(&self) -> Result<(), RepoError> {
        if self.is_set() { Err(RepoError::Interrupted) } else { Ok(()) }
    }
}
