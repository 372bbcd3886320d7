//! How a restored server goes on: the position that it is at, and the statements with which it replicates
//! from there or continues its own binlog.

pub(super) mod primaries;

use holdfast_formats::{
    Flavor, Lsn,
    gtid::{MariaDbGtid, MariaDbGtidPos},
};

use super::done::Replayed;
use crate::{
    position::{Position, Precision},
    server::{ServerVersion, status::BinlogPosition},
};

/// The position of a backup of which none is known.
pub(super) fn unknown() -> Position {
    Position {
        precision: Precision::AtRestore,
        lsn: Lsn(0),
        binlog: None,
        gtid: None,
        replica_gtid: None,
        replica_of: Vec::new(),
        at: None,
    }
}

/// The position of a server that was at `position` and then replayed transactions.
pub(super) fn position_after(position: &Position, replayed: Option<&Replayed>) -> Position {
    let mut position = position.clone();
    let Some(Replayed { reached, .. }) = replayed.filter(|replayed| replayed.reached.transactions > 0) else {
        return position;
    };
    position.binlog = reached.binlog.clone().or(position.binlog);
    position.gtid = match (&position.gtid, &reached.gtids) {
        (Some(before), Some(after)) => Some(join_gtids(before, after)),
        (before, after) => after.clone().or_else(|| before.clone()),
    };
    // The source's own position as a replica has moved on since.
    position.replica_gtid = None;
    position.replica_of.clear();
    position
}

/// Joins two positions. MariaDB: for each domain the GTID of `after`,
/// else that of `before`. MySQL: both sets.
fn join_gtids(before: &str, after: &str) -> String {
    let (Ok(old), Ok(new)) = (before.parse::<MariaDbGtidPos>(), after.parse::<MariaDbGtidPos>()) else {
        return format!("{before},{after}");
    };
    let replaced = |gtid: &MariaDbGtid| new.iter().any(|later| later.domain == gtid.domain);
    let kept = old.iter().filter(|gtid| !replaced(gtid));
    kept.chain(new.iter()).map(|gtid| gtid.to_string()).collect::<Vec<_>>().join(",")
}

/// The statements that replicate from the source; `None` if nothing is known of a position. `prepared`: the
/// restored server has been told its GTIDs.
pub(super) fn replicate_statement(
    version: &ServerVersion,
    position: &Position,
    prepared: bool,
) -> Option<String> {
    let gtid = gtid_text(position.gtid.as_deref());
    // It comes from the repository, and somebody will paste it into a client.
    let binlog = position.binlog.as_ref().filter(|binlog| binlog.file.chars().all(in_file_name));
    let address = |prefix: &str| {
        format!(
            "{prefix}_HOST='<host>', {prefix}_PORT=<port>, {prefix}_USER='<user>', {prefix}_PASSWORD='<password>'"
        )
    };
    match (version.flavor, gtid, binlog) {
        (Flavor::MariaDb, Some(gtid), _) => Some(format!(
            "SET GLOBAL gtid_slave_pos = '{gtid}'; CHANGE MASTER TO {}, MASTER_USE_GTID=slave_pos; START SLAVE;",
            address("MASTER")
        )),
        (Flavor::MariaDb, None, Some(BinlogPosition { file, offset })) => Some(format!(
            "CHANGE MASTER TO {}, MASTER_LOG_FILE='{file}', MASTER_LOG_POS={offset}; START SLAVE;",
            address("MASTER")
        )),
        (Flavor::MySql, Some(_), _) => {
            let gtids = if prepared { None } else { set_gtids(version, position) };
            let gtids = gtids.into_iter().flatten().map(|text| format!("{text}; ")).collect::<String>();
            let address = address("SOURCE");
            Some(format!(
                "{gtids}CHANGE REPLICATION SOURCE TO {address}, SOURCE_AUTO_POSITION=1; START REPLICA;"
            ))
        }
        (Flavor::MySql, None, Some(BinlogPosition { file, offset })) => Some(format!(
            "CHANGE REPLICATION SOURCE TO {}, SOURCE_LOG_FILE='{file}', SOURCE_LOG_POS={offset}; START REPLICA;",
            address("SOURCE")
        )),
        (_, None, None) => None,
    }
}

/// Up to this many transactions of a domain may have followed on the source after what was restored.
const NUMBERS_PASSED_OVER: u64 = 1_000_000_000;

/// See [`super::RestoreReport::continue_statement`].
pub(super) fn continue_statement(version: &ServerVersion, position: &Position) -> Option<String> {
    let has_binlog = version.flavor == Flavor::MariaDb && position.binlog.is_some();
    let gtid = gtid_text(position.gtid.as_deref()).filter(|_| has_binlog)?;
    let reached: MariaDbGtidPos = gtid.parse().ok()?;
    let beyond = reached.iter().map(|gtid| {
        let sequence = gtid.sequence.saturating_add(NUMBERS_PASSED_OVER);
        format!("{}-{}-{sequence}", gtid.domain, gtid.server)
    });
    Some(format!("SET GLOBAL gtid_binlog_state = '{}';", beyond.collect::<Vec<_>>().join(",")))
}

/// Statements that make a restored MySQL report its GTIDs: those of the position and the copy's own, as
/// neither is complete. GTIDs of transactions that no InnoDB table took part in are only in the source's
/// binlog, until it rotates, so the copy's own list has gaps (verified on 9.7.4). The copy holds what it
/// lists, and the position can be behind that: where the redo continues after it, and on a replica that does
/// not log what it applies, which lists a GTID only when the transaction is in the redo (verified on 9.7.4).
pub(super) fn set_gtids(version: &ServerVersion, position: &Position) -> Option<[String; 3]> {
    if version.flavor != Flavor::MySql {
        return None;
    }
    let gtid = gtid_text(position.gtid.as_deref())?;
    let reset = if version.number() < (8, 2, 0) { "RESET MASTER" } else { "RESET BINARY LOGS AND GTIDS" };
    Some([
        format!("SET @restored = CONCAT('{gtid},', @@GLOBAL.gtid_executed)"),
        reset.to_owned(),
        "SET GLOBAL gtid_purged = @restored".to_owned(),
    ])
}

/// The GTIDs on one line. They come from the repository and become part of statements:
/// anything else is rejected.
pub(super) fn gtid_text(gtid: Option<&str>) -> Option<String> {
    let gtid = gtid.filter(|gtid| gtid.chars().all(in_gtid))?;
    let gtid: String = gtid.split_whitespace().collect();
    (!gtid.is_empty()).then_some(gtid)
}

fn in_gtid(c: char) -> bool {
    // UUIDs, tags, intervals; sets may be spread over lines.
    c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | ',' | '_' | ' ' | '\n')
}

pub(super) fn in_file_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Precision;

    fn position(gtid: Option<&str>, binlog: Option<(&str, u64)>) -> Position {
        Position {
            precision: Precision::Exact,
            lsn: Lsn(1),
            binlog: binlog.map(|(file, offset)| BinlogPosition { file: file.to_owned(), offset }),
            gtid: gtid.map(str::to_owned),
            replica_gtid: None,
            replica_of: Vec::new(),
            at: None,
        }
    }

    /// A GTID is used where there is one, else file and offset; nothing but a position reaches a statement.
    #[test]
    fn statements() {
        let say = |flavor, gtid, binlog| {
            let text = if flavor == Flavor::MariaDb { "11.8.6-MariaDB" } else { "9.7.4" };
            replicate_statement(&ServerVersion::parse(text).unwrap(), &position(gtid, binlog), false)
        };
        let text = say(Flavor::MariaDb, Some("0-1-100, 1-2-3"), Some(("b.1", 4))).unwrap();
        assert!(
            text.starts_with("SET GLOBAL gtid_slave_pos = '0-1-100,1-2-3'; CHANGE MASTER TO MASTER_HOST=")
        );
        assert!(text.contains("MASTER_USE_GTID=slave_pos"));
        let text = say(Flavor::MariaDb, Some(""), Some(("binlog.000001", 4))).unwrap();
        assert!(text.contains("MASTER_LOG_FILE='binlog.000001', MASTER_LOG_POS=4"));
        let text = say(Flavor::MySql, Some("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"), None).unwrap();
        assert!(
            text.starts_with("SET @restored = CONCAT('3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,', @@GLOBAL.gtid_executed); "),
            "{text}"
        );
        assert!(text.contains("; RESET BINARY LOGS AND GTIDS; SET GLOBAL gtid_purged = @restored; CHANGE "));
        assert!(text.contains("SOURCE_AUTO_POSITION=1"));
        let go_on = |text, gtid, binlog| {
            continue_statement(&ServerVersion::parse(text).unwrap(), &position(gtid, binlog))
        };
        let binlog = Some(("b.1", 4));
        assert_eq!(
            go_on("11.8.6-MariaDB", Some("0-1-100, 1-2-3"), binlog).unwrap(),
            "SET GLOBAL gtid_binlog_state = '0-1-1000000100,1-2-1000000003';"
        );
        assert_eq!(go_on("11.8.6-MariaDB", Some("0-1-100"), None), None);
        assert_eq!(go_on("11.8.6-MariaDB", Some("0-1-1'; DROP"), binlog), None);
        assert_eq!(go_on("9.7.4", Some("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"), binlog), None);
        let old = ServerVersion::parse("8.0.36").unwrap();
        let position = position(Some("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"), None);
        assert!(replicate_statement(&old, &position, false).unwrap().contains("; RESET MASTER; SET "));
        assert!(replicate_statement(&old, &position, true).unwrap().starts_with("CHANGE REPLICATION SOURCE"));
        let text = say(Flavor::MySql, None, Some(("binlog.000001", 4))).unwrap();
        assert!(text.contains("SOURCE_LOG_FILE='binlog.000001', SOURCE_LOG_POS=4"));
        assert_eq!(say(Flavor::MySql, None, Some(("b'; DROP", 4))), None);
        assert_eq!(say(Flavor::MariaDb, Some("0-1-1'; DROP"), None), None);
        assert_eq!(say(Flavor::MariaDb, None, None), None);
    }
}
