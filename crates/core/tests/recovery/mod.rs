//! Recovery to a transaction and to a time from the archive alone: what is refused, and what must not get in
//! the way. `holdfast_testkit::pitr` proves that random moments are recovered exactly.

use std::{
    path::Path,
    sync::Arc,
    thread::{self, sleep},
    time::Duration,
};

use holdfast_core::{
    Cancel, ErrorKind, Result,
    backup::{self, BackupOptions},
    position::Precision,
    recovery::{self, Until},
    restore::{RestoreOptions, RestoreReport},
};
use holdfast_repo::Repo;
use holdfast_testkit::{
    Server, ServerKind, ServerOptions, encryption::mariadb_key_options, keyring::with_keyring, rng::Rng,
};
use jiff::Timestamp;
use mysql::prelude::Queryable;

use crate::{
    binlog::{Counter, Stage, archived_files, files_of, source, wait_archived},
    listeners::Told,
};

mod again;
mod astray;
mod changed;
mod excluded;
mod lost;

/// GTIDs in the order of the server's binlogs, as read by the server.
fn order_of_commits(server: &Server) -> Vec<String> {
    let mut order = Vec::new();
    for row in server.query::<mysql::Row>("SHOW BINARY LOGS").unwrap() {
        let file: String = row.get(0).unwrap();
        let events: Vec<mysql::Row> = server.query(format!("SHOW BINLOG EVENTS IN '{file}'")).unwrap();
        for event in events {
            let (kind, info): (String, String) = (event.get(2).unwrap(), event.get(5).unwrap());
            match &*kind {
                "Gtid" if server.kind().is_mariadb() => {
                    // BEGIN GTID 0-1-5 cid=7
                    let mut words = info.split_whitespace().skip_while(|word| *word != "GTID");
                    order.push(words.nth(1).unwrap().to_owned());
                }
                "Gtid" => order.push(info.split('\'').nth(1).unwrap().to_owned()),
                _ => {}
            }
        }
    }
    order
}

fn recover(repo: &Arc<Repo>, kind: ServerKind, target: &Path, until: Until) -> Result<RestoreReport> {
    let recovery = recovery::choose(repo, &source(), None, until)?;
    let options =
        RestoreOptions { server_binary: Some(kind.server_program().unwrap()), ..RestoreOptions::new(target) };
    recovery.run(repo, &options, &Told, &Cancel::default())
}

fn back_up(stage: &Stage, dir: &Path) {
    back_up_of(&stage.server, stage, dir);
}

fn back_up_of(server: &Server, stage: &Stage, dir: &Path) {
    let options = BackupOptions {
        name: Some(source()),
        spool_dir: Some(dir.to_owned()),
        new_identity: !std::ptr::eq(server, &stage.server),
        ..crate::server::backup_options(crate::server::options(server))
    };
    backup::run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
}

/// Pauses so that no transaction is committed around the returned time; MariaDB's binlog has a
/// resolution of one second.
pub(crate) fn pause() -> Timestamp {
    sleep(Duration::from_millis(1_100));
    let now = Timestamp::now();
    sleep(Duration::from_millis(1_100));
    now
}

/// A missing moment is refused before anything is written, and the end that the archive reports is the last
/// recoverable time. MariaDB's last second may be incomplete.
fn what_is_not_there_is_refused(kind: ServerKind) {
    let stage = Stage::with(kind, ServerOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let counter = Counter::start(&stage.server);
    stage.once();
    back_up(&stage, dir.path());
    // The last transaction may be in the same second as the end of the backup.
    sleep(Duration::from_millis(2_200));
    counter.stop();
    stage.once();
    let archive = stage.archive();
    let chain = archive.chains().unwrap().pop().unwrap();
    let last = Timestamp::from_microsecond(i64::try_from(chain.last_at.unwrap()).unwrap()).unwrap();
    let until = i64::try_from(archive.recoverable_until(&chain).unwrap()).unwrap();
    let until = Timestamp::from_microsecond(until).unwrap();
    let choose = |time| recovery::choose(&stage.repo, &source(), None, Until::Time(time));
    choose(until).unwrap();
    let (before_last, beyond, why) = match kind.is_mariadb() {
        true => (1_000, last, "ends within the second"),
        false => (0, last + jiff::SignedDuration::from_micros(1), "later ones are missing"),
    };
    assert_eq!(until, last - jiff::SignedDuration::from_millis(before_last));
    let error = choose(beyond).err().unwrap();
    assert!(error.to_string().contains(why), "{error}");

    let target = dir.path().join("never");
    let later = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let error = recover(&stage.repo, kind, &target, Until::Time(later)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("later ones are missing"), "{error}");
    let nowhere = match kind.is_mariadb() {
        true => "0-4711-99999999",
        false => "3e11fa47-71ca-11e1-9e33-c80aa9429569:1",
    };
    let error = recover(&stage.repo, kind, &target, Until::Gtid(nowhere.parse().unwrap())).unwrap_err();
    assert!(error.to_string().contains("does not contain transaction"), "{error}");
    let error = recover(&stage.repo, kind, &target, Until::Time(Timestamp::UNIX_EPOCH)).unwrap_err();
    assert!(error.to_string().contains("was taken after"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(!target.exists());
}

#[test]
fn mariadb_10_11_refuses_what_is_not_there() {
    what_is_not_there_is_refused(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_refuses_what_is_not_there() {
    what_is_not_there_is_refused(ServerKind::MySql97);
}

/// A server that encrypts its binlogs sends them decrypted: the archive contains the text that the files
/// hide. It continues across restarts and files, and a recovery needs no key.
fn encrypted_binlogs(kind: ServerKind) {
    const MARK: &str = "what the binlog hides";
    let dir = tempfile::tempdir().unwrap();
    let options = match kind.is_mariadb() {
        true => mariadb_key_options(dir.path())
            .unwrap()
            .into_iter()
            .chain(["--encrypt-binlog=ON".to_owned()])
            .fold(ServerOptions::default(), ServerOptions::init_arg),
        false => {
            let options = ServerOptions::default().arg("--binlog-encryption=ON");
            let component = dir.path().join("component");
            std::fs::create_dir(&component).unwrap();
            with_keyring(options, &component, &dir.path().join("keyring")).unwrap()
        }
    };
    let mut stage = Stage::with(kind, options);
    stage.server.exec_all(["CREATE DATABASE e", "CREATE TABLE e.t (id SERIAL, v VARCHAR(99))"]).unwrap();
    let write = |server: &Server| {
        for _ in 0..3 {
            server.exec(format!("INSERT INTO e.t (v) VALUES ('{MARK}')")).unwrap();
        }
    };
    write(&stage.server);
    let archiver = stage.start();
    wait_archived(&stage);
    back_up(&stage, dir.path());
    write(&stage.server);
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    write(&stage.server);
    wait_archived(&stage);
    archiver.stop();
    stage.server.restart().unwrap();
    write(&stage.server);
    let report = stage.once();
    assert!(report.gaps.is_empty(), "{report:?}");

    let has = |bytes: &[u8]| bytes.windows(MARK.len()).filter(|window| *window == MARK.as_bytes()).count();
    let files = files_of(&stage.server);
    assert!(files.len() >= 3 && files.iter().all(|(_, bytes)| has(bytes) == 0), "{kind}: not encrypted");
    let archived: usize = archived_files(&stage.archive()).iter().map(|(_, _, bytes)| has(bytes)).sum();
    // On MariaDB, the statements of row events are included, too.
    assert!(archived == 12 || archived == 24, "{archived}");

    let target = dir.path().join("target");
    recover(&stage.repo, kind, &target, Until::End).unwrap();
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    let rows =
        |server: &Server| -> Vec<(u64, String)> { server.query("SELECT * FROM e.t ORDER BY id").unwrap() };
    assert_eq!((rows(&copy), rows(&copy).len()), (rows(&stage.server), 12));
}

#[test]
fn mariadb_11_8_encrypted_binlogs() {
    encrypted_binlogs(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_encrypted_binlogs() {
    encrypted_binlogs(ServerKind::MySql97);
}

/// A backup with encrypted redo ends after its position, and its exact place in the binlog is unknown: GTIDs
/// determine what follows.
#[test]
fn mysql_9_7_encrypted_redo() {
    let dir = tempfile::tempdir().unwrap();
    let component = dir.path().join("component");
    std::fs::create_dir(&component).unwrap();
    let options = ServerOptions::default().arg("--innodb-redo-log-encrypt=ON");
    let options = with_keyring(options, &component, &dir.path().join("keyring")).unwrap();
    let stage = Stage::with(ServerKind::MySql97, options.clone());
    stage.once();
    let counter = Counter::start(&stage.server);
    sleep(Duration::from_millis(500));
    back_up(&stage, dir.path());
    sleep(Duration::from_millis(500));
    counter.stop();
    stage.once();
    let target = dir.path().join("target");
    let recovery = recovery::choose(&stage.repo, &source(), None, Until::End).unwrap();
    let restore_options =
        RestoreOptions { server_binary: Some(component.join("mysqld")), ..RestoreOptions::new(&target) };
    let report = recovery.run(&stage.repo, &restore_options, &Told, &Cancel::default()).unwrap();
    assert_eq!(report.position.as_ref().unwrap().precision, Precision::AtRestore, "{report:?}");
    let copy = Server::attach(ServerKind::MySql97, &target, options).unwrap();
    let rows = |server: &Server| -> Vec<(u64, Vec<u8>)> {
        server.query("SELECT id, v FROM c.t ORDER BY id").unwrap()
    };
    assert_eq!(rows(&copy), rows(&stage.server), "{report:?}");
}

/// Settings that no binlog has decide what is replayed: which words a full-text index holds, and which character
/// set an old name means.
fn settings_that_no_binlog_has(kind: ServerKind) {
    let mut options = ServerOptions::default()
        .arg("--innodb-ft-min-token-size=1")
        .arg("--ft-min-word-len=1")
        .arg("--innodb-ft-enable-stopword=OFF");
    if kind.is_mariadb() {
        options = options.arg("--old-mode=").arg("--innodb-compression-default=ON");
    }
    let has_vectors = kind == ServerKind::MariaDb118;
    if has_vectors {
        options = options.arg("--mhnsw-default-distance=cosine").arg("--mhnsw-default-m=10");
    }
    let stage = Stage::with(kind, options.clone());
    let dir = tempfile::tempdir().unwrap();
    stage.server.exec("CREATE DATABASE a").unwrap();
    for (table, engine) in [("i", "InnoDB"), ("m", "MyISAM")] {
        let columns = "id INT PRIMARY KEY, v TEXT, FULLTEXT (v)";
        stage.server.exec(format!("CREATE TABLE a.{table} ({columns}) ENGINE={engine}")).unwrap();
        stage.server.exec(format!("INSERT INTO a.{table} VALUES (1, 'ab the c')")).unwrap();
    }
    stage.once();
    back_up(&stage, dir.path());
    let later = ["i", "m"].map(|table| format!("INSERT INTO a.{table} VALUES (2, 'ab the c')"));
    stage.server.exec_all(later).unwrap();
    stage.server.exec("CREATE TABLE a.u (v TEXT CHARACTER SET utf8)").unwrap();
    let mut made = vec!["a.u"];
    if has_vectors {
        stage.server.exec("CREATE TABLE a.w (v VECTOR(3) NOT NULL, VECTOR INDEX (v))").unwrap();
        made.push("a.w");
    }
    stage.once();
    let target = dir.path().join("target");
    recover(&stage.repo, kind, &target, Until::End).unwrap();
    let copy = Server::attach(kind, &target, options).unwrap();
    for query in [
        "SELECT COUNT(*) FROM a.i WHERE MATCH (v) AGAINST ('ab' IN BOOLEAN MODE)",
        "SELECT COUNT(*) FROM a.i WHERE MATCH (v) AGAINST ('the' IN BOOLEAN MODE)",
        "SELECT COUNT(*) FROM a.i WHERE MATCH (v) AGAINST ('c' IN BOOLEAN MODE)",
        "SELECT COUNT(*) FROM a.m WHERE MATCH (v) AGAINST ('c' IN BOOLEAN MODE)",
        "SELECT character_set_name FROM information_schema.columns WHERE table_schema = 'a' AND table_name = 'u'",
    ] {
        let of = |server: &Server| server.value::<String>(query).unwrap();
        assert_eq!(of(&copy), of(&stage.server), "{query}");
    }
    for table in made {
        let of = |server: &Server| -> Vec<(String, String)> {
            server.query(format!("SHOW CREATE TABLE {table}")).unwrap()
        };
        assert_eq!(of(&copy), of(&stage.server));
    }
    let found = "SELECT COUNT(*) FROM a.i WHERE MATCH (v) AGAINST ('the' IN BOOLEAN MODE)";
    assert_eq!(copy.value::<u64>(found).unwrap(), 2);
}

#[test]
fn mariadb_10_11_settings_that_no_binlog_has() {
    settings_that_no_binlog_has(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_settings_that_no_binlog_has() {
    settings_that_no_binlog_has(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_settings_that_no_binlog_has() {
    settings_that_no_binlog_has(ServerKind::MySql97);
}
