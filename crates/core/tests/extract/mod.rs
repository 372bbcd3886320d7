//! Tables extracted from physical backups.
//! The reference is a restore of the whole backup to the same moment: each row must be the same.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::Duration,
};

use holdfast_core::{
    Cancel, ErrorKind, Result,
    backup::{self, BackupOptions},
    extract::{self, ExtractOptions, ExtractReport, Origin},
    logical::{
        self, Selection,
        export::ExportFormat,
        load::{LoadOptions, Renames},
    },
    recovery::{self, Until},
    restore::{self, RestoreOptions},
};
use holdfast_repo::{Kind, LogName, Repo, RunNo};
use holdfast_testkit::{
    Server, ServerKind, ServerOptions, data::misc, encryption::Encryption, load::DdlStorm,
};
use mysql::prelude::Queryable;

use crate::{
    binlog::{Stage, source},
    listeners::Told,
    logical::export::{self, feed},
};

pub(crate) mod interrupted;
mod outside;

fn log() -> LogName {
    LogName { source: source(), kind: Kind::Physical }
}

fn tables(names: &[&str]) -> Selection {
    Selection { tables: names.iter().map(|name| name.parse().unwrap()).collect(), ..Selection::default() }
}

fn restore_options(kind: ServerKind, target: impl Into<PathBuf>) -> RestoreOptions {
    RestoreOptions { server_binary: Some(kind.server_program().unwrap()), ..RestoreOptions::new(target) }
}

fn options(kind: ServerKind, place: &Path, names: &[&str]) -> ExtractOptions {
    ExtractOptions {
        work_place: place.to_owned(),
        restore: restore_options(kind, place),
        ..ExtractOptions::new(tables(names))
    }
}

fn back_up(stage: &Stage, dir: &Path) -> RunNo {
    let options = BackupOptions {
        name: Some(source()),
        spool_dir: Some(dir.to_owned()),
        ..crate::server::backup_options(crate::server::options(&stage.server))
    };
    RunNo(backup::run(&stage.repo, &options, &Told, &Cancel::default()).unwrap().run.backup)
}

/// Extracts into a server, as schema `to`.
fn into_server(
    repo: &Arc<Repo>,
    origin: Origin<'_>,
    options: &ExtractOptions,
    (target, to): (&Server, &str),
) -> Result<ExtractReport> {
    let extracted = extract::run(repo, origin, options, &Told, &Cancel::default())?;
    let report = extracted.report.clone();
    let load = LoadOptions {
        selection: options.selection.clone(),
        renames: Renames(vec![format!("x={to}").parse().unwrap()]),
        leave_out: true,
        ..LoadOptions::new(crate::server::options(target))
    };
    extracted.load(&load, &Told, &Cancel::default())?;
    Ok(report)
}

/// Extracts as files, and has the server's own client load them under the tables' own names.
fn by_files(
    repo: &Arc<Repo>,
    origin: Origin<'_>,
    options: &ExtractOptions,
    format: ExportFormat,
    target: &Server,
) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("files");
    let extracted = extract::run(repo, origin, options, &Told, &Cancel::default()).unwrap();
    extracted.export(&export::options(&place, format), &Told, &Cancel::default()).unwrap();
    let scripts = match format {
        ExportFormat::Sql => &["backup.sql"][..],
        _ => &["1-schema.sql", "2-load.sql", "3-programs.sql"],
    };
    for script in scripts {
        feed(target, &place, &["--binary-mode", "--local-infile=1"], &fs::read(place.join(script)).unwrap());
    }
    assert_empty(&options.work_place);
}

/// The contents of a table, byte for byte.
fn rows(server: &Server, schema: &str, table: &str) -> Vec<mysql::Row> {
    server.query(format!("SELECT * FROM {schema}.{table} ORDER BY 1, 2")).unwrap()
}

fn assert_same(ours: &[mysql::Row], theirs: &[mysql::Row], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!(
            ours.clone().unwrap() == theirs.clone().unwrap(),
            "{what}: {:?}",
            theirs.get::<mysql::Value, _>(0)
        );
    }
}

/// A shop with everything that makes extraction hard: foreign keys, partitions, BLOBs,
/// and neighbouring tables.
fn fill(server: &Server) {
    let numbers = "SELECT a.n + 10 * b.n + 100 * c.n AS n FROM x.ten a, x.ten b, x.ten c";
    server
        .exec_all([
            "CREATE DATABASE x",
            "CREATE TABLE x.ten (n INT PRIMARY KEY)",
            "INSERT INTO x.ten VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)",
            "CREATE TABLE x.parents (id INT PRIMARY KEY, v VARCHAR(99))",
            "CREATE TABLE x.items (id INT AUTO_INCREMENT PRIMARY KEY, parent INT, v LONGBLOB, k INT, KEY (k), KEY (v(20)), \
             CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES x.parents (id) ON DELETE CASCADE)",
            "CREATE TABLE x.notes (id INT AUTO_INCREMENT PRIMARY KEY, item INT, \
             CONSTRAINT of_item FOREIGN KEY (item) REFERENCES x.items (id) ON DELETE CASCADE)",
            "CREATE TABLE x.parts (id INT, y INT, v VARCHAR(200), PRIMARY KEY (id, y)) \
             PARTITION BY RANGE (y) (PARTITION p0 VALUES LESS THAN (500), PARTITION p1 VALUES LESS THAN MAXVALUE)",
            "CREATE TABLE x.other (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(400), KEY (v(50)))",
            "CREATE TABLE x.big (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)",
            "CREATE TABLE x.old_engine (id INT PRIMARY KEY, v VARCHAR(99)) ENGINE=MyISAM",
        ])
        .unwrap();
    for statement in [
        format!("INSERT INTO x.parents SELECT n, SHA2(n, 256) FROM ({numbers}) AS t"),
        format!(
            "INSERT INTO x.items (parent, v, k) SELECT n, REPEAT(UNHEX(SHA2(n, 512)), 1 + n % 400), n % 17 FROM ({numbers}) AS t"
        ),
        "INSERT INTO x.notes (item) SELECT id FROM x.items".to_owned(),
        format!("INSERT INTO x.parts SELECT n, n, SHA2(n, 256) FROM ({numbers}) AS t"),
        format!("INSERT INTO x.other (v) SELECT REPEAT(SHA2(n, 256), 3) FROM ({numbers}) AS t"),
        format!("INSERT INTO x.big (v) SELECT REPEAT(UNHEX(SHA2(n, 512)), 900) FROM ({numbers}) AS t"),
        format!("INSERT INTO x.old_engine SELECT n, SHA2(n, 256) FROM ({numbers}) AS t"),
    ] {
        server.exec(statement).unwrap();
    }
}

/// Writers on all tables of `x`, row by row.
struct Writers {
    ends: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Two writers wait for each other; one of them has to try again.
const DEADLOCK: u16 = 1213;

fn exec_among_writers(server: &Server, statement: &str) {
    while let Err(error) = server.exec(statement) {
        assert!(format!("{error:?}").contains(&format!("ERROR {DEADLOCK}")), "{statement}: {error:?}");
    }
}

impl Writers {
    fn start(server: &Server) -> Writers {
        let ends = Arc::new(AtomicBool::new(false));
        let threads = (0..2)
            .map(|writer| {
                let mut conn = server.conn().unwrap();
                let ends = Arc::clone(&ends);
                thread::spawn(move || {
                    for number in 0.. {
                        if ends.load(Ordering::SeqCst) {
                            return;
                        }
                        let id = number * 2 + writer;
                        for statement in [
                            "BEGIN".to_owned(),
                            format!(
                                "INSERT INTO x.items (parent, v, k) VALUES ({} , REPEAT('ab', 3000), {id})",
                                id % 900
                            ),
                            format!("UPDATE x.other SET v = CONCAT('{id}', v) WHERE id = {}", 1 + id % 900),
                            format!("REPLACE INTO x.parts VALUES ({}, {}, 'w')", 5000 + id, id % 1000),
                            format!("UPDATE x.parents SET v = '{id}' WHERE id = {}", id % 900),
                            "COMMIT".to_owned(),
                        ] {
                            match conn.query_drop(statement) {
                                // Rolled back as a whole; the next attempt may be more lucky.
                                Err(mysql::Error::MySqlError(error)) if error.code == DEADLOCK => break,
                                done => done.unwrap(),
                            }
                        }
                    }
                })
            })
            .collect();
        Writers { ends, threads }
    }

    fn stop(self) {
        self.ends.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn assert_empty(place: &Path) {
    let left: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A source whose tables are on disk, so that its redo contains only later changes.
fn source_at_rest(kind: ServerKind, options: ServerOptions) -> Stage {
    let mut stage = Stage::with(kind, options);
    fill(&stage.server);
    misc::create(&stage.server, misc::MiscOptions { rows: 200, ..misc::MiscOptions::default() }).unwrap();
    // Otherwise a purge continues after the start and changes more.
    stage.server.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
    stage.server.restart().unwrap();
    stage
}

fn tables_are_those_of_the_whole(kind: ServerKind) {
    let stage = source_at_rest(kind, ServerOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let writers = Writers::start(&stage.server);
    let ddl = DdlStorm::start(&stage.server, 1, 5).unwrap();
    // An uncommitted transaction on wanted and other tables.
    let mut open = stage.server.conn().unwrap();
    for statement in [
        "BEGIN",
        "UPDATE x.items SET v = 'never' WHERE id IN (951, 960, 989)",
        "UPDATE x.parts SET v = 'never' WHERE (id = 991 AND y = 991) OR (id = 3 AND y = 3)",
        "UPDATE x.other SET v = 'never' WHERE id IN (951, 1000)",
        "DELETE FROM x.notes WHERE id IN (901, 950)",
        "INSERT INTO x.parents VALUES (-1, 'never')",
    ] {
        open.query_drop(statement).unwrap();
    }
    sleep(Duration::from_millis(500));
    let run = back_up(&stage, dir.path());
    writers.stop();
    drop(ddl.stop().unwrap());
    drop(open);

    let (whole, log) = (dir.path().join("whole"), log());
    restore::run(&stage.repo, &log, run, &restore_options(kind, &whole), &Told, &Cancel::default()).unwrap();
    let judge = Server::attach(kind, &whole, ServerOptions::default()).unwrap();

    let place = dir.path().join("work");
    let target = target(kind);
    let wanted = options(kind, &place, &["x.items", "x.parts", "x.old_engine"]);
    let report = into_server(&stage.repo, Origin::Backup(&log, run), &wanted, (&target, "old")).unwrap();
    println!("{report:?}");
    for table in ["items", "parts", "old_engine"] {
        let theirs = rows(&judge, "x", table);
        assert!(theirs.len() >= 1000, "{table}");
        assert_same(&rows(&target, "old", table), &theirs, table);
    }
    assert!(report.prepared.as_ref().unwrap().rows_rolled_back > 0 && report.whole.is_none());
    // Unchanged files are not restored, and nothing is left behind.
    let big = unchanged_bytes(&judge);
    assert!(report.restored_bytes + big <= report.backup_bytes, "{big}");
    assert_empty(&place);

    // As files.
    by_files(&stage.repo, Origin::Backup(&log, run), &wanted, ExportFormat::Sql, &target);
    for table in ["items", "parts", "old_engine"] {
        assert_same(&rows(&target, "x", table), &rows(&judge, "x", table), table);
    }

    // What is excluded by name need not be among what is extracted.
    let mut fewer = options(kind, &place, &["x.par*"]);
    fewer.selection.tables_excluded = vec!["x.parents".parse().unwrap()];
    into_server(&stage.repo, Origin::Backup(&log, run), &fewer, (&target, "fewer")).unwrap();
    let found = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'fewer'";
    assert_eq!(target.query::<String>(found).unwrap(), ["parts"]);
    if kind.is_mariadb() {
        fewer.selection.tables_excluded = vec!["x.parens".parse().unwrap()];
        let mistyped = into_server(&stage.repo, Origin::Backup(&log, run), &fewer, (&target, "never"));
        assert!(mistyped.unwrap_err().to_string().contains("no table x.parens"));
    }

    // A mistyped name leads to the one that was meant.
    let error = extract::run(
        &stage.repo,
        Origin::Backup(&log, run),
        &options(kind, &place, &["x.itens"]),
        &Told,
        &Cancel::default(),
    );
    let error = error.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("x.itens") && error.hint().unwrap().contains("x.items"), "{error:?}");
    assert!(!place.exists() || fs::read_dir(&place).unwrap().next().is_none());
}

/// A server into which tables are loaded, also from files of the client.
fn target(kind: ServerKind) -> Server {
    Server::start(kind, ServerOptions::default().arg("--local-infile=1")).unwrap()
}

/// The size of unchanged files.
fn unchanged_bytes(server: &Server) -> u64 {
    fs::metadata(server.datadir().join("x/big.ibd")).unwrap().len()
}

fn moments_of_tables_are_exact(kind: ServerKind) {
    let options_of_server = match kind.is_mariadb() {
        true => ServerOptions::default().arg("--binlog-format=ROW"),
        false => ServerOptions::default(),
    };
    let stage = source_at_rest(kind, options_of_server);
    let server = &stage.server;
    let dir = tempfile::tempdir().unwrap();
    let archiver = stage.start();
    back_up(&stage, dir.path());
    let rows_too = BackupOptions {
        name: Some(source()),
        ..crate::server::backup_options(crate::server::options(server))
    };
    logical::run(&stage.repo, &rows_too, &Selection::default(), &Told, &Cancel::default()).unwrap();
    let writers = Writers::start(server);
    for statement in [
        "CREATE TABLE x.more (id INT PRIMARY KEY, v VARCHAR(99))",
        "INSERT INTO x.more SELECT id, v FROM x.parents",
        "DELETE FROM x.parents WHERE id IN (950, 951, 952)",
        "DROP TABLE x.old_engine",
        "RENAME TABLE x.ten TO x.twenty",
        "UPDATE x.other SET v = 'later' WHERE id > 990",
    ] {
        exec_among_writers(server, statement);
    }
    sleep(Duration::from_millis(300));
    writers.stop();
    server.exec("ALTER TABLE x.items ADD COLUMN z INT DEFAULT 5, ADD INDEX (z)").unwrap();
    server.exec("INSERT INTO x.items (parent, v, k, z) VALUES (3, 'last', 4, 7)").unwrap();
    let quiet = crate::recovery::pause();
    let (items, parts) = (rows(server, "x", "items"), rows(server, "x", "parts"));
    let more = rows(server, "x", "more");
    server
        .exec_all([
            "INSERT INTO x.parts VALUES (123456, 1, 'too late')",
            "SET SESSION foreign_key_checks = 0",
            "DROP TABLE x.items",
            "RENAME TABLE x.other TO x.items",
        ])
        .unwrap();
    println!("{:?}", archiver.stop());
    println!("{:?}", stage.once());

    let place = dir.path().join("work");
    let target = target(kind);
    let wanted = options(kind, &place, &["x.items", "x.parts", "x.more"]);
    let moment = recovery::choose(&stage.repo, &source(), None, Until::Time(quiet)).unwrap();
    let plan = extract::plan(&stage.repo, Origin::Moment(&moment), &wanted, &Cancel::default()).unwrap();
    assert!(plan.whole.is_none() && plan.restore.bytes < plan.backup_bytes, "{:?}", plan.whole);
    let report = into_server(&stage.repo, Origin::Moment(&moment), &wanted, (&target, "old")).unwrap();
    println!("{report:?}");
    assert_eq!(report.whole, None);
    assert_same(&rows(&target, "old", "items"), &items, "items");
    assert_same(&rows(&target, "old", "parts"), &parts, "parts");
    assert_same(&rows(&target, "old", "more"), &more, "more");
    assert_empty(&place);

    // As files.
    by_files(&stage.repo, Origin::Moment(&moment), &wanted, ExportFormat::Csv, &target);
    assert_same(&rows(&target, "x", "items"), &items, "items");
    assert_same(&rows(&target, "x", "parts"), &parts, "parts");
    assert_same(&rows(&target, "x", "more"), &more, "more");

    // The same from the rows of a logical backup, all of which are loaded.
    let moment = recovery::choose(&stage.repo, &source(), Some((Kind::Logical, None)), Until::Time(quiet));
    let moment = moment.unwrap();
    assert_eq!(moment.base().0.kind, Kind::Logical);
    let plan = extract::plan(&stage.repo, Origin::Moment(&moment), &wanted, &Cancel::default()).unwrap();
    let names: Vec<&str> = plan.tables.iter().map(|table| table.name.as_str()).collect();
    assert_eq!((names, plan.restore.files), (vec!["x.items", "x.parts"], 0));
    let report = into_server(&stage.repo, Origin::Moment(&moment), &wanted, (&target, "loaded")).unwrap();
    assert!(report.whole.as_ref().unwrap().contains("from a logical backup"), "{:?}", report.whole);
    assert!(report.loaded.is_some() && report.prepared.is_none());
    assert_same(&rows(&target, "loaded", "items"), &items, "items");
    assert_same(&rows(&target, "loaded", "parts"), &parts, "parts");
    assert_same(&rows(&target, "loaded", "more"), &more, "more");
    assert_empty(&place);
    let moment = recovery::choose(&stage.repo, &source(), None, Until::Time(quiet)).unwrap();

    // Tables that never existed, or were dropped before the moment, are reported without
    // restoring the whole backup.
    for (name, text) in
        [("x.itens", "no statement up to the moment"), ("x.old_engine", "no table x.old_engine")]
    {
        let wanted = options(kind, &place, &[name]);
        let error = extract::run(&stage.repo, Origin::Moment(&moment), &wanted, &Told, &Cancel::default());
        let error = error.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains(text), "{error:?}");
        assert!(!error.hint().unwrap().contains("the whole backup"), "{error:?}");
        assert_empty(&place);
    }

    // Another table takes the name of a selected one: everything is replayed, with the correct result.
    let moment = recovery::choose(&stage.repo, &source(), None, Until::End).unwrap();
    let wanted = options(kind, &place, &["x.items"]);
    let report = into_server(&stage.repo, Origin::Moment(&moment), &wanted, (&target, "last")).unwrap();
    assert!(report.whole.as_ref().unwrap().contains("RENAME TABLE x.other TO x.items"), "{:?}", report.whole);
    assert_same(&rows(&target, "last", "items"), &rows(server, "x", "items"), "items");
    assert_empty(&place);
}

#[test]
fn mariadb_10_11_tables() {
    tables_are_those_of_the_whole(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_tables() {
    tables_are_those_of_the_whole(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_tables() {
    tables_are_those_of_the_whole(ServerKind::MySql97);
}

#[test]
fn mariadb_10_11_moments() {
    moments_of_tables_are_exact(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_moments() {
    moments_of_tables_are_exact(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_moments() {
    moments_of_tables_are_exact(ServerKind::MySql97);
}

/// The redo cannot be read without the server's keys, so the server itself reports which tables it names.
#[test]
fn mariadb_10_11_encrypted_tables() {
    let kind = ServerKind::MariaDb1011;
    let dir = tempfile::tempdir().unwrap();
    let encryption = Encryption::new(kind, dir.path(), ServerOptions::default()).unwrap();
    let Encryption { server_options, prepare_options, .. } = encryption;
    let mut stage = Stage::with(kind, server_options.clone());
    fill(&stage.server);
    stage.server.restart().unwrap();
    let writers = Writers::start(&stage.server);
    sleep(Duration::from_millis(300));
    let run = back_up(&stage, dir.path());
    writers.stop();
    let (whole, place, log) = (dir.path().join("whole"), dir.path().join("work"), log());
    let of_whole =
        RestoreOptions { prepare_options: prepare_options.clone(), ..restore_options(kind, &whole) };
    restore::run(&stage.repo, &log, run, &of_whole, &Told, &Cancel::default()).unwrap();
    let judge = Server::attach(kind, &whole, server_options).unwrap();
    let target = Server::start(kind, ServerOptions::default()).unwrap();
    let mut wanted = options(kind, &place, &["x.items"]);
    wanted.restore.prepare_options = prepare_options;
    let report = into_server(&stage.repo, Origin::Backup(&log, run), &wanted, (&target, "old")).unwrap();
    assert_same(&rows(&target, "old", "items"), &rows(&judge, "x", "items"), "items");
    assert!(report.begun_again > 0, "{report:?}");
    assert_empty(&place);
}

/// A partition that was a separate table in between comes back with that table's rows: both are replayed.
#[test]
fn mariadb_11_8_partitions_that_come_back() {
    let kind = ServerKind::MariaDb118;
    let stage = source_at_rest(kind, ServerOptions::default().arg("--binlog-format=ROW"));
    let server = &stage.server;
    let dir = tempfile::tempdir().unwrap();
    let archiver = stage.start();
    back_up(&stage, dir.path());
    server
        .exec_all([
            "ALTER TABLE x.parts CONVERT PARTITION p1 TO TABLE x.apart",
            "UPDATE x.apart SET v = 'meanwhile'",
            "DELETE FROM x.apart WHERE id < 509",
            "ALTER TABLE x.parts CONVERT TABLE x.apart TO PARTITION p1 VALUES LESS THAN (MAXVALUE)",
        ])
        .unwrap();
    println!("{:?}", archiver.stop());
    println!("{:?}", stage.once());
    let place = dir.path().join("work");
    let target = Server::start(kind, ServerOptions::default()).unwrap();
    let moment = recovery::choose(&stage.repo, &source(), None, Until::End).unwrap();
    let wanted = options(kind, &place, &["x.parts"]);
    let report = into_server(&stage.repo, Origin::Moment(&moment), &wanted, (&target, "old")).unwrap();
    assert!(report.whole.as_ref().unwrap().contains("CONVERT PARTITION"), "{:?}", report.whole);
    assert_same(&rows(&target, "old", "parts"), &rows(server, "x", "parts"), "parts");
    assert_empty(&place);
}
