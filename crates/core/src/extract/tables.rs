//! What the server on the restored files knows of the tables.

use std::collections::BTreeSet;

use holdfast_formats::{Flavor, table_name};

use crate::{
    error::{Error, Result},
    logical::Selection,
    server::{Session, TableName},
};

/// The selected tables that the server knows, with or without files of their own.
pub(super) fn selected(session: &mut Session, selection: &Selection) -> Result<Vec<TableName>> {
    let query = "SELECT table_schema AS s, table_name AS t FROM information_schema.tables";
    let mut tables = Vec::new();
    for row in session.rows(query)? {
        let name = TableName { schema: row.text("s")?.to_owned(), table: row.text("t")?.to_owned() };
        if selection.has_table(&name.schema, &name.table) {
            tables.push(name);
        }
    }
    Ok(tables)
}

/// Tables that foreign keys bind to the wanted ones: replayed rows are checked against their parents, and a
/// change of a parent's row can change them without a trace in the binlog. What the wanted rows do to their
/// own children does not matter.
pub(super) fn bound_by_keys(
    session: &mut Session,
    flavor: Flavor,
    wanted: &BTreeSet<TableName>,
) -> Result<BTreeSet<TableName>> {
    let query = match flavor {
        Flavor::MariaDb => "SELECT for_name AS c, ref_name AS p FROM information_schema.innodb_sys_foreign",
        Flavor::MySql => {
            "SELECT CONCAT(constraint_schema, '/', table_name) AS c, \
             CONCAT(unique_constraint_schema, '/', referenced_table_name) AS p \
             FROM information_schema.referential_constraints"
        }
    };
    let name = |text: &str| -> Result<TableName> {
        let unreadable = || Error::failed(format!("the server names a table {text:?} in a foreign key"));
        let (schema, table) = text.split_once('/').ok_or_else(unreadable)?;
        let decoded = |part: &str| match flavor {
            Flavor::MariaDb => table_name::decode(part).map(|it| it.to_string()),
            Flavor::MySql => Some(part.to_owned()),
        };
        let (schema, table) = decoded(schema).zip(decoded(table)).ok_or_else(unreadable)?;
        Ok(TableName { schema, table })
    };
    let mut keys = Vec::new();
    for row in session.rows(query)? {
        keys.push((name(row.text("c")?)?, name(row.text("p")?)?));
    }
    let mut all = wanted.clone();
    loop {
        let before = all.len();
        for (child, parent) in &keys {
            if all.contains(child) {
                all.insert(parent.clone());
            }
        }
        if all.len() == before {
            return Ok(all.difference(wanted).cloned().collect());
        }
    }
}
