//! The result of a restore: returned, and kept in the target as `holdfast-restore.json`.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    backup_id::BackupId,
    continuing::{continue_statement, replicate_statement},
    plan::RestorePlan,
    primaries::primary_statements,
};
use crate::{
    physical::{BinlogPosition, Position},
    server::ServerVersion,
    watch::PhaseTime,
};

/// Schema version of the report and of `holdfast-restore.json`. Fields are added without raising it.
pub const RESTORE_SCHEMA: u32 = 1;

/// What writing the files took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Files of the backup in the target.
    pub files: u64,
    /// Of these, files that existed already and were corrected in place.
    pub files_reused: u64,
    /// Their size.
    pub bytes: u64,
    /// Bytes that were fetched from the repository and written.
    pub bytes_written: u64,
    /// Bytes that were found in the target already, by hash; and zeros, which are not stored.
    pub bytes_kept: u64,
    /// How many things were deleted from the target because they do not belong to the backup.
    pub deleted: u64,
}

/// A file of the backup that is not restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its path in the backup.
    pub path: String,
    /// Why not.
    pub why: String,
}

/// What the recovering server did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// The program.
    pub program: PathBuf,
    /// Its version.
    pub version: String,
    /// Where recovery ended; equal to the position's LSN where that is exact.
    pub lsn: u64,
    /// The binlog position that the server found in its files (MariaDB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binlog: Option<BinlogPosition>,
    /// Rows of unfinished transactions that were changed back.
    pub rows_rolled_back: u64,
    /// How long the server ran.
    pub ms: u64,
}

/// What a server of ours did with the rows of a logical backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// The program.
    pub program: PathBuf,
    /// Its version.
    pub version: String,
    /// Tables.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
    /// Size of the rows.
    pub row_bytes: u64,
    /// Tables that were read again, and are the backup's by number and checksum of all rows.
    pub tables_verified: u64,
    /// Accounts.
    pub accounts: u64,
    /// What this server has made otherwise than the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapted: Vec<String>,
    /// What was left out, on request, because no server can make it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// How long it took.
    pub ms: u64,
}

/// Where transactions end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// How many there were.
    pub transactions: u64,
    /// When the last was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed_at: Option<Timestamp>,
    /// The end of the last in its file.
    pub binlog: Option<BinlogPosition>,
    /// MariaDB: the last of each domain. MySQL: all of them. `None`: they have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtids: Option<String>,
    /// Settings by which their servers left something out of their binlogs,
    /// with their values: what they left out is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaves_out: Vec<String>,
}

/// What a replay did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// Where it ended.
    #[serde(flatten)]
    pub reached: Reached,
    /// Bytes of binlog.
    pub bytes: u64,
    /// How long the server ran.
    pub ms: u64,
    /// Events of the scheduler that the transactions created or changed, and that are disabled, as on any replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events_disabled: Vec<String>,
}

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// [`RESTORE_SCHEMA`].
    pub schema_version: u32,
    /// Which backup.
    pub backup: BackupId,
    /// Where it is now.
    pub target_dir: PathBuf,
    /// The server it was taken from.
    pub server_version: ServerVersion,
    /// The state of the restored files, as a replication position; `None`: a logical backup that has none.
    pub position: Option<Position>,
    /// Whether a server has recovered it already. If not, the first start does.
    pub prepared: Option<Prepared>,
    /// A logical backup: what the server did that made the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    /// Transactions replayed after the backup, if it was restored to a later moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
    /// What was written.
    pub written: Written,
    /// Files of the backup that were left out.
    #[serde(default)]
    pub dropped: Vec<LeftOut>,
    /// Every phase.
    pub phases: Vec<PhaseTime>,
    /// Options that a server needs on these files, besides those of its own configuration.
    pub server_options: Vec<String>,
    /// Statements that make the restored server a replica of its source; `<…>` is to be filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicate_statement: Option<String>,
    /// MariaDB, if the source had a binlog: the statement that makes the restored server, before anybody
    /// writes to it, count its transactions from far beyond all that the source can have had. A binlog that
    /// begins again at 1, or where the backup ends, assigns numbers twice, and a replica of the source that
    /// finds its own number in it skips everything before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_statement: Option<String>,
    /// If the source was a replica itself: statements that make the restored server a replica of the same
    /// primaries, one text for each channel whose place is known; `<…>` is to be filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primary_statements: Vec<String>,
}

impl RestoreReport {
    /// The report on what was planned. `knows_gtids`: whether the restored server has been told its GTIDs.
    pub(super) fn of(plan: &RestorePlan, position: Option<Position>, knows_gtids: bool) -> Self {
        let version = &plan.server_version;
        let known = position.as_ref();
        Self {
            schema_version: RESTORE_SCHEMA,
            backup: plan.backup.clone(),
            target_dir: plan.target_dir.clone(),
            server_version: version.clone(),
            replicate_statement: known.and_then(|at| replicate_statement(version, at, knows_gtids)),
            continue_statement: known.and_then(|at| continue_statement(version, at)),
            primary_statements: known.map_or_else(Vec::new, |at| primary_statements(version, at)),
            position,
            prepared: None,
            loaded: None,
            replayed: None,
            written: Written::default(),
            dropped: plan.dropped.clone(),
            phases: Vec::new(),
            server_options: plan.server_options.clone(),
        }
    }
}
