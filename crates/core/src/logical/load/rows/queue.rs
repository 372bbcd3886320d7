//! Distributes the work: tables to make, stretches of chunks to load, indexes to build, rows to read again.
//!
//! If the target is of another series than the source, all tables are made before the first is filled, so
//! that a server's refusals are known before hours are spent on rows.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use holdfast_pipe::lock::lock;

use super::super::{object::Stage, plan::Plan, progress::Progress, verify::Range};
use crate::{error::Result, server::Session};

/// Chunks of a table that are loaded in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) table: usize,
    pub(super) first: u64,
    pub(super) end: u64,
    /// Whether these are all chunks of the table.
    pub(super) is_whole: bool,
}

/// What a session does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Make(usize),
    Fill(Unit),
    Index(usize),
    /// Determine the ranges in which a table is read again.
    Divide(usize),
    Verify(Range),
    Over,
}

/// Adjacent chunks that are not loaded yet.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    table: usize,
    next: u64,
    end: u64,
    /// Whether it is loaded in one transaction, however long it is.
    is_one: bool,
    is_whole: bool,
}

pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The largest comes last.
    to_make: Vec<usize>,
    to_index: Vec<usize>,
    to_divide: Vec<usize>,
    to_verify: Vec<Range>,
    /// The largest comes last.
    waiting: VecDeque<Stretch>,
    makes_first: bool,
    /// By worker.
    running: Vec<Option<Stretch>>,
    tables: Vec<TableState>,
    /// Tables that are not done, and ranges that are not read again.
    open: usize,
    unit_chunks: u64,
    /// Whether rows are read again once they are in.
    verifies: bool,
    has_failed: bool,
}

#[derive(Clone, Copy)]
struct TableState {
    chunks: u64,
    chunks_left: u64,
    is_one: bool,
    /// Its rows do not change while its indexes are built.
    is_transactional: bool,
    has_indexes: bool,
}

impl Queue {
    /// Returns the queue of the work that is left, and its bytes.
    pub(super) fn new(
        plan: &Plan,
        (unit_chunks, verifies): (u64, bool),
        progress: &Progress,
        session: &mut Session,
    ) -> Result<(Queue, u64)> {
        let mut state = State {
            to_make: Vec::new(),
            to_index: Vec::new(),
            to_divide: Vec::new(),
            to_verify: Vec::new(),
            waiting: VecDeque::new(),
            makes_first: !plan.is_of_same_series,
            running: Vec::new(),
            tables: Vec::with_capacity(plan.tables.len()),
            open: 0,
            unit_chunks,
            verifies,
            has_failed: false,
        };
        let mut bytes_left = 0;
        for (number, table) in plan.tables.iter().enumerate() {
            let mut left = TableState {
                chunks: table.chunks,
                chunks_left: table.chunks,
                is_one: !table.is_transactional || table.chunks <= unit_chunks,
                is_transactional: table.is_transactional,
                has_indexes: table.indexes().next().is_some(),
            };
            state.open += 1;
            match progress.stages[table.object] {
                Stage::Planned | Stage::Begun => {
                    bytes_left += table.totals.bytes;
                    state.to_make.push(number);
                }
                Stage::Made => {
                    let done = progress.ranges(session, table.object)?;
                    let gaps = gaps(&done, table.chunks);
                    left.chunks_left = gaps.iter().map(|(first, end)| end - first).sum();
                    bytes_left += part(table.totals.bytes, left.chunks_left, table.chunks);
                    let stretch =
                        |(next, end)| Stretch { table: number, next, end, is_one: false, is_whole: false };
                    state.waiting.extend(gaps.into_iter().map(stretch));
                    if left.chunks_left == 0 {
                        state.filled(number, left);
                    }
                }
                Stage::Filled => state.filled(number, left),
                Stage::Indexed | Stage::Done | Stage::Verified => state.open -= 1,
            }
            state.tables.push(left);
        }
        state.to_make.sort_by_key(|number| plan.tables[*number].totals.bytes);
        Ok((Queue { state: Mutex::new(state), changed: Condvar::new() }, bytes_left))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn next(&self, worker: usize) -> Job {
        let mut state = self.state();
        loop {
            if state.has_failed || state.open == 0 {
                return Job::Over;
            }
            if let Some(job) = state.take(worker) {
                return job;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that a table was made. The worker that made it begins to fill it, unless others must be made
    /// first.
    pub(super) fn made(&self, worker: usize, table: usize) {
        let mut state = self.state();
        let TableState { chunks, is_one, .. } = state.tables[table];
        let stretch = Stretch { table, next: 0, end: chunks, is_one, is_whole: is_one };
        if state.makes_first {
            // Tables are made from the largest on.
            state.waiting.push_front(stretch);
        } else {
            state.set_running(worker, Some(stretch));
        }
        self.changed.notify_all();
    }

    /// Notes that the rows of a unit are in.
    pub(super) fn filled(&self, worker: usize, unit: &Unit) {
        let mut state = self.state();
        let table = &mut state.tables[unit.table];
        table.chunks_left -= unit.end - unit.first;
        let table = *table;
        if state.running.get(worker).copied().flatten().is_some_and(|it| it.next >= it.end) {
            state.set_running(worker, None);
        }
        if table.chunks_left == 0 {
            state.filled(unit.table, table);
            // The note with its rows says that nothing is left to build.
            if unit.is_whole && !table.has_indexes {
                state.to_index.pop();
                state.open -= 1;
            }
        }
        self.changed.notify_all();
    }

    /// Notes the ranges in which a table is to be read again.
    pub(super) fn divided(&self, ranges: Vec<Range>) {
        let mut state = self.state();
        state.open = state.open - 1 + ranges.len();
        state.to_verify.extend(ranges);
        self.changed.notify_all();
    }

    /// Notes that the indexes of a table are built, or that a range was read again.
    pub(super) fn done(&self) {
        self.state().open -= 1;
        self.changed.notify_all();
    }

    pub(super) fn fail(&self) {
        self.state().has_failed = true;
        self.changed.notify_all();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state().has_failed
    }
}

impl State {
    /// Schedules the next steps for a table whose rows are all in.
    fn filled(&mut self, number: usize, table: TableState) {
        self.to_index.push(number);
        if self.verifies && table.is_transactional {
            self.open += 1;
            self.to_divide.push(number);
        }
    }

    fn set_running(&mut self, worker: usize, stretch: Option<Stretch>) {
        if self.running.len() <= worker {
            self.running.resize(worker + 1, None);
        }
        self.running[worker] = stretch;
    }

    fn take(&mut self, worker: usize) -> Option<Job> {
        if self.makes_first
            && let Some(table) = self.to_make.pop()
        {
            return Some(Job::Make(table));
        }
        if let Some(unit) = self.unit(worker) {
            return Some(Job::Fill(unit));
        }
        if let Some(table) = self.to_index.pop() {
            return Some(Job::Index(table));
        }
        // While an index is built, the data that was read for it is still at hand.
        if let Some(range) = self.to_verify.pop() {
            return Some(Job::Verify(range));
        }
        if let Some(table) = self.to_divide.pop() {
            return Some(Job::Divide(table));
        }
        if let Some(table) = self.to_make.pop() {
            return Some(Job::Make(table));
        }
        let stretch = self.waiting.pop_back().or_else(|| self.half_of_another())?;
        self.set_running(worker, Some(stretch));
        self.unit(worker).map(Job::Fill)
    }

    /// The next unit of the worker's own stretch.
    fn unit(&mut self, worker: usize) -> Option<Unit> {
        let stretch = self.running.get_mut(worker)?.as_mut()?;
        let first = stretch.next;
        if first >= stretch.end && !(stretch.is_whole && stretch.end == 0) {
            self.running[worker] = None;
            return None;
        }
        let end = if stretch.is_one { stretch.end } else { stretch.end.min(first + self.unit_chunks) };
        stretch.next = end;
        let unit = Unit { table: stretch.table, first, end, is_whole: stretch.is_whole };
        // An empty table is a single unit.
        if stretch.end == 0 {
            self.running[worker] = None;
        }
        Some(unit)
    }

    /// Takes the second half of the longest stretch that a worker still has before it.
    fn half_of_another(&mut self) -> Option<Stretch> {
        let running = self.running.iter_mut().flatten().filter(|stretch| !stretch.is_one);
        let longest = running.max_by_key(|stretch| stretch.end.saturating_sub(stretch.next))?;
        let units = longest.end.saturating_sub(longest.next).div_ceil(self.unit_chunks);
        if units < 1 {
            return None;
        }
        let middle = longest.next + units / 2 * self.unit_chunks;
        let half = Stretch { next: middle, ..*longest };
        longest.end = middle;
        Some(half)
    }
}

/// The parts of 0..`end` that are not covered.
fn gaps(done: &[(u64, u64)], end: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut next = 0;
    for (first, after) in done {
        if *first > next {
            gaps.push((next, *first));
        }
        next = next.max(*after);
    }
    if next < end {
        gaps.push((next, end));
    }
    gaps
}

fn part(bytes: u64, chunks: u64, all: u64) -> u64 {
    (u128::from(bytes) * u128::from(chunks) / u128::from(all.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left() {
        assert_eq!(gaps(&[], 5), [(0, 5)]);
        assert_eq!(gaps(&[(0, 2), (3, 4)], 5), [(2, 3), (4, 5)]);
        assert_eq!(gaps(&[(0, 2), (2, 5)], 5), []);
    }

    fn queue(chunks: u64, is_one: bool, has_indexes: bool) -> Queue {
        let state = State {
            to_make: vec![0],
            to_index: Vec::new(),
            to_divide: Vec::new(),
            to_verify: Vec::new(),
            waiting: VecDeque::new(),
            makes_first: false,
            running: Vec::new(),
            tables: vec![TableState {
                chunks,
                chunks_left: chunks,
                is_one,
                is_transactional: true,
                has_indexes,
            }],
            open: 1,
            unit_chunks: 64,
            verifies: false,
            has_failed: false,
        };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// However many workers there are, every chunk is loaded once, and the index is built after the last.
    #[test]
    fn every_chunk_once() {
        for chunks in [65, 200, 1_000, 6_400] {
            let queue = queue(chunks, false, true);
            assert_eq!(queue.next(0), Job::Make(0));
            queue.made(0, 0);
            let mut loaded = Vec::new();
            for worker in [0, 1, 2, 0, 2].into_iter().cycle() {
                if loaded.iter().map(|unit: &Unit| unit.end - unit.first).sum::<u64>() == chunks {
                    break;
                }
                let Some(job) = queue.state().take(worker) else { continue };
                let Job::Fill(unit) = job else { panic!("{job:?}") };
                loaded.push(unit);
                queue.filled(worker, &unit);
            }
            let mut ranges: Vec<_> = loaded.iter().map(|unit| (unit.first, unit.end)).collect();
            ranges.sort_unstable();
            assert_eq!(gaps(&ranges, chunks), []);
            assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0));
            assert_eq!(queue.next(1), Job::Index(0));
            queue.done();
            assert_eq!(queue.next(1), Job::Over);
        }
    }

    /// Tables that another server may refuse are made before any is filled, the largest first in both cases.
    #[test]
    fn all_tables_before_the_first_rows() {
        let queue = queue(200, false, false);
        {
            let mut state = queue.state();
            state.makes_first = true;
            state.to_make = vec![1, 0];
            state.open = 2;
            let small = TableState { chunks: 3, chunks_left: 3, is_one: true, ..state.tables[0] };
            state.tables.push(small);
        }
        assert_eq!(queue.next(0), Job::Make(0));
        assert_eq!(queue.next(1), Job::Make(1));
        queue.made(0, 0);
        queue.made(1, 1);
        assert_eq!(queue.next(0), Job::Fill(Unit { table: 0, first: 0, end: 64, is_whole: false }));
        assert_eq!(queue.next(1), Job::Fill(Unit { table: 1, first: 0, end: 3, is_whole: true }));
    }

    /// A table filled in one transaction is one unit, even if it is empty.
    #[test]
    fn one_unit() {
        for chunks in [0, 3] {
            let queue = queue(chunks, true, false);
            assert_eq!(queue.next(0), Job::Make(0));
            queue.made(0, 0);
            let unit = Unit { table: 0, first: 0, end: chunks, is_whole: true };
            assert_eq!(queue.next(0), Job::Fill(unit));
            queue.filled(0, &unit);
            assert_eq!(queue.next(0), Job::Over);
        }
    }
}
