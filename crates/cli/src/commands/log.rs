//! `log`: shows the history of tables across the logical backups of a source.

use std::{collections::BTreeMap, fmt, sync::Arc};

use holdfast_core::{
    Error, Result,
    logical::diff::{self, Counts, DiffOptions, DiffSink, ObjectChange, RowChange, TableDiff, TablePair},
};
use holdfast_repo::{Act, Kind, data::reader::Backup, format::item::ItemMap, log::outcome::Part};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::rows::LogArgs,
    exit::Exit,
    output::{
        Render,
        text::{self, numbers, words},
    },
};

/// A table in one backup, or the first backup that no longer has it.
#[derive(Clone, Debug, Serialize)]
struct Entry {
    id: String,
    finished_at: Timestamp,
    table: String,
    /// Null if the table no longer exists.
    rows: Option<u64>,
    /// The change since the previous backup; null if that did not have the table.
    change: Option<Counts>,
    is_redefined: bool,
    /// Whether this is a partial backup. It is compared with the previous one of the same part.
    is_of_part: bool,
}

#[derive(Serialize)]
struct Log {
    /// Newest first.
    entries: Vec<Entry>,
}

impl Render for Log {
    fn render(&self, out: &mut String) -> fmt::Result {
        let one_table = self.entries.windows(2).all(|two| two[0].table == two[1].table);
        let rows: Vec<[String; 8]> = self
            .entries
            .iter()
            .map(|entry| {
                let counted = |sign: char, of: fn(Counts) -> u64| {
                    entry.change.map(|change| format!("{sign}{}", of(change))).unwrap_or_default()
                };
                let note = match (entry.rows, entry.change) {
                    (None, _) => "gone",
                    (_, None) if entry.is_of_part => "first of this part",
                    (_, None) => "new",
                    _ if entry.is_redefined => "redefined",
                    _ => "",
                };
                [
                    entry.id.clone(),
                    text::instant(entry.finished_at),
                    if one_table { String::new() } else { entry.table.clone() },
                    entry.rows.map(|rows| rows.to_string()).unwrap_or_default(),
                    counted('+', |change| change.added),
                    counted('-', |change| change.removed),
                    counted('~', |change| change.changed),
                    note.to_owned(),
                ]
            })
            .collect();
        let columns = [
            words("ID"),
            words("TIME (UTC)"),
            words("TABLE"),
            numbers("ROWS"),
            numbers("ADDED"),
            numbers("REMOVED"),
            numbers("CHANGED"),
            words("NOTE"),
        ];
        text::table(out, &columns, &rows)
    }
}

/// Records the changes of each table.
#[derive(Default)]
struct Changes(BTreeMap<String, (Option<u64>, Option<Counts>, bool)>);

impl DiffSink for Changes {
    fn object(&mut self, _: &ObjectChange) -> Result<()> {
        Ok(())
    }

    fn row(&mut self, _: &TablePair, _: RowChange<'_>) -> Result<()> {
        Ok(())
    }

    fn table(&mut self, table: TableDiff<'_>) -> Result<()> {
        let change = table.rows_before.map(|_| table.counts);
        let name = format!("{}.{}", table.schema, table.name);
        self.0.insert(name, (table.rows_after, change, table.is_redefined));
        Ok(())
    }
}

pub(super) fn run(args: &LogArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Read, "to compare rows")?);
    let log = select::log(context, &repo, args.name.name.as_ref(), Some(Kind::Logical))?;
    let history = select::salvaged(context, &repo, &log, &mut |_, _| {})?;
    let mut entries: Vec<Entry> = Vec::new();
    // The last backup of the whole source and of each part.
    // A table that a part does not cover has not been dropped.
    let mut last: BTreeMap<Option<Part>, Backup> = BTreeMap::new();
    for outcome in history.standing() {
        context.cancel.check()?;
        let backup = match last.values().next() {
            None => Backup::open(&repo, &history, outcome.run)?,
            Some(other) => other.beside(&history, outcome.run)?,
        };
        let tables = match last.get(&outcome.part) {
            None => first(&backup, args)?,
            Some(before) => changes(before, &backup, args, context)?,
        };
        for (table, (rows, change, is_redefined)) in tables.0 {
            entries.push(Entry {
                id: log.backup_id(outcome.run),
                finished_at: backup.head().finished_at,
                table,
                rows,
                change,
                is_redefined,
                is_of_part: outcome.part.is_some(),
            });
        }
        last.insert(outcome.part, backup);
    }
    if entries.is_empty() {
        return Err(Error::failed(format!(
            "no logical backup of {} contains a table {}",
            log.source, args.table
        )));
    }
    entries.reverse();
    context.output.result(Exit::Done, &Log { entries });
    Ok(Exit::Done)
}

/// The tables of the first backup.
fn first(backup: &Backup, args: &LogArgs) -> Result<Changes> {
    let mut changes = Changes::default();
    for item in backup.items() {
        let item = item?;
        let ItemMap::Table(map) = &item.map else { continue };
        let names = item.path.names().unwrap_or_default();
        let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        if let [schema, table] = names.as_slice()
            && args.table.matches(schema, table)
        {
            changes.0.insert(format!("{schema}.{table}"), (Some(map.totals.rows), None, false));
        }
    }
    Ok(changes)
}

fn changes(before: &Backup, after: &Backup, args: &LogArgs, context: &Context<'_>) -> Result<Changes> {
    let mut changes = Changes::default();
    let options = DiffOptions { tables: Some(args.table.clone()), ..DiffOptions::default() };
    diff::diff(before, after, &options, &mut changes, context.cancel)?;
    Ok(changes)
}
