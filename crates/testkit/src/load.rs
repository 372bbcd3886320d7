//! Loads that keep a server busy while it is backed up.
//!
//! Each load runs on its own threads until it is stopped or dropped.
//! An unexpected error makes its `stop` fail, so that a test cannot pass on an idle server.
//! With several threads, the seed determines what each of them does, but not how they interleave.

pub mod ddl;
pub mod pages;
pub mod probe;
pub mod writes;

pub use ddl::{DdlStorm, StormOptions};
pub use pages::PageLoad;
pub use probe::Prober;
pub use writes::WriteLoad;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Tells the threads of a load to stop.
#[derive(Clone, Debug, Default)]
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often a thread of a load may begin a piece of work.
/// Without it, a load is as large as the disk is fast, and what a test proves and takes depends on that.
#[derive(Clone, Copy, Debug)]
struct Pace(Duration);

impl Pace {
    /// At most this often; `None`: no limit.
    fn per_second(rate: Option<u32>) -> Pace {
        Pace(rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate.max(1)))
    }

    /// Waits until the piece of work after the one that began at `begun` may begin.
    fn keep(self, begun: Instant) {
        thread::sleep(self.0.saturating_sub(begun.elapsed()));
    }
}

/// The threads of one load.
#[derive(Debug)]
struct Crew<T> {
    stop: Stop,
    threads: Vec<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Crew<T> {
    fn new() -> Crew<T> {
        Crew { stop: Stop::default(), threads: Vec::new() }
    }

    fn add(&mut self, work: impl FnOnce(&Stop) -> Result<T> + Send + 'static) {
        let stop = self.stop.clone();
        self.threads.push(thread::spawn(move || work(&stop)));
    }

    /// Stops all threads; returns their results, or the first error.
    fn finish(&mut self) -> Result<Vec<T>> {
        self.stop.0.store(true, Ordering::Relaxed);
        let results: Vec<Result<T>> = self
            .threads
            .drain(..)
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread of the load panicked"))?)
            .collect();
        results.into_iter().collect()
    }
}

impl<T> Drop for Crew<T> {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// The server's error number, if the server answered with an error.
pub(crate) fn server_error(error: &mysql::Error) -> Option<u16> {
    match error {
        mysql::Error::MySqlError(error) => Some(error.code),
        _ => None,
    }
}
