//! The rows between two places of a table: the clauses that select them, and what the server says of them.

use crate::{
    logical::{
        catalog::{key::Place, tables::Table},
        sql::quoted,
        stored::definition::Direction,
    },
    server::{Session, SqlError, code::NOT_OF_CHARSET},
};

/// Errors of servers about literals that are not values of a column: comparison of different collations,
/// truncated, no text of the character set, not of the type, text that cannot be converted.
const NO_VALUES: [u16; 6] = [1267, 1292, NOT_OF_CHARSET, 1366, 1525, 3854];

/// `WHERE` for the wanted rows between two places; empty if all are wanted.
pub(super) fn condition(table: &Table, from: Option<&str>, end: Option<&Place>) -> String {
    let asked = table.definition.condition.as_ref().map(|condition| format!("({condition})"));
    let before = end.map(|end| end.before(table));
    let all: Vec<String> = [from.map(str::to_owned), before, asked].into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!(" WHERE {}", all.join(" AND ")) }
}

/// `ORDER BY` the key; empty if there is none.
pub(super) fn order(table: &Table) -> String {
    order_of(table, false)
}

/// `ORDER BY` the key, in the opposite direction if `is_reversed`; empty if there is none.
pub(super) fn order_of(table: &Table, is_reversed: bool) -> String {
    let Some(key) = &table.definition.key else { return String::new() };
    let parts = table.key_columns().iter().zip(&key.directions);
    let parts: Vec<String> = parts
        .map(|(column, direction)| match (*direction == Direction::Descending) ^ is_reversed {
            false => quoted(&column.name),
            true => format!("{} DESC", quoted(&column.name)),
        })
        .collect();
    format!(" ORDER BY {}", parts.join(", "))
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
/// would get rows of another. Nor is a place within any range that the server cannot compare rows with: a range that
/// begins or ends there would lack some.
pub(super) fn is_within(
    session: &mut Session,
    table: &Table,
    place: &Place,
    position: Option<&Place>,
    end: Option<&Place>,
) -> Result<bool, SqlError> {
    let compared = place.comparisons(table);
    // Without the condition on wanted rows: few may match, and all would be read to find one.
    let mut has_rows = |from: Option<String>, end: Option<&Place>| -> Result<bool, SqlError> {
        let clauses: Vec<String> = from.into_iter().chain(end.map(|end| end.before(table))).collect();
        let condition =
            if clauses.is_empty() { String::new() } else { format!(" WHERE {}", clauses.join(" AND ")) };
        let query = format!("SELECT HIGH_PRIORITY {compared} FROM {}{condition} LIMIT 1", table.place());
        let rows = session.byte_rows(&query)?;
        Ok(rows.first().is_some_and(|row| row.values().iter().all(Option::is_some)))
    };
    Ok(has_rows(position.map(|position| position.after(table, false)), Some(place))?
        && has_rows(Some(place.after(table, true)), end)?)
}

/// The server's estimate of how many rows match a `WHERE`.
pub(super) fn guessed(session: &mut Session, table: &Table, condition: &str) -> Result<u64, SqlError> {
    let key = quoted(&table.key_columns()[0].name);
    let row =
        session.row(&format!("EXPLAIN FORMAT=TRADITIONAL SELECT {key} FROM {}{condition}", table.place()))?;
    Ok(row.and_then(|row| row.number("rows").ok()).unwrap_or(0))
}
