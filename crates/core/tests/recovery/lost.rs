//! A host is lost with all its files: acknowledged commits are recovered, or their loss is reported
//! correctly. Where commits do not wait for the archive, the network stands still before that, so that some are
//! always lost.
//!
//! Each pair of server and acknowledgement has one fixed seed; `HOLDFAST_RPO=N` tries N random ones of each
//! instead, and `HOLDFAST_RPO_SEED` is the first of them.

use std::{env, time::Instant};

use holdfast_core::{
    binlog::{Archive, ArchiveOptions},
    server::ConnectOptions,
};
use holdfast_testkit::wire::Wire;
use mysql::prelude::Queryable as _;

use super::*;
use crate::binlog::{Archiver, enable_semi_sync};

const WRITERS: u32 = 3;

/// The longest loss to be told: events are durable a second after they have come, on a machine that is not busy.
const LOSS_MAX_S: u64 = 60;

/// How late a commit may have been sent and still be lost. Server and clients share a clock here; MariaDB's
/// binlog has a resolution of one second, and the last second of an archive is not promised.
fn sent_within(kind: ServerKind) -> jiff::SignedDuration {
    jiff::SignedDuration::from_millis(if kind.is_mariadb() { 2_100 } else { 500 })
}

/// An acknowledged commit: its number, when it was sent, and when it was acknowledged.
type Answered = (u32, Timestamp, Timestamp);

fn write_until_lost(server: &Server, writer: u32) -> thread::JoinHandle<Vec<Answered>> {
    let mut conn = server.conn().unwrap();
    thread::spawn(move || {
        let mut told = Vec::new();
        for number in 1.. {
            let insert = format!("INSERT INTO p.log VALUES ({writer}, {number}, REPEAT('x', 300))");
            let sent = Timestamp::now();
            match conn.query_drop(insert) {
                Ok(()) => told.push((number, sent, Timestamp::now())),
                Err(_) => break,
            }
        }
        told
    })
}

/// The seeds to try: one, unless more are wanted.
fn seeds(usual: u64) -> Vec<u64> {
    let number = |name: &str| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let first = number("HOLDFAST_RPO_SEED");
    match number("HOLDFAST_RPO").or(first.map(|_| 1)) {
        Some(count) => {
            let first = first.unwrap_or_else(|| Timestamp::now().as_microsecond().unsigned_abs());
            (0..count).map(|more| first + more).collect()
        }
        None => vec![usual],
    }
}

fn hosts_are_lost(kind: ServerKind, semi_sync: bool, usual_seed: u64) {
    seeds(usual_seed).into_iter().for_each(|seed| the_host_is_lost(kind, semi_sync, seed));
}

fn the_host_is_lost(kind: ServerKind, semi_sync: bool, seed: u64) {
    println!("HOLDFAST_RPO_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut stage = Stage::with(kind, ServerOptions::default());
    stage
        .server
        .exec_all([
            "CREATE DATABASE p",
            "CREATE TABLE p.log (writer INT, number INT, filler VARCHAR(400), PRIMARY KEY (writer, number))",
        ])
        .unwrap();
    if semi_sync {
        enable_semi_sync(&stage.server);
    }
    let dir = tempfile::tempdir().unwrap();
    let wire = Wire::to(stage.server.port()).unwrap();
    let connect = ConnectOptions { port: Some(wire.port()), ..crate::server::tcp(&stage.server) };
    let (mut archiver, heard) =
        Archiver::start_heard(&stage.repo, ArchiveOptions { semi_sync, connect, ..stage.options() });
    crate::binlog::wait_archived(&stage);
    back_up(&stage, dir.path());
    let writers: Vec<_> = (1..=WRITERS).map(|writer| write_until_lost(&stage.server, writer)).collect();
    sleep(Duration::from_millis(1_500 + rng.below(1_500)));
    let begun = Instant::now();
    while stage.server.value::<u64>("SELECT COUNT(*) FROM p.log").unwrap() < 10 {
        assert!(begun.elapsed() < Duration::from_secs(300), "nothing is written");
        sleep(Duration::from_millis(20));
    }
    if !semi_sync {
        wire.hold();
        sleep(Duration::from_millis(200 + rng.below(3_000)));
    }
    stage.server.kill9().unwrap();
    wire.cut();
    std::fs::remove_dir_all(stage.server.datadir()).unwrap();
    let told: Vec<Vec<Answered>> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    let report = if semi_sync {
        archiver.stop()
    } else {
        // The archiver is not stopped before it has warned: received data become durable nonetheless, as soon as
        // the store accepts them.
        archiver.wait_for_warning(&heard, "nothing has come from the server since");
        let ends = || {
            let archive = Archive::open(&stage.repo, &source()).unwrap();
            let chains = archive.chains().unwrap();
            archive.recoverable_until(chains.last().unwrap())
        };
        let alive = ends();
        let report = archiver.stop();
        assert_eq!(ends(), alive, "what it had was in memory");
        let warned = heard.heard().pop().unwrap();
        assert!(warned.ends_with(&report.away.unwrap().to_string()), "{warned}: {report:?}");
        report
    };
    println!("{report:?}");
    let away = report.away.expect("the server is away");
    let away_us = i64::try_from(away.since - away.behind_s.unwrap() * 1_000_000).unwrap();
    let lost_since = Timestamp::from_microsecond(away_us).unwrap();

    let target = dir.path().join("target");
    recover(&stage.repo, kind, &target, Until::End).unwrap();
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    let archive = Archive::open(&stage.repo, &source()).unwrap();
    let chains = archive.chains().unwrap();
    let until = archive.recoverable_until(chains.last().unwrap()).unwrap();
    let until = Timestamp::from_microsecond(i64::try_from(until).unwrap()).unwrap();
    let mut lost = 0;
    for (writer, told) in (1..).zip(&told) {
        let recovered: Vec<u32> =
            copy.query(format!("SELECT number FROM p.log WHERE writer = {writer} ORDER BY number")).unwrap();
        // Of each client, all commits up to one: nothing is missing in between, and nothing is
        // there that was not sent.
        let last = u32::try_from(recovered.len()).unwrap();
        assert_eq!(recovered, (1..=last).collect::<Vec<_>>());
        assert!(last as usize <= told.len() + 1, "{last} of {}", told.len());
        for (number, _, at) in told.iter().filter(|(number, ..)| *number > last) {
            lost += 1;
            assert!(!semi_sync, "{writer}:{number} was told at {at} and is not there");
            assert!(*at > until, "{writer}:{number} was told at {at}, all until {until} is said to be there");
            assert!(*at > lost_since, "{writer}:{number} was told at {at}, and lost: {away}");
        }
        for (number, sent, _) in told.iter().filter(|(number, ..)| *number <= last) {
            assert!(
                *sent < until + sent_within(kind),
                "{writer}:{number}, sent at {sent}, is there, and {until} is said to be the end"
            );
        }
    }
    let all: usize = told.iter().map(Vec::len).sum();
    println!(
        "{kind}, semi_sync {semi_sync}: {lost} of {all} answered commits lost; recoverable until {until}"
    );
    assert!(all > 0 && (lost > 0) != semi_sync);
    // It is no time that includes every loss by being long.
    assert!(away.behind_s <= Some(LOSS_MAX_S), "{away}");
}

#[test]
fn mariadb_10_11_commits_that_waited_are_recovered() {
    hosts_are_lost(ServerKind::MariaDb1011, true, 51);
}

#[test]
fn mariadb_11_8_commits_that_waited_are_recovered() {
    hosts_are_lost(ServerKind::MariaDb118, true, 55);
}

#[test]
fn mysql_9_7_commits_that_waited_are_recovered() {
    hosts_are_lost(ServerKind::MySql97, true, 52);
}

#[test]
fn mariadb_10_11_what_is_lost_is_told() {
    hosts_are_lost(ServerKind::MariaDb1011, false, 56);
}

#[test]
fn mariadb_11_8_what_is_lost_is_told() {
    hosts_are_lost(ServerKind::MariaDb118, false, 53);
}

#[test]
fn mysql_9_7_what_is_lost_is_told() {
    hosts_are_lost(ServerKind::MySql97, false, 54);
}
