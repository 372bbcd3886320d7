//! What every copy needs, and what all copies count.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::Duration,
};

use holdfast_formats::{Flavor, page::Checksum};
use holdfast_pipe::{Headroom, throttle::Throttle};

use super::{RedoProgress, Sink, damage::Damage, page_reader::ReadMode, running_clock::RunningClock};
use crate::{error::Result, event::Cancel, meter::Meter};

/// Counters of all copies, shared by the threads.
#[derive(Debug, Default)]
pub(super) struct CopyCounters {
    /// Pages of tablespaces.
    pub(super) pages: AtomicU64,
    /// Bytes of any file.
    pub(super) bytes: AtomicU64,
    /// Pages that were bad at first.
    pub(super) torn_pages: AtomicU64,
    /// Reads needed to get them right.
    pub(super) torn_reads: AtomicU64,
    /// Pages accepted after two equal reads.
    pub(super) unverifiable: AtomicU64,
    /// Good pages by checksum, in the order of [`Checksum::ALL`].
    pub(super) by_checksum: [AtomicU64; Checksum::ALL.len()],
    /// MariaDB: the algorithms of page compression that pages told, a bit for each.
    pub(super) compressed_with: AtomicU8,
    /// Files that vanished.
    pub(super) vanished: AtomicU64,
}

impl CopyCounters {
    /// Bytes read so far.
    #[must_use]
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Pages read so far.
    #[must_use]
    pub(super) fn pages_read(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }
}

/// What every copy needs.
pub(super) struct CopyContext<'a> {
    /// The flavor of the server.
    pub(super) flavor: Flavor,
    /// Tells how long ago a read was.
    pub(super) clock: &'a RunningClock,
    /// How tablespaces are read.
    pub(super) mode: ReadMode,
    /// Where the pages go.
    pub(super) sink: &'a dyn Sink,
    /// Counters that all copies share.
    pub(super) counters: &'a CopyCounters,
    /// Reports the progress.
    pub(super) progress: &'a Meter<'a>,
    /// Limits the rate of reading. No lock is held while it does.
    pub(super) throttle: &'a Throttle,
    /// What the copy leaves to the server.
    pub(super) headroom: &'a Headroom,
    /// Ends the copy early.
    pub(super) cancel: &'a Cancel,
    /// Also ends the copy early: without the redo no copy is worth anything.
    pub(super) redo: &'a dyn RedoProgress,
    /// Decides about pages that are damaged on the source.
    pub(super) damage: &'a Damage<'a>,
}

impl CopyContext<'_> {
    pub(super) fn check_not_stopped(&self) -> Result<()> {
        self.cancel.check()?;
        self.redo.check()
    }

    /// Waits until the processors are no longer busy with what was sent. Called before a lock is taken.
    pub(super) fn drain(&self) -> Result<()> {
        while !self.sink.is_drained()? {
            self.check_not_stopped()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Lifts the limits: a lock is held, or about to be taken.
    pub(super) fn lift_limits(&self) {
        self.throttle.set_rate(None);
        self.headroom.end();
    }

    /// Restores the limits: the lock was released, and the server comes first again.
    pub(super) fn restore_limits(&self, read_bytes_per_s_max: Option<u64>) {
        self.throttle.set_rate(read_bytes_per_s_max);
        self.headroom.go_on();
    }

    pub(super) fn vanished(&self) {
        self.counters.vanished.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self, bytes: usize) {
        self.progress.add(bytes as u64);
        self.count_again(bytes);
    }

    /// Counts what was read once more: the disk had to read it, too.
    pub(super) fn count_again(&self, bytes: usize) {
        self.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.throttle.take(bytes as u64, || self.cancel.is_cancelled() || self.redo.has_failed());
    }
}
