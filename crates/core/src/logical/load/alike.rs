//! Checks whether rows differ only in what servers print or parse differently, if that can be why a table
//! differs: both sides are read once more, without it.
//!
//! Servers of different series print a negative zero differently (MariaDB 10.11 as `0`, others as `-0`).
//!
//! MySQL parses JSON documents that come as text: a decimal in one becomes a double (`7.00` becomes `7.0`),
//! and doubles may become their neighbours. No rounding makes two neighbours equal, so such numbers are not
//! compared at all; everything else in a document is, and the omission is named.

use holdfast_repo::{
    data::reader::{Backup, ReadRows},
    format::rows::{RowHashKey, RowsChecksum},
};

use super::{LoadOptions, link::Link, plan::PlannedTable, target::Target};
use crate::{
    error::{Error, Result},
    event::Cancel,
    logical::{
        catalog,
        stored::{
            definition::{ColumnDefinition, Form},
            rows::{Values, each_row},
        },
    },
    server::bulk::{RawReader, RowPart},
};

/// In what sense the rows of a table that differs are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alike {
    /// They are not the same.
    No,
    /// Except for the signs of zeros.
    ButForZeros,
    /// Except for numbers within documents as well.
    ButForNumbersInDocuments,
}

/// Sums of rows without what may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    without_signs: RowsChecksum,
    without_numbers: RowsChecksum,
}

impl Sums {
    /// Adds a row to the sums that may explain why this table differs.
    fn add(&mut self, key: &RowHashKey, table: &PlannedTable, row: &[u8]) {
        let columns = &table.definition.columns;
        if table.prints_zeros_otherwise {
            self.without_signs = self.without_signs.and(without_signs(key, columns, row, false));
        }
        if table.parses_documents {
            self.without_numbers = self.without_numbers.and(without_signs(key, columns, row, true));
        }
    }
}

/// Reads a table again on both sides.
pub(super) fn compare(
    backup: &Backup,
    planned: &PlannedTable,
    target: &Target,
    options: &LoadOptions,
    cancel: &Cancel,
) -> Result<Alike> {
    let reader = backup.table(&planned.item).ok_or_else(|| Error::failed("it holds no rows"))?;
    let row_key = backup.row_key()?;
    let (mut stored, mut there) = (Sums::default(), Sums::default());
    each_row(&reader, 0..reader.chunk_count(), ReadRows::default(), &|| cancel.check(), &mut |row| {
        stored.add(&row_key, planned, row);
        Ok(())
    })?;
    let mut link = Link::open(options, target, 0)?;
    catalog::configure(&mut link.session)?;
    let mut raw = RawReader::default();
    let query = planned.select();
    let mut answer = raw.query(&mut link.session, &query)?;
    let mut long = Vec::new();
    while let Some(part) = answer.next()? {
        match part {
            RowPart::Whole(row) => there.add(&row_key, planned, row),
            RowPart::First(piece) | RowPart::More(piece) => long.extend_from_slice(piece),
            RowPart::Last(piece) => {
                long.extend_from_slice(piece);
                there.add(&row_key, planned, &std::mem::take(&mut long));
            }
        }
    }
    Ok(if planned.prints_zeros_otherwise && stored.without_signs == there.without_signs {
        Alike::ButForZeros
    } else if planned.parses_documents && stored.without_numbers == there.without_numbers {
        Alike::ButForNumbersInDocuments
    } else {
        Alike::No
    })
}

/// The checksum of a row without the signs of zeros and, if documents are parsed, without numbers that this
/// may change.
fn without_signs(
    key: &RowHashKey,
    columns: &[ColumnDefinition],
    row: &[u8],
    are_parsed: bool,
) -> RowsChecksum {
    let mut hasher = key.begin();
    for (column, value) in columns.iter().zip(Values { bytes: row }) {
        let is_zero = |value: &[u8]| value.iter().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
        let document = value.filter(|_| are_parsed && column.form == Form::Json).map(without_inexact_numbers);
        let value = document.as_deref().or(value).map(|value| match value.strip_prefix(b"-") {
            Some(rest) if column.form == Form::Float && is_zero(value) => rest,
            _ => value,
        });
        hasher.update(&value.map_or(u64::MAX, |value| value.len() as u64).to_le_bytes());
        hasher.update(value.unwrap_or_default());
    }
    hasher.checksum()
}

/// A document, as MySQL prints it, with a mark in place of each number that is not a 64-bit integer.
fn without_inexact_numbers(document: &[u8]) -> Vec<u8> {
    const MARK: u8 = b'#';
    let mut out = Vec::with_capacity(document.len());
    let mut rest = document;
    while let Some((&byte, after)) = rest.split_first() {
        let taken = match byte {
            b'"' => string_bytes(after) + 1,
            b'-' | b'0'..=b'9' => {
                let is_part =
                    |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E') || byte.is_ascii_digit();
                rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len())
            }
            _ => 1,
        };
        let (piece, next) = rest.split_at(taken);
        let is_number = matches!(byte, b'-' | b'0'..=b'9');
        if is_number && !is_integer(piece) {
            out.push(MARK);
        } else {
            out.extend_from_slice(piece);
        }
        rest = next;
    }
    out
}

/// The length of a string, from after its opening quote up to and including its closing one.
fn string_bytes(text: &[u8]) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn is_integer(number: &[u8]) -> bool {
    let text = std::str::from_utf8(number).unwrap_or_default();
    text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use holdfast_pipe::HashKey;
    use proptest::prelude::*;

    use super::*;

    /// A zero has no sign; anything else stays as it is.
    #[test]
    fn zeros() {
        let column =
            |form| ColumnDefinition { name: "c".into(), column_type: "double".into(), form, charset: None };
        let key = RowHashKey::new(&HashKey::new([7; 32]));
        let of = |columns: &[ColumnDefinition], row: &[u8]| without_signs(&key, columns, row, false);
        let (float, text) = ([column(Form::Float)], [column(Form::Text)]);
        assert_eq!(of(&float, b"\x02-0"), of(&float, b"\x010"));
        assert_eq!(of(&float, b"\x04-0.0"), of(&float, b"\x030.0"));
        assert_ne!(of(&float, b"\x02-1"), of(&float, b"\x011"));
        assert_ne!(of(&float, b"\xFB"), of(&float, b"\x00"));
        assert_ne!(of(&text, b"\x02-0"), of(&text, b"\x010"));
    }

    /// Numbers that may change are left out, only in documents, and only if these are parsed.
    #[test]
    fn numbers_in_documents() {
        let of = |text: &str| String::from_utf8_lossy(&without_inexact_numbers(text.as_bytes())).into_owned();
        assert_eq!(
            of(r#"{"a": 7.00, "7.00": [1e26, -1.5E-7, -12, 18446744073709551615]}"#),
            r##"{"a": #, "7.00": [#, #, -12, 18446744073709551615]}"##
        );
        assert_eq!(of("99999999999999999999"), "#");
        assert_eq!(of(r#"["\"1.5", "\\", 1.5, "1.5"#), r##"["\"1.5", "\\", #, "1.5"##);
        let column =
            |form| [ColumnDefinition { name: "c".into(), column_type: "json".into(), form, charset: None }];
        let key = RowHashKey::new(&HashKey::new([7; 32]));
        let are_same = |form, is_parsed| {
            let of = |row: &[u8]| without_signs(&key, &column(form), row, is_parsed);
            of(b"\x047.00") == of(b"\x037.0")
        };
        assert!(are_same(Form::Json, true) && !are_same(Form::Json, false) && !are_same(Form::Text, true));
    }

    proptest! {
        /// Whatever the document, everything but such numbers stays.
        #[test]
        fn nothing_else_goes(document in ".{0,60}") {
            let left = without_inexact_numbers(document.as_bytes());
            let only = |text: &[u8]| -> Vec<u8> {
                text.iter().copied().filter(|byte| byte.is_ascii_alphabetic() && !b"eE".contains(byte)).collect()
            };
            prop_assert_eq!(only(&left), only(document.as_bytes()));
        }
    }
}
