//! Reads many small objects of a store that is far away: several are requested at
//! a time, and returned in order.

use std::{
    panic,
    thread::{self, Builder, ScopedJoinHandle},
};

/// The most bytes that objects requested together may have in total, unless a single one is larger.
/// Decoded, they take several times that.
const AHEAD_BYTES: u64 = 8 << 20;

/// Calls `fetch` for each of `items`, `at_once` at a time
/// ([`Store::reads_at_once`](super::Store::reads_at_once)), and `take` with each result, in the order of the
/// items. Stops at the first error; a few later items may have been fetched by then.
pub(crate) fn in_order<T: Sync, R: Send, E: Send>(
    at_once: usize,
    items: &[T],
    fetch: impl Fn(&T) -> Result<R, E> + Sync,
    take: impl FnMut(&T, R) -> Result<(), E>,
) -> Result<(), E> {
    in_order_on(&Builder::new, at_once, items, &|_| 0, fetch, take)
}

/// As [`in_order`], for objects that may be large: fewer at a time if they are.
pub(crate) fn sized_in_order<T: Sync, R: Send, E: Send>(
    at_once: usize,
    items: &[T],
    size_bytes: &dyn Fn(&T) -> u64,
    fetch: impl Fn(&T) -> Result<R, E> + Sync,
    take: impl FnMut(&T, R) -> Result<(), E>,
) -> Result<(), E> {
    in_order_on(&Builder::new, at_once, items, size_bytes, fetch, take)
}

/// How many of `items`, from the first on, are requested together.
pub(crate) fn batch<T>(at_once: usize, items: &[T], size_bytes: &dyn Fn(&T) -> u64) -> usize {
    let mut room_bytes = AHEAD_BYTES;
    let fitting = items.iter().take(at_once).take_while(|item| {
        let left = room_bytes.checked_sub(size_bytes(item));
        room_bytes = left.unwrap_or(0);
        left.is_some()
    });
    fitting.count().max(1)
}

/// As [`sized_in_order`], with threads made by `thread`.
fn in_order_on<T: Sync, R: Send, E: Send>(
    thread: &dyn Fn() -> Builder,
    at_once: usize,
    mut items: &[T],
    size_bytes: &dyn Fn(&T) -> u64,
    fetch: impl Fn(&T) -> Result<R, E> + Sync,
    mut take: impl FnMut(&T, R) -> Result<(), E>,
) -> Result<(), E> {
    let fetch = &fetch;
    while !items.is_empty() {
        let (batch, after) = items.split_at(batch(at_once, items, size_bytes));
        items = after;
        let [first, others @ ..] = batch else { return Ok(()) };
        let fetched: Vec<Result<R, E>> = thread::scope(|scope| {
            let others = others.iter().map(|item| (item, thread().spawn_scoped(scope, move || fetch(item))));
            let others: Vec<_> = others.collect();
            let first = fetch(first);
            let others = others.into_iter().map(|(item, other)| match other.map(ScopedJoinHandle::join) {
                Ok(Ok(fetched)) => fetched,
                Ok(Err(panicked)) => panic::resume_unwind(panicked),
                // The host gives no more threads.
                Err(_) => fetch(item),
            });
            std::iter::once(first).chain(others).collect()
        });
        for (item, fetched) in batch.iter().zip(fetched) {
            take(item, fetched?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn several_are_fetched_at_once_and_come_in_order() {
        // No thread passes it alone.
        let barrier = Barrier::new(4);
        let fetch = |item: &usize| {
            barrier.wait();
            Ok::<_, ()>(item * 10)
        };
        let items: Vec<usize> = (0..8).collect();
        let mut taken = Vec::new();
        let take = |item: &usize, ten| {
            taken.push((*item, ten));
            Ok(())
        };
        assert_eq!(in_order(4, &items, fetch, take), Ok(()));
        assert_eq!(taken, items.iter().map(|item| (*item, item * 10)).collect::<Vec<_>>());
    }

    #[test]
    fn without_threads_one_is_fetched_after_the_other() {
        // No address space has room for such a stack.
        let none = || Builder::new().stack_size(1 << 47);
        let items: Vec<usize> = (0..8).collect();
        let mut taken = Vec::new();
        let take = |_: &usize, ten| {
            taken.push(ten);
            Ok(())
        };
        assert_eq!(in_order_on(&none, 4, &items, &|_| 0, |item| Ok::<_, ()>(item * 10), take), Ok(()));
        assert_eq!(taken, items.iter().map(|item| item * 10).collect::<Vec<_>>());
    }

    #[test]
    fn of_large_objects_fewer_are_asked_for_together() {
        let whole = |n: u64| n * AHEAD_BYTES / 4;
        assert_eq!(batch(16, &[1, 1, 2, 1], &|n| whole(*n)), 3);
        assert_eq!(batch(2, &[1, 1, 2, 1], &|n| whole(*n)), 2);
        assert_eq!(batch(16, &[u64::MAX, 0], &|n| *n), 1, "one is, however large");
        assert_eq!(batch(0, &[0, 0], &|n| *n), 1);
    }

    #[test]
    fn the_first_error_ends_it() {
        let fetched = Mutex::new(Vec::new());
        let fetch = |item: &usize| {
            fetched.lock().unwrap().push(*item);
            if *item % 5 == 4 { Err(*item) } else { Ok(()) }
        };
        let items: Vec<usize> = (0..20).collect();
        let mut taken = Vec::new();
        let take = |item: &usize, ()| {
            taken.push(*item);
            Ok(())
        };
        assert_eq!(in_order(3, &items, fetch, take), Err(4));
        assert_eq!(taken, [0, 1, 2, 3]);
        let mut fetched = fetched.into_inner().unwrap();
        fetched.sort_unstable();
        assert_eq!(fetched, [0, 1, 2, 3, 4, 5]);
    }
}
