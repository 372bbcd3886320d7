//! A definition that changes for longer than a lock may be waited for.

use std::thread;

use holdfast_core::server::LockPolicy;

use super::*;

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
