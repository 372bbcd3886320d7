//! Reads the rows that are to replace existing ones, before the first of those is dropped: a damaged pack, or
//! a store that fails, must not cost the user both.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use holdfast_pipe::lock::{into_inner, lock};
use holdfast_repo::{
    data::reader::{Backup, ReadRows},
    format::rows::RowTotals,
};

use super::{
    LoadOptions,
    object::Stage,
    plan::{Plan, PlannedTable},
    target::Target,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Listener},
    logical::{
        crew,
        stored::rows::{as_stored, each_row},
    },
    meter::Meter,
};

/// Chunks that are read at once: about 32 MiB of rows.
const RANGE_CHUNKS: u64 = 128;

/// Tables with rows that take the place of an object that this load has not made.
pub(super) fn replacing<'a>(
    plan: &'a Plan,
    target: &Target,
    stages: Option<&[Stage]>,
) -> Vec<&'a PlannedTable> {
    let is_ours = |table: &PlannedTable| stages.is_some_and(|stages| stages[table.object] != Stage::Planned);
    let is_there = |table: &PlannedTable| target.existing(&table.name.schema, &table.name.table).is_some();
    plan.tables.iter().filter(|table| table.has_rows() && !is_ours(table) && is_there(table)).collect()
}

/// Reads every chunk of these tables, and checks that they are the rows that were saved.
pub(super) fn read(
    backup: &Backup,
    tables: &[&PlannedTable],
    options: &LoadOptions,
    (listener, cancel): (&dyn Listener, &Cancel),
) -> Result<()> {
    let not_dropped = |table: &PlannedTable, error: Error| {
        error
            .context(format_args!(
                "read the rows of table {}, before the existing one is dropped",
                table.name
            ))
            .also_hinted("the existing table stays")
    };
    let reader = |table: &PlannedTable| {
        backup.table(&table.item).ok_or_else(|| not_dropped(table, Error::failed("it holds no rows")))
    };
    let mut ranges: Vec<(usize, Range<u64>)> = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        let end = reader(table)?.chunk_count();
        let firsts = (0..end).step_by(RANGE_CHUNKS as usize);
        ranges.extend(firsts.map(|first| (number, first..end.min(first + RANGE_CHUNKS))));
    }
    let meter = Meter::new(listener, tables.iter().map(|table| table.totals.bytes).sum());
    let workers = options.parallel.clamp(1, super::link::SESSIONS_MAX).min(ranges.len());
    let ranges = Mutex::new(ranges);
    let found = Mutex::new(vec![RowTotals::default(); tables.len()]);
    let has_failed = AtomicBool::new(false);
    crew::all(
        0..workers,
        || has_failed.store(true, Relaxed),
        |_| {
            loop {
                let Some((number, chunks)) = lock(&ranges).pop() else { return Ok(()) };
                let table = tables[number];
                let go_on = || {
                    cancel.check()?;
                    match has_failed.load(Relaxed) {
                        true => Err(Error::failed("another thread has failed")),
                        false => Ok(()),
                    }
                };
                let read = each_row(&reader(table)?, chunks, ReadRows::default(), &go_on, &mut |_| Ok(()))
                    .map_err(|error| not_dropped(table, error))?;
                meter.add(read.bytes);
                let mut found = lock(&found);
                found[number] =
                    found[number].and(read).ok_or_else(|| Error::failed("more rows than can be"))?;
            }
        },
    )?;
    for (table, found) in tables.iter().zip(into_inner(found)) {
        as_stored(&reader(table)?, found).map_err(|error| not_dropped(table, error))?;
    }
    Ok(())
}
