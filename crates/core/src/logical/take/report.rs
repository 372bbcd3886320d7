//! What a logical backup measured. Stored with the run, printed at its end.

use holdfast_repo::format::{manifest::Head, rows::RowTotals};
use serde::{Deserialize, Serialize};

use crate::{
    head::field,
    logical::{stored::origin::Origin, view::method::Method},
    position::Position,
    server::LockRecord,
    taking::RunReport,
};

/// Field of a head that holds the [`ViewFacts`].
pub(crate) const VIEW: &str = "view";
/// Field of a head that holds the [`ReadFacts`].
pub(crate) const READ: &str = "read";

/// Facts about the view of a logical backup, for its head and its report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewFacts {
    /// How the view was made.
    pub method: Method,
    /// What that method promises.
    pub promise: String,
    /// Tables that are not of the moment of the view.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inconsistent: Vec<String>,
    /// Tables whose rows are elsewhere and are not saved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_rows: Vec<String>,
    /// Columns whose default the server may print otherwise than it uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misprinted_defaults: Vec<String>,
    /// What the server has and no logical backup holds, as far as the account may know: foreign servers, loadable
    /// functions, general tablespaces, spatial reference systems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<String>,
}

impl ViewFacts {
    /// The view of a logical backup; `None` for other backups.
    #[must_use]
    pub fn of(head: &Head) -> Option<Self> {
        field(head.more.get(VIEW)?)
    }
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReadFacts {
    /// Tables.
    pub tables: u64,
    /// Other objects: views, routines, accounts ...
    pub definitions: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of these rows as the server sent them.
    pub row_bytes: u64,
    /// Connections that read.
    pub readers: u64,
    /// Ranges that tables were cut into.
    pub ranges: u64,
    /// Statements that read rows.
    pub statements: u64,
}

impl ReadFacts {
    /// What a logical backup read; nothing for other backups.
    #[must_use]
    pub fn of(head: &Head) -> Self {
        head.more.get(READ).and_then(field).unwrap_or_default()
    }
}

/// One table's share of the backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableFacts {
    /// `schema.table`.
    pub table: String,
    /// Its rows.
    pub rows: u64,
    /// Their bytes as the server sent them.
    pub bytes: u64,
}

impl TableFacts {
    pub(crate) fn new(table: String, totals: RowTotals) -> Self {
        Self { table, rows: totals.rows, bytes: totals.bytes }
    }
}

/// What a logical backup measured.
#[derive(Clone, Debug, Serialize)]
pub struct LogicalReport {
    /// What runs of all kinds measure.
    #[serde(flatten)]
    pub run: RunReport,
    /// The position of the view, if known.
    pub position: Option<Position>,
    /// Where the backup comes from, if it was imported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<Origin>,
    /// The view.
    pub view: ViewFacts,
    /// What was read.
    pub read: ReadFacts,
    /// The largest tables.
    pub largest: Vec<TableFacts>,
    /// Locks, in the order they were released.
    pub locks: Vec<LockRecord>,
}
