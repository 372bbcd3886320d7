//! Rows as the target takes them: lines of `LOAD DATA`, or values of `INSERT`. Either way the very bytes are stored.
//!
//! `LOAD DATA` reads lines as bytes without a character set, so that text goes into its column as it is. Where bytes
//! would mean something else than the text they spell, a value goes through a variable.

use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        definition::{ColumnDefinition, Form},
        key::Values,
        objects::quoted,
        script::literal,
    },
    server::inventory::TableName,
};

fn names(columns: &[ColumnDefinition]) -> String {
    columns.iter().map(|column| quoted(&column.name)).collect::<Vec<_>>().join(", ")
}

/// `INSERT INTO .. VALUES`.
pub(super) fn insert(table: &TableName, columns: &[ColumnDefinition]) -> String {
    format!("INSERT INTO {} ({}) VALUES\n", table.quoted(), names(columns))
}

/// `LOAD DATA` of what [`line`] writes.
pub(super) fn load_data(table: &TableName, columns: &[ColumnDefinition]) -> String {
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for (number, column) in columns.iter().enumerate() {
        let name = quoted(&column.name);
        match conversion(column) {
            None => places.push(name),
            Some((before, behind)) => {
                places.push(format!("@v{number}"));
                values.push(format!("{name} = {before}@v{number}{behind}"));
            }
        }
    }
    let mut statement = format!(
        "LOAD DATA LOCAL INFILE 'rows' INTO TABLE {} CHARACTER SET binary \
         FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({})",
        table.quoted(),
        places.join(", ")
    );
    if !values.is_empty() {
        statement.push_str(&format!(" SET {}", values.join(", ")));
    }
    statement
}

/// What a column's bytes go through.
fn conversion(column: &ColumnDefinition) -> Option<(&'static str, &'static str)> {
    let column_type = column.column_type.to_ascii_lowercase();
    match column.form {
        // Members may have names that are numbers.
        Form::Members => Some(("CAST(", " AS UNSIGNED)")),
        Form::Json => Some(("CONVERT(", " USING utf8mb4)")),
        // As bytes they would be what the server stores, not what it shows.
        Form::Ascii if column_type.starts_with("inet") || column_type == "uuid" => {
            Some(("CONVERT(", " USING ascii)"))
        }
        _ => None,
    }
}

fn wrong() -> Error {
    Error::new(ErrorKind::Damaged, "a row is not one of its table")
}

/// Appends a row as a line.
pub(super) fn line(out: &mut Vec<u8>, columns: usize, row: &[u8]) -> Result<()> {
    let mut values = Values { bytes: row };
    for number in 0..columns {
        if number > 0 {
            out.push(b'\t');
        }
        match values.next().ok_or_else(wrong)? {
            None => out.extend_from_slice(b"\\N"),
            Some(value) => escape(out, value),
        }
    }
    out.push(b'\n');
    if values.bytes.is_empty() { Ok(()) } else { Err(wrong()) }
}

fn escape(out: &mut Vec<u8>, value: &[u8]) {
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\\' | b'\t' | b'\n' | 0)) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(match rest[at] {
            b'\\' => b"\\\\",
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            _ => b"\\0",
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Appends a row as `(..)`.
pub(super) fn values(out: &mut Vec<u8>, columns: &[ColumnDefinition], row: &[u8]) -> Result<()> {
    let mut values = Values { bytes: row };
    out.push(b'(');
    for (number, column) in columns.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        let value = values.next().ok_or_else(wrong)?;
        literal::write(out, column, value)
            .map_err(|error| Error::failed("write a value").caused_by(error))?;
    }
    out.push(b')');
    if values.bytes.is_empty() { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// What a line says is the row; what is no row of the table is none.
    #[test]
    fn lines() {
        let mut out = Vec::new();
        line(&mut out, 3, b"\x03a\tb\xFB\x06\\N\n\0\xFFx").unwrap();
        assert_eq!(out, b"a\\tb\t\\N\t\\\\N\\n\\0\xFFx\n");
        assert!(line(&mut out, 2, b"\x01a").is_err());
        assert!(line(&mut out, 1, b"\x01a\x01b").is_err());
    }
}
