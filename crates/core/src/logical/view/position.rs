//! The position of a view in the replication log.

use holdfast_formats::{Flavor, gtid::MariaDbGtidPos};

use crate::{
    logical::sql::quoted_text,
    position::{Position, Precision, ReplicaPosition},
    server::{
        Session, SqlError,
        status::{
            BinlogPosition, MariaDbLsns, MySqlRedoStatus, ReplicaChannel, applied_in_tables, binlog_status,
            clock,
        },
    },
};

/// The server's replication channels, if the account may see them. They are read here while another session
/// holds a lock, under which that session may see no other tables, and MySQL keeps them in tables.
pub(crate) fn channels(session: &mut Session) -> Result<Option<Vec<ReplicaChannel>>, SqlError> {
    where_allowed(ReplicaChannel::read_all(session))
}

/// The position, if the account may see it. `applied` is more than the server's variable says, if it is known.
pub(crate) fn position(
    session: &mut Session,
    channels: &[ReplicaChannel],
    applied: Option<String>,
) -> Result<Option<Position>, SqlError> {
    where_allowed(match session.flavor() {
        Flavor::MariaDb => Position::of_mariadb(session, channels, applied),
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
        lsn: MySqlRedoStatus::read(session)?.current,
        binlog,
        gtid: gtid.map(|gtid| gtid.replace('\n', "")).filter(|gtid| !gtid.is_empty()),
        replica_gtid: None,
        replica_of: channels.iter().cloned().map(Into::into).collect(),
        at: Some(clock(session)?),
    })
}

/// Whether the end of the binlog moves with every change, including those that the server applies as a
/// replica, but excepting those that a session keeps out of the binlog.
pub(crate) fn moves_with_every_change(session: &mut Session) -> Result<bool, SqlError> {
    match session.flavor() {
        Flavor::MariaDb => {
            let query = "SELECT @@GLOBAL.log_slave_updates = 1 OR @@GLOBAL.gtid_slave_pos = ''";
            let may_move = session.number::<u8>(query)? == 1;
            let logs_all = session.variable("log_slave_updates")?.as_deref() == Some("1");
            if !may_move || logs_all {
                return Ok(may_move);
            }
            // Changes that come from a MySQL source have no GTIDs here.
            match ReplicaChannel::read_all(session) {
                Err(error) if error.is_denied() => Ok(true),
                channels => Ok(channels?.is_empty()),
            }
        }
        Flavor::MySql => Ok(session.variable("log_replica_updates")?.as_deref() == Some("1")),
    }
}

/// MariaDB: the place of a reader's view in the binlog; `None` without a binlog.
pub(crate) fn snapshot_place(session: &mut Session) -> Result<Option<(String, u64)>, SqlError> {
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

/// The position, as replication knows it, of a view at a place in the binlog.
pub(crate) enum Placed {
    /// This one; `None` if the account may not know it.
    At(Option<Position>),
    /// The binlog has transactions, applied as a replica, that the replica's own record lacks: look again.
    Lagging,
}

/// MariaDB: the position of the view of `session`, which is at this place. What the server had applied as a
/// replica is in a table that is read in the view like any other, since the server writes it in each
/// transaction that it applies. What it wrote itself is only in its binlog. `accepts_lag`: whether the former
/// may be left unknown if it lags behind.
pub(crate) fn snapshot_position(
    session: &mut Session,
    place: (String, u64),
    accepts_lag: bool,
) -> Result<Placed, SqlError> {
    match placed(session, place, accepts_lag) {
        Err(error) if error.is_denied() => Ok(Placed::At(None)),
        placed => placed,
    }
}

fn placed(
    session: &mut Session,
    (file, offset): (String, u64),
    accepts_lag: bool,
) -> Result<Placed, SqlError> {
    let query = format!("SELECT BINLOG_GTID_POS({}, {offset})", quoted_text(&file));
    let gtid = session.value(&query)?.filter(|gtid| !gtid.is_empty());
    let has_applied = session.number::<u8>("SELECT @@GLOBAL.gtid_slave_pos <> ''")? == 1;
    let channels = match ReplicaChannel::read_all(session) {
        // Channels that the account may not see have never applied anything.
        Err(error) if error.is_denied() && !has_applied => Vec::new(),
        channels => channels?,
    };
    let mut applied = match !channels.is_empty() || has_applied {
        true => applied_in_tables(session)?,
        false => None,
    };
    if let Some(known) = &applied {
        let own: u32 = session.number("SELECT @@GLOBAL.server_id")?;
        if lags(gtid.as_deref(), known, own) {
            if !accepts_lag {
                return Ok(Placed::Lagging);
            }
            applied = None;
        }
    }
    let replica_gtid = applied.filter(|gtid| !gtid.is_empty());
    Ok(Placed::At(Some(Position {
        precision: Precision::Exact,
        lsn: MariaDbLsns::read(session)?.current,
        binlog: Some(BinlogPosition { file, offset }),
        gtid: gtid.or_else(|| replica_gtid.clone()),
        replica_gtid,
        // They were not read in the view.
        replica_of: channels.into_iter().map(ReplicaPosition::without_place).collect(),
        at: Some(clock(session)?),
    })))
}

/// The server's replication channels without their places, as far as the account may see them.
pub(crate) fn channels_without_places(session: &mut Session) -> Result<Vec<ReplicaPosition>, SqlError> {
    match ReplicaChannel::read_all(session) {
        Err(error) if error.is_denied() => Ok(Vec::new()),
        channels => Ok(channels?.into_iter().map(ReplicaPosition::without_place).collect()),
    }
}

/// Whether the binlog has transactions of another server beyond those recorded as applied: servers log
/// statements that are not transactions before they record them.
fn lags(logged: Option<&str>, applied: &str, own_server: u32) -> bool {
    let parse = |text: &str| text.parse::<MariaDbGtidPos>().unwrap_or_default();
    let applied = parse(applied);
    parse(logged.unwrap_or_default())
        .iter()
        .filter(|logged| logged.server != own_server)
        .any(|logged| applied.iter().any(|it| it.domain == logged.domain && it.sequence < logged.sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction of a primary that is logged but not yet recorded is missed; the server's own, or an
    /// older one, is not.
    #[test]
    fn a_record_that_lags() {
        assert!(lags(Some("0-1-8"), "0-1-7", 2));
        assert!(lags(Some("0-1-7,1-3-5"), "0-1-7,1-3-4", 2));
        for (logged, applied) in [
            (Some("0-1-7"), "0-1-7"),
            (Some("0-2-9"), "0-1-7"),
            (Some("0-1-6"), "0-1-7"),
            (Some("5-1-6"), "0-1-7"),
            (None, "0-1-7"),
            (Some("0-1-6"), ""),
        ] {
            assert!(!lags(logged, applied, 2), "{logged:?} {applied}");
        }
    }
}
