//! Captured servers that are stored, restored, and recovered by the server's own program: the result must be
//! a replica at the recorded position, with nothing outside of its directory.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::Arc,
    thread::sleep,
    time::Duration,
};

use holdfast_core::{
    Cancel, ErrorKind, Event, Listener, Result,
    backup::{self, BackupOptions, BackupReport},
    restore::{self, RestoreOptions, RestoreReport},
};
use holdfast_formats::MariaDbGtidPos;
use holdfast_repo::{Kind, LogName, Protection, Repo, RunNo, store::mem::MemStore};
use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    checksum::assert_equal_checksums,
    data::{misc, shop},
    load::{WriteLoad, writes::check_ledger},
    replica::{self, CATCH_UP_MAX, Position},
};

use mysql::prelude::Queryable;

use crate::listeners::Told;

mod killed;
mod nested;
mod owner;
mod rebuilt;
mod redo;
mod replay;
mod room;
mod settings;

fn new_repo() -> Arc<Repo> {
    Arc::new(Repo::init(Arc::new(MemStore::new()), &Protection::None).unwrap())
}

fn log() -> LogName {
    LogName { source: "db1".parse().unwrap(), kind: Kind::Physical }
}

struct StopAtPrepare(Cancel);

impl Listener for StopAtPrepare {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name: "prepare" }) {
            self.0.cancel();
        }
    }
}

fn back_up(repo: &Arc<Repo>, source: &Server, dir: &Path) -> BackupReport {
    let options = BackupOptions {
        name: Some("db1".parse().unwrap()),
        spool_dir: Some(dir.to_owned()),
        ..crate::server::backup_options(crate::server::options(source))
    };
    backup::run(repo, &options, &Told, &Cancel::default()).unwrap()
}

fn options(kind: ServerKind, target: PathBuf) -> RestoreOptions {
    RestoreOptions { server_binary: Some(kind.server_program().unwrap()), ..RestoreOptions::new(target) }
}

fn restore(repo: &Arc<Repo>, backup: &BackupReport, options: &RestoreOptions) -> Result<RestoreReport> {
    restore::run(repo, &log(), RunNo(backup.run.backup), options, &Told, &Cancel::default())
}

/// Checks that a server on `target` catches up with the source, holds the same rows, and has none of the
/// source's files open.
fn assert_follows(source: &Server, target: &Path, backup: &BackupReport, prepared: bool) {
    drop(assert_follows_with(source, target, backup, prepared, &ServerOptions::default()));
}

/// The same; returns the running server.
fn assert_follows_with(
    source: &Server,
    target: &Path,
    backup: &BackupReport,
    prepared: bool,
    options: &ServerOptions,
) -> Server {
    let copy = Server::attach(source.kind(), target, options.clone()).unwrap();
    check_ledger(&copy).unwrap();
    let gtid = backup.position.gtid.clone().unwrap();
    let position = match (source.kind().is_mariadb(), prepared) {
        (true, _) => Position::Gtid(gtid),
        (false, true) => Position::Held,
        (false, false) => {
            let purged = format!("SET GLOBAL gtid_purged = '{gtid}'");
            copy.exec_all(["RESET BINARY LOGS AND GTIDS".to_owned(), purged]).unwrap();
            Position::Held
        }
    };
    replica::catch_up(source, &copy, &position, CATCH_UP_MAX).unwrap();
    let tables = assert_equal_checksums(source, &copy).unwrap();
    assert!(tables > 20, "{tables}");
    let open = open_files(&copy);
    assert!(!open.iter().any(|path| path.starts_with(source.outside())), "{open:?}");
    copy
}

/// As a primary, a restored MariaDB continues with numbers far above everything that its source can have used
/// since: a replica of the source, with transactions that the restored server lacks, is refused, no matter
/// how many follow.
#[test]
fn mariadb_a_restored_server_uses_no_number_again() {
    let source = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    source
        .exec_all(["CREATE DATABASE c", "CREATE TABLE c.t (i INT PRIMARY KEY)", "INSERT INTO c.t VALUES (1)"])
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());
    let target = dir.path().join("target");
    let report = restore(&repo, &backup, &options(source.kind(), target.clone())).unwrap();
    let copy = Server::attach(source.kind(), &target, ServerOptions::default()).unwrap();
    copy.exec_all([report.continue_statement.unwrap(), "INSERT INTO c.t VALUES (2)".to_owned()]).unwrap();
    let last = |server: &Server| -> MariaDbGtidPos {
        server.value::<String>("SELECT @@gtid_binlog_pos").unwrap().parse().unwrap()
    };
    let sequence = |server: &Server| last(server).iter().map(|gtid| gtid.sequence).collect::<Vec<_>>();
    let (before, after) = (sequence(&source), sequence(&copy));
    assert_eq!(before.len(), 1);
    assert_eq!(after, [before[0] + 1_000_000_001]);
    let replica = Server::start(source.kind(), ServerOptions::default()).unwrap();
    // Its position is that of the source, a few transactions after the backup.
    let place = format!("0-{}-{}", source.value::<u32>("SELECT @@server_id").unwrap(), before[0] + 3);
    let error = replica::catch_up(&copy, &replica, &Position::Gtid(place), CATCH_UP_MAX).unwrap_err();
    assert!(format!("{error:#}").contains("1236"), "{error:#}");
}

fn restored_server_equals_its_source(kind: ServerKind, seed: u64) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 12, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&source, misc::MiscOptions::default()).unwrap();
    let load = WriteLoad::start(&source, 2, seed).unwrap();
    sleep(Duration::from_secs(1));
    let dir = tempfile::tempdir().unwrap();
    let repo = new_repo();
    let first = back_up(&repo, &source, dir.path());
    let later = back_up(&repo, &source, dir.path());
    load.stop().unwrap();

    // The source keeps running, with files outside: nothing in the copy may touch them.
    let outside = || {
        let mut sizes: Vec<_> = walk(&source.outside());
        sizes.sort();
        sizes
    };
    let before = outside();
    assert!(!before.is_empty());
    let target = dir.path().join("prepared");
    let report = restore(&repo, &first, &options(kind, target.clone())).unwrap();
    let prepared = report.prepared.as_ref().unwrap();
    assert_eq!(prepared.lsn, first.position.lsn);
    assert_eq!(outside(), before);
    assert_follows(&source, &target, &first, true);

    // Restore another backup onto a directory that a server has used since. It may be the home of a user.
    fs::create_dir(target.join(".ssh")).unwrap();
    fs::write(target.join(".ssh/key"), "mine").unwrap();
    // Only root may.
    let _ = chown(target.join(".ssh"), Some(4711), None);
    let owner = || fs::metadata(target.join(".ssh")).unwrap().uid();
    let user = owner();
    let report =
        restore(&repo, &later, &RestoreOptions { delta: true, ..options(kind, target.clone()) }).unwrap();
    assert!(report.written.bytes_kept > report.written.bytes_written, "{:?}", report.written);
    let again =
        restore(&repo, &first, &RestoreOptions { delta: true, ..options(kind, target.clone()) }).unwrap();
    assert!(again.prepared.is_some());
    assert_eq!(fs::read_to_string(target.join(".ssh/key")).unwrap(), "mine");
    assert_eq!(owner(), user);
    assert_follows(&source, &target, &first, true);

    // Leave recovery to the server.
    let target = dir.path().join("unprepared");
    let report =
        restore(&repo, &first, &RestoreOptions { prepare: false, ..options(kind, target.clone()) }).unwrap();
    assert!(report.prepared.is_none());
    assert_follows(&source, &target, &first, false);
    assert_eq!(outside(), before);

    // Files that were outside are outside again, elsewhere.
    let target = dir.path().join("mapped");
    let elsewhere = dir.path().join("elsewhere");
    let maps = vec![(source.outside(), elsewhere.clone())];
    let mapped = RestoreOptions { maps, ..options(kind, target.clone()) };
    let report = restore(&repo, &first, &mapped).unwrap();
    assert_eq!(outside(), before);
    assert!(!walk(&elsewhere).is_empty());
    let mut server_options = ServerOptions::default();
    server_options.extra.extend(report.server_options.iter().filter(|o| o.contains("directories")).cloned());
    let copy = assert_follows_with(&source, &target, &first, true, &server_options);
    let open = open_files(&copy);
    assert!(open.iter().any(|path| path.starts_with(&elsewhere)), "{open:?}");

    // They belong to that directory, and are replaced with it; but with no other.
    drop(copy);
    let again = RestoreOptions { delta: true, ..mapped };
    let other = RestoreOptions { target_dir: dir.path().join("other"), ..again.clone() };
    let error = restore(&repo, &later, &other).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    restore(&repo, &later, &again).unwrap();
    assert_follows_with(&source, &target, &later, true, &server_options);
}

/// The system tablespace is replaced by something that no server accepts.
fn assert_blocked(target: &Path) {
    assert!(fs::read_to_string(target.join("ibdata1")).unwrap().starts_with("holdfast: "));
}

/// The files that a server has open.
pub(crate) fn open_files(server: &Server) -> Vec<PathBuf> {
    let fds = fs::read_dir(format!("/proc/{}/fd", server.pid().unwrap())).unwrap();
    fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).collect()
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn mariadb_10_11_restored_equals_its_source() {
    restored_server_equals_its_source(ServerKind::MariaDb1011, 21);
}

#[test]
fn mariadb_11_8_restored_equals_its_source() {
    restored_server_equals_its_source(ServerKind::MariaDb118, 22);
}

#[test]
fn mysql_9_7_restored_equals_its_source() {
    restored_server_equals_its_source(ServerKind::MySql97, 23);
}

/// Encrypted tables: the tool has no key, but the recovering server needs it.
#[test]
fn encrypted_mariadb_is_restored_by_a_server_that_has_the_keys() {
    let kind = ServerKind::MariaDb1011;
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::write(&keys, format!("1;{}\n", "0123456789abcdef".repeat(4))).unwrap();
    let key_options = [
        "--plugin-load-add=file_key_management".to_owned(),
        format!("--file-key-management-filename={}", keys.display()),
    ];
    let mut server_options = ServerOptions::default().init_arg("--innodb-encrypt-tables=ON");
    for option in &key_options {
        server_options = server_options.init_arg(option);
    }
    let source = Server::start(kind, server_options.clone()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 10, ..shop::ShopOptions::default() }).unwrap();
    let load = WriteLoad::start(&source, 2, 31).unwrap();
    sleep(Duration::from_secs(1));
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());
    load.stop().unwrap();

    let target = dir.path().join("data");
    let without_keys = options(kind, target.clone());
    let error = restore(&repo, &backup, &without_keys).unwrap_err();
    assert!(error.hint().unwrap().contains("--prepare-option"), "{error:?}");
    assert_blocked(&target);
    let with_keys = RestoreOptions { prepare_options: key_options.to_vec(), ..without_keys };

    // A restore interrupted while the server recovers leaves nothing that starts, and
    // continues when it is run again.
    let stop = StopAtPrepare(Cancel::default());
    let error =
        restore::run(&repo, &log(), RunNo(backup.run.backup), &with_keys, &stop, &stop.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_blocked(&target);
    let report = restore(&repo, &backup, &with_keys).unwrap();
    assert_eq!(report.prepared.unwrap().lsn, backup.position.lsn);
    let copy = Server::attach(kind, &target, server_options).unwrap();
    check_ledger(&copy).unwrap();
    let position = Position::Gtid(backup.position.gtid.unwrap());
    replica::catch_up(&source, &copy, &position, CATCH_UP_MAX).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

/// General and undo tablespaces with equal names in several directories, including the data
/// directory, are all restored.
#[test]
fn mysql_tablespaces_of_equal_names_come_home_side_by_side() {
    let kind = ServerKind::MySql97;
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let outside = source.outside();
    for dir in ["a", "b", "u"] {
        fs::create_dir(outside.join(dir)).unwrap();
    }
    source.exec("CREATE DATABASE e").unwrap();
    let at = |dir: &str, name: &str| format!("{}/{dir}/{name}", outside.display());
    for (n, file) in [at("a", "ts.ibd"), at("b", "ts.ibd"), "ts.ibd".to_owned()].iter().enumerate() {
        source
            .exec_all([
                format!("CREATE TABLESPACE ts{n} ADD DATAFILE '{file}'"),
                format!("CREATE TABLE e.t{n} (i INT PRIMARY KEY, v VARCHAR(100)) TABLESPACE ts{n}"),
                format!("INSERT INTO e.t{n} VALUES (1, 'in {n}'), (2, 'too')"),
            ])
            .unwrap();
    }
    for (n, file) in [at("a", "u.ibu"), at("b", "u.ibu"), "u.ibu".to_owned()].iter().enumerate() {
        source.exec(format!("CREATE UNDO TABLESPACE u{n} ADD DATAFILE '{file}'")).unwrap();
    }
    let mut open = source.conn().unwrap();
    open.query_drop("BEGIN").unwrap();
    open.query_drop("UPDATE e.t0 SET v = 'never committed'").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());
    open.query_drop("ROLLBACK").unwrap();
    for prepare in [true, false] {
        let target = dir.path().join(format!("prepared {prepare}"));
        let report =
            restore(&repo, &backup, &RestoreOptions { prepare, ..options(kind, target.clone()) }).unwrap();
        assert_eq!(report.prepared.is_some(), prepare);
        let mut copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
        for restarted in [false, true] {
            let tables = assert_equal_checksums(&source, &copy).unwrap();
            assert!(tables >= 3, "{tables}");
            let open = open_files(&copy);
            assert!(!open.iter().any(|path| path.starts_with(&outside)), "{open:?}");
            let names: u64 = copy
                .value("SELECT COUNT(*) FROM information_schema.INNODB_TABLESPACES WHERE NAME IN ('ts0','ts1','ts2','u0','u1','u2')")
                .unwrap();
            assert_eq!(names, 6);
            if !restarted {
                copy.exec_all(["BEGIN", "UPDATE e.t1 SET v = CONCAT(v, '!')", "ROLLBACK"]).unwrap();
                copy.restart().unwrap();
            }
        }
    }
}

/// Undo tablespaces beside the data directory, and another with an equal name elsewhere.
#[test]
fn mysql_undo_tablespaces_of_equal_names_in_the_undo_directory_and_elsewhere_come_home() {
    let kind = ServerKind::MySql97;
    let dir = tempfile::tempdir().unwrap();
    let undo = dir.path().join("undo");
    fs::create_dir(&undo).unwrap();
    let source = Server::start(
        kind,
        ServerOptions::default().init_arg(format!("--innodb-undo-directory={}", undo.display())),
    )
    .unwrap();
    let elsewhere = source.outside();
    source
        .exec_all([
            "CREATE UNDO TABLESPACE u0 ADD DATAFILE 'u.ibu'".to_owned(),
            format!("CREATE UNDO TABLESPACE u1 ADD DATAFILE '{}/u.ibu'", elsewhere.display()),
            "CREATE DATABASE e".to_owned(),
            "CREATE TABLE e.t (i INT PRIMARY KEY)".to_owned(),
            "INSERT INTO e.t VALUES (1), (2)".to_owned(),
        ])
        .unwrap();
    assert!(undo.join("u.ibu").exists() && undo.join("undo_001").exists());
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());
    let target = dir.path().join("target");
    restore(&repo, &backup, &options(kind, target.clone())).unwrap();
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
    copy.exec_all(["SET GLOBAL innodb_fast_shutdown = 0", "UPDATE e.t SET i = i + 10"]).unwrap();
    let open = open_files(&copy);
    let away = |path: &PathBuf| path.starts_with(&elsewhere) || path.starts_with(&undo);
    assert!(!open.iter().any(away), "{open:?}");
}

/// The recovering server loads no library that the backup names, so none is missed on a host that lacks it.
fn plugins_are_left_alone(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let (install, libraries): (&[&str], &[&str]) = match kind.is_mariadb() {
        true => (&["INSTALL SONAME 'simple_password_check'"], &["simple_password_check.so"]),
        false => (
            &[
                "INSTALL PLUGIN mysql_no_login SONAME 'mysql_no_login.so'",
                "INSTALL COMPONENT 'file://component_query_attributes'",
            ],
            &["mysql_no_login.so", "component_query_attributes.so"],
        ),
    };
    source.exec_all(install).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let repo = new_repo();
    let backup = back_up(&repo, &source, dir.path());
    // The dynamic loader reports which libraries are opened.
    let (program, loaded) = (dir.path().join("server"), dir.path().join("loaded"));
    let real = kind.server_program().unwrap();
    let export = format!("export LD_DEBUG=files LD_DEBUG_OUTPUT='{}'", loaded.display());
    fs::write(&program, format!("#!/bin/sh\n{export}\nexec '{}' \"$@\"\n", real.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let target = dir.path().join("target");
    let options = RestoreOptions { server_binary: Some(program), ..RestoreOptions::new(&target) };
    assert!(restore(&repo, &backup, &options).unwrap().prepared.is_some());
    let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let told: String = files
        .filter(|path| path.to_str().unwrap().contains("/loaded."))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert!(told.contains("libc.so.6"), "the loader has told nothing");
    // A missing library is looked up, but not opened.
    for library in libraries {
        assert!(
            !told.lines().any(|line| line.contains(library) && line.contains("generating link map")),
            "{library}"
        );
    }
    // The user's own server has it again.
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
}

#[test]
fn plugins_of_mariadb_are_left_alone() {
    plugins_are_left_alone(ServerKind::MariaDb1011);
}

#[test]
fn plugins_of_mysql_are_left_alone() {
    plugins_are_left_alone(ServerKind::MySql97);
}
