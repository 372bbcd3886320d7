//! Whether what is on the target is what is in the backup: every row is read again, as a backup reads it.
//!
//! Large tables are read in ranges between first keys of chunks, by several sessions. Two predicates that are made of one
//! key complement each other, so every row is read exactly once where the target orders keys as the source did; where it
//! does not, the table is read in one piece.
//!
//! Servers of different series print a zero below zero differently (MariaDB 10.11 as `0`, others as `-0`). Where that alone
//! can be why a table differs, both sides are read once more, without that sign.

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use holdfast_repo::{
    reader::{Backup, ReadRows},
    rows::{RowHashKey, RowHasher, RowTotals, RowsChecksum},
};

use super::{
    LoadOptions,
    link::Link,
    plan::{Plan, PlannedTable, named},
    progress::{Progress, Stage},
    target::Target,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    logical::{
        definition::{ColumnDefinition, Form},
        key::{Place, Values},
        objects,
        rows::each_row,
        tables::Table,
    },
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
    row_key: RowHashKey,
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

/// What was found.
pub(super) struct Verdict {
    /// Tables that are what they were.
    pub(super) verified: u64,
    /// Numbers of the plan's tables that are not, and what is wrong.
    pub(super) differing: Vec<(usize, String)>,
}

impl Verdict {
    /// What differs.
    pub(super) fn into_error(self, overwrite: bool) -> Error {
        let differing: Vec<String> = self.differing.into_iter().map(|(_, what)| what).collect();
        let text = format!("what was loaded is not what is in the backup: {}", named(&differing));
        Error::failed(text).hinted(if overwrite {
            "did somebody else write there? The same command drops these tables (--overwrite), and makes them anew"
        } else {
            "did somebody else write there? Drop these tables, if what is in them is not needed, and go on by the same \
             command: it makes them anew"
        })
    }
}

/// Reads all tables again, and says which of them differ.
pub(super) fn verify(
    backup: &Backup,
    plan: &Plan,
    target: &Target,
    options: &LoadOptions,
    progress: &Progress,
    (listener, cancel): (&dyn Listener, &Cancel),
) -> Result<Verdict> {
    // What was found to be right once may have been written to since.
    let is_open = |table: &PlannedTable| table.has_rows() && progress.stages[table.object] != Stage::Verified;
    let mut ranges = Vec::new();
    let mut tables = Vec::with_capacity(plan.tables.len());
    for (number, planned) in plan.tables.iter().enumerate() {
        let table = planned.as_read();
        if is_open(planned) {
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
        row_key: backup.row_key()?,
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
    for (number, (table, found)) in plan.tables.iter().zip(found).enumerate() {
        if !is_open(table) || found == table.totals {
            continue;
        }
        let is_same = found.rows == table.totals.rows
            && table.prints_zeros_otherwise
            && is_same_but_for_zeros(backup, table, target, options, cancel)?;
        if !is_same {
            let what = if found.rows == table.totals.rows {
                "other bytes in its rows".to_owned()
            } else {
                format!("{} rows instead of {}", found.rows, table.totals.rows)
            };
            differing.push((number, format!("{} ({what})", table.name)));
        }
    }
    let verified = plan.tables.iter().filter(|table| table.has_rows()).count() - differing.len();
    Ok(Verdict { verified: verified as u64, differing })
}

/// Whether the rows are the same but for the signs of zeros.
fn is_same_but_for_zeros(
    backup: &Backup,
    planned: &PlannedTable,
    target: &Target,
    options: &LoadOptions,
    cancel: &Cancel,
) -> Result<bool> {
    let columns = &planned.definition.columns;
    let reader = backup.table(&planned.item).ok_or_else(|| Error::failed("it holds no rows"))?;
    let row_key = backup.row_key()?;
    let (mut stored, mut there) = (RowsChecksum::default(), RowsChecksum::default());
    each_row(&reader, 0..reader.chunk_count(), ReadRows::default(), &|| cancel.check(), &mut |row| {
        stored = stored.and(without_signs(&row_key, columns, row));
        Ok(())
    })?;
    let mut link = Link::open(options, target, 0)?;
    objects::settle(&mut link.session)?;
    let mut raw = RawReader::default();
    let query = planned.as_read().select();
    let mut answer = raw.query(&mut link.session, &query)?;
    let mut long = Vec::new();
    while let Some(part) = answer.next()? {
        match part {
            RowPart::Whole(row) => there = there.and(without_signs(&row_key, columns, row)),
            RowPart::First(piece) | RowPart::More(piece) => long.extend_from_slice(piece),
            RowPart::Last(piece) => {
                long.extend_from_slice(piece);
                there = there.and(without_signs(&row_key, columns, &std::mem::take(&mut long)));
            }
        }
    }
    Ok(stored == there)
}

/// A sum of a row in which no zero has a sign.
fn without_signs(key: &RowHashKey, columns: &[ColumnDefinition], row: &[u8]) -> RowsChecksum {
    let mut hasher = key.begin();
    for (column, value) in columns.iter().zip(Values { bytes: row }) {
        let is_zero = |value: &[u8]| value.iter().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
        let value = value.map(|value| match value.strip_prefix(b"-") {
            Some(rest) if column.form == Form::Float && is_zero(value) => rest,
            _ => value,
        });
        hasher.update(&value.map_or(u64::MAX, |value| value.len() as u64).to_le_bytes());
        hasher.update(value.unwrap_or_default());
    }
    hasher.checksum()
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
        let mut long: Option<(RowHasher, u64)> = None;
        while let Some(part) = answer.next()? {
            match part {
                RowPart::Whole(row) => totals.add_row(row.len() as u64, self.row_key.checksum(row)),
                RowPart::First(piece) | RowPart::More(piece) => {
                    let (hasher, length) = long.get_or_insert_with(|| (self.row_key.begin(), 0));
                    hasher.update(piece);
                    *length += piece.len() as u64;
                }
                RowPart::Last(piece) => {
                    let (mut hasher, length) = long.take().unwrap_or_else(|| (self.row_key.begin(), 0));
                    hasher.update(piece);
                    totals.add_row(length + piece.len() as u64, hasher.checksum());
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

#[cfg(test)]
mod tests {
    use holdfast_pipe::HashKey;

    use super::*;

    /// A zero has no sign, anything else is what it is.
    #[test]
    fn zeros() {
        let column =
            |form| ColumnDefinition { name: "c".into(), column_type: "double".into(), form, charset: None };
        let key = RowHashKey::new(&HashKey::new([7; 32]));
        let of = |columns: &[ColumnDefinition], row: &[u8]| without_signs(&key, columns, row);
        let (float, text) = ([column(Form::Float)], [column(Form::Text)]);
        assert_eq!(of(&float, b"\x02-0"), of(&float, b"\x010"));
        assert_eq!(of(&float, b"\x04-0.0"), of(&float, b"\x030.0"));
        assert_ne!(of(&float, b"\x02-1"), of(&float, b"\x011"));
        assert_ne!(of(&float, b"\xFB"), of(&float, b"\x00"));
        assert_ne!(of(&text, b"\x02-0"), of(&text, b"\x010"));
    }
}
