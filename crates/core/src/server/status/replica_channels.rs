//! A server's position as a replica, channel by channel.

use std::collections::BTreeMap;

use holdfast_formats::{Flavor, gtid::MariaDbGtid};

use super::binlog::BinlogPosition;
use crate::{
    error::{Error, ErrorKind, Result},
    server::{Row, ServerFacts, Session, SqlError, tables::quoted},
};

/// The position of a replica in one channel. Only evidence: the tables of a restored copy are authoritative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaChannel {
    /// Connection or channel name; empty for the default one.
    pub name: String,
    /// Its primary.
    pub host: String,
    /// Its primary's port.
    pub port: u16,
    /// Applied up to this position in the primary's binlog. If appliers do not keep the order, everything
    /// before it is applied.
    pub executed: BinlogPosition,
    /// Whether the applier is running.
    pub is_applying: bool,
    /// Whether it positions itself by GTID.
    pub by_gtid: bool,
    /// Filters for what it does not apply, or applies elsewhere, each with its name.
    pub filters: Vec<String>,
}

/// A channel's filters, as both flavors name them. MariaDB's filters by domain are not among them: what they
/// leave out is not in the replica's GTIDs.
pub(crate) const REPLICA_FILTERS: [&str; 8] = [
    "Replicate_Do_DB",
    "Replicate_Ignore_DB",
    "Replicate_Do_Table",
    "Replicate_Ignore_Table",
    "Replicate_Wild_Do_Table",
    "Replicate_Wild_Ignore_Table",
    "Replicate_Rewrite_DB",
    "Replicate_Ignore_Server_Ids",
];

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

    /// MySQL: the server's status of parallel appliers lags by up to 0.3 s. As long as they keep the order,
    /// the data is where the most advanced applier is; each records its position in the transaction that it
    /// applies.
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
        let mut filters = Vec::new();
        for column in REPLICA_FILTERS.into_iter().filter(|column| row.has(column)) {
            let what = text(column)?;
            if !what.is_empty() {
                filters.push(format!("{} {what}", column.to_lowercase()));
            }
        }
        Ok(ReplicaChannel {
            filters,
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

/// Refuses a replica of which no single position describes a copy:
///
/// - if its appliers may have left gaps, transactions applied before earlier ones, without GTIDs to tell which
///   (an applier fills its gaps when it is stopped);
/// - if what its position includes may not be committed yet.
pub fn refuse_gaps(facts: &ServerFacts, channels: &[ReplicaChannel]) -> Result<()> {
    let has_gtids = facts.binlog.as_ref().and_then(|binlog| binlog.gtid_mode.as_deref()) == Some("ON");
    let replica = &facts.replica;
    let in_any_order = facts.flavor() == Flavor::MySql
        && replica.parallel_workers > 1
        && !replica.preserve_commit_order
        && !has_gtids;
    if in_any_order && channels.iter().any(|channel| channel.is_applying && !channel.by_gtid) {
        return Err(Error::failed(
            "the replica applies transactions in parallel without preserving commit order, and without GTIDs",
        )
        .hinted(
            "stop its applier first (STOP REPLICA SQL_THREAD), or set replica_preserve_commit_order=ON",
        ));
    }
    if facts.replica.commits_late && !channels.is_empty() {
        return Err(Error::new(
            ErrorKind::Server,
            "binlog_optimize_thread_scheduling is OFF, with which a replica may commit later than its binlog says",
        )
        .hinted("leave it at its default, ON; the server has to be restarted for that"));
    }
    Ok(())
}

/// MariaDB: `gtid_slave_pos` as a session sees it in the tables that each applied transaction writes to; `None` if
/// they (there may be one for each engine) are not InnoDB's, or may not be read.
///
/// The variable of that name is behind them while parallel appliers that log what they apply end the transactions
/// of one group: it is set after a transaction has committed and taken again the lock that a backup holds.
pub(crate) fn applied_in_tables(session: &mut Session) -> Result<Option<String>, SqlError> {
    const SCHEMA: &str = "mysql";
    let rows = session.rows(&format!(
        "SELECT table_name AS t, engine AS e FROM information_schema.tables \
         WHERE table_schema = '{SCHEMA}' AND table_name LIKE 'gtid\\_slave\\_pos%'"
    ))?;
    let mut parts = Vec::with_capacity(rows.len());
    for row in &rows {
        let is_transactional =
            row.text_or_null("e")?.is_some_and(|engine| engine.eq_ignore_ascii_case("InnoDB"));
        if !is_transactional {
            return Ok(None);
        }
        let name = quoted(row.text("t")?);
        parts.push(format!(
            "SELECT domain_id AS d, server_id AS s, seq_no AS n, sub_id AS u FROM {SCHEMA}.{name}"
        ));
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let rows = match session.rows(&format!("{} ORDER BY d, u", parts.join(" UNION ALL "))) {
        Err(error) if error.is_denied() => return Ok(None),
        rows => rows?,
    };
    // The last row of each domain counts.
    let mut last = BTreeMap::<u32, MariaDbGtid>::new();
    for row in &rows {
        let gtid =
            MariaDbGtid { domain: row.number("d")?, server: row.number("s")?, sequence: row.number("n")? };
        last.insert(gtid.domain, gtid);
    }
    let texts: Vec<String> = last.values().map(ToString::to_string).collect();
    Ok(Some(texts.join(",")))
}

/// What the server has applied as a replica, as far as the account may see it and tables tell it.
pub(crate) fn applied(
    session: &mut Session,
    channels: &[ReplicaChannel],
) -> Result<Option<String>, SqlError> {
    match session.flavor() {
        Flavor::MariaDb if !channels.is_empty() => applied_in_tables(session),
        _ => Ok(None),
    }
}
