//! Disturbances of the server during a backup make the backup fail or wait, but never make it wrong.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use holdfast_core::{logical::Method, server::LockPolicy};
use mysql::prelude::Queryable;

use super::*;

/// A table that takes seconds to read.
fn with_rows(stage: &Stage) {
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.d (n INT PRIMARY KEY)",
            "INSERT INTO shop.d VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
            "CREATE TABLE shop.large (id INT, v VARCHAR(2000) CHARACTER SET latin1)",
            "INSERT INTO shop.large SELECT 0, REPEAT('x', 1500) FROM shop.d a, shop.d b, shop.d c, shop.d d, shop.d e",
        ])
        .unwrap();
}

/// If a reader is killed, the backup fails: nothing is read again in another view.
#[test]
fn a_killed_connection_fails_the_backup() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let stage = Stage::new(kind);
        with_rows(&stage);
        let is_over = AtomicBool::new(false);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let query =
                    "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT HIGH_PRIORITY `id`, `v` FROM%'";
                while !is_over.load(Ordering::Relaxed) {
                    for id in stage.source.query::<u64>(query).unwrap() {
                        stage.source.exec(format!("KILL {id}")).ok();
                    }
                }
            });
            let outcome = stage.back_up(&stage.options(), &Selection::default());
            is_over.store(true, Ordering::Relaxed);
            outcome.unwrap_err()
        });
        assert!(error.to_string().contains("shop.large"), "{error}");
        assert_eq!(stage.backups(), 0);
    }
}

/// Backups that are tried while definitions change, at least, and changes.
const TRIES: usize = 4;
const CHANGES: u64 = 5;

/// Definitions that change continuously are never mixed up: a backup that succeeds
/// contains those at its position.
#[test]
fn changes_of_definitions_wait_or_fail_the_backup() {
    let kinds = ServerKind::all_kinds().map(|kind| (kind, false));
    // With a table of another engine, MySQL's instance is not locked while rows are read.
    for (kind, has_others) in kinds.into_iter().chain([(ServerKind::MySql97, true)]) {
        let stage = Stage::new(kind);
        with_rows(&stage);
        if has_others {
            stage.source.exec("CREATE TABLE shop.other (id INT PRIMARY KEY) ENGINE = MyISAM").unwrap();
        }
        stage.source.exec("CREATE TABLE shop.swapped (id INT PRIMARY KEY, old INT)").unwrap();
        stage.source.exec("INSERT INTO shop.swapped VALUES (1, 1)").unwrap();
        let (is_over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        let (mut done, mut failed) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let changes = changes.fetch_add(1, Ordering::Relaxed);
                    let all = stage.source.exec_all([
                        "SET SESSION lock_wait_timeout = 1".to_owned(),
                        format!("CREATE TABLE shop.next (id INT PRIMARY KEY, c{changes} INT)"),
                        format!("INSERT INTO shop.next VALUES (1, {changes})"),
                        "RENAME TABLE shop.swapped TO shop.old, shop.next TO shop.swapped".to_owned(),
                        "DROP TABLE shop.old".to_owned(),
                        format!("ALTER TABLE shop.d ADD COLUMN c{changes} INT DEFAULT 5"),
                        format!("ALTER TABLE shop.d DROP COLUMN c{changes}"),
                        "DROP PROCEDURE IF EXISTS shop.p".to_owned(),
                        format!("CREATE PROCEDURE shop.p () SELECT {changes}"),
                    ]);
                    if all.is_err() {
                        // Whichever statement waited in vain.
                        stage.source.exec("DROP TABLE IF EXISTS shop.next, shop.old").ok();
                    }
                    // Changes without a pause would leave a backup no chance on a fast disk.
                    thread::sleep(Duration::from_millis(50));
                }
            });
            while done == 0 || done + failed < TRIES || changes.load(Ordering::Relaxed) < CHANGES {
                let options = BackupOptions {
                    locks: LockPolicy { tries: 20, ..stage.options().locks },
                    ..stage.options()
                };
                match stage.back_up(&options, &Selection::default()) {
                    Ok(report) => {
                        done += 1;
                        // Each version of the table has its own column, which holds the version's number in
                        // the only row.
                        let script =
                            String::from_utf8(stage.script(report.run.backup, Some("shop.swapped"))).unwrap();
                        let column = script
                            .lines()
                            .find_map(|line| line.trim().strip_prefix("`c"))
                            .map(|rest| rest.split('`').next().unwrap().to_owned());
                        if let Some(column) = column {
                            assert!(script.contains(&format!("(1,{column})")), "{script}");
                        }
                    }
                    Err(error) => {
                        failed += 1;
                        println!("{kind}: {error}");
                    }
                }
                assert!(failed < 20, "no backup succeeds");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        println!("{kind}: {changes:?} changes, {done} backups, {failed} failed");
        assert_eq!(stage.backups(), done);
    }
}

/// Without any lock, two tables swap their names all the time, each time in one transaction of the binlog. Whether a
/// name holds what it held at first follows from the position: the definitions, the rows and the position are of one
/// moment.
#[test]
fn mariadb_names_that_are_swapped_are_those_at_the_position() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.a (v VARCHAR(10) PRIMARY KEY)",
            "CREATE TABLE shop.b (v VARCHAR(10) PRIMARY KEY)",
            "INSERT INTO shop.a VALUES ('first')",
            "INSERT INTO shop.b VALUES ('second')",
            "CREATE USER 'dump'@'localhost'",
            "GRANT SELECT, SHOW VIEW, TRIGGER, EVENT, BINLOG MONITOR, SLAVE MONITOR ON *.* TO 'dump'@'localhost'",
        ])
        .unwrap();
    let number = |gtid: &str| gtid.rsplit('-').next().unwrap().parse::<u64>().unwrap();
    let begin = number(&stage.source.value::<String>("SELECT @@gtid_binlog_pos").unwrap());
    let mut options = BackupOptions { parallel: 3, full: true, ..stage.options() };
    options.connect.user = Some("dump".to_owned());
    let is_over = AtomicBool::new(false);
    let mut at = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut conn = stage.source.conn().unwrap();
            conn.query_drop("SET SESSION lock_wait_timeout = 1").unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let swap = "RENAME TABLE shop.a TO shop.x, shop.b TO shop.a, shop.x TO shop.b";
                conn.query_drop(swap).ok();
                thread::sleep(Duration::from_millis(3));
            }
        });
        let mut tries = 0;
        while at.len() < 8 && tries < 40 {
            tries += 1;
            match stage.back_up(&options, &Selection::default()) {
                Ok(report) => at.push((report.run.backup, report.view.method, report.position.unwrap())),
                Err(error) => println!("{error}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(at.len() >= 4, "{at:?}");
    for (backup, method, position) in at {
        assert_eq!(method, Method::BinlogPosition);
        let swaps = number(&position.gtid.unwrap()) - begin;
        let [expected, other] = if swaps % 2 == 0 { ["first", "second"] } else { ["second", "first"] };
        let script = String::from_utf8(stage.script(backup, Some("shop.a"))).unwrap();
        assert!(script.contains(expected) && !script.contains(other), "after {swaps} swaps: {script}");
    }
}
