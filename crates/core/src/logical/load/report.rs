//! What a load would do, and what it did.

use serde::Serialize;

use super::{plan::Adaptation, target::Way};
use crate::{logical::import::Origin, watch::PhaseTime};

/// What a load would do.
#[derive(Clone, Debug, Serialize)]
pub struct LoadPlan {
    /// The backup: `db1/logical#42`.
    pub backup: String,
    /// Of which server.
    pub source_version: String,
    /// Where the backup comes from, if it was imported: the position that it names is that of the dumped server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<Origin>,
    /// Into which server.
    pub target_version: String,
    /// Tables that are loaded.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
    /// Bytes of these rows.
    pub row_bytes: u64,
    /// Other objects: databases, sequences, views, routines, triggers, events.
    pub objects: u64,
    /// Accounts and roles.
    pub accounts: u64,
    /// What is there already and would be dropped (`--overwrite`).
    pub overwritten: Vec<String>,
    /// Whether an unfinished load goes on.
    pub is_continued: bool,
    /// How rows of most tables go.
    pub rows_by: Way,
    /// What would spare the server work, and is somebody's to allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faster: Option<String>,
    /// What will not be as it was.
    pub adapted: Vec<Adaptation>,
    /// What will not be there (`--leave-out`).
    pub left_out: Vec<Adaptation>,
}

/// What a load did.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// As it was planned.
    #[serde(flatten)]
    pub plan: LoadPlan,
    /// Rows that were loaded now; of a load that went on, not those of before.
    pub rows_loaded: u64,
    /// Bytes of these rows.
    pub row_bytes_loaded: u64,
    /// Tables whose rows were read again and have the checksums of the backup.
    pub tables_verified: u64,
    /// Whether rows went as parameters of `INSERT`.
    pub by_parameters: bool,
    /// Where they did not, whether they went by `LOAD DATA`, else by the text of `INSERT`.
    pub by_load_data: bool,
    /// How long everything took.
    pub total_ms: u64,
    /// How long each part took.
    pub phases: Vec<PhaseTime>,
}
