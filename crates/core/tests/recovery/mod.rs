//! Recovery to a transaction and to a time, from the archive alone. The judge is what each client knows of its own
//! commits, and the order in which the server itself says that they were committed.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, sleep},
    time::Duration,
};

use holdfast_core::{
    Cancel, ErrorKind, Result,
    backup::{self, BackupOptions},
    physical::Precision,
    recovery::{self, Until},
    restore::{RestoreOptions, RestoreReport},
};
use holdfast_repo::Repo;
use holdfast_testkit::{Server, ServerKind, ServerOptions, keyring::with_keyring, rng::Rng};
use jiff::Timestamp;
use mysql::prelude::Queryable;

use crate::{
    binlog::{Stage, archived_files, files_of, source, wait_archived},
    capture::Told,
};

mod astray;
mod lost;

/// Number of targets: 50 for the long form.
const TARGETS: &str = "HOLDFAST_PITR";
const TARGETS_DEFAULT: usize = 3;
const WRITERS: u32 = 3;
const MYSQL_UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa942956";

/// Rows by (writer, number): what a table holds.
type Rows = Vec<(u32, u32)>;

/// Clients that write a row in each transaction and note its GTID.
struct Writers {
    ends: Arc<AtomicBool>,
    noted: Arc<Mutex<HashMap<String, (u32, u32)>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Writers {
    fn start(server: &Server, first: u32) -> Writers {
        let ends = Arc::new(AtomicBool::new(false));
        let noted = Arc::new(Mutex::new(HashMap::new()));
        let threads = (first..first + WRITERS)
            .map(|writer| {
                let mut conn = server.conn().unwrap();
                let (ends, noted, is_mariadb) =
                    (Arc::clone(&ends), Arc::clone(&noted), server.kind().is_mariadb());
                thread::spawn(move || {
                    if is_mariadb {
                        // As if it had come from other servers, with the numbers that most servers have.
                        conn.query_drop(format!("SET SESSION server_id = {}", writer % 2 + 1)).unwrap();
                    }
                    for number in 1.. {
                        if ends.load(Ordering::SeqCst) {
                            return;
                        }
                        let own = format!("{MYSQL_UUID}{writer}:{number}");
                        if !is_mariadb {
                            conn.query_drop(format!("SET gtid_next = '{own}'")).unwrap();
                        }
                        conn.query_drop("BEGIN").unwrap();
                        conn.query_drop(format!(
                            "INSERT INTO p.log VALUES ({writer}, {number}, REPEAT('x', 300))"
                        ))
                        .unwrap();
                        conn.query_drop(format!(
                            "UPDATE p.sums SET sum = sum + {number} WHERE writer = {writer}"
                        ))
                        .unwrap();
                        conn.query_drop("COMMIT").unwrap();
                        let gtid = match is_mariadb {
                            true => conn.query_first("SELECT @@last_gtid").unwrap().unwrap(),
                            false => own,
                        };
                        noted.lock().unwrap().insert(gtid, (writer, number));
                    }
                })
            })
            .collect();
        Writers { ends, noted, threads }
    }

    fn stop(self) -> HashMap<String, (u32, u32)> {
        self.ends.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut *self.noted.lock().unwrap())
    }
}

/// GTIDs in the order of the server's binlogs, as the server reads them.
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

fn rows(server: &Server) -> Rows {
    server.query("SELECT writer, number FROM p.log ORDER BY writer, number").unwrap()
}

fn sums(server: &Server) -> Vec<(u32, u64)> {
    server.query("SELECT writer, sum FROM p.sums WHERE sum > 0 ORDER BY writer").unwrap()
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
        ..BackupOptions::new(crate::server::options(server))
    };
    backup::run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
}

/// A stop between two transactions that nobody commits meanwhile; MariaDB's binlog knows seconds.
pub(crate) fn pause() -> Timestamp {
    sleep(Duration::from_millis(1_100));
    let now = Timestamp::now();
    sleep(Duration::from_millis(1_100));
    now
}

fn moments_are_recovered_exactly(kind: ServerKind, seed: u64) {
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let stage = Stage::with(kind, ServerOptions::default());
    let server = &stage.server;
    server
        .exec_all([
            "CREATE DATABASE p",
            "CREATE TABLE p.log (writer INT, number INT, filler VARCHAR(400), PRIMARY KEY (writer, number))",
            "CREATE TABLE p.sums (writer INT PRIMARY KEY, sum BIGINT)",
            "INSERT INTO p.sums VALUES (1,0),(2,0),(3,0),(4,0),(5,0),(6,0)",
        ])
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let archiver = stage.start();
    let writers = Writers::start(server, 1);
    sleep(Duration::from_millis(700));
    back_up(&stage, dir.path());
    sleep(Duration::from_millis(700));
    server.exec("FLUSH BINARY LOGS").unwrap();
    let mut noted = writers.stop();
    let quiet = pause();
    let at_quiet = (rows(server), sums(server));
    let writers = Writers::start(server, 1 + WRITERS);
    sleep(Duration::from_millis(500));
    back_up(&stage, dir.path());
    sleep(Duration::from_millis(700));
    noted.extend(writers.stop());
    println!("{:?}", archiver.stop());
    // What it had not got yet when it was stopped.
    println!("{:?}", stage.once());
    let order = order_of_commits(server);
    let ours: Vec<(usize, (u32, u32))> =
        order.iter().enumerate().filter_map(|(at, gtid)| Some((at, *noted.get(gtid)?))).collect();
    assert_eq!(ours.len(), noted.len(), "every commit that a client knows is in the server's binlog");
    assert_eq!(rows(server).len(), noted.len());

    // By time: in the quiet between, neither one transaction more nor one less.
    let target = dir.path().join("quiet");
    let report = recover(&stage.repo, kind, &target, Until::Time(quiet)).unwrap();
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    assert_eq!((rows(&copy), sums(&copy)), at_quiet, "{report:?}");
    drop(copy);

    // By transaction, anywhere behind the first backup.
    let first = recovery::choose(&stage.repo, &source(), None, Until::Time(quiet)).unwrap();
    let base = first.base().1;
    let behind = |gtid: &str, before: bool| {
        let gtid = gtid.parse().unwrap();
        let until = if before { Until::BeforeGtid(gtid) } else { Until::Gtid(gtid) };
        recovery::choose(&stage.repo, &source(), None, until)
    };
    let targets = std::env::var(TARGETS).map_or(TARGETS_DEFAULT, |count| count.parse().unwrap());
    let mut bases = BTreeMap::new();
    for round in 0..targets {
        let before = round % 2 == 0;
        // Those before the first backup are in it.
        let (at, chosen) = loop {
            let (at, _) = ours[rng.index(ours.len())];
            if let Ok(chosen) = behind(&order[at], before) {
                break (at, chosen);
            }
        };
        let gtid = &order[at];
        *bases.entry(chosen.base().1).or_insert(0) += 1;
        let mut wanted: Rows = ours
            .iter()
            .filter(|(other, _)| *other < at || (*other == at && !before))
            .map(|(_, row)| *row)
            .collect();
        wanted.sort_unstable();
        let target = dir.path().join(format!("target-{round}"));
        let options = RestoreOptions {
            server_binary: Some(kind.server_program().unwrap()),
            ..RestoreOptions::new(&target)
        };
        let report = chosen.run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
        let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
        assert_eq!(rows(&copy), wanted, "{gtid}, before: {before}, {report:?}");
        for (writer, sum) in sums(&copy) {
            let numbers = wanted.iter().filter(|row| row.0 == writer).map(|row| u64::from(row.1));
            assert_eq!(numbers.sum::<u64>(), sum, "{gtid}: writer {writer}");
        }
        drop(copy);
        std::fs::remove_dir_all(&target).unwrap();
    }
    println!("backups that were begun from: {bases:?}, the first {base}");

    // Up to the time that the archive names, and not beyond: MariaDB's second may not be over.
    let archive = stage.archive();
    let chain = archive.chains().unwrap().pop().unwrap();
    let last = Timestamp::from_microsecond(i64::try_from(chain.last_at.unwrap()).unwrap()).unwrap();
    let until = i64::try_from(archive.recoverable_until(&chain).unwrap()).unwrap();
    let until = Timestamp::from_microsecond(until).unwrap();
    let choose = |time| recovery::choose(&stage.repo, &source(), None, Until::Time(time));
    choose(until).unwrap();
    let (before_last, beyond, why) = match kind.is_mariadb() {
        true => (1_000, last, "ends within the second"),
        false => (0, last + jiff::SignedDuration::from_micros(1), "what came then is not there"),
    };
    assert_eq!(until, last - jiff::SignedDuration::from_millis(before_last));
    let error = choose(beyond).err().unwrap();
    assert!(error.to_string().contains(why), "{error}");

    // What is not there is refused before anything is written.
    let target = dir.path().join("never");
    let later = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let error = recover(&stage.repo, kind, &target, Until::Time(later)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("what came then is not there"), "{error}");
    let nowhere = match kind.is_mariadb() {
        true => "0-4711-99999999".to_owned(),
        false => format!("{MYSQL_UUID}9:1"),
    };
    let error = recover(&stage.repo, kind, &target, Until::Gtid(nowhere.parse().unwrap())).unwrap_err();
    assert!(error.to_string().contains("does not have transaction"), "{error}");
    let error = recover(&stage.repo, kind, &target, Until::Time(Timestamp::UNIX_EPOCH)).unwrap_err();
    assert!(error.to_string().contains("was taken after"), "{error}");
    assert!(!target.exists());

    // All that there is.
    let report = recover(&stage.repo, kind, &target, Until::End).unwrap();
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    assert_eq!(rows(&copy), rows(server), "{report:?}");
}

#[test]
fn mariadb_10_11_is_recovered_to_the_transaction() {
    moments_are_recovered_exactly(ServerKind::MariaDb1011, 41);
}

#[test]
fn mariadb_11_8_is_recovered_to_the_transaction() {
    moments_are_recovered_exactly(ServerKind::MariaDb118, 42);
}

#[test]
fn mysql_9_7_is_recovered_to_the_transaction() {
    moments_are_recovered_exactly(ServerKind::MySql97, 43);
}

/// A server that encrypts its binlogs sends them decrypted: the archive has what the files hide, and goes on, across restarts
/// and files, to a recovery that needs no key.
fn encrypted_binlogs(kind: ServerKind) {
    const MARK: &str = "what the binlog hides";
    let dir = tempfile::tempdir().unwrap();
    let options = match kind.is_mariadb() {
        true => crate::physical::encrypted::key_options(dir.path())
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
    // The statements of rows are there, too, on MariaDB.
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

/// A backup whose redo is encrypted goes on behind its position, of which nobody can tell the place in the binlog: GTIDs tell
/// what follows.
#[test]
fn mysql_9_7_encrypted_redo() {
    let dir = tempfile::tempdir().unwrap();
    let component = dir.path().join("component");
    std::fs::create_dir(&component).unwrap();
    let options = ServerOptions::default().arg("--innodb-redo-log-encrypt=ON");
    let options = with_keyring(options, &component, &dir.path().join("keyring")).unwrap();
    let stage = Stage::with(ServerKind::MySql97, options.clone());
    let server = &stage.server;
    server
        .exec_all([
            "CREATE DATABASE p",
            "CREATE TABLE p.log (writer INT, number INT, filler VARCHAR(400), PRIMARY KEY (writer, number))",
            "CREATE TABLE p.sums (writer INT PRIMARY KEY, sum BIGINT)",
            "INSERT INTO p.sums VALUES (1,0),(2,0),(3,0)",
        ])
        .unwrap();
    stage.once();
    let writers = Writers::start(server, 1);
    sleep(Duration::from_millis(500));
    back_up(&stage, dir.path());
    sleep(Duration::from_millis(500));
    writers.stop();
    stage.once();
    let target = dir.path().join("target");
    let recovery = recovery::choose(&stage.repo, &source(), None, Until::End).unwrap();
    let restore_options =
        RestoreOptions { server_binary: Some(component.join("mysqld")), ..RestoreOptions::new(&target) };
    let report = recovery.run(&stage.repo, &restore_options, &Told, &Cancel::default()).unwrap();
    assert_eq!(report.position.precision, Precision::AtRestore, "{report:?}");
    let copy = Server::attach(ServerKind::MySql97, &target, options).unwrap();
    assert_eq!((rows(&copy), sums(&copy)), (rows(server), sums(server)), "{report:?}");
}
