//! Decisions about XA branches that are under way when the position is read.

use std::thread;

use mysql::prelude::Queryable;

use super::*;

/// MySQL's `log_status` has an `XA COMMIT` in its binlog position that InnoDB has not carried out: what follows
/// that position would not bring it either.
#[test]
fn mysql_the_position_is_not_ahead_of_an_xa_commit() {
    let gtids = ServerOptions::default().arg("--gtid-mode=ON").arg("--enforce-gtid-consistency=ON");
    for options in [gtids, ServerOptions::default().arg("--gtid-mode=OFF")] {
        let source = Server::start(ServerKind::MySql97, options.clone()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE xa",
                "CREATE TABLE xa.t (id INT PRIMARY KEY)",
                "CREATE TABLE xa.u (id INT)",
            ])
            .unwrap();
        let mut branch = source.conn().unwrap();
        for statement in ["XA START 'b'", "INSERT INTO xa.t VALUES (1)", "XA END 'b'", "XA PREPARE 'b'"] {
            branch.query_drop(statement).unwrap();
        }
        // Long enough for the position to be read in between.
        source.exec("SET GLOBAL binlog_group_commit_sync_delay = 300000").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let decision = Mutex::new(Some(branch));
        let captured = thread::scope(|scope| {
            let decide = || {
                let Some(mut branch) = decision.lock().unwrap().take() else { return };
                scope.spawn(move || branch.query_drop("XA COMMIT 'b'").unwrap());
                sleep(Duration::from_millis(60));
            };
            at_point("backup.tables.locked", decide, || capture(&source, &sink, dir.path()))
        });
        let end: Vec<(String, u64, String, String, String)> = source.query("SHOW BINARY LOG STATUS").unwrap();
        let position = captured.position.binlog.as_ref().unwrap();
        assert_eq!(
            (&position.file, position.offset),
            (&end[0].0, end[0].1),
            "the XA COMMIT was not under way"
        );
        let target = dir.path().join("data");
        sink.place(&target);
        lay_out_redo(&target, &captured.redo);
        let copy = Server::attach(source.kind(), target, options).unwrap();
        assert_eq!(copy.query::<i32>("SELECT id FROM xa.t").unwrap(), [1]);
    }
}
