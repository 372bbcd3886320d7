//! Finds the tables that a dump makes without holding their rows, as `mysqldump --no-data` does: a backup must
//! not pass for one of their rows.
//!
//! mysqldump announces the rows of each table, by a comment or a lock, even of an empty one. Other tools, and
//! mysqldump if it is told so, do not; then only a dump without any rows is known to be without them.

use std::collections::BTreeSet;

use super::judge::RowsSaid;
use crate::{
    error::Result,
    logical::{
        catalog::{
            listing::{Listing, TableKind},
            tables::EngineKind,
        },
        selection::{RowFilter, Selection, TablePattern},
    },
    name_list::first_of,
    server::{Session, TableName},
};

/// How many tables a sentence names.
const NAMES_SHOWN_MAX: usize = 5;
/// The condition on the rows that the backup has of such a table: a load asks before it makes it without rows.
const NO_ROWS: &str = "FALSE /* the dump has no rows of it */";

/// The tables on the private server whose rows the dump does not hold.
pub(super) fn missing(session: &mut Session, said: &RowsSaid, is_directory: bool) -> Result<Vec<TableName>> {
    let listing = Listing::read(session, &Selection::default())?;
    let stores =
        |engine: &Option<String>| EngineKind::of(engine.as_deref().unwrap_or_default()) != EngineKind::NoRows;
    // Servers may take names as lower case.
    let folded = |schema: &str, table: &str| (schema.to_lowercase(), table.to_lowercase());
    let has_said: BTreeSet<(String, String)> =
        said.tables.iter().map(|(schema, table)| folded(schema, table)).collect();
    let is_base = |kind| matches!(kind, TableKind::Base | TableKind::Versioned);
    let tables = listing.tables.into_iter().filter(|table| is_base(table.kind) && stores(&table.engine));
    // Files of mydumper are of tables that have rows.
    let is_any_said = !said.tables.is_empty();
    if is_any_said && (is_directory || !said.are_announced) {
        return Ok(Vec::new());
    }
    Ok(tables
        .map(|table| table.name)
        .filter(|name| !has_said.contains(&folded(&name.schema, &name.table)))
        .collect())
}

/// The sentence that names them.
pub(super) fn told(tables: &[TableName]) -> String {
    let names = first_of(tables, NAMES_SHOWN_MAX);
    format!("rows of {names}: the dump holds none (as with --no-data)")
}

/// The conditions that say of these tables that none of their rows is in the backup.
pub(super) fn filters(tables: &[TableName], said: &RowsSaid) -> Result<Vec<RowFilter>> {
    let filter = |schema: &str, table: &str| {
        let tables = TablePattern { schema: schema.parse()?, table: table.parse()? };
        Ok(RowFilter { tables, condition: NO_ROWS.to_owned() })
    };
    if said.tables.is_empty() {
        return Ok(vec![filter("*", "*")?]);
    }
    let all: Vec<RowFilter> =
        tables.iter().map(|name| filter(&name.schema, &name.table)).collect::<Result<_>>()?;
    // A name that is a pattern would take the rows of others, too.
    Ok(all.into_iter().filter(|filter| filter.tables.name().is_some()).collect())
}
