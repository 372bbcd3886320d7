//! The position that a backup restores to: in the redo, in the binlog, and as a replica.
//!
//! Stored as JSON in the manifest head, field `position` (`docs/reference/repository.md` section 9).

use holdfast_formats::Lsn;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::server::{
    Session, SqlError,
    status::{BinlogPosition, MariaDbLsns, MariaDbPosition, ReplicaChannel, clock},
};

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
        let stored = json!({ "precision": "exact", "lsn": 1_500, "binlog": null, "gtid": null });
        let position: Position = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(position.lsn, Lsn(1_500));
        assert_eq!(serde_json::to_value(&position).unwrap(), stored);
    }
}
