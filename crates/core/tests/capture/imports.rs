//! DISCARD and IMPORT TABLESPACE around a capture, by the moment of each.
//!
//! IMPORT rewrites pages without redo; DISCARD logs a deletion that makes recovery ignore later writes to the
//! table. Without writes after the import, errors would not show, so each import is followed by some.

use std::{
    io::Read,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use holdfast_testkit::encryption::Encryption;
use holdfast_testkit::keyring::{give_keyring, with_keyring};
use mysql::prelude::Queryable;

use super::*;

/// Options of a server that encrypts everything.
fn encrypted(kind: ServerKind, dir: &Path) -> ServerOptions {
    Encryption::new(kind, dir, ServerOptions::default()).unwrap().server_options
}

/// When something is done to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before the checkpoint that the capture starts from.
    Before,
    /// After that checkpoint, before the table's file is read.
    Start,
    /// While its file is read.
    MidFile,
    /// After the last check without a lock.
    Stop,
    /// Not at all.
    Never,
}

use Moment::{Before, MidFile, Never, Start, Stop};

/// The name of the table, when it is discarded and its file put in place, and when it is
/// imported and written to.
const CASES: [(&str, Moment, Moment); 15] = [
    ("before_before", Before, Before),
    ("before_start", Before, Start),
    ("before_midfile", Before, MidFile),
    ("before_stop", Before, Stop),
    ("start_start", Start, Start),
    ("start_stop", Start, Stop),
    ("midfile_midfile", MidFile, MidFile),
    ("midfile_stop", MidFile, Stop),
    ("stop_stop", Stop, Stop),
    ("packed_before_midfile", Before, MidFile),
    ("packed_start_stop", Start, Stop),
    ("sparse_before_midfile", Before, MidFile),
    ("sparse_start_stop", Start, Stop),
    // Near the end, so that the file that another server has for it has the id of no other table here.
    ("start_never", Start, Never),
    ("never_never", Never, Never),
];

/// How the pages of a table are stored, by its name. MariaDB can wait forever for the last pages of a page-compressed
/// table that it imports (docs/evidence/soak.md), so it has such tables in the long form only.
fn format_of(table: &str, server: &Server) -> &'static str {
    let is_long = std::env::var("HOLDFAST_FORMATS").is_ok_and(|value| value == "long");
    match (table.split_once('_'), server.kind().is_mariadb()) {
        (Some(("packed", _)), _) => "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
        (Some(("sparse", _)), false) => "COMPRESSION='zlib'",
        (Some(("sparse", _)), true) if is_long => "PAGE_COMPRESSED=1",
        (Some(("sparse", _)), true) => "ROW_FORMAT=REDUNDANT",
        _ => "",
    }
}

/// The initial number of rows in each table.
const ROWS: u32 = 1 << 14;

struct Imports<'a> {
    source: &'a Server,
    exported: &'a Path,
}

impl Imports<'_> {
    fn put(&self, table: &str, out: bool) {
        for suffix in ["ibd", "cfg"] {
            let live = self.source.datadir().join(format!("imp/{table}.{suffix}"));
            let kept = self.exported.join(format!("{table}.{suffix}"));
            let (from, to) = if out { (live, kept) } else { (kept, live) };
            fs::copy(from, to).unwrap();
        }
    }

    /// Writes to the tables imported before `moment`, since their copies may lack these writes.
    fn write_on(&self, moment: Moment) {
        let is_imported = |(_, _, imported): &(_, _, Moment)| (*imported as u8) < moment as u8;
        for (table, ..) in CASES.into_iter().filter(is_imported) {
            self.source
                .exec_all([
                    format!("INSERT INTO imp.{table} SELECT 200000 + n, n % 500, REPEAT('y', 150) FROM imp.numbers WHERE n <= 500"),
                    format!("UPDATE imp.{table} SET k = k + 2000, v = REPEAT('w', 140) WHERE id % 11 = 0"),
                ])
                .unwrap();
        }
    }

    /// Does what is due at `moment` for the tables selected by `chosen`.
    fn at(&self, moment: Moment, chosen: impl Fn(&str) -> bool) {
        for (table, discarded, imported) in CASES.into_iter().filter(|(table, ..)| chosen(table)) {
            if discarded == moment {
                self.source.exec(format!("ALTER TABLE imp.{table} DISCARD TABLESPACE")).unwrap();
                self.put(table, false);
            }
            if imported == moment {
                self.source
                    .exec_all([
                        format!("ALTER TABLE imp.{table} IMPORT TABLESPACE"),
                        format!("INSERT INTO imp.{table} SELECT 100000 + n, n % 700, REPEAT('y', 150) FROM imp.numbers WHERE n <= 500"),
                        format!("UPDATE imp.{table} SET k = k + 1000, v = REPEAT('z', 120) WHERE id % 10 = 0"),
                    ])
                    .unwrap();
            }
        }
    }
}

impl Listener for Imports<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Phase { name: "copy" } => self.at(Start, |_| true),
            Event::Phase { name: "stop" } => {
                self.write_on(Stop);
                self.at(Stop, |_| true);
            }
            _ => {}
        }
        Told.event(event);
    }
}

/// The statement that forces a checkpoint.
fn checkpoint_now(kind: ServerKind) -> &'static str {
    match kind.is_mariadb() {
        true => "SET GLOBAL innodb_log_checkpoint_now = ON",
        false => "SELECT innodb_redo_log_sharp_checkpoint()",
    }
}

/// How much further the other server's redo is, where there is one: more than the source writes in a test.
const FAR_BYTES: u64 = 48 << 20;

/// Where a server's redo ends.
fn lsn(server: &Server) -> u64 {
    let status: Vec<(String, String, String)> = server.query("SHOW ENGINE INNODB STATUS").unwrap();
    let words = status[0].2.split_once("Log sequence number").unwrap().1;
    words.split_whitespace().next().unwrap().parse().unwrap()
}

/// Makes the tables' pages newer than anything that the source ever writes. Not on a server that encrypts in the
/// background: with so much to encrypt, what it exports cannot be imported (error 1034, seen on 10.11.19).
fn write_far_beyond(other: &Server, source: &Server) {
    let far = "INSERT INTO d.far SELECT NULL, REPEAT('f', 1500) FROM imp.numbers";
    other
        .exec_all(["CREATE TABLE d.far (id INT AUTO_INCREMENT PRIMARY KEY, v TEXT)", far, far, far])
        .unwrap();
    for (table, ..) in CASES {
        other.exec(format!("UPDATE imp.{table} SET v = REPEAT('u', 151)")).unwrap();
    }
    assert!(lsn(other) > lsn(source) + FAR_BYTES, "{} and {}", lsn(other), lsn(source));
}

/// With `foreign`, the files put in place are from another server, with its space ids and, unless it encrypts, higher
/// LSNs.
/// With `checkpoint`, the steps before the capture come before its checkpoint instead of after it.
fn imported_tables_are_whole(kind: ServerKind, options: &ServerOptions, foreign: bool, checkpoint: bool) {
    let fill = |server: &Server| {
        server
            .exec_all([
                "CREATE DATABASE imp",
                "CREATE TABLE imp.numbers (n INT PRIMARY KEY AUTO_INCREMENT)",
                "INSERT INTO imp.numbers VALUES ()",
            ])
            .unwrap();
        let mut count = 1;
        while count < ROWS {
            server.exec(format!("INSERT INTO imp.numbers SELECT n + {count} FROM imp.numbers")).unwrap();
            count *= 2;
        }
        for (table, ..) in CASES {
            server
                .exec_all([
                    format!(
                        "CREATE TABLE imp.{table} (id INT PRIMARY KEY, k INT NOT NULL, v VARCHAR(200), KEY (k)) ENGINE=InnoDB {}",
                        format_of(table, server)
                    ),
                    format!("INSERT INTO imp.{table} SELECT n, n * 7 % 1000, REPEAT('x', 150) FROM imp.numbers"),
                    format!("DELETE FROM imp.{table} WHERE id % 3 = 0"),
                ])
                .unwrap();
        }
    };
    let source = Server::start(kind, options.clone()).unwrap();
    fill(&source);
    let exported = tempfile::tempdir().unwrap();
    let export = |from: &Server| {
        let imports = Imports { source: from, exported: exported.path() };
        let mut exporter = from.conn().unwrap();
        for (table, ..) in CASES {
            exporter.query_drop(format!("FLUSH TABLES imp.{table} FOR EXPORT")).unwrap();
            imports.put(table, true);
            exporter.query_drop("UNLOCK TABLES").unwrap();
        }
    };
    if foreign {
        let other = Server::start(kind, options.clone()).unwrap();
        other
            .exec_all(["CREATE DATABASE d", "CREATE TABLE d.a (i INT)", "CREATE TABLE d.b (i INT)"])
            .unwrap();
        fill(&other);
        if options.init.is_empty() {
            write_far_beyond(&other, &source);
        }
        export(&other);
    } else {
        export(&source);
    }
    let imports = Imports { source: &source, exported: exported.path() };
    imports.at(Before, |_| true);
    if checkpoint {
        source.exec(checkpoint_now(kind)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let is_midfile =
        |(_, discarded, imported): &&(_, Moment, Moment)| [discarded, imported].contains(&&MidFile);
    let done: BTreeMap<&str, AtomicBool> =
        CASES.iter().filter(is_midfile).map(|case| (case.0, AtomicBool::new(false))).collect();
    let sink = Watched {
        inner: DirectorySink::new(dir.path().join("staging")),
        // The first pages of a table's file have arrived.
        on_pages: |path: &str, _: &Pages<'_>| {
            let table = path.strip_prefix("imp/").and_then(|name| name.strip_suffix(".ibd")).unwrap_or("");
            if let Some(done) = done.get(table)
                && !done.swap(true, Ordering::SeqCst)
            {
                imports.at(MidFile, |name| name == table);
            }
        },
    };
    let captured = capture_told(&source, &sink, dir.path(), &imports);
    assert!(done.values().all(|done| done.load(Ordering::SeqCst)));
    let locks = &captured.stats.locks;
    let held = |name: &str| locks.iter().any(|it| it.statement.contains(name) && !it.held.is_zero());
    assert!(held("FLUSH TABLES FOR EXPORT") && held("mysql.innodb_table_stats") == kind.is_mariadb());
    let target = dir.path().join("data");
    sink.inner.place(&target);
    assert!(!target.join("mysql/innodb_table_stats.cfg").exists());
    lay_out_redo(&target, &captured.redo);
    let copy = Server::attach(kind, target, options.clone()).unwrap();
    assert!(!copy.log().contains("[MY-012351]"), "a tablespace is missing: {}", copy.log());
    for server in [&source, &copy] {
        server.exec("DROP TABLE imp.start_never").unwrap();
    }
    for (table, ..) in CASES.into_iter().filter(|(table, ..)| *table != "start_never") {
        // By the index: checksums read the rows.
        let indexed = |server: &Server| -> (u64, u64) {
            let query = format!("SELECT COUNT(*), SUM(k * (id % 1013)) FROM imp.{table} FORCE INDEX (k)");
            server.query(query).unwrap()[0]
        };
        assert_eq!(indexed(&copy), indexed(&source), "{table}");
    }
    assert_equal_checksums(&source, &copy).unwrap();
}

#[test]
fn mariadb_tables_that_are_imported_at_any_moment_are_whole() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        imported_tables_are_whole(kind, &ServerOptions::default(), false, true);
    }
}

#[test]
fn mariadb_tables_of_another_server_that_are_imported_at_any_moment_are_whole() {
    imported_tables_are_whole(ServerKind::MariaDb1011, &ServerOptions::default(), true, true);
}

/// Encrypted redo does not show which tables were discarded, least of all between its
/// checkpoint and the capture.
#[test]
fn encrypted_mariadb_tables_that_are_imported_at_any_moment_are_whole() {
    for (kind, foreign, checkpoint) in [
        (ServerKind::MariaDb1011, false, true),
        (ServerKind::MariaDb1011, true, false),
        (ServerKind::MariaDb118, false, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        imported_tables_are_whole(kind, &encrypted(kind, dir.path()), foreign, checkpoint);
    }
}

#[test]
fn mysql_tables_that_are_imported_at_any_moment_are_whole() {
    imported_tables_are_whole(ServerKind::MySql97, &ServerOptions::default(), false, true);
}

#[test]
fn mysql_tables_of_another_server_that_are_imported_at_any_moment_are_whole() {
    imported_tables_are_whole(ServerKind::MySql97, &ServerOptions::default(), true, true);
}

/// Encrypted redo does not show which tables were discarded after the checkpoint from which it is followed.
/// An import ends with its own checkpoint, so an import before the capture is harmless; no import may happen
/// between that checkpoint and the moment when DDL is blocked.
#[test]
fn encrypted_mysql_tables_that_are_imported_around_the_start_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (program, keyring) = (dir.path().join("server"), dir.path().join("keyring"));
    fs::create_dir(&program).unwrap();
    // Make the server write pages only when it must, so that its checkpoint does not move.
    let options = [
        "--innodb-redo-log-encrypt=ON",
        "--innodb-idle-flush-pct=0",
        "--innodb-adaptive-flushing=OFF",
        "--innodb-max-dirty-pages-pct=99",
        "--innodb-max-dirty-pages-pct-lwm=0",
    ];
    let options = options.into_iter().fold(ServerOptions::default(), ServerOptions::arg);
    let options = with_keyring(options, &program, &keyring).unwrap();
    let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
    source.exec("CREATE DATABASE imp").unwrap();
    let imports = Imports { source: &source, exported: dir.path() };
    for table in ["early", "late"] {
        source
            .exec_all([
                format!("CREATE TABLE imp.{table} (id INT PRIMARY KEY, v VARCHAR(200))"),
                format!("INSERT INTO imp.{table} VALUES (1, 'before')"),
            ])
            .unwrap();
        let mut exporter = source.conn().unwrap();
        exporter.query_drop(format!("FLUSH TABLES imp.{table} FOR EXPORT")).unwrap();
        imports.put(table, true);
    }
    let discard = |table: &str| {
        source.exec(format!("ALTER TABLE imp.{table} DISCARD TABLESPACE")).unwrap();
        imports.put(table, false);
    };
    let status = |name: &str| -> (String, u64) {
        source.query(format!("SHOW GLOBAL STATUS LIKE '{name}'")).unwrap().remove(0)
    };
    discard("early");
    source.exec("FLUSH ENGINE LOGS").unwrap();
    let (_, discarded) = status("Innodb_redo_log_current_lsn");
    source.exec("ALTER TABLE imp.early IMPORT TABLESPACE").unwrap();
    let (_, checkpoint) = status("Innodb_redo_log_checkpoint_lsn");
    assert!(checkpoint >= discarded, "IMPORT has ended without a checkpoint: {checkpoint} < {discarded}");
    discard("late");

    let mut importer = source.conn().unwrap();
    importer.query_drop("SET lock_wait_timeout = 1").unwrap();
    let import = Mutex::new((importer, None));
    let was_imported = || import.lock().unwrap().1.unwrap_or(false);
    let is_written = ["imp/early.ibd", "imp/late.ibd"].map(|path| (path, AtomicBool::new(false)));
    let write = |path: &str, _: &Pages<'_>| {
        let first = is_written.iter().find(|(of, done)| *of == path && !done.swap(true, Ordering::SeqCst));
        if first.is_some() && (path == "imp/early.ibd" || was_imported()) {
            let table = path.trim_end_matches(".ibd").replace('/', ".");
            source.exec(format!("INSERT INTO {table} VALUES (2, 'while it is copied')")).unwrap();
        }
    };
    let sink = Watched { inner: DirectorySink::new(dir.path().join("staging")), on_pages: write };
    let captured = at_point(
        "backup.redo.following",
        || {
            let (importer, imported) = &mut *import.lock().unwrap();
            *imported = Some(importer.query_drop("ALTER TABLE imp.late IMPORT TABLESPACE").is_ok());
        },
        || capture(&source, &sink, dir.path()),
    );
    assert_eq!(import.lock().unwrap().1, Some(false), "definitions could be changed");
    assert!(is_written.iter().all(|(_, done)| done.load(Ordering::SeqCst)));
    let target = dir.path().join("data");
    sink.inner.place(&target);
    lay_out_redo(&target, &captured.redo);
    give_keyring(&target, &keyring, &dir.path().join("keyring_of_copy")).unwrap();
    let copy = Server::attach(source.kind(), target, options).unwrap();
    for server in [&source, &copy] {
        server.exec("ALTER TABLE imp.late IMPORT TABLESPACE").unwrap();
    }
    for (table, count) in [("early", 2), ("late", 1)] {
        let rows =
            |server: &Server| server.query::<(u32, String)>(format!("SELECT * FROM imp.{table}")).unwrap();
        assert_eq!((rows(&copy), rows(&copy).len()), (rows(&source), count), "{table}");
    }
}

/// The server closes an imported table only while it holds no table of another engine, so such a backup is
/// impossible at that moment.
#[test]
fn mysql_a_table_imported_beside_tables_of_other_engines_fails_the_capture() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE imp",
            "CREATE TABLE imp.start_start (id INT PRIMARY KEY, v VARCHAR(200))",
            "CREATE TABLE imp.other (i INT) ENGINE=MyISAM",
        ])
        .unwrap();
    let exported = tempfile::tempdir().unwrap();
    let imports = Imports { source: &source, exported: exported.path() };
    let mut exporter = source.conn().unwrap();
    exporter.query_drop("FLUSH TABLES imp.start_start FOR EXPORT").unwrap();
    imports.put("start_start", true);
    exporter.query_drop("UNLOCK TABLES").unwrap();
    let import = races::AtPhase {
        phase: "copy",
        action: || {
            source.exec("ALTER TABLE imp.start_start DISCARD TABLESPACE").unwrap();
            imports.put("start_start", false);
            source.exec("ALTER TABLE imp.start_start IMPORT TABLESPACE").unwrap();
        },
    };
    let dir = tempfile::tempdir().unwrap();
    let attempt = |listener: &dyn Listener| {
        let sink = DirectorySink::new(dir.path().join("staging"));
        try_to_capture(&source, &sink, dir.path(), listener, Vec::new())
    };
    let error = attempt(&import).unwrap_err();
    assert!(
        error.to_string().contains("imp.start_start") && error.to_string().contains("imp.other"),
        "{error}"
    );
    source.exec(checkpoint_now(source.kind())).unwrap();
    attempt(&Told).unwrap();
}

/// The file of another table of the same server waits for its import, and has that one's id: a server that recovers
/// both would take either for that table. The capture fails and says so, until the table is imported.
#[test]
fn a_file_that_waits_for_its_import_under_the_id_of_another_fails_the_capture() {
    for kind in ServerKind::all_kinds() {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE imp",
                "CREATE TABLE imp.origin (id INT PRIMARY KEY, v VARCHAR(200)) ENGINE=InnoDB",
                "INSERT INTO imp.origin VALUES (1, 'one'), (2, 'two')",
                "CREATE TABLE imp.clone LIKE imp.origin",
            ])
            .unwrap();
        let mut exporter = source.conn().unwrap();
        exporter.query_drop("FLUSH TABLES imp.origin FOR EXPORT").unwrap();
        let kept = tempfile::tempdir().unwrap();
        let of = |table: &str| source.datadir().join("imp").join(table).with_extension("ibd");
        fs::copy(of("origin"), kept.path().join("file")).unwrap();
        exporter.query_drop("UNLOCK TABLES").unwrap();
        source.exec("ALTER TABLE imp.clone DISCARD TABLESPACE").unwrap();
        fs::copy(kept.path().join("file"), of("clone")).unwrap();
        let error = {
            let sink = DirectorySink::new(kept.path().join("staging"));
            try_to_capture(&source, &sink, kept.path(), &Told, Vec::new()).unwrap_err()
        };
        let text = error.to_string();
        assert!(text.contains("imp/origin.ibd") && text.contains("imp/clone.ibd"), "{kind}: {text}");
        assert!(error.hint().is_some_and(|hint| hint.contains("import")), "{kind}: {error:?}");
        source.exec("ALTER TABLE imp.clone IMPORT TABLESPACE").unwrap();
        races::captured_while(&source, "copy", ServerOptions::default(), || {
            source.exec("UPDATE imp.clone SET v = 'of the clone'").unwrap();
        });
    }
}

/// The redo of a table that is renamed or dropped names its tablespace's id. The end of an id from 8960 on looks like a
/// record of its own about a tablespace with an id below 128, which was not discarded, and so need not be closed.
#[test]
fn mysql_the_end_of_another_tables_id_is_not_taken_for_an_import() {
    const ENDS_LIKE_A_RECORD: u32 = 0x2300;
    const PARTITIONS: u32 = 500;
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE ids".to_owned(),
            "CREATE TABLE ids.low (id INT PRIMARY KEY)".to_owned(),
            "CREATE TABLE ids.other (i INT) ENGINE=MyISAM".to_owned(),
            format!("CREATE TABLE ids.many (i INT) PARTITION BY HASH (i) PARTITIONS {PARTITIONS}"),
        ])
        .unwrap();
    let id = |table: &str| {
        let query = format!(
            "SELECT MAX(space) FROM information_schema.innodb_tablespaces WHERE name LIKE 'ids/{table}%'"
        );
        source.query::<u32>(query).unwrap()[0]
    };
    let wanted = ENDS_LIKE_A_RECORD + id("low");
    // Each partition gets a new id.
    while id("many") + PARTITIONS < wanted {
        source.exec("TRUNCATE TABLE ids.many").unwrap();
    }
    source.exec("DROP TABLE ids.many").unwrap();
    let mut count = 0;
    while count == 0 || id(&format!("t{count}")) < wanted {
        count += 1;
        source.exec(format!("CREATE TABLE ids.t{count} (id INT PRIMARY KEY)")).unwrap();
    }
    let table = format!("t{count}");
    assert_eq!(id(&table), wanted);
    let change = races::AtPhase {
        phase: "copy",
        action: || {
            source.exec(format!("RENAME TABLE ids.{table} TO ids.renamed")).unwrap();
            source.exec("DROP TABLE ids.renamed").unwrap();
        },
    };
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    try_to_capture(&source, &sink, dir.path(), &change, Vec::new()).unwrap();
}

/// A partition is imported, or an imported table takes a partition's place: its file name does not directly
/// tell which table has to be closed. Rows are changed afterwards.
fn imported_partitions_are_whole(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let columns = "id INT PRIMARY KEY, v VARCHAR(200)";
    source
        .exec_all([
            "CREATE DATABASE `im p`".to_owned(),
            "CREATE TABLE `im p`.n (n INT PRIMARY KEY AUTO_INCREMENT)".to_owned(),
            "INSERT INTO `im p`.n VALUES ()".to_owned(),
        ])
        .unwrap();
    for bits in 0..10 {
        source.exec(format!("INSERT INTO `im p`.n SELECT n + {} FROM `im p`.n", 1 << bits)).unwrap();
    }
    source
        .exec_all([
            format!(
                "CREATE TABLE `im p`.`p-t` ({columns}) ENGINE=InnoDB PARTITION BY RANGE (id)
                 (PARTITION p0 VALUES LESS THAN (500), PARTITION p1 VALUES LESS THAN MAXVALUE)"
            ),
            "INSERT INTO `im p`.`p-t` SELECT n, REPEAT('x', 150) FROM `im p`.n WHERE n NOT BETWEEN 300 AND 700".to_owned(),
            format!("CREATE TABLE `im p`.x ({columns}) ENGINE=InnoDB"),
            "INSERT INTO `im p`.x SELECT n, REPEAT('w', 150) FROM `im p`.n WHERE n < 300".to_owned(),
        ])
        .unwrap();
    let kept = tempfile::tempdir().unwrap();
    // MariaDB and MySQL write the separators between the names in different case.
    let partition = if kind.is_mariadb() { "p@002dt#P#p0" } else { "p@002dt#p#p0" };
    let put = |file: &str, out: bool| {
        for suffix in ["ibd", "cfg"] {
            let live = source.datadir().join(format!("im@0020p/{file}.{suffix}"));
            let apart = kept.path().join(format!("{file}.{suffix}"));
            let (from, to) = if out { (&live, &apart) } else { (&apart, &live) };
            fs::copy(from, to).unwrap();
        }
    };
    let mut exporter = source.conn().unwrap();
    for (table, file) in [("`im p`.`p-t`", partition), ("`im p`.x", "x")] {
        exporter.query_drop(format!("FLUSH TABLES {table} FOR EXPORT")).unwrap();
        put(file, true);
        exporter.query_drop("UNLOCK TABLES").unwrap();
    }
    let write = || {
        source
            .exec_all([
                "INSERT INTO `im p`.`p-t` SELECT n, REPEAT('y', 150) FROM `im p`.n WHERE n BETWEEN 300 AND 400",
                "UPDATE `im p`.`p-t` SET v = REPEAT('z', 120) WHERE id % 10 = 0",
            ])
            .unwrap();
    };
    for phase in ["copy", "stop"] {
        if !kind.is_mariadb() {
            races::captured_while(&source, phase, ServerOptions::default(), || {
                source.exec("ALTER TABLE `im p`.`p-t` DISCARD PARTITION p0 TABLESPACE").unwrap();
                put(partition, false);
                source.exec("ALTER TABLE `im p`.`p-t` IMPORT PARTITION p0 TABLESPACE").unwrap();
                write();
            });
        }
        races::captured_while(&source, phase, ServerOptions::default(), || {
            source.exec("ALTER TABLE `im p`.x DISCARD TABLESPACE").unwrap();
            put("x", false);
            source
                .exec_all([
                    "ALTER TABLE `im p`.x IMPORT TABLESPACE",
                    "ALTER TABLE `im p`.`p-t` EXCHANGE PARTITION p0 WITH TABLE `im p`.x",
                ])
                .unwrap();
            write();
        });
    }
}

#[test]
fn mariadb_partitions_that_were_imported_are_whole() {
    imported_partitions_are_whole(ServerKind::MariaDb1011);
}

#[test]
fn mysql_partitions_that_were_imported_are_whole() {
    imported_partitions_are_whole(ServerKind::MySql97);
}

/// While a backup runs, a table is created, given another table's file and swapped into its place, as when it
/// is reloaded. The redo contains the creation of its first pages, its deletion, and its new name.
fn a_table_made_imported_and_renamed_is_whole(kind: ServerKind, options: &ServerOptions) {
    for (phase, is_written_to) in [("copy", false), ("copy", true), ("stop", false), ("stop", true)] {
        let source = Server::start(kind, options.clone()).unwrap();
        let columns = "(id INT AUTO_INCREMENT PRIMARY KEY, k INT, v VARCHAR(200), KEY (k)) ENGINE=InnoDB";
        source
            .exec_all([
                "CREATE DATABASE imp".to_owned(),
                format!("CREATE TABLE imp.t {columns}"),
                "INSERT INTO imp.t VALUES (1, 1, REPEAT('x', 150))".to_owned(),
            ])
            .unwrap();
        for bits in 0..11 {
            source.exec(format!("INSERT INTO imp.t (k, v) SELECT k + {}, v FROM imp.t", 1 << bits)).unwrap();
        }
        let kept = tempfile::tempdir().unwrap();
        let copy = |from: PathBuf, to: PathBuf| {
            for suffix in ["ibd", "cfg"] {
                fs::copy(from.with_extension(suffix), to.with_extension(suffix)).unwrap();
            }
        };
        let of = |table: &str| source.datadir().join("imp").join(table);
        let mut exporter = source.conn().unwrap();
        exporter.query_drop("FLUSH TABLES imp.t FOR EXPORT").unwrap();
        copy(of("t"), kept.path().join("t"));
        exporter.query_drop("UNLOCK TABLES").unwrap();
        source.exec(checkpoint_now(kind)).unwrap();
        races::captured_while(&source, phase, options.clone(), || {
            source
                .exec_all([
                    format!("CREATE TABLE imp.new {columns}"),
                    "INSERT INTO imp.new (k) SELECT k FROM imp.t WHERE id < 500".to_owned(),
                    "DELETE FROM imp.new WHERE k % 2 = 0".to_owned(),
                    "ALTER TABLE imp.new DISCARD TABLESPACE".to_owned(),
                ])
                .unwrap();
            copy(kept.path().join("t"), of("new"));
            source
                .exec_all([
                    "ALTER TABLE imp.new IMPORT TABLESPACE",
                    "RENAME TABLE imp.t TO imp.old, imp.new TO imp.t",
                ])
                .unwrap();
            if is_written_to {
                source
                    .exec_all([
                        "INSERT INTO imp.t (k, v) SELECT k, REPEAT('y', 150) FROM imp.old WHERE id < 100",
                        "UPDATE imp.t SET k = k + 7, v = REPEAT('z', 140) WHERE id % 10 = 0",
                    ])
                    .unwrap();
            }
        });
    }
}

#[test]
fn mariadb_a_table_made_imported_and_renamed_meanwhile_is_whole() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        a_table_made_imported_and_renamed_is_whole(kind, &ServerOptions::default());
    }
}

#[test]
fn mysql_a_table_made_imported_and_renamed_meanwhile_is_whole() {
    a_table_made_imported_and_renamed_is_whole(ServerKind::MySql97, &ServerOptions::default());
}

/// Encrypted redo cannot be changed: there, such a backup fails and names the table, and a backup that starts
/// after a checkpoint is whole. An imported table that kept its name does not make it fail.
#[test]
fn encrypted_mariadb_a_table_imported_and_renamed_meanwhile_fails_the_capture() {
    let dir = tempfile::tempdir().unwrap();
    let source =
        Server::start(ServerKind::MariaDb1011, encrypted(ServerKind::MariaDb1011, dir.path())).unwrap();
    source.exec("CREATE DATABASE imp").unwrap();
    for (table, is_new, is_renamed) in
        [("there", false, true), ("kept", false, false), ("made", true, true), ("made_kept", true, false)]
    {
        let make = |table: &str| {
            source
                .exec_all([
                    format!("CREATE TABLE imp.{table} (id INT PRIMARY KEY, v VARCHAR(200)) ENGINE=InnoDB"),
                    format!("INSERT INTO imp.{table} SELECT seq, REPEAT('x', 100) FROM imp.seq_1_to_2000"),
                ])
                .unwrap();
        };
        let of = |table: &str| source.datadir().join("imp").join(table);
        let copy = |from: PathBuf, to: PathBuf| {
            for suffix in ["ibd", "cfg"] {
                fs::copy(from.with_extension(suffix), to.with_extension(suffix)).unwrap();
            }
        };
        let original = format!("{table}_original");
        make(&original);
        let mut exporter = source.conn().unwrap();
        exporter.query_drop(format!("FLUSH TABLES imp.{original} FOR EXPORT")).unwrap();
        copy(of(&original), dir.path().join("file"));
        exporter.query_drop("UNLOCK TABLES").unwrap();
        if !is_new {
            make(table);
        }
        let import = races::AtPhase {
            phase: "copy",
            action: || {
                if is_new {
                    make(table);
                }
                source.exec(format!("ALTER TABLE imp.{table} DISCARD TABLESPACE")).unwrap();
                copy(dir.path().join("file"), of(table));
                source.exec(format!("ALTER TABLE imp.{table} IMPORT TABLESPACE")).unwrap();
                if is_renamed {
                    source.exec(format!("RENAME TABLE imp.{table} TO imp.{table}_renamed")).unwrap();
                }
            },
        };
        source.exec(checkpoint_now(source.kind())).unwrap();
        let attempt = |listener: &dyn Listener| {
            let work = tempfile::tempdir().unwrap();
            let sink = DirectorySink::new(work.path().join("staging"));
            try_to_capture(&source, &sink, work.path(), listener, Vec::new()).map(drop)
        };
        let first = attempt(&import).map_err(|error| error.to_string());
        match is_renamed {
            true => {
                let error = first.unwrap_err();
                assert!(
                    error.contains(&format!("imp/{table}_renamed.ibd may have been imported")),
                    "{error}"
                );
                source.exec(checkpoint_now(source.kind())).unwrap();
                attempt(&Told).unwrap();
            }
            false => first.unwrap(),
        }
    }
}

/// MariaDB 11.8 imports files that nobody has made a table for. The copy of such a file can overtake the import, so
/// that it begins with pages of the new table and ends with those of the file as it was put there.
fn imported_without_being_made_is_whole(options: &ServerOptions) {
    let kind = ServerKind::MariaDb118;
    let source = Server::start(kind, options.clone()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE imp",
            "CREATE TABLE imp.origin (id INT PRIMARY KEY, v VARCHAR(250), KEY (v)) ENGINE=InnoDB",
            "INSERT INTO imp.origin SELECT seq, REPEAT(SHA2(seq, 256), 3) FROM imp.seq_1_to_60000",
        ])
        .unwrap();
    let of = |table: &str| source.datadir().join("imp").join(table);
    let copy = |from: PathBuf, to: PathBuf| {
        for suffix in ["frm", "ibd", "cfg"] {
            fs::copy(from.with_extension(suffix), to.with_extension(suffix)).unwrap();
        }
    };
    let kept = tempfile::tempdir().unwrap();
    let mut exporter = source.conn().unwrap();
    exporter.query_drop("FLUSH TABLES imp.origin FOR EXPORT").unwrap();
    copy(of("origin"), kept.path().join("origin"));
    exporter.query_drop("UNLOCK TABLES").unwrap();
    source.exec("DROP TABLE imp.origin").unwrap();
    let put = |table: &str| copy(kept.path().join("origin"), of(table));
    let import = |table: &str| {
        source
            .exec_all([
                format!("ALTER TABLE imp.{table} IMPORT TABLESPACE"),
                format!("UPDATE imp.{table} SET v = 'changed' WHERE id % 1000 = 0"),
            ])
            .unwrap();
    };
    let space_of = |table: &str| {
        let mut page = [0; 38];
        File::open(of(table).with_extension("ibd")).unwrap().read_exact(&mut page).unwrap();
        u32::from_be_bytes(page[34..].try_into().unwrap())
    };
    for table in ["begun", "overtaken", "copy", "stop"] {
        put(table);
    }
    thread::scope(|scope| {
        let importing: Mutex<BTreeMap<&str, thread::ScopedJoinHandle<()>>> = Mutex::default();
        // Returns when its first page is the new table's.
        let begin = |table: &'static str| {
            let before = space_of(table);
            importing.lock().unwrap().entry(table).or_insert_with(|| scope.spawn(move || import(table)));
            while space_of(table) == before {
                sleep(Duration::from_micros(200));
            }
        };
        let at_phases = races::OnEvents(|event| match event {
            Event::Phase { name: "copy" } => {
                import("copy");
                begin("begun");
            }
            Event::Phase { name: "stop" } => import("stop"),
            _ => {}
        });
        let overtake = |path: &str| {
            if path == "imp/overtaken.ibd" && !importing.lock().unwrap().contains_key("overtaken") {
                begin("overtaken");
            }
        };
        let copy =
            at_openings(&source, overtake, || races::recovered_told(&source, options.clone(), &at_phases));
        for (_, importing) in importing.into_inner().unwrap() {
            importing.join().unwrap();
        }
        for table in ["begun", "overtaken", "copy", "stop"] {
            let count = |server: &Server| -> u64 {
                server.value(format!("SELECT COUNT(*) FROM imp.{table}")).unwrap()
            };
            assert_eq!(count(&copy.server), count(&source), "{table}");
        }
        assert_equal_checksums(&source, &copy.server).unwrap();
    });
}

#[test]
fn mariadb_a_table_imported_without_being_made_is_whole() {
    imported_without_being_made_is_whole(&ServerOptions::default());
}

#[test]
fn encrypted_mariadb_a_table_imported_without_being_made_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    imported_without_being_made_is_whole(&encrypted(ServerKind::MariaDb118, dir.path()));
}
