//! How a group of stages ends: the first error stops all of them.
//!
//! A stage that fails calls [`Stop::fail`]; every other stage checks before it blocks, and ends. The reported
//! error is the first one, not the disconnections that follow from it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use crate::lock::lock;

/// The first error of a group of stages.
pub struct Stop<E> {
    shared: Arc<Shared<E>>,
}

struct Shared<E> {
    stopped: AtomicBool,
    first: Mutex<Option<E>>,
}

impl<E> Clone for Stop<E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<E> Default for Stop<E> {
    fn default() -> Self {
        Self { shared: Arc::new(Shared { stopped: AtomicBool::new(false), first: Mutex::new(None) }) }
    }
}

impl<E> Stop<E> {
    /// Records `error` if it is the first, and stops all stages.
    pub fn fail(&self, error: E) {
        let mut first = lock(&self.shared.first);
        first.get_or_insert(error);
        self.shared.stopped.store(true, Ordering::Release);
    }

    /// Whether a stage has failed.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }

    /// Takes the first error, if any.
    #[must_use]
    pub fn take(&self) -> Option<E> {
        lock(&self.shared.first).take()
    }
}
