//! Files outside the data directory, and undo tablespaces that shrink while they are copied.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::sleep,
    time::Instant,
};

use holdfast_core::{Event, Listener};
use holdfast_testkit::{encryption::Encryption, server::copy_datadir};
use mysql::{Conn, prelude::Queryable};

use super::*;
use crate::{physical::xa::prepared_branches, restore::open_files};

/// A server whose own files are all elsewhere, by absolute paths and by paths that lead out of the data
/// directory, with tables in further places. All files are restored into the data directory: the restored
/// server opens nothing elsewhere, even when it is started with the source's own options.
fn all_elsewhere(kind: ServerKind, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    for name in ["ibdata/sub", "undo", "redo", "aria", "doublewrite", "parts", "myisam"] {
        fs::create_dir_all(elsewhere.join(name)).unwrap();
    }
    let absolute = |name: &str| format!("{}/{name}", elsewhere.display());
    // The data directory is DIR/hf-XXXXXX/data.
    let relative = |name: &str| format!("../../elsewhere/{name}");
    let places = |place: &dyn Fn(&str) -> String| {
        let mut options = vec![
            format!("--innodb-data-home-dir={}", absolute("ibdata")),
            "--innodb-data-file-path=sub/ibdata1:12M;ibdata2:12M:autoextend".to_owned(),
            format!("--innodb-undo-directory={}", place("undo")),
            format!("--innodb-log-group-home-dir={}", place("redo")),
        ];
        match kind.is_mariadb() {
            true => options.push(format!("--aria-log-dir-path={}", place("aria"))),
            false => options.push(format!("--innodb-doublewrite-dir={}", absolute("doublewrite"))),
        }
        options
    };
    let mut options = ServerOptions::default().parent(dir.path());
    options = places(&relative).into_iter().fold(options, ServerOptions::init_arg);
    options = match kind.is_mariadb() {
        true => options.init_arg("--innodb-undo-tablespaces=3"),
        false => options.arg(format!("--innodb-directories={}", absolute("parts"))),
    };
    let mut source = Server::start(kind, options).unwrap();
    let mut tables = pages::create(&source).unwrap();
    source
        .exec_all([
            "CREATE DATABASE `pla-ces`".to_owned(),
            format!(
                "CREATE TABLE `pla-ces`.`par ts` (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL,
                 v VARCHAR(300) NOT NULL, b LONGBLOB) ENGINE=InnoDB PARTITION BY RANGE (id) (
                 PARTITION `p 0` VALUES LESS THAN (200) DATA DIRECTORY='{0}', PARTITION p1 VALUES LESS THAN (400),
                 PARTITION p2 VALUES LESS THAN MAXVALUE DATA DIRECTORY='{0}')",
                absolute("parts")
            ),
            "INSERT INTO `pla-ces`.`par ts` (k, v, b) SELECT id, SHA2(id, 256), NULL FROM pages.seed".to_owned(),
        ])
        .unwrap();
    tables.push("`pla-ces`.`par ts`".to_owned());
    if kind.is_mariadb() {
        let myisam = format!("DATA DIRECTORY='{0}' INDEX DIRECTORY='{0}'", absolute("myisam"));
        source
            .exec_all([
                "CREATE DATABASE linked".to_owned(),
                "CREATE TABLE linked.t LIKE pages.dynamic".to_owned(),
                "INSERT INTO linked.t SELECT * FROM pages.dynamic".to_owned(),
                format!("CREATE TABLE linked.m (i INT PRIMARY KEY, v TEXT) ENGINE=MyISAM {myisam}"),
                "INSERT INTO linked.m SELECT id, SHA2(id, 256) FROM pages.seed".to_owned(),
            ])
            .unwrap();
        tables.push("linked.t".to_owned());
        source.stop().unwrap();
        let (schema, there) = (source.datadir().join("linked"), elsewhere.join("linked"));
        fs::rename(&schema, &there).unwrap();
        symlink(&there, &schema).unwrap();
        source.run().unwrap();
    }
    let is_elsewhere = |path: &PathBuf| path.starts_with(&elsewhere);
    assert!(open_files(&source).iter().filter(|path| is_elsewhere(path)).count() > 8);
    let load = PageLoad::start(&source, &tables, 2, seed).unwrap();
    // The restored server gets the options of the source's option file, and the additional ones that the
    // restore asks for.
    let server_options = places(&absolute).into_iter().fold(ServerOptions::default(), ServerOptions::arg);
    let stage = Stage { server_options, ..Stage::around(source) };
    load.pass(10, LOAD_MAX).unwrap();
    let backup = stage.back_up();
    load.stop().unwrap();
    let restored = stage.restore_recovered(&backup);
    stage.catch_up(&backup, &restored);
    let open = open_files(&restored.server);
    assert!(!open.iter().any(is_elsewhere), "{open:?}");
}

/// The tablespace of temporary tables is recreated at each start, whatever its name is.
#[test]
fn temporary_tablespaces_stay_behind() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let options = ServerOptions::default().arg("--innodb-temp-data-file-path=passing:12M:autoextend");
        let source = Server::start(kind, options).unwrap();
        source
            .exec_all([
                "CREATE DATABASE t",
                "CREATE TABLE t.t (i INT PRIMARY KEY) ENGINE=InnoDB",
                "INSERT INTO t.t VALUES (1)",
            ])
            .unwrap();
        assert!(source.datadir().join("passing").exists());
        let stage = Stage::around(source);
        let restored = stage.restore_recovered(&stage.back_up());
        assert_equal_checksums(&stage.source, &restored.server).unwrap();
        assert!(!restored.server.datadir().join("passing").exists());
    }
}

#[test]
fn mariadb_10_11_files_elsewhere_come_home() {
    all_elsewhere(ServerKind::MariaDb1011, 21);
}

#[test]
fn mariadb_11_8_files_elsewhere_come_home() {
    all_elsewhere(ServerKind::MariaDb118, 22);
}

#[test]
fn mysql_9_7_files_elsewhere_come_home() {
    all_elsewhere(ServerKind::MySql97, 23);
}

/// How often undo tablespaces have been truncated.
fn undo_truncations(server: &Server) -> u64 {
    match server.kind().is_mariadb() {
        true => server
            .query::<(String, u64)>("SHOW GLOBAL STATUS LIKE 'Innodb_undo_truncations'")
            .unwrap()
            .remove(0)
            .1,
        // Each truncation gives a tablespace the next of its numbers, which are 127 apart, in descending
        // order.
        false => server
            .value(
                "SELECT CAST(SUM((4294967279 - space) DIV 127) AS UNSIGNED) FROM information_schema.innodb_tablespaces
                 WHERE space_type = 'Undo'",
            )
            .unwrap(),
    }
}

/// Undo tablespaces are filled at most this often, however slow the machine is.
const FILLED_MAX: u32 = 60;

/// Fills undo tablespaces beyond the size at which they are truncated, over and over.
/// Everything is rolled back, so that no binlog grows.
fn fill_undo(server: &Server, stop: &AtomicBool) {
    let mut conn = server.conn().unwrap();
    conn.query_drop("SET sql_log_bin = 0").unwrap();
    for round in 0..FILLED_MAX {
        for statement in
            ["BEGIN", "UPDATE u.t SET v = REVERSE(v)", "UPDATE u.t SET k = k + 1, v = UPPER(v)", "ROLLBACK"]
        {
            conn.query_drop(statement).unwrap();
        }
        if !server.kind().is_mariadb() {
            truncate_undo(
                &mut conn,
                ["innodb_undo_001", "innodb_undo_002", "undo_more"][round as usize % 3],
                stop,
            );
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        sleep(Duration::from_millis(100));
    }
}

/// MySQL: truncates an undo tablespace, whatever its size.
fn truncate_undo(conn: &mut Conn, name: &str, stop: &AtomicBool) {
    conn.query_drop(format!("ALTER UNDO TABLESPACE {name} SET INACTIVE")).unwrap();
    let state = format!("SELECT state FROM information_schema.innodb_tablespaces WHERE name = '{name}'");
    while conn.query_first::<String, _>(&state).unwrap().unwrap() != "empty" && !stop.load(Ordering::Relaxed)
    {
        sleep(Duration::from_millis(20));
    }
    conn.query_drop(format!("ALTER UNDO TABLESPACE {name} SET ACTIVE")).unwrap();
}

/// Stops a load, even when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Holds up a backup that has copied everything until undo has been truncated since the start of the copy.
struct UntilTruncated<'a> {
    source: &'a Server,
    before: AtomicU64,
}

impl Listener for UntilTruncated<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Phase { name: "copy" } => {
                self.before.store(undo_truncations(self.source), Ordering::Relaxed);
            }
            Event::Phase { name: "stop" } => {
                let (before, begun) = (self.before.load(Ordering::Relaxed), Instant::now());
                while undo_truncations(self.source) == before {
                    assert!(begun.elapsed() < LOAD_MAX, "undo is not truncated");
                    sleep(Duration::from_millis(20));
                }
            }
            _ => {}
        }
        Told.event(event);
    }
}

/// Undo tablespaces are truncated after they were copied, in two backups, and continuously besides.
fn undo_is_truncated_meanwhile(kind: ServerKind, seed: u64) {
    let mut options = ServerOptions { redo_mib: Some(512), ..ServerOptions::default() }
        .arg("--innodb-max-undo-log-size=10485760")
        .arg("--innodb-undo-log-truncate=ON")
        .arg("--innodb-purge-rseg-truncate-frequency=1");
    if kind.is_mariadb() {
        options = options.init_arg("--innodb-undo-tablespaces=3");
    }
    let source = Server::start(kind, options).unwrap();
    let tables = pages::create(&source).unwrap();
    if !kind.is_mariadb() {
        source.exec("CREATE UNDO TABLESPACE undo_more ADD DATAFILE 'undo_more.ibu'").unwrap();
    }
    // MariaDB only truncates tablespaces that have grown.
    let rows = if kind.is_mariadb() { 20 } else { 2 };
    source
        .exec_all([
            "CREATE DATABASE u",
            "CREATE TABLE u.t (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, v VARCHAR(2000) NOT NULL,
             KEY (k)) ENGINE=InnoDB CHARACTER SET latin1",
            format!(
                "INSERT INTO u.t (k, v) SELECT a.id, REPEAT(SHA2(a.id * 1000 + b.id, 512), 8)
             FROM pages.seed a, pages.seed b WHERE b.id <= {rows}"
            )
            .as_str(),
        ])
        .unwrap();
    let load = PageLoad::start(&source, &tables, 1, seed).unwrap();
    let stage = Stage::around(source);
    let stop = AtomicBool::new(false);
    let backups = std::thread::scope(|scope| {
        scope.spawn(|| fill_undo(&stage.source, &stop));
        let _stop = Stop(&stop);
        [(); 2].map(|()| {
            let held = UntilTruncated { source: &stage.source, before: AtomicU64::default() };
            backup::run(&stage.repo, &stage.options(), &held, &Cancel::default()).unwrap()
        })
    });
    load.stop().unwrap();
    for backup in backups.iter().rev() {
        // With little memory, redo is applied before all of it has been read, including redo for pages that
        // are truncated later. MySQL can come to a standstill with less.
        let little = RestoreOptions {
            target_dir: stage.dir.path().join(format!("little-{}", backup.run.backup)),
            prepare_memory_bytes: Some(if kind.is_mariadb() { 32 } else { 64 } << 20),
            ..stage.restore_options(backup.run.backup)
        };
        restore::run(&stage.repo, &log(), RunNo(backup.run.backup), &little, &Told, &Cancel::default())
            .unwrap();
        stage.prove_tables(backup);
    }
}

#[test]
fn mariadb_10_11_undo_is_truncated_meanwhile() {
    undo_is_truncated_meanwhile(ServerKind::MariaDb1011, 24);
}

#[test]
fn mariadb_11_8_undo_is_truncated_meanwhile() {
    undo_is_truncated_meanwhile(ServerKind::MariaDb118, 25);
}

#[test]
fn mysql_9_7_undo_is_truncated_meanwhile() {
    undo_is_truncated_meanwhile(ServerKind::MySql97, 26);
}

/// Between two backups, the server is restarted with more undo tablespaces: each backup is
/// restored with as many as it has.
#[test]
fn mariadb_10_11_more_undo_tablespaces_after_a_restart() {
    let kind = ServerKind::MariaDb1011;
    let with = |count: u32| ServerOptions::default().init_arg(format!("--innodb-undo-tablespaces={count}"));
    let mut maker = Server::start(kind, with(0)).unwrap();
    let tables = pages::create(&maker).unwrap();
    maker.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
    maker.stop().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let datadir = dir.path().join("data");
    copy_datadir(maker.datadir(), &datadir).unwrap();
    let mut stage = Stage::around(Server::attach(kind, &datadir, with(0)).unwrap());
    let mut backups = Vec::new();
    for count in [0, 2, 5] {
        stage.source.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
        stage.source.stop().unwrap();
        stage.source = Server::attach(kind, &datadir, with(count)).unwrap();
        let load = PageLoad::start(&stage.source, &tables, 1, 34).unwrap();
        load.pass(10, LOAD_MAX).unwrap();
        // It has a new port each time, so it looks like another server.
        let options = BackupOptions { new_identity: true, ..stage.options() };
        let backup = backup::run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
        backups.push((count, backup));
        load.stop().unwrap();
    }
    for (count, backup) in backups {
        let restored = stage.restore_recovered(&backup);
        assert_eq!(restored.server.value::<u32>("SELECT @@innodb_undo_tablespaces").unwrap(), count);
        stage.catch_up(&backup, &restored);
    }
}

/// The data directory is a link, and options name what it leads to: nothing is elsewhere.
fn a_link_to_everything(kind: ServerKind) {
    let mut maker = Server::start(kind, ServerOptions::default()).unwrap();
    maker
        .exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)"])
        .unwrap();
    if kind.is_mariadb() {
        maker.exec_all(["CREATE TABLE d.a (i INT) ENGINE=Aria", "INSERT INTO d.a VALUES (1)"]).unwrap();
    }
    maker.stop().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    copy_datadir(maker.datadir(), &real).unwrap();
    symlink(&real, &link).unwrap();
    let here = real.display();
    let mut options = ServerOptions::default()
        .arg(format!("--innodb-data-home-dir={here}"))
        .arg(format!("--innodb-undo-directory={here}"));
    if kind.is_mariadb() {
        options = options.arg(format!("--aria-log-dir-path={here}"));
    }
    let stage = Stage::around(Server::attach(kind, &link, options).unwrap());
    let backup = stage.back_up();
    stage.prove_tables(&backup);
}

#[test]
fn mariadb_10_11_behind_a_link_is_restored() {
    a_link_to_everything(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_behind_a_link_is_restored() {
    a_link_to_everything(ServerKind::MySql97);
}

/// A server that is started with another number of undo tablespaces keeps those it has while a branch is prepared,
/// since its undo is in use: they are all in the backup, and so is the branch.
#[test]
fn mariadb_undo_tablespaces_that_are_held_by_a_branch_come_home() {
    const HAS: u32 = 3;
    let kind = ServerKind::MariaDb1011;
    let with = |count: u32| ServerOptions::default().init_arg(format!("--innodb-undo-tablespaces={count}"));
    let mut maker = Server::start(kind, with(HAS)).unwrap();
    maker
        .exec_all([
            "CREATE DATABASE x",
            "CREATE TABLE x.t (id INT PRIMARY KEY, v VARCHAR(100))",
            "INSERT INTO x.t SELECT seq, 'before' FROM x.seq_1_to_1000",
        ])
        .unwrap();
    let mut session = maker.conn().unwrap();
    for statement in [
        "XA START 'zombie'",
        "UPDATE x.t SET v = 'undecided' WHERE id <= 500",
        "DELETE FROM x.t WHERE id > 900",
        "XA END 'zombie'",
        "XA PREPARE 'zombie'",
    ] {
        session.query_drop(statement).unwrap();
    }
    drop(session);
    maker.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
    maker.stop().unwrap();
    for count in [0, 5] {
        let dir = tempfile::tempdir().unwrap();
        let datadir = dir.path().join("data");
        copy_datadir(maker.datadir(), &datadir).unwrap();
        let stage = Stage::around(Server::attach(kind, &datadir, with(count)).unwrap());
        let undo_files = |datadir: &Path| {
            let names = fs::read_dir(datadir).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().starts_with("undo0")).count()
        };
        assert_eq!(undo_files(&datadir), HAS as usize, "{count}: {}", stage.source.log());
        stage.source.exec("INSERT INTO x.t VALUES (5000, 'later')").unwrap();
        let backup = stage.back_up();
        let restored = stage.restore_recovered(&backup);
        assert_eq!(undo_files(restored.server.datadir()), HAS as usize, "{count}");
        for server in [&stage.source, &restored.server] {
            assert_eq!(prepared_branches(server), ["zombie"], "{count}");
            server.exec("XA COMMIT 'zombie'").unwrap();
        }
        let decided: u64 = restored.server.value("SELECT COUNT(*) FROM x.t WHERE v = 'undecided'").unwrap();
        assert_eq!(decided, 500);
        assert_equal_checksums(&stage.source, &restored.server).unwrap();
    }
}

/// A system tablespace that becomes shorter when the server starts: an incremental backup right after that is restored
/// as long as it is then, also onto a restored directory whose file is longer.
#[test]
fn mariadb_11_8_a_system_tablespace_that_shrinks_is_restored() {
    let options = ServerOptions::default()
        .init_arg("--innodb-data-file-path=ibdata1:12M:autoextend:autoshrink")
        .init_arg("--innodb-file-per-table=OFF");
    let source = Server::start(ServerKind::MariaDb118, options).unwrap();
    source
        .exec_all([
            "CREATE DATABASE s",
            "CREATE TABLE s.stays (id INT PRIMARY KEY, v VARCHAR(1000))",
            "INSERT INTO s.stays SELECT seq, REPEAT('a', 500) FROM s.seq_1_to_1000",
            "CREATE TABLE s.goes (id INT PRIMARY KEY, v VARCHAR(1000))",
            "INSERT INTO s.goes SELECT seq, REPEAT('b', 1000) FROM s.seq_1_to_20000",
            "DROP TABLE s.goes",
        ])
        .unwrap();
    let bytes = |server: &Server| fs::metadata(server.datadir().join("ibdata1")).unwrap().len();
    let long_bytes = bytes(&source);
    // Its undo is gone, too, when the server ends.
    source.exec("SET GLOBAL innodb_fast_shutdown = 0").unwrap();
    let mut stage = Stage::around(source);
    let first = stage.back_up();
    stage.source.restart().unwrap();
    let short_bytes = bytes(&stage.source);
    assert!(short_bytes < long_bytes, "{short_bytes} of {long_bytes} bytes: {}", stage.source.log());
    let second = stage.back_up();
    assert_eq!(second.run.base, Some(first.run.backup));
    stage.source.exec("UPDATE s.stays SET v = REPEAT('c', 900) WHERE id % 3 = 0").unwrap();
    let restored = stage.restore_recovered(&first);
    stage.catch_up(&first, &restored);
    let target_dir = restored.server.datadir().to_owned();
    drop(restored);
    let (fresh, report) = stage.restore(second.run.backup);
    assert_eq!(report.prepared.unwrap().lsn, second.position.lsn);
    stage.catch_up(&second, &fresh);
    // As the first backup has it.
    let file = fs::File::options().write(true).open(target_dir.join("ibdata1")).unwrap();
    file.set_len(long_bytes).unwrap();
    let onto = RestoreOptions { target_dir, delta: true, ..stage.restore_options(second.run.backup) };
    let report =
        restore::run(&stage.repo, &log(), RunNo(second.run.backup), &onto, &Told, &Cancel::default())
            .unwrap();
    assert_eq!(report.prepared.unwrap().lsn, second.position.lsn);
    let needed = report.server_options.iter().fold(stage.server_options.clone(), ServerOptions::arg);
    let server = Server::attach(stage.source.kind(), onto.target_dir, needed).unwrap();
    assert!(bytes(&server) < long_bytes);
    stage.catch_up(&second, &Restored { server });
}

/// Encrypted redo, too, names the files of a schema whose directory is a link by their places in the data directory:
/// they come home, or go wherever they are mapped to, and the backup warns of nothing.
#[test]
fn mariadb_10_11_a_linked_schema_with_encrypted_redo_comes_home_or_goes_anywhere() {
    let (kind, dir) = (ServerKind::MariaDb1011, tempfile::tempdir().unwrap());
    let Encryption { server_options, prepare_options, .. } =
        Encryption::new(kind, dir.path(), ServerOptions::default()).unwrap();
    let mut source = Server::start(kind, server_options.clone()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE linked",
            "CREATE TABLE linked.t (i INT PRIMARY KEY, v VARCHAR(100))",
            "INSERT INTO linked.t SELECT seq, REPEAT('a', 50) FROM linked.seq_1_to_1000",
        ])
        .unwrap();
    source.stop().unwrap();
    let (schema, there) = (source.datadir().join("linked"), source.home().join("elsewhere/linked"));
    fs::create_dir(there.parent().unwrap()).unwrap();
    fs::rename(&schema, &there).unwrap();
    symlink(&there, &schema).unwrap();
    source.run().unwrap();
    source
        .exec_all([
            "INSERT INTO linked.t SELECT seq, REPEAT('b', 50) FROM linked.seq_2000_to_3000",
            "RENAME TABLE linked.t TO linked.r",
        ])
        .unwrap();
    let repo = new_repo(&dir.path().join("repo"));
    let mut stage = Stage { server_options, prepare_options, ..Stage::with_repo(source, repo, dir) };
    let heard = Warnings::default();
    let backup = backup::run(&stage.repo, &stage.options(), &heard, &Cancel::default()).unwrap();
    assert!(!heard.heard().iter().any(|said| said.contains("--map")), "{:?}", heard.heard());
    let restored = stage.restore_recovered(&backup);
    assert!(fs::symlink_metadata(restored.server.datadir().join("linked/r.ibd")).unwrap().is_file());
    stage.catch_up(&backup, &restored);
    drop(restored);

    stage.source.stop().unwrap();
    let gone = there.with_file_name("gone");
    fs::rename(&there, &gone).unwrap();
    for (name, to) in [("new", stage.dir.path().join("new")), ("same", there.clone())] {
        let options = RestoreOptions {
            target_dir: stage.dir.path().join(format!("mapped-{name}")),
            maps: vec![(there.clone(), to.clone())],
            ..stage.restore_options(backup.run.backup)
        };
        restore::run(&stage.repo, &log(), RunNo(backup.run.backup), &options, &Told, &Cancel::default())
            .unwrap();
        let server = Server::attach(kind, &options.target_dir, stage.server_options.clone()).unwrap();
        assert!(open_files(&server).contains(&to.join("r.ibd")), "{name}");
        check_tables(&server).unwrap();
        assert_eq!(server.value::<u64>("SELECT COUNT(*) FROM linked.r").unwrap(), 2001, "{name}");
    }
}

/// A table that was dropped is not purged yet, and another one of its name is elsewhere: outside of the data directory,
/// where the first was inside, or the other way round. Both come home to one place in a restore, and the file there is
/// that of the table that exists.
fn dropped_here_and_made_again_there(kind: ServerKind) {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut options = ServerOptions::default();
    if !kind.is_mariadb() {
        options = options.arg(format!("--innodb-directories={}", outside.display()));
    }
    let stage = Stage::around(Server::start(kind, options).unwrap());
    stage.source.exec("CREATE DATABASE again").unwrap();
    let there = format!("DATA DIRECTORY='{}'", outside.display());
    let ways = [("home", "", there.as_str()), ("away", there.as_str(), ""), ("stay", &there, &there)];
    for (name, first, _) in ways {
        stage
            .source
            .exec_all([
                format!("CREATE TABLE again.{name} (i INT PRIMARY KEY, v CHAR(200)) ENGINE=InnoDB {first}"),
                format!("INSERT INTO again.{name} VALUES (1, 'x'), (2, 'y')"),
            ])
            .unwrap();
    }
    // Nothing is purged as long as somebody may want to read it.
    let mut reader = stage.source.conn().unwrap();
    reader.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT").unwrap();
    for (name, _, second) in ways {
        stage
            .source
            .exec_all([
                format!("TRUNCATE TABLE again.{name}"),
                format!("ALTER TABLE again.{name} ADD KEY (v)"),
                format!("DROP TABLE again.{name}"),
                format!("CREATE TABLE again.{name} (i INT PRIMARY KEY) ENGINE=InnoDB {second}"),
                format!("INSERT INTO again.{name} VALUES (7)"),
            ])
            .unwrap();
    }
    let backup = stage.back_up();
    drop(reader);
    let restored = stage.restore_recovered(&backup);
    for (name, ..) in ways {
        let rows: Vec<u32> = restored.server.query(format!("SELECT i FROM again.{name}")).unwrap();
        assert_eq!(rows, [7], "{name}");
    }
    stage.catch_up(&backup, &restored);
}

#[test]
fn mariadb_10_11_dropped_here_and_made_again_there() {
    dropped_here_and_made_again_there(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_dropped_here_and_made_again_there() {
    dropped_here_and_made_again_there(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_dropped_here_and_made_again_there() {
    dropped_here_and_made_again_there(ServerKind::MySql97);
}
