//! Several sessions at one work, and when they end.

use std::{sync::Mutex, thread};

use holdfast_pipe::lock::{into_inner, lock};

use crate::error::{Error, Result};

/// Works in a thread for each of `workers`, and returns the first error. `give_up` is called as soon as one fails or panics:
/// nobody may wait for what it would have done.
pub(super) fn all<W: Send>(
    workers: impl IntoIterator<Item = W>,
    give_up: impl Fn() + Sync,
    work: impl Fn(W) -> Result<()> + Sync,
) -> Result<()> {
    let failure = Mutex::new(None::<Error>);
    thread::scope(|scope| {
        for worker in workers {
            scope.spawn(|| {
                let _guard = OnPanic(&give_up);
                if let Err(error) = work(worker) {
                    give_up();
                    lock(&failure).get_or_insert(error);
                }
            });
        }
    });
    into_inner(failure).map_or(Ok(()), Err)
}

/// Calls a function if it is dropped by a panic.
struct OnPanic<'a, F: Fn()>(&'a F);

impl<F: Fn()> Drop for OnPanic<'_, F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    #[test]
    fn the_first_failure_is_told_and_stops_the_others() {
        let is_over = AtomicBool::new(false);
        let done = all(
            0..3,
            || is_over.store(true, Relaxed),
            |worker| {
                if worker == 1 {
                    return Err(Error::failed("one"));
                }
                while !is_over.load(Relaxed) {
                    thread::yield_now();
                }
                Ok(())
            },
        );
        assert_eq!(done.map_err(|error| error.to_string()), Err("one".to_owned()));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_stops_the_others() {
        let is_over = AtomicBool::new(false);
        let _ = all(
            0..2,
            || is_over.store(true, Relaxed),
            |worker| {
                assert_eq!(worker, 0, "on purpose");
                while !is_over.load(Relaxed) {
                    thread::yield_now();
                }
                Ok(())
            },
        );
    }
}
