//! A name that leads to several servers: connections that end up on another one than the first.

use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use holdfast_core::server::{ConnectOptions, Secret};

use super::*;

/// An address whose connection with this number, counted from 1, leads to `other`; and how many there were.
fn astray(server: &Server, other: &Server, number: usize) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let made = Arc::new(AtomicUsize::new(0));
    let (usual, else_where, counted) = (server.port(), other.port(), Arc::clone(&made));
    thread::spawn(move || {
        for client in listener.incoming() {
            let is_astray = counted.fetch_add(1, Ordering::SeqCst) + 1 == number;
            let to = if is_astray { else_where } else { usual };
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else { return };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    let _gone = std::io::copy(&mut from, &mut to);
                    let _gone = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (port, made)
}

/// Whichever connection of a backup ends up on another server: rows, locks and positions of that one are never taken
/// for the first one's. A backup that succeeds all the same has what the first server has.
fn another_server_answers(kind: ServerKind) {
    let stage = Stage::new(kind);
    let other = start(kind);
    for (server, row) in [(&stage.source, 1), (&other, 2)] {
        server
            .exec_all([
                "CREATE USER backup@'127.0.0.1' IDENTIFIED BY 'b'",
                "GRANT ALL ON *.* TO backup@'127.0.0.1'",
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (id INT PRIMARY KEY)",
                "CREATE TABLE shop.m (id INT PRIMARY KEY) ENGINE=MyISAM",
                &format!("INSERT INTO shop.t VALUES ({row})"),
                &format!("INSERT INTO shop.m VALUES ({row})"),
            ])
            .unwrap();
    }
    let mut refused = 0;
    for number in 2.. {
        let (port, made) = astray(&stage.source, &other, number);
        let mut options = stage.options();
        options.connect = ConnectOptions {
            host: Some("127.0.0.1".to_owned()),
            port: Some(port),
            user: Some("backup".to_owned()),
            password: Some(Secret::new("b".to_owned())),
            ..ConnectOptions::default()
        };
        let outcome = stage.back_up(&options, &Selection::default());
        match outcome {
            Ok(report) => {
                let script = String::from_utf8_lossy(&stage.script(report.run.backup, None)).into_owned();
                assert!(!script.contains("(2)"), "connection {number}: {script}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("not the server that the backup began with"),
                    "connection {number}: {text}"
                );
                refused += 1;
            }
        }
        if made.load(Ordering::SeqCst) < number {
            println!("{kind}: of {} connections {refused} were refused elsewhere", number - 1);
            // The session that reads what is wanted, those that lock, those that read.
            assert!(refused >= 5, "{refused}");
            return;
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
