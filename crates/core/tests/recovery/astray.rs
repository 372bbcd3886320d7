//! Archives with repeated transaction numbers, servers or file names: the recovered state is correct, or
//! recovery is refused.

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::Mutex,
};

use holdfast_core::{
    binlog::{ArchiveOptions, GapKind, archive},
    logical::{self, Selection},
};
use holdfast_repo::{Kind, RunNo};
use holdfast_testkit::replica::{self, CATCH_UP_MAX};

use super::*;
use crate::binlog::{Archiver, once, purge, start_replica};

/// A server with id 1, as most have, and a table.
pub(super) fn stage(kind: ServerKind, more: &[&str]) -> (Stage, tempfile::TempDir) {
    let options = ServerOptions::default().arg("--server-id=1");
    let stage = Stage::with(kind, more.iter().fold(options, |options, arg| options.arg(*arg)));
    stage.server.exec_all(["CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY)"]).unwrap();
    (stage, tempfile::tempdir().unwrap())
}

/// Inserts rows, each in its own transaction.
pub(super) fn insert(server: &Server, ids: std::ops::Range<u32>) {
    server.exec_all(ids.map(|id| format!("INSERT INTO a.t VALUES ({id})"))).unwrap();
}

pub(super) fn ids(server: &Server) -> Vec<u32> {
    server.query("SELECT id FROM a.t ORDER BY id").unwrap()
}

pub(super) fn reset(server: &Server) {
    let is_mariadb = server.kind().is_mariadb();
    server.exec(if is_mariadb { "RESET MASTER" } else { "RESET BINARY LOGS AND GTIDS" }).unwrap();
}

/// Recovers into a new directory in `dir`.
#[track_caller]
pub(super) fn recovered(stage: &Stage, dir: &Path, until: Until) -> Vec<u32> {
    let kind = stage.server.kind();
    let target = tempfile::Builder::new().prefix("target-").tempdir_in(dir).unwrap().path().join("data");
    let report = recover(&stage.repo, kind, &target, until).unwrap();
    println!("{:?}", report.replayed);
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    ids(&copy)
}

pub(super) fn logical_options(server: &Server) -> BackupOptions {
    BackupOptions { name: Some(source()), ..crate::server::backup_options(crate::server::options(server)) }
}

/// A replica replaces its primary: transactions with both servers' ids follow one backup.
fn failover(kind: ServerKind) {
    let (stage, dir) = stage(kind, &[]);
    insert(&stage.server, 0..5);
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    stage.once();
    back_up(&stage, dir.path());
    insert(&stage.server, 5..10);
    stage.once();
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    replica::detach(&second).unwrap();
    insert(&second, 10..20);
    let report = once(&stage.repo, &second);
    assert!(report.gaps.is_empty(), "{report:?}");
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..20).collect::<Vec<_>>());
}

#[test]
fn mariadb_10_11_failover() {
    failover(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_failover() {
    failover(ServerKind::MySql97);
}

/// The error of an archiver whose server differs from the archived one, and its behaviour once it is told
/// that this server replaces the other.
#[track_caller]
fn begins_a_gap(stage: &Stage, other: &Server) {
    let options = ArchiveOptions { once: true, ..crate::binlog::options(other) };
    let error = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Usage && error.to_string().contains("have the same transactions"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("--new-identity"), "{error:?}");
    let options = ArchiveOptions { new_identity: true, ..options };
    let report = archive(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    assert_eq!(report.gaps.len(), 1, "{report:?}");
    assert_eq!(report.gaps[0].kind, GapKind::OtherServer, "{report:?}");
}

/// A server recovered to a point before a mistake, with the id of the lost server, continues its numbers:
/// even when it has passed the archived ones, its transactions are recognised as different.
fn a_recovered_server_counts_past_the_archive(kind: ServerKind) {
    let (stage, dir) = stage(kind, &[]);
    insert(&stage.server, 0..5);
    stage.once();
    back_up(&stage, dir.path());
    insert(&stage.server, 5..20);
    stage.once();
    let order = order_of_commits(&stage.server);
    let mistake = Until::BeforeGtid(order[order.len() - 10].parse().unwrap());
    let target = dir.path().join("recovered");
    recover(&stage.repo, kind, &target, mistake).unwrap();
    let second = Server::attach(kind, &target, ServerOptions::default().arg("--server-id=1")).unwrap();
    assert_eq!(ids(&second), (0..10).collect::<Vec<_>>());
    sleep(Duration::from_millis(1_100));
    insert(&second, 100..130);
    let of_second = order_of_commits(&second);
    assert!(of_second.contains(order.last().unwrap()), "{of_second:?}");
    begins_a_gap(&stage, &second);
    recover(&stage.repo, kind, &dir.path().join("never"), Until::End).unwrap_err();
    back_up_of(&second, &stage, dir.path());
    insert(&second, 130..135);
    once(&stage.repo, &second);
    assert_eq!(recovered(&stage, dir.path(), Until::End), ids(&second));
}

#[test]
fn mariadb_10_11_a_recovered_server_counts_past_the_archive() {
    a_recovered_server_counts_past_the_archive(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_a_recovered_server_counts_past_the_archive() {
    a_recovered_server_counts_past_the_archive(ServerKind::MariaDb118);
}

/// A replica that replaces its primary without the last transactions reuses their numbers; a third server
/// that received the lost ones is no base for what comes after.
#[test]
fn mariadb_10_11_failover_that_lost_transactions() {
    let kind = ServerKind::MariaDb1011;
    let (stage, dir) = stage(kind, &[]);
    insert(&stage.server, 0..5);
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    let third = start_replica(&stage.server, ServerOptions::default().arg("--server-id=3"));
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    replica::detach(&second).unwrap();
    insert(&stage.server, 5..8);
    replica::wait(&stage.server, &third, CATCH_UP_MAX).unwrap();
    third.exec("STOP SLAVE").unwrap();
    stage.once();
    sleep(Duration::from_millis(1_100));
    insert(&second, 8..20);
    // It does not take over from an archiver by itself either.
    let before = stage.archive().stretches().len();
    let options = ArchiveOptions { standby: true, ..crate::binlog::options(&second) };
    let (mut archiver, heard) = Archiver::start_heard(&stage.repo, options);
    archiver.wait_for_warning(&heard, "this one cannot take over");
    archiver.stop();
    assert_eq!(stage.archive().stretches().len(), before);
    begins_a_gap(&stage, &second);
    back_up_of(&third, &stage, dir.path());
    insert(&second, 20..25);
    once(&stage.repo, &second);
    assert!(stage.archive().chains().unwrap().last().unwrap().bases.is_empty());
    let target = dir.path().join("never");
    let order = order_of_commits(&second);
    let last = Until::Gtid(order.last().unwrap().parse().unwrap());
    recover(&stage.repo, kind, &target, last).unwrap_err();
}

/// Transactions that a server leaves out of its binlog are missing after a recovery, which is reported.
#[test]
fn mariadb_10_11_what_the_server_left_out() {
    let kind = ServerKind::MariaDb1011;
    let (stage, dir) = stage(kind, &["--binlog-ignore-db=scratch"]);
    back_up(&stage, dir.path());
    insert(&stage.server, 0..3);
    stage.once();
    let report = recover(&stage.repo, kind, &dir.path().join("target"), Until::End).unwrap();
    assert_eq!(report.replayed.unwrap().reached.leaves_out, ["binlog_ignore_db scratch"]);
}

/// A backup of a replica taken before it replaced its primary remains usable as a base.
fn a_replica_before_the_failover(kind: ServerKind) {
    let (stage, dir) = stage(kind, &[]);
    insert(&stage.server, 0..5);
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    stage.once();
    back_up_of(&second, &stage, dir.path());
    insert(&stage.server, 5..10);
    stage.once();
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    replica::detach(&second).unwrap();
    insert(&second, 10..20);
    once(&stage.repo, &second);
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..20).collect::<Vec<_>>());
}

#[test]
fn mariadb_10_11_a_replica_before_the_failover() {
    a_replica_before_the_failover(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_replica_before_the_failover() {
    a_replica_before_the_failover(ServerKind::MySql97);
}

/// A stopped replica is backed up all the same: later transactions in its primary's
/// archive are needed after it.
#[test]
fn mysql_9_7_a_replica_that_stands_still() {
    let (stage, dir) = stage(ServerKind::MySql97, &[]);
    insert(&stage.server, 0..5);
    stage.once();
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    replica::detach(&second).unwrap();
    let runs: Vec<RunNo> = (1..4)
        .map(|n| {
            stage.server.exec("FLUSH BINARY LOGS").unwrap();
            insert(&stage.server, 5 * n..5 * n + 5);
            stage.once();
            stage.archive().stretches().last().unwrap().run
        })
        .collect();
    back_up_of(&second, &stage, dir.path());
    let archive = stage.archive();
    let bases = archive.chains().unwrap().pop().unwrap().bases;
    let [base] = &bases[..] else { panic!("{bases:?}") };
    let needed_from = archive.needed_from(Kind::Physical, &[RunNo(base.run)]).unwrap().unwrap();
    assert!(needed_from <= runs[0], "{needed_from:?} of {runs:?}");
    assert_eq!(archive.needed_from(Kind::Physical, &[]).unwrap(), None);
    archive.needed_from(Kind::Physical, &[RunNo(base.run + 1)]).unwrap_err();
    // A logical backup of it needs the same.
    let logical = BackupOptions { new_identity: true, ..logical_options(&second) };
    let logical =
        logical::run(&stage.repo, &logical, &Selection::default(), &Told, &Cancel::default()).unwrap();
    let needed_by_logical = archive.needed_from(Kind::Logical, &[RunNo(logical.run.backup)]).unwrap();
    assert_eq!(needed_by_logical, Some(needed_from));
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..20).collect::<Vec<_>>());
}

/// Binlogs purged before they were archived do not prevent backups of a replica from being used as bases, if
/// these end after the gap.
fn a_replica_behind_a_gap(kind: ServerKind) {
    let (stage, dir) = stage(kind, &[]);
    insert(&stage.server, 0..5);
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    stage.once();
    back_up_of(&second, &stage, dir.path());
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    insert(&stage.server, 5..10);
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    purge(&stage.server);
    let report = stage.once();
    assert_eq!(report.gaps.len(), 1, "{report:?}");
    assert_eq!(report.gaps[0].kind, GapKind::Purged, "{report:?}");
    let never = dir.path().join("never");
    recover(&stage.repo, kind, &never, Until::End).unwrap_err();
    back_up_of(&second, &stage, dir.path());
    insert(&stage.server, 10..15);
    stage.once();
    assert_eq!(stage.archive().chains().unwrap().last().unwrap().bases.len(), 1);
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..15).collect::<Vec<_>>());
}

#[test]
fn mariadb_10_11_a_replica_behind_a_gap() {
    a_replica_behind_a_gap(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_a_replica_behind_a_gap() {
    a_replica_behind_a_gap(ServerKind::MySql97);
}

/// An archive begun after a backup of a replica starts at that backup's position, whatever the replica's
/// files are called.
fn begun_behind_a_backup_of_a_replica(kind: ServerKind) {
    let (stage, dir) = stage(kind, &[]);
    let files = |server: &Server| -> Vec<String> {
        let rows: Vec<mysql::Row> = server.query("SHOW BINARY LOGS").unwrap();
        rows.iter().map(|row| row.get(0).unwrap()).collect()
    };
    let flush = |server: &Server, times: usize| {
        server.exec_all(std::iter::repeat_n("FLUSH BINARY LOGS", times)).unwrap();
    };
    insert(&stage.server, 0..5);
    flush(&stage.server, 1);
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    insert(&stage.server, 5..8);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    flush(&second, 3);
    back_up_of(&second, &stage, dir.path());
    let begun = files(&stage.server).pop().unwrap();
    insert(&stage.server, 8..10);
    flush(&stage.server, 5);
    insert(&stage.server, 10..12);
    let (own, others) = (files(&stage.server), files(&second));
    assert!(own.contains(others.last().unwrap()) && own[0] != begun && *others.last().unwrap() > begun);
    stage.once();
    assert_eq!(stage.archive().stretches()[0].stretch.file, begun);
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..12).collect::<Vec<_>>());
}

#[test]
fn mariadb_10_11_begun_behind_a_backup_of_a_replica() {
    begun_behind_a_backup_of_a_replica(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_begun_behind_a_backup_of_a_replica() {
    begun_behind_a_backup_of_a_replica(ServerKind::MySql97);
}

/// A replica that logs only its own writes, MariaDB's default: its backup contains far
/// more than its binlog names.
#[test]
fn mariadb_10_11_a_replica_that_logs_its_own_only() {
    let (stage, dir) = stage(ServerKind::MariaDb1011, &[]);
    insert(&stage.server, 0..5);
    stage.once();
    let options = ServerOptions::default().arg("--server-id=2").arg("--gtid-strict-mode=OFF");
    let second = Server::start(ServerKind::MariaDb1011, options).unwrap();
    let position = replica::Position::Gtid(String::new());
    replica::catch_up(&stage.server, &second, &position, CATCH_UP_MAX).unwrap();
    second.exec("CREATE DATABASE own").unwrap();
    insert(&stage.server, 5..10);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    back_up_of(&second, &stage, dir.path());
    insert(&stage.server, 10..15);
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..15).collect::<Vec<_>>());
    // Recovery to a transaction that the backup already contains is refused.
    let order = order_of_commits(&stage.server);
    let before = Until::BeforeGtid(order[order.len() - 9].parse().unwrap());
    recover(&stage.repo, ServerKind::MariaDb1011, &dir.path().join("never"), before).unwrap_err();
}

/// A replica applies domains independently: what its primary committed first may come last there, and the
/// backup contains it.
#[test]
fn mariadb_10_11_a_replica_has_another_order() {
    let write = |server: &Server, gtids: &[(u32, u32, u32, &str)]| {
        let mut conn = server.conn().unwrap();
        for (domain, id, number, statement) in gtids {
            conn.query_drop(format!(
                "SET SESSION gtid_domain_id = {domain}, server_id = {id}, gtid_seq_no = {number}, \
                 timestamp = 1700000000"
            ))
            .unwrap();
            conn.query_drop(statement).unwrap();
        }
    };
    let (stage, dir) = stage(ServerKind::MariaDb1011, &[]);
    reset(&stage.server);
    write(&stage.server, &[(1, 1, 1, "INSERT INTO a.t VALUES (1)")]);
    pause();
    back_up(&stage, dir.path());
    write(&stage.server, &[(0, 1, 1, "INSERT INTO a.t VALUES (2)")]);
    stage.once();
    let second =
        Server::start(ServerKind::MariaDb1011, ServerOptions::default().arg("--server-id=2")).unwrap();
    second.exec_all(["CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY)"]).unwrap();
    reset(&second);
    second.exec("SET GLOBAL gtid_strict_mode = OFF").unwrap();
    write(
        &second,
        &[
            (0, 1, 1, "INSERT INTO a.t VALUES (2)"),
            (0, 2, 2, "INSERT INTO a.t VALUES (3)"),
            (1, 1, 1, "INSERT INTO a.t VALUES (1)"),
            (0, 2, 3, "INSERT INTO a.t VALUES (4)"),
        ],
    );
    once(&stage.repo, &second);
    assert_eq!(recovered(&stage, dir.path(), Until::End), [1, 2, 3, 4]);
}

/// After a reset, numbers start again: an earlier backup is no base for later transactions.
fn reset_between(kind: ServerKind, more: &[&str]) {
    let (stage, dir) = stage(kind, more);
    insert(&stage.server, 0..30);
    stage.once();
    back_up(&stage, dir.path());
    insert(&stage.server, 30..33);
    stage.once();
    reset(&stage.server);
    // As many transactions again and more, in a file with the same name.
    insert(&stage.server, 33..120);
    let between = pause();
    insert(&stage.server, 120..125);
    let report = stage.once();
    assert_eq!(report.gaps.len(), 1, "{report:?}");
    assert!(matches!(report.gaps[0].kind, GapKind::Reset | GapKind::Diverged), "{report:?}");
    let order = order_of_commits(&stage.server);
    let has_gtids = !order.is_empty();
    let refused = |until| {
        let target = dir.path().join("never");
        recover(&stage.repo, kind, &target, until).unwrap_err();
        assert!(!target.exists());
    };
    refused(Until::Time(between));
    refused(Until::End);
    let in_between = order.get(80).map(|gtid| Until::Gtid(gtid.parse().unwrap()));
    in_between.clone().map(refused);

    // A backup taken after the reset is a base.
    back_up(&stage, dir.path());
    insert(&stage.server, 125..130);
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..130).collect::<Vec<_>>());
    if has_gtids {
        let order = order_of_commits(&stage.server);
        let before = Until::BeforeGtid(order[order.len() - 1].parse().unwrap());
        assert_eq!(recovered(&stage, dir.path(), before), (0..129).collect::<Vec<_>>());
        refused(in_between.unwrap());
    }
}

#[test]
fn mariadb_10_11_reset_between() {
    reset_between(ServerKind::MariaDb1011, &[]);
}

#[test]
fn mysql_9_7_reset_between() {
    reset_between(ServerKind::MySql97, &[]);
}

/// Without GTIDs, MySQL's default, only file positions are available.
#[test]
fn mysql_9_7_reset_between_without_gtids() {
    reset_between(ServerKind::MySql97, &["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]);
}

/// The same if the server is reset as soon as the backup is there, and writes as much again.
fn reset_right_after_a_backup(kind: ServerKind) {
    let (stage, dir) = stage(kind, &[]);
    reset(&stage.server);
    insert(&stage.server, 0..3);
    // So that the file of the backup is not the one of the server's start.
    sleep(Duration::from_secs(4));
    back_up(&stage, dir.path());
    reset(&stage.server);
    insert(&stage.server, 3..9);
    sleep(Duration::from_secs(2));
    insert(&stage.server, 9..10);
    stage.once();
    let target = dir.path().join("never");
    let error = recover(&stage.repo, kind, &target, Until::End).unwrap_err();
    assert!(error.to_string().contains("the archive does not continue"), "{error}");
    assert!(!target.exists());
}

#[test]
fn mariadb_10_11_reset_right_after_a_backup() {
    reset_right_after_a_backup(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_reset_right_after_a_backup() {
    reset_right_after_a_backup(ServerKind::MySql97);
}

/// Of several backups, one is chosen from which the archive leads to the moment.
#[test]
fn mysql_9_7_a_backup_before_a_gap() {
    let (stage, dir) = stage(ServerKind::MySql97, &[]);
    insert(&stage.server, 0..3);
    stage.once();
    back_up(&stage, dir.path());
    insert(&stage.server, 3..5);
    let early = pause();
    insert(&stage.server, 5..6);
    stage.once();
    reset(&stage.server);
    insert(&stage.server, 6..9);
    pause();
    let options = logical_options(&stage.server);
    logical::run(&stage.repo, &options, &Selection::default(), &Told, &Cancel::default()).unwrap();
    insert(&stage.server, 9..12);
    let late = pause();
    insert(&stage.server, 12..15);
    stage.once();
    for (until, kind) in [
        (Until::End, Kind::Logical),
        (Until::Time(late), Kind::Logical),
        (Until::Time(early), Kind::Physical),
    ] {
        let chosen = recovery::choose(&stage.repo, &source(), None, until.clone()).unwrap();
        assert_eq!(chosen.base().0.kind, kind, "{until}");
    }
}

/// A replica that leaves out a domain of its primary, and counts on in it, does not have what is archived.
#[test]
fn mariadb_10_11_a_replica_that_leaves_out_a_domain() {
    let (stage, _dir) = stage(ServerKind::MariaDb1011, &[]);
    insert(&stage.server, 0..5);
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    second.exec_all(["STOP SLAVE", "CHANGE MASTER TO IGNORE_DOMAIN_IDS=(1)", "START SLAVE"]).unwrap();
    let insert_in = |server: &Server, domain: u32, ids: std::ops::Range<u32>| {
        let set = format!("SET SESSION gtid_domain_id = {domain}");
        let inserts = ids.map(|id| format!("INSERT INTO a.t VALUES ({id})"));
        server.exec_all([set].into_iter().chain(inserts)).unwrap();
    };
    insert_in(&stage.server, 1, 5..8);
    insert(&stage.server, 8..10);
    let begin = std::time::Instant::now();
    while ids(&second) != [0, 1, 2, 3, 4, 8, 9] {
        assert!(begin.elapsed() < CATCH_UP_MAX, "{:?}", ids(&second));
        sleep(Duration::from_millis(50));
    }
    stage.once();
    replica::detach(&second).unwrap();
    insert_in(&second, 1, 20..30);
    begins_a_gap(&stage, &second);
}

/// A replica has a transaction of its own with a number that its primary used later, too: nothing of the archive
/// says so, and the archive does not have it.
#[test]
fn mariadb_10_11_a_replica_with_an_older_transaction_of_its_own() {
    let (stage, _dir) = stage(ServerKind::MariaDb1011, &["--gtid-strict-mode=OFF"]);
    insert(&stage.server, 0..5);
    let options = ServerOptions::default().arg("--server-id=2").arg("--gtid-strict-mode=OFF");
    let second = start_replica(&stage.server, options);
    insert(&second, 100..101);
    insert(&stage.server, 5..10);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    assert_eq!(ids(&second).len(), 11);
    stage.once();
    replica::detach(&second).unwrap();
    second.exec("FLUSH BINARY LOGS").unwrap();
    insert(&second, 10..12);
    begins_a_gap(&stage, &second);
}

/// A replica that was restored knows a domain that has been idle since from the backup only; its binlog never had
/// it. The archive continues on it all the same.
#[test]
fn mariadb_10_11_a_restored_replica_and_an_idle_domain() {
    let kind = ServerKind::MariaDb1011;
    let (stage, dir) = stage(kind, &[]);
    let in_another = (0..3).map(|id| format!("INSERT INTO a.t VALUES ({id})"));
    let set = "SET SESSION gtid_domain_id = 1".to_owned();
    stage.server.exec_all([set].into_iter().chain(in_another)).unwrap();
    insert(&stage.server, 3..5);
    stage.once();
    back_up(&stage, dir.path());
    let target = dir.path().join("replica");
    recover(&stage.repo, kind, &target, Until::End).unwrap();
    let second = Server::attach(kind, &target, ServerOptions::default().arg("--server-id=2")).unwrap();
    let position: String = stage.server.value("SELECT @@gtid_binlog_pos").unwrap();
    let position = replica::Position::Gtid(position);
    insert(&stage.server, 5..8);
    replica::catch_up(&stage.server, &second, &position, CATCH_UP_MAX).unwrap();
    let logged: String = second.value("SELECT @@gtid_binlog_state").unwrap();
    assert!(!logged.contains("1-1-"), "{logged}");
    stage.once();
    replica::detach(&second).unwrap();
    insert(&second, 8..10);
    let report = once(&stage.repo, &second);
    assert!(report.gaps.is_empty(), "{report:?}");
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..10).collect::<Vec<_>>());
}

/// A backup that contains transactions committed after the moment is no base for it, whatever the clock of
/// the host that took it showed.
#[test]
fn mariadb_10_11_a_backup_by_a_clock_that_is_late() {
    let (stage, dir) = stage(ServerKind::MariaDb1011, &[]);
    let at = |hours: i64| Timestamp::now() + jiff::SignedDuration::from_hours(hours);
    let insert_at = |time: Timestamp, id: u32| {
        let set = format!("SET SESSION timestamp = {}", time.as_second());
        stage.server.exec_all([set, format!("INSERT INTO a.t VALUES ({id})")]).unwrap();
    };
    stage.once();
    insert(&stage.server, 0..2);
    back_up(&stage, dir.path());
    insert_at(at(1), 2);
    back_up(&stage, dir.path());
    insert_at(at(4), 3);
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::Time(at(2))), [0, 1, 2]);
    assert_eq!(recovered(&stage, dir.path(), Until::Time(at(0))), [0, 1]);
}

/// A transaction with a wrong time, due to its session or host, does not end a recovery early: in that case
/// the time does not tell what comes before and after.
/// Long statements, whose time is that of their start, do no harm.
#[test]
fn mariadb_10_11_times_that_are_wrong() {
    let (stage, dir) = stage(ServerKind::MariaDb1011, &[]);
    let insert_as_of = |seconds: i64, ids: std::ops::Range<u32>| {
        let set = format!("SET SESSION timestamp = UNIX_TIMESTAMP() + {seconds}");
        let inserts = ids.map(|id| format!("INSERT INTO a.t VALUES ({id})"));
        stage.server.exec_all([set].into_iter().chain(inserts)).unwrap();
    };
    stage.once();
    insert(&stage.server, 0..3);
    back_up(&stage, dir.path());
    insert(&stage.server, 3..6);
    let quiet = pause();
    insert(&stage.server, 6..7);
    insert_as_of(-60, 7..12);
    insert(&stage.server, 12..18);
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    insert_as_of(24 * 3600, 18..19);
    insert(&stage.server, 19..25);
    // The next file contains most of the later transactions.
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    insert(&stage.server, 25..35);
    let late = pause();
    insert(&stage.server, 35..38);
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::Time(quiet)), (0..6).collect::<Vec<_>>());

    let order = order_of_commits(&stage.server);
    let of_id = |id: usize| order[order.len() - 38 + id].clone();
    let target = dir.path().join("never");
    let error = recover(&stage.repo, ServerKind::MariaDb1011, &target, Until::Time(late)).unwrap_err();
    let doubted = format!("transaction {} says that it was committed at", of_id(18));
    assert!(error.to_string().contains(&doubted), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--gtid")), "{error:?}");
    assert!(!target.exists());
    let until = Until::Gtid(of_id(34).parse().unwrap());
    assert_eq!(recovered(&stage, dir.path(), until), (0..35).collect::<Vec<_>>());
}

/// The same if the clock was ahead for many transactions.
#[test]
fn mariadb_10_11_a_clock_that_was_ahead() {
    let (stage, dir) = stage(ServerKind::MariaDb1011, &[]);
    stage.once();
    back_up(&stage, dir.path());
    let ahead = (0..40).map(|id| format!("INSERT INTO a.t VALUES ({id})"));
    let set = "SET SESSION timestamp = UNIX_TIMESTAMP() + 1800".to_owned();
    stage.server.exec_all([set].into_iter().chain(ahead)).unwrap();
    insert(&stage.server, 40..65);
    let late = pause();
    insert(&stage.server, 65..68);
    stage.once();
    let order = order_of_commits(&stage.server);
    let of_id = |id: usize| order[order.len() - 68 + id].clone();
    let target = dir.path().join("never");
    let error = recover(&stage.repo, ServerKind::MariaDb1011, &target, Until::Time(late)).unwrap_err();
    let doubted = format!("transaction {} says that it was committed at", of_id(0));
    assert!(error.to_string().contains(&doubted), "{error}");
    assert!(!target.exists());
    let until = Until::Gtid(of_id(64).parse().unwrap());
    assert_eq!(recovered(&stage, dir.path(), until), (0..65).collect::<Vec<_>>());
}

/// A backup contains no temporary tables.
/// Later statements that read a table that was open are refused, and replayed after an older backup.
#[test]
fn mariadb_10_11_a_temporary_table_that_was_open() {
    let (stage, dir) = stage(ServerKind::MariaDb1011, &["--binlog-format=MIXED"]);
    stage.once();
    back_up(&stage, dir.path());
    let mut conn = stage.server.conn().unwrap();
    conn.query_drop("CREATE TEMPORARY TABLE a.own (id INT)").unwrap();
    conn.query_drop("INSERT INTO a.own VALUES (1), (2)").unwrap();
    back_up(&stage, dir.path());
    conn.query_drop("INSERT INTO a.t SELECT id FROM a.own").unwrap();
    stage.once();
    let target = dir.path().join("never");
    let error = recover(&stage.repo, ServerKind::MariaDb1011, &target, Until::End).unwrap_err();
    assert!(error.to_string().contains("a.own"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("an older backup")), "{error:?}");

    let log = holdfast_repo::LogName { source: source(), kind: holdfast_repo::Kind::Physical };
    let history = holdfast_repo::log::history::History::read(&stage.repo, &log).unwrap();
    let oldest = history.standing().next().unwrap().run;
    let recovery =
        recovery::choose(&stage.repo, &source(), Some((Kind::Physical, Some(oldest))), Until::End).unwrap();
    let target = dir.path().join("target");
    let program = ServerKind::MariaDb1011.server_program().unwrap();
    let options = RestoreOptions { server_binary: Some(program), ..RestoreOptions::new(&target) };
    recovery.run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    let copy = Server::attach(ServerKind::MariaDb1011, &target, ServerOptions::default()).unwrap();
    assert_eq!(ids(&copy), [1, 2]);
}

/// Files end and begin after the last wanted transaction, with their own events.
#[test]
fn mysql_9_7_without_gtids() {
    let (stage, dir) = stage(ServerKind::MySql97, &["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]);
    insert(&stage.server, 0..3);
    stage.once();
    back_up(&stage, dir.path());
    insert(&stage.server, 3..6);
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    let quiet = pause();
    insert(&stage.server, 6..9);
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::Time(quiet)), (0..6).collect::<Vec<_>>());
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..9).collect::<Vec<_>>());
}

/// Without `gtid_strict_mode`, two servers that write into one domain use the same numbers.
#[test]
fn mariadb_10_11_numbers_of_one_domain_come_twice() {
    let (stage, dir) = stage(ServerKind::MariaDb1011, &["--gtid-strict-mode=OFF"]);
    let mut conn = stage.server.conn().unwrap();
    let mut both = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            for server in [1, 2] {
                conn.query_drop(format!("SET SESSION server_id = {server}, gtid_seq_no = {number}")).unwrap();
                conn.query_drop(format!("INSERT INTO a.t VALUES ({})", number * 10 + server)).unwrap();
            }
        }
    };
    both(101..106);
    stage.once();
    back_up(&stage, dir.path());
    both(106..112);
    stage.once();
    let all = ids(&stage.server);
    assert_eq!(recovered(&stage, dir.path(), Until::End), all);
    for (until, last) in [
        (Until::Gtid("0-2-108".parse().unwrap()), 1082),
        (Until::BeforeGtid("0-2-108".parse().unwrap()), 1081),
        (Until::Gtid("0-1-109".parse().unwrap()), 1091),
    ] {
        let wanted: Vec<u32> = all.iter().copied().filter(|id| *id <= last).collect();
        assert_eq!(recovered(&stage, dir.path(), until), wanted);
    }
}

/// A server that crashes may lose archived transactions and reuse their numbers.
#[test]
fn mariadb_10_11_numbers_that_were_lost_come_again() {
    let (mut stage, dir) = stage(ServerKind::MariaDb1011, &[]);
    insert(&stage.server, 0..5);
    let status: mysql::Row = stage.server.query("SHOW MASTER STATUS").unwrap().remove(0);
    let (file, kept_bytes): (String, u64) = (status.get(0).unwrap(), status.get(1).unwrap());
    insert(&stage.server, 5..8);
    back_up(&stage, dir.path());
    stage.once();
    stage.server.kill9().unwrap();
    let path = stage.server.datadir().join(file);
    OpenOptions::new().write(true).open(path).unwrap().set_len(kept_bytes).unwrap();
    stage.server.run().unwrap();
    insert(&stage.server, 20..40);
    let report = stage.once();
    assert_eq!(report.gaps.len(), 1, "{report:?}");
    assert_eq!(report.gaps[0].kind, GapKind::Diverged, "{report:?}");
    recover(&stage.repo, ServerKind::MariaDb1011, &dir.path().join("never"), Until::End).unwrap_err();
    back_up(&stage, dir.path());
    insert(&stage.server, 40..45);
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::End), ids(&stage.server));
}

/// Forwards this many bytes of a server's output, on all connections together, and then goes silent.
fn stops_after(server: &Server, bytes: u64) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, left, to) =
        (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(bytes)), server.port());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), Ok(mut server)) = (client, TcpStream::connect(("127.0.0.1", to))) else {
                return;
            };
            let (mut asks, mut asked) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut asks, &mut asked));
            let left = Arc::clone(&left);
            thread::spawn(move || {
                let mut buffer = [0; 4_096];
                while let Ok(count @ 1..) = server.read(&mut buffer) {
                    let mut left = left.lock().unwrap();
                    let may = count.min(usize::try_from(*left).unwrap());
                    *left -= may as u64;
                    drop(left);
                    if client.write_all(&buffer[..may]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// Makes a server execute a binlog with its own programs; returns their errors.
pub(super) fn executed(server: &Server, binlog: &[u8]) -> Result<(), String> {
    let kind = server.kind();
    let (file, statements) =
        (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(file.path(), binlog).unwrap();
    let reader = if kind.is_mariadb() { "mariadb-binlog" } else { "mysqlbinlog" };
    let reader =
        Command::new(kind.program(reader).unwrap()).arg("--no-defaults").arg(file.path()).output().unwrap();
    assert!(reader.status.success(), "{reader:?}");
    std::fs::write(statements.path(), &reader.stdout).unwrap();
    let mut client = Command::new(kind.client_program().unwrap());
    client.args(["--no-defaults", "--user=root", "--binary-mode", "--max-allowed-packet=64M", "--socket"]);
    let client = client.arg(server.socket()).stdin(statements.reopen().unwrap()).output().unwrap();
    if client.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&client.stderr).into_owned()) }
}

/// The server is lost while it sends a transaction, which the replica that replaces it has.
/// What is written out after a logical backup contains the transaction once.
fn failover_inside_a_transaction(kind: ServerKind) {
    const SENT_BYTES: u64 = 3 << 20;
    let (stage, _dir) = stage(kind, if kind.is_mariadb() { &["--binlog-format=ROW"] } else { &[] });
    stage.server.exec("ALTER TABLE a.t ADD v LONGTEXT").unwrap();
    insert_wide(&stage.server, 0..5, 1);
    let second = start_replica(&stage.server, ServerOptions::default().arg("--server-id=2"));
    let options = logical_options(&stage.server);
    let base = logical::run(&stage.repo, &options, &Selection::default(), &Told, &Cancel::default()).unwrap();
    // A file without transactions.
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    stage.once();
    insert_wide(&stage.server, 5..13, 1 << 20);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    replica::detach(&second).unwrap();
    stage.server.exec("CREATE USER archiver@'127.0.0.1' IDENTIFIED BY 'a'").unwrap();
    stage.server.exec("GRANT ALL ON *.* TO archiver@'127.0.0.1'").unwrap();
    let mut options = stage.options();
    options.connect.socket = None;
    options.connect.host = Some("127.0.0.1".to_owned());
    options.connect.port = Some(stops_after(&stage.server, SENT_BYTES));
    options.connect.user = Some("archiver".to_owned());
    options.connect.password = Some(holdfast_core::server::Secret::new("a".to_owned()));
    let begun = stage.archive().stretches().last().unwrap().ends_at();
    let mut archiver = Archiver::start(&stage.repo, options);
    let begin = std::time::Instant::now();
    while stage.archive().stretches().last().unwrap().ends_at().position < begun.position + SENT_BYTES / 2 {
        archiver.check();
        assert!(begin.elapsed() < CATCH_UP_MAX);
        sleep(Duration::from_millis(50));
    }
    archiver.stop();

    insert_wide(&second, 20..23, 1);
    let report = once(&stage.repo, &second);
    assert!(report.gaps.is_empty(), "{report:?}");
    let recovery = recovery::choose(
        &stage.repo,
        &source(),
        Some((Kind::Logical, Some(RunNo(base.run.backup)))),
        Until::End,
    )
    .unwrap();
    let mut binlog = Vec::new();
    let written = recovery.write_binlog(false, &Cancel::default(), &mut |bytes| {
        binlog.extend_from_slice(bytes);
        Ok(())
    });
    assert_eq!(written.unwrap().transactions, 4);
    let target = Server::start(kind, ServerOptions::default()).unwrap();
    target.exec_all(["CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY, v LONGTEXT)"]).unwrap();
    insert_wide(&target, 0..5, 1);
    reset(&target);
    executed(&target, &binlog).unwrap();
    assert_eq!(ids(&target), ids(&second));
}

/// Inserts rows of this many bytes, in one transaction if they are large.
fn insert_wide(server: &Server, ids: std::ops::Range<u32>, bytes: usize) {
    let values: Vec<String> = ids.map(|id| format!("({id}, REPEAT('x', {bytes}))")).collect();
    if bytes == 1 {
        server.exec_all(values.iter().map(|row| format!("INSERT INTO a.t VALUES {row}"))).unwrap();
        return;
    }
    let insert = values.iter().map(|row| format!("INSERT INTO a.t VALUES {row}"));
    let transaction = ["BEGIN".to_owned()].into_iter().chain(insert).chain(["COMMIT".to_owned()]);
    server.exec_all(transaction).unwrap();
}

#[test]
fn mariadb_10_11_failover_inside_a_transaction() {
    failover_inside_a_transaction(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_failover_inside_a_transaction() {
    failover_inside_a_transaction(ServerKind::MySql97);
}

/// An archiver that is stopped in good order in the middle of a transaction leaves no gap and no duplicates.
fn stopped_under_load(kind: ServerKind) {
    let (stage, dir) = stage(kind, &[]);
    stage.once();
    back_up(&stage, dir.path());
    let cancel = Cancel::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut conn = stage.server.conn().unwrap();
            for first in (0..).step_by(40) {
                if cancel.is_cancelled() {
                    return;
                }
                conn.query_drop("BEGIN").unwrap();
                for id in first..first + 40 {
                    conn.query_drop(format!("INSERT INTO a.t VALUES ({id})")).unwrap();
                }
                conn.query_drop("COMMIT").unwrap();
            }
        });
        for _ in 0..12 {
            let archiver = stage.start();
            sleep(Duration::from_millis(150));
            archiver.stop();
        }
        cancel.cancel();
    });
    stage.server.exec("FLUSH BINARY LOGS").unwrap();
    insert(&stage.server, 1_000_000..1_000_002);
    let report = stage.once();
    assert!(report.gaps.is_empty(), "{report:?}");
    assert!(stage.archive().stretches().iter().all(|archived| archived.gap.is_none()));
    assert_eq!(recovered(&stage, dir.path(), Until::End), ids(&stage.server));
}

#[test]
fn mariadb_10_11_stopped_under_load() {
    stopped_under_load(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_stopped_under_load() {
    stopped_under_load(ServerKind::MySql97);
}
