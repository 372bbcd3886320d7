//! A name that leads to several servers: connections of an archiver that end up on another one than the first.

use std::sync::atomic::{AtomicU16, Ordering};

use super::*;
use crate::server::{ACCOUNT, at_port, each_led_astray, relay};

/// Whichever connection of an archiver ends up on another server: what is archived is of the first one, and there is
/// no gap, whether the archive begins or continues.
fn another_server_answers(kind: ServerKind) {
    let stage = Stage::new(kind);
    let other = Server::start(kind, ServerOptions::default()).unwrap();
    for (server, files) in [(&stage.server, 2), (&other, 4)] {
        server.exec_all(ACCOUNT).unwrap();
        server.exec_all(["CREATE DATABASE g", "CREATE TABLE g.t (id SERIAL, v INT)"]).unwrap();
        for file in 0..files {
            server.exec(format!("INSERT INTO g.t (v) VALUES ({file})")).unwrap();
            server.exec("FLUSH BINARY LOGS").unwrap();
        }
    }
    let archive_once = |repo: &Arc<Repo>, connect| {
        let options = ArchiveOptions { name: Some(source()), once: true, ..ArchiveOptions::new(connect) };
        let report = archive(repo, &options, &Told, &Cancel::default())?;
        assert_eq!(report.gaps, []);
        let archive = Archive::open(repo, &source()).unwrap();
        assert!(compare_files(&archive, &stage.server) > 0);
        Ok(())
    };
    let begun = each_led_astray(&stage.server, &other, |_, connect| {
        let (_dir, repo) = new_repo();
        archive_once(&repo, connect)
    });
    let continued = each_led_astray(&stage.server, &other, |number, connect| {
        stage.server.exec(format!("INSERT INTO g.t (v) VALUES ({number})")).unwrap();
        archive_once(&stage.repo, connect)
    });
    // The session that asks where the archive continues, and the stream.
    assert!(begun >= 2 && continued >= 1, "{begun}, {continued}");
}

#[test]
fn mariadb_10_11_another_server_answers() {
    another_server_answers(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_another_server_answers() {
    another_server_answers(ServerKind::MySql97);
}

/// A failover that leads new connections to the new primary and cuts none to the old one, which stays up and has
/// nothing more to send: an archiver notices, and continues at the new primary.
fn the_old_primary_stays_up(kind: ServerKind) {
    let stage = Stage::new(kind);
    stage.server.exec_all(ACCOUNT).unwrap();
    stage.server.exec_all(["CREATE DATABASE g", "CREATE TABLE g.t (id SERIAL, v INT)"]).unwrap();
    stage.server.exec("INSERT INTO g.t (v) VALUES (1)").unwrap();
    let second = start_replica(&stage.server, ServerOptions::default());
    let to = Arc::new(AtomicU16::new(stage.server.port()));
    let leads_to = Arc::clone(&to);
    let port = relay(move || leads_to.load(Ordering::SeqCst));
    let options = ArchiveOptions {
        name: Some(source()),
        look_every: Duration::from_millis(200),
        ..ArchiveOptions::new(at_port(port))
    };
    let mut archiver = Archiver::start(&stage.repo, options);
    wait_archived_by(&stage, &mut archiver);
    replica::wait(&stage.server, &second, CATCH_UP_MAX).unwrap();
    replica::detach(&second).unwrap();
    to.store(second.port(), Ordering::SeqCst);
    second.exec("INSERT INTO g.t (v) VALUES (2)").unwrap();
    let begin = Instant::now();
    let has_come = |archive: &Archive| {
        archive.stretches().iter().any(|archived| archived.stretch.server.port == second.port())
    };
    while !has_come(&stage.archive()) {
        archiver.check();
        assert!(begin.elapsed() < Duration::from_secs(90), "it waits for what never comes");
        sleep(Duration::from_millis(100));
    }
    assert_eq!(archiver.stop().gaps, []);
}

#[test]
fn mariadb_10_11_the_old_primary_stays_up() {
    the_old_primary_stays_up(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_the_old_primary_stays_up() {
    the_old_primary_stays_up(ServerKind::MySql97);
}
