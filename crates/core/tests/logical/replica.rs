//! The position of a MariaDB replica that also has its own writes, where nothing may be locked.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use holdfast_core::logical::Method;
use holdfast_testkit::replica::{self, CATCH_UP_MAX, Position};

use super::*;

/// The number of transactions on each side before the backup, and after it.
const WRITES: u32 = 150;

/// Increments counters in rows, so that a missing or repeated transaction is detected.
fn write(server: &Server, table: &str, is_over: &AtomicBool) {
    let mut conn = server.conn().unwrap();
    for number in 1_000.. {
        if is_over.load(Relaxed) {
            return;
        }
        for statement in [
            "BEGIN".to_owned(),
            format!("INSERT INTO {table} VALUES ({number}, 0)"),
            format!("UPDATE {table} SET times = times + 1 WHERE id = 0"),
            "COMMIT".to_owned(),
        ] {
            conn.query_drop(statement).unwrap();
        }
        thread::sleep(std::time::Duration::from_millis(7));
    }
}

fn until_written(server: &Server, table: &str, more: u32) {
    let count = || server.query::<u32>(format!("SELECT COUNT(*) FROM {table}")).unwrap()[0];
    let (begun, until) = (std::time::Instant::now(), count() + more);
    while count() < until {
        assert!(begun.elapsed() < std::time::Duration::from_secs(300), "nobody writes to {table}");
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A loaded backup continues as a replica of the source server, and as one of the source's primary, each at
/// the position that the backup records for it, without skipping or repeating a transaction.
///
/// With `is_stopped`, nothing arrives from the primary during the backup, so that the last transaction in the
/// binlog is the server's own.
fn goes_on_on_both_sides(kind: ServerKind, own_domain: bool, is_stopped: bool) {
    // Numbers of one domain then come from two servers, out of order.
    let loose = ["--gtid-strict-mode=OFF"];
    let primary = start_with(kind, &loose);
    let stage = Stage::with(kind, &loose);
    let second = &stage.source;
    primary
        .exec_all([
            "CREATE DATABASE s",
            "CREATE TABLE s.from_primary (id INT PRIMARY KEY, times INT NOT NULL)",
            "CREATE TABLE s.own (id INT PRIMARY KEY, times INT NOT NULL)",
            "INSERT INTO s.from_primary VALUES (0, 0)",
            "INSERT INTO s.own VALUES (0, 0)",
        ])
        .unwrap();
    replica::catch_up(&primary, second, &Position::Gtid(String::new()), CATCH_UP_MAX).unwrap();
    if own_domain {
        second.exec("SET GLOBAL gtid_domain_id = 7").unwrap();
    }
    second
        .exec_all([
            "SET SESSION sql_log_bin = 0",
            "CREATE USER 'dump'@'localhost'",
            "GRANT SELECT, SHOW VIEW, TRIGGER, EVENT, BINLOG MONITOR, SLAVE MONITOR ON *.* TO 'dump'@'localhost'",
        ])
        .unwrap();
    let is_over = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        scope.spawn(|| write(&primary, "s.from_primary", &is_over));
        scope.spawn(|| write(second, "s.own", &is_over));
        let both = || {
            until_written(second, "s.from_primary", WRITES);
            until_written(second, "s.own", WRITES);
        };
        both();
        if is_stopped {
            second.exec("STOP SLAVE").unwrap();
            until_written(second, "s.own", 10);
        }
        let mut options = stage.options();
        options.connect.user = Some("dump".to_owned());
        let selection = Selection { schemas: vec!["s".parse().unwrap()], ..Selection::default() };
        let report = stage.back_up(&options, &selection);
        if is_stopped {
            second.exec("START SLAVE").unwrap();
        }
        if report.is_ok() {
            both();
        }
        is_over.store(true, Relaxed);
        report.unwrap()
    });
    println!("{kind} {own_domain} {:?}", report.position);
    assert_eq!(report.view.method, Method::BinlogPosition);
    let position = report.position.unwrap();
    let [channel] = position.replica_of.as_slice() else { panic!("{position:?}") };
    assert!(channel.by_gtid && channel.executed.is_none() && channel.port == primary.port(), "{channel:?}");
    let rows = |server: &Server, table: &str| {
        server.query::<(i32, i32)>(format!("SELECT * FROM s.{table} ORDER BY id")).unwrap()
    };
    replica::wait(&primary, second, CATCH_UP_MAX).unwrap();
    for (of, gtid) in [(second, position.gtid), (&primary, position.replica_gtid)] {
        let target = start_with(kind, &loose);
        load(&target, &stage.script(report.run.backup, None));
        let had = rows(&target, "own").len();
        replica::catch_up(of, &target, &Position::Gtid(gtid.unwrap()), CATCH_UP_MAX).unwrap();
        assert_eq!(rows(&primary, "from_primary"), rows(&target, "from_primary"), "{kind}");
        if of.port() == second.port() {
            assert_eq!(rows(second, "own"), rows(&target, "own"), "{kind}");
        } else {
            assert_eq!(rows(&target, "own").len(), had, "{kind}");
        }
        assert!(rows(second, "own").len() > had + 100);
    }
}

#[test]
fn a_mariadb_10_11_replica_that_writes_goes_on_on_both_sides() {
    goes_on_on_both_sides(ServerKind::MariaDb1011, false, true);
    goes_on_on_both_sides(ServerKind::MariaDb1011, true, false);
}

#[test]
fn a_mariadb_11_8_replica_that_writes_goes_on_on_both_sides() {
    goes_on_on_both_sides(ServerKind::MariaDb118, false, false);
}

/// Parallel appliers that log what they apply end the transactions of one group, and take again the lock that a
/// backup holds, before the server says that they are applied: the tables that the transactions write to know it.
#[test]
fn a_mariadb_replica_whose_group_is_ending_is_saved_at_its_place() {
    let kind = ServerKind::MariaDb1011;
    let parallel =
        ["--gtid-strict-mode=OFF", "--slave-parallel-threads=4", "--slave-parallel-mode=optimistic"];
    let primary = start_with(kind, &[]);
    let stage = Stage::with(kind, &parallel);
    let second = &stage.source;
    primary.exec("CREATE DATABASE s").unwrap();
    const TABLES: [&str; 4] = ["s.a", "s.b", "s.c", "s.d"];
    for table in TABLES {
        primary
            .exec_all([
                format!("CREATE TABLE {table} (id INT PRIMARY KEY, times INT NOT NULL)"),
                format!("INSERT INTO {table} VALUES (0, 0)"),
            ])
            .unwrap();
    }
    replica::catch_up(&primary, second, &Position::Gtid(String::new()), CATCH_UP_MAX).unwrap();
    second.exec_all(replica::COMMIT_IN_GROUPS).unwrap();
    let is_over = AtomicBool::new(false);
    let reports: Vec<_> = thread::scope(|scope| {
        for table in TABLES {
            let (primary, is_over) = (&primary, &is_over);
            scope.spawn(move || write(primary, table, is_over));
        }
        until_written(second, "s.a", 20);
        let selection = Selection { schemas: vec!["s".parse().unwrap()], ..Selection::default() };
        let reports = (0..4).map(|_| stage.back_up(&stage.options(), &selection)).collect();
        is_over.store(true, Relaxed);
        reports
    });
    for report in reports {
        let report = report.unwrap();
        assert_eq!(report.view.method, Method::BackupStages);
        let target = start_with(kind, &parallel);
        load(&target, &stage.script(report.run.backup, None));
        let place = report.position.unwrap().replica_gtid.unwrap();
        replica::catch_up(&primary, &target, &Position::Gtid(place), CATCH_UP_MAX).unwrap();
        for table in TABLES {
            let rows = |server: &Server| {
                server.query::<(i32, i32)>(format!("SELECT * FROM {table} ORDER BY id")).unwrap()
            };
            assert_eq!(rows(&primary), rows(&target), "{table}");
        }
    }
}
