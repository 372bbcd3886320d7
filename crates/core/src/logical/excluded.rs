//! What a logical backup of everything left out because it was excluded by name, as its manifest says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use holdfast_repo::format::manifest::Head;
use serde_json::{Map, Value};

use super::selection::{Pattern, Selection, TablePattern};
use crate::{
    head::{SELECTION, field},
    server::TableName,
};

/// The field of the selection that names the tables.
const TABLES: &str = "left_out";
/// With more tables than this, the manifest names none of them: then what matches is taken to have existed.
const TABLES_MAX: usize = 50_000;

/// Databases and tables that were excluded.
#[derive(Clone, Debug)]
pub(crate) struct Excluded {
    schemas: Vec<Pattern>,
    tables: Vec<TablePattern>,
    /// The tables that existed; `None` if that is not known.
    existed: Option<BTreeSet<TableName>>,
    /// Whether the server takes names in statements as lower case.
    pub(crate) folds_names: bool,
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schemas = self.schemas.iter().map(|pattern| format!("database {pattern}"));
        let tables = self.tables.iter().map(|pattern| format!("table {pattern}"));
        f.write_str(&schemas.chain(tables).collect::<Vec<_>>().join(", "))
    }
}

impl Excluded {
    /// Whether a database was excluded.
    pub(crate) fn has_schema(&self, schema: &str) -> bool {
        self.schemas.iter().any(|pattern| pattern.matches(schema))
    }

    /// Whether a table was excluded, and existed if its database was not excluded.
    pub(crate) fn has_table(&self, name: &TableName) -> bool {
        let existed = || self.existed.as_ref().is_none_or(|existed| existed.contains(name));
        let is_named = |pattern: &TablePattern| pattern.matches(&name.schema, &name.table);
        self.has_schema(&name.schema) || self.tables.iter().any(is_named) && existed()
    }

    #[cfg(test)]
    pub(crate) fn for_tests(schemas: &[&str], tables: &[&str], existed: &[(&str, &str)]) -> Self {
        let named = |(schema, table): &(&str, &str)| TableName {
            schema: (*schema).to_owned(),
            table: (*table).to_owned(),
        };
        Self {
            schemas: schemas.iter().map(|it| it.parse().unwrap()).collect(),
            tables: tables.iter().map(|it| it.parse().unwrap()).collect(),
            existed: Some(existed.iter().map(named).collect()),
            folds_names: false,
        }
    }
}

/// The selection as a manifest has it, with the tables that were excluded.
pub(super) fn described(selection: &Selection, left_out: &[TableName]) -> Value {
    let mut described = selection.described();
    if let (Some(fields), 0..=TABLES_MAX) = (described.as_object_mut(), left_out.len()) {
        let mut by_schema: Map<String, Value> = Map::new();
        for name in left_out {
            let tables = by_schema.entry(name.schema.clone()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(tables) = tables {
                tables.push(Value::String(name.table.clone()));
            }
        }
        fields.insert(TABLES.to_owned(), Value::Object(by_schema));
    }
    described
}

/// What a backup left out, if anything was excluded.
pub(crate) fn excluded_of(head: &Head) -> Option<Excluded> {
    let selection = head.more.get(SELECTION)?;
    let words = |name: &str| selection.get(name).and_then(field::<Vec<String>>).unwrap_or_default();
    let schemas: Vec<Pattern> = words("schemas_excluded").iter().filter_map(|it| it.parse().ok()).collect();
    let tables: Vec<TablePattern> =
        words("tables_excluded").iter().filter_map(|it| it.parse().ok()).collect();
    if schemas.is_empty() && tables.is_empty() {
        return None;
    }
    let named = selection.get(TABLES).and_then(field::<BTreeMap<String, Vec<String>>>);
    let existed = named.map(|by_schema| {
        let tables = by_schema.into_iter().flat_map(|(schema, tables)| {
            tables.into_iter().map(move |table| TableName { schema: schema.clone(), table })
        });
        tables.collect()
    });
    let said = head.server.get("sql").and_then(|sql| sql.get("lower_case_table_names")?.as_u64());
    Some(Excluded { schemas, tables, existed, folds_names: said.is_some_and(|said| said != 0) })
}
