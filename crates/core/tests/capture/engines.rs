//! Tables of engines other than InnoDB, which the server writes to until commits are blocked.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mysql::prelude::Queryable;

use super::{
    races::{AtPhase, StopOnDrop, is_whole, recovered},
    *,
};

const STATISTICS: [&str; 3] = ["mysql.table_stats", "mysql.column_stats", "mysql.index_stats"];

fn sums(server: &Server) -> Vec<(String, Option<u64>)> {
    server.query(format!("CHECKSUM TABLE {}", STATISTICS.join(", "))).unwrap()
}

/// Statistics are in no log, and their tables are written to until commits are blocked: here, when DDL is
/// already blocked and the last other tables are copied.
#[test]
fn mariadb_statistics_are_captured_as_they_are_at_the_end() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source.exec_all(["CREATE DATABASE s", "CREATE TABLE s.last (i INT) ENGINE=MyISAM"]).unwrap();
        for table in 0..40 {
            source
                .exec_all([
                    format!("CREATE TABLE s.t{table} (id INT PRIMARY KEY, a INT, b VARCHAR(50), KEY (a), KEY (b, a))"),
                    format!("INSERT INTO s.t{table} SELECT seq, seq % 7, REPEAT('x', seq % 50) FROM s.seq_1_to_300"),
                ])
                .unwrap();
        }
        let analyze = |tables: std::ops::Range<u32>| {
            for table in tables {
                source.exec(format!("ANALYZE TABLE s.t{table} PERSISTENT FOR ALL")).unwrap();
            }
        };
        analyze(0..20);
        let is_late = AtomicBool::new(false);
        let dir = tempfile::tempdir().unwrap();
        let sink = Watched {
            inner: DirectorySink::new(dir.path().join("staging")),
            on_pages: |path: &str, _: &Pages<'_>| {
                if path == "s/last.MYD" && is_late.swap(false, Ordering::SeqCst) {
                    analyze(0..40);
                }
            },
        };
        let action = || {
            source.exec("INSERT INTO s.last VALUES (1)").unwrap();
            is_late.store(true, Ordering::SeqCst);
        };
        let captured = capture_told(&source, &sink, dir.path(), &AtPhase { phase: "stop", action });
        assert!(!is_late.load(Ordering::SeqCst), "nothing was analyzed");
        let target = dir.path().join("data");
        sink.inner.place(&target);
        lay_out_redo(&target, &captured.redo);
        let copy = Server::attach(kind, target, ServerOptions::default()).unwrap();
        for table in STATISTICS {
            is_whole(&copy, table);
        }
        assert_eq!(sums(&copy), sums(&source), "{kind}");
        assert_equal_checksums(&source, &copy).unwrap();
    }
}

/// The same with statistics that are written to continuously.
#[test]
fn mariadb_statistics_that_are_written_to_are_whole() {
    let source = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE s",
            "CREATE TABLE s.t (id INT PRIMARY KEY, a INT, b VARCHAR(50), KEY (a), KEY (b, a))",
            "INSERT INTO s.t SELECT seq, seq % 7, REPEAT('x', seq % 50) FROM s.seq_1_to_300",
        ])
        .unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut conn = source.conn().unwrap();
            while !stop.load(Ordering::SeqCst) {
                conn.query_drop("ANALYZE TABLE s.t PERSISTENT FOR ALL").unwrap();
            }
        });
        let _stopped = StopOnDrop(&stop);
        for _ in 0..3 {
            let copy = recovered(&source, "stop", ServerOptions::default(), || {});
            for table in STATISTICS {
                is_whole(&copy.server, table);
            }
        }
    });
}

/// Rows inserted into an empty Aria table are in no log, and its pages are written at the end of the
/// statement.
/// If such a statement runs when everything else has been copied, the copy contains all of its rows or none.
#[test]
fn mariadb_a_bulk_insert_into_aria_is_captured_whole() {
    const ROWS: u64 = 300;
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE a",
                "CREATE TABLE a.t (id INT PRIMARY KEY, v VARCHAR(900), KEY (v(50))) ENGINE=Aria TRANSACTIONAL=1",
            ])
            .unwrap();
        std::thread::scope(|scope| {
            let (source, under_way) = (
                &source,
                "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'INSERT INTO a.t %'",
            );
            let copy = recovered(source, "stop", ServerOptions::default(), || {
                scope.spawn(move || {
                    let slow = format!(
                        "INSERT INTO a.t SELECT seq, CONCAT(REPEAT(SHA2(seq, 256), 12), SLEEP(0.01)) FROM a.seq_1_to_{ROWS}"
                    );
                    source.exec(slow).unwrap();
                });
                while source.value::<u64>(under_way).unwrap() == 0 {
                    sleep(Duration::from_millis(5));
                }
            });
            is_whole(&copy.server, "a.t");
            let rows: u64 = copy.server.value("SELECT COUNT(*) FROM a.t").unwrap();
            assert!(rows == 0 || rows == ROWS, "{kind}: {rows} of {ROWS}");
        });
        is_whole(&source, "a.t");
    }
}

/// The files of such a table are not looked at again once definitions are blocked, and commits are blocked later. A
/// statement that ended in between would be in the position and not in the copy. The server lets none end: each
/// waits for the end of the backup, as is seen here in a session that has blocked definitions only.
#[test]
fn mariadb_no_bulk_insert_into_aria_ends_while_definitions_are_blocked() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE a",
                "CREATE TABLE a.t (id INT PRIMARY KEY) ENGINE=Aria TRANSACTIONAL=1",
            ])
            .unwrap();
        let mut backup = source.conn().unwrap();
        let slow = "INSERT INTO a.t SELECT IF(seq = 200, seq + SLEEP(1), seq) FROM a.seq_1_to_4000";
        let count_in = |state: &str| {
            format!("SELECT COUNT(*) FROM information_schema.processlist WHERE state = '{state}'")
        };
        let wait_for = |state: &str| {
            while source.value::<u64>(count_in(state)).unwrap() == 0 {
                sleep(Duration::from_millis(10));
            }
        };
        std::thread::scope(|scope| {
            let inserting = scope.spawn(|| source.exec(slow).unwrap());
            wait_for("User sleep");
            for stage in ["START", "FLUSH", "BLOCK_DDL"] {
                backup.query_drop(format!("BACKUP STAGE {stage}")).unwrap();
            }
            wait_for("Waiting for backup lock");
            sleep(Duration::from_millis(500));
            assert!(!inserting.is_finished(), "{kind}");
            backup.query_drop("BACKUP STAGE END").unwrap();
            inserting.join().unwrap();
        });
    }
}

/// User tables beside the server's own are locked with the others; only the server's log tables cannot be.
#[test]
fn mysql_tables_beside_its_logs_are_locked() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE TABLE mysql.mine (i INT PRIMARY KEY) ENGINE=MyISAM",
            "INSERT INTO mysql.mine VALUES (1)",
        ])
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let (tried, refused) = (AtomicBool::new(false), AtomicBool::new(false));
    let write = || {
        let mut conn = source.conn().unwrap();
        conn.query_drop("SET SESSION lock_wait_timeout = 1").unwrap();
        tried.store(true, Ordering::Relaxed);
        refused.store(conn.query_drop("INSERT INTO mysql.mine VALUES (2)").is_err(), Ordering::Relaxed);
    };
    at_point("backup.tables.locked", write, || {
        capture_with(&source, &sink, &Told, capture_options(&source, dir.path())).unwrap()
    });
    assert!(tried.into_inner() && refused.into_inner());
}

/// Readers open and close tables at every moment of the end of a capture, one session writes, and another one changes
/// definitions: no table is copied while it is marked as open, so none needs a check or a repair.
fn tables_that_come_and_go_are_whole(kind: ServerKind) {
    const CAPTURES: u32 = 3;
    const READERS: u32 = 4;
    const TABLES: u32 = 6;
    // So few that each table is closed and opened again all the time.
    let options = ServerOptions::default().arg("--table-open-cache=10").arg("--table-open-cache-instances=1");
    let source = Server::start(kind, options).unwrap();
    source.exec("CREATE DATABASE t").unwrap();
    let mut engines = vec![("myisam", "MyISAM"), ("archive", "ARCHIVE")];
    if kind.is_mariadb() {
        source.exec("INSTALL SONAME 'ha_archive'").unwrap();
        engines.push(("aria", "Aria TRANSACTIONAL=0"));
        engines.push(("fixed", "Aria TRANSACTIONAL=0 ROW_FORMAT=FIXED"));
    }
    let mut tables = Vec::new();
    for (name, engine) in engines {
        for number in 0..TABLES {
            let table = format!("t.{name}{number}");
            source
                .exec_all([
                    format!("CREATE TABLE {table} (id INT NOT NULL, v CHAR(90) NOT NULL) ENGINE={engine}"),
                    format!("INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')"),
                ])
                .unwrap();
            tables.push(table);
        }
    }
    let (stop, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    let goes_on = || !stop.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let _stopped = StopOnDrop(&stop);
        for reader in 0..READERS as usize {
            let (source, tables) = (&source, &tables);
            scope.spawn(move || {
                let mut conn = source.conn().unwrap();
                for table in tables.iter().cycle().skip(reader * 5).step_by(reader + 1) {
                    if !goes_on() {
                        break;
                    }
                    conn.query_drop(format!("SELECT COUNT(*) FROM {table}")).unwrap();
                }
            });
        }
        scope.spawn(|| {
            let mut conn = source.conn().unwrap();
            for (id, table) in tables.iter().cycle().enumerate() {
                if !goes_on() {
                    break;
                }
                conn.query_drop(format!("INSERT INTO {table} VALUES ({id}, SHA2({id}, 256))")).unwrap();
                if !table.contains("archive") {
                    conn.query_drop(format!("DELETE FROM {table} WHERE id < {id} - 1000 LIMIT 1")).unwrap();
                }
                // As many as a disk that is not busy takes, and so few that reading a table takes no time.
                sleep(Duration::from_millis(2));
            }
        });
        scope.spawn(|| {
            let mut conn = source.conn().unwrap();
            for table in tables.iter().filter(|table| table.contains("myisam")).cycle() {
                if !goes_on() {
                    break;
                }
                for change in ["ADD INDEX k (v)", "FORCE, ALGORITHM=COPY", "DROP INDEX k"] {
                    conn.query_drop(format!("ALTER TABLE {table} {change}")).unwrap();
                }
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        });
        for _ in 0..CAPTURES {
            let before = rounds.load(Ordering::SeqCst);
            while rounds.load(Ordering::SeqCst) < before + 3 {
                sleep(Duration::from_millis(5));
            }
            let copy = recovered(&source, "stop", ServerOptions::default(), || {});
            for table in &tables {
                is_whole(&copy.server, table);
            }
        }
    });
}

#[test]
fn mariadb_10_11_tables_that_come_and_go_are_whole() {
    tables_that_come_and_go_are_whole(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_tables_that_come_and_go_are_whole() {
    tables_that_come_and_go_are_whole(ServerKind::MySql97);
}
