//! A thread that panics must not leave others waiting for its work.

use std::thread;

/// Calls a function if it is dropped by a panic.
pub(super) struct OnPanic<F: Fn()>(pub(super) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}
