//! Transactions prepared by an external coordinator, and not yet decided when the backup ends.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use mysql::{Conn, prelude::Queryable};

use super::*;

/// Branches that are prepared before the backup and decided after it.
const HELD: [&str; 2] = ["held-commit", "held-rollback"];

/// Runs a branch up to the coordinator's decision.
fn prepare(conn: &mut Conn, name: &str, id: u64) {
    for statement in [
        format!("XA START '{name}'"),
        format!("INSERT INTO x.t VALUES ({id}, SHA2({id}, 256))"),
        format!("UPDATE x.sum SET n = n + 1 WHERE i = {}", id % 97),
        format!("XA END '{name}'"),
        format!("XA PREPARE '{name}'"),
    ] {
        conn.query_drop(statement).unwrap();
    }
}

/// Runs two-phase commits of other coordinators, one after another, until stopped.
fn decide_many(server: &Server, writer: u64, count: &AtomicU64, stop: &AtomicBool) {
    let mut conn = server.conn().unwrap();
    let mut id = 1_000_000 * writer;
    while !stop.load(Ordering::Relaxed) {
        id += 97;
        let name = format!("passing-{id}");
        // Each writer has its own rows in both tables.
        prepare(&mut conn, &name, id - id % 97 + writer);
        let decision = if id.is_multiple_of(3) { "ROLLBACK" } else { "COMMIT" };
        conn.query_drop(format!("XA {decision} '{name}'")).unwrap();
        count.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn prepared_branches(server: &Server) -> Vec<String> {
    let rows: Vec<(i64, i64, i64, String)> = server.query("XA RECOVER").unwrap();
    let mut names: Vec<String> = rows.into_iter().map(|(.., name)| name).collect();
    names.sort();
    names
}

/// A branch that is prepared when the backup ends is still undecided in the restored server, and no branch
/// prepared and decided meanwhile is lost: the decision arrives by replication, and all tables are equal.
fn branches_outlive_a_backup(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE x".to_owned(),
            "CREATE TABLE x.t (i BIGINT PRIMARY KEY, v VARCHAR(64), KEY (v))".to_owned(),
            "CREATE TABLE x.sum (i INT PRIMARY KEY, n BIGINT NOT NULL)".to_owned(),
            format!(
                "INSERT INTO x.sum VALUES {}",
                (0..97).map(|i| format!("({i}, 0)")).collect::<Vec<_>>().join(", ")
            ),
        ])
        .unwrap();
    for (i, name) in HELD.iter().enumerate() {
        // Rows that no other writer uses, since they stay locked.
        prepare(&mut source.conn().unwrap(), name, 97 * 50 + 90 + i as u64);
    }
    let stage = Stage::around(source);
    let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let backup = thread::scope(|scope| {
        for writer in 1..=3 {
            let (server, count, stop) = (&stage.source, &count, &stop);
            scope.spawn(move || decide_many(server, writer, count, stop));
        }
        while count.load(Ordering::Relaxed) < 50 {
            sleep(Duration::from_millis(10));
        }
        let backup = stage.back_up();
        stop.store(true, Ordering::Relaxed);
        backup
    });
    let restored = stage.restore_recovered(&backup);
    let undecided = prepared_branches(&restored.server);
    assert!(HELD.iter().all(|held| undecided.iter().any(|name| name == held)), "{undecided:?}");
    stage
        .source
        .exec_all([format!("XA COMMIT '{}'", HELD[0]), format!("XA ROLLBACK '{}'", HELD[1])])
        .unwrap();
    stage.catch_up(&backup, &restored);
    assert_eq!(prepared_branches(&restored.server), Vec::<String>::new());
}

#[test]
fn mariadb_10_11_branches_outlive_a_backup() {
    branches_outlive_a_backup(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_branches_outlive_a_backup() {
    branches_outlive_a_backup(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_branches_outlive_a_backup() {
    branches_outlive_a_backup(ServerKind::MySql97);
}
