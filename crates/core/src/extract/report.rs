//! What an extraction would do, and what it did.

use holdfast_repo::RunNo;
use serde::{Deserialize, Serialize};

use crate::{
    position::Position,
    restore::{BackupId, Loaded, Prepared, Reached, Replayed, RestorePlan},
    watch::PhaseTime,
};

/// A table, as far as file names tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundTable {
    /// Database and name.
    pub name: String,
    /// Size of all its files.
    pub bytes: u64,
}

/// What an extraction would do.
#[derive(Clone, Debug, Serialize)]
pub struct ExtractPlan {
    /// How the part of the backup is restored.
    pub restore: RestorePlan,
    /// The transactions to replay after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<Reached>,
    /// The tables that have files of their own.
    pub tables: Vec<FoundTable>,
    /// Size of all files of the backup.
    pub backup_bytes: u64,
    /// Why the whole backup is restored and replayed; `None`: a part is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
}

/// What was extracted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExtractReport {
    /// The backup that they come from.
    pub backup: BackupId,
    /// Version of its server.
    pub server_version: String,
    /// The source's position when it held these rows.
    pub position: Position,
    /// Size of all files of the backup.
    pub backup_bytes: u64,
    /// Size of the files restored in the last attempt.
    pub restored_bytes: u64,
    /// Number of those files.
    pub restored_files: u64,
    /// Size of the redo that was recovered.
    pub redo_bytes: u64,
    /// How many times the restore started over, because the server or a foreign key needed more than was
    /// restored.
    pub begun_again: u32,
    /// Why the whole backup was restored and replayed; `None`: a part was enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
    /// What the recovering server did; `None`: the rows of a logical backup were loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<Prepared>,
    /// What the server did that loaded these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    /// What was replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
    /// Number of tables read.
    pub tables: u64,
    /// Number of their rows.
    pub rows: u64,
    /// Bytes of the rows.
    pub row_bytes: u64,
    /// How long each phase took.
    pub phases: Vec<PhaseTime>,
}

/// Rows that are ready to be loaded, in a working directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Identifies what was extracted: the same for the same command.
    pub(super) identity: String,
    /// The source's name.
    pub(super) source: String,
    /// The run in the repository of the rows.
    pub(super) run: u64,
    pub(super) report: ExtractReport,
}

impl Taken {
    pub(super) fn run(&self) -> RunNo {
        RunNo(self.run)
    }
}
