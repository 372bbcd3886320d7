//! What a physical backup records besides its files: the captured redo, and the position at which it ends.
//!
//! Stored as JSON in the manifest head, fields `redo` and `position` (`docs/reference/repository.md` section
//! 9, `docs/guide/hot-backup.md`). A backup writes them; a restore lays out the redo by them.

use holdfast_formats::Lsn;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::server::status::BinlogPosition;
use crate::server::{
    Session, SqlError,
    status::{MariaDbLsns, MariaDbPosition, ReplicaChannel, clock},
};

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
        checkpoint_lsn: Lsn,
        /// Where the checkpoint's own records begin (E0).
        checkpoint_end_lsn: Lsn,
        /// End of the captured redo: recovery must end exactly here.
        stop_lsn: Lsn,
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
        begin_lsn: Lsn,
        /// Checkpoint that recovery starts from.
        checkpoint_lsn: Lsn,
        /// End of the redo that belongs to the position.
        stop_lsn: Lsn,
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
            Self::MariaDb { stop_lsn, .. } | Self::MySql { stop_lsn, .. } => *stop_lsn,
        }
    }

    /// Where recovery starts.
    #[must_use]
    pub fn checkpoint_lsn(&self) -> Lsn {
        match self {
            Self::MariaDb { checkpoint_lsn, .. } | Self::MySql { checkpoint_lsn, .. } => *checkpoint_lsn,
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
    pub lsn: Lsn,
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

impl Position {
    /// MariaDB's, read by a session while commits are blocked. `applied` is what the tables of the server's
    /// replication say ([`applied_in_tables`](crate::server::status::applied_in_tables)), if they can be read.
    pub(crate) fn of_mariadb(
        session: &mut Session,
        channels: &[ReplicaChannel],
        applied: Option<String>,
    ) -> Result<Self, SqlError> {
        let found = MariaDbPosition::read(session)?;
        // If no binlog is written, the position is that of the server as a replica.
        let replica_gtid = applied.or(Some(found.gtid_slave_pos)).filter(|text| !text.is_empty());
        let gtid =
            Some(found.gtid_binlog_pos).filter(|text| !text.is_empty()).or_else(|| replica_gtid.clone());
        let are_exact = channels.is_empty() || are_places_exact(session)?;
        let place = |channel: &ReplicaChannel| match are_exact || channel.by_gtid {
            true => channel.clone().into(),
            false => ReplicaPosition::without_place(channel.clone()),
        };
        Ok(Self {
            precision: Precision::Exact,
            lsn: MariaDbLsns::read(session)?.current,
            binlog: found.binlog,
            gtid,
            replica_gtid,
            replica_of: channels.iter().map(place).collect(),
            at: Some(clock(session)?),
        })
    }
}

/// MariaDB: whether a channel's place in the primary's binlog is that of the data while commits are blocked. Parallel
/// appliers that log what they apply tell it late, like `gtid_slave_pos`, but no table has it.
fn are_places_exact(session: &mut Session) -> Result<bool, SqlError> {
    let query = "SELECT @@GLOBAL.slave_parallel_threads = 0 OR @@GLOBAL.log_slave_updates = 0 OR @@GLOBAL.log_bin = 0";
    Ok(session.number::<u8>(query)? == 1)
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

impl ReplicaPosition {
    /// A channel whose place is not that of the data.
    pub(crate) fn without_place(channel: ReplicaChannel) -> Self {
        Self { executed: None, ..channel.into() }
    }

    /// The warning for a channel without a place, with the reason and what to do.
    pub(crate) fn is_not_recorded(&self, why: &str) -> String {
        let Self { channel, host, port, .. } = self;
        let name = if channel.is_empty() { String::new() } else { format!(" (channel {channel})") };
        format!("the replication position for {host}:{port}{name} is not recorded, because {why}")
    }
}

impl From<ReplicaChannel> for ReplicaPosition {
    fn from(found: ReplicaChannel) -> Self {
        let ReplicaChannel { name: channel, host, port, by_gtid, executed, .. } = found;
        Self { channel, host, port, by_gtid, executed: Some(executed) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is stored has bare numbers.
    #[test]
    fn the_stored_form() {
        let stored = json!({
            "format": "my-sql", "begin_lsn": 1_024, "checkpoint_lsn": 1_100, "stop_lsn": u64::MAX, "header": "00",
            "encrypted": false,
        });
        let redo = CapturedRedo::MySql {
            begin_lsn: Lsn(1_024),
            checkpoint_lsn: Lsn(1_100),
            stop_lsn: Lsn(u64::MAX),
            header: "00".to_owned(),
            encrypted: false,
        };
        assert_eq!(serde_json::to_value(&redo).unwrap(), stored);
        assert_eq!(serde_json::from_value::<CapturedRedo>(stored).unwrap(), redo);
        let stored = json!({ "precision": "exact", "lsn": 1_500, "binlog": null, "gtid": null });
        let position: Position = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(position.lsn, Lsn(1_500));
        assert_eq!(serde_json::to_value(&position).unwrap(), stored);
    }
}
