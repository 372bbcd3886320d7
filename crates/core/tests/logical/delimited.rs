//! CSV files recreate the table when a server loads them, and JSON lines contain the same values.

use std::io::Cursor;

use holdfast_core::logical::{
    delimited::{RowFormat, write},
    stored::definition::{ColumnDefinition, Definition, Form, TableDefinition},
};
use mysql::LocalInfileHandler;
use serde_json::Value as Json;

use super::*;

/// A table of a backup as CSV.
pub(crate) fn csv(stage: &Stage, backup: u64, table: &str) -> String {
    let history = History::read(&stage.repo, &log()).unwrap();
    let backup = Backup::open(&stage.repo, &history, RunNo(backup)).unwrap();
    let mut out = Vec::new();
    write(&backup, &table.parse().unwrap(), RowFormat::Csv, &mut out, &Cancel::default()).unwrap();
    String::from_utf8(out).unwrap()
}

/// Parses CSV by its rules alone: `None` for an unquoted NULL.
fn parse(csv: &str) -> Vec<Vec<Option<String>>> {
    let (mut rows, mut row, mut chars) = (Vec::new(), Vec::new(), csv.chars().peekable());
    while chars.peek().is_some() {
        let mut field = String::new();
        let is_quoted = chars.next_if_eq(&'"').is_some();
        while let Some(c) = chars.next_if(|c| is_quoted || !matches!(c, ',' | '\r')) {
            if is_quoted && c == '"' && chars.next_if_eq(&'"').is_none() {
                break;
            }
            field.push(c);
        }
        row.push(Some(field).filter(|field| is_quoted || field != "NULL"));
        match chars.next() {
            Some(',') => {}
            Some('\r') => {
                assert_eq!(chars.next(), Some('\n'));
                rows.push(std::mem::take(&mut row));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(row.is_empty());
    rows
}

fn assert_says_the_same(column: &ColumnDefinition, line: &str, json: &Json, csv: Option<&String>) {
    let same = match (json, csv) {
        (Json::Null, None) => true,
        (Json::String(text), Some(field)) => text == field,
        (Json::Number(number), Some(field)) if column.form == Form::Number => {
            number.as_i64().is_some_and(|number| field.parse() == Ok(number))
        }
        (Json::Number(_), Some(field)) => {
            // Parsed from the text, since the JSON parser may be off by a bit.
            let (_, rest) = line.split_once(&format!("\"{}\":", column.name)).unwrap();
            let digits = rest.split([',', '}']).next().unwrap();
            digits.parse::<f64>().unwrap() == field.parse::<f64>().unwrap()
        }
        _ => false,
    };
    assert!(same, "{}: {json} {csv:?}", column.name);
}

fn load_csv(server: &Server, table: &TableDefinition, csv: Vec<u8>) {
    let (mut columns, mut sets) = (Vec::new(), Vec::new());
    for (place, column) in table.columns.iter().enumerate() {
        let name = format!("`{}`", column.name.replace('`', "``"));
        if column.form == Form::Bytes {
            columns.push(format!("@v{place}"));
            sets.push(format!("{name} = UNHEX(@v{place})"));
        } else {
            columns.push(name);
        }
    }
    let set = if sets.is_empty() { String::new() } else { format!(" SET {}", sets.join(", ")) };
    let name = format!("copy.`{}`", table.name.replace('`', "``"));
    let mut conn = server.conn().unwrap();
    let mut file = Some(csv);
    conn.set_local_infile_handler(Some(LocalInfileHandler::new(move |_, out| {
        std::io::copy(&mut Cursor::new(file.take().unwrap_or_default()), out).map(drop)
    })));
    for statement in [
        "SET NAMES utf8mb4".to_owned(),
        "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES', time_zone = '+00:00', foreign_key_checks = 0".to_owned(),
        format!("CREATE TABLE {name} LIKE torture.`{}`", table.name.replace('`', "``")),
        format!(
            "LOAD DATA LOCAL INFILE 'csv' INTO TABLE {name} CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\r\\n' IGNORE 1 LINES ({}){set}",
            columns.join(", ")
        ),
    ] {
        conn.query_drop(&statement).unwrap_or_else(|error| panic!("{error}: {statement}"));
    }
}

fn rows_come_back(kind: ServerKind) {
    let stage = Stage::with(kind, &["--local-infile=1"]);
    load_file(&stage.source, "torture.sql");
    let back_up = || {
        let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
        let history = History::read(&stage.repo, &log()).unwrap();
        Backup::open(&stage.repo, &history, RunNo(report.run.backup)).unwrap()
    };
    let rows = |backup: &Backup, table: &TableDefinition, format| {
        let mut out = Vec::new();
        let name = format!("{}.{}", table.schema, table.name).parse().unwrap();
        write(backup, &name, format, &mut out, &Cancel::default()).map(|count| (count, out))
    };
    let table = |backup: &Backup, name: &str| {
        let path = holdfast_repo::format::item::ItemPath::of_names([b"torture".as_slice(), name.as_bytes()])
            .unwrap();
        let item = backup.find(&path).unwrap().unwrap();
        let json = backup.definition(&item).unwrap().unwrap();
        let Definition::Table(table) = serde_json::from_slice(&json).unwrap() else { panic!("{name}") };
        table
    };
    // Columns that cannot be converted are refused by name.
    let backup = back_up();
    let error = rows(&backup, &table(&backup, "texts"), RowFormat::Csv).unwrap_err();
    assert!(error.to_string().contains("column sj has the character set sjis"), "{error}");
    stage.source.exec_all(WITHOUT_WHAT_CSV_CANNOT_SAY).unwrap();
    stage.source.exec("CREATE DATABASE copy").unwrap();
    let backup = back_up();
    let mut compared = 0;
    for name in [
        "numbers",
        "zero_id",
        "times",
        "texts",
        "members",
        "shapes",
        "documents",
        "computed",
        "key_text",
        "key_binary",
        "key_none",
        "key_decimal",
        "in_csv",
        "nothing",
        "by_range",
    ] {
        let table = table(&backup, name);
        let (count, csv) = rows(&backup, &table, RowFormat::Csv).unwrap();
        let (_, json) = rows(&backup, &table, RowFormat::JsonLines).unwrap();
        let parsed = parse(std::str::from_utf8(&csv).unwrap());
        let names: Vec<_> = table.columns.iter().map(|column| Some(column.name.clone())).collect();
        assert_eq!((&parsed[0], parsed.len() as u64), (&names, count + 1));
        let lines: Vec<&[u8]> = json.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len() as u64, count);
        for (line, fields) in lines.iter().zip(&parsed[1..]) {
            let object: serde_json::Map<String, Json> = serde_json::from_slice(line).unwrap();
            assert_eq!(object.len(), table.columns.len());
            for (column, field) in table.columns.iter().zip(fields) {
                assert_says_the_same(
                    column,
                    std::str::from_utf8(line).unwrap(),
                    &object[&column.name],
                    field.as_ref(),
                );
            }
        }
        load_csv(&stage.source, &table, csv);
        let sum = |schema: &str| {
            let sums = stage
                .source
                .query::<(String, Option<u64>)>(format!("CHECKSUM TABLE {schema}.{name}"))
                .unwrap();
            sums[0].1
        };
        assert_eq!(sum("torture"), sum("copy"), "{kind} {name}");
        compared += count;
    }
    assert!(compared > 1_000);
}

#[test]
fn rows_come_back_to_mariadb() {
    rows_come_back(ServerKind::MariaDb118);
}

#[test]
fn rows_come_back_to_mysql() {
    rows_come_back(ServerKind::MySql97);
}
