//! A name that leads to several servers: connections that end up on another one than the first.

use super::*;
use crate::server::{ACCOUNT, each_led_astray};

/// Whichever connection of a backup ends up on another server: rows, locks and positions of that one are never taken
/// for the first one's. A backup that succeeds all the same has what the first server has.
fn another_server_answers(kind: ServerKind) {
    let stage = Stage::new(kind);
    let other = start(kind);
    for (server, row) in [(&stage.source, 1), (&other, 2)] {
        server.exec_all(ACCOUNT).unwrap();
        server
            .exec_all([
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (id INT PRIMARY KEY)",
                "CREATE TABLE shop.m (id INT PRIMARY KEY) ENGINE=MyISAM",
                &format!("INSERT INTO shop.t VALUES ({row})"),
                &format!("INSERT INTO shop.m VALUES ({row})"),
            ])
            .unwrap();
    }
    let refused = each_led_astray(&stage.source, &other, |number, connect| {
        let options = BackupOptions { connect, ..stage.options() };
        let report = stage.back_up(&options, &Selection::default())?;
        let script = String::from_utf8_lossy(&stage.script(report.run.backup, None)).into_owned();
        assert!(!script.contains("(2)"), "connection {number}: {script}");
        Ok(())
    });
    // The session that reads what is wanted, those that lock, those that read.
    assert!(refused >= 5, "{refused}");
}

#[test]
fn mariadb_10_11_another_server_answers() {
    another_server_answers(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_another_server_answers() {
    another_server_answers(ServerKind::MySql97);
}
