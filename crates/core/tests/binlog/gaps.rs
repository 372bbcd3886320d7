//! Where an archive continues, on the same server and on another, and what it reports if it cannot.

use std::{
    io::{Read as _, Write as _},
    os::unix::{
        fs::symlink,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{
        atomic::{AtomicU8, Ordering},
        mpsc::channel,
    },
};

use holdfast_core::{ErrorKind, binlog::GapKind};
use holdfast_testkit::replica;

use super::*;

fn write(server: &Server, rows: u32) {
    server
        .exec_all(["CREATE DATABASE IF NOT EXISTS g", "CREATE TABLE IF NOT EXISTS g.t (id SERIAL, v INT)"])
        .unwrap();
    for row in 0..rows {
        server.exec(format!("INSERT INTO g.t (v) VALUES ({row})")).unwrap();
    }
}

fn last_file(server: &Server) -> String {
    let rows: Vec<mysql::Row> = server.query("SHOW BINARY LOGS").unwrap();
    rows.last().unwrap().get(0).unwrap()
}

pub(crate) fn purge(server: &Server) {
    // A file that recovery may still need is kept for a moment.
    let begin = Instant::now();
    while server.query::<mysql::Row>("SHOW BINARY LOGS").unwrap().len() > 1 {
        server.exec(format!("PURGE BINARY LOGS TO '{}'", last_file(server))).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(20));
    }
}

fn reset(server: &Server) {
    server
        .exec(if server.kind().is_mariadb() { "RESET MASTER" } else { "RESET BINARY LOGS AND GTIDS" })
        .unwrap();
}

/// Binlogs purged after they were archived are not missed; those purged earlier are reported as
/// a gap, and so is a reset.
fn purged_and_reset(kind: ServerKind) {
    let stage = Stage::new(kind);
    write(&stage.server, 3);
    stage.once();
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    purge(&stage.server);
    write(&stage.server, 3);
    let sound = stage.once();
    assert!(sound.gaps.is_empty(), "{sound:?}");

    write(&stage.server, 2);
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    purge(&stage.server);
    write(&stage.server, 2);
    let purged = stage.once();
    assert_eq!(purged.gaps.len(), 1, "{purged:?}");
    assert_eq!(purged.gaps[0].kind, GapKind::Purged, "{purged:?}");
    assert!(purged.gaps[0].text.contains("purged"), "{purged:?}");

    reset(&stage.server);
    write(&stage.server, 2);
    let begun_anew = stage.once();
    assert_eq!(begun_anew.gaps.len(), 1, "{begun_anew:?}");
    assert_eq!(begun_anew.gaps[0].kind, GapKind::Reset, "{begun_anew:?}");
    write(&stage.server, 2);
    assert!(stage.once().gaps.is_empty());

    // A reset is also noticed if just as many transactions were made since, in files with lower numbers.
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    write(&stage.server, 2);
    assert!(stage.once().gaps.is_empty());
    reset(&stage.server);
    write(&stage.server, 30);
    let counted_past = stage.once();
    assert_eq!(counted_past.gaps.len(), 1, "{counted_past:?}");
    assert_eq!(counted_past.gaps[0].kind, GapKind::Reset, "{counted_past:?}");
    assert!(stage.once().gaps.is_empty());

    let archive = stage.archive();
    let chains = archive.chains().unwrap();
    assert_eq!(chains.len(), 4, "{:#?}", archive.stretches());
    // Nothing is replayed across a gap.
    let error = archive.transactions(&After::Stretch(0), &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err();
    assert!(error.to_string().contains("gap"), "{error}");
    archive.transactions(&After::Stretch(chains[3].first), &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
}

/// A server whose binlogs are reset during archiving, so that a file name is reused, is noticed.
fn reset_while_connected(kind: ServerKind) {
    let stage = Stage::new(kind);
    write(&stage.server, 20);
    let options = ArchiveOptions { look_every: Duration::from_secs(1), ..stage.options() };
    let mut archiver = Archiver::start(&stage.repo, options);
    wait_archived_by(&stage, &mut archiver);
    reset(&stage.server);
    write(&stage.server, 2);
    let begin = Instant::now();
    let is_noticed = || stage.archive().stretches().iter().any(|archived| archived.gap.is_some());
    while !is_noticed() {
        archiver.check();
        assert!(begin.elapsed() < Duration::from_secs(90), "it waits for what never comes");
        sleep(Duration::from_millis(100));
    }
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert_eq!(report.gaps.len(), 1, "{report:?}");
    assert_eq!(stage.archive().chains().unwrap().len(), 2);
}

#[test]
fn mariadb_10_11_reset_while_connected() {
    reset_while_connected(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_reset_while_connected() {
    reset_while_connected(ServerKind::MySql97);
}

#[test]
fn mariadb_10_11_purged_and_reset() {
    purged_and_reset(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_purged_and_reset() {
    purged_and_reset(ServerKind::MySql97);
}

/// An archive continues by GTID on a replica that replaces its primary: each transaction is archived once.
/// Transactions that the archive has and the new primary lacks are a gap.
fn failover(kind: ServerKind) {
    let stage = Stage::new(kind);
    write(&stage.server, 3);
    let second = start_replica(&stage.server, ServerOptions::default());
    write(&stage.server, 3);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    stage.once();
    // A replica records another commit time for a long transaction.
    let mut conn = stage.server.conn().unwrap();
    for statement in [
        "BEGIN",
        "INSERT INTO g.t (v) VALUES (0)",
        "DO SLEEP(1.1)",
        "INSERT INTO g.t (v) VALUES (1)",
        "DO SLEEP(1.1)",
        "COMMIT",
    ] {
        conn.query_drop(statement).unwrap();
    }
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    stage.once();
    replica::detach(&second).unwrap();
    second.exec("FLUSH BINARY LOGS").unwrap();
    write(&second, 4);
    let report = once(&stage.repo, &second);
    assert!(report.gaps.is_empty(), "{report:?}");
    write(&second, 1);
    once(&stage.repo, &second);

    let archive_now = stage.archive();
    assert!(
        archive_now.stretches().iter().all(|archived| archived.gap.is_none()),
        "{:#?}",
        archive_now.stretches()
    );
    let names = gtids_after(&archive_now, &After::Stretch(0));
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(names.len(), unique.len(), "{names:?}");
    assert_eq!(inserts(&archive_now), 3 + 3 + 2 + 4 + 1, "{names:?}");

    // The old primary has continued on its own.
    write(&stage.server, 1);
    let error =
        archive(&stage.repo, &ArchiveOptions { once: true, ..stage.options() }, &Told, &Cancel::default());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.hint().unwrap().contains("--new-identity"), "{error:?}");
}

#[test]
fn mariadb_10_11_failover() {
    failover(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_failover() {
    failover(ServerKind::MySql97);
}

fn inserts(archive: &Archive) -> usize {
    let mut inserts = 0;
    archive
        .transactions(&After::Stretch(0), &mut |event| {
            inserts += usize::from(event.part == Part::Inside && event.event.header.kind.is_rows());
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    inserts
}

/// The same with an archiver that keeps running: data of the two servers are kept apart, even if their files
/// have the same names.
fn failover_of_an_archiver_that_goes_on(kind: ServerKind) {
    let mut stage = Stage::new(kind);
    write(&stage.server, 3);
    let second = start_replica(&stage.server, ServerOptions::default());
    let address = stage.dir.path().join("socket");
    symlink(stage.server.socket(), &address).unwrap();
    let mut options = stage.options();
    options.connect.socket = Some(address.clone());
    let mut archiver = Archiver::start(&stage.repo, options);
    write(&stage.server, 3);
    wait_archived_by(&stage, &mut archiver);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    replica::detach(&second).unwrap();
    // The new server writes at a lower file offset than the first one did.
    second.exec("FLUSH BINARY LOGS").unwrap();
    fs::remove_file(&address).unwrap();
    symlink(second.socket(), &address).unwrap();
    stage.server.stop().unwrap();
    write(&second, 4);
    let begin = Instant::now();
    while inserts(&stage.archive()) < 3 + 3 + 4 {
        archiver.check();
        assert!(begin.elapsed() < CATCH_UP_MAX, "{:#?}", stage.archive().stretches());
        sleep(Duration::from_millis(100));
    }
    let report = archiver.stop();
    assert!(report.gaps.is_empty(), "{report:?}");
    let archive = stage.archive();
    assert_eq!(archive.chains().unwrap().len(), 1, "{:#?}", archive.stretches());
    assert_eq!(inserts(&archive), 3 + 3 + 4, "{:#?}", archive.stretches());
}

#[test]
fn mariadb_10_11_failover_of_an_archiver_that_goes_on() {
    failover_of_an_archiver_that_goes_on(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_failover_of_an_archiver_that_goes_on() {
    failover_of_an_archiver_that_goes_on(ServerKind::MySql97);
}

/// Forwards connections, and calls `before` the first time that a client asks for the list of binlogs after it
/// has asked for a stream.
fn forwards(server: &Server, socket: &Path, before: impl Fn() + Send + Sync + 'static) {
    const LIST: &[u8] = b"SHOW BINARY LOGS";
    const KIND_AT: usize = 4;
    const DUMPS: [u8; 2] = [0x12, 0x1e];
    let (listener, to) = (UnixListener::bind(socket).unwrap(), server.socket().to_owned());
    let (before, passed) = (Arc::new(before), Arc::new(AtomicU8::new(0)));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), Ok(mut server)) = (client, UnixStream::connect(&to)) else { return };
            let (mut answers, mut answered) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut answers, &mut answered));
            let (before, passed) = (Arc::clone(&before), Arc::clone(&passed));
            thread::spawn(move || {
                let mut buffer = [0; 4_096];
                while let Ok(count @ 1..) = client.read(&mut buffer) {
                    let asked = &buffer[..count];
                    if asked.get(KIND_AT).is_some_and(|kind| DUMPS.contains(kind)) {
                        let _once = passed.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
                    } else if asked.windows(LIST.len()).any(|it| it == LIST)
                        && passed.compare_exchange(1, 2, Ordering::AcqRel, Ordering::Acquire).is_ok()
                    {
                        before();
                    }
                    if server.write_all(asked).is_err() {
                        break;
                    }
                }
                let _gone = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
}

/// With semi-synchronous replication, what another server commits while it is asked where to continue is
/// archived: it comes before a place whose request would acknowledge it.
fn a_commit_while_the_server_is_asked(kind: ServerKind) {
    let stage = Stage::new(kind);
    write(&stage.server, 3);
    let second = start_replica(&stage.server, ServerOptions::default());
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    stage.once();
    replica::detach(&second).unwrap();
    enable_semi_sync(&second);
    let socket = stage.dir.path().join("socket");
    let (committed, is_committed) = channel();
    let opts = second.opts();
    forwards(&second, &socket, move || {
        let (opts, committed) = (opts.clone(), committed.clone());
        thread::spawn(move || {
            let insert = mysql::Conn::new(opts).unwrap().query_drop("INSERT INTO g.t (v) VALUES (99)");
            committed.send(insert).unwrap();
        });
        sleep(Duration::from_secs(1));
    });
    let mut options = ArchiveOptions { semi_sync: true, ..stage.options() };
    options.connect.socket = Some(socket);
    let archiver = Archiver::start(&stage.repo, options);
    is_committed.recv_timeout(Duration::from_secs(50)).expect("the commit waits").unwrap();
    let report = archiver.stop();
    assert!(report.gaps.is_empty(), "{report:?}");
    assert_eq!(inserts(&stage.archive()), 3 + 1, "{:#?}", stage.archive().stretches());
}

#[test]
fn mariadb_10_11_a_commit_while_the_server_is_asked() {
    a_commit_while_the_server_is_asked(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_commit_while_the_server_is_asked() {
    a_commit_while_the_server_is_asked(ServerKind::MySql97);
}

/// A head lists the GTIDs before and after each file: a run ends before they are too many for it.
#[test]
fn mysql_9_7_long_gtids_of_many_files() {
    let stage = Stage::new(ServerKind::MySql97);
    let with_holes = (1..3_000).flat_map(|number| {
        let next = format!("SET gtid_next = '3e11fa47-71ca-11e1-9e33-c80aa9429562:{}'", 2 * number);
        [next, "BEGIN".to_owned(), "COMMIT".to_owned()]
    });
    stage.server.exec_all(with_holes).unwrap();
    stage.server.exec_all(std::iter::repeat_n("FLUSH BINARY LOGS", 350)).unwrap();
    let report = stage.once();
    assert!(report.runs.len() > 1, "{report:?}");
    stage.compare_files();
}

/// A run that becomes due while its server is away ends with what it has when the server is back.
fn away_until_the_run_is_due(kind: ServerKind) {
    let mut stage = Stage::new(kind);
    let options = ArchiveOptions { run_age: Duration::from_secs(1), ..stage.options() };
    let mut archiver = Archiver::start(&stage.repo, options);
    for _ in 0..2 {
        write(&stage.server, 3);
        wait_archived_by(&stage, &mut archiver);
        stage.server.kill9().unwrap();
        sleep(Duration::from_secs(2));
        stage.server.run().unwrap();
    }
    write(&stage.server, 3);
    wait_archived_by(&stage, &mut archiver);
    let report = archiver.stop();
    assert!(report.runs.len() > 1 && report.gaps.is_empty(), "{report:?}");
    assert_eq!(stage.archive().chains().unwrap().len(), 1, "{:#?}", stage.archive().stretches());
    stage.compare_files();
    assert_eq!(inserts(&stage.archive()), 3 + 3 + 3);
}

#[test]
fn mariadb_11_8_away_until_the_run_is_due() {
    away_until_the_run_is_due(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_away_until_the_run_is_due() {
    away_until_the_run_is_due(ServerKind::MySql97);
}

/// A server that lost the end of its binlog contradicts what was archived from it.
#[test]
fn a_server_that_forgot() {
    let mut stage = Stage::with(
        ServerKind::MySql97,
        ServerOptions::default().arg("--gtid-mode=OFF").arg("--enforce-gtid-consistency=OFF"),
    );
    write(&stage.server, 3);
    stage.once();
    write(&stage.server, 2);
    assert!(stage.once().gaps.is_empty());
    // Reset under the same file name, and longer than before.
    reset(&stage.server);
    write(&stage.server, 20);
    let report = stage.once();
    assert_eq!(report.gaps.len(), 1, "{report:?}");
    assert_eq!(report.gaps[0].kind, GapKind::Reset, "{report:?}");
    stage.server.restart().unwrap();
    assert!(stage.once().gaps.is_empty());
}

/// Only one archiver at a time; an account without privileges is told which ones it lacks.
#[test]
fn refusals() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    write(&stage.server, 1);
    let archiver = stage.start();
    wait_archived(&stage);
    let once = ArchiveOptions { once: true, ..stage.options() };
    let error = archive(&stage.repo, &once, &Told, &Cancel::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Active, "{error}");
    archiver.stop();

    stage.server.exec("CREATE USER a@localhost IDENTIFIED BY 'p'").unwrap();
    let mut poor = once.clone();
    poor.connect.user = Some("a".to_owned());
    poor.connect.password = Some(holdfast_core::server::Secret::new("p".to_owned()));
    for missing in ["REPLICATION SLAVE, BINLOG MONITOR", ""] {
        let result = archive(&stage.repo, &poor, &Told, &Cancel::default());
        if missing.is_empty() {
            result.unwrap();
        } else {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Server, "{error}");
            let statement = error.hint().unwrap().to_owned();
            assert!(statement.contains(missing), "{statement}");
            stage.server.exec(statement).unwrap();
        }
    }
    let plain = Stage::with(ServerKind::MariaDb1011, ServerOptions::default().arg("--skip-log-bin"));
    let once = ArchiveOptions { once: true, ..plain.options() };
    let error = archive(&plain.repo, &once, &Told, &Cancel::default()).unwrap_err();
    assert!(error.to_string().contains("no binlog"), "{error}");
}

/// A replica whose binlog lacks replicated transactions is refused; other transactions that a server leaves
/// out are reported.
#[test]
fn servers_that_leave_something_out() {
    let primary = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    write(&primary, 1);
    let options = ServerOptions::default().arg("--log-slave-updates=OFF").arg("--binlog-ignore-db=scratch");
    let stage = Stage::with(ServerKind::MariaDb1011, options);
    let heard = Warnings::default();
    let once = ArchiveOptions { once: true, ..stage.options() };
    archive(&stage.repo, &once, &heard, &Cancel::default()).unwrap();
    let warnings = heard.heard();
    assert!(warnings.iter().any(|text| text.contains("binlog_ignore_db scratch")), "{warnings:?}");
    let of_stretch = stage.archive().stretches()[0].stretch.leaves_out.clone();
    assert_eq!(of_stretch.as_deref(), Some("binlog_ignore_db scratch"));
    let position = replica::Position::Gtid(String::new());
    replica::catch_up(&primary, &stage.server, &position, CATCH_UP_MAX).unwrap();
    let error = archive(&stage.repo, &once, &Told, &Cancel::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("log_slave_updates"), "{error}");
}

/// The same for a server that becomes such a replica during archiving.
#[test]
fn a_server_that_begins_to_leave_something_out_ends_its_archiver() {
    let primary = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    write(&primary, 1);
    let stage = Stage::with(ServerKind::MariaDb1011, ServerOptions::default().arg("--log-slave-updates=OFF"));
    let options = ArchiveOptions { look_every: Duration::from_millis(200), ..stage.options() };
    let archiver = Archiver::start(&stage.repo, options);
    wait_archived(&stage);
    let position = replica::Position::Gtid(String::new());
    replica::catch_up(&primary, &stage.server, &position, CATCH_UP_MAX).unwrap();
    let error = archiver.ended_by_itself();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("log_slave_updates"), "{error}");
}

/// A replica that filters part of what it replicates has the GTIDs of everything, or later ones.
/// It would continue its primary's archive without a gap, but also without the filtered transactions, so
/// archiving it requires explicit consent.
fn a_replica_that_filters(kind: ServerKind) {
    let stage = Stage::new(kind);
    write(&stage.server, 1);
    stage.server.exec_all(["CREATE DATABASE audit", "CREATE TABLE audit.t (id INT PRIMARY KEY)"]).unwrap();
    let replica =
        start_replica(&stage.server, ServerOptions::default().arg("--replicate-wild-ignore-table=audit.%"));
    stage.once();
    stage.server.exec("INSERT INTO audit.t VALUES (1)").unwrap();
    write(&stage.server, 1);
    replica::wait(&stage.server, &replica, CATCH_UP_MAX).unwrap();
    let filter = "replicate_wild_ignore_table audit.%";
    let refused = |options: &ArchiveOptions| {
        let error = archive(&stage.repo, options, &Told, &Cancel::default()).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(filter), "{error}");
        assert!(error.hint().unwrap().contains("--allow-replica-filters"), "{error:?}");
    };
    let once = ArchiveOptions { once: true, ..super::options(&replica) };
    refused(&once);
    refused(&ArchiveOptions { standby: true, ..super::options(&replica) });
    // The same applies if the account may see no more than it needs.
    replica
        .exec_all([
            "CREATE USER a@localhost IDENTIFIED BY 'p'",
            if kind.is_mariadb() {
                "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO a@localhost"
            } else {
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO a@localhost"
            },
        ])
        .unwrap();
    let mut poor = once.clone();
    poor.connect.user = Some("a".to_owned());
    poor.connect.password = Some(holdfast_core::server::Secret::new("p".to_owned()));
    refused(&poor);

    let options = ArchiveOptions { allow_replica_filters: true, ..once };
    let report = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    assert!(report.gaps.is_empty(), "{report:?}");
    assert_eq!(report.leaves_out.as_deref(), Some(filter));
    let archive = stage.archive();
    let marked: Vec<_> =
        archive.stretches().iter().map(|archived| archived.stretch.leaves_out.as_deref()).collect();
    assert_eq!((marked.first(), marked.last()), (Some(&None), Some(&Some(filter))));
    assert_eq!(inserts(&archive), 2, "one of three is missing");
}

#[test]
fn mariadb_10_11_a_replica_that_filters() {
    a_replica_that_filters(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_replica_that_filters() {
    a_replica_that_filters(ServerKind::MySql97);
}

/// The same for a replica that starts to filter during archiving.
#[test]
fn mysql_9_7_a_replica_that_begins_to_filter_ends_its_archiver() {
    let stage = Stage::new(ServerKind::MySql97);
    write(&stage.server, 1);
    let replica = start_replica(&stage.server, ServerOptions::default());
    let options = ArchiveOptions { look_every: Duration::from_millis(200), ..super::options(&replica) };
    let archiver = Archiver::start(&stage.repo, options);
    sleep(Duration::from_secs(1));
    replica
        .exec_all([
            "STOP REPLICA SQL_THREAD",
            "CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE = ('g.log_%') FOR CHANNEL ''",
            "START REPLICA SQL_THREAD",
        ])
        .unwrap();
    let error = archiver.ended_by_itself();
    assert!(error.to_string().contains("replicate_wild_ignore_table g.log_%"), "{error}");
}

/// The server decides whether commits wait: a server that does not make them wait is refused, and settings
/// that let commits return earlier are reported.
fn commits_that_do_not_wait(kind: ServerKind) {
    let stage = Stage::new(kind);
    write(&stage.server, 1);
    let options =
        ArchiveOptions { semi_sync: true, look_every: Duration::from_millis(500), ..stage.options() };
    let error = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("no acknowledgement"), "{error}");

    super::enable_semi_sync(&stage.server);
    let prefix = if kind.is_mariadb() { "rpl_semi_sync_master" } else { "rpl_semi_sync_source" };
    let heard = Arc::new(Warnings::default());
    let cancel = Cancel::default();
    let archiver = thread::spawn({
        let (repo, options, heard, cancel) =
            (Arc::clone(&stage.repo), options.clone(), Arc::clone(&heard), cancel.clone());
        move || archive(&repo, &options, &*heard, &cancel)
    });
    let has_heard = |text: &str| heard.heard().iter().any(|warning| warning.contains(text));
    let wait_for = |text: &str| {
        let begin = Instant::now();
        while !has_heard(text) {
            assert!(begin.elapsed() < CATCH_UP_MAX, "{text}: {:?}", heard.heard());
            sleep(Duration::from_millis(100));
        }
    };
    wait_for(&format!("60000 ms ({prefix}_timeout)"));
    wait_archived(&stage);
    // Another replica acknowledges, too.
    let store = Arc::new(FsStore::create(stage.dir.path().join("other")).unwrap());
    let password = Password::new("a password".to_owned()).unwrap();
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let more = Archiver::start(&Arc::new(Repo::init(store, &protection).unwrap()), options);
    wait_for("2 replicas acknowledge");
    more.stop();
    stage.server.exec(format!("SET GLOBAL {prefix}_timeout = 1")).unwrap();
    let begin = Instant::now();
    // The archive may be faster than that.
    while !has_heard("commits returned without waiting") {
        assert!(begin.elapsed() < CATCH_UP_MAX, "{:?}", heard.heard());
        write(&stage.server, 3);
    }
    stage.server.exec(format!("SET GLOBAL {prefix}_enabled = 0")).unwrap();
    wait_for("is off on the server");
    cancel.cancel();
    assert!(archiver.join().unwrap().unwrap().unacknowledged > 0);
}

#[test]
fn mariadb_10_11_commits_that_do_not_wait() {
    commits_that_do_not_wait(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_commits_that_do_not_wait() {
    commits_that_do_not_wait(ServerKind::MySql97);
}

/// Waiting does not help after a password change: the archiver reports that and ends.
fn a_server_that_refuses(kind: ServerKind) {
    let stage = Stage::new(kind);
    stage
        .server
        .exec_all(["CREATE USER a@localhost IDENTIFIED BY 'p'", "GRANT ALL ON *.* TO a@localhost"])
        .unwrap();
    let mut options = ArchiveOptions { refused_max: Duration::from_secs(1), ..stage.options() };
    options.connect.user = Some("a".to_owned());
    options.connect.password = Some(holdfast_core::server::Secret::new("p".to_owned()));
    let archiver = Archiver::start(&stage.repo, options);
    write(&stage.server, 3);
    wait_archived(&stage);
    stage.server.exec("ALTER USER a@localhost IDENTIFIED BY 'another'").unwrap();
    let of_it = "SELECT id FROM information_schema.processlist WHERE user = 'a'";
    for id in stage.server.query::<u64>(of_it).unwrap() {
        stage.server.exec(format!("KILL {id}")).ok();
    }
    let error = archiver.ended_by_itself();
    assert!(error.kind() == ErrorKind::Server && error.to_string().contains("1045"), "{error}");
    assert_eq!(inserts(&stage.archive()), 3);
}

#[test]
fn mariadb_10_11_refuses() {
    a_server_that_refuses(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_refuses() {
    a_server_that_refuses(ServerKind::MySql97);
}

/// A server that lags behind another server's archive begins no run, and says why.
#[test]
fn a_server_that_is_behind_begins_no_run() {
    let stage = Stage::new(ServerKind::MySql97);
    let second = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    write(&stage.server, 3);
    stage.once();
    let history = || {
        let log = holdfast_repo::LogName { source: source(), kind: holdfast_repo::Kind::Binlog };
        holdfast_repo::log::history::History::read(&stage.repo, &log).unwrap().next_run()
    };
    let before = history();
    let options = ArchiveOptions { standby: true, ..super::options(&second) };
    let (mut archiver, heard) = Archiver::start_heard(&stage.repo, options);
    archiver.wait_for_warning(&heard, "this one cannot take over");
    let report = archiver.stop();
    assert_eq!(history(), before);
    // What another has archived is archived.
    let end = stage.archive().stretches().last().unwrap().ends_at();
    assert_eq!(report.until, Some(end));

    let off = Server::start(ServerKind::MySql97, ServerOptions::default().arg("--log-replica-updates=OFF"))
        .unwrap();
    let options = ArchiveOptions { standby: true, ..super::options(&off) };
    let error = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("log_replica_updates"), "{error}");
}
