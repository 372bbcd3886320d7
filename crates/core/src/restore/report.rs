//! The result of a restore: returned, and kept in the target as `holdfast-restore.json`.

use std::path::PathBuf;

use holdfast_formats::{
    Flavor,
    gtid::{MariaDbGtid, MariaDbGtidPos},
};
use holdfast_repo::{Kind, LogName, Repo, RunNo};
use serde::{Deserialize, Serialize};

use super::replay::Replayed;
use crate::{
    error::{Error, ErrorKind, Result},
    physical::{BinlogPosition, Position},
    server::ServerVersion,
    watch::PhaseTime,
};

/// Schema version of the report and of `holdfast-restore.json`. Fields are added without raising it.
pub const RESTORE_SCHEMA: u32 = 1;

/// The identity of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupId {
    /// Id of the repository, hex.
    pub repository: String,
    /// Name of the source.
    pub source: String,
    /// Kind of backup.
    pub kind: String,
    /// Number of its run.
    pub run: u64,
}

impl BackupId {
    /// The identity of a backup, which must be a physical one.
    pub(crate) fn of_physical(repo: &Repo, log: &LogName, run: RunNo) -> Result<Self> {
        if log.kind != Kind::Physical {
            let error = Error::new(ErrorKind::Usage, format!("{log} {run} is not a physical backup"));
            return Err(error.hinted(
                "a logical one is loaded into a running server (--to-server), or written as files (export, cat)",
            ));
        }
        Ok(Self {
            repository: repo.info().repository_id.to_string(),
            source: log.source.to_string(),
            kind: log.kind.to_string(),
            run: run.0,
        })
    }
}

impl std::fmt::Display for BackupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} #{}", self.source, self.kind, self.run)
    }
}

/// What writing the files took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Files of the backup in the target.
    pub files: u64,
    /// Of these, files that existed already and were corrected in place.
    pub files_reused: u64,
    /// Their size.
    pub bytes: u64,
    /// Bytes that were fetched from the repository and written.
    pub bytes_written: u64,
    /// Bytes that were found in the target already, by hash; and zeros, which are not stored.
    pub bytes_kept: u64,
    /// How many things were deleted from the target because they do not belong to the backup.
    pub deleted: u64,
}

/// A file of the backup that is not restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its path in the backup.
    pub path: String,
    /// Why not.
    pub why: String,
}

/// What the recovering server did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// The program.
    pub program: PathBuf,
    /// Its version.
    pub version: String,
    /// Where recovery ended; equal to the position's LSN where that is exact.
    pub lsn: u64,
    /// The binlog position that the server found in its files (MariaDB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binlog: Option<BinlogPosition>,
    /// Rows of unfinished transactions that were changed back.
    pub rows_rolled_back: u64,
    /// How long the server ran.
    pub ms: u64,
}

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// [`RESTORE_SCHEMA`].
    pub schema_version: u32,
    /// Which backup.
    pub backup: BackupId,
    /// Where it is now.
    pub target_dir: PathBuf,
    /// The server it was taken from.
    pub server_version: ServerVersion,
    /// The state of the restored files, as a replication position.
    pub position: Position,
    /// Whether a server has recovered it already. If not, the first start does.
    pub prepared: Option<Prepared>,
    /// Transactions replayed after the backup, if it was restored to a later moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
    /// What was written.
    pub written: Written,
    /// Files of the backup that were left out.
    #[serde(default)]
    pub dropped: Vec<LeftOut>,
    /// Every phase.
    pub phases: Vec<PhaseTime>,
    /// Options that a server needs on these files, besides those of its own configuration.
    pub server_options: Vec<String>,
    /// Statements that make the restored server a replica of its source; `<…>` is to be filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicate_statement: Option<String>,
    /// MariaDB, if the source had a binlog: the statement that makes the restored server, before anybody
    /// writes to it, count its transactions from far beyond all that the source can have had. A binlog that
    /// begins again at 1, or where the backup ends, assigns numbers twice, and a replica of the source that
    /// finds its own number in it skips everything before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continue_statement: Option<String>,
    /// If the source was a replica itself: statements that make the restored server a replica of the same
    /// primaries, one text for each channel whose place is known; `<…>` is to be filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primary_statements: Vec<String>,
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

/// See [`RestoreReport::continue_statement`].
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
    use crate::physical::Precision;

    fn position(gtid: Option<&str>, binlog: Option<(&str, u64)>) -> Position {
        Position {
            precision: Precision::Exact,
            lsn: 1,
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
