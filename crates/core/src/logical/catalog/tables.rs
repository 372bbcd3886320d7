//! Reads all that must be known of a table to read its rows so that they can be put back bit for bit.
//!
//! Computed columns are not read, invisible ones are. Values come as they are stored ([`Form`] says how),
//! with the key columns first, so that the beginning of each row tells where it belongs.

use std::collections::HashMap;

use holdfast_formats::Flavor;

use super::{
    listing::{Listed, TableKind},
    members, one, references, sql,
};
use crate::{
    error::{Error, Result},
    logical::{
        selection::Selection,
        sql::{Kind, Token, quoted, quoted_text, tokens},
        stored::definition::{
            ColumnDefinition, ComputedDefinition, Direction, Form, KeyDefinition, Rows, Sql, TableDefinition,
        },
    },
    server::{ByteRow, Session, SqlError, TableName},
};

/// Period columns that MariaDB adds to a table with history if none are named.
const ROW_START: &str = "row_start";
const ROW_END: &str = "row_end";
/// Generation expressions of the period columns, as the server shows them.
const ROW_START_EXPRESSION: &str = "ROW START";
const ROW_END_EXPRESSION: &str = "ROW END";

/// How the rows of an engine are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineKind {
    /// The engine has consistent views.
    Views,
    /// The engine has no consistent views: its tables are locked while they are read.
    Locked,
    /// The engine's tables hold no rows of their own on this server.
    NoRows,
}

impl EngineKind {
    pub(crate) fn of(engine: &str) -> Self {
        match engine.to_ascii_uppercase().as_str() {
            "INNODB" => Self::Views,
            "BLACKHOLE" | "FEDERATED" | "CONNECT" | "SPIDER" | "MRG_MYISAM" => Self::NoRows,
            _ => Self::Locked,
        }
    }
}

/// A table to be read.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) definition: TableDefinition,
    pub(crate) name: TableName,
    /// Estimated by the server.
    pub(crate) bytes_estimated: u64,
    pub(crate) rows_estimated: u64,
    /// MariaDB: columns whose default it may print otherwise than it uses it.
    pub(crate) misprinted_defaults: Vec<String>,
}

/// Reads the definitions of the listed tables of one schema.
pub(crate) fn of_schema(
    session: &mut Session,
    schema: &str,
    listed: &[&Listed],
    selection: &Selection,
) -> Result<Vec<Table>> {
    let mut columns = grouped(
        session,
        &format!(
            "SELECT table_name AS t, column_name AS c, data_type AS d, column_type AS ct, \
             character_set_name AS cs, collation_name AS co, generation_expression AS g, \
             column_default AS df, extra AS x \
             FROM information_schema.columns WHERE table_schema = {} ORDER BY table_name, ordinal_position",
            quoted_text(schema)
        ),
    )?;
    let mut keys = grouped(
        session,
        &format!(
            "SELECT table_name AS t, index_name AS i, column_name AS c, sub_part AS p, collation AS d, \
             nullable AS n, index_type AS it FROM information_schema.statistics \
             WHERE table_schema = {} AND non_unique = 0 AND {} ORDER BY table_name, index_name, seq_in_index",
            quoted_text(schema),
            // `FORCE INDEX` cannot name other indexes.
            match session.flavor() {
                Flavor::MariaDb => "ignored = 'NO'",
                Flavor::MySql => "is_visible = 'YES'",
            }
        ),
    )?;
    let mut sizes = grouped(
        session,
        &format!(
            "SELECT table_name AS t, table_rows AS r, data_length AS b \
             FROM information_schema.tables WHERE table_schema = {}",
            quoted_text(schema)
        ),
    )?;
    let mut tables = Vec::with_capacity(listed.len());
    for table in listed {
        let name = &table.name.table;
        let take = |rows: &mut HashMap<String, Vec<ByteRow>>| rows.remove(name).unwrap_or_default();
        let (columns, keys, sizes) = (take(&mut columns), take(&mut keys), take(&mut sizes));
        let definition = definition(session, table, &columns, &keys, selection)
            .map_err(|error| error.context(format_args!("table {}", table.name)))?;
        let mut misprinted_defaults = Vec::new();
        if session.flavor() == Flavor::MariaDb {
            for row in &columns {
                let default = row.bytes_or_null("df")?.unwrap_or_default();
                if is_misprinted(row.text("d")?, &tokens(default)) {
                    misprinted_defaults.push(row.text("c")?.to_owned());
                }
            }
        }
        let size = |column| {
            let text = sizes.first().and_then(|row| row.text(column).ok());
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        tables.push(Table {
            definition,
            name: table.name.clone(),
            rows_estimated: size("r"),
            bytes_estimated: size("b"),
            misprinted_defaults,
        });
    }
    Ok(tables)
}

fn grouped(session: &mut Session, query: &str) -> Result<HashMap<String, Vec<ByteRow>>, SqlError> {
    let mut groups = HashMap::<String, Vec<ByteRow>>::new();
    for row in session.byte_rows(query)? {
        groups.entry(row.text("t")?.to_owned()).or_default().push(row);
    }
    Ok(groups)
}

fn definition(
    session: &mut Session,
    table: &Listed,
    columns: &[ByteRow],
    keys: &[ByteRow],
    selection: &Selection,
) -> Result<TableDefinition> {
    let TableName { schema, table: name } = &table.name;
    let engine = table.engine.clone().ok_or_else(|| {
        Error::failed("the server cannot open it")
            .hinted("repair or drop it, or leave it out (--exclude-table)")
    })?;
    let mut create: Sql =
        sql(&one(session, &format!("SHOW CREATE TABLE {}", table.name.quoted()))?, "Create Table")?;
    let has_history = table.kind == TableKind::Versioned;
    let period = has_history.then(|| Period::of(columns)).transpose()?;
    let mut stored = Vec::with_capacity(columns.len());
    let mut computed = Vec::new();
    for row in columns {
        let expression = row.bytes_or_null("g")?.unwrap_or_default();
        let is_period = [ROW_START_EXPRESSION, ROW_END_EXPRESSION]
            .iter()
            .any(|it| expression.eq_ignore_ascii_case(it.as_bytes()));
        if expression.is_empty() {
            stored.push(column(row)?);
        } else if !is_period && row.text("x")?.to_ascii_uppercase().contains("STORED GENERATED") {
            computed.push(column(row)?);
        }
    }
    let computed =
        (!computed.is_empty()).then(|| ComputedDefinition { columns: computed, checksum: String::new() });
    let mut defaults = Vec::new();
    if session.flavor() == Flavor::MariaDb {
        defaults = hidden_defaults(session, &table.name, columns)?;
        create.0 = references::spelled(session, &table.name, create.0)?;
    }
    for row in columns.iter().filter(|row| has_wide_characters(row)) {
        if !matches!(row.text("d")?.to_ascii_lowercase().as_str(), "enum" | "set") {
            continue;
        }
        let (column, column_type) = (row.text("c")?, row.text("ct")?);
        let Some(hidden) = members::hidden(session, &table.name, column, column_type)? else { continue };
        // The server accepts no default that is not a member, not even for a moment.
        let default = defaults.iter().position(|(name, _)| name == column).map(|at| defaults.remove(at).1);
        create.0 = hidden.spell(&create.0, default.as_deref()).ok_or_else(|| {
            Error::failed(format!("the definition of column {column} is not understood: {column_type}"))
        })?;
        for stored in stored.iter_mut().filter(|stored| stored.name == column) {
            stored.column_type = hidden.column_type(column_type);
        }
    }
    let mut key = key(keys, &stored, engine.eq_ignore_ascii_case("MEMORY"));
    if let Some((names, key)) = &mut key {
        key.is_comparable &= !is_misjudged(session.flavor(), names, columns, &create);
    }
    if let Some(period) = &period {
        stored.extend([period.start.clone(), period.end.clone()]);
        if let Some(key) = &mut key {
            key.0.push(period.end.name.clone());
            key.1.directions.push(Direction::Ascending);
            // The index orders rows of the past by something that no statement can name.
            key.1.is_comparable = false;
        }
    }
    let key = key.map(|(names, key)| {
        let place = |column: &ColumnDefinition| {
            names.iter().position(|name| *name == column.name).unwrap_or(names.len())
        };
        stored.sort_by_key(place);
        key
    });
    let rows = match EngineKind::of(&engine) {
        EngineKind::Views => Rows::Consistent,
        EngineKind::Locked => Rows::Locked,
        EngineKind::NoRows => Rows::None,
    };
    Ok(TableDefinition {
        schema: schema.clone(),
        name: name.clone(),
        engine,
        create,
        columns: stored,
        key,
        rows,
        has_history,
        condition: selection.condition(schema, name).map(str::to_owned),
        defaults,
        computed,
    })
}

/// The period during which a row of a table with history is, or was, valid.
struct Period {
    start: ColumnDefinition,
    end: ColumnDefinition,
}

impl Period {
    fn of(columns: &[ByteRow]) -> Result<Period> {
        let named = |expression: &str| {
            columns.iter().find(|row| row.text("g").is_ok_and(|text| text.eq_ignore_ascii_case(expression)))
        };
        let implicit = |name: &str| ColumnDefinition {
            name: name.to_owned(),
            column_type: "timestamp(6)".to_owned(),
            form: Form::Ascii,
            charset: None,
        };
        match (named(ROW_START_EXPRESSION), named(ROW_END_EXPRESSION)) {
            (Some(start), Some(end)) => {
                let (start, end) = (column(start)?, column(end)?);
                if end.form != Form::Ascii {
                    return Err(Error::failed(
                        "its history is kept by transaction numbers, which mean nothing on another server",
                    )
                    .hinted("leave it out (--exclude-table), or keep its history by time stamps"));
                }
                Ok(Period { start, end })
            }
            _ => Ok(Period { start: implicit(ROW_START), end: implicit(ROW_END) }),
        }
    }
}

fn column(row: &ByteRow) -> Result<ColumnDefinition> {
    let (name, data_type) = (row.text("c")?, row.text("d")?.to_ascii_lowercase());
    let charset = row.bytes_or_null("cs")?.map(|name| String::from_utf8_lossy(name).into_owned());
    let form = form(&data_type, charset.as_deref()).ok_or_else(|| {
        Error::failed(format!("column {name} has the type {data_type}, which is not supported"))
    })?;
    let charset = charset.filter(|_| form == Form::Text);
    Ok(ColumnDefinition { name: name.to_owned(), column_type: row.text("ct")?.to_owned(), form, charset })
}

fn form(data_type: &str, charset: Option<&str>) -> Option<Form> {
    Some(match data_type {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "decimal" => Form::Number,
        "float" | "double" => Form::Float,
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => {
            if charset.is_some() {
                Form::Text
            } else {
                Form::Bytes
            }
        }
        "json" => Form::Json,
        "enum" | "set" => Form::Members,
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" | "bit" | "vector" => {
            Form::Bytes
        }
        "geometry" | "point" | "linestring" | "polygon" | "multipoint" | "multilinestring"
        | "multipolygon" | "geometrycollection" | "geomcollection" => Form::Bytes,
        "date" | "time" | "datetime" | "timestamp" | "year" | "inet4" | "inet6" | "uuid" => Form::Ascii,
        _ => return None,
    })
}

/// Finds a key that identifies rows, preferring the primary key. Returns its column names and the key.
///
/// Rows cannot be read in order by a hash index: the server would sort, and compare at most `max_sort_length`
/// bytes of a value, so the rows that a `LIMIT` leaves for the next statement need not come after those
/// already read. MariaDB has such keys over long text in InnoDB (no key to us), and both servers have them in
/// `MEMORY`.
fn key(
    rows: &[ByteRow],
    stored: &[ColumnDefinition],
    is_in_memory: bool,
) -> Option<(Vec<String>, KeyDefinition)> {
    let mut indexes: Vec<(&str, Vec<&ByteRow>)> = Vec::new();
    for row in rows {
        let index = row.text("i").ok()?;
        match indexes.last_mut() {
            Some((name, parts)) if *name == index => parts.push(row),
            _ => indexes.push((index, vec![row])),
        }
    }
    // The primary key comes before all others.
    indexes.sort_by_key(|(name, _)| *name != "PRIMARY");
    indexes.into_iter().find_map(|(index, parts)| {
        let mut key = KeyDefinition { index: index.to_owned(), directions: Vec::new(), is_comparable: true };
        let mut names = Vec::new();
        for part in parts {
            let is_null = |column| part.bytes_or_null(column).is_ok_and(|value| value.is_none());
            // A column prefix, an expression or a nullable column gives no order.
            if !is_null("p") || part.text("n").is_ok_and(|nullable| nullable == "YES") {
                return None;
            }
            match part.text("it").ok()? {
                "BTREE" => {}
                "HASH" if is_in_memory => key.is_comparable = false,
                _ => return None,
            }
            let name = part.text("c").ok()?;
            let column = stored.iter().find(|column| column.name == name)?;
            key.is_comparable &= is_comparable(column);
            key.directions.push(match part.text("d") {
                Ok("D") => Direction::Descending,
                _ => Direction::Ascending,
            });
            names.push(name.to_owned());
        }
        Some((names, key))
    })
}

/// Whether a value read from this column means the same to the server when written as a literal.
fn is_comparable(column: &ColumnDefinition) -> bool {
    let column_type = column.column_type.to_ascii_lowercase();
    let is_bits = column_type.starts_with("bit") || column_type.starts_with("vector");
    match column.form {
        Form::Number | Form::Text => true,
        Form::Bytes => column_type.contains("binary") && !is_bits,
        // Years before 1970 look like two-digit ones.
        Form::Ascii => !column_type.starts_with("year"),
        Form::Float | Form::Json | Form::Members => false,
    }
}

/// Whether a statement may find other rows beyond a value of the key `names` than come after it in the index.
fn is_misjudged(flavor: Flavor, names: &[String], columns: &[ByteRow], create: &Sql) -> bool {
    let of_key = || columns.iter().filter(|row| row.text("c").is_ok_and(|c| names.iter().any(|it| it == c)));
    of_key().any(|row| is_padded_only_in_the_index(flavor, row))
        || (of_key().any(is_date) && is_partitioned_by_expression(create))
}

/// MariaDB's InnoDB orders `CHAR` padded with spaces whatever the collation says; a collation that does not pad
/// compares otherwise: `'a\t'` comes before `'a'` in the index and after it in a statement (10.11 and 11.8).
fn is_padded_only_in_the_index(flavor: Flavor, column: &ByteRow) -> bool {
    let collation = column.bytes_or_null("co").ok().flatten().unwrap_or_default().to_ascii_lowercase();
    let collation = String::from_utf8_lossy(&collation);
    flavor == Flavor::MariaDb
        && column.text("d").is_ok_and(|data_type| data_type.eq_ignore_ascii_case("char"))
        && does_not_pad(&collation)
}

/// Whether MariaDB's collation of this name takes `a` and `a` with a space for different.
pub(crate) fn does_not_pad(collation: &str) -> bool {
    ["nopad", "0900"].iter().any(|not_padding| collation.contains(not_padding))
}

fn is_date(column: &ByteRow) -> bool {
    column.text("d").is_ok_and(|data_type| {
        ["date", "datetime", "timestamp"].iter().any(|date| data_type.eq_ignore_ascii_case(date))
    })
}

/// Whether rows are in partitions by an expression. For invalid dates (`2020-02-31`), servers look in other
/// partitions than those in which such rows are.
fn is_partitioned_by_expression(create: &Sql) -> bool {
    let create = String::from_utf8_lossy(&create.0);
    let clauses = create.split("PARTITION BY ").skip(1);
    clauses.map(str::trim_start).any(|clause| {
        let kind = clause.split('(').next().unwrap_or_default();
        !kind.contains("COLUMNS") && !kind.contains("KEY")
    })
}

/// Whether a column's character set has four-byte characters, which servers cannot show in definitions.
fn has_wide_characters(row: &ByteRow) -> bool {
    let charset = row.bytes_or_null("cs").ok().flatten();
    charset.is_some_and(|name| [&b"utf8mb4"[..], b"utf16", b"utf16le", b"utf32"].contains(&name))
}

fn is_long_text(row: &ByteRow) -> bool {
    row.text("d").is_ok_and(|data_type| data_type.to_ascii_lowercase().ends_with("text"))
}

/// Reads the defaults that MariaDB cannot show.
///
/// MariaDB shows defaults in a three-byte character set, so a character that needs four bytes becomes `?`.
/// The server itself still knows the value. A default of `TEXT` it keeps as an expression, which it shows as
/// it is, and would show as something else if it were given in hex digits.
fn hidden_defaults(
    session: &mut Session,
    table: &TableName,
    columns: &[ByteRow],
) -> Result<Vec<(String, String)>, SqlError> {
    let mut found = Vec::new();
    for row in columns.iter().filter(|row| has_wide_characters(row) && !is_long_text(row)) {
        let (shown, charset) = (row.bytes_or_null("df")?.unwrap_or_default(), row.text("cs")?);
        // Only literals begin with a quote; expressions do not.
        if !shown.starts_with(b"'") || !shown.contains(&b'?') {
            continue;
        }
        let column = row.text("c")?;
        // Without a row, a column that cannot be NULL has no default to show. The derived table has a row,
        // and the default with it.
        let query = format!(
            "SELECT HEX(DEFAULT(d.{c})) FROM \
             (SELECT x.one, t.{c} FROM (SELECT 1 AS one) AS x LEFT JOIN {t} AS t ON FALSE LIMIT 1) AS d",
            c = quoted(column),
            t = table.quoted()
        );
        match session.value(&query)? {
            Some(hex) => found.push((column.to_owned(), format!("_{charset} x'{hex}'"))),
            None if matches!(tokens(shown).as_slice(), [text] if text.kind == Kind::Text) => {
                return Err(SqlError::unexpected(format_args!("column {column} has no default")).doing(query));
            }
            None => {}
        }
    }
    Ok(found)
}

/// Whether MariaDB may print this default otherwise than it uses it. In an expression it prints bytes of
/// another character set, and those of any that is named, as hex digits that have lost their backslash (seen
/// on 10.11 and 11.8): ``concat(_utf8mb4'xC3xA9','x')``. If the expression is constant, new rows get the
/// value that it had when the table was made, which no statement shows. `TEXT` and `BLOB` have no such value:
/// they use what is printed.
pub(crate) fn is_misprinted(data_type: &str, default: &[Token<'_>]) -> bool {
    let data_type = data_type.to_ascii_lowercase();
    let is_expression = default.iter().filter(|token| token.kind != Kind::Space).count() > 1;
    let is_byte = |text: &[u8]| matches!(text, [b'x', b'8'..=b'9' | b'A'..=b'F', b'0'..=b'9' | b'A'..=b'F']);
    is_expression
        && !["text", "blob"].iter().any(|it| data_type.ends_with(it))
        && default.iter().any(|token| token.kind == Kind::Text && token.bytes.windows(3).any(is_byte))
}

impl Table {
    /// `SELECT` of the stored columns, then of the computed ones, up to and including the table.
    pub(crate) fn select(&self) -> String {
        let columns = self.definition.columns.iter().chain(self.computed_columns());
        let expressions: Vec<String> = columns.map(Self::expression).collect();
        self.select_as(&expressions)
    }

    /// The computed columns that are read.
    pub(crate) fn computed_columns(&self) -> &[ColumnDefinition] {
        self.definition.computed.as_ref().map(|computed| computed.columns.as_slice()).unwrap_or_default()
    }

    /// The expression by which a column is read.
    pub(crate) fn expression(column: &ColumnDefinition) -> String {
        let name = quoted(&column.name);
        match column.form {
            Form::Members => format!("CAST({name} AS UNSIGNED)"),
            Form::Float if column.column_type != "double" => format!("CAST({name} AS DOUBLE)"),
            _ => name,
        }
    }

    /// As [`select`](Self::select), with other expressions for the columns.
    pub(crate) fn select_as(&self, expressions: &[String]) -> String {
        // Otherwise a write that waits for our lock of a table without transactions would make this read wait
        // behind it.
        format!("SELECT HIGH_PRIORITY {} FROM {}", expressions.join(", "), self.place())
    }

    /// The table in a `FROM` clause, with the index that gives its order.
    pub(crate) fn place(&self) -> String {
        let mut text = self.name.quoted();
        if self.definition.has_history {
            text.push_str(" FOR SYSTEM_TIME ALL");
        }
        // In a table with history, only part of the key is in the index.
        if let Some(key) = self.definition.key.as_ref().filter(|_| !self.definition.has_history) {
            text.push_str(&format!(" FORCE INDEX ({})", quoted(&key.index)));
        }
        text
    }

    /// The first columns, which form the key.
    pub(crate) fn key_columns(&self) -> &[ColumnDefinition] {
        let count = self.definition.key.as_ref().map_or(0, |key| key.directions.len());
        &self.definition.columns[..count.min(self.definition.columns.len())]
    }

    /// Whether it can be read in ranges.
    pub(crate) fn can_be_cut(&self) -> bool {
        self.definition.key.as_ref().is_some_and(|key| key.is_comparable)
    }
}
