//! What a logical backup measured. Stored with the run, printed at its end.

use holdfast_repo::{manifest::Totals, rows::RowTotals};
use serde::{Deserialize, Serialize};

use super::{import::Origin, view::Method};
use crate::{
    backup::{PhaseTime, StageTime},
    physical::Position,
    server::LockRecord,
};

/// Version of the report's layout; raised when a field changes its meaning or goes.
pub const REPORT_SCHEMA: u32 = 1;

/// What is said of the view of a logical backup, in its head and its report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewFacts {
    /// How it was made.
    pub method: Method,
    /// What that promises.
    pub promise: String,
    /// Tables that are not of the moment of the view.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inconsistent: Vec<String>,
    /// Tables whose rows are elsewhere, and are not saved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_rows: Vec<String>,
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

/// A table's part of the backup.
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
    pub(super) fn new(table: String, totals: RowTotals) -> Self {
        Self { table, rows: totals.rows, bytes: totals.bytes }
    }
}

/// What a logical backup measured.
#[derive(Clone, Debug, Serialize)]
pub struct LogicalReport {
    /// [`REPORT_SCHEMA`].
    pub schema_version: u32,
    /// Number of the run, and of the backup.
    pub backup: u64,
    /// The backup that rows were compared with.
    pub base: Option<u64>,
    /// Whose.
    pub source: String,
    /// `logical`.
    pub kind: String,
    /// What wrote it.
    pub holdfast_version: &'static str,
    /// The server, as it calls itself.
    pub server_version: String,
    /// When it began, RFC 3339, UTC.
    pub started_at: String,
    /// When the backup was complete.
    pub finished_at: String,
    /// Wall time.
    pub total_ms: u64,
    /// Its parts.
    pub phases: Vec<PhaseTime>,
    /// Busy time of the stages between server and repository.
    pub stages: Vec<StageTime>,
    /// The position of the view, where it is known.
    pub position: Option<Position>,
    /// Where it comes from, if it was imported.
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
    /// What was stored.
    pub totals: Totals,
    /// Highest memory of the process.
    pub memory_bytes_max: u64,
    /// CPU time of the process, user and system.
    pub cpu_seconds: f64,
    /// How it was made smaller.
    pub compression: String,
}
