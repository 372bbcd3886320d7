//! Where in the replication log a view is.

use holdfast_formats::Flavor;

use super::objects;
use crate::{
    physical::{BinlogPosition, Position, Precision},
    server::{
        Session, SqlError,
        status::{MariaDbLsns, MariaDbPosition, MySqlRedoStatus, ReplicaChannel, binlog_status},
    },
};

/// Where the server stands as a replica, where the account may see it: asked while another session holds a lock, under which
/// that one may see no other tables, and MySQL has it in tables.
pub(super) fn channels(session: &mut Session) -> Result<Option<Vec<ReplicaChannel>>, SqlError> {
    where_allowed(ReplicaChannel::read_all(session))
}

/// The position, where the account may see it.
pub(super) fn position(
    session: &mut Session,
    channels: &[ReplicaChannel],
) -> Result<Option<Position>, SqlError> {
    where_allowed(match session.flavor() {
        Flavor::MariaDb => mariadb_position(session, channels),
        Flavor::MySql => mysql_position(session, channels),
    })
}

fn where_allowed<T>(found: Result<T, SqlError>) -> Result<Option<T>, SqlError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_denied() => Ok(None),
        Err(error) => Err(error),
    }
}

fn mariadb_position(session: &mut Session, channels: &[ReplicaChannel]) -> Result<Position, SqlError> {
    let found = MariaDbPosition::read(session)?;
    // Where no binlog is written, the position is that of the server as a replica.
    let replica_gtid = Some(found.gtid_slave_pos).filter(|text| !text.is_empty());
    let gtid = Some(found.gtid_binlog_pos).filter(|text| !text.is_empty()).or_else(|| replica_gtid.clone());
    Ok(Position {
        precision: Precision::Exact,
        lsn: MariaDbLsns::read(session)?.current.0,
        binlog: found.binlog,
        gtid,
        replica_gtid,
        replica_of: channels.iter().cloned().map(Into::into).collect(),
    })
}

fn mysql_position(session: &mut Session, channels: &[ReplicaChannel]) -> Result<Position, SqlError> {
    let binlog = match binlog_status(session)? {
        Some(row) => {
            Some(BinlogPosition { file: row.text("File")?.to_owned(), offset: row.number("Position")? })
        }
        None => None,
    };
    let gtid = session.value("SELECT @@GLOBAL.gtid_executed")?;
    Ok(Position {
        precision: Precision::Exact,
        lsn: MySqlRedoStatus::read(session)?.current.0,
        binlog,
        gtid: gtid.map(|gtid| gtid.replace('\n', "")).filter(|gtid| !gtid.is_empty()),
        replica_gtid: None,
        replica_of: channels.iter().cloned().map(Into::into).collect(),
    })
}

/// Whether the end of the binlog moves with every change, but for those that a session keeps out of it: also with what
/// the server repeats as a replica.
pub(super) fn moves_with_every_change(session: &mut Session) -> Result<bool, SqlError> {
    match session.flavor() {
        Flavor::MariaDb => {
            let query = "SELECT @@GLOBAL.log_slave_updates = 1 OR @@GLOBAL.gtid_slave_pos = ''";
            Ok(session.number::<u8>(query)? == 1)
        }
        Flavor::MySql => Ok(session.variable("log_replica_updates")?.as_deref() == Some("1")),
    }
}

/// MariaDB: where in the binlog a reader's view is; `None` without a binlog.
pub(super) fn snapshot_place(session: &mut Session) -> Result<Option<(String, u64)>, SqlError> {
    let rows = session.rows("SHOW STATUS LIKE 'binlog_snapshot_%'")?;
    let value = |name: &str| {
        let row =
            rows.iter().find(|row| row.text("Variable_name").is_ok_and(|n| n.eq_ignore_ascii_case(name)));
        row.and_then(|row| row.text("Value").ok()).filter(|value| !value.is_empty()).map(str::to_owned)
    };
    let Some(file) = value("binlog_snapshot_file") else { return Ok(None) };
    let offset = value("binlog_snapshot_position").and_then(|text| text.parse().ok());
    Ok(offset.filter(|offset| *offset > 0).map(|offset| (file, offset)))
}

pub(super) fn snapshot_position(
    session: &mut Session,
    (file, offset): (String, u64),
) -> Result<Position, SqlError> {
    let query = format!("SELECT BINLOG_GTID_POS({}, {offset})", objects::quoted_text(&file));
    let gtid = session.value(&query)?.filter(|gtid| !gtid.is_empty());
    Ok(Position {
        precision: Precision::Exact,
        lsn: MariaDbLsns::read(session)?.current.0,
        binlog: Some(BinlogPosition { file, offset }),
        gtid,
        replica_gtid: None,
        replica_of: Vec::new(),
    })
}
