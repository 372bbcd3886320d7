//! What a load would do, and what it did.

use serde::Serialize;

use super::{plan::Adaptation, target::Way};
use crate::{logical::stored::origin::Origin, watch::PhaseTime};

/// What a load would do.
#[derive(Clone, Debug, Serialize)]
pub struct LoadPlan {
    /// The backup: `db1/logical#42`.
    pub backup: String,
    /// Version of the source.
    pub source_version: String,
    /// Where the backup comes from, if it was imported: the position that it names is that of the dumped
    /// server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<Origin>,
    /// Version of the target.
    pub target_version: String,
    /// Tables to load.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
    /// Bytes of these rows.
    pub row_bytes: u64,
    /// Other objects: databases that are not simply left as they are, sequences, views, routines, triggers, events.
    pub objects: u64,
    /// Accounts and roles.
    pub accounts: u64,
    /// Existing objects that would be dropped (`--overwrite`).
    pub overwritten: Vec<String>,
    /// Whether an unfinished load is resumed.
    pub is_continued: bool,
    /// How rows of most tables are sent.
    pub rows_by: Way,
    /// A way that would cost the server less, if it is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faster: Option<String>,
    /// What will differ from the source.
    pub adapted: Vec<Adaptation>,
    /// What will be missing (`--leave-out`).
    pub left_out: Vec<Adaptation>,
}

/// What a load did.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The plan that was carried out.
    #[serde(flatten)]
    pub plan: LoadPlan,
    /// Rows loaded now; for a resumed load, without those loaded before.
    pub rows_loaded: u64,
    /// Bytes of these rows.
    pub row_bytes_loaded: u64,
    /// Tables whose rows were read again and match the checksums of the backup.
    pub tables_verified: u64,
    /// Whether rows were sent as parameters of `INSERT`.
    pub by_parameters: bool,
    /// If they were not, whether they were sent by `LOAD DATA` or else in the text of `INSERT`.
    pub by_load_data: bool,
    /// How long everything took.
    pub total_ms: u64,
    /// How long each part took.
    pub phases: Vec<PhaseTime>,
}
