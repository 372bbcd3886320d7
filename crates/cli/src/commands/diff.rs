//! `diff`: how two logical backups differ.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Result,
    logical::{
        delimited::values::{JsonRow, JsonValue, sql_literal},
        diff::{
            self, DiffOptions, DiffSink, DiffTotals, ObjectChange, RowChange, Side, TableDiff, TablePair,
        },
        stored::definition::ColumnDefinition,
    },
};
use holdfast_repo::{Act, Kind, Repo, data::reader::Backup};
use serde::Serialize;

use super::{
    Context, repository,
    select::{self, Chosen},
};
use crate::{
    args::{backup_ref::BackupRef, inspect::NameArg, rows::DiffArgs},
    exit::Exit,
    output::{Output, Render, text},
};

/// Rows shown per table in text output.
const ROWS_SHOWN: u64 = 20;
/// Characters shown per value in text output.
const VALUE_CHARS: usize = 120;

pub(super) fn run(args: &DiffArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Read, "to compare rows")?);
    let before = choose(context, &repo, &args.before, &args.name)?;
    let after = choose(context, &repo, &args.after, &args.name)?;
    let (of_before, of_after) = (before.log().backup_id(before.run), after.log().backup_id(after.run));
    let is_one_log = before.log() == after.log();
    let before = Backup::open(&repo, &before.history, before.run)?;
    let after = if is_one_log {
        before.beside(&after.history, after.run)?
    } else {
        Backup::open(&repo, &after.history, after.run)?
    };
    let rows_max = args.rows.unwrap_or(if context.global.json { u64::MAX } else { ROWS_SHOWN });
    let mut shown = Shown { output: context.output, rows_max, rows_shown: 0 };
    let options = DiffOptions { tables: args.table.clone(), ..DiffOptions::default() };
    let totals = diff::diff(&before, &after, &options, &mut shown, context.cancel)?;
    let exit = if totals.is_equal() { Exit::Done } else { Exit::Finding };
    context.output.result(exit, &Total { before: of_before, after: of_after, totals });
    Ok(exit)
}

/// Selects a logical backup.
fn choose(context: &Context<'_>, repo: &Arc<Repo>, id: &BackupRef, name: &NameArg) -> Result<Chosen> {
    let mut id = id.clone();
    id.kind.get_or_insert(Kind::Logical);
    select::backup(context, repo, &id, name.name.as_ref())
}

/// Shows differences as they are found.
struct Shown<'a> {
    output: &'a Output,
    rows_max: u64,
    /// Rows shown of the current table.
    rows_shown: u64,
}

impl DiffSink for Shown<'_> {
    fn object(&mut self, change: &ObjectChange) -> Result<()> {
        self.output.item(&Line::Object(change));
        Ok(())
    }

    fn row(&mut self, table: &TablePair, change: RowChange<'_>) -> Result<()> {
        if self.rows_shown >= self.rows_max {
            return Ok(());
        }
        self.rows_shown += 1;
        let row = match change {
            RowChange::Added(row) => Row::whole(table, Side::After, row)?,
            RowChange::Removed(row) => Row::whole(table, Side::Before, row)?,
            RowChange::Changed { before, after } => Row::changed(table, before, after)?,
        };
        let definition = table.definition(Side::After);
        let table = format!("{}.{}", definition.schema, definition.name);
        if self.rows_shown == 1 {
            self.output.heading(&format!("rows of {table}"));
        }
        self.output.item(&Line::Row { table, row });
        Ok(())
    }

    fn table(&mut self, table: TableDiff<'_>) -> Result<()> {
        let counts = table.counts;
        let hidden = (counts.added + counts.removed + counts.changed).saturating_sub(self.rows_shown);
        self.rows_shown = 0;
        let is_on_both_sides = table.rows_before.is_some() && table.rows_after.is_some();
        if !counts.is_empty() || table.is_redefined || !is_on_both_sides {
            self.output.item(&Line::Table(TableLine {
                table: format!("{}.{}", table.schema, table.name),
                rows_before: table.rows_before,
                rows_after: table.rows_after,
                counts,
                is_redefined: table.is_redefined,
                hidden,
            }));
        }
        Ok(())
    }
}

/// One difference.
#[derive(Serialize)]
#[serde(tag = "difference", rename_all = "snake_case")]
enum Line<'a> {
    Object(&'a ObjectChange),
    Row {
        table: String,
        #[serde(flatten)]
        row: Row<'a>,
    },
    Table(TableLine),
}

#[derive(Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
enum Row<'a> {
    Added {
        row: JsonRow<'a>,
    },
    Removed {
        row: JsonRow<'a>,
    },
    /// Besides the key, holds only the columns that differ.
    Changed {
        key: JsonRow<'a>,
        before: JsonRow<'a>,
        after: JsonRow<'a>,
    },
}

#[derive(Serialize)]
struct TableLine {
    table: String,
    rows_before: Option<u64>,
    rows_after: Option<u64>,
    #[serde(flatten)]
    counts: diff::Counts,
    is_redefined: bool,
    /// Differing rows that were not shown.
    #[serde(skip)]
    hidden: u64,
}

impl<'a> Row<'a> {
    fn whole(table: &'a TablePair, side: Side, row: &'a [u8]) -> Result<Self> {
        let row = JsonRow::new(table.columns(side), &table.values(side, row)?);
        Ok(match side {
            Side::Before => Self::Removed { row },
            Side::After => Self::Added { row },
        })
    }

    fn changed(table: &'a TablePair, before: &'a [u8], after: &'a [u8]) -> Result<Self> {
        let differing = table.differing(before, after)?;
        let (before, after) = (table.values(Side::Before, before)?, table.values(Side::After, after)?);
        let of = |side: Side, values: &[Option<&'a [u8]>], places: &mut dyn Iterator<Item = usize>| {
            let columns: &'a [ColumnDefinition] = table.columns(side);
            JsonRow(places.map(|place| JsonValue { column: &columns[place], value: values[place] }).collect())
        };
        Ok(Self::Changed {
            key: of(Side::After, &after, &mut (0..table.key_columns().unwrap_or_default())),
            before: of(Side::Before, &before, &mut differing.iter().map(|(before, _)| *before)),
            after: of(Side::After, &after, &mut differing.iter().map(|(_, after)| *after)),
        })
    }
}

impl Render for Line<'_> {
    fn render(&self, out: &mut String) -> fmt::Result {
        match self {
            Self::Object(change) => object(out, change),
            Self::Row { row, .. } => row.render(out),
            Self::Table(table) => table.render(out),
        }
    }
}

/// Writes a heading, then the lines in which the definitions differ.
fn object(out: &mut String, change: &ObjectChange) -> fmt::Result {
    let what = match (&change.before, &change.after) {
        (None, _) => "new",
        (_, None) => "gone",
        _ => "changed",
    };
    let name = format!("{} {}", change.name.object, change.name.name);
    writeln!(out, "{what} {}", text::one_line(&name))?;
    let lines = |text: &Option<String>| -> Vec<String> {
        text.as_deref().unwrap_or_default().lines().map(str::to_owned).collect()
    };
    let (before, after) = (lines(&change.before), lines(&change.after));
    let alike =
        |pairs: &mut dyn Iterator<Item = (&String, &String)>| pairs.take_while(|(a, b)| a == b).count();
    let begin = alike(&mut before.iter().zip(&after));
    let end = alike(&mut before[begin..].iter().rev().zip(after[begin..].iter().rev()));
    for line in &before[begin..before.len() - end] {
        writeln!(out, "- {line}")?;
    }
    for line in &after[begin..after.len() - end] {
        writeln!(out, "+ {line}")?;
    }
    Ok(())
}

impl Row<'_> {
    fn render(&self, out: &mut String) -> fmt::Result {
        let all = |row: &JsonRow<'_>| -> String {
            let named: Vec<String> =
                row.0.iter().map(|value| format!("{} = {}", value.column.name, literal(value))).collect();
            text::one_line(&named.join(", ")).into_owned()
        };
        match self {
            Self::Added { row } => writeln!(out, "+ {}", all(row)),
            Self::Removed { row } => writeln!(out, "- {}", all(row)),
            Self::Changed { key, before, after } => {
                let changes: Vec<String> = before
                    .0
                    .iter()
                    .zip(&after.0)
                    .map(|(before, after)| {
                        format!("{}: {} -> {}", after.column.name, literal(before), literal(after))
                    })
                    .collect();
                writeln!(out, "~ {}; {}", all(key), text::one_line(&changes.join(", ")))
            }
        }
    }
}

/// A literal, truncated if long.
fn literal(value: &JsonValue<'_>) -> String {
    let text = sql_literal(value.column, value.value);
    match text.char_indices().nth(VALUE_CHARS) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], value.value.map_or(0, <[u8]>::len)),
        None => text,
    }
}

impl TableLine {
    fn render(&self, out: &mut String) -> fmt::Result {
        let diff::Counts { added, removed, changed } = self.counts;
        let table = text::one_line(&self.table);
        if self.hidden > 0 && added + removed + changed > self.hidden {
            writeln!(out, "… {} more (--rows shows more)", self.hidden)?;
        }
        match (self.rows_before, self.rows_after) {
            (Some(_), Some(after)) => {
                let rows = text::count(after, "row");
                writeln!(out, "{table}: +{added} -{removed} ~{changed}, now {rows}")
            }
            (None, rows) => {
                writeln!(out, "{table}: new, with {}", text::count(rows.unwrap_or(0), "row"))
            }
            (rows, None) => {
                writeln!(out, "{table}: gone, with {}", text::count(rows.unwrap_or(0), "row"))
            }
        }
    }
}

/// The totals.
#[derive(Serialize)]
struct Total {
    before: String,
    after: String,
    #[serde(flatten)]
    totals: DiffTotals,
}

impl Render for Total {
    fn render(&self, out: &mut String) -> fmt::Result {
        let Self { before, after, totals } = self;
        if totals.is_equal() {
            return writeln!(out, "no difference between {before} and {after}");
        }
        let diff::Counts { added, removed, changed } = totals.rows;
        writeln!(
            out,
            "{before} to {after}: {} and the rows of {} differ: {} added, {removed} removed, {changed} changed",
            text::count(totals.objects_differing, "definition"),
            text::count(totals.tables_differing, "table"),
            text::count(added, "row"),
        )
    }
}
