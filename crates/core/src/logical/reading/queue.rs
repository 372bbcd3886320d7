//! The queue of ranges: those to be read, those being read, and where they may be cut.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use holdfast_pipe::lock::lock;
use holdfast_repo::{
    data::writer::TableSpec,
    format::{
        item::ItemPath,
        rows::{RowTotals, RowsChecksum},
    },
};

use crate::{
    error::{Context, Error, Result},
    logical::{
        catalog::{key::Place, tables::Table},
        reading::tee::{ReservedRange, Tee, TeeTable},
        stored::definition::{Definition, Rows},
    },
};

/// About how much must be left of a range to make it worth cutting.
const CUT_BYTES_MIN: u64 = 16 << 20;

/// Where a range begins.
#[derive(Clone, Debug)]
pub(super) struct Begin {
    pub(super) place: Place,
    /// The chunk of the base that begins there.
    pub(super) base_chunk: Option<u64>,
}

/// Rows of a table that no reader has begun.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) table: usize,
    /// Its place among the table's ranges; `None` for the first.
    pub(super) reserved: Option<ReservedRange>,
    /// `None`: from the first row.
    pub(super) begin: Option<Begin>,
    /// `None`: to the last row.
    pub(super) end: Option<Place>,
    /// Chunks of the base that its rows were in.
    pub(super) base_chunks: Option<(u64, u64)>,
    pub(super) bytes_estimated: u64,
}

/// The number of a range that is being read. It is never reused, so a place found for a range that has ended
/// meanwhile goes to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunningNo(u64);

/// A range that is being read.
struct Running {
    table: usize,
    /// Where it begins, or the last row read.
    position: Option<Place>,
    end: Option<Place>,
    base_chunks: Option<(u64, u64)>,
    bytes_estimated: u64,
    bytes_done: u64,
    cutting: Cutting,
}

enum Cutting {
    Possible,
    /// A reader is looking for a place.
    Sought,
    /// A place was found.
    Offered(Begin),
    Impossible,
}

impl Running {
    /// Estimates the bytes left. The estimates of servers can be far too low.
    fn bytes_left(&self) -> u64 {
        self.bytes_estimated.saturating_sub(self.bytes_done).max(self.bytes_done / 8)
    }
}

/// A range that a place to cut is sought for.
#[derive(Debug)]
pub(super) struct Cut {
    /// The range.
    pub(super) running: RunningNo,
    pub(super) table: usize,
    pub(super) id: TeeTable,
    pub(super) position: Option<Place>,
    pub(super) end: Option<Place>,
    pub(super) base_chunks: Option<(u64, u64)>,
    /// Estimated percentage of the range that is read.
    pub(super) percent_done: u64,
}

/// What a reader does next.
pub(super) enum Next {
    Read(Range),
    Cut(Cut),
    /// Nothing for now: send something to the server, and ask again.
    Wait,
    Over,
}

/// Shared by all readers.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The next one to read comes last.
    waiting: Vec<Range>,
    running: BTreeMap<RunningNo, Running>,
    /// Ranges that are waiting or being read.
    open: usize,
    tables: Vec<TableState>,
    /// Locked tables that are not stored yet; `None` if there are none, or once their end was reported.
    locked_left: Option<usize>,
    ranges: u64,
    has_failed: bool,
}

struct TableState {
    id: Option<TeeTable>,
    is_locked: bool,
    can_be_cut: bool,
    /// Ranges that are waiting or being read.
    ranges_left: usize,
    totals: Option<RowTotals>,
}

impl Queue {
    pub(super) fn new(tables: &[Table], tee: &Tee<'_>) -> Result<Queue> {
        let mut waiting = Vec::with_capacity(tables.len());
        let mut states = Vec::with_capacity(tables.len());
        for (number, table) in tables.iter().enumerate() {
            let definition = &table.definition;
            let mut state = TableState {
                id: None,
                is_locked: definition.rows == Rows::Locked,
                can_be_cut: table.can_be_cut(),
                ranges_left: 1,
                totals: None,
            };
            if definition.rows == Rows::None {
                state.ranges_left = 0;
                state.totals = Some(end_table(tee, &begin_table(tee, table)?, table, None)?);
            } else {
                waiting.push(Range {
                    table: number,
                    reserved: None,
                    begin: None,
                    end: None,
                    base_chunks: None,
                    bytes_estimated: table.bytes_estimated,
                });
            }
            states.push(state);
        }
        waiting.sort_by_key(|range| (states[range.table].is_locked, range.bytes_estimated));
        let locked = states.iter().filter(|state| state.is_locked).count();
        let state = State {
            open: waiting.len(),
            waiting,
            running: BTreeMap::new(),
            tables: states,
            locked_left: (locked > 0).then_some(locked),
            ranges: 0,
            has_failed: false,
        };
        Ok(Queue { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The next step for a reader; waits for at most `patience`.
    pub(super) fn next(&self, patience: Duration) -> Next {
        let mut state = self.state();
        loop {
            if state.has_failed {
                return Next::Over;
            }
            if let Some(range) = state.waiting.pop() {
                return Next::Read(range);
            }
            if state.open == 0 {
                return Next::Over;
            }
            if let Some(cut) = state.choose_cut() {
                return Next::Cut(cut);
            }
            let (after, waited) =
                self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() {
                return Next::Wait;
            }
        }
    }

    /// The table of a range, begun if this is its first range.
    pub(super) fn table_id(
        &self,
        number: usize,
        begin: impl FnOnce() -> Result<TeeTable>,
    ) -> Result<TeeTable> {
        let mut state = self.state();
        let table = &mut state.tables[number];
        match &table.id {
            Some(id) => Ok(id.clone()),
            None => Ok(table.id.insert(begin()?).clone()),
        }
    }

    /// Notes that a range is being read from now on.
    pub(super) fn begun(&self, range: &Range, base_chunks: Option<(u64, u64)>) -> RunningNo {
        let mut state = self.state();
        let can_be_cut = state.tables[range.table].can_be_cut;
        let running = Running {
            table: range.table,
            position: range.begin.as_ref().map(|begin| begin.place.clone()),
            end: range.end.clone(),
            base_chunks,
            bytes_estimated: range.bytes_estimated,
            bytes_done: 0,
            cutting: if can_be_cut { Cutting::Possible } else { Cutting::Impossible },
        };
        let running_no = RunningNo(state.ranges);
        state.ranges += 1;
        state.running.insert(running_no, running);
        self.changed.notify_all();
        running_no
    }

    /// Notes the position of a range after a segment. Returns a place at which another reader would take it
    /// over.
    pub(super) fn reached(&self, running: RunningNo, position: &Place, bytes_done: u64) -> Option<Begin> {
        let mut state = self.state();
        let range = state.running.get_mut(&running)?;
        range.position = Some(position.clone());
        range.bytes_done = bytes_done;
        let Cutting::Offered(begin) = &range.cutting else {
            if range.bytes_left() >= CUT_BYTES_MIN {
                self.changed.notify_all();
            }
            return None;
        };
        let begin = begin.clone();
        range.cutting = Cutting::Possible;
        Some(begin)
    }

    /// Cuts a range at `begin`, which is ahead of its position and before its end: what follows becomes a
    /// range of its own, in its reserved place.
    pub(super) fn cut(&self, running: RunningNo, begin: Begin, reserved: ReservedRange) {
        let mut state = self.state();
        let Some(range) = state.running.get_mut(&running) else { return };
        let half = range.bytes_left() / 2;
        let end = range.end.replace(begin.place.clone());
        let base_chunks = range.base_chunks.and_then(|(first, last)| {
            let middle = begin.base_chunk?;
            range.base_chunks = Some((first, middle));
            Some((middle, last))
        });
        range.bytes_estimated = range.bytes_done + half;
        let table = range.table;
        state.tables[table].ranges_left += 1;
        state.open += 1;
        state.waiting.push(Range {
            table,
            reserved: Some(reserved),
            begin: Some(begin),
            end,
            base_chunks,
            bytes_estimated: half,
        });
        self.changed.notify_all();
    }

    /// Where the range ends now.
    pub(super) fn end_of(&self, running: RunningNo) -> Option<Place> {
        self.state().running.get(&running).and_then(|range| range.end.clone())
    }

    /// Notes the result of a search for a place to cut.
    pub(super) fn offer(&self, running: RunningNo, place: Option<Begin>) {
        let mut state = self.state();
        if let Some(range) = state.running.get_mut(&running)
            && matches!(range.cutting, Cutting::Sought)
        {
            range.cutting = place.map_or(Cutting::Impossible, Cutting::Offered);
        }
    }

    /// Notes that the range is read. Returns whether it was the table's last.
    pub(super) fn done(&self, running: RunningNo) -> bool {
        let mut state = self.state();
        let Some(range) = state.running.remove(&running) else { return false };
        state.open -= 1;
        let table = &mut state.tables[range.table];
        table.ranges_left -= 1;
        let is_last = table.ranges_left == 0;
        self.changed.notify_all();
        is_last
    }

    /// Notes that the table is stored, and that nothing more is asked of it.
    pub(super) fn ended(&self, number: usize, totals: RowTotals) {
        let mut state = self.state();
        let table = &mut state.tables[number];
        table.totals = Some(totals);
        if table.is_locked {
            state.locked_left = state.locked_left.map(|left| left.saturating_sub(1));
        }
    }

    /// Whether all locked tables are read. True only once.
    pub(super) fn locked_are_done(&self) -> bool {
        let mut state = self.state();
        let is_done = state.locked_left == Some(0);
        if is_done {
            state.locked_left = None;
        }
        is_done
    }

    /// Stops the queue: nothing more is begun.
    pub(super) fn fail(&self) {
        self.state().has_failed = true;
        self.changed.notify_all();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    /// Totals of all tables, and the number of ranges. Fails if a table was not read.
    pub(super) fn finished(&self) -> Result<(Vec<RowTotals>, u64)> {
        let state = self.state();
        let totals: Option<Vec<_>> = state.tables.iter().map(|table| table.totals).collect();
        match totals {
            Some(totals) => Ok((totals, state.ranges)),
            None => Err(Error::failed("a table was not read to its end")),
        }
    }
}

impl State {
    /// Chooses the best range to cut, if one is worth it.
    fn choose_cut(&mut self) -> Option<Cut> {
        let candidates = self.running.iter().filter_map(|(number, range)| {
            let is_possible = matches!(range.cutting, Cutting::Possible);
            (is_possible && range.bytes_left() >= CUT_BYTES_MIN).then_some((*number, range.bytes_left()))
        });
        let (number, left) = candidates.max_by_key(|(_, left)| *left)?;
        let range = self.running.get_mut(&number)?;
        range.cutting = Cutting::Sought;
        let id = self.tables[range.table].id.clone()?;
        let all = (range.bytes_done + left).max(1);
        Some(Cut {
            running: number,
            table: range.table,
            id,
            position: range.position.clone(),
            end: range.end.clone(),
            base_chunks: range.base_chunks,
            percent_done: range.bytes_done.saturating_mul(100) / all,
        })
    }
}

/// Begins a table in the backup.
pub(super) fn begin_table(tee: &Tee<'_>, table: &Table) -> Result<TeeTable> {
    let names = [table.name.schema.as_bytes(), table.name.table.as_bytes()];
    let spec = TableSpec {
        path: ItemPath::of_names(names).context("name what is stored")?,
        has_key: table.definition.key.is_some(),
    };
    tee.begin_table(&spec)
}

/// Ends a table. `computed` is the checksum of its rows with their computed columns.
pub(super) fn end_table(
    tee: &Tee<'_>,
    id: &TeeTable,
    table: &Table,
    computed: Option<RowsChecksum>,
) -> Result<RowTotals> {
    let mut definition = table.definition.clone();
    match (&mut definition.computed, computed) {
        (Some(definition), Some(sum)) => definition.note(sum),
        (none, _) => *none = None,
    }
    let definition = serde_json::to_vec(&Definition::Table(definition)).context("describe a table")?;
    tee.end_table(id, &definition)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::sync::Arc;

    use holdfast_repo::{
        Kind, LogName, Protection, Repo,
        data::writer::{BackupWriter, Foundation, WriterOptions},
        log::run::{Run, RunOptions},
        store::fs::FsStore,
    };

    use super::*;
    use crate::{
        logical::stored::definition::{
            ColumnDefinition, Direction, Form, KeyDefinition, Sql, TableDefinition,
        },
        server::TableName,
        taking::Writers,
    };

    fn table(name: &str) -> Table {
        let column = ColumnDefinition {
            name: "k".into(),
            column_type: "int".into(),
            form: Form::Number,
            charset: None,
        };
        let key = KeyDefinition {
            index: "PRIMARY".into(),
            directions: vec![Direction::Ascending],
            is_comparable: true,
        };
        let definition = TableDefinition {
            schema: "s".into(),
            name: name.into(),
            engine: "InnoDB".into(),
            create: Sql::default(),
            columns: vec![column],
            key: Some(key),
            rows: Rows::Consistent,
            has_history: false,
            condition: None,
            defaults: Vec::new(),
            computed: None,
        };
        let name = TableName { schema: "s".into(), table: name.into() };
        Table {
            definition,
            name,
            bytes_estimated: 4 * CUT_BYTES_MIN,
            rows_estimated: 1_000,
            misprinted_defaults: Vec::new(),
        }
    }

    /// A place found for a range that has ended meanwhile is not used for another range, which may be of
    /// another table.
    #[test]
    fn a_place_comes_too_late() {
        let dir = tempfile::tempdir().unwrap();
        let store = FsStore::create(dir.path().join("repo")).unwrap();
        let repo = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
        let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Logical };
        let run = Run::begin(&repo, &log, &RunOptions::of_this_process()).unwrap();
        let writer = BackupWriter::new(&run, &Foundation::default(), WriterOptions::default()).unwrap();
        let tables = [table("a"), table("b")];
        let writers = Writers::new([&writer]);
        let tee = Tee::new(&writers);
        let queue = Queue::new(&tables, &tee).unwrap();
        let read = || match queue.next(Duration::ZERO) {
            Next::Read(range) => range,
            _ => panic!("nothing to read"),
        };
        let cut = || match queue.next(Duration::ZERO) {
            Next::Cut(cut) => cut,
            _ => panic!("nothing to cut"),
        };
        let begin = |range: &Range| {
            let id = queue.table_id(range.table, || begin_table(&tee, &tables[range.table])).unwrap();
            let rows = tee.begin_range(&id, None, None).unwrap();
            (queue.begun(range, None), rows)
        };
        let place = |number: &str| {
            Some(Begin { place: Place::of_literals(vec![number.to_owned()]), base_chunk: None })
        };
        let (first, second) = (read(), read());
        let (running, rows) = begin(&first);
        let late = cut();
        rows.finish().unwrap();
        queue.done(running);
        let (running, _rows) = begin(&second);
        let sought = cut();
        queue.offer(late.running, place("7"));
        let position = Place::of_literals(vec!["1".to_owned()]);
        assert!(queue.reached(running, &position, 1).is_none());
        queue.offer(sought.running, place("8"));
        assert_eq!(queue.reached(running, &position, 2).unwrap().place, place("8").unwrap().place);
    }
}
