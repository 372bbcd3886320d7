//! Waiting twice as long after each failure.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);

/// How long to wait before the next try.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    /// Up to `most`.
    pub(super) fn up_to(most: Duration) -> Self {
        Self { next: FIRST, most }
    }

    /// For requests to the repository, or to this host's disk.
    pub(super) fn of_store() -> Self {
        Self::up_to(Duration::from_secs(10))
    }

    /// How long to wait now.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.most);
        wait
    }

    /// After a success.
    pub(super) fn reset(&mut self) {
        self.next = FIRST;
    }
}
