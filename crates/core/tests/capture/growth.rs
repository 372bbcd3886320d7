//! Files that grow while they are copied.

use std::sync::atomic::{AtomicU32, Ordering};

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
