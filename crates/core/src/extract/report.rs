//! What an extraction would do, and what it came to.

use holdfast_repo::RunNo;
use serde::{Deserialize, Serialize};

use crate::{
    physical::Position,
    restore::{BackupId, Prepared, Reached, Replayed, RestorePlan},
    watch::PhaseTime,
};

/// A table, as far as the names of files tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundTable {
    /// Database and name.
    pub name: String,
    /// Of all its files.
    pub bytes: u64,
}

/// What an extraction would do.
#[derive(Clone, Debug, Serialize)]
pub struct ExtractPlan {
    /// How the part of the backup is restored.
    pub restore: RestorePlan,
    /// What is replayed behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<Reached>,
    /// The tables that have files of their own.
    pub tables: Vec<FoundTable>,
    /// Size of all files of the backup.
    pub backup_bytes: u64,
    /// Why all of the backup is restored and replayed; `None`: a part is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
}

/// What was extracted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExtractReport {
    /// From which backup.
    pub backup: BackupId,
    /// Its server.
    pub server_version: String,
    /// Where the source was when it had these rows.
    pub position: Position,
    /// Size of all files of the backup.
    pub backup_bytes: u64,
    /// Size of the files that were restored, the last time.
    pub restored_bytes: u64,
    /// Files that were.
    pub restored_files: u64,
    /// Redo that was recovered.
    pub redo_bytes: u64,
    /// So often was it begun again, because the server or a foreign key asked for more than was there.
    pub begun_again: u32,
    /// Why all of the backup was restored and replayed; `None`: a part was enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
    /// What the recovering server did.
    pub prepared: Prepared,
    /// What was replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
    /// Tables that were read.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
    /// Bytes of the rows.
    pub row_bytes: u64,
    /// What took how long.
    pub phases: Vec<PhaseTime>,
}

/// Rows that are ready to be loaded, in a working directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Of what: the same for the same command.
    pub(super) identity: String,
    /// The source.
    pub(super) source: String,
    /// The run in the repository.
    pub(super) run: u64,
    pub(super) report: ExtractReport,
}

impl Taken {
    pub(super) fn run(&self) -> RunNo {
        RunNo(self.run)
    }
}
