//! After a reset, transaction names are reused: recovery to a name works only if it is clear which
//! transaction is meant.

use holdfast_core::recovery::Recovery;
use holdfast_repo::{Kind, RunNo};

use super::*;

fn choose(stage: &Stage, named: Option<u64>, until: Until) -> Result<Recovery> {
    recovery::choose(&stage.repo, &source(), named.map(|run| (Kind::Physical, Some(RunNo(run)))), until)
}

fn never(stage: &Stage, dir: &Path) -> RestoreOptions {
    let server_binary = Some(stage.server.kind().server_program().unwrap());
    RestoreOptions { server_binary, ..RestoreOptions::new(dir.join("never")) }
}

/// Checks that a request is refused as unsatisfiable, before anything is written.
#[track_caller]
fn refused(stage: &Stage, dir: &Path, until: Until) -> holdfast_core::Error {
    let options = never(stage, dir);
    let planned = choose(stage, None, until)
        .and_then(|recovery| recovery.plan(&stage.repo, &options, &Cancel::default()));
    let error = planned.unwrap_err();
    println!("{error}\n  {:?}", error.hint());
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    error
}

/// The rows after a recovery.
#[track_caller]
fn rows(stage: &Stage, dir: &Path, named: Option<u64>, until: Until) -> Vec<u32> {
    let kind = stage.server.kind();
    let target = tempfile::Builder::new().prefix("target-").tempdir_in(dir).unwrap().path().join("data");
    let options = RestoreOptions {
        server_binary: Some(kind.server_program().unwrap()),
        ..RestoreOptions::new(&target)
    };
    choose(stage, named, until).unwrap().run(&stage.repo, &options, &Told, &Cancel::default()).unwrap();
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    copy.query("SELECT id FROM a.t ORDER BY id").unwrap()
}

fn names_come_again(kind: ServerKind) {
    let stage = Stage::with(kind, ServerOptions::default().arg("--server-id=1"));
    let dir = tempfile::tempdir().unwrap();
    let insert = |ids: std::ops::Range<u32>| {
        stage.server.exec_all(ids.map(|id| format!("INSERT INTO a.t VALUES ({id})"))).unwrap();
    };
    stage.server.exec_all(["CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY)"]).unwrap();
    insert(0..3);
    stage.once();
    back_up(&stage, dir.path());
    pause();
    insert(3..20);
    let before = order_of_commits(&stage.server);
    stage.once();
    let last_at = stage.archive().chains().unwrap()[0].last_at.unwrap();
    let last_at = Timestamp::from_microsecond(i64::try_from(last_at).unwrap()).unwrap();
    let between = pause();
    stage
        .server
        .exec(if kind.is_mariadb() { "RESET MASTER" } else { "RESET BINARY LOGS AND GTIDS" })
        .unwrap();
    insert(100..102);
    // In the second of a reset, nothing tells the file of the backup from a later one of that name.
    pause();
    back_up(&stage, dir.path());
    insert(102..115);
    stage.once();
    let since = order_of_commits(&stage.server);

    // The names of row 7, and of a row above 100.
    let twice = &before[before.len() - 20 + 7];
    let other = since.iter().position(|gtid| gtid == twice).unwrap();
    let [until, before_it] = [Until::Gtid, Until::BeforeGtid].map(|until| until(twice.parse().unwrap()));
    let (name, refusals) = (source(), [(until, "--gtid"), (before_it.clone(), "--before-gtid")]);
    for (until, option) in refusals {
        let error = refused(&stage, dir.path(), until);
        assert!(error.to_string().contains("more than once"), "{error}");
        for id in 1..=2 {
            let way = format!("restore {name}#{id} {option} {twice}");
            assert!(error.hint().unwrap().contains(&way), "{error:?}");
        }
    }
    assert_eq!(rows(&stage, dir.path(), Some(1), before_it.clone()), (0..7).collect::<Vec<_>>());
    let others = (0..20).chain(100..100 + u32::try_from(other).unwrap());
    assert_eq!(rows(&stage, dir.path(), Some(2), before_it), others.collect::<Vec<_>>());

    // A name that existed only before the reset is recovered from the earlier backup, although the last one
    // has a lower number.
    let last = before.last().unwrap();
    assert!(!since.contains(last));
    let until = Until::Gtid(last.parse().unwrap());
    assert_eq!(rows(&stage, dir.path(), None, until.clone()), (0..20).collect::<Vec<_>>());
    // With another backup named, it is refused.
    let options = never(&stage, dir.path());
    let error = choose(&stage, Some(2), until).unwrap().plan(&stage.repo, &options, &Cancel::default());
    let error = error.unwrap_err();
    assert!(error.to_string().contains("does not contain") && error.to_string().contains("#2"), "{error}");
    assert!(error.hint().is_some());

    // A time between the last transaction and the reset: the error says how far recovery is possible.
    let error = refused(&stage, dir.path(), Until::Time(between));
    assert!(error.to_string().contains(&format!("transaction {last}, committed at {last_at}")), "{error}");
    assert!(error.hint().unwrap().contains(&format!("restore {name}#1 --gtid {last}")), "{error:?}");
    // MariaDB's last second may have contained more transactions.
    match kind.is_mariadb() {
        true => {
            let error = refused(&stage, dir.path(), Until::Time(last_at));
            assert!(error.to_string().contains("has a gap before"), "{error}");
        }
        false => {
            let recovery = choose(&stage, None, Until::Time(last_at)).unwrap();
            let plan = recovery.plan(&stage.repo, &options, &Cancel::default()).unwrap();
            assert_eq!(plan.replay.transactions, 17);
        }
    }
}

#[test]
fn mariadb_10_11_names_come_again() {
    names_come_again(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_names_come_again() {
    names_come_again(ServerKind::MySql97);
}
