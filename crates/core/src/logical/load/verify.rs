//! Whether what is on the target is what is in the backup: every row is read again, as a backup reads it.
//!
//! Large tables are read in ranges between first keys of chunks, by several sessions. Two predicates that are made of one
//! key complement each other, so every row is read exactly once where the target orders keys as the source did; where it
//! does not, the table is read in one piece.

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use holdfast_repo::{
    reader::Backup,
    rows::{RowTotals, RowsChecksum},
};

use super::{
    LoadOptions,
    link::Link,
    plan::{Plan, PlannedTable, named},
    target::Target,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    logical::{key::Place, objects, tables::Table},
    server::{
        Session, SqlError,
        raw::{RawReader, RowPart},
    },
};

/// Chunks of one range: about 32 MiB of rows.
const RANGE_CHUNKS: u64 = 128;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// A range of a table that is to be read.
struct Range {
    table: usize,
    condition: String,
}

struct Verifying<'a> {
    tables: Vec<Table>,
    /// The first is last.
    ranges: Mutex<Vec<Range>>,
    found: Mutex<Vec<RowTotals>>,
    failure: Mutex<Option<Error>>,
    told: Mutex<(Instant, u64)>,
    bytes_total: u64,
    listener: &'a dyn Listener,
    cancel: &'a Cancel,
}

/// Reads all tables again. Fails with the names of those that differ.
pub(super) fn verify(
    backup: &Backup,
    plan: &Plan,
    target: &Target,
    options: &LoadOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<u64> {
    let mut ranges = Vec::new();
    let mut tables = Vec::with_capacity(plan.tables.len());
    for (number, planned) in plan.tables.iter().enumerate() {
        let table = Table {
            definition: planned.definition.clone(),
            name: planned.name.clone(),
            bytes_estimated: planned.totals.bytes,
            rows_estimated: planned.totals.rows,
        };
        if planned.has_rows() {
            for condition in conditions(backup, planned, &table)? {
                ranges.push(Range { table: number, condition });
            }
        }
        tables.push(table);
    }
    // Tables that are read in one piece take longest.
    ranges.reverse();
    let verifying = Verifying {
        found: Mutex::new(vec![RowTotals::default(); tables.len()]),
        tables,
        ranges: Mutex::new(ranges),
        failure: Mutex::new(None),
        told: Mutex::new((Instant::now(), 0)),
        bytes_total: plan.tables.iter().map(|table| table.totals.bytes).sum(),
        listener,
        cancel,
    };
    thread::scope(|scope| {
        for number in 0..options.parallel.clamp(1, super::link::SESSIONS_MAX) {
            let verifying = &verifying;
            scope.spawn(move || {
                let outcome = Link::open(options, target, number)
                    .and_then(|mut link| verifying.work(&mut link.session));
                if let Err(error) = outcome {
                    verifying.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
        }
    });
    if let Some(error) = verifying.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let found = verifying.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut differing = Vec::new();
    for (table, found) in plan.tables.iter().zip(found) {
        if table.has_rows() && found != table.totals {
            let what = if found.rows == table.totals.rows {
                "other bytes in its rows".to_owned()
            } else {
                format!("{} rows instead of {}", found.rows, table.totals.rows)
            };
            differing.push(format!("{} ({what})", table.name));
        }
    }
    if differing.is_empty() {
        return Ok(plan.tables.iter().filter(|table| table.has_rows()).count() as u64);
    }
    let text = format!("what was loaded is not what is in the backup: {}", named(&differing));
    Err(Error::failed(text)
        .hinted("did somebody else write there? Load these tables anew: drop the database holdfast_load, then --table and --overwrite"))
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
        let behind = from.map(|from| format!("{} AND ", from.behind(table, true))).unwrap_or_default();
        conditions.push(format!(" WHERE {behind}{}", place.before(table)));
        from = Some(place);
    }
    conditions.push(from.map(|from| format!(" WHERE {}", from.behind(table, true))).unwrap_or_default());
    Ok(conditions)
}

impl Verifying<'_> {
    fn work(&self, session: &mut Session) -> Result<()> {
        objects::settle(session)?;
        let mut raw = RawReader::default();
        loop {
            self.cancel.check()?;
            if self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return Ok(());
            }
            let range = self.ranges.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(range) = range else { return Ok(()) };
            let table = &self.tables[range.table];
            let totals = self
                .read(session, &mut raw, table, &range.condition)
                .map_err(|error| error.context(format_args!("read table {} again", table.name)))?;
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let sum = found[range.table].and(totals);
            found[range.table] = sum.ok_or_else(|| Error::failed("more rows than can be"))?;
            drop(found);
            self.tell(totals.bytes);
        }
    }

    fn read(
        &self,
        session: &mut Session,
        raw: &mut RawReader,
        table: &Table,
        condition: &str,
    ) -> Result<RowTotals> {
        const ROWS_BETWEEN_CHECKS: u64 = 65_536;
        let query = format!("{}{condition}", table.select());
        let mut answer = raw.query(session, &query)?;
        if answer.columns() != table.definition.columns.len() {
            return Err(SqlError::unexpected("another number of columns").into());
        }
        let mut totals = RowTotals::default();
        let mut long: Option<(blake3::Hasher, u64)> = None;
        while let Some(part) = answer.next()? {
            match part {
                RowPart::Whole(row) => totals.add_row(row.len() as u64, RowsChecksum::of(row)),
                RowPart::First(piece) | RowPart::More(piece) => {
                    let (hasher, length) = long.get_or_insert_with(|| (blake3::Hasher::new(), 0));
                    hasher.update(piece);
                    *length += piece.len() as u64;
                }
                RowPart::Last(piece) => {
                    let (mut hasher, length) = long.take().unwrap_or_else(|| (blake3::Hasher::new(), 0));
                    hasher.update(piece);
                    totals.add_row(length + piece.len() as u64, RowsChecksum::of_hash(&hasher.finalize()));
                }
            }
            if totals.rows.is_multiple_of(ROWS_BETWEEN_CHECKS) {
                self.cancel.check()?;
            }
        }
        Ok(totals)
    }

    fn tell(&self, bytes: u64) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.1 += bytes;
        if told.0.elapsed() >= PROGRESS_INTERVAL {
            told.0 = Instant::now();
            let bytes_done = told.1;
            drop(told);
            let bytes_total = self.bytes_total.max(bytes_done);
            self.listener.event(Event::Progress { bytes_done, bytes_total });
        }
    }
}
