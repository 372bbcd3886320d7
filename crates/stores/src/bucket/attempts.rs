//! Which failures are retried, and for how long.
//!
//! The library repeats a request a few times within a second; its pauses hardly grow. A service that restarts
//! or fails over is away for longer than that, so here time decides.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use holdfast_repo::store::{RemoteCause, StoreError, StoreErrorKind};

use super::{Inner, failure::Failure};
use crate::pause::{Pauses, Retries};

/// How often to retry with expired credentials: the library renews its own well before they expire, and a
/// file is read again after some seconds.
const EXPIRED_ATTEMPTS: u32 = 7;

/// The attempts of one operation.
pub(super) struct Attempts {
    pauses: Pauses,
    expired: u32,
}

impl Attempts {
    pub(super) fn new(retries: Retries) -> Self {
        Self { pauses: Pauses::new(retries), expired: 0 }
    }

    /// One attempt, and no other.
    pub(super) fn none() -> Self {
        Self::new(Retries { count: 0, ..Retries::default() })
    }

    /// Waits for the next attempt after this failure; `false` if there is to be none.
    pub(super) async fn wait(&mut self, failure: Failure) -> bool {
        let may_pass = match failure {
            Failure::Conflict => true,
            // Credentials may have been renewed since.
            Failure::Remote(RemoteCause::Expired) | Failure::Unsaid => {
                self.expired += 1;
                self.expired <= EXPIRED_ATTEMPTS
            }
            Failure::Remote(cause) => cause.passes(),
            Failure::NotFound | Failure::Taken | Failure::Range | Failure::Archived => false,
        };
        let pause = if may_pass { self.pauses.next() } else { None };
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        pause.is_some()
    }
}

impl Inner {
    /// Repeats something that may as well be done twice, until it succeeds or fails for good.
    pub(super) async fn again<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut attempts = Attempts::new(self.options.retries);
        loop {
            let failed = match attempt().await {
                Err(failed) => failed,
                done => return done,
            };
            let StoreErrorKind::Remote(remote) = &failed.kind else { return Err(failed) };
            if !attempts.wait(Failure::Remote(remote.cause)).await {
                return Err(failed);
            }
        }
    }
}

/// How long a part may take.
///
/// Parts share the line. A line that is fast enough for a single part may be too slow for all parts being
/// sent at once; then none ever arrives in time, however often they are sent. So each time-out allows more
/// time to all later parts, up to the time that they take one after another.
pub(super) struct PartTimeout {
    one_part: Duration,
    times_max: u32,
    times: AtomicU32,
}

impl PartTimeout {
    pub(super) fn new(one_part: Duration, parts_at_once: usize) -> Self {
        let times_max = u32::try_from(parts_at_once).unwrap_or(u32::MAX).max(1);
        Self { one_part, times_max, times: AtomicU32::new(1) }
    }

    pub(super) fn now(&self) -> Duration {
        self.one_part.saturating_mul(self.times.load(Ordering::Relaxed))
    }

    /// Notes that a part has not arrived within `allowed`. Other parts that were allowed the same time add
    /// nothing.
    pub(super) fn was_too_short(&self, allowed: Duration) {
        let _ = self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |times| {
            (self.one_part.saturating_mul(times) == allowed)
                .then(|| times.saturating_mul(2).min(self.times_max))
        });
    }

    /// Notes that a part took this long. A line that was slow for a while is not slow for good.
    pub(super) fn was_enough(&self, took: Duration) {
        if took <= self.one_part {
            let _ = self
                .times
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |times| (times > 1).then(|| times - 1));
        }
    }

    /// The retries of one part.
    pub(super) fn retries(&self, retries: Retries) -> Retries {
        Retries { give_up_after: retries.give_up_after.saturating_mul(self.times_max), ..retries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_line_gets_the_time_of_all_parts_and_no_more() {
        let seconds = Duration::from_secs;
        let timeout = PartTimeout::new(seconds(180), 5);
        for allowed in [180, 360, 720, 900, 900] {
            assert_eq!(timeout.now(), seconds(allowed));
            // All five that were being sent.
            for _ in 0..5 {
                timeout.was_too_short(seconds(allowed));
            }
        }
        timeout.was_enough(seconds(181));
        assert_eq!(timeout.now(), seconds(900), "it is as slow as that");
        (0..9).for_each(|_| timeout.was_enough(seconds(20)));
        assert_eq!(timeout.now(), seconds(180));
        assert_eq!(PartTimeout::new(seconds(1), 0).now(), seconds(1));
    }
}
