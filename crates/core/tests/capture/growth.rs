//! Files that grow, become shorter, or are replaced while they are copied.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Instant,
};

use mysql::prelude::Queryable;

use super::*;

const FILES: &str = "--innodb-data-file-path=ibdata1:12M;ibdata2:1M:autoextend";

/// Tables in the system tablespace, whose second file grows in small steps.
struct Growing<'a> {
    server: &'a Server,
    tables: AtomicU32,
}

impl Growing<'_> {
    /// Creates a table of several megabytes.
    fn grow(&self) {
        let before = self.last_file_bytes();
        let table = format!("g.t{}", self.tables.fetch_add(1, Ordering::SeqCst));
        let place = if self.server.kind().is_mariadb() { "" } else { "TABLESPACE innodb_system" };
        self.server
            .exec_all([
                format!("CREATE TABLE {table} (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(1000)) ENGINE=InnoDB {place}"),
                format!("INSERT INTO {table} (v) VALUES (REPEAT('a', 1000))"),
            ])
            .unwrap();
        for _ in 0..13 {
            self.server
                .exec(format!("INSERT INTO {table} (v) SELECT LEFT(CONCAT(id, v), 1000) FROM {table}"))
                .unwrap();
        }
        assert!(self.last_file_bytes() > before, "the system tablespace has not grown");
    }

    fn last_file_bytes(&self) -> u64 {
        fs::metadata(self.server.datadir().join("ibdata2")).unwrap().len()
    }
}

/// The tablespace grows before its last file is read, in the middle of that, and when
/// everything has been copied.
fn a_growing_system_tablespace_is_captured(kind: ServerKind) {
    let options = ServerOptions::default()
        .init_arg(FILES)
        .arg("--innodb-file-per-table=OFF")
        .arg("--innodb-autoextend-increment=1");
    let source = Server::start(kind, options.clone()).unwrap();
    source.exec("CREATE DATABASE g").unwrap();
    let growing = Growing { server: &source, tables: AtomicU32::new(0) };
    growing.grow();
    let dir = tempfile::tempdir().unwrap();
    let in_mid_file = AtomicU32::new(0);
    let sink = Watched {
        inner: DirectorySink::new(dir.path().join("staging")),
        on_pages: |path: &str, _: &Pages<'_>| {
            if path == "ibdata2" && in_mid_file.fetch_add(1, Ordering::SeqCst) == 0 {
                growing.grow();
            }
        },
    };
    struct AtPhases<'a>(&'a Growing<'a>);
    impl Listener for AtPhases<'_> {
        fn event(&self, event: Event) {
            if let Event::Phase { name: "copy" | "stop" } = event {
                self.0.grow();
            }
            Told.event(event);
        }
    }
    let captured = capture_told(&source, &sink, dir.path(), &AtPhases(&growing));
    assert!(in_mid_file.load(Ordering::SeqCst) > 0);
    let target = dir.path().join("data");
    sink.inner.place(&target);
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(kind, target, options).unwrap();
    let tables = assert_equal_checksums(&source, &copy).unwrap();
    assert!(tables >= 4);
    growing.grow();
}

/// Files without changes are copied once, even if they have no page 0 of their own.
#[test]
fn mysql_a_system_tablespace_at_rest_is_copied_once() {
    let options = ServerOptions::default().init_arg(FILES).arg("--innodb-file-per-table=OFF");
    let source = Server::start(ServerKind::MySql97, options).unwrap();
    source.exec("CREATE DATABASE g").unwrap();
    let growing = Growing { server: &source, tables: AtomicU32::new(0) };
    growing.grow();
    let dir = tempfile::tempdir().unwrap();
    let stats = capture(&source, &DirectorySink::new(dir.path().join("staging")), dir.path()).stats;
    assert_eq!(stats.files_recopied, 0);
    assert!(stats.bytes_under_ddl_lock < growing.last_file_bytes(), "{stats:?}");
}

#[test]
fn mariadb_10_11_a_growing_system_tablespace_is_captured() {
    a_growing_system_tablespace_is_captured(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_a_growing_system_tablespace_is_captured() {
    a_growing_system_tablespace_is_captured(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_a_growing_system_tablespace_is_captured() {
    a_growing_system_tablespace_is_captured(ServerKind::MySql97);
}

/// How long a server may take to truncate undo.
const TRUNCATE_MAX: Duration = Duration::from_secs(600);

/// The server truncates an undo tablespace when its first pages have been read: the copy has these as they were before,
/// and is shorter than the file was.
#[test]
fn mariadb_undo_that_is_truncated_in_mid_file_is_captured() {
    const GROWN_BYTES: u64 = 14 << 20;
    let options = ServerOptions::default()
        .init_arg("--innodb-undo-tablespaces=2")
        .arg("--innodb-max-undo-log-size=10485760")
        .arg("--innodb-purge-rseg-truncate-frequency=1");
    let source = Server::start(ServerKind::MariaDb1011, options).unwrap();
    source
        .exec_all([
            "CREATE DATABASE u",
            "CREATE TABLE u.t (id INT PRIMARY KEY, v VARCHAR(1000)) ENGINE=InnoDB",
            "INSERT INTO u.t SELECT seq, REPEAT('a', 900) FROM u.seq_1_to_10000",
        ])
        .unwrap();
    let undo_bytes = || fs::metadata(source.datadir().join("undo001")).unwrap().len();
    let mut session = source.conn().unwrap();
    let begun = Instant::now();
    while undo_bytes() < GROWN_BYTES {
        assert!(begun.elapsed() < TRUNCATE_MAX, "undo does not grow");
        for statement in ["BEGIN", "UPDATE u.t SET v = REPEAT('b', 900)", "ROLLBACK"] {
            session.query_drop(statement).unwrap();
        }
    }
    let grown_bytes = undo_bytes();
    let (is_begun, session) = (AtomicBool::new(false), Mutex::new(session));
    let dir = tempfile::tempdir().unwrap();
    let sink = Watched {
        inner: DirectorySink::new(dir.path().join("staging")),
        on_pages: |path: &str, _: &Pages<'_>| {
            if path != "undo001" || is_begun.swap(true, Ordering::SeqCst) {
                return;
            }
            let mut session = session.lock().unwrap();
            session.query_drop("SET GLOBAL innodb_undo_log_truncate = ON").unwrap();
            let begun = Instant::now();
            while undo_bytes() >= grown_bytes {
                assert!(begun.elapsed() < TRUNCATE_MAX, "undo is not truncated");
                // Something for the purge to do.
                session.query_drop("UPDATE u.t SET v = IF(v = '', 'c', '') WHERE id <= 20").unwrap();
                sleep(Duration::from_millis(10));
            }
            // It is in use again.
            for statement in ["BEGIN", "UPDATE u.t SET v = REPEAT('d', 900) WHERE id <= 2000", "COMMIT"] {
                session.query_drop(statement).unwrap();
            }
        },
    };
    let captured = capture(&source, &sink, dir.path());
    assert!(is_begun.load(Ordering::SeqCst));
    let target = dir.path().join("data");
    let placed = sink.inner.place(&target);
    let (_, copied_bytes) = placed["undo001"];
    assert!(copied_bytes < grown_bytes, "{copied_bytes} of {grown_bytes}");
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(source.kind(), target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

/// Undo tablespaces that are dropped, made again under the same name, and made when all tablespaces have been copied.
/// What an open transaction has written to them is rolled back in the copy.
#[test]
fn mysql_undo_tablespaces_that_come_and_go_are_captured() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE UNDO TABLESPACE undo_again ADD DATAFILE 'undo_again.ibu'",
            "CREATE UNDO TABLESPACE undo_gone ADD DATAFILE 'undo_gone.ibu'",
            "CREATE DATABASE u",
            "CREATE TABLE u.t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(1000))",
            "INSERT INTO u.t (v) VALUES (REPEAT('a', 900))",
        ])
        .unwrap();
    for _ in 0..11 {
        source.exec("INSERT INTO u.t (v) SELECT v FROM u.t").unwrap();
    }
    let set_inactive = |name: &str| {
        source.exec(format!("ALTER UNDO TABLESPACE {name} SET INACTIVE")).unwrap();
        let state = format!("SELECT state FROM information_schema.innodb_tablespaces WHERE name = '{name}'");
        let begun = Instant::now();
        while source.value::<String>(&state).unwrap() != "empty" {
            assert!(begun.elapsed() < TRUNCATE_MAX, "{name} does not become empty");
            sleep(Duration::from_millis(20));
        }
    };
    let open: Mutex<Vec<mysql::Conn>> = Mutex::default();
    let action = || {
        set_inactive("undo_again");
        set_inactive("undo_gone");
        source
            .exec_all([
                "DROP UNDO TABLESPACE undo_again",
                "DROP UNDO TABLESPACE undo_gone",
                "CREATE UNDO TABLESPACE undo_again ADD DATAFILE 'undo_again.ibu'",
                "CREATE UNDO TABLESPACE undo_new ADD DATAFILE 'undo_new.ibu'",
            ])
            .unwrap();
        // Only in the new ones.
        set_inactive("innodb_undo_001");
        set_inactive("innodb_undo_002");
        for number in 0..4 {
            // Ranges of keys, so that none waits for another.
            let rows =
                |from: u32| format!("id BETWEEN {} AND {}", from + 100 * number, from + 100 * number + 50);
            source
                .exec(format!("UPDATE u.t SET v = REVERSE(CONCAT(v, {number})) WHERE {}", rows(1)))
                .unwrap();
            let mut session = source.conn().unwrap();
            session.query_drop("BEGIN").unwrap();
            session.query_drop(format!("UPDATE u.t SET v = 'open' WHERE {}", rows(1001))).unwrap();
            open.lock().unwrap().push(session);
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let captured = at_point("backup.tablespaces.copied", action, || capture(&source, &sink, dir.path()));
    assert_eq!(open.lock().unwrap().len(), 4);
    let target = dir.path().join("data");
    let placed = sink.place(&target);
    let found: Vec<_> = placed.keys().filter(|path| path.ends_with(".ibu")).collect();
    assert_eq!(found, ["undo_again.ibu", "undo_new.ibu"]);
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(source.kind(), target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
    let names = "SELECT name, state FROM information_schema.innodb_tablespaces WHERE space_type = 'Undo' ORDER BY name";
    let states = |server: &Server| server.query::<(String, String)>(names).unwrap();
    assert_eq!(states(&copy), states(&source));
}
