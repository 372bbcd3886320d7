//! Bulk loads: MariaDB loads an empty table without undo for each row, and builds its indexes at the end; indexes are
//! added online while files are loaded.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Instant,
};

use mysql::{Conn, prelude::Queryable};

use super::*;
use crate::capture::races::{OnEvents, StopOnDrop};

/// How many rows are loaded: more than MariaDB sorts in memory.
fn rows(kind: ServerKind) -> u64 {
    if kind.is_mariadb() { 12 << 12 } else { 3 << 12 }
}

/// How long a server may take for any of this.
const LOAD_MAX: Duration = Duration::from_secs(300);

fn prepare(source: &Server) {
    source
        .exec_all([
            "CREATE DATABASE b",
            "CREATE TABLE b.numbers (n INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB",
            "INSERT INTO b.numbers VALUES ()",
        ])
        .unwrap();
    for bits in 0..12 {
        source.exec(format!("INSERT INTO b.numbers SELECT n + {} FROM b.numbers", 1 << bits)).unwrap();
    }
}

/// A session that has begun to load a table that is empty.
fn begin(source: &Server, table: &str) -> Conn {
    let mut session = source.conn().unwrap();
    for statement in [
        "SET unique_checks = 0, foreign_key_checks = 0".to_owned(),
        "BEGIN".to_owned(),
        format!(
            "INSERT INTO b.{table} SELECT a.n * 4096 + b.n, b.n, SHA2(a.n + b.n, 256)
             FROM b.numbers a, b.numbers b WHERE a.n <= {}",
            rows(source.kind()) >> 12
        ),
    ] {
        session.query_drop(statement).unwrap();
    }
    let undone = format!(
        "SELECT trx_rows_modified FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = {}",
        session.connection_id()
    );
    let undone: u64 = source.value(undone).unwrap();
    assert_eq!(undone < rows(source.kind()), source.kind().is_mariadb(), "{undone} records of undo");
    session
}

/// The server builds the indexes when the session reads the table.
fn build(session: &mut Conn, table: &str) {
    let count: Option<u64> = session.query_first(format!("SELECT COUNT(*) FROM b.{table}")).unwrap();
    assert!(count > Some(0), "{table} has no rows");
}

/// Loads that are open at the end are not in the copy, whatever was written of them; those that are committed are
/// in it as a whole.
fn loads_of_empty_tables_are_captured(kind: ServerKind) {
    // Pages are written at once.
    let options = ServerOptions::default().arg("--innodb-max-dirty-pages-pct=0");
    let source = Server::start(kind, options).unwrap();
    prepare(&source);
    let open = ["open_since_copy", "open_since_stop", "open_unbuilt"];
    for table in open.into_iter().chain(["in_mid_file", "at_stop", "committing"]) {
        source
            .exec(format!(
                "CREATE TABLE b.{table} (id INT PRIMARY KEY, k INT NOT NULL, v VARCHAR(100) NOT NULL, KEY (k), KEY (v))
                 ENGINE=InnoDB"
            ))
            .unwrap();
    }
    let load = |table: &str| begin(&source, table).query_drop("COMMIT").unwrap();
    let is_begun = AtomicBool::new(false);
    let dir = tempfile::tempdir().unwrap();
    let sink = Watched {
        inner: DirectorySink::new(dir.path().join("staging")),
        on_pages: |path: &str, _: &Pages<'_>| {
            if path == "b/in_mid_file.ibd" && !is_begun.swap(true, Ordering::SeqCst) {
                load("in_mid_file");
            }
        },
    };
    let sessions: Mutex<Vec<Conn>> = Mutex::default();
    let committing = Mutex::new(None);
    let begin_built = |table: &str| {
        let mut session = begin(&source, table);
        build(&mut session, table);
        sessions.lock().unwrap().push(session);
    };
    let at_phases = OnEvents(|event| match event {
        Event::Phase { name: "copy" } => {
            begin_built("open_since_copy");
            sessions.lock().unwrap().push(begin(&source, "open_unbuilt"));
        }
        Event::Phase { name: "stop" } => {
            load("at_stop");
            begin_built("open_since_stop");
            let mut session = begin(&source, "committing");
            *committing.lock().unwrap() = Some(thread::spawn(move || session.query_drop("COMMIT").unwrap()));
        }
        _ => {}
    });
    let captured = capture_told(&source, &sink, dir.path(), &at_phases);
    assert!(is_begun.load(Ordering::SeqCst));
    committing.into_inner().unwrap().unwrap().join().unwrap();
    for mut session in sessions.into_inner().unwrap() {
        session.query_drop("ROLLBACK").unwrap();
    }
    let target = dir.path().join("data");
    sink.inner.place(&target);
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(kind, target, ServerOptions::default()).unwrap();
    let count = |server: &Server, table: &str, index: &str| -> u64 {
        server.value(format!("SELECT COUNT(*) FROM b.{table} FORCE INDEX ({index})")).unwrap()
    };
    for index in ["PRIMARY", "k", "v"] {
        for table in open {
            assert_eq!(count(&copy, table, index), 0, "{table}, {index}");
        }
        for table in ["in_mid_file", "at_stop"] {
            assert_eq!(count(&copy, table, index), rows(kind), "{table}, {index}");
        }
        let committed = count(&copy, "committing", index);
        assert!([0, rows(kind)].contains(&committed), "{committed} rows of a load by {index}");
    }
    races::is_whole(&copy, "b.committing");
    for server in [&source, &copy] {
        server.exec("DROP TABLE b.committing").unwrap();
    }
    assert_equal_checksums(&source, &copy).unwrap();
    // What was rolled back can be loaded.
    let mut session = begin(&copy, "open_since_copy");
    build(&mut session, "open_since_copy");
}

#[test]
fn mariadb_10_11_loads_of_empty_tables_are_captured() {
    loads_of_empty_tables_are_captured(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_loads_of_empty_tables_are_captured() {
    loads_of_empty_tables_are_captured(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_loads_of_empty_tables_are_captured() {
    loads_of_empty_tables_are_captured(ServerKind::MySql97);
}

/// How many files are loaded for each index that is added, so that a busy machine has no more to do.
const LOADS_FOR_INDEX: u32 = 4;

/// While files are loaded into a table that has rows, and as many of its rows deleted, indexes are added to it and
/// dropped, until the capture has ended.
fn indexes_added_under_loads_are_captured(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    prepare(&source);
    source
        .exec_all([
            "CREATE TABLE b.t (id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, v VARCHAR(100) NOT NULL) ENGINE=InnoDB",
            "INSERT INTO b.t (k, v) SELECT b.n, SHA2(a.n + b.n, 256) FROM b.numbers a, b.numbers b WHERE a.n <= 5",
        ])
        .unwrap();
    let file = source.home().join("rows.txt");
    let rows = (0..2000u64).map(|n| format!("{n}\trow {}\n", n * 7919 % 100_003));
    fs::write(&file, String::from_iter(rows)).unwrap();
    let load = [
        "SET unique_checks = 0, foreign_key_checks = 0".to_owned(),
        format!("LOAD DATA INFILE '{}' INTO TABLE b.t (k, v)", file.display()),
        "DELETE FROM b.t ORDER BY id LIMIT 2000".to_owned(),
    ];
    let add = ["ADD KEY k (k, v)", "DROP KEY k"]
        .map(|change| format!("ALTER TABLE b.t {change}, ALGORITHM=INPLACE, LOCK=NONE"));
    let (loads, added, ended) = (AtomicU32::default(), AtomicU32::default(), AtomicBool::default());
    let [loads_done, added_done] = [&loads, &added].map(|done| move || done.load(Ordering::SeqCst));
    let has_ended = || ended.load(Ordering::SeqCst);
    let wait_until = |enough: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !enough() {
            assert!(begun.elapsed() < LOAD_MAX, "{kind}: {loads:?} loads, {added:?} indexes added");
            sleep(Duration::from_millis(5));
        }
    };
    let repeat = |statements: &[String], done: &AtomicU32, may_begin: &dyn Fn() -> bool| {
        let mut session = source.conn().unwrap();
        while !has_ended() {
            wait_until(&|| may_begin() || has_ended());
            statements.iter().for_each(|statement| session.query_drop(statement).unwrap());
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let captured = thread::scope(|scope| {
        let _stop = StopOnDrop(&ended);
        scope.spawn(|| repeat(&load, &loads, &|| loads_done() < LOADS_FOR_INDEX * (added_done() + 1)));
        scope.spawn(|| repeat(&add, &added, &|| true));
        let at_phases = OnEvents(|event| {
            if let Event::Phase { name: "copy" | "stop" } = event {
                let (loads_more, added_more) = (loads_done() + 1, added_done() + 1);
                wait_until(&|| loads_done() >= loads_more && added_done() >= added_more);
            }
        });
        capture_told(&source, &sink, dir.path(), &at_phases)
    });
    println!("{kind}: {loads:?} loads, {added:?} indexes added");
    let target = dir.path().join("data");
    sink.place(&target);
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(kind, target, ServerOptions::default()).unwrap();
    let gtid = captured.position.gtid.clone().unwrap();
    if !kind.is_mariadb() {
        let purged = format!("SET GLOBAL gtid_purged = '{gtid}'");
        copy.exec_all(["RESET BINARY LOGS AND GTIDS".to_owned(), purged]).unwrap();
    }
    // Before changes are applied, which may repair what they modify.
    races::is_whole(&copy, "b.t");
    replica::catch_up(&source, &copy, &Position::Gtid(gtid), CATCH_UP_MAX).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

#[test]
fn mariadb_10_11_indexes_added_under_loads_are_captured() {
    indexes_added_under_loads_are_captured(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_indexes_added_under_loads_are_captured() {
    indexes_added_under_loads_are_captured(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_indexes_added_under_loads_are_captured() {
    indexes_added_under_loads_are_captured(ServerKind::MySql97);
}
