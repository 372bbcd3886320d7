//! An archiver that keeps running while the server works, or the server or the repository
//! goes away and comes back.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use holdfast_core::{
    ErrorKind, Event, Listener,
    server::{ConnectOptions, Secret, SslMode},
};
use holdfast_repo::{
    LogName, RunNo,
    log::{lease::LEASE_MIN, run::RunOptions, segment::list_segments},
    ops::expire::{ExpireRequest, expire},
    store::{
        Store,
        faulty::{Fault, FaultyStore},
    },
};

use super::*;

fn flush(server: &Server) {
    server.exec("FLUSH BINARY LOGS").unwrap();
}

/// If only TLS is allowed, the archiver connects by TLS, to a server whose certificate names it.
fn by_tls(kind: ServerKind) {
    let required = ServerOptions::default().arg("--require-secure-transport=ON");
    let options = tls::server_options().into_iter().fold(required, ServerOptions::arg);
    let stage = Stage::with(kind, options);
    let grant = if kind.is_mariadb() { "BINLOG MONITOR" } else { "REPLICATION CLIENT" };
    stage
        .server
        .exec_all([
            "CREATE USER a@'127.0.0._' IDENTIFIED BY 'geheim' REQUIRE SSL",
            &format!("GRANT REPLICATION SLAVE, {grant} ON *.* TO a@'127.0.0._'"),
        ])
        .unwrap();
    let mut options = stage.options();
    options.connect = ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        port: Some(stage.server.port()),
        user: Some("a".to_owned()),
        password: Some(Secret::new("geheim".to_owned())),
        ssl_mode: Some(SslMode::VerifyIdentity),
        ssl_ca: Some(tls::file("ca.pem")),
        ..ConnectOptions::default()
    };
    let plain = ConnectOptions { ssl_mode: Some(SslMode::Disabled), ..options.connect.clone() };
    let plain = ArchiveOptions { connect: plain, ..options.clone() };
    archive(&stage.repo, &plain, &Told, &Cancel::default()).unwrap_err();
    let archiver = Archiver::start(&stage.repo, options);
    let counter = Counter::start(&stage.server);
    // More than any buffer on the way can hold.
    stage.server.exec("INSERT INTO c.t VALUES (0, REPEAT('y', 4000))").unwrap();
    stage
        .server
        .exec_all(["CREATE TABLE c.big (b LONGBLOB)", "INSERT INTO c.big VALUES (REPEAT('z', 20000000))"])
        .unwrap();
    sleep(Duration::from_millis(500));
    counter.stop();
    wait_archived(&stage);
    let report = archiver.stop();
    assert!(report.gaps.is_empty() && report.reconnects == 0, "{report:?}");
    stage.compare_files();
}

#[test]
fn mariadb_10_11_by_tls() {
    by_tls(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_by_tls() {
    by_tls(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_by_tls() {
    by_tls(ServerKind::MySql97);
}

/// Nothing is missing or duplicated, and the last commit is archived.
#[track_caller]
fn complete(stage: &Stage, last: u64) {
    let archive = stage.archive();
    assert!(archive.stretches().iter().all(|archived| archived.gap.is_none()), "{:#?}", archive.stretches());
    compare_files(&archive, &stage.server);
    let rows: u64 = stage.server.value("SELECT COUNT(*) FROM c.t").unwrap();
    assert_eq!(rows, last);
    let mut inserts = 0;
    archive
        .summaries(&Search::default(), &mut |summary| {
            inserts += u64::from(summary.tables == ["c.t"]);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    assert_eq!(inserts, last);
}

/// Under load, with short runs and files, committed transactions can be read while the run is active, and all
/// of them when it has ended; segments of ended runs are gone.
fn under_load(kind: ServerKind) {
    let stage = Stage::new(kind);
    let options = ArchiveOptions {
        run_age: Duration::from_millis(1500),
        segment_age: Duration::from_millis(300),
        ..stage.options()
    };
    let archiver = Archiver::start(&stage.repo, options);
    let counter = Counter::start(&stage.server);
    for _ in 0..3 {
        sleep(Duration::from_millis(700));
        flush(&stage.server);
        wait_archived(&stage);
    }
    let last = counter.stop();
    wait_archived(&stage);
    complete(&stage, last);
    let report = archiver.stop();
    println!("{kind}: {last} commits, {report:?}");
    assert!(report.runs.len() >= 2 && report.gaps.is_empty(), "{report:?}");
    assert!(!stage.archive().stretches().last().unwrap().is_live);
    complete(&stage, last);
    let log = LogName { source: source(), kind: holdfast_repo::Kind::Binlog };
    assert_eq!(list_segments(&stage.repo, &log).unwrap().len(), 0);
    let chains = stage.archive().chains().unwrap();
    assert_eq!(chains.len(), 1, "{chains:?}");
}

#[test]
fn mariadb_10_11_under_load() {
    under_load(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_under_load() {
    under_load(ServerKind::MySql97);
}

/// An archive opened during a run still yields everything that it contained then, even though the run has
/// ended since and its segments are gone; also if another run has taken over the segments.
#[test]
fn a_run_that_ends_while_it_is_read() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    let options = ArchiveOptions { segment_age: Duration::from_millis(100), ..stage.options() };
    let archiver = Archiver::start(&stage.repo, options);
    let counter = Counter::start(&stage.server);
    for _ in 0..3 {
        sleep(Duration::from_millis(300));
        flush(&stage.server);
    }
    let last = counter.stop();
    wait_archived(&stage);
    let early = stage.archive();
    assert!(early.stretches().last().unwrap().is_live);
    let log = LogName { source: source(), kind: holdfast_repo::Kind::Binlog };
    let mut archiver = Some(archiver);
    let mut places = Vec::new();
    let mut read = |stop_at: usize| {
        let mut inserts = 0;
        early
            .summaries(&Search::default(), &mut |summary| {
                inserts += u64::from(summary.tables == ["c.t"]);
                places.push(summary.place());
                if places.len() == stop_at
                    && let Some(archiver) = archiver.take()
                {
                    archiver.stop();
                    assert_eq!(list_segments(&stage.repo, &log).unwrap().len(), 0);
                }
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
        inserts
    };
    // The run ends in the middle of the reading, and before its first event.
    assert_eq!(read(5), last);
    assert_eq!(read(0), last);
    let (during, after) = places.split_at(places.len() / 2);
    assert_eq!(during, after);
}

/// An archive yields what it contained when it was opened, whatever happens to data stored later.
#[test]
fn what_comes_while_it_is_read() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    let options = ArchiveOptions { segment_age: Duration::from_millis(100), ..stage.options() };
    let _archiver = Archiver::start(&stage.repo, options);
    let counter = Counter::start(&stage.server);
    sleep(Duration::from_millis(700));
    counter.stop();
    wait_archived(&stage);
    let early = stage.archive();
    let events = || {
        let mut events = 0;
        early.events(0..early.stretches().len(), &mut |_, _, _| {
            events += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok::<_, Error>(events)
    };
    let before = events().unwrap();
    let log = LogName { source: source(), kind: holdfast_repo::Kind::Binlog };
    let stored = || list_segments(&stage.repo, &log).unwrap().pop_last().unwrap();
    let (run, parts) = stored();
    let next = parts.last().unwrap() + 1;
    for number in 0.. {
        if stored().1.last().unwrap() > &(next + 1) {
            break;
        }
        stage.server.exec(format!("INSERT INTO c.t VALUES (-{number} - 1, 'x')")).unwrap();
        sleep(Duration::from_millis(150));
    }
    stage.repo.store().delete(&[log.segment(run, next)]).unwrap();
    assert_eq!(events().unwrap(), before);
}

/// An archiver that was replaced because it showed no sign of life acknowledges nothing more, and ends.
#[test]
fn an_ousted_archiver_acknowledges_nothing() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    enable_semi_sync(&stage.server);
    let run = RunOptions { renew_every: None, patience: Some(LEASE_MIN), ..RunOptions::of_this_process() };
    let options = ArchiveOptions { semi_sync: true, run, ..stage.options() };
    let mut archiver = Archiver::start(&stage.repo, options);
    wait_archived(&stage);
    stage.server.exec_all(["CREATE DATABASE c", "CREATE TABLE c.t (id INT PRIMARY KEY)"]).unwrap();
    let acknowledged = || -> u64 {
        let row: Vec<(String, u64)> =
            stage.server.query("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_yes_tx'").unwrap();
        row[0].1
    };
    let before = acknowledged();
    assert!(before > 0);
    sleep(LEASE_MIN + Duration::from_secs(2));
    let second = stage.once();
    assert_eq!(second.runs.len(), 1, "{second:?}");
    stage.server.exec("INSERT INTO c.t VALUES (1)").unwrap();
    let error = archiver.thread.take().unwrap().join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Active, "{error}");
    assert_eq!(acknowledged(), before);
    stage.once();
    stage.compare_files();
}

/// The archiver waits for a server that is shut down or has crashed, and misses nothing.
fn server_comes_and_goes(kind: ServerKind) {
    let mut stage = Stage::new(kind);
    let mut archiver = stage.start();
    let counter = Counter::start(&stage.server);
    for is_crash in [false, true] {
        sleep(Duration::from_millis(700));
        if is_crash {
            stage.server.kill9().unwrap();
        } else {
            stage.server.stop().unwrap();
        }
        sleep(Duration::from_millis(300));
        stage.server.run().unwrap();
        sleep(Duration::from_millis(500));
        archiver.check();
    }
    let last = counter.stop();
    wait_archived(&stage);
    let report = archiver.stop();
    assert!(report.reconnects >= 1, "{report:?}");
    // A commit without a response may have succeeded.
    let rows: u64 = stage.server.value("SELECT COUNT(*) FROM c.t").unwrap();
    assert!(rows >= last && rows <= last + 3, "{rows} {last}");
    complete(&stage, rows);
}

/// A server that dies in the middle of an event leaves a file, of which it only sends what comes before that
/// event. Complete events are archived, and the archive continues with the next file without a gap, both in a
/// running archiver and in one that starts later.
fn an_event_is_torn(kind: ServerKind) {
    const TORN: usize = 30;
    let mut stage = Stage::new(kind);
    let mut archiver = stage.start();
    stage.server.exec("CREATE DATABASE c").unwrap();
    wait_archived_by(&stage, &mut archiver);
    let mut torn = Vec::new();
    for id in 1..=3 {
        stage.server.exec(format!("CREATE TABLE c.t{id} (id INT)")).unwrap();
        if id < 3 {
            stage.server.kill9().unwrap();
            let (name, bytes) = files_of(&stage.server).pop().unwrap();
            let mut file = fs::File::options().append(true).open(stage.server.datadir().join(&name)).unwrap();
            std::io::Write::write_all(&mut file, &bytes[4..4 + TORN]).unwrap();
            torn.push(name);
            stage.server.run().unwrap();
        }
    }
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert!(report.gaps.is_empty() && report.reconnects >= 2, "{report:?}");

    let store = Arc::new(FsStore::create(stage.dir.path().join("later")).unwrap());
    let password = Password::new("a password".to_owned()).unwrap();
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let later = Arc::new(Repo::init(store, &protection).unwrap());
    let report = once(&later, &stage.server);
    assert!(report.gaps.is_empty(), "{report:?}");

    for archive in [stage.archive(), Archive::open(&later, &source()).unwrap()] {
        assert!(archive.stretches().iter().all(|stretch| stretch.gap.is_none()), "{:?}", archive.stretches());
        let archived = archived_files(&archive);
        let own = files_of(&stage.server);
        assert_eq!((archived.len(), torn.len()), (own.len(), 2), "{torn:?}");
        for ((name, bytes), (file, begin, content)) in own.iter().zip(&archived) {
            let whole = bytes.len() - if torn.contains(name) { TORN } else { 0 };
            assert_eq!((name, 4), (file, *begin));
            assert!(content[..] == bytes[4..whole], "{name}: {} bytes of {whole}", content.len());
        }
    }
}

#[test]
fn mariadb_10_11_an_event_is_torn() {
    an_event_is_torn(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_an_event_is_torn() {
    an_event_is_torn(ServerKind::MariaDb118);
}

#[test]
fn mariadb_11_8_comes_and_goes() {
    server_comes_and_goes(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_comes_and_goes() {
    server_comes_and_goes(ServerKind::MySql97);
}

/// The stage's repository; while the flag is set, its store accepts nothing.
pub(super) fn repo_that_goes_away(stage: &Stage) -> (Arc<Repo>, Arc<AtomicBool>) {
    let is_away = Arc::new(AtomicBool::new(false));
    let store: Arc<dyn Store> = Arc::new(FaultyStore::new(Arc::clone(stage.repo.store()), {
        let is_away = Arc::clone(&is_away);
        move |call| (is_away.load(Ordering::Acquire) && call.op.changes()).then_some(Fault::Error)
    }));
    let password = Password::new("a password".to_owned()).unwrap();
    (Arc::new(Repo::open(store, Some(&password)).unwrap()), is_away)
}

/// A repository that accepts nothing for a while only costs time, whatever the run was doing.
#[test]
fn the_repository_comes_and_goes() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    let (repo, is_away) = repo_that_goes_away(&stage);
    let options =
        ArchiveOptions { run_bytes: 1 << 20, segment_age: Duration::from_millis(100), ..stage.options() };
    let mut archiver = Archiver::start(&repo, options);
    wait_archived_by(&stage, &mut archiver);
    let counter = Counter::start(&stage.server);
    for away in [300, 1500, 700] {
        sleep(Duration::from_millis(600));
        is_away.store(true, Ordering::Release);
        sleep(Duration::from_millis(away));
        is_away.store(false, Ordering::Release);
        archiver.check();
    }
    let last = counter.stop();
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert!(report.gaps.is_empty(), "{report:?}");
    complete(&stage, last);
}

/// An archiver that is told to end while nothing can be stored says so, and reports no more than is durable.
#[test]
fn it_ends_while_the_repository_is_full() {
    struct Heard(AtomicBool, Mutex<Vec<String>>);
    impl Listener for Heard {
        fn event(&self, event: Event) {
            if let Event::Warning { text } = &event {
                self.0.fetch_or(text.contains("stored in the repository at the moment: "), Ordering::AcqRel);
            }
            if let Event::Note { text } = &event {
                self.1.lock().unwrap().push(text.clone());
            }
            Told.event(event);
        }
    }
    let stage = Stage::new(ServerKind::MariaDb1011);
    let (is_full, cancel) = (Arc::new(AtomicBool::new(false)), Cancel::default());
    let heard = Arc::new(Heard(AtomicBool::new(false), Mutex::default()));
    let store: Arc<dyn Store> = Arc::new(FaultyStore::new(Arc::clone(stage.repo.store()), {
        let (is_full, cancel, heard) = (Arc::clone(&is_full), cancel.clone(), Arc::clone(&heard));
        move |call| {
            let fails = is_full.load(Ordering::Acquire) && call.op.changes();
            // The run has failed, and the next begins.
            if fails && heard.0.load(Ordering::Acquire) {
                cancel.cancel();
            }
            fails.then_some(Fault::Error)
        }
    }));
    let password = Password::new("a password".to_owned()).unwrap();
    let repo = Arc::new(Repo::open(store, Some(&password)).unwrap());
    let options = ArchiveOptions {
        run_age: Duration::from_secs(2),
        segment_age: Duration::from_secs(20),
        ..stage.options()
    };
    let archiver = thread::spawn({
        let (cancel, heard) = (cancel.clone(), Arc::clone(&heard));
        move || archive(&repo, &options, &*heard, &cancel)
    });
    wait_archived(&stage);
    is_full.store(true, Ordering::Release);
    stage.server.exec("CREATE DATABASE c").unwrap();
    let begin = Instant::now();
    while !archiver.is_finished() {
        if begin.elapsed() > Duration::from_secs(60) {
            cancel.cancel();
            panic!("it was not told to end: {:?}", archiver.join().unwrap());
        }
        sleep(Duration::from_millis(50));
    }
    let error = archiver.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    let notes = heard.1.lock().unwrap();
    assert!(!notes.iter().any(|note| note.contains("written to again")), "{notes:?}");
}

/// A continuous archiver makes way for a run that drops parts of the archive, and continues afterwards:
/// nothing is missed.
#[test]
fn an_archiver_makes_room_for_an_expire() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    let log = LogName { source: source(), kind: holdfast_repo::Kind::Binlog };
    stage.server.exec("CREATE DATABASE x").unwrap();
    let oldest = stage.once().runs[0];
    stage.server.exec("CREATE DATABASE y").unwrap();
    stage.once();
    let mut archiver = stage.start();
    let counter = Counter::start(&stage.server);
    wait_archived_by(&stage, &mut archiver);
    let request = ExpireRequest::Exactly(vec![RunNo(oldest)]);
    let plan = expire(&stage.repo, &log, &request, &RunOptions::of_this_process()).unwrap();
    assert_eq!(plan.dropped, [RunNo(oldest)]);
    sleep(Duration::from_millis(500));
    let last = counter.stop();
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert!(last > 0 && report.gaps.is_empty(), "{last} {report:?}");
    let archive = stage.archive();
    assert_eq!(archive.chains().unwrap().len(), 1, "{:#?}", archive.stretches());
    let names = gtids_after(&archive, &After::Stretch(0));
    assert!(names.len() as u64 > last, "{} {last}", names.len());
}

/// The repository accepts nothing while commits wait for it, and a connection breaks meanwhile: the start
/// position of the next connection does not acknowledge transactions that are not stored.
fn a_connection_breaks_while_commits_wait(kind: ServerKind) {
    let stage = Stage::new(kind);
    enable_semi_sync(&stage.server);
    let (repo, is_away) = repo_that_goes_away(&stage);
    let options = ArchiveOptions { semi_sync: true, ..stage.options() };
    let (mut archiver, heard) = Archiver::start_heard(&repo, options);
    wait_archived(&stage);
    stage.server.exec_all(["CREATE DATABASE c", "CREATE TABLE c.t (id INT PRIMARY KEY)"]).unwrap();
    wait_archived(&stage);
    let name = if kind.is_mariadb() { "Rpl_semi_sync_master" } else { "Rpl_semi_sync_source" };
    let acknowledged = || -> u64 {
        let row: Vec<(String, u64)> =
            stage.server.query(format!("SHOW GLOBAL STATUS LIKE '{name}_yes_tx'")).unwrap();
        row[0].1
    };
    is_away.store(true, Ordering::Release);
    let before = acknowledged();
    let clients: Vec<_> = (0..4)
        .map(|id| {
            let mut conn = stage.server.conn().unwrap();
            sleep(Duration::from_millis(300));
            thread::spawn(move || conn.query_drop(format!("INSERT INTO c.t VALUES ({id})")))
        })
        .collect();
    sleep(Duration::from_secs(1));
    let list = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'";
    for id in stage.server.query::<u64>(list).unwrap() {
        stage.server.exec(format!("KILL {id}")).unwrap();
    }
    archiver.wait_for_warning(&heard, "the connection to the server is lost");
    // Longer than it waits before it would connect again.
    sleep(Duration::from_secs(1));
    assert_eq!(acknowledged(), before, "what nothing has stored is acknowledged");
    archiver.check();
    is_away.store(false, Ordering::Release);
    for client in clients {
        client.join().unwrap().unwrap();
    }
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert!(report.reconnects >= 1 && report.gaps.is_empty(), "{report:?}");
    stage.compare_files();
}

#[test]
fn mariadb_10_11_a_connection_breaks_while_commits_wait() {
    a_connection_breaks_while_commits_wait(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_connection_breaks_while_commits_wait() {
    a_connection_breaks_while_commits_wait(ServerKind::MySql97);
}

/// A server for which commits may wait learns at once that an archiver has ended, not only with the next
/// heartbeat.
fn signs_off(kind: ServerKind) {
    let stage = Stage::new(kind);
    enable_semi_sync(&stage.server);
    let archiver = Archiver::start(&stage.repo, ArchiveOptions { semi_sync: true, ..stage.options() });
    wait_archived(&stage);
    let streams = || {
        let query = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'";
        stage.server.value::<u64>(query).unwrap()
    };
    assert_eq!(streams(), 1);
    archiver.stop();
    // A killed one that is still there has another command.
    assert_eq!(streams(), 0);
}

#[test]
fn mariadb_10_11_learns_that_an_archiver_has_ended() {
    signs_off(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_learns_that_an_archiver_has_ended() {
    signs_off(ServerKind::MySql97);
}

/// With semi-synchronous replication, a commit returns only when it is in the repository: every commit that
/// the server has answered is there, even if the server is lost the next moment.
fn semi_sync(kind: ServerKind) {
    let mut stage = Stage::new(kind);
    enable_semi_sync(&stage.server);
    let archiver = Archiver::start(&stage.repo, ArchiveOptions { semi_sync: true, ..stage.options() });
    wait_archived(&stage);
    let counter = Counter::start(&stage.server);
    let name = if kind.is_mariadb() { "Rpl_semi_sync_master" } else { "Rpl_semi_sync_source" };
    let begin = Instant::now();
    let count = |what: &str| -> u64 {
        let row: Vec<(String, u64)> =
            stage.server.query(format!("SHOW GLOBAL STATUS LIKE '{name}_{what}'")).unwrap();
        row[0].1
    };
    while count("yes_tx") < 5 {
        assert!(begin.elapsed() < Duration::from_secs(60), "no commit is acknowledged");
        sleep(Duration::from_millis(50));
    }
    assert_eq!(count("no_tx"), 0);
    stage.server.kill9().unwrap();
    // Commits answered before the kill.
    let last = counter.stop();
    let archive = stage.archive();
    let mut archived = 0;
    archive
        .summaries(&Search::default(), &mut |summary| {
            archived += u64::from(summary.tables == ["c.t"]);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    println!("{kind} {name}: {last} commits answered, {archived} archived");
    assert!(last > 0 && archived >= last, "{last} commits were answered, {archived} are archived");
    drop(archiver);
}

#[test]
fn mariadb_10_11_commits_wait() {
    semi_sync(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_commits_wait() {
    semi_sync(ServerKind::MySql97);
}
