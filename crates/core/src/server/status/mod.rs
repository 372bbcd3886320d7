//! Where a server stands at a moment: LSNs, binlog and GTID positions, replication.
//!
//! Whether two of these belong together is for the caller to ensure, by the lock under which it asks; only MySQL's
//! `log_status` is consistent in itself.

mod replica_channels;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use holdfast_formats::{Flavor, Lsn};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, ErrorKind},
    server::{Row, Session, SqlError, code},
};
pub(crate) use replica_channels::REPLICA_FILTERS;
pub use replica_channels::{ReplicaChannel, refuse_gaps};

/// A place in a binlog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinlogPosition {
    /// File name without directory.
    pub file: String,
    /// Offset in bytes.
    pub offset: u64,
}

impl BinlogPosition {
    /// Earlier places of one binlog are less.
    pub(crate) fn order(&self) -> (usize, &str, u64) {
        binlog_order(&self.file, self.offset)
    }
}

/// Where a place comes among those of one binlog: numbers of files grow longer when they have to.
pub(crate) fn binlog_order(file: &str, offset: u64) -> (usize, &str, u64) {
    (file.len(), file, offset)
}

/// MariaDB's LSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MariaDbLsns {
    /// End of the log in memory.
    pub current: Lsn,
    /// End of what is surely on disk.
    pub flushed: Lsn,
    /// The newest checkpoint.
    pub last_checkpoint: Lsn,
}

impl MariaDbLsns {
    /// Asks the server. Needs no privilege.
    pub fn read(session: &mut Session) -> Result<MariaDbLsns, SqlError> {
        let status = Status::read(session, "Innodb_lsn%")?;
        Ok(MariaDbLsns {
            current: status.lsn("Innodb_lsn_current")?,
            flushed: status.lsn("Innodb_lsn_flushed")?,
            last_checkpoint: status.lsn("Innodb_lsn_last_checkpoint")?,
        })
    }
}

/// MySQL's redo log, as its status values show it. The server refreshes these now and then: on 9.7 they were seen to be
/// behind by up to a second, right after a flush too. Good for a forecast; what must hold is
/// [`mysql_durable_end`]'s to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MySqlRedoStatus {
    /// The newest checkpoint.
    pub checkpoint: Lsn,
    /// End of the log in memory.
    pub current: Lsn,
    /// End of what is surely on disk.
    pub flushed: Lsn,
    /// Identity of the log; a new one at every restore or clone.
    pub uuid: u32,
    /// Whether redo is written at all.
    pub is_enabled: bool,
    /// How much the log may hold, as far as a change of that is carried out.
    pub capacity_bytes: u64,
}

impl MySqlRedoStatus {
    /// Asks the server. Needs no privilege.
    pub fn read(session: &mut Session) -> Result<MySqlRedoStatus, SqlError> {
        let status = Status::read(session, "Innodb_redo_log%")?;
        Ok(MySqlRedoStatus {
            checkpoint: status.lsn("Innodb_redo_log_checkpoint_lsn")?,
            current: status.lsn("Innodb_redo_log_current_lsn")?,
            flushed: status.lsn("Innodb_redo_log_flushed_to_disk_lsn")?,
            uuid: status.number("Innodb_redo_log_uuid")?,
            is_enabled: status.get("Innodb_redo_log_enabled")?.eq_ignore_ascii_case("ON"),
            capacity_bytes: status.number("Innodb_redo_log_capacity_resized")?,
        })
    }
}

/// How often `ALTER INSTANCE` was run since the server started (MySQL). It is the statement that switches redo logging
/// off and on, and leaves no other trace when both were done. Needs no privilege.
pub fn alter_instance_count(session: &mut Session) -> Result<u64, SqlError> {
    Status::read(session, "Com_alter_instance")?.number("Com_alter_instance")
}

/// Bytes that InnoDB has written to its log since the server started. Needs no privilege.
pub fn log_bytes_written(session: &mut Session) -> Result<u64, SqlError> {
    Status::read(session, "Innodb_os_log_written")?.number("Innodb_os_log_written")
}

/// What tells one start of a server from another.
#[derive(Clone, Copy, Debug)]
pub struct ServerStart {
    uptime: Duration,
    /// Just before it was asked, and when it had answered.
    asked: (Instant, Instant),
    /// The session that asked.
    connection_id: u64,
}

impl ServerStart {
    /// The server tells whole seconds, and its clock may be set meanwhile, by a little.
    const TOLERANCE: Duration = Duration::from_secs(2);

    /// Asks the server. Needs no privilege.
    pub fn read(session: &mut Session) -> Result<ServerStart, SqlError> {
        let before = Instant::now();
        let uptime = Status::read(session, "Uptime")?.number("Uptime").map(Duration::from_secs)?;
        Ok(ServerStart { uptime, asked: (before, Instant::now()), connection_id: session.connection_id() })
    }

    /// Whether the server was started anew before it was asked `later`. Sessions are numbered from each start on.
    #[must_use]
    pub fn is_before(&self, later: &ServerStart) -> bool {
        later.connection_id < self.connection_id
            || later.uptime + Self::TOLERANCE
                < self.uptime + later.asked.0.saturating_duration_since(self.asked.1)
    }
}

struct Status(BTreeMap<String, String>);

impl Status {
    fn read(session: &mut Session, pattern: &str) -> Result<Status, SqlError> {
        let mut values = BTreeMap::new();
        for row in session.rows(&format!("SHOW GLOBAL STATUS LIKE '{pattern}'"))? {
            values.insert(row.text("Variable_name")?.to_ascii_lowercase(), row.text("Value")?.to_owned());
        }
        Ok(Status(values))
    }

    fn get(&self, name: &str) -> Result<&str, SqlError> {
        let value = self.0.get(&name.to_ascii_lowercase());
        value.map(String::as_str).ok_or_else(|| SqlError::unexpected(format_args!("no status value {name}")))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, SqlError> {
        let text = self.get(name)?;
        text.parse().map_err(|_| SqlError::unexpected(format_args!("status value {name} is {text:?}")))
    }

    fn lsn(&self, name: &str) -> Result<Lsn, SqlError> {
        self.number(name).map(Lsn)
    }
}

/// One consistent look at MySQL's logs: binlog, GTIDs and redo at the same moment. (Of a replica it tells what was received,
/// not what was applied; verified on 9.7.4.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStatus {
    /// End of redo: exactly what belongs to the position.
    pub lsn: Lsn,
    /// The newest checkpoint.
    pub checkpoint: Lsn,
    /// `None` where there is no binlog.
    pub binlog: Option<BinlogPosition>,
    /// `gtid_executed`; empty without GTIDs.
    pub gtid_executed: String,
    /// `server_uuid`.
    pub server_uuid: String,
}

impl LogStatus {
    /// What it means where there is no answer.
    pub(crate) fn unanswered(error: SqlError) -> Error {
        Error::new(ErrorKind::Server, "performance_schema.log_status was not answered in time")
            .hinted(
                "commits are waiting, perhaps for a semi-synchronous replica that is silent: see SHOW PROCESSLIST",
            )
            .caused_by(error)
    }

    /// Asks the server: `performance_schema.log_status`.
    pub fn read(session: &mut Session) -> Result<LogStatus, SqlError> {
        let query =
            "SELECT server_uuid AS u, local AS l, storage_engines AS s FROM performance_schema.log_status";
        let row = session.row(query)?.ok_or_else(|| SqlError::unexpected("log_status is empty"))?;
        LogStatus::parse(row.text("u")?, row.text("l")?, row.text("s")?)
    }

    /// Reads the columns `server_uuid`, `local`, `storage_engines`.
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
            // Sets of several sources come with line breaks.
            gtid_executed: local.gtid_executed.replace('\n', ""),
            server_uuid: uuid.to_owned(),
        })
    }
}

/// Where MariaDB's binlog and GTIDs stand. Consistent only while nothing commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MariaDbPosition {
    /// `None` where there is no binlog.
    pub binlog: Option<BinlogPosition>,
    /// `gtid_binlog_pos`.
    pub gtid_binlog_pos: String,
    /// `gtid_current_pos`.
    pub gtid_current_pos: String,
    /// `gtid_slave_pos`.
    pub gtid_slave_pos: String,
}

/// Where the binlog ends, and what is left out of it; `None` where the server writes none.
pub fn binlog_status(session: &mut Session) -> Result<Option<Row>, SqlError> {
    const OLD_NAME: &str = "SHOW MASTER STATUS";
    match session.flavor() {
        Flavor::MariaDb => session.row(OLD_NAME),
        // The old name went with 8.4.
        Flavor::MySql => match session.row("SHOW BINARY LOG STATUS") {
            Err(error) if error.code() == Some(code::SYNTAX_ERROR) => session.row(OLD_NAME),
            status => status,
        },
    }
}

impl MariaDbPosition {
    /// Asks the server: `SHOW MASTER STATUS` and the GTID variables.
    pub fn read(session: &mut Session) -> Result<MariaDbPosition, SqlError> {
        let binlog = match binlog_status(session)? {
            Some(row) => {
                Some(BinlogPosition { file: row.text("File")?.to_owned(), offset: row.number("Position")? })
            }
            None => None,
        };
        let query = "SELECT @@GLOBAL.gtid_binlog_pos AS b, @@GLOBAL.gtid_current_pos AS c, @@GLOBAL.gtid_slave_pos AS s";
        let row = session.row(query)?.ok_or_else(|| SqlError::unexpected("no row"))?;
        let text = |column| Ok::<_, SqlError>(row.text_or_null(column)?.unwrap_or_default().to_owned());
        Ok(MariaDbPosition {
            binlog,
            gtid_binlog_pos: text("b")?,
            gtid_current_pos: text("c")?,
            gtid_slave_pos: text("s")?,
        })
    }
}

/// Looks at the logs of MySQL until no applier has gone on meanwhile, a few times at most. A session that has locked
/// tables cannot read the `channels`, and none that holds anything should read the `status`, which waits for commits.
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

/// Looks at the logs while appliers go on. Each takes milliseconds.
const LOOKS_MAX: u32 = 10;

/// Where a MySQL server stands.
#[derive(Clone, Debug)]
pub struct MySqlPosition {
    /// One moment.
    pub status: LogStatus,
    /// Its channels as a replica.
    pub channels: Vec<ReplicaChannel>,
    /// Those that stood still at that moment. Of the others a place would be newer than the data, or older.
    pub unmoved: Vec<ReplicaChannel>,
}

/// Makes the redo written so far durable, so that a reader of the log sees it.
pub fn flush_engine_logs(session: &mut Session) -> Result<(), SqlError> {
    session.exec("FLUSH LOCAL ENGINE LOGS")
}

/// MySQL: an LSN that is not before anything written until now, and that is on disk when this returns: whoever has read
/// the redo log up to it has seen everything that happened before the call.
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

    #[test]
    fn a_restart_shows() {
        let now = Instant::now();
        let asked = |connection_id, uptime_s, later_s| ServerStart {
            uptime: Duration::from_secs(uptime_s),
            asked: (now + Duration::from_secs(later_s), now + Duration::from_secs(later_s)),
            connection_id,
        };
        let begun = asked(7, 100, 0);
        assert!(!begun.is_before(&asked(9, 160, 60)));
        assert!(!begun.is_before(&asked(7, 158, 60)), "clocks differ");
        assert!(begun.is_before(&asked(9, 3, 60)));
        let slow = ServerStart {
            asked: (now + Duration::from_secs(60), now + Duration::from_secs(90)),
            ..asked(9, 160, 0)
        };
        assert!(!begun.is_before(&slow), "a slow answer is none of another start");
        assert!(asked(9, 1, 0).is_before(&asked(4, 1, 1)));
    }

    /// A look at the logs is read as MySQL writes it, with and without binlog and replication.
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
