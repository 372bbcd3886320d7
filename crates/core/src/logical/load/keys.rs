//! Foreign keys, once every table they could lead to is there.

use std::collections::BTreeSet;

use super::{
    link::Link,
    plan::Plan,
    progress::{Progress, Stage},
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

/// Adds the foreign keys of all tables. Their rows are not compared: they are as they were, and verified by themselves.
pub(super) fn link(plan: &Plan, progress: &Progress, link: &mut Link, cancel: &Cancel) -> Result<()> {
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
            link.exec(&[begin.as_bytes(), &missing.join(&b", "[..])].concat()).map_err(doing)?;
        }
        point("load.table.linked");
        progress.note(&mut link.session, table.object, Stage::Done)?;
    }
    Ok(())
}
