//! Selects the schemas and tables of a logical backup: applies what was asked for to names.

use std::{collections::BTreeSet, fmt, str::FromStr};

use holdfast_repo::log::outcome::Part;
use serde_json::{Value, json};

use crate::{
    error::{Error, ErrorKind},
    server::TableName,
};

/// The server's own schemas, which the server creates, not a load. Accounts and programs, which are kept in
/// the first, are saved as statements.
pub const SYSTEM_SCHEMAS: [&str; 5] = ["mysql", "information_schema", "performance_schema", "sys", "ndbinfo"];

/// The database in which a load keeps its progress. It belongs to the target server, and is in no backup.
pub(super) const LOAD_SCHEMA: &str = "holdfast_load";

/// System schemas whose names are case-insensitive on every server.
const WITHOUT_CASE: [&str; 2] = ["information_schema", "performance_schema"];

/// Whether a schema of this name, as the server lists it, is the server's own or a load's. Where names are
/// case-sensitive, `SYS` is a schema like any other.
pub(crate) fn is_own_schema(schema: &str) -> bool {
    let is_virtual = WITHOUT_CASE.iter().any(|name| name.eq_ignore_ascii_case(schema));
    is_virtual || SYSTEM_SCHEMAS.contains(&schema) || schema == LOAD_SCHEMA
}

/// Whether a name would denote one of those schemas on some server.
pub(crate) fn is_like_own_schema(schema: &str) -> bool {
    is_own_schema(&schema.to_lowercase())
}

/// A name with wildcards: `*` for any characters, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<char>);

impl Pattern {
    /// Whether it is a plain name, without wildcards.
    fn is_name(&self) -> bool {
        !self.0.iter().any(|c| matches!(c, '*' | '?'))
    }

    /// Whether it matches this name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut in_name) = (0, 0);
        // The position after the last star, and the end of what that star has taken.
        let mut retry = None;
        while in_name < name.len() {
            match self.0.get(at) {
                Some('*') => {
                    at += 1;
                    retry = Some((at, in_name));
                }
                Some(c) if *c == '?' || *c == name[in_name] => {
                    at += 1;
                    in_name += 1;
                }
                _ => match retry {
                    Some((after_star, taken)) => {
                        (at, in_name) = (after_star, taken + 1);
                        retry = Some((after_star, taken + 1));
                    }
                    None => return false,
                },
            }
        }
        self.0[at..].iter().all(|c| *c == '*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|c| write!(f, "{c}"))
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "a name is empty"));
        }
        Ok(Self(text.chars().collect()))
    }
}

/// `schema.table`, both with wildcards. A dot in a schema's name is written as `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePattern {
    /// The schema.
    pub schema: Pattern,
    /// The table, sequence or view.
    pub table: Pattern,
}

impl TablePattern {
    /// Schema and table, if it denotes only one.
    pub(crate) fn name(&self) -> Option<(String, String)> {
        let is_name = self.schema.is_name() && self.table.is_name();
        is_name.then(|| (self.schema.to_string(), self.table.to_string()))
    }

    /// Whether it matches this table.
    #[must_use]
    pub fn matches(&self, schema: &str, table: &str) -> bool {
        self.schema.matches(schema) && self.table.matches(table)
    }
}

impl fmt::Display for TablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.table)
    }
}

impl FromStr for TablePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some((schema, table)) = text.split_once('.') else {
            let error = Error::new(ErrorKind::Usage, format!("{text:?} names no table"));
            return Err(error.hinted("write database.table, as in shop.orders or shop.log_*"));
        };
        Ok(Self { schema: schema.parse()?, table: table.parse()? })
    }
}

/// A condition on the rows of some tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFilter {
    /// The tables.
    pub tables: TablePattern,
    /// An expression of the server that is true for the rows to take.
    pub condition: String,
}

impl FromStr for RowFilter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::new(ErrorKind::Usage, format!("{text:?} is no condition for a table"))
                .hinted("write database.table=CONDITION, as in shop.orders='placed_at >= \"2026-01-01\"'")
        };
        let (tables, condition) = text.split_once('=').ok_or_else(wrong)?;
        if condition.trim().is_empty() {
            return Err(wrong());
        }
        Ok(Self { tables: tables.trim().parse()?, condition: condition.to_owned() })
    }
}

/// Plain names in what is excluded, of which nothing was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExcludedNames {
    schemas: BTreeSet<String>,
    tables: BTreeSet<(String, String)>,
}

impl ExcludedNames {
    /// Notes that a database of this name exists.
    pub(crate) fn found_schema(&mut self, schema: &str) {
        self.schemas.remove(schema);
    }

    /// Notes that a table, sequence or view of this name exists.
    pub(crate) fn found_table(&mut self, schema: &str, table: &str) {
        if !self.tables.is_empty() {
            self.tables.remove(&(schema.to_owned(), table.to_owned()));
        }
    }

    /// Keeps the names that these conditions hold for.
    pub(crate) fn retain(&mut self, schema: impl Fn(&str) -> bool, table: impl Fn(&TableName) -> bool) {
        self.schemas.retain(|name| schema(name));
        let table_name =
            |(schema, table): &(String, String)| TableName { schema: schema.clone(), table: table.clone() };
        self.tables.retain(|name| table(&table_name(name)));
    }

    /// What was not found, for people; `None` if all of it was.
    pub(crate) fn unknown(&self) -> Option<String> {
        let schemas = self.schemas.iter().map(|schema| format!("no database {schema}"));
        let tables = self.tables.iter().map(|(schema, table)| format!("no table {schema}.{table}"));
        let all: Vec<String> = schemas.chain(tables).collect();
        (!all.is_empty()).then(|| format!("{} was found", all.join(", ")))
    }
}

/// What was asked for: schemas, tables, rows and accounts.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Whole schemas. If no tables are named either: all.
    pub schemas: Vec<Pattern>,
    /// Single tables, sequences and views.
    pub tables: Vec<TablePattern>,
    /// Schemas that are left out.
    pub schemas_excluded: Vec<Pattern>,
    /// Tables, sequences and views that are left out.
    pub tables_excluded: Vec<TablePattern>,
    /// Tables of which only some rows are taken; the first match counts.
    pub filters: Vec<RowFilter>,
    /// Whether accounts are left out. They also are unless all schemas were asked for.
    pub without_accounts: bool,
}

impl Selection {
    /// Whether everything on the server was asked for, except what was excluded by name.
    #[must_use]
    pub fn is_of_all(&self) -> bool {
        self.schemas.is_empty() && self.tables.is_empty()
    }

    /// Whether the selection depends on the server's list of schemas: one missing from that list would not be
    /// noticed.
    #[must_use]
    pub fn needs_all_schemas(&self) -> bool {
        let mut patterns = self.schemas.iter().chain(self.tables.iter().map(|it| &it.schema));
        self.is_of_all() || patterns.any(|pattern| !pattern.is_name())
    }

    /// Whether the selection depends on the server's list of a schema's tables.
    #[must_use]
    pub fn needs_all_tables(&self, schema: &str) -> bool {
        let is_open = |it: &TablePattern| it.schema.matches(schema) && !it.table.is_name();
        self.has_whole(schema)
            || !is_own_schema(schema)
                && !self.schemas_excluded.iter().any(|pattern| pattern.matches(schema))
                && self.tables.iter().any(is_open)
    }

    /// Whether accounts are taken.
    #[must_use]
    pub fn has_accounts(&self) -> bool {
        self.is_of_all() && !self.without_accounts
    }

    /// Whether a schema is taken with its routines and events.
    #[must_use]
    pub fn has_whole(&self, schema: &str) -> bool {
        !is_own_schema(schema) && self.would_have(schema)
    }

    /// Whether a whole schema would be taken if it were not the server's own.
    pub(crate) fn would_have(&self, schema: &str) -> bool {
        !self.schemas_excluded.iter().any(|pattern| pattern.matches(schema))
            && (self.is_of_all() || self.schemas.iter().any(|pattern| pattern.matches(schema)))
    }

    /// Whether tables may be taken that were not named.
    pub(crate) fn has_wildcards(&self) -> bool {
        self.is_of_all() || !self.schemas.is_empty() || self.tables.iter().any(|it| it.name().is_none())
    }

    /// Whether anything of a schema may be taken.
    pub(crate) fn touches(&self, schema: &str) -> bool {
        self.has_whole(schema) || self.tables.iter().any(|it| it.schema.matches(schema))
    }

    /// Whether a table, sequence or view is taken.
    #[must_use]
    pub fn has_table(&self, schema: &str, table: &str) -> bool {
        let is_named = || {
            !is_own_schema(schema)
                && !self.schemas_excluded.iter().any(|pattern| pattern.matches(schema))
                && self.tables.iter().any(|pattern| pattern.matches(schema, table))
        };
        (self.has_whole(schema) || is_named())
            && !self.tables_excluded.iter().any(|pattern| pattern.matches(schema, table))
    }

    /// Which rows of a table are taken; `None` means all.
    #[must_use]
    pub fn condition(&self, schema: &str, table: &str) -> Option<&str> {
        let mut filters = self.filters.iter();
        let filter = filters.find(|filter| filter.tables.matches(schema, table));
        filter.map(|filter| filter.condition.as_str())
    }

    /// Identifies the selection by a text that stays the same from version to version: an interrupted load is
    /// only resumed with the same selection.
    pub(crate) fn identity(&self) -> String {
        self.described().to_string()
    }

    /// The part of a server that is selected; `None` for all of it.
    pub(crate) fn part(&self) -> Option<Part> {
        let is_rest = self.is_of_all() && self.filters.is_empty();
        let is_whole = is_rest && self.schemas_excluded.is_empty() && self.tables_excluded.is_empty();
        let mut asked = self.clone();
        // The order in which names were typed makes no difference.
        for names in [&mut asked.schemas, &mut asked.schemas_excluded] {
            names.sort_by_key(ToString::to_string);
        }
        for names in [&mut asked.tables, &mut asked.tables_excluded] {
            names.sort_by_key(ToString::to_string);
        }
        let part = if is_rest { Part::rest_of } else { Part::of };
        (!is_whole).then(|| part(&asked.identity()))
    }

    /// The selection as JSON, field by field.
    pub(crate) fn described(&self) -> Value {
        let Self { schemas, tables, schemas_excluded, tables_excluded, filters, without_accounts } = self;
        let filters = filters.iter().map(|filter| (filter.tables.to_string(), &filter.condition));
        json!({
            "filters": filters.collect::<Vec<_>>(),
            "schemas": texts(schemas),
            "schemas_excluded": texts(schemas_excluded),
            "tables": texts(tables),
            "tables_excluded": texts(tables_excluded),
            "without_accounts": without_accounts,
        })
    }

    /// The plain names in what is excluded. Patterns exclude whatever may exist.
    pub(crate) fn excluded_names(&self) -> ExcludedNames {
        let schemas = self.schemas_excluded.iter().filter(|it| it.is_name()).map(ToString::to_string);
        let tables = self.tables_excluded.iter().filter_map(TablePattern::name);
        ExcludedNames { schemas: schemas.collect(), tables: tables.collect() }
    }

    /// Refuses names that match nothing: a mistyped name must not become a backup without it.
    pub fn refuse_unknown(&self, schemas: &[String], tables: &[(String, String)]) -> Result<(), Error> {
        let no_schema = |pattern: &&Pattern| !schemas.iter().any(|name| pattern.matches(name));
        let no_table =
            |pattern: &&TablePattern| !tables.iter().any(|(schema, table)| pattern.matches(schema, table));
        let named = self.schemas.iter().chain(self.tables.iter().map(|it| &it.schema));
        let own = named.filter(|it| it.is_name()).map(ToString::to_string).find(|it| is_own_schema(it));
        if let Some(own) = own {
            let text =
                format!("the database {own} is the server's own, and logical backups do not include it");
            return Err(Error::new(ErrorKind::Usage, text).hinted(
                "accounts and programs are in a backup of everything (without --database and --table); its tables as such \
                 are in a physical backup",
            ));
        }
        let filtered: Vec<_> = self.filters.iter().map(|filter| filter.tables.clone()).collect();
        let unknown = None
            .or_else(|| self.schemas.iter().find(no_schema).map(|name| format!("no database {name}")))
            .or_else(|| self.tables.iter().find(no_table).map(|name| format!("no table {name}")))
            .or_else(|| filtered.iter().find(no_table).map(|name| format!("no table {name}")));
        match unknown {
            Some(unknown) => Err(Error::new(ErrorKind::Usage, format!("{unknown} was found"))
                .hinted("names are case-sensitive; SHOW TABLES as the same account lists what it may see")),
            None => Ok(()),
        }
    }
}

fn texts(of: &[impl ToString]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        for (pattern, name, matches) in [
            ("shop", "shop", true),
            ("shop", "shops", false),
            ("s*", "shop", true),
            ("*p", "shop", true),
            ("s?op", "shop", true),
            ("s?op", "sop", false),
            ("*a*b*", "xxaxxbab", true),
            ("*a*b", "ba", false),
            ("*", "", true),
            ("größ?", "größe", true),
        ] {
            assert_eq!(pattern.parse::<Pattern>().unwrap().matches(name), matches, "{pattern} {name}");
        }
    }

    /// Loads begun by an older version are recognized by this text.
    #[test]
    fn what_tells_a_selection_from_others_stays_as_it_is() {
        let selection = Selection {
            schemas: vec!["shop*".parse().unwrap()],
            tables: vec!["other.t".parse().unwrap()],
            filters: vec!["shop.log=at > '2026'".parse().unwrap()],
            ..Selection::default()
        };
        let identity = r#"{"filters":[["shop.log","at > '2026'"]],"schemas":["shop*"],"schemas_excluded":[],"tables":["other.t"],"tables_excluded":[],"without_accounts":false}"#;
        assert_eq!(selection.identity(), identity);
    }

    /// What is asked for, less what is excluded; never the server's own.
    #[test]
    fn selections() {
        let all = Selection::default();
        assert!(all.has_whole("shop") && all.has_table("shop", "t") && all.has_accounts());
        assert!(!all.has_whole("holdfast_load") && !all.has_table("holdfast_load", "load"));
        assert!(!all.has_whole("mysql") && !all.has_table("performance_schema", "t"));
        assert!(all.has_whole("SYS") && all.has_table("Mysql", "t") && !all.has_whole("Information_Schema"));
        for own in ["mysql", "sys", "INFORMATION_SCHEMA", "holdfast_load"] {
            let named = Selection { schemas: vec![own.parse().unwrap()], ..Selection::default() };
            let error = named.refuse_unknown(&[own.to_owned()], &[]).unwrap_err();
            assert!(error.to_string().contains("the server's own"), "{error}");
        }
        let some = Selection {
            schemas: vec!["shop*".parse().unwrap()],
            tables: vec!["other.t".parse().unwrap()],
            schemas_excluded: vec!["shop_old".parse().unwrap()],
            tables_excluded: vec!["*.tmp_*".parse().unwrap()],
            filters: vec!["shop.log=at > '2026'".parse().unwrap()],
            without_accounts: false,
        };
        assert!(some.has_whole("shop1") && !some.has_whole("shop_old") && !some.has_whole("other"));
        assert!(some.has_table("other", "t") && !some.has_table("other", "u"));
        assert!(!some.has_table("shop", "tmp_1") && !some.has_accounts());
        assert_eq!(some.condition("shop", "log"), Some("at > '2026'"));
        assert_eq!(some.condition("shop", "t"), None);
        let schemas = ["shop".to_owned()];
        let error = some.refuse_unknown(&schemas, &[]).unwrap_err();
        assert!(error.to_string().contains("other.t"), "{error}");
        assert!("shop".parse::<TablePattern>().is_err() && "shop.t".parse::<RowFilter>().is_err());
    }
}
