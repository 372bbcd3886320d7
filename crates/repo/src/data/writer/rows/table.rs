//! A table being written: its ranges in order, and what they left.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use holdfast_pipe::lock::{lock, read};

use super::{
    BackupWriter, FileProblem, RangeNo, TableSpec, WriteError,
    base::BaseTable,
    leaf::{LeafMaker, MadeLeaf, OpenEntry},
};
use crate::{
    data::writer::chunk::Ticket,
    format::{
        item::{Item, ItemMap},
        names::{ChunkRef, PackId, RunNo},
        rows::{DefinitionText, INLINE_ENTRIES_MAX, RowTotals, TableMap, TableRows},
    },
};

/// Placeholder for the place of a chunk that is not known yet. No run has this number.
pub(super) const UNPLACED: ChunkRef = ChunkRef { pack: PackId { run: RunNo(0), part: 0 }, ordinal: 0 };

pub(super) struct Table {
    pub(super) spec: TableSpec,
    pub(super) base: Option<Arc<BaseTable>>,
    pub(super) inner: Mutex<TableInner>,
}

pub(super) struct TableInner {
    pub(super) state: TableState,
    /// The ranges, by number.
    ranges: Vec<RangeState>,
    /// Numbers of the ranges, in the order of their rows.
    order: Vec<RangeNo>,
}

pub(super) enum TableState {
    Open,
    Ended { definition: DefinitionText, tickets: Vec<Arc<Ticket>> },
    Dropped,
}

/// The state of a range.
enum RangeState {
    /// Its place is reserved, but it has not begun.
    Reserved,
    /// It still takes rows.
    Open,
    /// It was given up, and these leaves of it are useless.
    GivenUp(Vec<MadeLeaf>),
    /// It has ended, and its last chunks wait for their places.
    Waiting(RowTotals),
    /// It ended with these few chunks, which are in no leaf.
    Few(RowTotals, Vec<OpenEntry>),
    /// It ended, and all its chunks are in these leaves.
    Made(RowTotals, Vec<MadeLeaf>),
}

impl RangeState {
    fn totals(&self) -> Option<RowTotals> {
        match self {
            Self::Reserved | Self::Open | Self::GivenUp(_) => None,
            Self::Waiting(totals) | Self::Few(totals, _) | Self::Made(totals, _) => Some(*totals),
        }
    }
}

impl Table {
    pub(super) fn new(spec: TableSpec, base: Option<Arc<BaseTable>>) -> Self {
        let inner = TableInner { state: TableState::Open, ranges: Vec::new(), order: Vec::new() };
        Self { spec, base, inner: Mutex::new(inner) }
    }

    pub(super) fn error(&self, problem: FileProblem) -> WriteError {
        WriteError::File { path: self.spec.path.clone(), problem }
    }

    /// Reserves the place of a range: right after another, or after all.
    pub(super) fn reserve_range(&self, after: Option<RangeNo>) -> Result<RangeNo, WriteError> {
        let mut inner = lock(&self.inner);
        if !matches!(inner.state, TableState::Open) {
            return Err(self.error(FileProblem::NotOpen));
        }
        let no = RangeNo(u32::try_from(inner.ranges.len()).map_err(|_| WriteError::Lost)?);
        let position = match after {
            None => inner.order.len(),
            Some(after) => {
                let before = inner.order.iter().position(|no| *no == after);
                before.ok_or_else(|| self.error(FileProblem::NoSuchRange))? + 1
            }
        };
        inner.order.insert(position, no);
        inner.ranges.push(RangeState::Reserved);
        Ok(no)
    }

    /// Begins a range. Returns its number, and whether it is the table's first.
    pub(super) fn begin_range(&self, reserved: Option<RangeNo>) -> Result<(RangeNo, bool), WriteError> {
        let no = match reserved {
            Some(no) => no,
            None => self.reserve_range(None)?,
        };
        let mut inner = lock(&self.inner);
        if !matches!(inner.state, TableState::Open) {
            return Err(self.error(FileProblem::NotOpen));
        }
        match inner.ranges.get_mut(no.0 as usize) {
            Some(range @ RangeState::Reserved) => *range = RangeState::Open,
            _ => return Err(self.error(FileProblem::NoSuchRange)),
        }
        Ok((no, no == RangeNo(0)))
    }

    fn set_range(&self, no: RangeNo, state: RangeState) {
        if let Some(range) = lock(&self.inner).ranges.get_mut(no.0 as usize) {
            *range = state;
        }
    }

    /// Gives up a range that will not be ended. Chunks that were marked as needed for it are taken back by
    /// means of its leaves, so the leaf being made is finished.
    pub(super) fn give_up(&self, writer: &BackupWriter, no: RangeNo, leaves: LeafMaker) {
        // Fails only if the writer has failed.
        if let Ok(made) = leaves.into_made(writer, self.base.as_deref()) {
            self.set_range(no, RangeState::GivenUp(made));
        }
    }

    pub(super) fn end(
        &self,
        definition: DefinitionText,
        tickets: Vec<Arc<Ticket>>,
    ) -> Result<RowTotals, WriteError> {
        let mut inner = lock(&self.inner);
        if !matches!(inner.state, TableState::Open) {
            return Err(self.error(FileProblem::NotOpen));
        }
        let mut totals = RowTotals::default();
        for range in &inner.ranges {
            let of_range = range.totals().ok_or_else(|| self.error(FileProblem::RangeNotEnded))?;
            totals = totals.and(of_range).ok_or(WriteError::Lost)?;
        }
        inner.state = TableState::Ended { definition, tickets };
        Ok(totals)
    }
}

/// What ended ranges left whose last chunks are not placed yet.
#[derive(Default)]
pub(in crate::data::writer) struct Tails {
    count: AtomicUsize,
    queue: Mutex<VecDeque<Tail>>,
}

struct Tail {
    table: Arc<Table>,
    no: RangeNo,
    totals: RowTotals,
    leaves: LeafMaker,
}

/// An item of a logical backup, complete except for the places of its last leaves.
pub(in crate::data::writer) struct PlacedTable {
    pub(in crate::data::writer) item: Item,
    /// Leaves of a table whose entries are not in the item.
    leaves: Vec<MadeLeaf>,
}

impl PlacedTable {
    pub(super) fn whole(item: Item) -> Self {
        Self { item, leaves: Vec::new() }
    }
}

impl BackupWriter {
    pub(super) fn end_range(
        &self,
        table: Arc<Table>,
        no: RangeNo,
        totals: RowTotals,
        mut leaves: LeafMaker,
    ) -> Result<(), WriteError> {
        if let Some(few) = leaves.take_few(INLINE_ENTRIES_MAX) {
            table.set_range(no, RangeState::Few(totals, few));
            return Ok(());
        }
        table.set_range(no, RangeState::Waiting(totals));
        let tails = &self.tables.tails;
        lock(&tails.queue).push_back(Tail { table, no, totals, leaves });
        tails.count.fetch_add(1, Ordering::Release);
        self.seal_tails()
    }

    /// Makes leaves of what ended ranges left, as far as their chunks are placed.
    pub(in crate::data::writer) fn seal_tails(&self) -> Result<(), WriteError> {
        let tails = &self.tables.tails;
        while tails.count.load(Ordering::Acquire) > 0 {
            let mut queue = lock(&tails.queue);
            if !queue.front().is_some_and(|tail| tail.leaves.is_placed()) {
                break;
            }
            let Some(Tail { table, no, totals, mut leaves }) = queue.pop_front() else { break };
            drop(queue);
            tails.count.fetch_sub(1, Ordering::Release);
            leaves.seal_rest(self, table.base.as_deref())?;
            let made = leaves.into_made(self, table.base.as_deref())?;
            table.set_range(no, RangeState::Made(totals, made));
        }
        Ok(())
    }

    /// The item of a table that has ended; `None` if the table was dropped.
    /// All chunks of its ranges must be placed.
    pub(super) fn place_table(&self, table: &Table) -> Result<Option<PlacedTable>, WriteError> {
        let mut inner = lock(&table.inner);
        let state = std::mem::replace(&mut inner.state, TableState::Dropped);
        let TableState::Ended { mut definition, tickets } = state else { return Ok(None) };
        self.settle_definition(&mut definition, &tickets)?;
        let order = std::mem::take(&mut inner.order);
        let mut ranges: Vec<Option<RangeState>> = inner.ranges.drain(..).map(Some).collect();
        drop(inner);
        let ranges = order.iter().map(|no| ranges.get_mut(no.0 as usize).and_then(Option::take));
        let ranges = ranges.collect::<Option<Vec<_>>>().ok_or(WriteError::Lost)?;
        let mut totals = RowTotals::default();
        let mut few = Some(0);
        for range in &ranges {
            totals = range.totals().and_then(|more| totals.and(more)).ok_or(WriteError::Lost)?;
            few = match range {
                RangeState::Few(_, entries) => few.map(|few| few + entries.len()),
                _ => None,
            };
        }
        let is_inline = few.is_some_and(|few| few <= INLINE_ENTRIES_MAX);
        let (mut inline, mut leaves) = (Vec::new(), LeafMaker::default());
        for range in ranges {
            match range {
                RangeState::Few(_, entries) if is_inline => {
                    for entry in entries {
                        let entry = entry.into_entry(self.run)?;
                        self.need_entry(&entry);
                        inline.push(entry);
                    }
                }
                RangeState::Few(_, entries) => {
                    for entry in entries {
                        leaves.push(entry);
                    }
                    leaves.seal_rest(self, table.base.as_deref())?;
                }
                RangeState::Made(_, made) => leaves.take_over(self, table.base.as_deref(), made)?,
                RangeState::Reserved | RangeState::Open | RangeState::GivenUp(_) | RangeState::Waiting(_) => {
                    return Err(WriteError::Lost);
                }
            }
        }
        let leaves = leaves.into_made(self, table.base.as_deref())?;
        let rows = match is_inline {
            true => TableRows::Inline(inline),
            false => TableRows::Leaves(Vec::new()),
        };
        let map = ItemMap::Table(Box::new(TableMap { definition, totals, rows }));
        let item = Item::logical(table.spec.path.clone(), totals.bytes, map);
        Ok(Some(PlacedTable { item, leaves }))
    }

    /// Completes the item, now that everything is placed.
    pub(in crate::data::writer) fn logical_item(&self, placed: PlacedTable) -> Result<Item, WriteError> {
        let PlacedTable { mut item, leaves } = placed;
        if let ItemMap::Table(map) = &mut item.map
            && let TableRows::Leaves(refs) = &mut map.rows
        {
            for leaf in &leaves {
                let leaf = leaf.leaf_ref(self.run)?;
                self.need_whole(leaf.chunk);
                if let Some(local) = &self.local {
                    local.keep(leaf.hash);
                }
                refs.push(leaf);
            }
        }
        Ok(item)
    }

    /// Leaves of dropped tables, whose entries are no longer needed.
    pub(in crate::data::writer) fn dropped_leaves(
        &self,
    ) -> Result<Vec<crate::format::rows::RowLeafRef>, WriteError> {
        let list = read(&self.tables.list);
        let mut dropped = Vec::new();
        for table in list.iter() {
            let mut inner = lock(&table.inner);
            if !matches!(inner.state, TableState::Dropped) {
                continue;
            }
            for range in inner.ranges.drain(..) {
                if let RangeState::Made(_, made) | RangeState::GivenUp(made) = range {
                    for leaf in made {
                        dropped.push(leaf.leaf_ref(self.run)?);
                    }
                }
            }
        }
        Ok(dropped)
    }
}
