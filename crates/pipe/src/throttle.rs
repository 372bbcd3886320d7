//! A token bucket whose rate can change while it is used: whoever uses it decides on the rate.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::lock::lock;

/// Longest burst after a pause, in time at the current rate.
const BURST: Duration = Duration::from_millis(100);
/// A waiting thread checks again at least this often, so that none sleeps through the end of a run.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Bounds the byte rate of all threads that share it.
#[derive(Debug)]
pub struct Throttle {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// `None` means no limit.
    bytes_per_s: Option<u64>,
    /// When the bytes granted so far are used up at the current rate.
    free_at: Instant,
}

impl Throttle {
    /// A throttle with a rate; `None` delays nobody. A rate of 0 blocks everybody until it is changed.
    #[must_use]
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self { state: Mutex::new(State { bytes_per_s, free_at: Instant::now() }), changed: Condvar::new() }
    }

    /// Changes the rate, also for threads that are waiting.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        // Bytes still owed were owed at the old rate.
        if let (Some(old), Some(new)) = (state.bytes_per_s, bytes_per_s) {
            let owed = state.free_at.saturating_duration_since(now).as_secs_f64() * old as f64;
            state.free_at = now + seconds(owed / new.max(1) as f64);
        } else {
            state.free_at = now;
        }
        state.bytes_per_s = bytes_per_s;
        self.changed.notify_all();
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        lock(&self.state).bytes_per_s
    }

    /// Waits until `bytes` may pass, or until `stopped` returns true; returns how long that took.
    pub fn take(&self, bytes: u64, stopped: impl Fn() -> bool) -> Duration {
        let begin = Instant::now();
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let wait = match state.bytes_per_s {
                None => Duration::ZERO,
                Some(0) => LOOK_AGAIN,
                Some(_) => state.free_at.saturating_duration_since(now),
            };
            if wait.is_zero() || stopped() {
                if let Some(rate @ 1..) = state.bytes_per_s {
                    let from = now.checked_sub(BURST).map_or(now, |burst| state.free_at.max(burst));
                    state.free_at = from + seconds(bytes as f64 / rate as f64);
                }
                return begin.elapsed();
            }
            let waited = self.changed.wait_timeout(state, wait.min(LOOK_AGAIN));
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    const LONGEST: Duration = Duration::from_secs(3_600);
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn no_more_passes_than_the_rate_and_one_burst_allow() {
        let throttle = Arc::new(Throttle::new(Some(10_000_000)));
        let begin = Instant::now();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let throttle = Arc::clone(&throttle);
                thread::spawn(move || {
                    for _ in 0..10 {
                        throttle.take(100_000, || false);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // 4 MB at 10 MB/s, less the burst and the one grant that is ahead.
        assert!(begin.elapsed() >= Duration::from_millis(280), "{:?}", begin.elapsed());
    }

    #[test]
    fn a_rate_of_nothing_holds_until_it_is_changed_or_the_run_stops() {
        let throttle = Arc::new(Throttle::new(Some(0)));
        let (begins, begun) = std::sync::mpsc::channel();
        let waiting = thread::spawn({
            let throttle = Arc::clone(&throttle);
            move || {
                begins.send(()).unwrap();
                throttle.take(1, || false)
            }
        });
        begun.recv().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        throttle.set_rate(None);
        assert!(waiting.join().unwrap() >= Duration::from_millis(40));
        throttle.set_rate(Some(0));
        throttle.take(1, || true);
        assert_eq!(throttle.rate(), Some(0));
    }
}
