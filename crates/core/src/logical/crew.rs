//! Runs several sessions on one task, and ends them together.

use std::{sync::Mutex, thread};

use holdfast_pipe::lock::{into_inner, lock};

use crate::error::{Error, Result};

/// Runs `work` in a thread for each of `workers`, and returns the first error. Calls `give_up` as soon as one
/// fails or panics: no other worker may wait for it then. A panic is an error like any other, so that
/// settings switched on a server are switched back.
pub(super) fn all<W: Send>(
    workers: impl IntoIterator<Item = W>,
    give_up: impl Fn() + Sync,
    work: impl Fn(W) -> Result<()> + Sync,
) -> Result<()> {
    let failure = Mutex::new(None::<Error>);
    thread::scope(|scope| {
        let (failure, give_up, work) = (&failure, &give_up, &work);
        let begin = |worker| {
            scope.spawn(move || {
                let _guard = OnPanic(give_up);
                if let Err(error) = work(worker) {
                    // First: what the others fail with then is a consequence of it.
                    lock(failure).get_or_insert(error);
                    give_up();
                }
            })
        };
        let threads: Vec<_> = workers.into_iter().map(begin).collect();
        for thread in threads {
            if thread.join().is_err() {
                lock(failure).get_or_insert(Error::failed("a worker thread ended unexpectedly"));
            }
        }
    });
    into_inner(failure).map_or(Ok(()), Err)
}

/// Calls a function if dropped by a panic.
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

    /// A panic stops the others and is an error, so that callers switch back what they switched on a server.
    #[test]
    fn a_panic_stops_the_others_and_is_an_error() {
        let is_over = AtomicBool::new(false);
        let done = all(
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
        assert!(done.unwrap_err().to_string().contains("ended unexpectedly"));
    }
}
