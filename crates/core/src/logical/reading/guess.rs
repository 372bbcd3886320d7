//! Finds a place in the middle of a range from the server's estimates for ranges. Each one is a look at the
//! top of the index, and reads no rows.
//!
//! The key columns in which the first and the last row agree are kept, and the next column is searched: whole
//! numbers by bisection, bytes and text one character after the other. The place found need not be the key of
//! a row, nor be before or after anything by a rule that this code knows: two predicates made from one place
//! complement each other, and a place that is not in the middle for the server is recognized by its
//! estimates.

use holdfast_repo::format::hex::to_hex;

use super::{
    between::{guessed, order_of},
    queue::Cut,
};
use crate::{
    logical::{
        catalog::{key::Place, tables::Table},
        sql::quoted,
        stored::definition::{Direction, Form},
    },
    server::{Session, SqlError},
};

/// How many candidates to try for one place; each takes two estimates.
const CANDIDATES_MAX: u32 = 160;
/// Characters to try in text, in the order that collations have them in.
const CHARACTERS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Looks for a place with about as many rows before as after it; `None` if the estimates lead to none.
pub(super) fn place(session: &mut Session, table: &Table, cut: &Cut) -> Result<Option<Place>, SqlError> {
    let (Some(first), Some(last)) =
        (edge(session, table, cut.position.as_ref(), false)?, edge(session, table, cut.end.as_ref(), true)?)
    else {
        return Ok(None);
    };
    let same = first.literals().iter().zip(last.literals()).take_while(|(one, other)| one == other).count();
    let directions = table.definition.key.as_ref().map(|key| key.directions.as_slice()).unwrap_or_default();
    let Some(column) = table.key_columns().get(same) else { return Ok(None) };
    if directions.get(same) != Some(&Direction::Ascending) {
        return Ok(None);
    }
    let (Some(low), Some(high)) = (first.literals().get(same), last.literals().get(same)) else {
        return Ok(None);
    };
    let mut search = Search {
        session,
        table,
        prefix: first.literals()[..same].to_vec(),
        column: quoted(&column.name),
        low: low.clone(),
        high: high.clone(),
        candidates_left: CANDIDATES_MAX,
    };
    let column_type = column.column_type.to_ascii_lowercase();
    match column.form {
        Form::Number if column_type.contains("int") => match (low.parse(), high.parse()) {
            (Ok(low), Ok(high)) => search.by_halves(low, high),
            _ => Ok(None),
        },
        Form::Bytes => search.by_characters(&(0..=255).collect::<Vec<u8>>(), "x"),
        Form::Text => {
            let charset = column.charset.as_deref().unwrap_or_default();
            // In other character sets a character is not one byte.
            let is_usual = charset.starts_with("utf8") || matches!(charset, "latin1" | "ascii");
            if is_usual { search.by_characters(CHARACTERS, &format!("_{charset} x")) } else { Ok(None) }
        }
        _ => Ok(None),
    }
}

/// The whole key of a place: its own, or that of the first or last row.
fn edge(
    session: &mut Session,
    table: &Table,
    known: Option<&Place>,
    is_last: bool,
) -> Result<Option<Place>, SqlError> {
    if let Some(known) = known {
        return Ok(Some(known.clone()));
    }
    let columns: Vec<String> = table.key_columns().iter().map(|column| quoted(&column.name)).collect();
    let query = format!(
        "SELECT HIGH_PRIORITY {} FROM {}{} LIMIT 1",
        columns.join(", "),
        table.place(),
        order_of(table, is_last)
    );
    let rows = session.byte_rows(&query)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let values: Option<Vec<&[u8]>> = row.values().iter().map(Option::as_deref).collect();
    values.map(|values| Place::of_values(table, &values)).transpose()
}

struct Search<'a> {
    session: &'a mut Session,
    table: &'a Table,
    /// Literals of the columns before the searched one.
    prefix: Vec<String>,
    /// The searched column, and the bounds of the search.
    column: String,
    low: String,
    high: String,
    candidates_left: u32,
}

/// Where the middle is, seen from a place.
enum Middle {
    Here,
    Before,
    After,
    /// The server was asked often enough.
    Unknown,
}

impl Search<'_> {
    fn at(&self, literal: &str) -> Place {
        Place::of_literals(self.prefix.iter().cloned().chain([literal.to_owned()]).collect())
    }

    /// Estimates the number of rows between two values of the column; a missing bound stands for the first or
    /// last value. It asks about one range of the index: an estimate for several ranges joined by `OR` can be
    /// anything.
    fn between(&mut self, from: Option<&str>, before: Option<&str>) -> Result<u64, SqlError> {
        let columns = self.table.key_columns();
        let equal = self.prefix.iter().zip(columns);
        let equal = equal.map(|(literal, column)| format!("{} = {literal}", quoted(&column.name)));
        let column = &self.column;
        let from = format!("{column} >= {}", from.unwrap_or(&self.low));
        let before = match before {
            Some(before) => format!("{column} < {before}"),
            None => format!("{column} <= {}", self.high),
        };
        let all: Vec<String> = equal.chain([from, before]).collect();
        guessed(self.session, self.table, &format!(" WHERE {}", all.join(" AND ")))
    }

    fn middle_from(&mut self, literal: &str) -> Result<Middle, SqlError> {
        if self.candidates_left == 0 {
            return Ok(Middle::Unknown);
        }
        self.candidates_left -= 1;
        // InnoDB doubles its estimates for long ranges, up to all rows: only two estimates can be compared.
        let before = self.between(None, Some(literal))?;
        let after = self.between(Some(literal), None)?;
        Ok(if before < after / 2 {
            Middle::After
        } else if after < before / 2 {
            Middle::Before
        } else {
            Middle::Here
        })
    }

    fn by_halves(&mut self, mut low: i128, mut high: i128) -> Result<Option<Place>, SqlError> {
        while high - low >= 2 {
            let middle = low + (high - low) / 2;
            let literal = middle.to_string();
            match self.middle_from(&literal)? {
                Middle::Here => return Ok(Some(self.at(&literal))),
                Middle::After => low = middle,
                Middle::Before => high = middle,
                Middle::Unknown => break,
            }
        }
        Ok(None)
    }

    /// `characters`: in ascending order. `begin`: what a literal of hex digits begins with.
    fn by_characters(&mut self, characters: &[u8], begin: &str) -> Result<Option<Place>, SqlError> {
        let mut text: Vec<u8> = Vec::new();
        loop {
            // The middle is after all characters before `low`, and before those from `high` on.
            let (mut low, mut high) = (0, characters.len());
            while low < high {
                let middle = low + (high - low) / 2;
                text.push(characters[middle]);
                let literal = format!("{begin}'{}'", to_hex(&text));
                text.pop();
                match self.middle_from(&literal)? {
                    Middle::Here => return Ok(Some(self.at(&literal))),
                    Middle::After => low = middle + 1,
                    Middle::Before => high = middle,
                    Middle::Unknown => return Ok(None),
                }
            }
            // The middle is after the last character before `low`, and begins with it.
            let Some(character) = low.checked_sub(1).and_then(|last| characters.get(last)) else {
                return Ok(None);
            };
            text.push(*character);
        }
    }
}
