//! A name that leads to several servers: sessions that end up on another one than the one whose files are read.

use std::sync::atomic::Ordering;

use super::*;
use crate::server::{ACCOUNT, astray, by_port};

/// Whichever connection of a backup ends up on another server, the backup is refused: locks there lock nothing here.
fn another_server_answers(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    let other = Server::start(kind, ServerOptions::default()).unwrap();
    for server in [&source, &other] {
        server.exec_all(ACCOUNT).unwrap();
        server.exec_all(["CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)"]).unwrap();
    }
    let stage = Stage::around(source);
    let mut refused = 0;
    for number in 2.. {
        let (port, made) = astray(&stage.source, &other, number);
        let options = BackupOptions { connect: by_port(port), ..stage.options() };
        let outcome = backup::run(&stage.repo, &options, &Told, &Cancel::default());
        let connections = made.load(Ordering::SeqCst);
        match outcome {
            // A session that cannot be had with TLS there is asked for again, here.
            Ok(_) if connections >= number => {}
            Ok(_) => {
                println!("{kind}: of {connections} connections {refused} were refused elsewhere");
                // Those that watch the redo, lock, and ask.
                assert!(refused >= 3, "{refused}");
                return;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("not the server that the backup began with"), "{number}: {text}");
                refused += 1;
            }
        }
    }
}

#[test]
fn mariadb_10_11_another_server_answers() {
    another_server_answers(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_another_server_answers() {
    another_server_answers(ServerKind::MySql97);
}
