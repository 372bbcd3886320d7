//! Servers of different series print a zero below zero differently (MariaDB 10.11 as `0`, others as `-0`). Where that alone
//! can be why a table differs, both sides are read once more, without that sign.

use holdfast_repo::{
    reader::{Backup, ReadRows},
    rows::{RowHashKey, RowsChecksum},
};

use super::{LoadOptions, link::Link, plan::PlannedTable, target::Target};
use crate::{
    error::{Error, Result},
    event::Cancel,
    logical::{
        definition::{ColumnDefinition, Form},
        key::Values,
        objects,
        rows::each_row,
    },
    server::raw::{RawReader, RowPart},
};

/// Whether the rows are the same but for the signs of zeros.
pub(super) fn is_same_but_for_zeros(
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
