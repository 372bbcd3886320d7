//! Recovery from a logical backup of everything but what was excluded by name: as far as nothing needs that.

use holdfast_core::logical::{self, Selection};
use holdfast_repo::{
    Kind, LogName, RunNo,
    log::{history::History, run::RunOptions},
    ops::expire::{ExpireError, ExpireRequest, expire},
};

use super::{
    astray::{executed, logical_options, reset},
    *,
};

/// What is not excluded is recovered, also a table made later whose name matches. A transaction that needs what was
/// excluded is refused by name, before anything is written.
fn what_was_excluded(kind: ServerKind) {
    let stage = Stage::with(kind, ServerOptions::default().arg("--binlog-format=ROW"));
    let tables = ["shop.orders", "shop.tmp_1", "scratch.t"]
        .map(|table| format!("CREATE TABLE {table} (id INT PRIMARY KEY)"));
    stage.server.exec_all(["CREATE DATABASE shop", "CREATE DATABASE scratch"]).unwrap();
    stage.server.exec_all(tables.iter().map(String::as_str)).unwrap();
    let selection = Selection {
        schemas_excluded: vec!["scratch*".parse().unwrap()],
        tables_excluded: vec!["shop.tmp_*".parse().unwrap()],
        ..Selection::default()
    };
    let options = logical_options(&stage.server);
    let take = |selection: &Selection| {
        let taken = logical::run(&stage.repo, &options, selection, &Told, &Cancel::default()).unwrap();
        RunNo(taken.run.backup)
    };
    let whole = take(&Selection::default());
    stage.once();
    let base = take(&selection);
    // One is no substitute for the other.
    let log = LogName { source: source(), kind: Kind::Logical };
    let request = ExpireRequest::Named(vec![whole]);
    let refused = expire(&stage.repo, &log, &request, &RunOptions::of_this_process());
    assert!(matches!(refused, Err(ExpireError::LastGood { run, .. }) if run == whole), "{refused:?}");
    let history = History::read(&stage.repo, &log).unwrap();
    assert_eq!(history.newest_taken(), Some(whole));
    assert!(history.outcome(base).unwrap().part.unwrap().is_rest);

    stage
        .server
        .exec_all([
            "INSERT INTO shop.orders VALUES (1)",
            "CREATE TABLE shop.tmp_2 (id INT PRIMARY KEY)",
            "INSERT INTO shop.tmp_2 VALUES (2)",
            "CREATE DATABASE IF NOT EXISTS scratch_2",
            "INSERT INTO shop.orders VALUES (3)",
        ])
        .unwrap();
    stage.once();
    recovery::choose(&stage.repo, &source(), Some((Kind::Logical, Some(whole))), Until::End).unwrap();
    // The newest that has everything is preferred to a newer one that has not.
    let chosen = recovery::choose(&stage.repo, &source(), None, Until::End).unwrap();
    assert_eq!(chosen.base(), (&log, whole));
    let chain = stage.archive().chains().unwrap().pop().unwrap();
    assert!(chain.bases.iter().any(|it| it.run == base.0), "{chain:?}");
    assert!(stage.archive().needed_from(Kind::Logical, &[base]).unwrap().is_some());
    let binlog = |run: RunNo| {
        let recovery =
            recovery::choose(&stage.repo, &source(), Some((Kind::Logical, Some(run))), Until::End)?;
        let mut binlog = Vec::new();
        recovery.write_binlog(false, &Cancel::default(), &mut |bytes| {
            binlog.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok::<_, holdfast_core::Error>(binlog)
    };
    let replayed = binlog(base).unwrap();
    let target = Server::start(kind, ServerOptions::default()).unwrap();
    target.exec_all(["CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)"]).unwrap();
    reset(&target);
    executed(&target, &replayed).unwrap();
    let ids: Vec<u32> =
        target.query("SELECT id FROM shop.orders UNION SELECT id FROM shop.tmp_2 ORDER BY id").unwrap();
    assert_eq!(ids, [1, 2, 3]);

    // MariaDB does not log a statement that has done nothing.
    let nothing_done = match kind.is_mariadb() {
        true => "TRUNCATE shop.tmp_1",
        false => "CREATE TABLE IF NOT EXISTS shop.tmp_1 (id INT PRIMARY KEY)",
    };
    for (statement, needed) in [
        ("INSERT INTO shop.tmp_1 VALUES (4)", "needs shop.tmp_1, which was excluded from db1/logical"),
        (nothing_done, "needs shop.tmp_1"),
        ("ALTER TABLE scratch.t ADD n INT", "needs scratch.t"),
    ] {
        let base = take(&selection);
        stage
            .server
            .exec_all(["INSERT INTO shop.orders SELECT MAX(id) + 1 FROM shop.orders", statement])
            .unwrap();
        stage.once();
        let error = binlog(base).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(needed), "{error}");
        assert!(binlog(whole).is_ok());
    }
}

#[test]
fn mariadb_10_11_excluded() {
    what_was_excluded(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_excluded() {
    what_was_excluded(ServerKind::MySql97);
}
