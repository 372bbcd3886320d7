//! Messages from the reading thread to the archiving thread, bounded by their bytes.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;

/// A queue that blocks at both ends.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new() }
    }
}

struct State<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    is_closed: bool,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), bytes: 0, is_closed: false }
    }
}

/// The result of waiting for an item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Popped<T> {
    Item(T),
    /// Nothing came in time.
    Nothing,
    /// Nothing will come any more.
    Closed,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    /// Adds an item once fewer than `bytes_max` bytes are waiting; `false` if the queue is closed.
    pub(super) fn push(&self, item: T, bytes: usize, bytes_max: usize) -> bool {
        let mut state = self.lock();
        while state.bytes >= bytes_max && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return false;
        }
        let was_empty = state.items.is_empty();
        state.items.push_back((item, bytes));
        state.bytes += bytes;
        drop(state);
        if was_empty {
            self.changed.notify_all();
        }
        true
    }

    /// Takes the next item.
    pub(super) fn pop(&self, wait: Duration) -> Popped<T> {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if let Some((item, bytes)) = state.items.pop_front() {
                state.bytes -= bytes;
                drop(state);
                self.changed.notify_all();
                return Popped::Item(item);
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.is_closed {
                return Popped::Closed;
            }
            if left.is_zero() {
                return Popped::Nothing;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Closes the queue: nothing more is added, but waiting items can still be taken.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    /// Items come out in order, their bytes are bounded, and a closed queue still gives what it has.
    #[test]
    fn in_order_and_bounded() {
        let queue = Arc::new(Queue::default());
        let pusher = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                for number in 0..1000 {
                    assert!(queue.push(number, 10, 35));
                }
                queue.close();
                queue.push(1000, 10, 35)
            }
        });
        for number in 0..1000 {
            assert!(queue.lock().bytes <= 40);
            assert_eq!(queue.pop(Duration::from_secs(60)), Popped::Item(number));
        }
        assert_eq!(queue.pop(Duration::from_secs(60)), Popped::Closed);
        assert!(!pusher.join().unwrap_or(true));
        assert_eq!(Queue::<u8>::default().pop(Duration::ZERO), Popped::Nothing);
    }
}
