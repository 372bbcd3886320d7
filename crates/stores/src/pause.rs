//! Waiting between attempts.

use std::time::{Duration, Instant};

/// How often, and for how long, an operation is retried.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    /// Attempts after the first.
    pub count: u32,
    /// The longest pause.
    pub pause_max: Duration,
    /// No retry begins when this much time has passed since the first attempt.
    pub give_up_after: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        // Longer than a restart or a failover takes and, except for parts, shorter than a lease. Time ends
        // the retries, not the count.
        Self { count: 100, pause_max: Duration::from_secs(15), give_up_after: Duration::from_secs(240) }
    }
}

/// The pauses of one operation: each about twice as long as the one before, of random length, so that many
/// callers refused at once do not come back at once.
pub(crate) struct Pauses {
    retries: Retries,
    taken: u32,
    begun: Instant,
}

const FIRST: Duration = Duration::from_millis(100);

impl Pauses {
    pub(crate) fn new(retries: Retries) -> Self {
        Self { retries, taken: 0, begun: Instant::now() }
    }

    /// The next pause; `None` when it is time to give up.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        if self.taken >= self.retries.count || self.begun.elapsed() >= self.retries.give_up_after {
            return None;
        }
        let longest = FIRST.saturating_mul(1 << self.taken.min(16)).min(self.retries.pause_max);
        self.taken += 1;
        let mut random = [0; 4];
        // Without random numbers the pause has its greatest length.
        let share = match getrandom::fill(&mut random) {
            Ok(()) => f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX),
            Err(_) => 1.0,
        };
        Some(longest.mul_f64(0.5 + share / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_end() {
        let retries = Retries { count: 8, pause_max: Duration::from_secs(1), ..Retries::default() };
        let mut pauses = Pauses::new(retries);
        let taken: Vec<Duration> = std::iter::from_fn(|| pauses.next()).collect();
        assert_eq!(taken.len(), 8);
        assert!(taken[0] >= Duration::from_millis(50) && taken[0] <= FIRST);
        assert!(taken.iter().all(|pause| *pause <= Duration::from_secs(1)));
        assert!(taken[7] >= Duration::from_millis(500));
        let mut none = Pauses::new(Retries { give_up_after: Duration::ZERO, ..retries });
        assert_eq!(none.next(), None);
    }
}
