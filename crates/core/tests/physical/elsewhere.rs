//! A name that leads to several servers: sessions that end up on another one than the one whose files are read.

use super::*;
use crate::server::{ACCOUNT, each_led_astray};

/// Whichever session of a backup ends up on another server, the backup is refused: locks there lock nothing here. (A
/// connection that cannot be had with TLS there is made again, here.)
fn another_server_answers(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let other = Server::start(kind, ServerOptions::default()).unwrap();
    for server in [&source, &other] {
        server.exec_all(ACCOUNT).unwrap();
        server.exec_all(["CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)"]).unwrap();
    }
    let stage = Stage::around(source);
    let refused = each_led_astray(&stage.source, &other, |_, connect| {
        let options = BackupOptions { connect, ..stage.options() };
        backup::run(&stage.repo, &options, &Told, &Cancel::default()).map(drop)
    });
    // Those that watch the redo, lock, and ask.
    assert!(refused >= 3, "{refused}");
}

#[test]
fn mariadb_10_11_another_server_answers() {
    another_server_answers(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_another_server_answers() {
    another_server_answers(ServerKind::MySql97);
}
