//! Lists the objects on the server, and reads the definitions of everything that is not a table.

use holdfast_formats::Flavor;
use holdfast_repo::format::hex::to_hex;

use super::{
    definition::{
        Context, Definition, EventDefinition, ProgramDefinition, SchemaDefinition, SequenceDefinition, Sql,
        TriggerDefinition, ViewDefinition,
    },
    selection::Selection,
};
use crate::{
    error::{Error, ErrorKind, Result},
    server::{ByteRow, Session, SqlError, TableName},
};

pub(super) use crate::server::tables::quoted;

/// The kind of table that a name denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TableKind {
    Base,
    /// MariaDB: a table with rows of the past.
    Versioned,
    View,
    Sequence,
}

/// A table, sequence or view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listed {
    pub(super) name: TableName,
    pub(super) kind: TableKind,
    /// `None` for views, and for tables that the server cannot open.
    pub(super) engine: Option<String>,
}

/// The selected schemas and tables of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) schemas: Vec<String>,
    pub(super) tables: Vec<Listed>,
}

impl Listing {
    /// Lists what is selected.
    pub(super) fn read(session: &mut Session, selection: &Selection) -> Result<Listing> {
        let (schemas, tables) = Self::read_all(session)?;
        let names: Vec<_> =
            tables.iter().map(|table| (table.name.schema.clone(), table.name.table.clone())).collect();
        selection.refuse_unknown(&schemas, &names)?;
        refuse_ndbinfo(session, &schemas, selection)?;
        Ok(Self::selected(schemas, tables, selection))
    }

    /// Lists again in the middle of a backup, when objects asked for by name may be gone.
    pub(super) fn read_again(session: &mut Session, selection: &Selection) -> Result<Listing, SqlError> {
        let (schemas, tables) = Self::read_all(session)?;
        Ok(Self::selected(schemas, tables, selection))
    }

    fn selected(schemas: Vec<String>, mut tables: Vec<Listed>, selection: &Selection) -> Listing {
        tables.retain(|table| selection.has_table(&table.name.schema, &table.name.table));
        let has_table = |schema: &String| tables.iter().any(|table| table.name.schema == *schema);
        let schemas =
            schemas.into_iter().filter(|schema| selection.has_whole(schema) || has_table(schema)).collect();
        Self { schemas, tables }
    }

    fn read_all(session: &mut Session) -> Result<(Vec<String>, Vec<Listed>), SqlError> {
        let rows = session.rows("SELECT schema_name AS s FROM information_schema.schemata")?;
        let mut schemas =
            rows.iter().map(|row| Ok(row.text("s")?.to_owned())).collect::<Result<Vec<_>, SqlError>>()?;
        // The server's own order ignores case, and differs each time.
        schemas.sort();
        let rows = session.rows(
            "SELECT table_schema AS s, table_name AS t, table_type AS k, engine AS e \
             FROM information_schema.tables WHERE CAST(table_schema AS BINARY) NOT IN \
             ('mysql', 'information_schema', 'performance_schema', 'sys', 'ndbinfo')",
        )?;
        let mut tables = Vec::with_capacity(rows.len());
        for row in &rows {
            let name = TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() };
            let engine = row.text_or_null("e")?.map(str::to_owned);
            let kind = match row.text("k")? {
                "BASE TABLE" => TableKind::Base,
                "SYSTEM VERSIONED" => TableKind::Versioned,
                "SEQUENCE" => TableKind::Sequence,
                "VIEW" => TableKind::View,
                // They belong to other sessions, and are gone with them.
                "TEMPORARY" | "LOCAL TEMPORARY" | "GLOBAL TEMPORARY" => continue,
                other => {
                    return Err(SqlError::unexpected(format_args!("{name} is a {other}")));
                }
            };
            tables.push(Listed { name, kind, engine });
        }
        tables.sort();
        Ok((schemas, tables))
    }

    /// Tables with rows, and sequences.
    pub(super) fn with_rows(&self) -> impl Iterator<Item = &Listed> {
        self.tables.iter().filter(|table| table.kind != TableKind::View)
    }
}

/// Refuses a database with the name of NDB's own on a server without NDB: it is a user's, and must not be
/// left out silently.
fn refuse_ndbinfo(session: &mut Session, schemas: &[String], selection: &Selection) -> Result<()> {
    const NAME: &str = "ndbinfo";
    if !schemas.iter().any(|schema| schema == NAME) || !selection.would_have(NAME) {
        return Ok(());
    }
    let query = "SELECT COUNT(*) FROM information_schema.engines \
                 WHERE engine = 'ndbinfo' AND support IN ('YES', 'DEFAULT')";
    if session.number::<u64>(query)? > 0 {
        return Ok(());
    }
    let text =
        format!("the database {NAME} has the name of one of NDB's own, which logical backups leave out");
    Err(Error::failed(text).hinted("give it another name, or leave it out: --exclude-database ndbinfo"))
}

/// Quotes a text for a statement in a session without `NO_BACKSLASH_ESCAPES`.
pub(crate) fn quoted_text(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// Makes the session show statements as they were stored.
pub(super) fn settle(session: &mut Session) -> Result<(), SqlError> {
    session.exec("SET SESSION character_set_results = NULL, sql_quote_show_create = 1")?;
    session.exec(match session.flavor() {
        Flavor::MariaDb => "SET SESSION max_recursive_iterations = 4294967295",
        Flavor::MySql => {
            // Outdated sizes would decide what is read first, and what is worth cutting.
            "SET SESSION print_identified_with_as_hex = 1, cte_max_recursion_depth = 4294967295, \
             show_gipk_in_create_table_and_information_schema = 1, information_schema_stats_expiry = 0"
        }
    })
}

/// Reads every definition that is not a table's or a sequence's. Two equal readings show that none of them
/// has changed in between.
pub(super) fn programs(
    session: &mut Session,
    listing: &Listing,
    selection: &Selection,
) -> Result<Vec<Definition>> {
    let mut definitions = Vec::new();
    let names = Names::read(session)?;
    for schema in &listing.schemas {
        definitions.push(Definition::Schema(schema_definition(session, &names, schema)?));
        if selection.has_whole(schema) {
            routines(session, &names, schema, &mut definitions)?;
            events(session, &names, schema, &mut definitions)?;
        }
        triggers(session, &names, schema, selection, &mut definitions)?;
    }
    views(session, listing, &mut definitions)?;
    Ok(definitions)
}

/// How a server compares database names. Even where these are case-sensitive, `information_schema` is not:
/// asked for the objects of `shop`, it also shows those of `Shop` and `shöp`.
struct Names {
    are_folded: bool,
}

impl Names {
    fn read(session: &mut Session) -> Result<Names, SqlError> {
        let are_folded = session.number::<u8>("SELECT @@GLOBAL.lower_case_table_names")? != 0;
        Ok(Names { are_folded })
    }

    /// The rows of a result that belong to a schema, by their column `s`.
    fn rows_of(&self, session: &mut Session, schema: &str, query: &str) -> Result<Vec<ByteRow>, SqlError> {
        let mut rows = Vec::new();
        for row in session.byte_rows(query)? {
            let found = row.text("s")?;
            if found == schema || self.are_folded && found.to_lowercase() == schema.to_lowercase() {
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

fn schema_definition(session: &mut Session, names: &Names, schema: &str) -> Result<SchemaDefinition> {
    let row = one(session, &format!("SHOW CREATE DATABASE {}", quoted(schema)))?;
    let create = sql(&row, "Create Database")?;
    let query = format!(
        "SELECT schema_name AS s, default_collation_name AS c FROM information_schema.schemata \
         WHERE schema_name = {}",
        quoted_text(schema)
    );
    let rows = names.rows_of(session, schema, &query)?;
    let row = rows.first().ok_or_else(|| SqlError::unexpected("no row").doing(query))?;
    let collation = row.text("c")?.to_owned();
    Ok(SchemaDefinition { schema: schema.to_owned(), create, collation })
}

fn routines(
    session: &mut Session,
    names: &Names,
    schema: &str,
    definitions: &mut Vec<Definition>,
) -> Result<()> {
    let query = format!(
        "SELECT routine_schema AS s, routine_name AS n, routine_type AS k, routine_definition AS b, \
         routine_comment AS c \
         FROM information_schema.routines WHERE routine_schema = {} ORDER BY routine_type, routine_name",
        quoted_text(schema)
    );
    for row in names.rows_of(session, schema, &query)? {
        let (name, kind) = (row.text("n")?.to_owned(), row.text("k")?.to_owned());
        let body = row.bytes_or_null("b")?.unwrap_or_default().to_vec();
        let comment = row.bytes_or_null("c")?.unwrap_or_default().to_vec();
        let column = match kind.as_str() {
            "PROCEDURE" => "Create Procedure",
            "FUNCTION" => "Create Function",
            "PACKAGE" => "Create Package",
            "PACKAGE BODY" => "Create Package Body",
            other => {
                let text = format!("{schema}.{name} is a {other}, which a logical backup cannot hold");
                let hint = "take a physical backup, or leave the database out (--exclude-database)";
                return Err(Error::failed(text).hinted(hint));
            }
        };
        let row = one(session, &format!("SHOW CREATE {kind} {}.{}", quoted(schema), quoted(&name)))?;
        let what = format!("{} {schema}.{name}", kind.to_lowercase());
        let create = row.bytes_or_null(column)?.ok_or_else(|| hidden(session.flavor(), &what))?;
        let context = context(&row)?;
        let create = with_comment(create, &comment, &context);
        definitions.push(Definition::Routine(ProgramDefinition {
            schema: schema.to_owned(),
            create: in_one_charset(session, &create, &body, &context.charset)?,
            context,
            name,
            kind,
        }));
    }
    Ok(())
}

/// Respells the comment in a statement so that it is read correctly under the program's own modes: servers
/// print it with backslash escapes, whatever these modes are.
fn with_comment(create: &[u8], comment: &[u8], context: &Context) -> Vec<u8> {
    let modes = context.sql_mode.as_deref().unwrap_or_default();
    if !modes.split(',').any(|mode| mode == "NO_BACKSLASH_ESCAPES") {
        return create.to_vec();
    }
    let literal = |spell: &dyn Fn(u8) -> Vec<u8>| {
        let text: Vec<u8> = comment.iter().flat_map(|byte| spell(*byte)).collect();
        [b"COMMENT '", text.as_slice(), b"'"].concat()
    };
    let as_printed = literal(&|byte| match byte {
        b'\\' => b"\\\\".to_vec(),
        b'\0' => b"\\0".to_vec(),
        b'\n' => b"\\n".to_vec(),
        b'\r' => b"\\r".to_vec(),
        b'\'' => b"''".to_vec(),
        _ => vec![byte],
    });
    let as_meant = literal(&|byte| if byte == b'\'' { b"''".to_vec() } else { vec![byte] });
    // The comment comes before the body.
    match create.windows(as_printed.len()).position(|it| it == as_printed) {
        Some(at) => [&create[..at], &as_meant, &create[at + as_printed.len()..]].concat(),
        None => create.to_vec(),
    }
}

/// Converts a whole statement to the character set that it will be run under. Servers return the body of a
/// program as its author's client sent it, and print the names and comments before it in UTF-8. `body` is the
/// body in UTF-8.
fn in_one_charset(session: &mut Session, create: &[u8], body: &[u8], charset: &str) -> Result<Sql> {
    let unchanged = Ok(Sql(create.to_vec()));
    if create.is_ascii() || charset.starts_with("utf8") || charset == "binary" {
        return unchanged;
    }
    let body = converted(session, body, "utf8mb4", charset)?;
    // If the body differs from its text, as with literals in other character sets, the statement stays as it
    // came.
    let Some(head) = create.strip_suffix(body.as_slice()).filter(|head| !head.is_ascii()) else {
        return unchanged;
    };
    let converted_head = converted(session, head, "utf8mb4", charset)?;
    if converted(session, &converted_head, charset, "utf8mb4")? != head {
        return unchanged;
    }
    Ok(Sql([converted_head, body].concat()))
}

fn converted(session: &mut Session, text: &[u8], from: &str, to: &str) -> Result<Vec<u8>> {
    let query = format!("SELECT CAST(CONVERT(_{from} x'{}' USING {to}) AS BINARY) AS c", to_hex(text));
    Ok(one(session, &query)?.bytes_or_null("c")?.unwrap_or_default().to_vec())
}

fn hidden(flavor: Flavor, what: &str) -> Error {
    let grant = match flavor {
        Flavor::MariaDb => "GRANT SELECT ON mysql.proc TO the backup's account;",
        Flavor::MySql => "GRANT SHOW_ROUTINE ON *.* TO the backup's account;",
    };
    Error::new(ErrorKind::Server, format!("the server does not show the text of {what}")).hinted(grant)
}

fn events(
    session: &mut Session,
    names: &Names,
    schema: &str,
    definitions: &mut Vec<Definition>,
) -> Result<()> {
    let query = format!(
        "SELECT event_schema AS s, event_name AS n, event_definition AS b, event_comment AS c \
         FROM information_schema.events WHERE event_schema = {} ORDER BY event_name",
        quoted_text(schema)
    );
    for row in names.rows_of(session, schema, &query)? {
        let name = row.text("n")?.to_owned();
        let body = row.bytes_or_null("b")?.unwrap_or_default().to_vec();
        let comment = row.bytes_or_null("c")?.unwrap_or_default().to_vec();
        let row = one(session, &format!("SHOW CREATE EVENT {}.{}", quoted(schema), quoted(&name)))?;
        let context = context(&row)?;
        let create = with_comment(&sql(&row, "Create Event")?.0, &comment, &context);
        definitions.push(Definition::Event(EventDefinition {
            schema: schema.to_owned(),
            name,
            time_zone: row.text("time_zone")?.to_owned(),
            create: in_one_charset(session, &create, &body, &context.charset)?,
            context,
        }));
    }
    Ok(())
}

fn triggers(
    session: &mut Session,
    names: &Names,
    schema: &str,
    selection: &Selection,
    definitions: &mut Vec<Definition>,
) -> Result<()> {
    // A trigger is in the schema of its table. Only a condition on the latter lets MariaDB find it without
    // opening all tables of the server.
    let query = format!(
        "SELECT event_object_schema AS s, trigger_name AS n, event_object_table AS t, \
         CONCAT(action_timing, ' ', event_manipulation) AS w, action_order AS o \
         FROM information_schema.triggers WHERE event_object_schema = {} \
         ORDER BY event_object_table, action_timing, event_manipulation, action_order, trigger_name",
        quoted_text(schema)
    );
    for row in names.rows_of(session, schema, &query)? {
        let (name, table) = (row.text("n")?.to_owned(), row.text("t")?.to_owned());
        if !selection.has_table(schema, &table) {
            continue;
        }
        let when = row.text("w")?.to_owned();
        let order = row.text("o")?;
        let order = order.parse().map_err(|_| SqlError::unexpected(format_args!("order {order:?}")))?;
        let row = one(session, &format!("SHOW CREATE TRIGGER {}.{}", quoted(schema), quoted(&name)))?;
        definitions.push(Definition::Trigger(TriggerDefinition {
            schema: schema.to_owned(),
            name,
            table,
            when,
            order,
            create: sql(&row, "SQL Original Statement")?,
            context: context(&row)?,
        }));
    }
    Ok(())
}

fn views(session: &mut Session, listing: &Listing, definitions: &mut Vec<Definition>) -> Result<()> {
    for view in listing.tables.iter().filter(|table| table.kind == TableKind::View) {
        let TableName { schema, table } = &view.name;
        let query = format!("SHOW CREATE VIEW {}", view.name.quoted());
        let row = one(session, &query).map_err(|error| {
            error.hinted(format!(
                "GRANT SHOW VIEW, SELECT ON {}.* TO the backup's account; or leave it out: --exclude-table {}",
                quoted(schema),
                view.name
            ))
        })?;
        // A view that is not valid has none: tables it needs are gone.
        let query = format!(
            "SELECT column_name AS c FROM information_schema.columns \
             WHERE table_schema = {} AND table_name = {} ORDER BY ordinal_position",
            quoted_text(schema),
            quoted_text(table)
        );
        let columns = session.byte_rows(&query)?;
        let columns =
            columns.iter().map(|row| Ok(row.text("c")?.to_owned())).collect::<Result<_, SqlError>>()?;
        definitions.push(Definition::View(ViewDefinition {
            schema: schema.clone(),
            name: table.clone(),
            columns,
            create: sql(&row, "Create View")?,
            context: Context {
                charset: row.text("character_set_client")?.to_owned(),
                collation: row.text("collation_connection")?.to_owned(),
                schema_collation: String::new(),
                sql_mode: None,
            },
        }));
    }
    Ok(())
}

/// Reads a sequence. It is not part of any view: the server hands out numbers outside of transactions, so its
/// current state is read, which is never behind any row that has taken a number.
pub(super) fn sequence(session: &mut Session, name: &TableName) -> Result<SequenceDefinition> {
    let row = one(session, &format!("SHOW CREATE SEQUENCE {}", name.quoted()))?;
    let create = sql(&row, "Create Table")?;
    let row = one(session, &format!("SELECT * FROM {}", name.quoted()))?;
    let state = row.values().iter().map(|value| {
        let text = value.as_ref().and_then(|value| String::from_utf8(value.clone()).ok());
        let text = text.filter(|text| text.bytes().all(|c| c.is_ascii_digit() || c == b'-'));
        text.ok_or_else(|| SqlError::unexpected(format_args!("the state of {name} is not made of numbers")))
    });
    let state = state.collect::<Result<_, _>>()?;
    Ok(SequenceDefinition { schema: name.schema.clone(), name: name.table.clone(), create, state })
}

/// The single row of a result.
pub(super) fn one(session: &mut Session, query: &str) -> Result<ByteRow> {
    let row = session.byte_rows(query)?.into_iter().next();
    Ok(row.ok_or_else(|| SqlError::unexpected("no row").doing(query))?)
}

/// A statement that must not be NULL.
pub(super) fn sql(row: &ByteRow, column: &str) -> Result<Sql, SqlError> {
    let statement = row.bytes_or_null(column)?;
    let statement = statement.ok_or_else(|| SqlError::unexpected(format_args!("{column} is NULL")))?;
    Ok(Sql(statement.to_vec()))
}

fn context(row: &ByteRow) -> Result<Context, SqlError> {
    Ok(Context {
        charset: row.text("character_set_client")?.to_owned(),
        collation: row.text("collation_connection")?.to_owned(),
        schema_collation: row.text("Database Collation")?.to_owned(),
        sql_mode: Some(row.text("sql_mode")?.to_owned()),
    })
}
