//! Chooses where a range that is being read is cut in two.
//!
//! Any place between the reader's position and the end of the range will do; a good one has about half of the
//! rows on each side. Chunks of an earlier backup give one for free. Where they do not, as after the last of
//! them, it is sought by the server's estimates for ranges ([`guess`]), and where that does not help either,
//! rows are counted along the index.

use super::{
    Reading,
    between::{condition, fitting, guessed, is_within, order},
    guess,
    queue::{Begin, Cut},
};
use crate::{
    error::Result,
    logical::{
        catalog::{key::Place, tables::Table},
        sql::quoted,
    },
    server::{Session, SqlError},
};

/// How many chunks to try for one whose key is known.
const BASE_CHUNKS_TRIED: u64 = 16;
/// How many rows to count at most for one place.
const ROWS_COUNTED_MAX: u64 = 2_000_000;
/// A place with fewer rows ahead of it than this would be reached before it is found.
const ROWS_COUNTED_MIN: u64 = 1_000;

impl Reading<'_> {
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

fn counted(session: &mut Session, table: &Table, cut: &Cut) -> Result<Option<Place>, SqlError> {
    let from = cut.position.as_ref().map(|place| place.after(table, false));
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
