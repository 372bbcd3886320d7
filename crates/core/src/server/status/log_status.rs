//! MySQL's log positions at one moment: binlog, GTIDs and redo together.

use holdfast_formats::Lsn;
use serde::Deserialize;

use super::{binlog::BinlogPosition, redo::flush_engine_logs, replica_channels::ReplicaChannel};
use crate::{
    error::{Error, ErrorKind},
    server::{Session, SqlError},
};

/// One consistent reading of MySQL's logs: binlog, GTIDs and redo at the same moment. (On a replica it
/// reports what was received, not what was applied; verified on 9.7.4.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStatus {
    /// The end of redo, exactly at the binlog position.
    pub lsn: Lsn,
    /// The newest checkpoint.
    pub checkpoint: Lsn,
    /// `None` if there is no binlog.
    pub binlog: Option<BinlogPosition>,
    /// `gtid_executed`; empty without GTIDs.
    pub gtid_executed: String,
    /// `server_uuid`.
    pub server_uuid: String,
}

impl LogStatus {
    /// The error for a `log_status` that was not answered.
    pub(crate) fn unanswered(error: SqlError) -> Error {
        Error::new(ErrorKind::Server, "performance_schema.log_status was not answered in time")
            .hinted(
                "commits are waiting, perhaps for a silent semi-synchronous replica: see SHOW PROCESSLIST",
            )
            .caused_by(error)
    }

    /// Queries the server: `performance_schema.log_status`.
    pub fn read(session: &mut Session) -> Result<LogStatus, SqlError> {
        let query =
            "SELECT server_uuid AS u, local AS l, storage_engines AS s FROM performance_schema.log_status";
        let row = session.row(query)?.ok_or_else(|| SqlError::unexpected("log_status is empty"))?;
        LogStatus::parse(row.text("u")?, row.text("l")?, row.text("s")?)
    }

    /// Parses the columns `server_uuid`, `local` and `storage_engines`.
    pub fn parse(uuid: &str, local: &str, engines: &str) -> Result<LogStatus, SqlError> {
        #[derive(Deserialize)]
        struct Local {
            #[serde(default)]
            gtid_executed: String,
            #[serde(default)]
            binary_log_file: String,
            #[serde(default)]
            binary_log_position: u64,
        }
        #[derive(Deserialize)]
        struct Engines {
            #[serde(rename = "InnoDB")]
            innodb: InnoDb,
        }
        #[derive(Deserialize)]
        struct InnoDb {
            #[serde(rename = "LSN")]
            lsn: u64,
            #[serde(rename = "LSN_checkpoint")]
            checkpoint: u64,
        }
        fn read<'a, T: Deserialize<'a>>(column: &str, text: &'a str) -> Result<T, SqlError> {
            serde_json::from_str(text)
                .map_err(|error| SqlError::unexpected(format_args!("log_status.{column}: {error}")))
        }
        let local: Local = read("local", local)?;
        let engines: Engines = read("storage_engines", engines)?;
        let has_binlog = !local.binary_log_file.is_empty();
        Ok(LogStatus {
            lsn: Lsn(engines.innodb.lsn),
            checkpoint: Lsn(engines.innodb.checkpoint),
            binlog: has_binlog
                .then_some(BinlogPosition { file: local.binary_log_file, offset: local.binary_log_position }),
            // Sets with several sources contain line breaks.
            gtid_executed: local.gtid_executed.replace('\n', ""),
            server_uuid: uuid.to_owned(),
        })
    }
}

/// Reads MySQL's logs until no applier has moved in the meantime, [`LOOKS_MAX`] times at most. A session that
/// has locked tables cannot read the `channels`, and a session that holds anything should not read the
/// `status`, which waits for commits.
pub fn mysql_position<E>(
    mut status: impl FnMut() -> Result<LogStatus, E>,
    mut channels: impl FnMut() -> Result<Vec<ReplicaChannel>, E>,
) -> Result<MySqlPosition, E> {
    let mut looks = 0;
    loop {
        looks += 1;
        let before = channels()?;
        let status = status()?;
        let channels = channels()?;
        let unmoved: Vec<_> = channels.iter().filter(|channel| before.contains(channel)).cloned().collect();
        if unmoved.len() == channels.len() || looks == LOOKS_MAX {
            return Ok(MySqlPosition { status, channels, unmoved });
        }
    }
}

/// Maximum number of readings while appliers move. Each takes milliseconds.
const LOOKS_MAX: u32 = 10;

/// A MySQL server's position.
#[derive(Clone, Debug)]
pub struct MySqlPosition {
    /// The logs at one moment.
    pub status: LogStatus,
    /// The server's channels as a replica.
    pub channels: Vec<ReplicaChannel>,
    /// The channels that stood still at that moment. The positions of the others would be newer than the
    /// data, or older.
    pub unmoved: Vec<ReplicaChannel>,
}

/// MySQL: an LSN that is not before anything written until now, and that is on disk when this returns. A
/// reader of the redo log that has reached it has seen everything that happened before the call.
pub fn mysql_durable_end(session: &mut Session) -> Result<Lsn, SqlError> {
    let end = LogStatus::read(session)?.lsn;
    flush_engine_logs(session)?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINES: &str =
        r#"{"InnoDB": {"LSN": 3531523905, "LSN_checkpoint": 1413101042}, "Other": {"x": 1}}"#;

    /// A `log_status` is parsed as MySQL writes it, with and without binlog and replication.
    #[test]
    fn log_status() {
        let local = "{\"gtid_executed\": \"a:1-3,\\nb:7\", \"binary_log_file\": \"b.000002\", \"binary_log_position\": 158}";
        let status = LogStatus::parse("uuid", local, ENGINES).unwrap();
        assert_eq!((status.lsn, status.checkpoint), (Lsn(3_531_523_905), Lsn(1_413_101_042)));
        assert_eq!(status.binlog, Some(BinlogPosition { file: "b.000002".into(), offset: 158 }));
        assert_eq!(status.gtid_executed, "a:1-3,b:7");

        let bare = LogStatus::parse("uuid", r#"{"gtid_executed": ""}"#, ENGINES).unwrap();
        assert_eq!(bare.binlog, None);
        for (local, engines) in [("", ENGINES), ("{}", "{}"), ("{}", r#"{"InnoDB":{"LSN":-1}}"#)] {
            let error = LogStatus::parse("uuid", local, engines).unwrap_err();
            assert!(error.to_string().contains("log_status."), "{error}");
        }
    }
}
