//! Exports a logical backup as plain files that the usual programs load.
//!
//! [`export`] is the outline: make a directory beside the target (`place`), write the definitions, write the
//! rows in files of several chunks each, many at once (`parts`), and only then give the directory its name.
//! `mydumper` and `csv` know what their files contain and are called.

mod csv;
mod mydumper;
mod parts;
mod place;

use std::path::PathBuf;

use holdfast_repo::{data::reader::Backup, format::item::Item};
use serde::Serialize;

pub use self::place::Packing;
use self::place::Place;
use super::{
    script,
    selection::TablePattern,
    stored::{
        contents::definition,
        definition::{Definition, TableDefinition},
    },
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    meter::Meter,
};

/// The kind of files to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// One script.
    Sql,
    /// A directory laid out like mydumper's.
    MyDumper,
    /// Files of comma-separated values, and scripts that load them.
    Csv,
}

/// What to export, and how.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The directory to make.
    pub target: PathBuf,
    /// The kind of files in it.
    pub format: ExportFormat,
    /// How files with rows are compressed.
    pub packing: Packing,
    /// Number of threads that write.
    pub parallel: usize,
    /// Bytes of rows per file, about; a script is one file.
    pub file_bytes: u64,
    /// Only these tables, sequences and views, with the triggers of tables.
    pub tables: Option<TablePattern>,
}

impl ExportOptions {
    /// Fails if the export would be refused in the end because something exists already.
    pub fn refuse_target(&self) -> Result<()> {
        place::refuse_existing(&self.target)
    }
}

/// What was exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// Tables.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

impl Exported {
    /// Counts a file that was written.
    fn add_file(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// A table to export.
struct Table {
    item: Item,
    definition: TableDefinition,
}

impl Table {
    fn named(&self, error: Error) -> Error {
        error.context(format_args!("table {}.{}", self.definition.schema, self.definition.name))
    }
}

/// Exports a backup: makes the files.
pub fn export(
    backup: &Backup,
    options: &ExportOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Exported> {
    let contents = script::contents(backup, options.tables.as_ref(), cancel)?;
    let tables = contents.tables.iter().map(|item| table(backup, item)).collect::<Result<Vec<_>>>()?;
    let place = || Place::create(&options.target, options.packing);
    listener.event(Event::Phase { name: "export" });
    let meter = Meter::new(listener, tables.iter().map(|table| table.item.size_bytes).sum());
    let mut done = Exported { tables: tables.len() as u64, ..Exported::default() };
    match options.format {
        ExportFormat::Sql => {
            let place = place()?;
            let mut file = place.rows_file("backup.sql")?;
            done.rows = script::write(backup, options.tables.as_ref(), &mut file, cancel)
                .map_err(|error| place.explain(error))?
                .rows;
            done.add_file(file.finish()?);
            place.finish(&[])?;
        }
        ExportFormat::MyDumper => {
            let layout = mydumper::Layout::new(backup, &contents, &tables)?;
            let place = place()?;
            layout.definitions(&place, &mut done)?;
            parts::write_all((backup, &tables, options), &layout, &place, &meter, &mut done, cancel)?;
            layout.metadata(&place, &mut done)?;
            place.finish(&[])?;
        }
        ExportFormat::Csv => {
            let is_placed = script::is_placed_by_client(&contents, options.tables.as_ref());
            let layout = csv::Layout::new(&contents, &tables, is_placed)?;
            let place = place()?;
            layout.definitions(&place, &mut done)?;
            let files =
                parts::write_all((backup, &tables, options), &layout, &place, &meter, &mut done, cancel)?;
            layout.load(&place, &files, &mut done)?;
            place.finish(&layout.directories())?;
        }
    }
    Ok(done)
}

fn table(backup: &Backup, item: &Item) -> Result<Table> {
    match definition(backup, item)? {
        Definition::Table(definition) => Ok(Table { item: item.clone(), definition }),
        _ => {
            let text = format!("{} is defined as something else", item.path);
            Err(Error::damaged(text))
        }
    }
}
