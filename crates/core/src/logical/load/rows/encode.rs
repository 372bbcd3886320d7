//! Encodes rows as the target takes them: parameters, lines of `LOAD DATA`, or values of `INSERT`. Each way
//! stores the exact bytes.
//!
//! Parameters and lines of `LOAD DATA` are bytes without a character set, so that text goes into its column
//! as it is. Where bytes would mean something other than the text they spell, a value goes through a
//! conversion.

use holdfast_formats::Flavor;

use super::super::plan::PlannedTable;
use crate::{
    error::{Error, Result},
    logical::{
        script::literal,
        sql::quoted,
        stored::{
            definition::{ColumnDefinition, Form},
            rows::Values,
        },
    },
    server::bulk::for_many::{ForMany, ParameterType},
};

/// `INSERT INTO .. VALUES`.
pub(super) fn insert(table: &PlannedTable) -> String {
    let names: Vec<String> = table.columns().map(|(column, _)| quoted(&column.name)).collect();
    format!("INSERT INTO {} ({}) VALUES\n", table.name.quoted(), names.join(", "))
}

/// The placeholders for a row that [`parameters`] adds, and the types of the parameters. MySQL gets numbers
/// as such: it would take the result of a cast for a signed number.
pub(super) fn places(table: &PlannedTable, flavor: Flavor) -> (String, Vec<ParameterType>) {
    let (mut places, mut types) = (Vec::new(), Vec::new());
    for (column, other_charset) in table.columns() {
        let is_number = flavor == Flavor::MySql && column.form == Form::Members && other_charset.is_none();
        types.push(if is_number { ParameterType::Number } else { ParameterType::Bytes });
        let conversion = conversion(column, other_charset, "?").filter(|_| !is_number);
        places.push(conversion.unwrap_or_else(|| "?".to_owned()));
    }
    (format!("({})", places.join(", ")), types)
}

/// The `LOAD DATA` for lines that [`line`] writes.
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

/// The conversion that the bytes of a column, in a variable or parameter, go through.
fn conversion(column: &ColumnDefinition, other_charset: Option<&str>, variable: &str) -> Option<String> {
    let text_in = |charset: &str| Some(format!("CONVERT({variable} USING {charset})"));
    if let Some(charset) = other_charset {
        return text_in(charset);
    }
    let column_type = column.column_type.to_ascii_lowercase();
    match column.form {
        // Names of members may be numbers.
        Form::Members => Some(format!("CAST({variable} AS UNSIGNED)")),
        Form::Json => text_in("utf8mb4"),
        // Bytes would be taken for the stored form, not for the shown one.
        Form::Ascii if column_type.starts_with("inet") || column_type == "uuid" => text_in("ascii"),
        _ => None,
    }
}

fn wrong() -> Error {
    Error::damaged("a row is not one of its table")
}

/// Adds a row as parameters: bytes are stored as they are sent.
pub(super) fn parameters(out: &mut dyn ForMany, types: &[ParameterType], row: &[u8]) -> Result<()> {
    let mut values = Values { bytes: row };
    for parameter_type in types {
        let from_here = values.bytes;
        match (values.next().ok_or_else(wrong)?, parameter_type) {
            (None, _) => out.null(),
            (Some(_), ParameterType::Bytes) => {
                out.value(&from_here[..from_here.len() - values.bytes.len()]);
            }
            (Some(digits), ParameterType::Number) => {
                let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
                out.value(&number.ok_or_else(wrong)?.to_le_bytes());
            }
        }
    }
    if !values.bytes.is_empty() {
        return Err(wrong());
    }
    out.end_row();
    Ok(())
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
    use crate::server::{Session, SqlError, bulk::Done};

    /// A line spells its row; what is not a row of the table is refused.
    #[test]
    fn lines() {
        let mut out = Vec::new();
        line(&mut out, 3, b"\x03a\tb\xFB\x06\\N\n\0\xFFx").unwrap();
        assert_eq!(out, b"a\\tb\t\\N\t\\\\N\\n\\0\xFFx\n");
        assert!(line(&mut out, 2, b"\x01a").is_err());
        assert!(line(&mut out, 1, b"\x01a\x01b").is_err());
    }

    /// Records what it is given.
    #[derive(Default)]
    struct Given(Vec<u8>);

    impl ForMany for Given {
        fn row_bytes_max(&self) -> usize {
            usize::MAX
        }

        fn has_room(&self, _: usize) -> bool {
            true
        }

        fn value(&mut self, value: &[u8]) {
            self.0.push(b'=');
            self.0.extend_from_slice(value);
        }

        fn null(&mut self) {
            self.0.push(b'-');
        }

        fn end_row(&mut self) {
            self.0.push(b';');
        }

        fn exec(&mut self, _: &mut Session) -> Result<Option<Done>, SqlError> {
            Ok(None)
        }

        fn close(self: Box<Self>, _: &mut Session) -> Result<(), SqlError> {
            Ok(())
        }
    }

    /// Parameters spell their row; what is not a row of the table is refused.
    #[test]
    fn values_as_parameters() {
        use ParameterType::{Bytes, Number};

        let mut given = Given::default();
        parameters(&mut given, &[Bytes; 4], b"\x01a\xFB\0\xFC\x02\0\0\xFF").unwrap();
        assert_eq!(given.0, b"=\x01a-=\0=\xFC\x02\0\0\xFF;");
        let mut given = Given::default();
        parameters(&mut given, &[Number; 3], b"\x0518446\xFB\x1418446744073709551615").unwrap();
        assert_eq!(given.0, [&b"=\x0E\x48\0\0\0\0\0\0-="[..], &[0xFF; 8], b";"].concat());
        for (types, row) in [
            (&[Bytes; 2][..], &b"\x01a"[..]),
            (&[Bytes], b"\x01a\x01b"),
            (&[Number], b"\x01a"),
            (&[Number], b"\x02-1"),
        ] {
            assert!(parameters(&mut given, types, row).is_err());
        }
    }
}
