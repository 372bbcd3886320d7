//! Foreign keys, once every table they could lead to is there.

use std::collections::BTreeSet;

use super::{
    link::Link,
    plan::Plan,
    progress::{Progress, Stage},
    target::Target,
    tokens::{Element, ElementKind, Kind, tokens},
};
use crate::{
    error::Result,
    event::Cancel,
    logical::objects::quoted_text,
    points::point,
    server::{Session, SqlError, inventory::TableName},
};

/// Indexes of a table, in lower case.
pub(super) fn index_names(session: &mut Session, table: &TableName) -> Result<BTreeSet<String>, SqlError> {
    names(
        session,
        &format!(
            "SELECT LOWER(index_name) FROM information_schema.statistics \
             WHERE table_schema = {} AND table_name = {}",
            quoted_text(&table.schema),
            quoted_text(&table.table)
        ),
    )
}

fn foreign_key_names(session: &mut Session, table: &TableName) -> Result<BTreeSet<String>, SqlError> {
    names(
        session,
        &format!(
            "SELECT LOWER(constraint_name) FROM information_schema.table_constraints \
             WHERE table_schema = {} AND table_name = {} AND constraint_type = 'FOREIGN KEY'",
            quoted_text(&table.schema),
            quoted_text(&table.table)
        ),
    )
}

fn names(session: &mut Session, query: &str) -> Result<BTreeSet<String>, SqlError> {
    let rows = session.rows(query)?;
    Ok(rows.iter().filter_map(|row| row.values().first().cloned().flatten()).collect())
}

/// Where a foreign key of a table of `schema` leads; `None` of other elements.
pub(super) fn parent(element: &Element, schema: &str) -> Option<TableName> {
    if element.kind != ElementKind::ForeignKey {
        return None;
    }
    let all = tokens(&element.text);
    let word = all.iter().position(|token| token.is_word("REFERENCES"))?;
    let at = word + all[word..].iter().position(|token| token.kind == Kind::Name)?;
    let first = all[at].name()?;
    Some(match &all[at + 1..] {
        [point, table, ..] if point.is_symbol(b'.') => TableName { schema: first, table: table.name()? },
        _ => TableName { schema: schema.to_owned(), table: first },
    })
}

/// A table's name as the target compares names.
pub(super) fn folded(target: &Target, name: &TableName) -> TableName {
    TableName { schema: target.folded(&name.schema), table: target.folded(&name.table) }
}

/// Adds the foreign keys of all tables. Rows are not compared where all tables are the load's: they are as they were, and
/// verified by themselves. What leads to a table that the load has not made is compared by the server.
pub(super) fn link(
    plan: &Plan,
    target: &Target,
    progress: &Progress,
    link: &mut Link,
    cancel: &Cancel,
) -> Result<()> {
    let loaded: BTreeSet<TableName> = plan.tables.iter().map(|table| folded(target, &table.name)).collect();
    for table in &plan.tables {
        let has_keys = table.foreign_keys().next().is_some();
        // A note for each table is only worth it where there is something that must not be done twice.
        if !has_keys || progress.stages[table.object] == Stage::Done {
            continue;
        }
        cancel.check()?;
        let doing = |error: SqlError| {
            crate::Error::from(error).context(format_args!("add the foreign keys of table {}", table.name))
        };
        progress.fence(&mut link.session)?;
        let there = foreign_key_names(&mut link.session, &table.name).map_err(doing)?;
        // Those without names come all at once or not at all.
        let missing: Vec<Vec<u8>> = table
            .foreign_keys()
            .filter(|key| match &key.name {
                Some(name) => !there.contains(&name.to_lowercase()),
                None => there.is_empty(),
            })
            .map(|key| [b"ADD ", key.text.as_slice()].concat())
            .collect();
        if !missing.is_empty() {
            link.enter(&table.name.schema).map_err(doing)?;
            let begin = format!("ALTER TABLE {} ", table.name.quoted());
            let others = table
                .foreign_keys()
                .filter_map(|key| parent(key, &table.name.schema))
                .find(|parent| !loaded.contains(&folded(target, parent)));
            if others.is_some() {
                link.session.exec("SET SESSION foreign_key_checks = 1")?;
            }
            let added = link.exec(&[begin.as_bytes(), &missing.join(&b", "[..])].concat());
            if others.is_some() {
                link.session.exec("SET SESSION foreign_key_checks = 0")?;
            }
            added.map_err(|error| match &others {
                Some(parent) => doing(error).hinted(format!(
                    "they lead to {parent}, which was there: its rows must be those that are needed; mend them and go on by the same command"
                )),
                None => doing(error),
            })?;
        }
        point("load.table.linked");
        progress.note(&mut link.session, table.object, Stage::Done)?;
    }
    Ok(())
}
