//! Asking long work on a repository to end: between two objects, with nothing half done that would count.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::error::RepoError;

/// Asks work that has a clone of it to end. Safe to trigger from any thread, for good.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks.
    pub fn interrupt(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether somebody asked.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// [`RepoError::Interrupted`] if somebody asked.
    pub fn check(&self) -> Result<(), RepoError> {
        if self.is_set() { Err(RepoError::Interrupted) } else { Ok(()) }
    }
}
