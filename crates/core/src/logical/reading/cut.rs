//! Chooses where a range that is being read is cut in two.
//!
//! Any place between the reader's position and the end of the range will do; a good one has about half of the
//! rows on each side. Chunks of an earlier backup give one for free. Where they do not, as after the last of
//! them, it is sought by the server's estimates for ranges ([`guess`]), and where that does not help either,
//! rows are counted along the index.

use super::{
    Reading, guess,
    queue::{Begin, Cut},
    range::{condition, order},
};
use crate::{
    error::Result,
    logical::{key::Place, objects::quoted, tables::Table, tee::TeeTable},
    server::{Session, SqlError},
};

/// A table with at least this many chunks in the base is cut at their borders.
const BASE_CHUNKS_MIN: u64 = 4;
/// How many chunks to try for one whose key is known.
const BASE_CHUNKS_TRIED: u64 = 16;
/// How many rows to count at most for one place.
const ROWS_COUNTED_MAX: u64 = 2_000_000;
/// Errors of servers about literals that are not values of a column: comparison of different collations,
/// truncated, no text of the character set, not of the type, text that cannot be converted.
const NO_VALUES: [u16; 6] = [1267, 1292, 1300, 1366, 1525, 3854];
/// A place with fewer rows ahead of it than this would be reached before it is found.
const ROWS_COUNTED_MIN: u64 = 1_000;

impl Reading<'_> {
    /// The chunks of a table in the base, if it is worth cutting there.
    pub(super) fn base_chunks(&self, id: &TeeTable) -> Result<Option<(u64, u64)>> {
        let chunks = self.tee.base_chunks(id)?;
        let count = chunks.map_or(0, |chunks| chunks.count());
        Ok((count >= BASE_CHUNKS_MIN).then_some((0, count)))
    }

    /// Finds a place to cut; `None` if none is worth it.
    pub(super) fn find_cut(&self, session: &mut Session, cut: &Cut) -> Result<Option<Begin>> {
        let table = &self.tables[cut.table];
        let is_within = |session: &mut Session, place: &Place| {
            fitting(is_within(session, table, place, cut.position.as_ref(), cut.end.as_ref()))
                .map(|is_within| is_within.unwrap_or(false))
        };
        let at_base_chunk =
            cut.base_chunks.map(|chunks| self.at_base_chunk(cut, table, chunks)).transpose()?;
        if let Some(begin) = at_base_chunk.flatten()
            && is_within(session, &begin.place)?
        {
            return Ok(Some(begin));
        }
        let place = match fitting(guess::place(session, table, cut))?.flatten() {
            // Estimates can be far off.
            Some(place) if is_within(session, &place)? => Some(place),
            _ => fitting(counted(session, table, cut))?.flatten(),
        };
        Ok(place.map(|place| Begin { place, base_chunk: None }))
    }

    /// The first key of a chunk in the middle of what is left.
    fn at_base_chunk(&self, cut: &Cut, table: &Table, (first, end): (u64, u64)) -> Result<Option<Begin>> {
        let Some(mut chunks) = self.tee.base_chunks(&cut.id)? else {
            return Ok(None);
        };
        let at = first + (end - first).saturating_mul(cut.percent_done) / 100;
        let middle = at + (end - at) / 2;
        for number in (middle..end).take(BASE_CHUNKS_TRIED as usize).filter(|number| *number > at) {
            let key = chunks.get(number)?.and_then(|chunk| chunk.key);
            // A key from another definition of the table may not fit this one.
            if let Some(place) = key.and_then(|key| Place::of_row(table, &key).ok()) {
                return Ok(Some(Begin { place, base_chunk: Some(number) }));
            }
        }
        Ok(None)
    }
}

/// The server's answer; `None` if the place has no meaning for it: the key of a chunk under an earlier
/// definition, or bytes that are no longer text.
pub(super) fn fitting<T>(answer: Result<T, SqlError>) -> Result<Option<T>, SqlError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.code().is_some_and(|code| NO_VALUES.contains(&code)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether rows are left between a range's position and a place, and between the place and the range's end.
/// Only then is the place within the range for the server, whose word counts. At any other place the range
/// would get rows of another.
pub(super) fn is_within(
    session: &mut Session,
    table: &Table,
    place: &Place,
    position: Option<&Place>,
    end: Option<&Place>,
) -> Result<bool, SqlError> {
    let key = quoted(&table.key_columns()[0].name);
    // Without the condition on wanted rows: few may match, and all would be read to find one.
    let mut has_rows = |from: Option<String>, end: Option<&Place>| -> Result<bool, SqlError> {
        let clauses: Vec<String> = from.into_iter().chain(end.map(|end| end.before(table))).collect();
        let condition =
            if clauses.is_empty() { String::new() } else { format!(" WHERE {}", clauses.join(" AND ")) };
        let query = format!("SELECT HIGH_PRIORITY {key} FROM {}{condition} LIMIT 1", table.place());
        Ok(!session.byte_rows(&query)?.is_empty())
    };
    Ok(has_rows(position.map(|position| position.behind(table, false)), Some(place))?
        && has_rows(Some(place.behind(table, true)), end)?)
}

/// The server's estimate of how many rows match a `WHERE`.
pub(super) fn guessed(session: &mut Session, table: &Table, condition: &str) -> Result<u64, SqlError> {
    let key = quoted(&table.key_columns()[0].name);
    let row =
        session.row(&format!("EXPLAIN FORMAT=TRADITIONAL SELECT {key} FROM {}{condition}", table.place()))?;
    Ok(row.and_then(|row| row.number("rows").ok()).unwrap_or(0))
}

fn counted(session: &mut Session, table: &Table, cut: &Cut) -> Result<Option<Place>, SqlError> {
    let from = cut.position.as_ref().map(|place| place.behind(table, false));
    let condition = condition(table, from.as_deref(), cut.end.as_ref());
    let all = guessed(session, table, &condition)?;
    let rows = (all / 2).min(ROWS_COUNTED_MAX);
    if rows < ROWS_COUNTED_MIN {
        return Ok(None);
    }
    let columns: Vec<String> = table.key_columns().iter().map(|column| quoted(&column.name)).collect();
    let query = format!(
        "SELECT HIGH_PRIORITY {} FROM {}{condition}{} LIMIT 1 OFFSET {rows}",
        columns.join(", "),
        table.place(),
        order(table),
    );
    let rows = session.byte_rows(&query)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let values: Option<Vec<&[u8]>> = row.values().iter().map(Option::as_deref).collect();
    values.map(|values| Place::of_values(table, &values)).transpose()
}
