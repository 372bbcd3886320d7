//! Reads one range of a table from the server into the repositories.

use std::{
    net::Shutdown,
    sync::{
        atomic::Ordering::Relaxed,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use holdfast_pipe::lock::lock;

use super::{
    Reading,
    between::{condition, fitting, is_within, order},
    queue::{Range, RunningNo, begin_table, end_table},
};
use crate::{
    error::{Error, Result},
    logical::{
        catalog::{computed::ComputedRows, key::Place, tables::Table},
        reading::tee::{TeeRange, TeeTable},
        stored::{
            definition::{Form, Rows},
            rows::Values,
        },
    },
    server::{
        Session, SqlError,
        bulk::{self, RawReader, RowPart},
        code::{DEFINITION_CHANGED, NOT_OF_CHARSET},
    },
};

/// A table with at least this many chunks in the base is cut at their borders.
const BASE_CHUNKS_MIN: u64 = 4;
/// About how much one statement reads.
const SEGMENT_BYTES: u64 = 8 << 20;
const SEGMENT_ROWS_MIN: u64 = 500;
const SEGMENT_ROWS_MAX: u64 = 2_000_000;
/// Rows of the first segment if nothing is known of their length.
const SEGMENT_ROWS_FIRST: u64 = 10_000;
/// How many rows to read between two checks whether they are still wanted.
const ROWS_BETWEEN_CHECKS: u64 = 4_096;
/// How often to check, while rows are counted, whether that is still wanted.
const COUNT_CHECKED_EVERY: Duration = Duration::from_millis(300);
/// How many bytes to read at once, however low the rate.
const THROTTLED_BYTES: u64 = 256 << 10;

impl Reading<'_> {
    pub(super) fn read_range(&self, session: &mut Session, raw: &mut RawReader, range: Range) -> Result<()> {
        let table = &self.tables[range.table];
        let id = self.queue.table_id(range.table, || begin_table(self.tee, table))?;
        let base_chunks = match (range.base_chunks, &range.begin) {
            (None, None) if table.can_be_cut() => self.base_chunks(&id)?,
            (known, _) => known,
        };
        let base_chunk = range.begin.as_ref().and_then(|begin| begin.base_chunk);
        let mut rows = self.tee.begin_range(&id, range.reserved.as_ref(), base_chunk)?;
        let running = self.queue.begun(&range, base_chunks);
        let mut computed = ComputedRows::of(table);
        self.read_segments(session, raw, (&range, &id, running), (&mut rows, computed.as_mut()))?;
        rows.finish()?;
        if let Some(computed) = &computed {
            let mut sum = lock(&self.computed[range.table]);
            *sum = sum.and(computed.sum());
        }
        if self.queue.done(running) {
            let sum = computed.map(|_| *lock(&self.computed[range.table]));
            let totals = end_table(self.tee, &id, table, sum)?;
            if self.in_parts[range.table].load(Relaxed) && may_lose_rows(table) {
                refuse_others(totals.rows, self.count(session, table)?)?;
            }
            self.queue.ended(range.table, totals);
        }
        Ok(())
    }

    fn read_segments(
        &self,
        session: &mut Session,
        raw: &mut RawReader,
        (range, id, running): (&Range, &TeeTable, RunningNo),
        (rows, mut computed): (&mut TeeRange<'_>, Option<&mut ComputedRows>),
    ) -> Result<()> {
        let table = &self.tables[range.table];
        let mut from = range.begin.as_ref().map(|begin| begin.place.after(table, true));
        let mut limit = table.can_be_cut().then(|| first_limit(table));
        let (mut rows_done, mut bytes_done) = (0, 0);
        loop {
            let end = self.queue.end_of(running);
            let query = query(table, from.as_deref(), end.as_ref(), limit);
            let mut segment = Segment { rows: 0, bytes: 0, throttled: 0, last: Vec::new() };
            let to = (&mut *rows, computed.as_deref_mut());
            self.read_segment(session, raw, table, &query, &mut segment, to)?;
            rows_done += segment.rows;
            bytes_done += segment.bytes;
            self.meter.add(segment.bytes);
            if limit.is_none_or(|limit| segment.rows < limit) {
                return Ok(());
            }
            let position = Place::of_row(table, &segment.last)?;
            if let Some(begin) = self.queue.reached(running, &position, bytes_done) {
                let is_within = is_within(session, table, &begin.place, Some(&position), end.as_ref());
                if fitting(is_within)?.unwrap_or(false) {
                    // Reserved by this reader, after the rows it has read, so that the places are in the
                    // order of the rows.
                    let reserved = self.tee.reserve_range(id, rows)?;
                    self.queue.cut(running, begin, reserved);
                }
            }
            self.in_parts[range.table].store(true, Relaxed);
            from = Some(position.after(table, false));
            let row_bytes = (bytes_done / rows_done.max(1)).max(1);
            limit = Some((SEGMENT_BYTES / row_bytes).clamp(SEGMENT_ROWS_MIN, SEGMENT_ROWS_MAX));
        }
    }

    fn read_segment(
        &self,
        session: &mut Session,
        raw: &mut RawReader,
        table: &Table,
        query: &str,
        segment: &mut Segment,
        (rows, mut computed): (&mut TeeRange<'_>, Option<&mut ComputedRows>),
    ) -> Result<()> {
        self.check()?;
        self.statements.fetch_add(1, Relaxed);
        let key_columns = table.key_columns().len();
        let mut answer = raw.query(session, query).map_err(explained)?;
        if answer.columns() != table.definition.columns.len() + table.computed_columns().len() {
            return Err(SqlError::unexpected("another number of columns").into());
        }
        while let Some(part) = answer.next().map_err(explained)? {
            match part {
                RowPart::Whole(row) => {
                    let row = match &mut computed {
                        Some(computed) => computed.row(row)?,
                        None => row,
                    };
                    let key = key_of(row, key_columns)?;
                    rows.row(key, row)?;
                    segment.note(key, row.len());
                }
                RowPart::First(piece) => {
                    let piece = computed.as_mut().map_or(piece, |computed| computed.first(piece));
                    let key = key_of(piece, key_columns)?.to_vec();
                    let mut bytes = piece.len();
                    // Only its computed values made it long.
                    let is_whole = computed.as_ref().is_some_and(|computed| computed.is_behind_columns());
                    let mut long = None;
                    if is_whole {
                        rows.row(&key, piece)?;
                    } else {
                        long.insert(rows.long_row()).piece(piece)?;
                    }
                    loop {
                        let (piece, is_last) = match answer.next().map_err(explained)? {
                            Some(RowPart::More(piece)) => (piece, false),
                            Some(RowPart::Last(piece)) => (piece, true),
                            _ => return Err(SqlError::unexpected("a row without an end").into()),
                        };
                        let piece = computed.as_mut().map_or(piece, |computed| computed.more(piece));
                        bytes += piece.len();
                        if let Some(long) = &mut long {
                            long.piece(piece)?;
                        }
                        if is_last {
                            break;
                        }
                    }
                    if let Some(computed) = &mut computed {
                        computed.end()?;
                    }
                    if let Some(long) = long {
                        long.end(&key)?;
                    }
                    segment.note(&key, bytes);
                }
                RowPart::More(_) | RowPart::Last(_) => {
                    return Err(SqlError::unexpected("a row without a beginning").into());
                }
            }
            if segment.rows.is_multiple_of(ROWS_BETWEEN_CHECKS) {
                self.check()?;
            }
            if segment.bytes - segment.throttled >= THROTTLED_BYTES {
                self.throttle(table, segment)?;
            }
        }
        self.throttle(table, segment)
    }

    /// Counts the wanted rows of a table. That may take as long as reading it, and is not worth waiting for once
    /// the work is no longer wanted.
    fn count(&self, session: &mut Session, table: &Table) -> Result<u64> {
        let socket = session.socket()?;
        let (done, ended) = mpsc::channel::<()>();
        let counted = thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(COUNT_CHECKED_EVERY) == Err(RecvTimeoutError::Timeout) {
                    if self.check().is_err() {
                        drop(socket.shutdown(Shutdown::Both));
                        return;
                    }
                }
            });
            let counted = bulk::patiently(session, |session| session.number(&count(table)));
            drop(done);
            counted
        });
        self.check()?;
        Ok(counted?)
    }

    /// Waits if the last rows came faster than the user allows.
    fn throttle(&self, table: &Table, segment: &mut Segment) -> Result<()> {
        if table.definition.rows == Rows::Locked {
            return Ok(());
        }
        let bytes = segment.bytes - std::mem::replace(&mut segment.throttled, segment.bytes);
        self.throttle.take(bytes, || self.check().is_err());
        self.check()
    }

    /// The chunks of a table in the base, if it is worth cutting there.
    pub(super) fn base_chunks(&self, id: &TeeTable) -> Result<Option<(u64, u64)>> {
        let chunks = self.tee.base_chunks(id)?;
        let count = chunks.map_or(0, |chunks| chunks.count());
        Ok((count >= BASE_CHUNKS_MIN).then_some((0, count)))
    }
}

/// What a statement has returned.
struct Segment {
    rows: u64,
    bytes: u64,
    /// How many of these bytes the throttle has let pass.
    throttled: u64,
    /// Key of the last row.
    last: Vec<u8>,
}

impl Segment {
    fn note(&mut self, key: &[u8], bytes: usize) {
        self.rows += 1;
        self.bytes += bytes as u64;
        self.last.clear();
        self.last.extend_from_slice(key);
    }
}

/// The beginning of a row, which is its key.
fn key_of(row: &[u8], columns: usize) -> Result<&[u8], SqlError> {
    let mut values = Values { bytes: row };
    for _ in 0..columns {
        values.next().ok_or_else(|| SqlError::unexpected("a row that is too short"))?;
    }
    Ok(&row[..row.len() - values.bytes.len()])
}

fn first_limit(table: &Table) -> u64 {
    match table.bytes_estimated.checked_div(table.rows_estimated) {
        Some(row_bytes) if row_bytes > 0 => {
            (SEGMENT_BYTES / row_bytes).clamp(SEGMENT_ROWS_MIN, SEGMENT_ROWS_MAX)
        }
        _ => SEGMENT_ROWS_FIRST,
    }
}

/// The statement of a segment.
fn query(table: &Table, from: Option<&str>, end: Option<&Place>, limit: Option<u64>) -> String {
    let mut query = table.select();
    query.push_str(&condition(table, from, end));
    query.push_str(&order(table));
    if let Some(limit) = limit {
        query.push_str(&format!(" LIMIT {limit}"));
    }
    query
}

/// Whether a server may find other rows beyond a key than come after it in its index. Rows of a table that is
/// not in the view may change meanwhile, and are not counted; nor are those under a condition, which may hold
/// for others when it is asked again (`NOW()`).
fn may_lose_rows(table: &Table) -> bool {
    table.definition.rows != Rows::Inconsistent
        && table.definition.condition.is_none()
        && table.key_columns().iter().any(|column| column.form != Form::Number)
}

/// The statement that counts the wanted rows of a table, by whatever index is the smallest.
fn count(table: &Table) -> String {
    let history = if table.definition.has_history { " FOR SYSTEM_TIME ALL" } else { "" };
    let place = format!("{}{history}", table.name.quoted());
    format!("SELECT HIGH_PRIORITY COUNT(*) FROM {place}{}", condition(table, None, None))
}

/// Fails if the server counts another number of rows than were read.
fn refuse_others(read: u64, counted: u64) -> Result<()> {
    if read == counted {
        return Ok(());
    }
    let text = format!("{read} rows were read, and the server counts {counted} in the same view");
    Err(Error::failed(text).hinted(
        "it orders the table's key otherwise than it compares it, or an index is damaged (CHECK TABLE): please report \
         the table's definition; a physical backup takes it as it is",
    ))
}

fn explained(error: SqlError) -> Error {
    let hint = match error.code() {
        Some(DEFINITION_CHANGED) => "its definition was changed after the backup had begun; run it again",
        Some(NOT_OF_CHARSET) => {
            "a value of its key is not valid text in the column's character set: repair it (UPDATE), or leave the table out"
        }
        _ => return error.into(),
    };
    Error::from(error).hinted(hint)
}
