//! A definition that changes for longer than a lock may be waited for.

use std::{sync::Mutex, thread};

use holdfast_core::server::LockPolicy;

use super::*;
use crate::capture::copying::{Copying, files};

/// `CREATE TABLE .. SELECT` has its table to itself until its last row. Before that MariaDB lists the table with
/// NULLs, after it has waited twice for the lock. A backup waits for it as patiently as for a lock, and says why.
#[test]
fn mariadb_a_table_that_cannot_be_listed_yet_is_waited_for() {
    let stage = Stage::around(Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap());
    stage.source.exec("CREATE DATABASE shop").unwrap();
    let slow = "CREATE TABLE shop.slow AS SELECT 5 AS i, SLEEP(26) AS s";
    let hasty = BackupOptions {
        locks: LockPolicy { tries: 1, patience: Duration::ZERO, ..stage.options().locks },
        ..stage.options()
    };
    let backup = thread::scope(|scope| {
        let creating = scope.spawn(|| stage.source.exec(slow));
        let running = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'";
        while stage.source.query::<u64>(running).unwrap() != [1] {
            sleep(Duration::from_millis(50));
        }
        let error = backup::run(&stage.repo, &hasty, &Told, &Cancel::default()).unwrap_err();
        assert!(error.to_string().contains("1205") && error.hint().is_some(), "{error:?}");
        let warnings = Warnings::default();
        let backup = backup::run(&stage.repo, &stage.options(), &warnings, &Cancel::default()).unwrap();
        assert!(warnings.heard().iter().any(|text| text.contains("cannot list the tables yet")));
        creating.join().unwrap().unwrap();
        backup
    });
    let (restored, _) = stage.restore(backup.run.backup);
    assert_eq!(restored.server.query::<u64>("SELECT i FROM shop.slow").unwrap(), [5]);
}

/// Recovery removes the copy of a table that a statement was making, and the tables of its full-text index: none of
/// them is a table that the restore has lost.
fn backed_up_while_a_full_text_is_copied(kind: ServerKind) {
    let stage = Stage::around(Server::start(kind, ServerOptions::default()).unwrap());
    let source = &stage.source;
    source
        .exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.words (id INT PRIMARY KEY, v VARCHAR(150), FULLTEXT (v)) ENGINE=InnoDB",
            "INSERT INTO d.words SELECT seq, CONCAT('word', seq % 7, ' ', SHA2(seq, 512)) FROM d.seq_1_to_3000",
        ])
        .unwrap();
    let before = files(source.datadir(), "");
    let copying = Mutex::new(None);
    let backup = {
        let starting = AtStop(|| *copying.lock().unwrap() = Some(Copying::start(source, "d.words")));
        backup::run(&stage.repo, &stage.options(), &starting, &Cancel::default()).unwrap()
    };
    let during = files(source.datadir(), "");
    assert!(during.len() > before.len() + files(source.datadir(), "#sql").len(), "{during:?}");
    let restored = stage.restore_recovered(&backup).server;
    restored.exec("XA ROLLBACK 'row'").unwrap();
    copying.into_inner().unwrap().unwrap().goes_on().unwrap();
    check_tables(&restored).unwrap();
    assert_equal_checksums(source, &restored).unwrap();
    let found = "SELECT COUNT(*) FROM d.words WHERE MATCH (v) AGAINST ('word3')";
    assert_eq!(restored.value::<u64>(found).unwrap(), source.value::<u64>(found).unwrap());
}

#[test]
fn mariadb_10_11_backed_up_while_a_full_text_is_copied() {
    backed_up_while_a_full_text_is_copied(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_backed_up_while_a_full_text_is_copied() {
    backed_up_while_a_full_text_is_copied(ServerKind::MariaDb118);
}
