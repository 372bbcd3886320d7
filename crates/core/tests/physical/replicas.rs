//! Backups of replicas, which are used to make more replicas of the same primaries: a restored copy, set up
//! as the restore says, continues where the source was, and then holds the primaries' data.

use std::thread::sleep;

use holdfast_testkit::replica::COMMIT_IN_GROUPS;
use mysql::prelude::Queryable;

use super::*;

/// A primary with data, writes, and on MariaDB GTIDs in its own domain.
fn primary(kind: ServerKind, options: &ServerOptions, domain: u32) -> Server {
    let options = match kind.is_mariadb() {
        true => options.clone().arg(format!("--gtid-domain-id={domain}")),
        false => options.clone(),
    };
    Server::start(kind, options).unwrap()
}

/// Starts a channel, by GTID or from the beginning of the primary's first binlog.
fn follow(replica: &Server, channel: &str, primary: &Server, by_gtid: bool) {
    primary
        .exec_all([
            "CREATE USER IF NOT EXISTS 'replica'@'%' IDENTIFIED BY 'replica'",
            "GRANT REPLICATION SLAVE ON *.* TO 'replica'@'%'",
        ])
        .unwrap();
    let port = primary.port();
    if replica.kind().is_mariadb() {
        let place = match by_gtid {
            true => "MASTER_USE_GTID = slave_pos".to_owned(),
            false => "MASTER_USE_GTID = no, MASTER_LOG_FILE = 'binlog.000001', MASTER_LOG_POS = 4".to_owned(),
        };
        let name = if channel.is_empty() { String::new() } else { format!("'{channel}'") };
        replica.exec_all([
            format!(
                "CHANGE MASTER {name} TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'replica', \
                 MASTER_PASSWORD = 'replica', {place}"
            ),
            format!("START SLAVE {name}"),
        ])
    } else {
        let place = match by_gtid {
            true => "SOURCE_AUTO_POSITION = 1",
            false => "SOURCE_LOG_FILE = 'binlog.000001', SOURCE_LOG_POS = 4",
        };
        replica.exec_all([
            format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'replica', \
                 SOURCE_PASSWORD = 'replica', GET_SOURCE_PUBLIC_KEY = 1, {place} FOR CHANNEL '{channel}'"
            ),
            format!("START REPLICA FOR CHANNEL '{channel}'"),
        ])
    }
    .unwrap();
}

/// Waits until `replica` has the last write to `primary`.
fn arrives(replica: &Server, primary: &Server, schema: &str) {
    primary.exec(format!("CREATE TABLE IF NOT EXISTS {schema}.the_end (i INT PRIMARY KEY)")).unwrap();
    let begun = std::time::Instant::now();
    while replica.exec(format!("SELECT * FROM {schema}.the_end")).is_err() {
        assert!(begun.elapsed() < CATCH_UP_MAX, "{}", states(replica));
        // A failed connection is retried.
        assert!(!states(replica).contains("Last_SQL_Error"), "{}", states(replica));
        sleep(Duration::from_millis(100));
    }
}

/// Waits until `replica` has begun to apply the writes to `shop`.
fn applies(replica: &Server) {
    let begun = std::time::Instant::now();
    while replica.exec("SELECT 1 FROM shop.ledger LIMIT 1").is_err() {
        assert!(begun.elapsed() < CATCH_UP_MAX, "{}", states(replica));
        sleep(Duration::from_millis(100));
    }
}

/// The errors that have stopped replication, if any.
fn states(replica: &Server) -> String {
    let (query, errors) = match replica.kind().is_mariadb() {
        true => ("SHOW ALL SLAVES STATUS", ["Last_IO_Error", "Last_SQL_Error"]),
        false => ("SHOW REPLICA STATUS", ["Last_IO_Error", "Last_SQL_Error"]),
    };
    let rows: Vec<mysql::Row> = replica.query(query).unwrap();
    let text = |row: &mysql::Row, column| row.get::<String, _>(column).filter(|text| !text.is_empty());
    rows.iter()
        .flat_map(|row| errors.map(|column| text(row, column).map(|text| format!("{column}: {text} "))))
        .flatten()
        .collect()
}

fn checksums(server: &Server, schema: &str) -> Vec<(String, Option<u64>)> {
    let tables: Vec<String> = server
        .query(format!(
            "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
             WHERE table_schema = '{schema}' AND table_type = 'BASE TABLE' ORDER BY 1"
        ))
        .unwrap();
    assert!(!tables.is_empty());
    server.query(format!("CHECKSUM TABLE {}", tables.join(", "))).unwrap()
}

/// Backs up `source`, a replica by these channels, while they apply their primaries' writes.
/// `shop` is written on the first primary, `other` on the second.
fn restored_replica_follows(
    source: Server,
    primaries: &[(&str, &Server, bool)],
    server_options: ServerOptions,
) {
    for (channel, primary, by_gtid) in primaries {
        follow(&source, channel, primary, *by_gtid);
    }
    let (_, first, _) = primaries[0];
    shop::load(first, shop::ShopOptions { size_mib: 5, ..shop::ShopOptions::default() }).unwrap();
    if let Some((_, second, _)) = primaries.get(1) {
        second
            .exec_all(["CREATE DATABASE other", "CREATE TABLE other.t (i INT PRIMARY KEY AUTO_INCREMENT)"])
            .unwrap();
    }
    let load = WriteLoad::start_paced(first, 3, 31, Some(100)).unwrap();
    applies(&source);
    let stage = Stage { server_options, ..Stage::around(source) };
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let backup = std::thread::scope(|scope| {
        if let Some((_, second, _)) = primaries.get(1) {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::SeqCst) {
                    second.exec("INSERT INTO other.t VALUES ()").unwrap();
                    sleep(Duration::from_millis(20));
                }
            });
        }
        sleep(Duration::from_secs(1));
        // No position is recorded if an applier did not pause for as long as the query took.
        let is_placed = |backup: &BackupReport| {
            backup.position.replica_of.iter().all(|channel| channel.by_gtid || channel.executed.is_some())
        };
        let backup = (0..60).map(|_| stage.back_up()).find(is_placed).unwrap();
        sleep(Duration::from_secs(1));
        is_done.store(true, std::sync::atomic::Ordering::SeqCst);
        backup
    });
    let committed = load.stop().unwrap().committed;
    println!("{committed} transactions, {:?}", backup.position);
    assert_eq!(backup.position.replica_of.len(), primaries.len());

    restored_copy_follows(&stage, &backup, primaries);
}

/// Restores `backup`, and lets the copy follow the primaries as the restore says.
fn restored_copy_follows(stage: &Stage, backup: &BackupReport, primaries: &[(&str, &Server, bool)]) {
    let (restored, report) = stage.restore(backup.run.backup);
    let copy = restored.server;
    check_tables(&copy).unwrap();
    check_ledger(&copy).unwrap();
    follows_as_told(&copy, &report, primaries, &["shop", "other"]);
}

/// Lets `copy` follow the primaries as its restore says, and compares what is written on each: a schema.
fn follows_as_told(
    copy: &Server,
    report: &RestoreReport,
    primaries: &[(&str, &Server, bool)],
    schemas: &[&str],
) {
    for statement in &report.primary_statements {
        println!("{statement}");
        let statement = statement
            .replace("<user>", "replica")
            .replace("<password>", "replica")
            .replace("SOURCE_USER", "GET_SOURCE_PUBLIC_KEY=1, SOURCE_USER");
        copy.exec_all(statement.split_terminator(';')).unwrap();
    }
    assert_eq!(report.primary_statements.len(), primaries.len());
    for ((_, primary, _), schema) in primaries.iter().zip(schemas) {
        arrives(copy, primary, schema);
        let sums = checksums(copy, schema);
        assert!(sums.iter().all(|(_, sum)| sum.is_some()), "{sums:?}");
        assert_eq!(sums, checksums(primary, schema), "{schema}");
    }
}

/// One channel by GTID, applied in parallel, and one by file and offset; the replica
/// logs only its own writes.
#[test]
fn mariadb_a_replica_of_two_primaries_is_restored_to_its_places() {
    let kind = ServerKind::MariaDb1011;
    let plain = ServerOptions::default();
    let first = primary(kind, &plain, 1);
    let second = primary(kind, &plain, 2);
    let options = plain
        .arg("--skip-log-slave-updates")
        .arg("--gtid-domain-id=3")
        .arg("--slave-parallel-threads=4")
        .arg("--slave-parallel-mode=optimistic");
    let source = Server::start(kind, options.clone()).unwrap();
    source.exec_all(["CREATE DATABASE own", "CREATE TABLE own.t (i INT)"]).unwrap();
    restored_replica_follows(source, &[("", &first, true), ("b", &second, false)], options);
}

/// The same with the features of MySQL: GTIDs are on, and one channel still uses file and offset.
#[test]
fn mysql_a_replica_of_two_primaries_is_restored_to_its_places() {
    let kind = ServerKind::MySql97;
    let options = ServerOptions::default().arg("--replica-parallel-workers=4");
    let first = primary(kind, &options, 1);
    let second = primary(kind, &options, 2);
    let source = Server::start(kind, options.clone()).unwrap();
    restored_replica_follows(source, &[("a", &first, true), ("b", &second, false)], options);
}

/// Without GTIDs, parallel appliers that preserve the commit order have a single position.
#[test]
fn mysql_a_replica_without_gtids_is_restored_to_its_place() {
    let kind = ServerKind::MySql97;
    let options = ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--replica-parallel-workers=4"];
    let options = options.into_iter().fold(ServerOptions::default(), ServerOptions::arg);
    let first = primary(kind, &options, 1);
    let source = Server::start(kind, options.clone()).unwrap();
    restored_replica_follows(source, &[("", &first, false)], options);
}

/// Backups of a busy replica, after `statements`, each of which is restored and follows the primary.
fn a_busy_replica_is_restored(
    kind: ServerKind,
    options: ServerOptions,
    (seed, count): (u64, usize),
    statements: &[&str],
) {
    let first = primary(kind, &ServerOptions::default(), 1);
    let source = Server::start(kind, options.clone()).unwrap();
    follow(&source, "", &first, true);
    shop::load(&first, shop::ShopOptions { size_mib: 5, ..shop::ShopOptions::default() }).unwrap();
    let load = WriteLoad::start(&first, 4, seed).unwrap();
    applies(&source);
    source.exec_all(statements).unwrap();
    let stage = Stage { server_options: options, ..Stage::around(source) };
    let backups: Vec<_> = (0..count).map(|_| stage.back_up()).collect();
    load.stop().unwrap();
    for backup in &backups {
        restored_copy_follows(&stage, backup, &[("", &first, true)]);
    }
}

/// A replica that does not log what it applies lists a GTID a moment after its transaction is in the redo: a
/// backup may have recorded a position before what the copy contains, and the copy must not apply it again.
#[test]
fn mysql_a_replica_that_logs_nothing_is_restored_to_its_place() {
    let options =
        ServerOptions::default().arg("--log-replica-updates=OFF").arg("--replica-parallel-workers=4");
    a_busy_replica_is_restored(ServerKind::MySql97, options, (32, 6), &[]);
}

/// Parallel appliers that log what they apply end the transactions of one group, and take again the lock that a
/// backup holds, before the server says that they are applied.
#[test]
fn mariadb_a_replica_that_logs_what_it_applies_is_restored_to_its_place() {
    let options = ServerOptions::default()
        .arg("--gtid-domain-id=3")
        .arg("--slave-parallel-threads=4")
        .arg("--slave-parallel-mode=optimistic");
    a_busy_replica_is_restored(ServerKind::MariaDb1011, options, (33, 8), &COMMIT_IN_GROUPS);
}

/// A replica whose commits may come after its binlog says them is refused: what its appliers have prepared could be
/// part of the position.
#[test]
fn mariadb_a_replica_that_commits_late_is_refused() {
    let kind = ServerKind::MariaDb1011;
    let first = primary(kind, &ServerOptions::default(), 1);
    let options = ServerOptions::default().arg("--binlog-optimize-thread-scheduling=OFF");
    let source = Server::start(kind, options).unwrap();
    let stage = Stage::around(source);
    stage.back_up();
    follow(&stage.source, "", &first, true);
    let error = backup::run(&stage.repo, &stage.options(), &Told, &Cancel::default()).unwrap_err();
    assert!(error.to_string().contains("binlog_optimize_thread_scheduling is OFF"), "{error}");
}

/// How many transactions wait, prepared, for their commit.
fn prepared(server: &Server) -> usize {
    let (_, _, status): (String, String, String) =
        server.query("SHOW ENGINE INNODB STATUS").unwrap().remove(0);
    status.matches("ACTIVE (PREPARED)").count()
}

/// Parallel appliers commit in the primary's order: while one waits for a row, those after it have prepared
/// their transactions, and the backup's position is before all of them. A server that finds such transactions
/// and no binlog of them does not start, so the recovery rolls them back; the copy then has them from the
/// primary.
fn prepared_transactions_are_left_to_the_primary(kind: ServerKind) {
    let options = ServerOptions::default()
        .arg("--gtid-domain-id=3")
        .arg("--slave-parallel-threads=3")
        .arg("--slave-parallel-mode=optimistic");
    let first = primary(kind, &ServerOptions::default(), 1);
    first
        .exec_all([
            "CREATE DATABASE begun",
            "CREATE DATABASE p",
            "CREATE TABLE p.t (a INT PRIMARY KEY, b INT NOT NULL) ENGINE=InnoDB",
            "INSERT INTO p.t VALUES (1, 0), (2, 0), (3, 0)",
        ])
        .unwrap();
    let source = Server::start(kind, options.clone()).unwrap();
    follow(&source, "", &first, true);
    arrives(&source, &first, "begun");
    let mut holder = source.conn().unwrap();
    holder.query_drop("BEGIN").unwrap();
    holder.query_drop("SELECT b FROM p.t WHERE a = 1 FOR UPDATE").unwrap();
    for statement in [
        "UPDATE p.t SET b = 1 WHERE a = 1",
        "INSERT INTO p.t VALUES (4, 4)",
        "UPDATE p.t SET b = 2 WHERE a = 2",
    ] {
        first.exec(statement).unwrap();
    }
    let begun = std::time::Instant::now();
    while prepared(&source) < 2 {
        assert!(begun.elapsed() < CATCH_UP_MAX, "{}", states(&source));
        sleep(Duration::from_millis(50));
    }
    let stage = Stage { server_options: options, ..Stage::around(source) };
    let backup = stage.back_up();
    assert_eq!(prepared(&stage.source), 2, "they were decided meanwhile");
    holder.query_drop("ROLLBACK").unwrap();
    first.exec("UPDATE p.t SET b = b + 10").unwrap();
    first.exec("CREATE TABLE p.later (i INT PRIMARY KEY)").unwrap();

    let primaries = [("", &first, true)];
    let rows = |server: &Server| -> Vec<(i32, i32)> { server.query("SELECT a, b FROM p.t").unwrap() };
    let (restored, report) = stage.restore(backup.run.backup);
    assert_eq!(rows(&restored.server), [(1, 0), (2, 0), (3, 0)]);
    follows_as_told(&restored.server, &report, &primaries, &["p"]);

    // What recovers here is the user's server. It has to be told once.
    let options = RestoreOptions {
        prepare: false,
        server_binary: None,
        target_dir: stage.dir.path().join("unprepared"),
        ..stage.restore_options(backup.run.backup)
    };
    let warnings = Warnings::default();
    let no = RunNo(backup.run.backup);
    let report = restore::run(&stage.repo, &log(), no, &options, &warnings, &Cancel::default()).unwrap();
    const ONCE: &str = "--tc-heuristic-recover=ROLLBACK";
    assert!(warnings.heard().iter().any(|text| text.contains(ONCE)), "{:?}", warnings.heard());
    let target = options.target_dir;
    let refused = Server::attach(kind, &target, stage.server_options.clone()).unwrap_err();
    assert!(refused.to_string().contains("Found 2 prepared transactions"), "{refused:#}");
    let ended = Server::attach(kind, &target, stage.server_options.clone().arg(ONCE)).unwrap_err();
    assert!(ended.to_string().contains("Please restart without --tc-heuristic-recover"), "{ended:#}");
    let copy = Server::attach(kind, &target, stage.server_options.clone()).unwrap();
    assert_eq!(rows(&copy), [(1, 0), (2, 0), (3, 0)]);
    follows_as_told(&copy, &report, &primaries, &["p"]);
}

#[test]
fn mariadb_10_11_prepared_transactions_of_a_replica_are_left_to_the_primary() {
    prepared_transactions_are_left_to_the_primary(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_prepared_transactions_of_a_replica_are_left_to_the_primary() {
    prepared_transactions_are_left_to_the_primary(ServerKind::MariaDb118);
}
