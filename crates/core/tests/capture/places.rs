//! Locations of tablespace files, and the names by which they can be found.

use std::sync::atomic::{AtomicBool, Ordering};

use mysql::prelude::Queryable;

use super::*;

/// Options for a server that opens no table at its start: none that was in memory when it ended, and none
/// that is to be purged.
fn forgetful() -> ServerOptions {
    ServerOptions::default().arg("--skip-innodb-buffer-pool-load-at-startup").arg("--innodb-fast-shutdown=0")
}

fn fails(source: &Server, path_map: impl Fn(&Path) -> Vec<(PathBuf, PathBuf)>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let error = try_to_capture(source, &sink, dir.path(), &Told, path_map(dir.path())).unwrap_err();
    error.to_string()
}

/// The server does not list a table that was not opened since its start; only its link
/// file shows that it exists.
#[test]
fn mariadb_a_table_elsewhere_that_nobody_has_opened_is_not_left_out() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let mut source = Server::start(kind, forgetful()).unwrap();
        let outside = source.outside();
        source
            .exec_all([
                "CREATE DATABASE l",
                &format!("CREATE TABLE l.t (i INT PRIMARY KEY) DATA DIRECTORY='{}'", outside.display()),
                "INSERT INTO l.t VALUES (7)",
                &format!("CREATE TABLE l.gone (i INT PRIMARY KEY) DATA DIRECTORY='{}'", outside.display()),
                "ALTER TABLE l.gone DISCARD TABLESPACE",
            ])
            .unwrap();
        source.restart().unwrap();
        let message = fails(&source, |dir| vec![(outside.clone(), dir.join("nowhere"))]);
        assert!(message.contains("l/t.isl"), "{message}");
        // A discarded table has neither file nor link.
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        capture(&source, &sink, dir.path());
        let placed = sink.place(&dir.path().join("data"));
        assert!(placed.contains_key("l/t.ibd") && !placed.contains_key("l/gone.ibd"));
    }
}

/// A table's file has a second name, created in order to drop the table without waiting for its blocks, or by
/// a link from one schema's directory to another's: the backup contains the file once, under the name that
/// the server uses.
#[test]
fn a_file_with_two_names_is_captured_by_the_servers() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source.exec("CREATE DATABASE h").unwrap();
        for table in ["t", "u"] {
            source.exec(format!("CREATE TABLE h.{table} (i INT PRIMARY KEY, v VARCHAR(100))")).unwrap();
            source.exec(format!("INSERT INTO h.{table} VALUES (1, 'one'), (2, 'two')")).unwrap();
        }
        let datadir = source.datadir();
        let names = [("t", "t_later.ibd"), ("u", "an_earlier.ibd"), ("u", "u.ibd.hdlk")];
        for (table, name) in names {
            fs::hard_link(datadir.join(format!("h/{table}.ibd")), datadir.join("h").join(name)).unwrap();
        }
        std::os::unix::fs::symlink(datadir.join("h"), datadir.join("a")).unwrap();
        std::os::unix::fs::symlink(datadir.join("h"), datadir.join("z")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let captured = capture(&source, &sink, dir.path());
        let target = dir.path().join("data");
        let placed = sink.place(&target);
        let tables: Vec<_> = placed.keys().filter(|path| path.contains(".ibd")).cloned().collect();
        let of_ours: Vec<_> =
            tables.iter().filter(|path| ["a/", "h/", "z/"].iter().any(|at| path.starts_with(at))).collect();
        assert_eq!(of_ours, ["h/t.ibd", "h/u.ibd"], "{kind}");
        lay_out_redo(&target, &captured.redo);
        let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
        for table in ["t", "u"] {
            let rows: u64 = copy.value(format!("SELECT COUNT(*) FROM h.{table}")).unwrap();
            assert_eq!(rows, 2);
        }
        drop(copy);

        // If the server knows a file by none of its names, nobody can tell which one is right.
        source.exec("DROP TABLE h.t").unwrap();
        fs::hard_link(datadir.join("h/t_later.ibd"), datadir.join("h/t_latest.ibd")).unwrap();
        fs::remove_file(datadir.join("a")).unwrap();
        fs::remove_file(datadir.join("z")).unwrap();
        let message = fails(&source, |_| Vec::new());
        assert!(message.contains("h/t_later.ibd") && message.contains("h/t_latest.ibd"), "{message}");
    }
}

/// A server that was just started lists no table until it is opened.
/// Tables that are written to while they are copied are copied again before the locks, not under them.
#[test]
fn mariadb_tables_of_a_server_just_started_are_copied_before_the_locks() {
    let mut source = Server::start(ServerKind::MariaDb1011, forgetful()).unwrap();
    source.exec("CREATE DATABASE r").unwrap();
    let tables: Vec<_> = (0..6).map(|table| format!("t{table}")).collect();
    for table in &tables {
        source
            .exec_all([
                format!("CREATE TABLE r.{table} (id INT PRIMARY KEY, v VARCHAR(200))"),
                format!("INSERT INTO r.{table} SELECT seq, REPEAT('x', 150) FROM r.seq_1_to_30000"),
            ])
            .unwrap();
    }
    source.restart().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let written: BTreeMap<_, _> =
        tables.iter().map(|table| (format!("r/{table}.ibd"), AtomicBool::new(false))).collect();
    // When a table's first pages have arrived, it is written to, and the server writes its file.
    let write = |path: &str, _: &Pages<'_>| {
        if written.get(path).is_some_and(|written| !written.swap(true, Ordering::SeqCst)) {
            let table = path.trim_end_matches(".ibd").replace('/', ".");
            let mut conn = source.conn().unwrap();
            conn.query_drop(format!("UPDATE {table} SET v = REPEAT('y', 150) WHERE id % 100 = 0")).unwrap();
            conn.query_drop(format!("FLUSH TABLES {table} FOR EXPORT")).unwrap();
            conn.query_drop("UNLOCK TABLES").unwrap();
        }
    };
    let sink = Watched { inner: DirectorySink::new(dir.path().join("staging")), on_pages: write };
    let captured = capture(&source, &sink, dir.path());
    assert!(written.values().all(|written| written.load(Ordering::SeqCst)));
    let target = dir.path().join("data");
    let placed = sink.inner.place(&target);
    let of_tables: u64 =
        placed.iter().filter(|(path, _)| path.starts_with("r/")).map(|(_, (_, size))| size).sum();
    let late = captured.stats.bytes_under_ddl_lock;
    assert!(late < of_tables / 10, "{late} of {of_tables} bytes under the lock");
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(source.kind(), target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}
