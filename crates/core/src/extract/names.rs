//! Which tables a backup has, as far as its file names tell, or as it lists them if it is a logical one.
//!
//! On MariaDB every table has a file of its name. On MySQL, tables in general tablespaces and in the system
//! tablespace have none: there only the recovered server knows.

use std::collections::BTreeMap;

use holdfast_formats::Flavor;
use holdfast_repo::{
    data::reader::Backup,
    format::item::{Item, ItemType},
};

use super::report::FoundTable;
use crate::{
    error::{Error, ErrorKind, Result},
    event::Cancel,
    logical::{
        selection::{ExcludedNames, Selection, TablePattern, is_own_schema},
        table_name,
    },
    restore::{Named, named},
    server::TableName,
};

/// The requested tables of a backup.
pub(super) struct Names {
    /// The selected tables, and the size of their files.
    selected: BTreeMap<TableName, u64>,
    /// Patterns that match no table, and the table whose name is most similar.
    unknown: Vec<(TablePattern, Option<TableName>)>,
    /// Tables that are excluded by names that the backup does not have.
    excluded: ExcludedNames,
    /// Size of all files of the backup.
    pub(super) backup_bytes: u64,
}

impl Names {
    /// Reads the backup's list of files.
    pub(super) fn read(
        backup: &Backup,
        flavor: Flavor,
        selection: &Selection,
        cancel: &Cancel,
    ) -> Result<Names> {
        let mut names = Names {
            selected: BTreeMap::new(),
            unknown: Vec::new(),
            excluded: selection.excluded_names(),
            backup_bytes: 0,
        };
        // A database without tables has nothing to be left out.
        names.excluded.retain(|_| false, |_| true);
        let mut nearest: Vec<Nearest> = selection.tables.iter().map(Nearest::new).collect();
        for item in backup.items() {
            cancel.check()?;
            let item = item?;
            if !matches!(item.item_type, ItemType::File | ItemType::Table) {
                continue;
            }
            names.backup_bytes = names.backup_bytes.saturating_add(item.size_bytes);
            let Some((schema, table)) = table_of(flavor, &item)? else { continue };
            nearest.iter_mut().for_each(|it| it.look(&schema, &table));
            names.excluded.found_table(&schema, &table);
            if selection.has_table(&schema, &table) {
                let bytes = names.selected.entry(TableName { schema, table }).or_default();
                *bytes = bytes.saturating_add(item.size_bytes);
            }
        }
        let unknown = nearest.into_iter().filter(|it| !it.is_there);
        names.unknown = unknown.map(|it| (it.pattern.clone(), it.best.map(|(_, name)| name))).collect();
        Ok(names)
    }

    /// The selected tables that certainly exist.
    pub(super) fn tables(&self) -> impl Iterator<Item = &TableName> {
        self.selected.keys()
    }

    pub(super) fn shown(&self) -> Vec<FoundTable> {
        let table = |(name, bytes): (&TableName, &u64)| FoundTable { name: name.to_string(), bytes: *bytes };
        self.selected.iter().map(table).collect()
    }

    /// The error for a pattern that matches no table, if there is one.
    pub(super) fn unknown(&self) -> Option<Error> {
        let (pattern, nearest) = self.unknown.first()?;
        Some(Self::refusal(format!("the backup has no table {pattern}"), nearest.as_ref()))
    }

    /// The error for tables that are excluded and do not exist, if there are any.
    pub(super) fn unknown_excluded(&self) -> Option<Error> {
        let unknown = self.excluded.unknown()?;
        Some(Self::refusal(format!("in the backup: of what is to be left out, {unknown}"), None))
    }

    /// Tables that were requested by their full names, and have no files.
    pub(super) fn without_files(&self) -> impl Iterator<Item = TableName> {
        let names = self.unknown.iter().filter_map(|(pattern, _)| pattern.name());
        names.map(|(schema, table)| TableName { schema, table })
    }

    /// The error for such a table, if nothing after the backup creates it either.
    pub(super) fn never_made(&self, name: &TableName) -> Error {
        let is_it = |pattern: &TablePattern| pattern.matches(&name.schema, &name.table);
        let nearest = self.unknown.iter().find(|(pattern, _)| is_it(pattern));
        let nearest = nearest.and_then(|(_, nearest)| nearest.as_ref());
        let text = format!("the backup has no table {name}, and no statement up to the moment names one");
        Self::refusal(text, nearest)
    }

    fn refusal(text: String, nearest: Option<&TableName>) -> Error {
        let error = Error::new(ErrorKind::Usage, text);
        match nearest {
            Some(name) => error.hinted(format!("did you mean {name}? names are case-sensitive")),
            None => {
                error.hinted("\"holdfast ls\" lists the files of a backup: a directory for each database")
            }
        }
    }
}

/// The table that an item is of.
fn table_of(flavor: Flavor, item: &Item) -> Result<Option<(String, String)>> {
    if item.item_type == ItemType::Table {
        return table_name(item);
    }
    match named(&item.path) {
        Named::Table { schema, table } if !is_own_schema(&schema) && tells_a_table(flavor, item) => {
            Ok(Some((schema, table)))
        }
        _ => Ok(None),
    }
}

/// Whether such a file exists only for a table, sequence or view.
fn tells_a_table(flavor: Flavor, item: &Item) -> bool {
    let path = item.path.as_bytes();
    let ends = |endings: &[&[u8]]| endings.iter().any(|ending| path.ends_with(ending));
    match flavor {
        // Other files of a table count toward its size.
        Flavor::MariaDb => !ends(&[b".TRG"]),
        Flavor::MySql => ends(&[b".ibd", b".MYD", b".MYI", b".CSV", b".CSM", b".ARZ"]),
    }
}

/// The name most similar to a pattern.
struct Nearest<'a> {
    pattern: &'a TablePattern,
    text: Vec<char>,
    is_there: bool,
    best: Option<(usize, TableName)>,
}

impl<'a> Nearest<'a> {
    fn new(pattern: &'a TablePattern) -> Self {
        let text = pattern.to_string().to_lowercase().chars().collect();
        Self { pattern, text, is_there: false, best: None }
    }

    fn look(&mut self, schema: &str, table: &str) {
        if self.is_there || self.pattern.matches(schema, table) {
            self.is_there = true;
            return;
        }
        let name = TableName { schema: schema.to_owned(), table: table.to_owned() };
        let candidate: Vec<char> = name.to_string().to_lowercase().chars().collect();
        let far = distance(&self.text, &candidate);
        // A name that shares less than half does not help.
        let is_like = far * 2 <= self.text.len().max(candidate.len());
        if is_like && self.best.as_ref().is_none_or(|(best, _)| far < *best) {
            self.best = Some((far, name));
        }
    }
}

/// Number of characters to insert, delete or replace to turn one into the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most similar name is suggested, but not one that merely has a similar length.
    #[test]
    fn nearest_names() {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        assert_eq!(distance(&letters("orders"), &letters("order")), 1);
        assert_eq!(distance(&letters("kitten"), &letters("sitting")), 3);
        let pattern: TablePattern = "shop.oders".parse().unwrap();
        let mut nearest = Nearest::new(&pattern);
        for table in ["customers", "orders", "orders_old"] {
            nearest.look("shop", table);
        }
        assert_eq!(nearest.best.unwrap().1.to_string(), "shop.orders");
        let mut nothing = Nearest::new(&pattern);
        nothing.look("a", "b");
        assert!(nothing.best.is_none());
    }
}
