//! Leaves part of every processor to a server that is being written to.
//!
//! Low priority alone does not keep commits fast: on a virtual machine, or in a container with a limit, the
//! disk is served by threads that run on the same processors and know nothing of our priorities. Measured on
//! a virtual machine with two processors: with both busy all of the time, even with idle-class threads, the
//! longest of a few thousand small syncs took 60 to 400 ms; with one tenth of the time left free, 9 ms.
//! Reading a MiB at once also delays every commit queued after it, and small reads are nearly as fast.
//!
//! A server that nobody writes to needs none of this. Its log shows whether anybody does.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::lock::lock;

/// How often the growth of the log is judged.
const WINDOW: Duration = Duration::from_millis(200);
/// An idle server writes less log than this.
const LOG_BYTES_PER_S_MIN: f64 = 65_536.0;
/// Seconds of rest for each second of work.
const REST: f64 = 0.2;
/// Most bytes to read at once while room is needed.
const READ_BYTES_MAX: usize = 256 << 10;

/// Whether the server needs room, and what that demands of the threads that copy and compress.
#[derive(Debug)]
pub struct Headroom {
    is_needed: AtomicBool,
    state: Mutex<State>,
}

impl Default for Headroom {
    /// For work without a server beside it: no room is needed.
    fn default() -> Self {
        Self { is_needed: AtomicBool::new(false), state: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    /// A position of the log, and when it was seen.
    seen: Option<(u64, Instant)>,
}

impl Headroom {
    /// For work beside a server about which nothing is known yet: room is left until its log is seen to stand
    /// still.
    #[must_use]
    pub fn beside_server() -> Self {
        Self { is_needed: AtomicBool::new(true), ..Self::default() }
    }

    /// Reports the current position of the server's log; cheap, and meant to be called often.
    pub fn saw_log(&self, lsn: u64) {
        // A caller that comes while another judges has nothing to add.
        let Ok(mut state) = self.state.try_lock() else { return };
        let now = Instant::now();
        let Some((before, then)) = state.seen else {
            state.seen = Some((lsn, now));
            return;
        };
        let passed = now.saturating_duration_since(then);
        if passed >= WINDOW && !state.is_over {
            let bytes_per_s = lsn.saturating_sub(before) as f64 / passed.as_secs_f64();
            self.is_needed.store(bytes_per_s >= LOG_BYTES_PER_S_MIN, Ordering::Relaxed);
            state.seen = Some((lsn, now));
        }
    }

    /// Reports that the position of the log is no longer known: room is left, unless only speed counts.
    pub fn lost_log(&self) {
        let state = lock(&self.state);
        self.is_needed.store(!state.is_over, Ordering::Relaxed);
    }

    /// From now on only speed counts: a lock is held, or about to be.
    pub fn end(&self) {
        lock(&self.state).is_over = true;
        self.is_needed.store(false, Ordering::Relaxed);
    }

    /// The lock was released, and there is more to do.
    pub fn go_on(&self) {
        let mut state = lock(&self.state);
        *state = State::default();
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// How many of `bytes` to read at once, at most.
    #[must_use]
    pub fn read_bytes(&self, bytes: usize) -> usize {
        if self.is_needed.load(Ordering::Relaxed) { bytes.min(READ_BYTES_MAX) } else { bytes }
    }

    /// Rests if room is needed. Called by a thread that has kept a processor busy for as long as `worked`.
    pub fn rest_after(&self, worked: Duration) {
        if self.is_needed.load(Ordering::Relaxed) {
            thread::sleep(worked.mul_f64(REST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: u64 = 10 << 20;

    #[test]
    fn room_is_left_while_the_log_grows() {
        let headroom = Headroom::beside_server();
        let is_left = || headroom.read_bytes(usize::MAX) == READ_BYTES_MAX;
        headroom.saw_log(BUSY);
        assert!(is_left(), "one look tells nothing");
        thread::sleep(WINDOW);
        headroom.saw_log(2 * BUSY);
        assert!(is_left());
        thread::sleep(WINDOW);
        headroom.saw_log(2 * BUSY + 100);
        assert!(!is_left(), "the log stands still but for what the server does by itself");
        headroom.lost_log();
        assert!(is_left());
    }

    #[test]
    fn under_a_lock_only_speed_counts() {
        let headroom = Headroom::beside_server();
        headroom.saw_log(0);
        thread::sleep(WINDOW);
        headroom.saw_log(BUSY);
        headroom.end();
        thread::sleep(WINDOW);
        headroom.saw_log(2 * BUSY);
        headroom.lost_log();
        assert_eq!(headroom.read_bytes(1 << 20), 1 << 20);
        // Until the lock is released.
        headroom.go_on();
        assert_eq!(headroom.read_bytes(1 << 20), READ_BYTES_MAX);
    }
}
