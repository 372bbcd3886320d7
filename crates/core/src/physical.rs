//! What a physical backup records besides its files: the captured redo, and the position at which it ends.
//!
//! Stored as JSON in the manifest head, fields `redo` and `position` (`docs/reference/repository.md` section
//! 9, `docs/guide/hot-backup.md`). A backup writes them; a restore lays out the redo by them.

use holdfast_formats::Lsn;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::server::status::BinlogPosition;
use crate::server::status::ReplicaChannel;

/// Path of the item that holds the captured redo; its type is *captured redo*.
pub const REDO_ITEM: &str = "#redo";

pub use holdfast_repo::format::manifest::DAMAGED_PAGES;

/// The captured redo, as a restore needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "kebab-case")]
pub enum CapturedRedo {
    /// MariaDB 10.8 and later: one circular file of mini-transactions. The item holds the mini-transactions
    /// from `checkpoint_lsn` to `stop_lsn`, with every marker byte rewritten for a log that never wrapped.
    MariaDb {
        /// Checkpoint that recovery starts from (C0).
        checkpoint_lsn: u64,
        /// Where the checkpoint's own records begin (E0).
        checkpoint_end_lsn: u64,
        /// End of the captured redo: recovery must end exactly here.
        stop_lsn: u64,
        /// Size of the source's log file.
        source_size_bytes: u64,
        /// First 512 bytes of the source's log file, hex.
        header: String,
        /// Whether the records are encrypted.
        encrypted: bool,
        /// Absolute paths of tablespaces that file records name (known only if not encrypted).
        absolute_paths: Vec<String>,
    },
    /// MySQL 8.0.30 and later: 512-byte blocks. The item holds whole blocks from `begin_lsn`; the last one is
    /// cut at `stop_lsn`, unless it is encrypted.
    MySql {
        /// LSN of the first block.
        begin_lsn: u64,
        /// Checkpoint that recovery starts from.
        checkpoint_lsn: u64,
        /// End of the redo that belongs to the position.
        stop_lsn: u64,
        /// First 2,048 bytes of the source's redo file that held the checkpoint, hex.
        header: String,
        /// Whether blocks are encrypted.
        encrypted: bool,
    },
}

impl CapturedRedo {
    /// Where recovery must end.
    #[must_use]
    pub fn stop_lsn(&self) -> Lsn {
        match self {
            Self::MariaDb { stop_lsn, .. } | Self::MySql { stop_lsn, .. } => Lsn(*stop_lsn),
        }
    }

    /// Where recovery starts.
    #[must_use]
    pub fn checkpoint_lsn(&self) -> Lsn {
        match self {
            Self::MariaDb { checkpoint_lsn, .. } | Self::MySql { checkpoint_lsn, .. } => Lsn(*checkpoint_lsn),
        }
    }
}

/// How certain the position is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Read together with the redo's end under one lock: the restored server is at exactly this position.
    Exact,
    /// Must be read from the restored server.
    AtRestore,
}

/// The state that the backup restores to, in terms of replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// How certain the position is.
    pub precision: Precision,
    /// End of the redo.
    pub lsn: u64,
    /// Binlog file and offset, if the server writes a binlog.
    pub binlog: Option<BinlogPosition>,
    /// MariaDB: `gtid_binlog_pos`, or `gtid_slave_pos` if there is no binlog. MySQL: `gtid_executed`.
    pub gtid: Option<String>,
    /// MariaDB: `gtid_slave_pos`, what the source had applied as a replica. Differs from `gtid` if that is
    /// not logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_gtid: Option<String>,
    /// The source's own position as a replica, one entry per channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replica_of: Vec<ReplicaPosition>,
    /// When the position was read, by the server's clock, which its binlog uses too: long before the end of a
    /// logical backup. Absent from backups that are older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// The position of one of the source's replication channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaPosition {
    /// Connection or channel name; empty for the default one.
    pub channel: String,
    /// Its primary.
    pub host: String,
    /// Its primary's port.
    pub port: u16,
    /// Whether it positioned itself by GTID.
    #[serde(default)]
    pub by_gtid: bool,
    /// Executed up to this position in the primary's binlog; `None` if that could not be determined together
    /// with the backup's position.
    pub executed: Option<BinlogPosition>,
}

impl From<ReplicaChannel> for ReplicaPosition {
    fn from(found: ReplicaChannel) -> Self {
        let ReplicaChannel { name: channel, host, port, by_gtid, executed, .. } = found;
        Self { channel, host, port, by_gtid, executed: Some(executed) }
    }
}
