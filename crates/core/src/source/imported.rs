//! Tables that were imported during the capture. Recovery ignores their redo, so they are copied again while
//! nobody may write to them, and stay closed until the position is read.

use std::collections::BTreeSet;

use holdfast_formats::table_name::TableFile;

use super::tablespace::TablespaceEntry;
use crate::{
    error::{Error, Result},
    event::{Event, Listener},
    server::TableName,
};

/// Extensions of the files that the server writes beside the file of a closed table, and removes later.
const NOTES: [&str; 2] = ["cfg", "cfp"];

/// Tables to be closed.
pub(super) struct Imported {
    pub(super) tables: Vec<TableName>,
    notes: BTreeSet<String>,
}

impl Imported {
    /// The tables that `found` belong to.
    pub(super) fn of(found: &[TablespaceEntry]) -> Result<Self> {
        let tables = found.iter().map(table_of).collect::<Result<BTreeSet<_>>>()?;
        let stems = found.iter().filter_map(|found| found.entry.path.strip_suffix("ibd"));
        let notes = stems.flat_map(|stem| NOTES.map(|extension| format!("{stem}{extension}"))).collect();
        Ok(Self { tables: tables.into_iter().collect(), notes })
    }

    /// Reports the tables to a listener, and why they are closed.
    pub(super) fn report(&self, why: &str, listener: &dyn Listener) {
        listener.event(Event::Note { text: format!("{why}; copied again while blocked for writes: {self}") });
    }

    /// Whether the file at `path` exists only because a table is closed.
    pub(super) fn is_note(&self, path: &str) -> bool {
        self.notes.contains(path)
    }
}

impl std::fmt::Display for Imported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }
}

/// The table that a tablespace file belongs to.
fn table_of(found: &TablespaceEntry) -> Result<TableName> {
    let path = &found.entry.path;
    match TableFile::from_path(path) {
        Some(file) => Ok(TableName { schema: file.database, table: file.table }),
        None => Err(Error::failed(format!(
            "{path} was imported during the backup, and its table's name cannot be read"
        ))
        .hinted("run the backup again")),
    }
}
