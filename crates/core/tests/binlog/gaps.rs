//! Where an archive goes on, on the same server and on another, and what it says where it cannot.

use std::os::unix::fs::symlink;

use holdfast_core::{ErrorKind, binlog::GapKind};
use holdfast_testkit::replica;

use super::*;
use crate::listeners::Warnings;

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
    // A file that recovery may still need stays for a moment.
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

/// What was purged after it was archived is not missed; what was purged before is, and so is a binlog that was begun anew.
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

    // Nor is it what was archived where as many transactions were made since, in files of lower numbers.
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
    // Across a gap nothing is replayed.
    let error =
        archive.transactions(&Behind::Stretch(0), &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err();
    assert!(error.to_string().contains("gap"), "{error}");
    archive.transactions(&Behind::Stretch(chains[3].first), &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
}

/// A server whose binlogs are begun anew while it is archived, and whose file has the same name again, is noticed.
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

/// A replica that takes its primary's place is gone on with by GTID: each transaction is there once. What the archive has
/// and it has not is a gap.
fn failover(kind: ServerKind) {
    let stage = Stage::new(kind);
    write(&stage.server, 3);
    let second = start_replica(&stage.server, ServerOptions::default());
    write(&stage.server, 3);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    stage.once();
    // Of one that takes long a replica says otherwise when it was committed.
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
    let names = gtids_behind(&archive_now, &Behind::Stretch(0));
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(names.len(), unique.len(), "{names:?}");
    assert_eq!(inserts(&archive_now), 3 + 3 + 2 + 4 + 1, "{names:?}");

    // The old primary went on by itself.
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
        .transactions(&Behind::Stretch(0), &mut |event| {
            inserts += usize::from(event.part == Part::Inside && event.event.header.kind.is_rows());
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    inserts
}

/// The same under an archiver that goes on: what it had of the one server and what it gets of the other are kept apart, also
/// where their files have the same names.
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
    // What it writes stands nearer to the beginning of its file than what the first one wrote.
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

/// A run that is due when its server comes back ends with what it has.
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

/// A server that loses the end of its binlog says something else than what was archived from it.
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
    // Begun anew under the same name, and longer than it was.
    reset(&stage.server);
    write(&stage.server, 20);
    let report = stage.once();
    assert_eq!(report.gaps.len(), 1, "{report:?}");
    assert_eq!(report.gaps[0].kind, GapKind::Reset, "{report:?}");
    stage.server.restart().unwrap();
    assert!(stage.once().gaps.is_empty());
}

/// One archiver at a time; one without privileges is told which it lacks.
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

/// A replica whose binlog lacks what it replicates is not archived; what else a server leaves out is told.
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

/// The same of a server that is made such a replica while it is archived.
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

/// A replica that leaves out some of what it replicates has the GTIDs of all, or later ones: it would go on with the archive of
/// its primary without a gap, and without what it leaves out. It must be told that it may.
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
    // So must one whose account may see no more than it needs.
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

/// The same of one that begins to while it is archived.
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

/// That commits wait is for the server to decide: one that is not to is refused, and what lets commits return before is told.
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
    let wait_for = |text: &str| {
        let begin = Instant::now();
        while !heard.heard().iter().any(|warning| warning.contains(text)) {
            assert!(begin.elapsed() < CATCH_UP_MAX, "{text}: {:?}", heard.heard());
            sleep(Duration::from_millis(100));
        }
    };
    wait_for(&format!("60000 ms ({prefix}_timeout)"));
    wait_archived(&stage);
    // A replica that acknowledges, too.
    let store = Arc::new(FsStore::create(stage.dir.path().join("other")).unwrap());
    let password = Password::new("a password".to_owned()).unwrap();
    let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
    let more = Archiver::start(&Arc::new(Repo::init(store, &protection).unwrap()), options);
    wait_for("2 replicas acknowledge");
    more.stop();
    stage.server.exec(format!("SET GLOBAL {prefix}_timeout = 1")).unwrap();
    write(&stage.server, 3);
    wait_for("commits returned without waiting");
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

/// Waiting does not help against a password that was changed: it is said, and ends.
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

/// A server that is behind what another's archive has begins no run, however long it waits.
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
    let mut archiver =
        Archiver::start(&stage.repo, ArchiveOptions { standby: true, ..super::options(&second) });
    sleep(Duration::from_secs(16));
    archiver.check();
    assert_eq!(history(), before);
    archiver.stop();

    let off = Server::start(ServerKind::MySql97, ServerOptions::default().arg("--log-replica-updates=OFF"))
        .unwrap();
    let options = ArchiveOptions { standby: true, ..super::options(&off) };
    let error = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("log_replica_updates"), "{error}");
}
