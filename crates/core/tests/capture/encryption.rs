//! Encryption switched on or off while a tablespace is copied: the copy has the first pages as they were
//! before, and the other pages as they are after.

use std::time::Instant;

use holdfast_testkit::encryption::mariadb_key_options;
use holdfast_testkit::keyring::{give_keyring, with_keyring};

use super::*;

const SWITCH_MAX: Duration = Duration::from_secs(600);

/// Waits until `query` returns a count of zero.
fn wait_for_none(server: &Server, query: &str) {
    let begun = Instant::now();
    while server.value::<u64>(query).unwrap() > 0 {
        assert!(begun.elapsed() < SWITCH_MAX, "{query}: {:?}", server.value::<u64>(query));
        sleep(Duration::from_millis(20));
    }
}

/// Fills a table with so many rows that they are not read at once.
fn fill(server: &Server, table: &str) {
    server
        .exec_all([
            "CREATE TABLE IF NOT EXISTS e.numbers (n INT PRIMARY KEY) ENGINE=InnoDB".to_owned(),
            "INSERT IGNORE INTO e.numbers VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)".to_owned(),
            format!(
                "INSERT INTO {table} SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n, REPEAT(SHA2(a.n + d.n, 256), 8)
                 FROM e.numbers a, e.numbers b, e.numbers c, e.numbers d WHERE d.n < 8"
            ),
        ])
        .unwrap();
}

/// Captures `source`. Calls `at_extent` with the path of a tablespace and the number of the extent that has
/// just been read, and `at_stop` when everything has been copied.
fn captured(
    source: &Server,
    target: &Path,
    at_extent: impl Fn(&str, u32) + Sync,
    at_stop: impl Fn() + Send + Sync,
) -> BTreeMap<String, u32> {
    let dir = tempfile::tempdir().unwrap();
    let extents: Mutex<BTreeMap<String, u32>> = Mutex::default();
    let sink = Watched {
        inner: DirectorySink::new(dir.path().join("staging")),
        on_pages: |path: &str, _: &Pages<'_>| {
            let extent = {
                let mut extents = extents.lock().unwrap();
                let next = extents.entry(path.to_owned()).or_default();
                *next += 1;
                *next
            };
            at_extent(path, extent);
        },
    };
    // One file after the other, the largest first.
    let options = CaptureOptions { parallel: 1, ..capture_options(source, dir.path()) };
    let listener = races::AtPhase { phase: "stop", action: at_stop };
    let captured = capture_with(source, &sink, &listener, options).unwrap();
    let extents = extents.lock().unwrap().clone();
    let read_in_parts = |path: &str| path == "e/t.ibd" || path.starts_with("g_");
    assert!(extents.iter().all(|(path, count)| !read_in_parts(path) || *count > 3), "{extents:?}");
    sink.inner.place(target);
    lay_out_redo(target, &captured.redo);
    extents
}

/// Switches encryption of everything on or off, and waits until threads have rewritten all of `names`.
fn switch_all(server: &Server, on: bool, names: &str) {
    let (value, left) = if on { ("ON", "= 0") } else { ("OFF", "> 0") };
    server
        .exec_all([
            format!("SET GLOBAL innodb_encrypt_tables = {value}"),
            "SET GLOBAL innodb_encryption_threads = 2".to_owned(),
        ])
        .unwrap();
    wait_for_none(
        server,
        &format!(
            "SELECT COUNT(*) FROM information_schema.innodb_tablespaces_encryption
             WHERE name LIKE '{names}' AND (min_key_version {left} OR key_rotation_page_number IS NOT NULL)"
        ),
    );
    wait_for_none(
        server,
        "SELECT variable_value > 5 FROM information_schema.global_status
         WHERE variable_name = 'Innodb_buffer_pool_pages_dirty'",
    );
}

/// Changes that encryption threads make gradually, and that nothing waits for: switched when the first pages
/// of a table have been read, and again after the next pages if `twice`.
fn mariadb_switched(kind: ServerKind, on: bool, twice: bool) {
    let dir = tempfile::tempdir().unwrap();
    let keys = mariadb_key_options(dir.path())
        .unwrap()
        .into_iter()
        .fold(ServerOptions::default(), ServerOptions::init_arg);
    let source = Server::start(kind, keys.clone()).unwrap();
    source
        .exec_all([
            "SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, innodb_max_dirty_pages_pct = 0",
            "CREATE DATABASE e",
            "CREATE TABLE e.t (id INT PRIMARY KEY, v VARCHAR(600)) ENGINE=InnoDB",
            "CREATE TABLE e.zip (id INT PRIMARY KEY, v VARCHAR(600)) ENGINE=InnoDB ROW_FORMAT=COMPRESSED",
        ])
        .unwrap();
    fill(&source, "e.t");
    fill(&source, "e.zip");
    let switch = |on: bool| switch_all(&source, on, "e/%");
    switch(!on);
    let target = dir.path().join("data");
    let at_extent = |path: &str, extent: u32| match (path, extent) {
        ("e/t.ibd", 1) => switch(on),
        ("e/t.ibd", 2) if twice => switch(!on),
        _ => {}
    };
    captured(&source, &target, at_extent, || {
        source.exec("UPDATE e.t SET v = REVERSE(v) WHERE id % 7 = 0").unwrap();
    });
    let copy = Server::attach(kind, target, keys).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

#[test]
fn mariadb_10_11_tables_whose_encryption_changes_meanwhile_are_whole() {
    for (on, twice) in [(true, false), (false, false), (true, true), (false, true)] {
        println!("on: {on}, twice: {twice}");
        mariadb_switched(ServerKind::MariaDb1011, on, twice);
    }
}

#[test]
fn mariadb_11_8_tables_whose_encryption_changes_meanwhile_are_whole() {
    mariadb_switched(ServerKind::MariaDb118, true, false);
}

/// Pages in the second file of the system tablespace are encrypted after the first file was copied, whose
/// page 0 describes the encryption.
#[test]
fn mariadb_a_system_tablespace_that_is_encrypted_between_its_files_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let options = mariadb_key_options(dir.path())
        .unwrap()
        .into_iter()
        .fold(ServerOptions::default(), ServerOptions::init_arg);
    let options = options
        .init_arg("--innodb-data-file-path=ibdata1:14M;ibdata2:4M:autoextend:max:10M")
        .init_arg("--innodb-autoextend-increment=1");
    let source = Server::start(ServerKind::MariaDb1011, options.clone()).unwrap();
    source
        .exec_all([
            "SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, innodb_max_dirty_pages_pct = 0",
            "SET GLOBAL innodb_file_per_table = OFF",
            "CREATE DATABASE e",
            "CREATE TABLE e.t (id INT PRIMARY KEY, v VARCHAR(600)) ENGINE=InnoDB",
            "CREATE TABLE e.u LIKE e.t",
        ])
        .unwrap();
    fill(&source, "e.t");
    fill(&source, "e.u");
    let target = dir.path().join("data");
    let at_extent = |path: &str, extent: u32| {
        if (path, extent) == ("ibdata2", 1) {
            switch_all(&source, true, "innodb_system");
        }
    };
    let extents = captured(&source, &target, at_extent, || {
        for table in ["e.t", "e.u"] {
            source.exec(format!("UPDATE {table} SET v = REVERSE(v) WHERE id % 7 = 0")).unwrap();
        }
    });
    assert!(extents["ibdata2"] > 3 && extents["ibdata1"] > 20, "{extents:?}");
    let copy = Server::attach(source.kind(), target, options).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

/// A tablespace is encrypted in place, or decrypted, or both, while it is copied; also
/// the dictionary and undo.
#[test]
fn mysql_tablespaces_whose_encryption_changes_meanwhile_are_whole() {
    // State before the copy, when its first pages have been read, at the next pages, and when
    // everything has been copied.
    const CASES: [(&str, [&str; 4]); 7] = [
        ("g_on", ["N", "Y", "Y", "Y"]),
        ("g_off", ["Y", "N", "N", "N"]),
        ("g_on_off", ["N", "Y", "N", "N"]),
        ("g_off_on", ["Y", "N", "Y", "Y"]),
        ("g_on_then_off", ["N", "Y", "Y", "N"]),
        ("g_off_then_on", ["Y", "N", "N", "Y"]),
        ("mysql", ["N", "Y", "Y", "Y"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let (keyring, program) = (dir.path().join("keyring"), dir.path().join("server"));
    let options = with_keyring(ServerOptions::default(), &program, &keyring).unwrap();
    let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
    source.exec("CREATE DATABASE e").unwrap();
    let switch = |name: &str, to: &str| {
        source.exec(format!("ALTER TABLESPACE {name} ENCRYPTION = '{to}'")).unwrap();
        if name != "mysql" {
            source.exec(format!("UPDATE e.{name} SET v = REVERSE(v) WHERE id % 7 = 0")).unwrap();
        }
    };
    for (name, states) in CASES {
        if name != "mysql" {
            source
                .exec_all([
                    format!("CREATE TABLESPACE {name} ADD DATAFILE '{name}.ibd'"),
                    format!("CREATE TABLE e.{name} (id INT PRIMARY KEY, v VARCHAR(600)) TABLESPACE {name}"),
                ])
                .unwrap();
            fill(&source, &format!("e.{name}"));
        }
        switch(name, states[0]);
    }
    source.exec("CREATE TABLE e.undo (id INT PRIMARY KEY, v VARCHAR(600))").unwrap();
    fill(&source, "e.undo");
    let target = dir.path().join("data");
    let at_extent = |path: &str, extent: u32| {
        if let ("undo_001", 1 | 2) = (path, extent) {
            source.exec(format!("SET GLOBAL innodb_undo_log_encrypt = {}", extent == 1)).unwrap();
            source.exec("UPDATE e.undo SET v = REVERSE(v)").unwrap();
            source.exec("SELECT innodb_redo_log_sharp_checkpoint()").unwrap();
        }
        let case = CASES.iter().find(|(name, _)| path.strip_suffix(".ibd") == Some(name));
        if let (Some((name, states)), 1 | 2) = (case, extent)
            && states[extent as usize] != states[extent as usize - 1]
        {
            switch(name, states[extent as usize]);
        }
    };
    let at_stop = || {
        CASES
            .iter()
            .filter(|(_, states)| states[3] != states[2])
            .for_each(|(name, states)| switch(name, states[3]));
    };
    captured(&source, &target, at_extent, at_stop);
    give_keyring(&target, &keyring, &dir.path().join("keyring-copy")).unwrap();
    let copy = Server::attach(source.kind(), target, options).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

/// A new master key, in the middle of a file or when everything has been copied, fails the capture, no matter
/// how good the copy is: nothing tells the statement from those that switch redo off and on.
/// A later capture is opened with the keys as they are afterwards, even if there is a newer one by then.
#[test]
fn mysql_a_rotated_master_key_fails_the_capture_and_the_keys_of_after_open_the_next_one() {
    const ROTATE: &str = "ALTER INSTANCE ROTATE INNODB MASTER KEY";
    let dir = tempfile::tempdir().unwrap();
    let (keyring, program) = (dir.path().join("keyring"), dir.path().join("server"));
    let options = ServerOptions::default().arg("--innodb-undo-log-encrypt=ON");
    let options = with_keyring(options, &program, &keyring).unwrap();
    let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE e",
            "CREATE TABLE e.t (id INT PRIMARY KEY, v VARCHAR(600)) ENCRYPTION = 'Y'",
            "CREATE TABLESPACE g ADD DATAFILE 'g.ibd' ENCRYPTION = 'Y'",
            "CREATE TABLE e.g (id INT PRIMARY KEY, v VARCHAR(600)) TABLESPACE g ENCRYPTION = 'Y'",
            "ALTER TABLESPACE mysql ENCRYPTION = 'Y'",
        ])
        .unwrap();
    fill(&source, "e.t");
    fill(&source, "e.g");
    let keys = || fs::read(&keyring).unwrap();
    let rotate_and_write = || {
        source
            .exec_all([
                ROTATE,
                "UPDATE e.t SET v = REVERSE(v) WHERE id % 7 = 0",
                "UPDATE e.g SET v = REVERSE(v) WHERE id % 7 = 0",
            ])
            .unwrap();
    };
    for in_a_file in [true, false] {
        let before = keys();
        let work = tempfile::tempdir().unwrap();
        let extents = Mutex::new(0);
        let sink = Watched {
            inner: DirectorySink::new(work.path().join("staging")),
            on_pages: |path: &str, _: &Pages<'_>| {
                if path == "e/t.ibd" {
                    let mut extents = extents.lock().unwrap();
                    *extents += 1;
                    if in_a_file && *extents == 2 {
                        rotate_and_write();
                    }
                }
            },
        };
        let at_stop = || {
            if !in_a_file {
                rotate_and_write();
            }
        };
        let listener = races::AtPhase { phase: "stop", action: at_stop };
        let error =
            capture_with(&source, &sink, &listener, capture_options(&source, work.path())).unwrap_err();
        assert!(error.to_string().contains("ALTER INSTANCE was run during the backup"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("run the backup again")), "{error:?}");
        assert!(*extents.lock().unwrap() > 3, "not read in parts: {extents:?}");
        assert!(keys() != before, "no key was made");
    }

    let sink = DirectorySink::new(dir.path().join("staging"));
    let rotate = || source.exec(ROTATE).unwrap();
    let captured = at_point("backup.locks.released", rotate, || capture(&source, &sink, dir.path()));
    let target = dir.path().join("data");
    sink.place(&target);
    lay_out_redo(&target, &captured.redo);
    give_keyring(&target, &keyring, &dir.path().join("keyring-after")).unwrap();
    let copy = Server::attach(source.kind(), target, options).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

/// Redo that is encrypted from some time during the capture on hides what the capture must see: it fails, and says why.
/// The next one begins with encrypted redo, and is right.
#[test]
fn mysql_redo_whose_encryption_is_switched_on_fails_the_capture() {
    let dir = tempfile::tempdir().unwrap();
    let (keyring, program) = (dir.path().join("keyring"), dir.path().join("server"));
    let options = with_keyring(ServerOptions::default(), &program, &keyring).unwrap();
    let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
    source.exec_all(["CREATE DATABASE e", "CREATE TABLE e.t (id INT PRIMARY KEY, v VARCHAR(600))"]).unwrap();
    fill(&source, "e.t");
    let work = tempfile::tempdir().unwrap();
    let action = || {
        source
            .exec_all([
                "SET GLOBAL innodb_redo_log_encrypt = ON",
                "UPDATE e.t SET v = REVERSE(v) WHERE id % 7 = 0",
            ])
            .unwrap();
    };
    let listener = races::AtPhase { phase: "stop", action };
    let sink = DirectorySink::new(work.path().join("staging"));
    let error = capture_with(&source, &sink, &listener, capture_options(&source, work.path())).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("encryption of the redo log was switched on during the backup"), "{text}");

    let sink = DirectorySink::new(dir.path().join("staging"));
    let captured = capture(&source, &sink, dir.path());
    let target = dir.path().join("data");
    sink.place(&target);
    lay_out_redo(&target, &captured.redo);
    give_keyring(&target, &keyring, &dir.path().join("keyring-copy")).unwrap();
    let copy = Server::attach(source.kind(), target, options).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}
