//! A name that leads to several servers: connections of an archiver that end up on another one than the first.

use super::*;
use crate::server::{ACCOUNT, each_led_astray};

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
