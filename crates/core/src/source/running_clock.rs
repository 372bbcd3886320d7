//! A clock that stands still while the machine does.
//!
//! Waiting for the end of a write proves something only if the write could go on meanwhile. A virtual machine
//! that is moved or saved stands still for seconds, in the middle of a write or not; the kernel's clocks then
//! jump over that time, and the wall clock jumps when somebody sets it. So time is counted in small steps, of
//! which long ones count for nothing.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use holdfast_pipe::lock::lock;

use crate::error::{Context, Result};

/// The usual step.
const STEP: Duration = Duration::from_millis(10);
/// Of a longer step it is not known whether the machine ran.
const STEP_MAX: Duration = Duration::from_millis(100);

/// A moment, by the wall clock and by a [`RunningClock`].
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the wall clock, as in the timestamps of files.
    pub(super) wall: SystemTime,
    /// For how long the machine had been seen running.
    pub(super) ran: Duration,
}

/// Counts for how long the machine has been running since the clock was started.
#[derive(Debug)]
pub struct RunningClock {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    count: Mutex<Count>,
    is_over: AtomicBool,
}

impl RunningClock {
    /// Starts a thread that counts.
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Shared { count: Mutex::new(Count::new()), is_over: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        let count = move || {
            while !of_thread.is_over.load(Ordering::Relaxed) {
                thread::park_timeout(STEP);
                lock(&of_thread.count).step();
            }
        };
        let thread = thread::Builder::new().name("running-clock".to_owned()).spawn(count);
        Ok(Self { shared, thread: Some(thread.context("start a thread")?) })
    }

    /// This moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        let mut count = lock(&self.shared.count);
        count.step();
        Moment { wall: count.wall, ran: count.ran }
    }

    /// Waits until the machine has been running for this long since `begin`.
    pub(super) fn wait(&self, begin: Moment, at_least: Duration) {
        loop {
            let left = at_least.saturating_sub(self.now().ran - begin.ran);
            if left.is_zero() {
                return;
            }
            thread::sleep(left);
        }
    }

    /// Whether the machine has been running without a pause, and its wall clock went with it, from this long
    /// before `moment` until now.
    pub(super) fn was_steady_from(&self, before: Duration, moment: Moment) -> bool {
        let mut count = lock(&self.shared.count);
        count.step();
        count.steady_from + before <= moment.ran
    }
}

impl Drop for RunningClock {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

#[derive(Debug)]
struct Count {
    at: Instant,
    wall: SystemTime,
    ran: Duration,
    /// The count when the machine stood still last, or its wall clock was set.
    steady_from: Duration,
}

impl Count {
    fn new() -> Self {
        let (ran, steady_from) = (Duration::ZERO, Duration::ZERO);
        Self { at: Instant::now(), wall: SystemTime::now(), ran, steady_from }
    }

    fn step(&mut self) {
        self.step_to(Instant::now(), SystemTime::now());
    }

    fn step_to(&mut self, at: Instant, wall: SystemTime) {
        let passed = at.saturating_duration_since(self.at);
        let is_short = passed <= STEP_MAX;
        if is_short {
            self.ran += passed;
        }
        let is_set = match wall.duration_since(self.wall) {
            Ok(by_wall) => by_wall.abs_diff(passed) > STEP_MAX,
            Err(_) => true,
        };
        if is_set || !is_short {
            self.steady_from = self.ran;
        }
        (self.at, self.wall) = (at, wall);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of which the second is a pause of the machine, or a wall clock that is set to and fro.
    #[test]
    fn pauses_count_for_nothing() {
        let ms = Duration::from_millis;
        for (passed, by_wall) in [(ms(5_000), ms(5_000)), (ms(10), ms(5_000)), (ms(5_000), ms(10))] {
            let mut count = Count::new();
            let go_on = |count: &mut Count, passed, by_wall| {
                count.step_to(count.at + passed, count.wall + by_wall);
            };
            go_on(&mut count, ms(90), ms(90));
            assert_eq!((count.ran, count.steady_from), (ms(90), Duration::ZERO));
            go_on(&mut count, passed, by_wall);
            let ran = if passed == ms(10) { ms(100) } else { ms(90) };
            assert_eq!((count.ran, count.steady_from), (ran, ran));
            go_on(&mut count, ms(50), ms(51));
            assert_eq!((count.ran, count.steady_from), (ran + ms(50), ran));
            count.step_to(count.at + ms(10), count.wall - ms(3_600_000));
            assert_eq!((count.ran, count.steady_from), (ran + ms(60), ran + ms(60)));
        }
    }

    /// A moment is preceded by steady time only once the clock has counted as much.
    #[test]
    fn a_wait_is_counted() {
        let clock = RunningClock::start().unwrap();
        let begin = clock.now();
        assert!(!clock.was_steady_from(STEP_MAX, begin));
        clock.wait(begin, 2 * STEP_MAX);
        assert!(clock.now().ran >= begin.ran + 2 * STEP_MAX);
    }
}
