//! Progress of an operation.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::event::{Event, Listener};

/// Nobody reads progress faster than this.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// Counts the bytes that several threads have done, and reports them to a listener a few times per second.
pub struct Meter<'a> {
    listener: &'a dyn Listener,
    bytes_expected: AtomicU64,
    bytes_done: AtomicU64,
    told_at: Mutex<Option<Instant>>,
}

impl<'a> Meter<'a> {
    /// Starts with nothing done of the expected bytes, which may be an estimate.
    #[must_use]
    pub fn new(listener: &'a dyn Listener, bytes_expected: u64) -> Self {
        Self {
            listener,
            bytes_expected: AtomicU64::new(bytes_expected),
            bytes_done: AtomicU64::new(0),
            told_at: Mutex::new(None),
        }
    }

    /// Adds to the expected bytes.
    pub fn expect(&self, bytes: u64) {
        self.bytes_expected.fetch_add(bytes, Relaxed);
    }

    /// Adds to the bytes done.
    pub fn add(&self, bytes: u64) {
        let bytes_done = self.bytes_done.fetch_add(bytes, Relaxed) + bytes;
        // While one thread reports, the others have nothing to add.
        if let Ok(mut told_at) = self.told_at.try_lock()
            && told_at.is_none_or(|told_at| told_at.elapsed() >= TELL_EVERY)
        {
            *told_at = Some(Instant::now());
            drop(told_at);
            let bytes_total = self.bytes_expected.load(Relaxed).max(bytes_done);
            self.listener.event(Event::Progress { bytes_done, bytes_total });
        }
    }

    /// The number of bytes done.
    #[must_use]
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Relaxed)
    }

    /// Reports everything as done.
    pub fn finish(&self) {
        let bytes_total = self.bytes_expected.load(Relaxed).max(self.bytes_done());
        self.listener.event(Event::Progress { bytes_done: bytes_total, bytes_total });
    }
}
