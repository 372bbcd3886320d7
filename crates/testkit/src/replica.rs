//! The oracle: a restored server, made a replica at the recorded position, must catch up with the source and
//! then hold the same data.
//! A position that is wrong by one transaction shows as a duplicate key, a missing row or a wrong checksum.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mysql::prelude::Queryable;
use mysql::{Conn, Row};

use crate::server::Server;

/// MariaDB: the first transaction of a group waits for others, and a backup for the first: so the lock of the backup
/// comes before the others' ends.
pub const COMMIT_IN_GROUPS: [&str; 2] =
    ["SET GLOBAL binlog_commit_wait_count = 1000", "SET GLOBAL binlog_commit_wait_usec = 300000"];

/// Where in the source's history a replica starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// After these transactions, in the server's own notation.
    Gtid(String),
    /// After these and what else the data directory itself records (MySQL): the end of redo whose last block nobody
    /// could read.
    AtLeast(String),
    /// At this event of the source's binlog.
    File {
        /// Name of the binlog file.
        name: String,
        /// Offset of the next event.
        offset: u64,
    },
    /// At the position that the data directory itself records: right for a copy of a stopped server.
    Held,
}

/// What a replica went through.
#[derive(Clone, Debug)]
pub struct CaughtUp {
    /// Its GTIDs before it started.
    pub began_at: String,
    /// The source's GTIDs, which it has reached.
    pub reached: String,
    /// How long it took.
    pub elapsed: Duration,
}

/// Deadline for a replica whose replication has not stopped: catching up takes as long as the machine needs.
pub const CATCH_UP_MAX: Duration = Duration::from_secs(900);

/// Makes `replica` a replica of `source` and waits until it has everything that the source has now.
pub fn catch_up(
    source: &Server,
    replica: &Server,
    position: &Position,
    deadline: Duration,
) -> Result<CaughtUp> {
    let started = Instant::now();
    let began_at = follow(source, replica, position)?;
    let reached =
        wait(source, replica, deadline).with_context(|| format!("the replica began at {began_at}"))?;
    Ok(CaughtUp { began_at, reached, elapsed: started.elapsed() })
}

/// Makes `replica` a replica of `source`, starting at `position`. Returns the GTIDs that it held before.
pub fn follow(source: &Server, replica: &Server, position: &Position) -> Result<String> {
    ensure!(
        source.kind().is_mariadb() == replica.kind().is_mariadb(),
        "{} cannot follow {}",
        replica.kind(),
        source.kind()
    );
    source.exec_all([
        "CREATE USER IF NOT EXISTS 'replica'@'%' IDENTIFIED BY 'replica'",
        "GRANT REPLICATION SLAVE ON *.* TO 'replica'@'%'",
    ])?;
    Dialect::of(replica).begin(&mut replica.conn()?, source, position)
}

/// Waits until a replica has everything that its source has now; returns the source's GTIDs.
pub fn wait(source: &Server, replica: &Server, deadline: Duration) -> Result<String> {
    let started = Instant::now();
    let dialect = Dialect::of(replica);
    let mut conn = replica.conn()?;
    let reached: String = source.value(dialect.source_position())?;
    while !dialect.has_reached(&mut conn, &reached)? {
        let state = dialect.state(&mut conn)?;
        if let Some(error) = state.fatal_error() {
            bail!("the replica stopped before {reached}: {error}");
        }
        if started.elapsed() > deadline {
            bail!("the replica has not reached {reached} after {} s: {state:?}", deadline.as_secs());
        }
    }
    Ok(reached)
}

/// Ends replication on a server that [`catch_up`] made a replica.
pub fn detach(replica: &Server) -> Result<()> {
    match replica.kind().is_mariadb() {
        true => replica.exec_all(["STOP SLAVE", "RESET SLAVE ALL"]),
        false => replica.exec_all(["STOP REPLICA", "RESET REPLICA ALL"]),
    }
}

#[derive(Debug)]
struct ReplicaState {
    receiver_runs: String,
    applier_runs: String,
    receiver_error: String,
    applier_error: String,
}

impl ReplicaState {
    /// A connecting receiver may recover; a thread that has stopped with an error does not.
    fn fatal_error(&self) -> Option<&str> {
        [(&self.applier_runs, &self.applier_error), (&self.receiver_runs, &self.receiver_error)]
            .into_iter()
            .find(|(runs, error)| *runs == "No" && !error.is_empty())
            .map(|(_, error)| error.as_str())
    }
}

#[derive(Clone, Copy)]
enum Dialect {
    MariaDb,
    MySql,
}

impl Dialect {
    fn of(server: &Server) -> Dialect {
        if server.kind().is_mariadb() { Dialect::MariaDb } else { Dialect::MySql }
    }

    /// Configures and starts replication; returns the GTIDs that the replica held before.
    fn begin(self, conn: &mut Conn, source: &Server, position: &Position) -> Result<String> {
        let port = source.port();
        let mut run = |statement: String| conn.query_drop(&statement).context(statement);
        match self {
            Dialect::MariaDb => {
                run("STOP SLAVE".to_owned())?;
                let start = match position {
                    Position::Gtid(gtid) => {
                        run(format!("SET GLOBAL gtid_slave_pos = '{gtid}'"))?;
                        "MASTER_USE_GTID = slave_pos".to_owned()
                    }
                    Position::AtLeast(gtid) => bail!("MariaDB tells its place exactly, not at least {gtid}"),
                    Position::Held => {
                        // On a server that was never a replica, a copied binlog is more accurate than
                        // `gtid_slave_pos`.
                        run("SET @held = IF(@@gtid_binlog_pos <> '', @@gtid_binlog_pos, @@gtid_slave_pos)"
                            .to_owned())?;
                        run("SET GLOBAL gtid_slave_pos = @held".to_owned())?;
                        "MASTER_USE_GTID = slave_pos".to_owned()
                    }
                    Position::File { name, offset } => {
                        format!("MASTER_USE_GTID = no, MASTER_LOG_FILE = '{name}', MASTER_LOG_POS = {offset}")
                    }
                };
                run(format!(
                    "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'replica',
                     MASTER_PASSWORD = 'replica', MASTER_CONNECT_RETRY = 1, {start}"
                ))?;
                let began_at = conn.query_first("SELECT @@gtid_slave_pos")?.context("no gtid_slave_pos")?;
                conn.query_drop("START SLAVE")?;
                Ok(began_at)
            }
            Dialect::MySql => {
                run("STOP REPLICA".to_owned())?;
                let start = match position {
                    Position::Gtid(_) | Position::AtLeast(_) | Position::Held => {
                        "SOURCE_AUTO_POSITION = 1".to_owned()
                    }
                    Position::File { name, offset } => {
                        format!(
                            "SOURCE_AUTO_POSITION = 0, SOURCE_LOG_FILE = '{name}', SOURCE_LOG_POS = {offset}"
                        )
                    }
                };
                run(format!(
                    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port},
                     SOURCE_USER = 'replica', SOURCE_PASSWORD = 'replica', GET_SOURCE_PUBLIC_KEY = 1,
                     SOURCE_CONNECT_RETRY = 1, {start}"
                ))?;
                let began_at: String =
                    conn.query_first("SELECT @@gtid_executed")?.context("no gtid_executed")?;
                // The data directory has its own set; a recorded position that it contradicts is wrong.
                let (recorded, holds_more) = match position {
                    Position::Gtid(gtid) => (Some(gtid), false),
                    Position::AtLeast(gtid) => (Some(gtid), true),
                    Position::Held | Position::File { .. } => (None, false),
                };
                if let Some(gtid) = recorded {
                    let query =
                        "SELECT GTID_SUBSET(?, @@gtid_executed) AND (? OR GTID_SUBSET(@@gtid_executed, ?))";
                    let agrees: Option<bool> = conn.exec_first(query, (gtid, holds_more, gtid))?;
                    ensure!(agrees == Some(true), "the data directory holds {began_at}, recorded was {gtid}");
                }
                conn.query_drop("START REPLICA")?;
                Ok(began_at)
            }
        }
    }

    fn source_position(self) -> &'static str {
        match self {
            Dialect::MariaDb => "SELECT @@gtid_binlog_pos",
            Dialect::MySql => "SELECT @@gtid_executed",
        }
    }

    /// Waits briefly for the replica to reach `position`.
    fn has_reached(self, conn: &mut Conn, position: &str) -> Result<bool> {
        let query = match self {
            Dialect::MariaDb => "SELECT MASTER_GTID_WAIT(?, 0.2)",
            Dialect::MySql => "SELECT WAIT_FOR_EXECUTED_GTID_SET(?, 0.2)",
        };
        let outcome: Option<i64> = conn.exec_first(query, (position,))?;
        Ok(outcome == Some(0))
    }

    fn state(self, conn: &mut Conn) -> Result<ReplicaState> {
        let (query, receiver, applier) = match self {
            Dialect::MariaDb => ("SHOW SLAVE STATUS", "Slave_IO_Running", "Slave_SQL_Running"),
            Dialect::MySql => ("SHOW REPLICA STATUS", "Replica_IO_Running", "Replica_SQL_Running"),
        };
        let row: Row = conn.query_first(query)?.context("not a replica")?;
        let column =
            |name: &str| row.get::<String, _>(name).with_context(|| format!("{query} has no {name}"));
        Ok(ReplicaState {
            receiver_runs: column(receiver)?,
            applier_runs: column(applier)?,
            receiver_error: column("Last_IO_Error")?,
            applier_error: column("Last_SQL_Error")?,
        })
    }
}
