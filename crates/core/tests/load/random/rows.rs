//! The rows of two servers, bit by bit, read with the binary protocol, in which floats are not text.

use std::collections::BTreeMap;

use holdfast_testkit::{Server, data::names::quoted};
use mysql::{Conn, Row, Value, prelude::Queryable};

const OWN: &str = "('mysql', 'sys', 'information_schema', 'performance_schema')";

/// A table by database and name.
pub(super) type Name = (String, String);

/// A column, and the expression that reads it.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) data_type: String,
    pub(super) is_computed: bool,
    read: String,
}

impl Column {
    /// Whether its number is read in addition to its text.
    pub(super) fn is_of_members(&self) -> bool {
        matches!(self.data_type.as_str(), "enum" | "set")
    }
}

/// The names of databases that are not the server's own.
pub(super) fn databases(server: &Server) -> Vec<String> {
    let query = format!(
        "SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT IN {OWN} ORDER BY 1"
    );
    server.query(query).unwrap()
}

/// Drops all databases that are not the server's own.
pub(in crate::load) fn wipe(server: &Server) {
    let mut conn = server.conn().unwrap();
    conn.query_drop("SET SESSION foreign_key_checks = 0").unwrap();
    for name in databases(server) {
        conn.query_drop(format!("DROP DATABASE {}", quoted(&name))).unwrap();
    }
}

/// All tables, with their types.
pub(super) fn tables(server: &Server) -> BTreeMap<Name, String> {
    let query = format!(
        "SELECT table_schema, table_name, table_type FROM information_schema.tables
         WHERE table_schema NOT IN {OWN} AND table_type NOT LIKE '%VIEW%'"
    );
    let rows: Vec<(String, String, String)> = server.query(query).unwrap();
    rows.into_iter().map(|(schema, name, kind)| ((schema, name), kind)).collect()
}

/// A connection without character set conversion.
pub(super) fn plain_conn(server: &Server) -> Conn {
    let mut conn = server.conn().unwrap();
    conn.query_drop("SET NAMES utf8mb4").unwrap();
    conn.query_drop("SET SESSION time_zone = '+00:00', character_set_results = NULL").unwrap();
    conn
}

/// The columns of a table, including invisible and computed ones.
pub(super) fn columns(server: &Server, (schema, name): &Name) -> Vec<Column> {
    let mut conn = server.conn().unwrap();
    let query = "SELECT column_name, CONCAT(data_type, ''), COALESCE(generation_expression, '') <> '' FROM information_schema.columns
                 WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position";
    let rows: Vec<(String, String, bool)> = conn.exec(query, (schema, name)).unwrap();
    let column = |(name, data_type, is_computed): (String, String, bool)| {
        let read = match data_type.as_str() {
            // Members may have equal texts, and an invalid member is an empty text, too.
            "enum" | "set" => format!("{0}, CAST({0} AS UNSIGNED)", quoted(&name)),
            _ => quoted(&name),
        };
        Column { data_type, is_computed, read }
    };
    rows.into_iter().map(column).collect()
}

/// Reads every row, in no particular order.
pub(super) fn rows(
    conn: &mut Conn,
    (schema, name): &Name,
    columns: &[Column],
    kind: &str,
) -> Vec<Vec<Value>> {
    let mut read: Vec<&str> = columns.iter().map(|column| column.read.as_str()).collect();
    let mut of = format!("{}.{}", quoted(schema), quoted(name));
    if kind == "SYSTEM VERSIONED" {
        read.extend(["ROW_START", "ROW_END"]);
        of.push_str(" FOR SYSTEM_TIME ALL");
    }
    let rows: Vec<Row> = conn.exec(format!("SELECT {} FROM {of}", read.join(", ")), ()).unwrap();
    rows.into_iter().map(Row::unwrap).collect()
}

/// A unique text for a value.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => format!("'{}'", bytes.escape_ascii()),
        Value::Float(number) => format!("{number:e} ({:08x})", number.to_bits()),
        Value::Double(number) => format!("{number:e} ({:016x})", number.to_bits()),
        other => format!("{other:?}"),
    }
}

/// All rows of a table in an order that depends only on their contents.
fn sorted(server: &Server, name: &Name, kind: &str) -> Vec<String> {
    let columns = columns(server, name);
    let rows = rows(&mut plain_conn(server), name, &columns, kind);
    let mut rows: Vec<String> =
        rows.iter().map(|row| row.iter().map(shown).collect::<Vec<_>>().join(", ")).collect();
    rows.sort();
    rows
}

/// Fails with rows that only one server has.
/// `renamed` maps a database of the source to its name on the target.
pub(in crate::load) fn assert_equal(source: &Server, target: &Server, renamed: &dyn Fn(&str) -> String) {
    let (theirs, ours) = (tables(source), tables(target));
    for (name, kind) in &theirs {
        let other = (renamed(&name.0), name.1.clone());
        assert_eq!(ours.get(&other), Some(kind), "{other:?}");
        assert_same(name, &sorted(source, name, kind), &sorted(target, &other, kind));
    }
    assert_eq!(ours.len(), theirs.len(), "{ours:?} {theirs:?}");
}

/// A formatted row without the signs of zeros.
pub(super) fn unsigned_zeros(row: &str) -> String {
    row.replace("-0e0 (8000000000000000)", "0e0 (0000000000000000)")
        .replace("-0e0 (80000000)", "0e0 (00000000)")
}

/// Fails unless both have the same rows in the same order.
pub(super) fn assert_same(name: &Name, theirs: &[String], ours: &[String]) {
    if let Some((one, other)) = theirs.iter().zip(ours).find(|(one, other)| one != other) {
        let differing = one.split(", ").zip(other.split(", ")).filter(|(one, other)| one != other);
        let differing: Vec<_> = differing.take(3).collect();
        panic!("{name:?}: a row of the source, and one of the target: {differing:#?}");
    }
    assert_eq!(theirs.len(), ours.len(), "rows of {name:?}");
}
