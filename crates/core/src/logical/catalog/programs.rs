//! Reads the definitions of everything that is not a table.

use holdfast_formats::Flavor;
use holdfast_repo::format::hex::to_hex;

use super::{
    listing::{Listing, TableKind},
    one, sql,
};
use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        selection::Selection,
        sql::{quoted, quoted_text},
        stored::definition::{
            Context, Definition, EventDefinition, ProgramDefinition, SchemaDefinition, SequenceDefinition,
            Sql, TriggerDefinition, ViewDefinition,
        },
    },
    server::{ByteRow, Session, SqlError, TableName},
};

/// Reads every definition that is not a table's or a sequence's. Two equal readings show that none of them
/// has changed in between.
pub(crate) fn programs(
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
pub(crate) fn sequence(session: &mut Session, name: &TableName) -> Result<SequenceDefinition> {
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

fn context(row: &ByteRow) -> Result<Context, SqlError> {
    Ok(Context {
        charset: row.text("character_set_client")?.to_owned(),
        collation: row.text("collation_connection")?.to_owned(),
        schema_collation: row.text("Database Collation")?.to_owned(),
        sql_mode: Some(row.text("sql_mode")?.to_owned()),
    })
}
