//! The rows of one table as CSV or as lines of JSON.
//!
//! CSV is that of RFC 4180: a line of names, commas, CR LF, quotes around text. NULL is the word `NULL`
//! without quotes, which no text is written as, so that `LOAD DATA .. ENCLOSED BY '"' ESCAPED BY ''` reads it
//! as NULL, and backslashes have no meaning. Values are as [`values`] shows them. A table with a value
//! that cannot be shown is refused, before anything is written if its definition tells.

pub mod values;

use std::io::Write;

use holdfast_repo::{data::reader::Backup, format::item::Item};

use super::{
    diff::values as values_of,
    script::write_failed,
    selection::TablePattern,
    stored::{
        contents::definition,
        definition::{ColumnDefinition, Definition, TableDefinition},
        rows::all_rows,
    },
};
use values::{JsonRow, Shown, can_show, shown};

use crate::{
    error::{Error, ErrorKind, Result},
    event::Cancel,
};

/// How many bytes to gather before they are written.
const WRITTEN_BYTES: usize = 1 << 20;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFormat {
    /// CSV with a line of names.
    Csv,
    /// One JSON object per line.
    JsonLines,
}

/// Writes the rows of the one table that `wanted` matches. Returns their number.
pub fn write(
    backup: &Backup,
    wanted: &TablePattern,
    format: RowFormat,
    out: &mut dyn Write,
    cancel: &Cancel,
) -> Result<u64> {
    let (item, table) = only_table(backup, wanted, cancel)?;
    let named = |error: Error| error.context(format_args!("table {}.{}", table.schema, table.name));
    refuse_unknown(&table).map_err(named)?;
    let reader = backup.table(&item).ok_or_else(|| Error::failed("it holds no rows")).map_err(named)?;
    let mut text = Vec::new();
    begin(&mut text, &table, format);
    let rows = all_rows(&reader, cancel, &mut |bytes| {
        row(&mut text, &table, format, bytes)?;
        if text.len() >= WRITTEN_BYTES {
            out.write_all(&text).map_err(write_failed)?;
            text.clear();
        }
        Ok(())
    });
    let rows = rows.map_err(named)?.rows;
    out.write_all(&text).and_then(|()| out.flush()).map_err(write_failed)?;
    Ok(rows)
}

/// Finds the one table that `wanted` matches.
fn only_table(backup: &Backup, wanted: &TablePattern, cancel: &Cancel) -> Result<(Item, TableDefinition)> {
    let mut found: Option<(Item, TableDefinition)> = None;
    for item in backup.items() {
        cancel.check()?;
        let item = item?;
        if backup.table(&item).is_none() {
            continue;
        }
        let Definition::Table(table) = definition(backup, &item)? else { continue };
        if !wanted.matches(&table.schema, &table.name) {
            continue;
        }
        if found.is_some() {
            let text = format!("{wanted} matches several tables, but only one can be written in this format");
            return Err(Error::new(ErrorKind::Usage, text)
                .hinted("name one table, or write all with \"holdfast export --format csv\""));
        }
        found = Some((item, table));
    }
    found.ok_or_else(|| Error::failed(format!("the backup holds no table {wanted}")))
}

/// Refuses a table with text in a character set that is not known here.
pub(super) fn refuse_unknown(table: &TableDefinition) -> Result<()> {
    for column in &table.columns {
        if let Err(charset) = can_show(column) {
            let text =
                format!("column {} has the character set {charset}, which cannot be converted", column.name);
            return Err(Error::failed(text).hinted("--format sql writes it as it is, in hex"));
        }
    }
    Ok(())
}

/// Writes the text before the rows.
pub(super) fn begin(out: &mut Vec<u8>, table: &TableDefinition, format: RowFormat) {
    if format == RowFormat::Csv {
        for (place, column) in table.columns.iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            quoted(out, &column.name);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a row.
pub(super) fn row(out: &mut Vec<u8>, table: &TableDefinition, format: RowFormat, row: &[u8]) -> Result<()> {
    let values = values_of(&table.columns, row)?;
    let show = |column, value| shown(column, value).ok_or_else(|| cannot_show(column, value));
    match format {
        RowFormat::Csv => {
            for (place, (column, value)) in table.columns.iter().zip(&values).enumerate() {
                if place > 0 {
                    out.push(b',');
                }
                match value.map(|value| show(column, value)).transpose()? {
                    None => out.extend_from_slice(b"NULL"),
                    Some(Shown::Number(text) | Shown::Word(text)) => out.extend_from_slice(text.as_bytes()),
                    Some(Shown::Hex(hex)) => out.extend_from_slice(hex.as_bytes()),
                    Some(Shown::Text(text)) => quoted(out, &text),
                }
            }
            out.extend_from_slice(b"\r\n");
        }
        RowFormat::JsonLines => {
            for (column, value) in table.columns.iter().zip(&values) {
                value.map(|value| show(column, value)).transpose()?;
            }
            let row = JsonRow::new(&table.columns, &values);
            serde_json::to_writer(&mut *out, &row)
                .map_err(|error| Error::failed("write a row as JSON").caused_by(error))?;
            out.push(b'\n');
        }
    }
    Ok(())
}

fn quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for (place, part) in text.split('"').enumerate() {
        if place > 0 {
            out.extend_from_slice(b"\"\"");
        }
        out.extend_from_slice(part.as_bytes());
    }
    out.push(b'"');
}

fn cannot_show(column: &ColumnDefinition, value: &[u8]) -> Error {
    const BYTES_SHOWN: usize = 16;
    let bytes: Vec<String> = value.iter().take(BYTES_SHOWN).map(|byte| format!("{byte:02X}")).collect();
    let text = format!(
        "a value of column {} is not valid for its type ({}): {}",
        column.name,
        column.charset.as_deref().unwrap_or(&column.column_type),
        bytes.concat()
    );
    Error::failed(text).hinted("--format sql writes it as it is, in hex")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logical::stored::definition::{Form, Rows, Sql};

    fn table(columns: &[(&str, &str, Form)]) -> TableDefinition {
        let column = |(name, column_type, form): &(&str, &str, Form)| ColumnDefinition {
            name: (*name).to_owned(),
            column_type: (*column_type).to_owned(),
            form: *form,
            charset: (*form == Form::Text).then(|| "latin1".to_owned()),
        };
        TableDefinition {
            schema: "s".into(),
            name: "t".into(),
            engine: "InnoDB".into(),
            create: Sql::default(),
            columns: columns.iter().map(column).collect(),
            key: None,
            rows: Rows::Consistent,
            has_history: false,
            condition: None,
            defaults: Vec::new(),
            computed: None,
        }
    }

    /// NULL, the word `NULL`, the empty text and quotes can be told apart.
    #[test]
    fn values_can_be_told_apart() {
        let table = table(&[
            ("a\"b", "int(5) unsigned zerofill", Form::Number),
            ("c", "varchar(9)", Form::Text),
            ("d", "varchar(9)", Form::Text),
            ("e", "blob", Form::Bytes),
            ("f", "double", Form::Float),
            ("g", "bigint", Form::Number),
        ]);
        let bytes = b"\x0500007\x04NULL\xFB\x02\x00\xFF\x041e25\x0217";
        let mut csv = Vec::new();
        begin(&mut csv, &table, RowFormat::Csv);
        row(&mut csv, &table, RowFormat::Csv, bytes).unwrap();
        row(&mut csv, &table, RowFormat::Csv, b"\xFB\x00\x04\xE4,\"\n\x00\x02-0\xFB").unwrap();
        let expected = "\"a\"\"b\",\"c\",\"d\",\"e\",\"f\",\"g\"\r\n00007,\"NULL\",NULL,00FF,1e25,17\r\nNULL,\"\",\"ä,\"\"\n\",,-0,NULL\r\n";
        assert_eq!(String::from_utf8(csv).unwrap(), expected);
        let mut json = Vec::new();
        row(&mut json, &table, RowFormat::JsonLines, bytes).unwrap();
        // The spelling of numbers is up to the serializer.
        let large = serde_json::to_string(&1e25).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            format!("{{\"a\\\"b\":7,\"c\":\"NULL\",\"d\":null,\"e\":\"00FF\",\"f\":{large},\"g\":\"17\"}}\n")
        );
        assert!(row(&mut Vec::new(), &table, RowFormat::Csv, b"\x0217").is_err());
    }
}
