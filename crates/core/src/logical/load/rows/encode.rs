//! Rows as the target takes them: parameters, lines of `LOAD DATA`, or values of `INSERT`. Each time the very bytes are stored.
//!
//! Parameters, and lines of `LOAD DATA`, are bytes without a character set, so that text goes into its column as it is. Where
//! bytes would mean something else than the text they spell, a value goes through a conversion.

use super::super::plan::PlannedTable;
use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        definition::{ColumnDefinition, Form},
        key::Values,
        objects::quoted,
        script::literal,
    },
};

/// `INSERT INTO .. VALUES`.
pub(super) fn insert(table: &PlannedTable) -> String {
    let names: Vec<String> = table.columns().map(|(column, _)| quoted(&column.name)).collect();
    format!("INSERT INTO {} ({}) VALUES\n", table.name.quoted(), names.join(", "))
}

/// The same with what [`parameters`] writes.
pub(super) fn insert_parameters(table: &PlannedTable) -> String {
    let places = table.columns().map(|(column, other_charset)| {
        conversion(column, other_charset, "?").unwrap_or_else(|| "?".to_owned())
    });
    let places: Vec<String> = places.collect();
    format!("{}({})", insert(table), places.join(", "))
}

/// `LOAD DATA` of what [`line`] writes.
pub(super) fn load_data(table: &PlannedTable) -> String {
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for (number, (column, other_charset)) in table.columns().enumerate() {
        let name = quoted(&column.name);
        match conversion(column, other_charset, &format!("@v{number}")) {
            None => places.push(name),
            Some(conversion) => {
                places.push(format!("@v{number}"));
                values.push(format!("{name} = {conversion}"));
            }
        }
    }
    let mut statement = format!(
        "LOAD DATA LOCAL INFILE 'rows' INTO TABLE {} CHARACTER SET binary \
         FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({})",
        table.name.quoted(),
        places.join(", ")
    );
    if !values.is_empty() {
        statement.push_str(&format!(" SET {}", values.join(", ")));
    }
    statement
}

/// What the bytes of a column, in a variable or parameter, go through.
fn conversion(column: &ColumnDefinition, other_charset: Option<&str>, variable: &str) -> Option<String> {
    let text_in = |charset: &str| Some(format!("CONVERT({variable} USING {charset})"));
    if let Some(charset) = other_charset {
        return text_in(charset);
    }
    let column_type = column.column_type.to_ascii_lowercase();
    match column.form {
        // Members may have names that are numbers.
        Form::Members => Some(format!("CAST({variable} AS UNSIGNED)")),
        Form::Json => text_in("utf8mb4"),
        // As bytes they would be what the server stores, not what it shows.
        Form::Ascii if column_type.starts_with("inet") || column_type == "uuid" => text_in("ascii"),
        _ => None,
    }
}

fn wrong() -> Error {
    Error::new(ErrorKind::Damaged, "a row is not one of its table")
}

/// Appends a row as parameters of a bulk: each value, which is stored as it is sent, behind a byte that says whether there is one.
pub(super) fn parameters(out: &mut Vec<u8>, columns: usize, row: &[u8]) -> Result<()> {
    const VALUE: u8 = 0;
    const NULL: u8 = 1;
    let mut values = Values { bytes: row };
    for _ in 0..columns {
        let from_here = values.bytes;
        match values.next().ok_or_else(wrong)? {
            None => out.push(NULL),
            Some(_) => {
                out.push(VALUE);
                out.extend_from_slice(&from_here[..from_here.len() - values.bytes.len()]);
            }
        }
    }
    if values.bytes.is_empty() { Ok(()) } else { Err(wrong()) }
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
    while let Some(at) = literal::first_of(rest, [b'\\', b'\t', b'\n', 0]) {
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
pub(super) fn values(out: &mut Vec<u8>, table: &PlannedTable, row: &[u8]) -> Result<()> {
    let mut values = Values { bytes: row };
    out.push(b'(');
    for (number, (column, other_charset)) in table.columns().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        let value = values.next().ok_or_else(wrong)?;
        let written = match (other_charset, value) {
            (Some(charset), Some(value)) => {
                out.extend_from_slice(format!("_{charset} ").as_bytes());
                literal::hex(out, value)
            }
            _ => literal::write(out, column, value),
        };
        written.map_err(|error| Error::failed("write a value").caused_by(error))?;
    }
    out.push(b')');
    if values.bytes.is_empty() { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
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

    /// What parameters say is the row; what is no row of the table is none.
    #[test]
    fn values_as_parameters() {
        let mut out = Vec::new();
        parameters(&mut out, 4, b"\x01a\xFB\0\xFC\x02\0\0\xFF").unwrap();
        assert_eq!(out, b"\0\x01a\x01\0\0\0\xFC\x02\0\0\xFF");
        assert!(parameters(&mut out, 2, b"\x01a").is_err());
        assert!(parameters(&mut out, 1, b"\x01a\x01b").is_err());
    }
}
