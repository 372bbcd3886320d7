//! Several sessions at one work, and when they end.

use std::{sync::Mutex, thread};

use holdfast_pipe::lock::{into_inner, lock};

use crate::error::{Error, Result};

/// Works in a thread for each of `workers`, and returns the first error. `give_up` is called as soon as one fails or panics:
/// nobody may wait for what it would have done. A panic is an error like others: what was switched on a server is switched
/// back.
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
                    give_up();
                    lock(failure).get_or_insert(error);
                }
            })
        };
        let threads: Vec<_> = workers.into_iter().map(begin).collect();
        for thread in threads {
            if thread.join().is_err() {
                lock(failure).get_or_insert(Error::failed("a thread of the operation ended without a word"));
            }
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

    /// It stops the others and is an error: who has switched something on a server switches it back.
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
        assert!(done.unwrap_err().to_string().contains("without a word"));
    }
}
