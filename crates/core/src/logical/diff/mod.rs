//! Compares two logical backups: objects that came, went or were redefined, and the rows of tables.
//!
//! [`diff`] is the outline. The lists of objects are merged by path; for tables, `windows` finds the chunks
//! that can differ, and `rows` matches the rows in them. Only those are read. The result is checked: applied
//! to the rows before, it must give the rows after, by number and by checksum, or the difference is an error.
//!
//! Rows are the same row if the bytes of their keys are the same. A table without a key is a bag of rows:
//! they come and go, and none changes.

mod layout;
mod objects;
mod rows;
mod windows;

pub use layout::{Side, TablePair, values};
pub use objects::{ObjectChange, ObjectName};

use holdfast_repo::{data::reader::Backup, format::item::Item};
use serde::Serialize;

use self::{
    objects::{Object, Paired},
    rows::{Rows, Told},
    windows::{Alike, windows},
};
use super::{selection::TablePattern, stored::definition::TableDefinition};
use crate::{
    error::{Error, Result},
    event::Cancel,
};

/// What to compare, and with what.
#[derive(Clone, Debug)]
pub struct DiffOptions {
    /// Only these tables, sequences and views, with the triggers of tables.
    pub tables: Option<TablePattern>,
    /// Memory for rows that are held to be matched.
    pub memory_bytes: u64,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self { tables: None, memory_bytes: 128 << 20 }
    }
}

/// Rows that came, went, and changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Only in the second.
    pub added: u64,
    /// Only in the first.
    pub removed: u64,
    /// In both, with other values.
    pub changed: u64,
}

impl Counts {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// How a row differs. Rows are as they are stored: [`TablePair::values`] takes them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowChange<'r> {
    /// It is only in the second.
    Added(&'r [u8]),
    /// It is only in the first.
    Removed(&'r [u8]),
    /// It has other values.
    Changed {
        /// In the first.
        before: &'r [u8],
        /// In the second.
        after: &'r [u8],
    },
}

/// A table that was compared, or that only one of the two backups has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDiff<'t> {
    /// Its schema.
    pub schema: &'t str,
    /// Its name.
    pub name: &'t str,
    /// Rows in the first; `None` if it does not have the table.
    pub rows_before: Option<u64>,
    /// Rows in the second; `None` if it does not have the table.
    pub rows_after: Option<u64>,
    /// For tables that both have.
    pub counts: Counts,
    /// Whether its definition differs.
    pub is_redefined: bool,
}

/// Receives differences, in the order of the objects' paths.
pub trait DiffSink {
    /// Called for an object that came, went, or was redefined. For a table, this comes before its rows.
    fn object(&mut self, change: &ObjectChange) -> Result<()>;

    /// Called for a row that differs, but not for tables that came or went as a whole.
    fn row(&mut self, table: &TablePair, change: RowChange<'_>) -> Result<()>;

    /// Called when a table is done, whether it differs or not.
    fn table(&mut self, table: TableDiff<'_>) -> Result<()>;
}

/// All differences, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiffTotals {
    /// Tables in either.
    pub tables: u64,
    /// Tables whose rows differ, or that only one of the two has.
    pub tables_differing: u64,
    /// Objects, including tables, that came, went, or were redefined.
    pub objects_differing: u64,
    /// Rows, including those of tables that only one of the two has.
    #[serde(flatten)]
    pub rows: Counts,
}

impl DiffTotals {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.tables_differing == 0 && self.objects_differing == 0
    }
}

/// Reports to `sink` how `after` differs from `before`.
pub fn diff(
    before: &Backup,
    after: &Backup,
    options: &DiffOptions,
    sink: &mut dyn DiffSink,
    cancel: &Cancel,
) -> Result<DiffTotals> {
    let mut totals = DiffTotals::default();
    let mut is_known = options.tables.is_none();
    for paired in objects::paired(before, after, options.tables.as_ref()) {
        cancel.check()?;
        let Paired { before: one, after: other } = paired?;
        is_known |= [&one, &other].into_iter().flatten().any(Object::is_named_as_table);
        let change = objects::change(one.as_ref(), other.as_ref());
        if let Some(change) = &change {
            totals.objects_differing += 1;
            sink.object(change)?;
        }
        let of_table = |object: &Option<Object>| object.as_ref().and_then(Object::table).cloned();
        let (table_before, table_after) = (of_table(&one), of_table(&other));
        let Some((named, _)) = table_before.as_ref().or(table_after.as_ref()) else { continue };
        let (schema, name) = (named.schema.clone(), named.name.clone());
        let rows = |backup: &Backup, table: &Option<(TableDefinition, Item)>| {
            table.as_ref().and_then(|(_, item)| Some(backup.table(item)?.totals().rows))
        };
        let (rows_before, rows_after) = (rows(before, &table_before), rows(after, &table_after));
        let is_redefined = one.is_some() && other.is_some() && change.is_some();
        let counts = match (table_before, table_after) {
            (Some((definition, item)), Some((definition_after, item_after))) => {
                let pair = TablePair::new(definition, definition_after);
                of_rows((before, &item), (after, &item_after), &pair, options, sink, cancel)
                    .map_err(|error| error.context(format_args!("table {schema}.{name}")))?
            }
            _ => Counts::default(),
        };
        totals.tables += 1;
        totals.tables_differing +=
            u64::from(rows_before.is_none() || rows_after.is_none() || !counts.is_empty());
        let all_of = |rows: Option<u64>, other: Option<u64>| rows.filter(|_| other.is_none()).unwrap_or(0);
        totals.rows.added += counts.added + all_of(rows_after, rows_before);
        totals.rows.removed += counts.removed + all_of(rows_before, rows_after);
        totals.rows.changed += counts.changed;
        sink.table(TableDiff {
            schema: &schema,
            name: &name,
            rows_before,
            rows_after,
            counts,
            is_redefined,
        })?;
    }
    match &options.tables {
        Some(wanted) if !is_known => {
            Err(Error::failed(format!("none of these backups holds a table {wanted}")))
        }
        _ => Ok(totals),
    }
}

/// Compares the rows of a table that both have.
fn of_rows(
    (before, item_before): (&Backup, &Item),
    (after, item_after): (&Backup, &Item),
    pair: &TablePair,
    options: &DiffOptions,
    sink: &mut dyn DiffSink,
    cancel: &Cancel,
) -> Result<Counts> {
    let none = || Error::failed("it holds no rows");
    let row_key = before.row_key()?;
    let before = before.table(item_before).ok_or_else(none)?;
    let after = after.table(item_after).ok_or_else(none)?;
    if pair.is_same_layout() && before.totals() == after.totals() {
        return Ok(Counts::default());
    }
    let rows = Rows { pair, before: &before, after: &after, memory_bytes: options.memory_bytes, cancel };
    let mut sink = |change: RowChange<'_>| sink.row(pair, change);
    let mut told = Told { counts: Counts::default(), row_key, checksum: 0, sink: &mut sink };
    let alike = Alike { rows: pair.is_same_layout(), order: pair.is_same_order() };
    if alike.order {
        windows(&before, &after, alike, cancel, &mut |window| {
            rows.compare(&[window.before], &[window.after], &mut told)
        })?;
    } else {
        // A row may be in another window on the other side.
        let (mut of_before, mut of_after) = (Vec::new(), Vec::new());
        windows(&before, &after, alike, cancel, &mut |window| {
            of_before.push(window.before);
            of_after.push(window.after);
            Ok(())
        })?;
        rows.compare(&of_before, &of_after, &mut told)?;
    }
    rows::adds_up(&rows, &told)?;
    Ok(told.counts)
}
