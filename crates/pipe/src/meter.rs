//! Meters: bytes, units and busy time of a stage, read while it runs.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// What one stage has done so far. Shared by its threads.
#[derive(Debug, Default)]
pub struct Meter {
    bytes: AtomicU64,
    units: AtomicU64,
    busy_ns: AtomicU64,
}

impl Meter {
    /// Counts one unit of `bytes`.
    pub fn add(&self, bytes: u64) {
        self.add_many(1, bytes);
    }

    /// Counts `units` of `bytes` together.
    pub fn add_many(&self, units: u64, bytes: u64) {
        self.units.fetch_add(units, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Runs `work` and counts its time as busy.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.busy_ns
            .fetch_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Units so far.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Busy time so far, summed over threads.
    #[must_use]
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed))
    }
}
