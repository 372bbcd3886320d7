//! Checks whether the target holds what the backup holds: every row is read again, as a backup reads it.
//!
//! Large tables are read in ranges between first keys of chunks, by several sessions. Two predicates made
//! from one key complement each other, so every row is read exactly once if the target orders keys as the
//! source did; if it does not, the table is read in one piece.
//!
//! Tables with transactions are read while their indexes are built, which changes no row; the others at the
//! end.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use holdfast_pipe::lock::{into_inner, lock};
use holdfast_repo::{
    data::reader::Backup,
    format::rows::{RowHashKey, RowHasher, RowTotals, RowsChecksum},
};

use super::{
    LoadOptions, alike,
    alike::Alike,
    link::Link,
    object::Stage,
    plan::{Adaptation, Plan, PlannedTable, named},
    progress::Progress,
    target::Target,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Listener},
    logical::{
        catalog::{self, computed::ComputedRows, key::Place, tables::Table},
        crew,
    },
    meter::Meter,
    server::{
        Session, SqlError,
        bulk::{RawReader, RowPart},
    },
};

/// Chunks of one range: about 32 MiB of rows.
const RANGE_CHUNKS: u64 = 128;

/// A range of a table to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) table: usize,
    condition: String,
}

/// Reads tables again, in any session that has time for it.
pub(super) struct Verifying<'a> {
    backup: &'a Backup,
    plan: &'a Plan,
    row_key: RowHashKey,
    tables: Vec<Table>,
    /// By table; `None` if its ranges were not given out yet.
    found: Mutex<Vec<Option<Found>>>,
    cancel: &'a Cancel,
}

/// Totals of rows that were read.
#[derive(Clone, Copy, Default)]
struct Found {
    totals: RowTotals,
    /// Checksum of the rows with their computed columns.
    computed: RowsChecksum,
}

/// The result of reading again.
pub(super) struct Verdict {
    /// Number of tables that are as they were.
    pub(super) verified: u64,
    /// Tables that are not, by their number in the plan, and what is wrong.
    pub(super) differing: Vec<(usize, String)>,
    /// Tables in which only computed values differ.
    pub(super) computed: Vec<(usize, Adaptation)>,
    /// What was not compared in tables that are as they were.
    pub(super) adapted: Vec<Adaptation>,
}

impl Verdict {
    /// The error that names what differs.
    pub(super) fn into_error(self, overwrite: bool) -> Error {
        let differing: Vec<String> = self.differing.into_iter().map(|(_, what)| what).collect();
        let text = format!("the loaded tables differ from the backup: {}", named(&differing));
        Error::failed(text).hinted(if overwrite {
            "did another session write there? The same command drops these tables (--overwrite) and makes them again"
        } else {
            "did another session write there? Drop these tables if nothing in them is needed, then run the same command \
             again: it makes them again"
        })
    }
}

/// The error for computed values that are not what the source had.
pub(super) fn computed_otherwise(what: &[Adaptation]) -> Error {
    Error::failed(format!("the server computed values that differ from the source's: {}", named(what))).hinted(
        "all other columns are as they were. Computed values depend on settings of the session that wrote the row, on the \
         date and time zone then, and on the server's version: if the values computed here are acceptable, run the same \
         command with --leave-out",
    )
}

/// `WHERE` of each range of a table.
fn conditions(backup: &Backup, planned: &PlannedTable, table: &Table) -> Result<Vec<String>> {
    let is_cut = table.can_be_cut()
        && planned.keeps_order
        && !planned.definition.has_history
        && planned.chunks > RANGE_CHUNKS;
    if !is_cut {
        return Ok(vec![String::new()]);
    }
    let Some(reader) = backup.table(&planned.item) else { return Ok(Vec::new()) };
    let mut places: Vec<Place> = Vec::new();
    let mut next = RANGE_CHUNKS;
    for chunk in reader.chunks(0..reader.chunk_count()) {
        let (number, entry) = chunk?;
        if number < next {
            continue;
        }
        if let Some(place) = entry.key.as_deref().and_then(|key| Place::of_row(table, key).ok()) {
            places.push(place);
            next = number + RANGE_CHUNKS;
        }
    }
    let mut conditions = Vec::with_capacity(places.len() + 1);
    let mut from: Option<&Place> = None;
    for place in &places {
        let after = from.map(|from| format!("{} AND ", from.after(table, true))).unwrap_or_default();
        conditions.push(format!(" WHERE {after}{}", place.before(table)));
        from = Some(place);
    }
    conditions.push(from.map(|from| format!(" WHERE {}", from.after(table, true))).unwrap_or_default());
    Ok(conditions)
}

impl<'a> Verifying<'a> {
    pub(super) fn new(backup: &'a Backup, plan: &'a Plan, cancel: &'a Cancel) -> Result<Self> {
        Ok(Self {
            backup,
            plan,
            row_key: backup.row_key()?,
            tables: plan.tables.iter().map(PlannedTable::as_read).collect(),
            found: Mutex::new(vec![None; plan.tables.len()]),
            cancel,
        })
    }

    fn found(&self) -> MutexGuard<'_, Vec<Option<Found>>> {
        lock(&self.found)
    }

    /// The ranges in which a table is read.
    fn divide(&self, number: usize) -> Result<Vec<Range>> {
        let conditions = conditions(self.backup, &self.plan.tables[number], &self.tables[number])?;
        Ok(conditions.into_iter().map(|condition| Range { table: number, condition }).collect())
    }

    /// The ranges in which a table is read while its indexes may be built: none if the builder would wait long for a
    /// reader. If there are any, all of them must be read.
    pub(super) fn divide_for_now(&self, number: usize) -> Result<Vec<Range>> {
        let table = &self.plan.tables[number];
        if !table.has_rows() {
            return Ok(Vec::new());
        }
        let ranges = self.divide(number)?;
        if ranges.len() < 2 && table.chunks > RANGE_CHUNKS {
            return Ok(Vec::new());
        }
        self.found()[number] = Some(Found::default());
        Ok(ranges)
    }

    /// Reads a range.
    pub(super) fn read(&self, session: &mut Session, raw: &mut RawReader, range: &Range) -> Result<u64> {
        let table = &self.plan.tables[range.table];
        let read = self
            .totals(session, raw, range)
            .map_err(|error| error.context(format_args!("read table {} again", table.name)))?;
        let mut found = self.found();
        let before = found[range.table].unwrap_or_default();
        let totals = before.totals.and(read.totals).ok_or_else(|| Error::failed("more rows than can be"))?;
        found[range.table] = Some(Found { totals, computed: before.computed.and(read.computed) });
        Ok(read.totals.bytes)
    }

    fn totals(&self, session: &mut Session, raw: &mut RawReader, range: &Range) -> Result<Found> {
        const ROWS_BETWEEN_CHECKS: u64 = 65_536;
        let planned = &self.plan.tables[range.table];
        let query = format!("{}{}", planned.select_computed(), range.condition);
        let mut computed = ComputedRows::of(&self.tables[range.table]);
        let mut answer = raw.query(session, &query)?;
        if answer.columns() != planned.definition.columns.len() + planned.computed_columns().len() {
            return Err(SqlError::unexpected("another number of columns").into());
        }
        let mut totals = RowTotals::default();
        let mut long: Option<(RowHasher, u64)> = None;
        while let Some(part) = answer.next()? {
            match part {
                RowPart::Whole(row) => {
                    let row = match &mut computed {
                        Some(computed) => computed.row(row)?,
                        None => row,
                    };
                    totals.add_row(row.len() as u64, self.row_key.checksum(row));
                }
                RowPart::First(piece) => {
                    let piece = computed.as_mut().map_or(piece, |computed| computed.first(piece));
                    let (hasher, length) = long.insert((self.row_key.begin(), 0));
                    hasher.update(piece);
                    *length += piece.len() as u64;
                }
                RowPart::More(piece) => {
                    let piece = computed.as_mut().map_or(piece, |computed| computed.more(piece));
                    let (hasher, length) = long.get_or_insert_with(|| (self.row_key.begin(), 0));
                    hasher.update(piece);
                    *length += piece.len() as u64;
                }
                RowPart::Last(piece) => {
                    let piece = computed.as_mut().map_or(piece, |computed| computed.more(piece));
                    let (mut hasher, length) = long.take().unwrap_or_else(|| (self.row_key.begin(), 0));
                    hasher.update(piece);
                    totals.add_row(length + piece.len() as u64, hasher.checksum());
                    if let Some(computed) = &mut computed {
                        computed.end()?;
                    }
                }
            }
            if totals.rows.is_multiple_of(ROWS_BETWEEN_CHECKS) {
                self.cancel.check()?;
            }
        }
        let computed = computed.map(|computed| computed.sum()).unwrap_or_default();
        Ok(Found { totals, computed })
    }

    /// Reads what was not read yet, and tells which tables differ.
    pub(super) fn rest(
        self,
        target: &Target,
        options: &LoadOptions,
        progress: &Progress,
        listener: &dyn Listener,
    ) -> Result<Verdict> {
        // A table that was right once may have been written to since.
        let is_open =
            |table: &PlannedTable| table.has_rows() && progress.stages[table.object] != Stage::Verified;
        let mut ranges = Vec::new();
        let mut bytes_total = 0;
        for (number, table) in self.plan.tables.iter().enumerate() {
            if is_open(table) && self.found()[number].is_none() {
                let of_table = self.divide(number)?;
                let bytes = table.totals.bytes / of_table.len().max(1) as u64;
                ranges.extend(of_table.into_iter().map(|range| (bytes, range)));
                bytes_total += table.totals.bytes;
            }
        }
        // Large tables that are read in one piece take longest.
        ranges.sort_by_key(|(bytes, _)| *bytes);
        let rest = Rest {
            ranges: Mutex::new(ranges.into_iter().map(|(_, range)| range).collect()),
            has_failed: AtomicBool::new(false),
            meter: Meter::new(listener, bytes_total),
        };
        let sessions = options.parallel.clamp(1, super::link::SESSIONS_MAX).min(rest.ranges().len());
        crew::all(
            0..sessions,
            || rest.has_failed.store(true, Relaxed),
            |number| rest.work(&self, &mut Link::open(options, target, number)?.session),
        )?;
        self.verdict(target, options, is_open)
    }

    fn verdict(
        self,
        target: &Target,
        options: &LoadOptions,
        is_open: impl Fn(&PlannedTable) -> bool,
    ) -> Result<Verdict> {
        let Self { backup, plan, found, cancel, .. } = self;
        let found = into_inner(found);
        let (mut differing, mut computed, mut adapted) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (table, found)) in plan.tables.iter().zip(found).enumerate() {
            let Found { totals: found, computed: sum } = found.unwrap_or_default();
            if !is_open(table) {
                continue;
            }
            if found == table.totals {
                if table.definition.computed.as_ref().is_some_and(|computed| !computed.is(sum)) {
                    computed.push((number, table.computed_otherwise()));
                }
                continue;
            }
            let may_be_alike =
                found.rows == table.totals.rows && (table.prints_zeros_otherwise || table.parses_documents);
            let alike = if may_be_alike {
                alike::compare(backup, table, target, options, cancel)
                    .map_err(|error| error.context(format_args!("compare table {}", table.name)))?
            } else {
                Alike::No
            };
            if alike == Alike::ButForNumbersInDocuments {
                let what = "numbers within JSON that are not integers are as the server parses them: decimals have \
                            become doubles; everything else was compared";
                adapted.push(Adaptation { object: format!("table {}", table.name), what: what.to_owned() });
            }
            if alike != Alike::No && table.definition.computed.is_some() {
                let what = "the values of its stored computed columns were not compared, since its rows are read differently here";
                adapted.push(Adaptation { object: format!("table {}", table.name), what: what.to_owned() });
            }
            if alike == Alike::No {
                let what = if found.rows == table.totals.rows {
                    "other bytes in its rows".to_owned()
                } else {
                    format!("{} rows instead of {}", found.rows, table.totals.rows)
                };
                differing.push((number, format!("{} ({what})", table.name)));
            }
        }
        let verified = plan.tables.iter().filter(|table| table.has_rows()).count() - differing.len();
        Ok(Verdict { verified: verified as u64, differing, computed, adapted })
    }
}

/// What is left to be read once nothing else is to be done.
struct Rest<'a> {
    /// The largest comes last.
    ranges: Mutex<Vec<Range>>,
    has_failed: AtomicBool,
    meter: Meter<'a>,
}

impl Rest<'_> {
    fn ranges(&self) -> MutexGuard<'_, Vec<Range>> {
        lock(&self.ranges)
    }

    fn work(&self, verifying: &Verifying<'_>, session: &mut Session) -> Result<()> {
        catalog::configure(session)?;
        let mut raw = RawReader::default();
        loop {
            verifying.cancel.check()?;
            if self.has_failed.load(Relaxed) {
                return Ok(());
            }
            let range = self.ranges().pop();
            let Some(range) = range else { return Ok(()) };
            self.meter.add(verifying.read(session, &mut raw, &range)?);
        }
    }
}
