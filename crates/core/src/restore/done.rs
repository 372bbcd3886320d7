//! What each phase of a restore has done, as its report says.

use std::path::PathBuf;

use holdfast_formats::Lsn;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::server::status::BinlogPosition;

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
    pub lsn: Lsn,
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
    /// Whether some have no GTID.
    #[serde(skip)]
    pub has_nameless: bool,
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
    /// Events of the scheduler that the transactions created or changed, and that are disabled, as on any
    /// replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events_disabled: Vec<String>,
}
