//! Judges by the server's log whether a recovery did what it should.
//!
//! The server's exit code alone is not trusted. Recovery must have ended exactly where the captured redo
//! ends, without an error line, without a missing tablespace, and with unfinished transactions rolled back.
//! The lines were read off MariaDB 10.11.19 and 11.8.6 and MySQL 9.7.4; a server that words them differently
//! makes the restore fail, and never pass.

use std::collections::BTreeSet;

use holdfast_formats::{Flavor, Lsn, table_name};

use crate::{position::Precision, server::status::BinlogPosition};

/// The most error lines that are passed on.
const LINES_MAX: usize = 20;
/// A redo block of MySQL: encrypted redo is captured in whole ones.
const MYSQL_BLOCK_BYTES: u64 = 512;

/// Where recovery must arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) flavor: Flavor,
    pub(crate) stop_lsn: Lsn,
    pub(crate) precision: Precision,
}

/// What a good recovery reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) lsn: Lsn,
    /// The binlog position that InnoDB had stored with its last transaction (MariaDB).
    pub(crate) binlog: Option<BinlogPosition>,
    /// Rows that uncommitted transactions had changed, and that were changed back.
    pub(crate) rows_rolled_back: u64,
}

/// Why a recovery is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the server reported errors:\n{}", .lines.join("\n"))]
    Errors { lines: Vec<String> },
    #[error("the server recovered up to LSN {recovered}, but the backup ends at {expected}")]
    OtherEnd { recovered: Lsn, expected: Lsn },
    #[error("the server did not say up to which LSN it recovered")]
    NoEnd,
    #[error("the server did not finish rolling back {rows} rows of unfinished transactions")]
    NotRolledBack { rows: u64 },
    #[error("the server did not say that it shut down")]
    NoShutdown,
}

/// Judges the log of one start and stop.
pub(crate) fn judge(log: &str, expected: &Expected) -> Result<Recovered, Refused> {
    let false_alarms = FalseAlarms::of(log);
    let bad: Vec<String> = log
        .lines()
        .filter(|line| is_bad(line) && !false_alarms.has(line))
        .take(LINES_MAX)
        .map(|line| line.trim().to_owned())
        .collect();
    if !bad.is_empty() {
        return Err(Refused::Errors { lines: bad });
    }
    let rows = sum_after(log, "which must be rolled back or cleaned up in total ");
    let lsn = match expected.flavor {
        Flavor::MariaDb => {
            // A log without changes after its checkpoint needs no recovery, and the first line is then not
            // written.
            last_number(log, "End of log at LSN=")
                .or_else(|| last_number(log, "InnoDB: log sequence number "))
                .ok_or(Refused::NoEnd)?
        }
        Flavor::MySql => {
            if rows > 0 && !log.contains("[MY-013015]") {
                return Err(Refused::NotRolledBack { rows });
            }
            if !log.contains("[MY-012980]") {
                return Err(Refused::NoShutdown);
            }
            last_number(log, "scanned up to log sequence number ")
                // Nothing to recover: the redo ends at its checkpoint.
                .or_else(|| last_number(log, "latest found checkpoint is at lsn = "))
                .ok_or(Refused::NoEnd)?
        }
    };
    let end_is_right = match expected.precision {
        Precision::Exact => lsn == expected.stop_lsn,
        Precision::AtRestore => {
            lsn.bytes_since(expected.stop_lsn).is_some_and(|beyond| beyond < MYSQL_BLOCK_BYTES)
        }
    };
    if !end_is_right {
        return Err(Refused::OtherEnd { recovered: lsn, expected: expected.stop_lsn });
    }
    Ok(Recovered { lsn, binlog: binlog_position(log), rows_rolled_back: rows })
}

/// Lines that no good recovery writes. A missing tablespace and a page from the future are warnings to MySQL.
fn is_bad(line: &str) -> bool {
    const SIGNS: [&str; 6] = [
        "[ERROR]",
        "is in the future",
        "[MY-012351]",
        "mysqld got signal",
        "mariadbd got signal",
        "Assertion failure",
    ];
    SIGNS.iter().any(|sign| line.contains(sign))
}

/// Tablespaces that MySQL reports in a wrong directory, because it does not know its own spelling of schemas
/// that are named like devices: `CON` is in `CON@@@`. It says so at each start, on the source's files too,
/// and then also calls the file missing; yet it recovers and opens it like any other (verified on 9.7.4).
pub(crate) struct FalseAlarms<'a>(BTreeSet<&'a str>);

impl<'a> FalseAlarms<'a> {
    /// Those in a log.
    pub(crate) fn of(log: &'a str) -> Self {
        Self(log.lines().filter_map(false_alarm_about).collect())
    }

    /// Whether a line is one of them, or what follows from it.
    pub(crate) fn has(&self, line: &str) -> bool {
        let missing = line.contains("[MY-012351]").then(|| between(line, "name '", "'")).flatten();
        missing.or_else(|| false_alarm_about(line)).is_some_and(|name| self.0.contains(name))
    }
}

fn false_alarm_about(line: &str) -> Option<&str> {
    let name =
        line.contains("[MY-013589]").then(|| between(line, "' for tablespace ", " cannot be opened"))??;
    let path = between(line, "Scanned file '", "'")?;
    let directory = path.rsplit('/').nth(1)?;
    let is_its_own = directory.ends_with("@@@")
        && table_name::decode(directory).is_some_and(|schema| name.split('/').next() == Some(&*schema));
    is_its_own.then_some(name)
}

fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    Some(line.split_once(before)?.1.split_once(after)?.0)
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// How far a running recovery has got, if it has said so yet.
/// MariaDB says so only if it takes several passes.
pub(crate) fn recovered_up_to(flavor: Flavor, log: &str) -> Option<Lsn> {
    match flavor {
        Flavor::MariaDb => last_number(log, "To recover: LSN "),
        Flavor::MySql => last_number(log, "scanned up to log sequence number "),
    }
}

fn last_number(log: &str, before: &str) -> Option<Lsn> {
    log.lines().rev().find_map(|line| leading_number(line.split_once(before)?.1)).map(Lsn)
}

fn sum_after(log: &str, before: &str) -> u64 {
    log.lines().filter_map(|line| leading_number(line.split_once(before)?.1)).fold(0, u64::saturating_add)
}

fn binlog_position(log: &str) -> Option<BinlogPosition> {
    log.lines().rev().find_map(|line| {
        let rest = line.split_once("Last binlog file '")?.1;
        let (path, rest) = rest.split_once('\'')?;
        let offset = leading_number(rest.split_once("position ")?.1)?;
        let file = path.rsplit('/').next()?.to_owned();
        Some(BinlogPosition { file, offset })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARIADB_10_11: &str = include_str!("samples/mariadb-10.11.log");
    const MARIADB_11_8: &str = include_str!("samples/mariadb-11.8.log");
    const MYSQL_9_7: &str = include_str!("samples/mysql-9.7.log");
    const MYSQL_9_7_CLEAN: &str = include_str!("samples/mysql-9.7-clean.log");
    const MYSQL_9_7_MISSING: &str = include_str!("samples/mysql-9.7-missing-tablespace.log");

    fn expected(flavor: Flavor, stop: u64) -> Expected {
        Expected { flavor, stop_lsn: Lsn(stop), precision: Precision::Exact }
    }

    #[test]
    fn progress() {
        let long = "2026-11-21 16:24:54 0 [Note] InnoDB: End of log at LSN=21537358947\n\
                    2026-11-21 16:24:54 0 [Note] InnoDB: To recover: LSN 914275197/21537358947; 4149 pages\n\
                    2026-11-21 16:24:56 0 [Note] InnoDB: To recover: LSN 2740136614/21537358947; 4134 pages\n";
        assert_eq!(recovered_up_to(Flavor::MariaDb, long), Some(Lsn(2_740_136_614)));
        assert_eq!(recovered_up_to(Flavor::MariaDb, MARIADB_10_11), None);
        assert_eq!(recovered_up_to(Flavor::MySql, MYSQL_9_7), Some(Lsn(23_721_044)));
        assert_eq!(recovered_up_to(Flavor::MySql, ""), None);
    }

    /// Good recoveries of all three servers are recognised, with what they say of themselves.
    #[test]
    fn good() {
        let binlog = |file: &str, offset| Some(BinlogPosition { file: file.to_owned(), offset });
        for (log, flavor, lsn, binlog, rows_rolled_back) in [
            (MARIADB_10_11, Flavor::MariaDb, 2_884_447, binlog("binlog.000001", 850_771), 4096),
            (MARIADB_11_8, Flavor::MariaDb, 2_878_175, binlog("binlog.000001", 854_865), 4096),
            (MYSQL_9_7, Flavor::MySql, 23_721_044, None, 4096),
            (MYSQL_9_7_CLEAN, Flavor::MySql, 24_984_520, None, 0),
        ] {
            let recovered = judge(log, &expected(flavor, lsn)).unwrap();
            assert_eq!(recovered, Recovered { lsn: Lsn(lsn), binlog, rows_rolled_back });
            for other in [lsn - 1, lsn + 1] {
                let refused = judge(log, &expected(flavor, other)).unwrap_err();
                assert_eq!(refused, Refused::OtherEnd { recovered: Lsn(lsn), expected: Lsn(other) });
            }
            let cut: String = log.lines().take(8).collect();
            assert!(judge(&cut, &expected(flavor, lsn)).is_err());
        }
    }

    /// What is only a warning to MySQL is a lost table to its owner.
    #[test]
    fn missing_tablespace() {
        let Err(Refused::Errors { lines }) = judge(MYSQL_9_7_MISSING, &expected(Flavor::MySql, 23_721_044))
        else {
            panic!("not refused");
        };
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains("ts1.ibd") && lines[1].contains("MY-012351"), "{lines:?}");
    }

    /// What MySQL says of a schema `CON` is no reason to refuse; anything that only looks like it is refused.
    #[test]
    fn schemas_called_like_devices() {
        const WRONG: &str = "x [ERROR] [MY-013589] [InnoDB] Scanned file '/r/CON@@@/t.ibd' for tablespace CON/t cannot \
            be opened because it is not in a sub-directory named for the schema.\n";
        const MISSING: &str = "x [Warning] [MY-012351] [InnoDB] Tablespace 2, name 'CON/t', file './CON@@@/t.ibd' is missing!\n";
        let is_good =
            |lines: &str| judge(&format!("{lines}{MYSQL_9_7}"), &expected(Flavor::MySql, 23_721_044)).is_ok();
        assert!(is_good(&format!("{WRONG}{MISSING}")));
        assert!(!is_good(MISSING) && !is_good(&WRONG.replace("tablespace CON/t", "tablespace con/t")));
        assert!(!is_good(&WRONG.replace("CON@@@/", "a/")) && !is_good(&WRONG.replace("CON", "a")));
    }

    /// Any error line is passed on, and a rollback that was begun must be finished.
    #[test]
    fn errors_and_rollback() {
        let spoiled = MARIADB_10_11.replacen("[Note] InnoDB: To recover", "[ERROR] InnoDB: To recover", 1);
        let refused = judge(&spoiled, &expected(Flavor::MariaDb, 2_884_447)).unwrap_err();
        assert!(refused.to_string().contains("[ERROR] InnoDB: To recover: "), "{refused}");
        let future = "x [Note] InnoDB: Page [1:2] log sequence number 9 is in the future!\n";
        assert!(judge(&format!("{MARIADB_11_8}{future}"), &expected(Flavor::MariaDb, 2_878_175)).is_err());

        let unfinished = MYSQL_9_7.replace("[MY-013015]", "[MY-0]");
        let refused = judge(&unfinished, &expected(Flavor::MySql, 23_721_044)).unwrap_err();
        assert_eq!(refused, Refused::NotRolledBack { rows: 4096 });
        let unstopped = MYSQL_9_7.replace("[MY-012980]", "[MY-0]");
        assert_eq!(judge(&unstopped, &expected(Flavor::MySql, 23_721_044)), Err(Refused::NoShutdown));
        assert_eq!(judge("", &expected(Flavor::MariaDb, 1)), Err(Refused::NoEnd));
    }

    /// Encrypted redo ends with its last whole block: at the position or up to a block after it.
    #[test]
    fn encrypted_end() {
        let judge_at = |stop| {
            let expected = Expected { precision: Precision::AtRestore, ..expected(Flavor::MySql, stop) };
            judge(MYSQL_9_7, &expected).is_ok()
        };
        assert!(judge_at(23_721_044) && judge_at(23_721_044 - 511));
        assert!(!judge_at(23_721_044 - 512) && !judge_at(23_721_045));
    }
}
