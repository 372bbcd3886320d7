//! One view for all connections, at the recorded position, while others write.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_core::{logical::Method, server::LockPolicy};
use holdfast_testkit::{
    data::shop,
    load::{WriteLoad, writes::check_ledger},
    replica::{self, CATCH_UP_MAX, Position},
};

use super::*;
use crate::listeners::Warnings;

/// How the view is to be established.
enum Way {
    /// The way chosen for `root`.
    Best,
    /// For an account with only these privileges, besides those that every backup needs.
    Account(&'static str),
    /// While a transaction that has written stays open.
    OpenTransaction,
}

/// A source under writes, and the reports of two backups: one under load, and one after
/// the writes have stopped.
fn back_up_under_load(stage: &Stage, way: &Way, pace: Option<u32>, seed: u64) -> [LogicalReport; 2] {
    shop::load(&stage.source, shop::ShopOptions { size_mib: 12, ..shop::ShopOptions::default() }).unwrap();
    stage.source.exec("CREATE TABLE shop.pending (id INT PRIMARY KEY)").unwrap();
    let mut options = BackupOptions {
        locks: LockPolicy { held_max: Duration::from_secs(20), tries: 10, ..stage.options().locks },
        parallel: 4,
        ..stage.options()
    };
    let mut open = None;
    match way {
        Way::Best => {}
        Way::Account(more) => {
            let to = "TO 'dump'@'localhost'";
            stage
                .source
                .exec_all([
                    "CREATE USER 'dump'@'localhost'".to_owned(),
                    format!("GRANT SELECT, SHOW VIEW, TRIGGER, EVENT, {more} ON *.* {to}"),
                ])
                .unwrap();
            options.connect.user = Some("dump".to_owned());
        }
        Way::OpenTransaction => {
            let mut conn = stage.source.conn().unwrap();
            conn.query_drop("BEGIN").unwrap();
            conn.query_drop("INSERT INTO shop.pending VALUES (1)").unwrap();
            open = Some(conn);
        }
    }
    let load = WriteLoad::start_paced(&stage.source, 2, seed, pace).unwrap();
    let wait_for_writes = |count: u64| {
        let (begin, until) = (Instant::now(), load.committed() + count);
        while load.committed() < until {
            assert!(begin.elapsed() < Duration::from_secs(300), "there is no load to speak of");
            sleep(Duration::from_millis(20));
        }
    };
    wait_for_writes(50);
    let report = stage.back_up(&options, &Selection::default()).unwrap();
    wait_for_writes(10);
    let writes = load.stop().unwrap();
    let at_rest = stage.back_up(&options, &Selection::default()).unwrap();
    if let Some(mut conn) = open {
        conn.query_drop("COMMIT").unwrap();
    }
    println!(
        "{} seed {seed}: {} transactions, {:?} {:?} {:#?}",
        stage.source.kind(),
        writes.committed,
        report.view,
        report.position,
        report.locks
    );
    [report, at_rest]
}

/// The loaded backup, made a replica at the recorded position, becomes equal to its source: the backup
/// contains exactly the transactions up to there.
/// Tables that the backup reports as inconsistent are not compared.
fn at_its_position(kind: ServerKind, way: &Way, method: Method, seed: u64) {
    stage_at_its_position(&Stage::new(kind), way, method, seed);
}

fn stage_at_its_position(stage: &Stage, way: &Way, method: Method, seed: u64) {
    let kind = stage.source.kind();
    // Without locks, the views must agree, which happens only between two commits.
    let pace = (method == Method::BinlogPosition).then_some(100);
    let [report, at_rest] = back_up_under_load(stage, way, pace, seed);
    // Under load, another method may be chosen if something blocked this one.
    assert_eq!(at_rest.view.method, method);
    assert_eq!(report.view.inconsistent.is_empty(), method != Method::BinlogPosition);

    let target = stage.loaded(report.run.backup);
    assert!(check_ledger(&target).unwrap() > 0);
    let gtid = report.position.and_then(|position| position.gtid).unwrap();
    let position = if kind.is_mariadb() {
        let ignored = report.view.inconsistent.join(",");
        target.exec(format!("SET GLOBAL replicate_ignore_table = '{ignored}'")).unwrap();
        Position::Gtid(gtid)
    } else {
        if !report.view.inconsistent.is_empty() {
            let ignored = report.view.inconsistent.join(", ");
            target.exec(format!("CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ({ignored})")).unwrap();
        }
        target
            .exec_all([
                "RESET BINARY LOGS AND GTIDS".to_owned(),
                format!("SET GLOBAL gtid_purged = '{gtid}'"),
            ])
            .unwrap();
        Position::Held
    };
    replica::catch_up(&stage.source, &target, &position, CATCH_UP_MAX).unwrap();
    let drops = report.view.inconsistent.iter().map(|table| format!("DROP TABLE {table}"));
    for drop in drops {
        stage.source.exec(&drop).unwrap();
        target.exec(&drop).unwrap();
    }
    assert_same_rows(&stage.source, &target);
}

#[test]
fn a_backup_of_mariadb_10_11_is_at_its_position() {
    at_its_position(ServerKind::MariaDb1011, &Way::Best, Method::BackupStages, 11);
}

#[test]
fn a_backup_of_mariadb_11_8_is_at_its_position() {
    at_its_position(ServerKind::MariaDb118, &Way::Best, Method::BackupStages, 12);
}

/// A query cache would make the views of the readers before the lock, when they touch a table that nobody writes to.
#[test]
fn a_backup_of_mariadb_10_11_with_a_query_cache_is_at_its_position() {
    let stage = Stage::with(ServerKind::MariaDb1011, &["--query-cache-type=ON", "--query-cache-size=16M"]);
    stage.source.exec_all(["CREATE DATABASE a", "CREATE TABLE a.quiet (id INT PRIMARY KEY)"]).unwrap();
    stage_at_its_position(&stage, &Way::Best, Method::BackupStages, 17);
}

#[test]
fn a_backup_of_mysql_9_7_is_at_its_position() {
    at_its_position(ServerKind::MySql97, &Way::Best, Method::TableLocks, 13);
}

#[test]
fn mysql_9_7_with_a_lock_of_everything() {
    at_its_position(ServerKind::MySql97, &Way::OpenTransaction, Method::ReadLock, 14);
}

const MONITORS: &str = "BINLOG MONITOR, SLAVE MONITOR";

#[test]
fn mariadb_with_locks_of_tables() {
    for (kind, seed) in [(ServerKind::MariaDb1011, 15), (ServerKind::MariaDb118, 16)] {
        let way = Way::Account("BINLOG MONITOR, SLAVE MONITOR, LOCK TABLES");
        at_its_position(kind, &way, Method::TableLocks, seed);
    }
}

#[test]
fn mariadb_without_locks() {
    for (kind, seed) in [(ServerKind::MariaDb1011, 17), (ServerKind::MariaDb118, 18)] {
        at_its_position(kind, &Way::Account(MONITORS), Method::BinlogPosition, seed);
    }
}

/// MySQL reports the end of its binlog only when everything in it is visible.
#[test]
fn mysql_9_7_with_views_that_agree() {
    let way = Way::Account("REPLICATION CLIENT, BACKUP_ADMIN");
    at_its_position(ServerKind::MySql97, &way, Method::BinlogPosition, 20);
}

/// Nothing tells the position of a single reader without locks, but the books balance.
#[test]
fn mysql_9_7_without_locks() {
    let stage = Stage::new(ServerKind::MySql97);
    let [report, _] = back_up_under_load(&stage, &Way::Account("REPLICATION CLIENT"), None, 19);
    assert_eq!((report.view.method, report.read.readers), (Method::OneReader, 1));
    assert!(report.position.is_none());
    let heard = Warnings::default();
    let mut options = stage.options();
    options.connect.user = Some("dump".to_owned());
    logical::run(&stage.repo, &options, &Selection::default(), &heard, &Cancel::default()).unwrap();
    let warnings = heard.heard();
    assert!(warnings.iter().any(|text| text.contains("has no position in the binlog")), "{warnings:?}");
    assert_eq!(report.view.inconsistent, ["shop.clicks", "shop.visits"]);
    assert!(check_ledger(&stage.loaded(report.run.backup)).unwrap() > 0);
}
