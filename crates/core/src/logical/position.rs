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

/// The position, where the account may see it.
pub(super) fn position(session: &mut Session) -> Result<Option<Position>, SqlError> {
    let found = match session.flavor() {
        Flavor::MariaDb => mariadb_position(session),
        Flavor::MySql => mysql_position(session),
    };
    match found {
        Ok(position) => Ok(Some(position)),
        Err(error) if error.is_denied() => Ok(None),
        Err(error) => Err(error),
    }
}

fn mariadb_position(session: &mut Session) -> Result<Position, SqlError> {
    let found = MariaDbPosition::read(session)?;
    let channels = ReplicaChannel::read_all(session)?;
    // Where no binlog is written, the position is that of the server as a replica.
    let replica_gtid = Some(found.gtid_slave_pos).filter(|text| !text.is_empty());
    let gtid = Some(found.gtid_binlog_pos).filter(|text| !text.is_empty()).or_else(|| replica_gtid.clone());
    Ok(Position {
        precision: Precision::Exact,
        lsn: MariaDbLsns::read(session)?.current.0,
        binlog: found.binlog,
        gtid,
        replica_gtid,
        replica_of: channels.into_iter().map(Into::into).collect(),
    })
}

fn mysql_position(session: &mut Session) -> Result<Position, SqlError> {
    let binlog = match binlog_status(session)? {
        Some(row) => {
            Some(BinlogPosition { file: row.text("File")?.to_owned(), offset: row.number("Position")? })
        }
        None => None,
    };
    let gtid = session.value("SELECT @@GLOBAL.gtid_executed")?;
    let channels = ReplicaChannel::read_all(session)?;
    Ok(Position {
        precision: Precision::Exact,
        lsn: MySqlRedoStatus::read(session)?.current.0,
        binlog,
        gtid: gtid.map(|gtid| gtid.replace('\n', "")).filter(|gtid| !gtid.is_empty()),
        replica_gtid: None,
        replica_of: channels.into_iter().map(Into::into).collect(),
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
