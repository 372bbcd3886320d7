//! Writes rows into files: tables are cut at chunk borders into parts of about one size, and several threads
//! write them.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crossbeam_channel::bounded;
use holdfast_pipe::lock::{into_inner, lock};
use holdfast_repo::{
    data::reader::{Backup, ReadRows, TableReader},
    format::rows::RowTotals,
};

use super::{ExportOptions, Exported, Table, place::Place};
use crate::{
    error::{Error, Result},
    event::Cancel,
    logical::stored::rows::{as_stored, each_row},
    meter::Meter,
};

/// The rows for one file.
pub(super) struct Part<'a> {
    pub(super) table: &'a Table,
    /// Counted from 0 within its table.
    pub(super) number: u32,
    reader: &'a TableReader<'a>,
    chunks: Range<u64>,
}

impl Part<'_> {
    /// Calls `each` with the rows.
    pub(super) fn each_row(
        &self,
        cancel: &Cancel,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<RowTotals> {
        each_row(self.reader, self.chunks.clone(), ReadRows::default(), &|| cancel.check(), each)
    }
}

/// Knows what a file with rows contains.
pub(super) trait RowsLayout: Sync {
    /// Writes a file. Returns the totals of its rows, and its size.
    fn part(&self, place: &Place, part: &Part<'_>, cancel: &Cancel) -> Result<(RowTotals, u64)>;
}

/// Writes the rows of all tables. Returns the number of files of each.
pub(super) fn write_all(
    (backup, tables, options): (&Backup, &[Table], &ExportOptions),
    layout: &dyn RowsLayout,
    place: &Place,
    meter: &Meter<'_>,
    done: &mut Exported,
    cancel: &Cancel,
) -> Result<Vec<u32>> {
    let readers = tables
        .iter()
        .map(|table| backup.table(&table.item).ok_or_else(|| table.named(Error::failed("it holds no rows"))))
        .collect::<Result<Vec<_>>>()?;
    let written: Vec<Mutex<RowTotals>> = tables.iter().map(|_| Mutex::default()).collect();
    let threads = options.parallel.max(1);
    let (jobs, work) = bounded::<(usize, Part<'_>)>(threads);
    let has_failed = AtomicBool::new(false);
    let mut files = vec![0; tables.len()];
    thread::scope(|scope| -> Result<()> {
        // Disconnected before the scope waits for its threads, however this ends.
        let jobs = jobs;
        let write = || -> Result<(u64, u64)> {
            let mut sum = (0, 0);
            for (table, part) in &work {
                if has_failed.load(Ordering::Relaxed) {
                    break;
                }
                let (totals, bytes) = layout
                    .part(place, &part, cancel)
                    .inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
                    .map_err(|error| place.explain(part.table.named(error)))?;
                let mut all = lock(&written[table]);
                *all = all.and(totals).ok_or_else(|| part.table.named(Error::failed("too many rows")))?;
                meter.add(totals.bytes);
                sum = (sum.0 + 1, sum.1 + bytes);
            }
            Ok(sum)
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
        let mut give = || -> Result<()> {
            for (place, (table, reader)) in tables.iter().zip(&readers).enumerate() {
                for chunks in ranges(reader, options.file_bytes) {
                    let chunks = chunks.map_err(|error| table.named(error))?;
                    let part = Part { table, number: files[place], reader, chunks };
                    files[place] += 1;
                    if has_failed.load(Ordering::Relaxed) || jobs.send((place, part)).is_err() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        };
        let given = give().inspect_err(|_| has_failed.store(true, Ordering::Relaxed));
        drop(jobs);
        for worker in workers {
            let (files, bytes) =
                worker.join().map_err(|_| Error::failed("a worker thread ended unexpectedly"))??;
            done.files += files;
            done.bytes += bytes;
        }
        given
    })?;
    for ((table, reader), written) in tables.iter().zip(&readers).zip(written) {
        let written = into_inner(written);
        done.rows += as_stored(reader, written).map_err(|error| table.named(error))?.rows;
    }
    Ok(files)
}

/// Ranges of chunks for files of about this many bytes of rows.
fn ranges<'r>(reader: &'r TableReader<'_>, bytes: u64) -> impl Iterator<Item = Result<Range<u64>>> + 'r {
    let end = reader.chunk_count();
    let mut entries = reader.chunks(0..end);
    let mut begin = 0;
    std::iter::from_fn(move || {
        let mut sum = 0;
        for entry in entries.by_ref() {
            let (number, entry) = match entry {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            sum += entry.totals.bytes;
            if sum >= bytes || number + 1 == end {
                let range = begin..number + 1;
                begin = number + 1;
                return Some(Ok(range));
            }
        }
        None
    })
}
