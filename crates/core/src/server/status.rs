//! Where a server stands: LSNs, binlog and GTID positions, replication, tablespaces.
//!
//! Whether two of these belong together is for the caller to ensure, by the lock under which it asks; only MySQL's
//! `log_status` is consistent in itself.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::{Duration, Instant},
};

use holdfast_formats::{Flavor, Lsn, SpaceId};
use serde::{Deserialize, Serialize};

use super::{
    facts::ServerFacts,
    session::{Row, Session},
    sql_error::SqlError,
};
use crate::error::{Error, Result};

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
            Err(error) if error.code() == Some(1064) => session.row(OLD_NAME),
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

/// Where the server stands as a replica, for one channel. Evidence: a restored copy's own tables have the last word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChannel {
    /// Connection or channel name; empty for the default one.
    pub name: String,
    /// Its primary.
    pub host: String,
    /// Its primary's port.
    pub port: u16,
    /// Applied up to here in the primary's binlog. Of appliers that do not keep the order, all that is before.
    pub executed: BinlogPosition,
    /// Whether the applier runs.
    pub is_applying: bool,
    /// Whether it finds its place by GTID.
    pub by_gtid: bool,
}

impl ReplicaChannel {
    /// All channels: `SHOW ALL SLAVES STATUS`, `SHOW REPLICA STATUS`.
    pub fn read_all(session: &mut Session) -> Result<Vec<ReplicaChannel>, SqlError> {
        let flavor = session.flavor();
        let (query, names) = match flavor {
            Flavor::MariaDb => ("SHOW ALL SLAVES STATUS", &MARIADB_NAMES),
            Flavor::MySql => ("SHOW REPLICA STATUS", &MYSQL_NAMES),
        };
        let rows = session.rows(query)?;
        let mut channels =
            rows.iter().map(|row| ReplicaChannel::from_row(row, names)).collect::<Result<Vec<_>, _>>()?;
        if flavor == Flavor::MySql && channels.iter().any(|channel| !channel.by_gtid) {
            let workers = session.rows(WORKERS)?;
            for channel in &mut channels {
                channel.go_on_to_workers(&workers)?;
            }
        }
        Ok(channels)
    }

    /// MySQL: what the server shows of appliers that work in parallel is up to 0.3 s old, and the data is where the last
    /// of them is, as far as they keep the order; each writes its place in the transaction that it applies.
    fn go_on_to_workers(&mut self, workers: &[Row]) -> Result<(), SqlError> {
        for worker in workers {
            let file = worker.text_or_null("file")?.unwrap_or_default();
            if worker.text_or_null("channel")?.unwrap_or_default() == self.name && !file.is_empty() {
                let place = BinlogPosition { file: file.to_owned(), offset: worker.number("offset")? };
                if place.order() > self.executed.order() {
                    self.executed = place;
                }
            }
        }
        Ok(())
    }

    fn from_row(row: &Row, names: &ColumnNames) -> Result<ReplicaChannel, SqlError> {
        let text = |column| Ok::<_, SqlError>(row.text_or_null(column)?.unwrap_or_default().to_owned());
        Ok(ReplicaChannel {
            name: text(names.channel)?,
            host: text(names.host)?,
            port: row.number(names.port)?,
            executed: BinlogPosition { file: text(names.file)?, offset: row.number(names.offset)? },
            is_applying: row.text(names.applier)?.eq_ignore_ascii_case("Yes"),
            by_gtid: !matches!(row.text(names.gtid)?, "No" | "0"),
        })
    }
}

const WORKERS: &str = "SELECT channel_name AS channel, master_log_name AS file, master_log_pos AS offset \
                       FROM mysql.slave_worker_info";

struct ColumnNames {
    channel: &'static str,
    host: &'static str,
    port: &'static str,
    file: &'static str,
    offset: &'static str,
    applier: &'static str,
    gtid: &'static str,
}

const MARIADB_NAMES: ColumnNames = ColumnNames {
    channel: "Connection_name",
    host: "Master_Host",
    port: "Master_Port",
    file: "Relay_Master_Log_File",
    offset: "Exec_Master_Log_Pos",
    applier: "Slave_SQL_Running",
    gtid: "Using_Gtid",
};

const MYSQL_NAMES: ColumnNames = ColumnNames {
    channel: "Channel_Name",
    host: "Source_Host",
    port: "Source_Port",
    file: "Relay_Source_Log_File",
    offset: "Exec_Source_Log_Pos",
    applier: "Replica_SQL_Running",
    gtid: "Auto_Position",
};

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

/// Refuses a replica whose appliers may have left gaps: transactions applied before earlier ones, with no GTIDs to tell
/// which. No single position describes such a copy. An applier that is stopped fills its gaps first.
pub fn refuse_gaps(facts: &ServerFacts, channels: &[ReplicaChannel]) -> Result<()> {
    let has_gtids = facts.binlog.as_ref().and_then(|binlog| binlog.gtid_mode.as_deref()) == Some("ON");
    let replica = &facts.replica;
    let in_any_order = facts.flavor() == Flavor::MySql
        && replica.parallel_workers > 1
        && !replica.preserve_commit_order
        && !has_gtids;
    if in_any_order && channels.iter().any(|channel| channel.is_applying && !channel.by_gtid) {
        return Err(Error::failed(
            "the replica applies in parallel without keeping the order, and without GTIDs",
        )
        .hinted(
            "stop its applier first (STOP REPLICA SQL_THREAD), or set replica_preserve_commit_order=ON",
        ));
    }
    Ok(())
}

/// A tablespace as InnoDB lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablespaceRow {
    /// Its id.
    pub space: SpaceId,
    /// Its name: `db/table`, `innodb_undo_001` …
    pub name: String,
    /// Its flags.
    pub flag: u32,
    /// Its file, where the server tells (MariaDB).
    pub file: Option<String>,
    /// `normal`, `discarded`, `corrupted`, `active`, `inactive`, `empty` (MySQL).
    pub state: Option<String>,
    /// The indexes in it, and of which table each is (MySQL).
    pub indexes: BTreeMap<u64, u64>,
    /// Of an index of full texts that is not listed, since it is being built (MySQL).
    pub is_being_built: bool,
}

impl TablespaceRow {
    /// One that is not listed, as the system tablespace is not.
    fn unlisted(space: SpaceId) -> Self {
        Self {
            space,
            name: String::new(),
            flag: 0,
            file: None,
            state: None,
            indexes: BTreeMap::new(),
            is_being_built: false,
        }
    }

    /// Whether the table has an index in it: each has one at least.
    #[must_use]
    pub fn has_table(&self, table: u64) -> bool {
        self.indexes.values().any(|it| *it == table)
    }

    /// Whether a table of it has an index that it had not `then`. Those of a table that came since do not count.
    #[must_use]
    pub fn has_new_index_since(&self, then: &Self) -> bool {
        let new = self.indexes.iter().filter(|(index, _)| !then.indexes.contains_key(index));
        let mut tables = new.map(|(_, table)| table).peekable();
        if tables.peek().is_none() {
            return false;
        }
        let old_tables: HashSet<&u64> = then.indexes.values().collect();
        tables.any(|table| old_tables.contains(table))
    }
}

/// InnoDB's tablespaces at one moment, by id. MariaDB lists only those that it has opened since its start. Under heavy
/// changes of definitions the first look at MySQL's may take seconds; it needs `PROCESS` on both.
pub fn tablespaces(session: &mut Session) -> Result<BTreeMap<SpaceId, TablespaceRow>, SqlError> {
    let query = match session.flavor() {
        Flavor::MariaDb => {
            "SELECT space, name, flag, filename AS file, NULL AS state FROM information_schema.innodb_sys_tablespaces"
        }
        Flavor::MySql => {
            "SELECT space, name, flag, NULL AS file, state FROM information_schema.innodb_tablespaces"
        }
    };
    let mut spaces = BTreeMap::new();
    for row in session.rows(query)? {
        let space = SpaceId(row.number("space")?);
        let text = |column| Ok::<_, SqlError>(row.text_or_null(column)?.map(str::to_owned));
        let tablespace = TablespaceRow {
            space,
            name: row.text_or_null("name")?.unwrap_or_default().to_owned(),
            flag: row.number("flag")?,
            file: text("file")?,
            state: text("state")?,
            ..TablespaceRow::unlisted(space)
        };
        spaces.insert(space, tablespace);
    }
    if session.flavor() == Flavor::MySql {
        // Looked at behind the tablespaces: an index that is finished between the two looks counts as new.
        let query = "SELECT space, index_id, table_id FROM information_schema.innodb_indexes";
        let mut listed: HashSet<u64> = HashSet::new();
        for row in session.rows(query)? {
            let space = SpaceId(row.number("space")?);
            let tablespace = spaces.entry(space).or_insert_with(|| TablespaceRow::unlisted(space));
            tablespace.indexes.insert(row.number("index_id")?, row.number("table_id")?);
            listed.insert(row.number("index_id")?);
        }
        for tablespace in spaces.values_mut() {
            let index = index_of_full_texts(&tablespace.name);
            tablespace.is_being_built = index.is_some_and(|index| !listed.contains(&index));
        }
    }
    Ok(spaces)
}

/// Which index of full texts a table of InnoDB's is of: `db/fts_<its table>_<the index>_index_1`, in 16 hexadecimal digits each.
fn index_of_full_texts(name: &str) -> Option<u64> {
    let (_, name) = name.rsplit_once('/')?;
    let lower = name.to_ascii_lowercase();
    let (_table, rest) = lower.strip_prefix("fts_")?.split_once('_')?;
    let (index, _) = rest.split_once("_index_")?;
    u64::from_str_radix(index, 16).ok()
}

/// MariaDB: the ids of the InnoDB tables in each tablespace, opened or not. DISCARD gives a table a new id, and nothing
/// else does without giving it a new tablespace too.
pub fn mariadb_tables(session: &mut Session) -> Result<BTreeMap<SpaceId, BTreeSet<u64>>, SqlError> {
    let mut tables = BTreeMap::<_, BTreeSet<_>>::new();
    for row in session.rows("SELECT table_id AS id, space FROM information_schema.innodb_sys_tables")? {
        tables.entry(SpaceId(row.number("space")?)).or_default().insert(row.number("id")?);
    }
    Ok(tables)
}

/// MariaDB: the names of all InnoDB tables and partitions, also of those that nobody has opened, written as in file
/// names.
pub fn mariadb_table_names(session: &mut Session) -> Result<Vec<String>, SqlError> {
    let rows = session.rows("SELECT name FROM information_schema.innodb_sys_tables")?;
    rows.iter().map(|row| Ok(row.text("name")?.to_owned())).collect()
}

/// A file of a tablespace, wherever it is (MySQL).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablespaceFile {
    /// The tablespace.
    pub space: SpaceId,
    /// Path as the server names it: relative ones begin at the data directory.
    pub path: String,
    /// Whether it holds undo logs.
    pub is_undo: bool,
}

/// MySQL: every file of every tablespace that is not temporary. Needs `PROCESS`.
pub fn mysql_files(session: &mut Session) -> Result<Vec<TablespaceFile>, SqlError> {
    let query = "SELECT file_id AS space, file_name AS path, file_type AS kind FROM information_schema.files \
                 WHERE file_type <> 'TEMPORARY' AND engine = 'InnoDB'";
    let file = |row: &Row| {
        Ok(TablespaceFile {
            space: SpaceId(row.number("space")?),
            path: row.text("path")?.to_owned(),
            is_undo: row.text("kind")? == "UNDO LOG",
        })
    };
    session.rows(query)?.iter().map(file).collect()
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

/// Begins a new binlog file, so that the one in use is small.
pub fn flush_binary_logs(session: &mut Session) -> Result<(), SqlError> {
    session.exec("FLUSH LOCAL BINARY LOGS")
}

/// MariaDB: makes the server write a checkpoint now, if the account may; says whether it did.
pub fn checkpoint_now(session: &mut Session) -> Result<bool, SqlError> {
    match session.exec("SET GLOBAL innodb_log_checkpoint_now = 1") {
        Ok(()) => Ok(true),
        Err(error) if error.code().is_some() => Ok(false),
        Err(error) => Err(error),
    }
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

    #[test]
    fn tables_of_full_texts_name_their_index() {
        let name = "i/fts_000000000000042e_00000000000000ad_index_1";
        assert_eq!(index_of_full_texts(name), Some(0xAD));
        assert_eq!(index_of_full_texts("i/FTS_000000000000042E_00000000000000AD_INDEX_6"), Some(0xAD));
        for name in
            ["i/fts_000000000000042e_config", "i/fts_x", "fts_1_2_index_1", "i/t", "i/fts_1_z_index_1"]
        {
            assert_eq!(index_of_full_texts(name), None, "{name}");
        }
    }
}
