//! How far an operation is.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::event::{Event, Listener};

/// Nobody reads faster.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// Counts bytes that several threads have done, and tells a listener of them a few times a second.
pub struct Meter<'a> {
    listener: &'a dyn Listener,
    bytes_expected: AtomicU64,
    bytes_done: AtomicU64,
    told_at: Mutex<Option<Instant>>,
}

impl<'a> Meter<'a> {
    /// Nothing is done of what is expected, which may be an estimate.
    #[must_use]
    pub fn new(listener: &'a dyn Listener, bytes_expected: u64) -> Self {
        Self {
            listener,
            bytes_expected: AtomicU64::new(bytes_expected),
            bytes_done: AtomicU64::new(0),
            told_at: Mutex::new(None),
        }
    }

    /// More work is known.
    pub fn expect(&self, bytes: u64) {
        self.bytes_expected.fetch_add(bytes, Relaxed);
    }

    /// More is done.
    pub fn add(&self, bytes: u64) {
        let bytes_done = self.bytes_done.fetch_add(bytes, Relaxed) + bytes;
        // Whoever comes while another tells has nothing to add.
        if let Ok(mut told_at) = self.told_at.try_lock()
            && told_at.is_none_or(|told_at| told_at.elapsed() >= TELL_EVERY)
        {
            *told_at = Some(Instant::now());
            drop(told_at);
            let bytes_total = self.bytes_expected.load(Relaxed).max(bytes_done);
            self.listener.event(Event::Progress { bytes_done, bytes_total });
        }
    }

    /// How many are done.
    #[must_use]
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Relaxed)
    }

    /// Everything is done.
    pub fn finish(&self) {
        let bytes_total = self.bytes_expected.load(Relaxed).max(self.bytes_done());
        self.listener.event(Event::Progress { bytes_done: bytes_total, bytes_total });
    }
}
