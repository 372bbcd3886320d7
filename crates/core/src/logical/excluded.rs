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

/// The field of the selection that names databases and tables.
const LEFT_OUT: &str = "left_out";
/// With more names than this, the manifest has none of them: then what matches is taken to have existed.
const NAMES_MAX: usize = 50_000;

/// Databases and tables that were excluded.
#[derive(Clone, Debug)]
pub(crate) struct Excluded {
    schemas: Vec<Pattern>,
    tables: Vec<TablePattern>,
    /// Those that existed; `None` if that is not known.
    existed: Option<BTreeMap<String, BTreeSet<String>>>,
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
    /// Whether a database existed and was excluded.
    pub(crate) fn has_schema(&self, schema: &str) -> bool {
        self.schemas.iter().any(|pattern| pattern.matches(schema))
            && self.existed.as_ref().is_none_or(|existed| existed.contains_key(schema))
    }

    /// Whether a table was excluded, with its database or as one that existed.
    pub(crate) fn has_table(&self, TableName { schema, table }: &TableName) -> bool {
        let existed = || {
            let of_schema = self.existed.as_ref().map(|existed| existed.get(schema));
            of_schema.is_none_or(|tables| tables.is_some_and(|tables| tables.contains(table)))
        };
        self.has_schema(schema) || self.tables.iter().any(|it| it.matches(schema, table)) && existed()
    }

    #[cfg(test)]
    pub(crate) fn for_tests(schemas: &[&str], tables: &[&str], existed: &[(&str, &str)]) -> Self {
        let mut by_schema: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (schema, table) in existed {
            by_schema.entry((*schema).to_owned()).or_default().insert((*table).to_owned());
        }
        Self {
            schemas: schemas.iter().map(|it| it.parse().unwrap()).collect(),
            tables: tables.iter().map(|it| it.parse().unwrap()).collect(),
            existed: Some(by_schema),
            folds_names: false,
        }
    }
}

/// The selection as a manifest has it, with what was excluded: tables by database.
pub(super) fn described(selection: &Selection, left_out: &BTreeMap<String, Vec<String>>) -> Value {
    let mut described = selection.described();
    let count = left_out.values().map(|tables| tables.len() + 1).sum::<usize>();
    if let (Some(fields), 0..=NAMES_MAX) = (described.as_object_mut(), count) {
        let by_schema: Map<String, Value> =
            left_out.iter().map(|(schema, tables)| (schema.clone(), Value::from(tables.clone()))).collect();
        fields.insert(LEFT_OUT.to_owned(), Value::Object(by_schema));
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
    let existed = selection.get(LEFT_OUT).and_then(field::<BTreeMap<String, BTreeSet<String>>>);
    let said = head.server.get("sql").and_then(|sql| sql.get("lower_case_table_names")?.as_u64());
    Some(Excluded { schemas, tables, existed, folds_names: said.is_some_and(|said| said != 0) })
}
