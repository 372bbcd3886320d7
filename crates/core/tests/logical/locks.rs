//! Locks of logical backups do not wait for long statements, and nothing waits for the locks.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use holdfast_core::{Event, Listener, backup, logical::Method, server::LockPolicy};
use holdfast_testkit::replica::{self, Position};
use mysql::Conn;

use super::*;

/// Anything that waits for a query waits longer than this: for [`LOCK_WAIT`], or until the query ends.
const SHORT: Duration = Duration::from_secs(30);
/// How long a lock would wait for whatever blocks it.
const LOCK_WAIT: Duration = Duration::from_secs(120);
/// The statement that reads `shop.slow` in a backup.
const READS_SLOWLY: &str = "SELECT HIGH_PRIORITY %`shop`.`slow`%";

fn stage(kind: ServerKind) -> Stage {
    let stage = Stage::new(kind);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY)",
            "INSERT INTO shop.t VALUES (1), (2), (3), (4)",
            "CREATE TABLE shop.other (id INT PRIMARY KEY AUTO_INCREMENT)",
            "CREATE TABLE shop.m (id INT PRIMARY KEY) ENGINE = MyISAM",
            "INSERT INTO shop.m VALUES (1)",
            "CREATE TABLE shop.slow (f FLOAT)",
            "INSERT INTO shop.slow VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15)",
        ])
        .unwrap();
    stage
}

fn options(stage: &Stage) -> BackupOptions {
    BackupOptions { locks: LockPolicy { wait_max: LOCK_WAIT, ..stage.options().locks }, ..stage.options() }
}

/// Selects `shop.slow` so that a backup takes long to read it, in one statement.
fn slowly() -> Selection {
    Selection { filters: vec!["shop.slow=SLEEP(600) = 0".parse().unwrap()], ..Selection::default() }
}

/// The sessions whose statement matches.
fn running(server: &Server, like: &str) -> Vec<u64> {
    let query = format!("SELECT id FROM information_schema.processlist WHERE info LIKE '{like}'");
    server.query(query).unwrap()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn kill(server: &Server, like: &str) {
    for id in running(server, like) {
        server.exec(format!("KILL {id}")).ok();
    }
}

/// Fails if a statement takes long.
fn probe(conn: &mut Conn) {
    for statement in ["SELECT COUNT(*) FROM shop.t", "INSERT INTO shop.other VALUES ()"] {
        let begun = Instant::now();
        conn.query_drop(statement).unwrap();
        assert!(begun.elapsed() < SHORT, "{statement} took {:?}", begun.elapsed());
    }
}

/// Runs `work` while others keep reading and writing, and checks how long their statements take.
/// They run once more afterwards.
fn probed<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut conn = server.conn().unwrap();
            while !is_over.load(Relaxed) {
                probe(&mut conn);
                thread::sleep(Duration::from_millis(10));
            }
            probe(&mut conn);
        });
        let outcome = work();
        is_over.store(true, Relaxed);
        prober.join().unwrap();
        outcome
    })
}

fn assert_short(kind: ServerKind, report: &LogicalReport) {
    println!("{kind}: {:?} {:#?}", report.view.method, report.locks);
    assert!(!report.locks.is_empty());
    for lock in report.locks.iter().filter(|lock| !lock.statement.starts_with("LOCK INSTANCE")) {
        assert!(lock.wait < SHORT && lock.held < SHORT, "{kind}: {lock:?}");
    }
}

/// Runs `work` during a query that begins long before and ends long after.
fn with_long_query<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    const LIKE: &str = "SELECT SLEEP(600)%";
    thread::scope(|scope| {
        let query = scope.spawn(|| server.exec("SELECT SLEEP(600) FROM shop.t").ok());
        wait_for("the query", || running(server, LIKE).len() == 1);
        let outcome = work();
        assert_eq!(running(server, LIKE).len(), 1, "the query is over too soon");
        kill(server, LIKE);
        query.join().unwrap();
        outcome
    })
}

#[test]
fn a_long_query_is_not_waited_for() {
    for kind in ServerKind::all_kinds() {
        let stage = stage(kind);
        let report = with_long_query(&stage.source, || {
            probed(&stage.source, || stage.back_up(&options(&stage), &Selection::default()).unwrap())
        });
        assert_short(kind, &report);
        let expected = if kind.is_mariadb() { Method::BackupStages } else { Method::TableLocks };
        assert_eq!(report.view.method, expected);
        assert!(report.position.is_some());
    }
}

/// A table without a key is read by one statement, however long it takes: another backup does not wait for
/// it.
#[test]
fn two_backups_at_once() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let (first, second) = (stage(kind), tempfile::tempdir().unwrap());
        let repo = crate::physical::new_repo(&second.path().join("repo"));
        thread::scope(|scope| {
            let slow = scope.spawn(|| first.back_up(&options(&first), &slowly()).map(drop));
            wait_for("the statement", || running(&first.source, READS_SLOWLY).len() == 1);
            let report = probed(&first.source, || {
                let options = options(&first);
                logical::run(&repo, &options, &Selection::default(), &Told, &Cancel::default()).unwrap()
            });
            assert_eq!(running(&first.source, READS_SLOWLY).len(), 1, "the first is over too soon");
            assert_short(kind, &report);
            kill(&first.source, READS_SLOWLY);
            slow.join().unwrap().unwrap_err();
        });
    }
}

/// An open transaction that has written to a table does not block any lock either.
#[test]
fn an_open_transaction_is_not_waited_for() {
    let stage = stage(ServerKind::MySql97);
    let mut writer = stage.source.conn().unwrap();
    writer.query_drop("BEGIN").unwrap();
    writer.query_drop("DELETE FROM shop.t WHERE id = 4").unwrap();
    let report = probed(&stage.source, || stage.back_up(&options(&stage), &Selection::default()).unwrap());
    assert_short(stage.source.kind(), &report);
    assert_eq!(report.view.method, Method::ReadLock);
    writer.query_drop("COMMIT").unwrap();

    // With an additional query that blocks the other lock, no lock is requested.
    writer.query_drop("BEGIN").unwrap();
    writer.query_drop("DELETE FROM shop.t WHERE id = 3").unwrap();
    let without_m = Selection { tables_excluded: vec!["shop.m".parse().unwrap()], ..Selection::default() };
    let inconsistent: &[&str] = &["shop.m"];
    for (selection, inconsistent) in [(without_m, &[][..]), (Selection::default(), inconsistent)] {
        let options = BackupOptions {
            locks: LockPolicy { tries: 2, patience: Duration::ZERO, ..options(&stage).locks },
            ..options(&stage)
        };
        let report = with_long_query(&stage.source, || {
            probed(&stage.source, || stage.back_up(&options, &selection).unwrap())
        });
        println!("{:?} {:?}", report.view, report.locks);
        assert_eq!(report.view.method, Method::BinlogPosition);
        assert_eq!(report.view.inconsistent, inconsistent);
        assert!(report.position.is_some());
        assert!(report.locks.iter().all(|lock| lock.statement.starts_with("LOCK INSTANCE")));
        let script = String::from_utf8(stage.script(report.run.backup, Some("shop.t"))).unwrap();
        assert!(script.contains("(3)") && !script.contains("(4)"), "{script}");
    }
}

/// Another backup holds the stages while it copies: the view is established in another way, and the report
/// mentions the failed try.
#[test]
fn stages_that_somebody_else_holds() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let stage = stage(kind);
        let mut other = stage.source.conn().unwrap();
        other.query_drop("BACKUP STAGE START").unwrap();
        let options = BackupOptions {
            locks: LockPolicy { wait_max: Duration::from_secs(1), ..stage.options().locks },
            ..stage.options()
        };
        let report = probed(&stage.source, || stage.back_up(&options, &Selection::default()).unwrap());
        assert_short(kind, &report);
        assert_eq!((report.view.method, report.view.inconsistent.len()), (Method::TableLocks, 0));
        let refused = &report.locks[0];
        assert_eq!((refused.statement.as_str(), refused.held), ("BACKUP STAGE START", Duration::ZERO));
        assert!(refused.wait >= Duration::from_millis(900), "{refused:?}");
        assert!(report.position.is_some());
        other.query_drop("BACKUP STAGE END").unwrap();
    }
}

/// Reports once that a try was given up.
struct GivenUp(Mutex<Option<mpsc::Sender<()>>>);

impl Listener for GivenUp {
    fn event(&self, event: Event) {
        if let Event::Warning { text } = &event
            && text.contains("trying again")
            && let Some(sender) = self.0.lock().unwrap().take()
        {
            sender.send(()).unwrap();
        }
        Told.event(event);
    }
}

/// A definition that is being changed is waited for, with pauses, and every try is in the report.
#[test]
fn the_report_has_locks_of_failed_tries() {
    let stage = stage(ServerKind::MySql97);
    let mut reader = stage.source.conn().unwrap();
    reader.query_drop("BEGIN").unwrap();
    reader.query_drop("SELECT * FROM shop.t").unwrap();
    thread::scope(|scope| {
        let change = scope.spawn(|| stage.source.exec("ALTER TABLE shop.t ADD COLUMN c INT").unwrap());
        wait_for("the change", || running(&stage.source, "ALTER TABLE%").len() == 1);
        let (sender, given_up) = mpsc::channel();
        let options = BackupOptions {
            locks: LockPolicy { wait_max: Duration::from_secs(1), tries: 1, ..stage.options().locks },
            ..stage.options()
        };
        let stage = &stage;
        let backup = scope.spawn(move || {
            let told = GivenUp(Mutex::new(Some(sender)));
            logical::run(&stage.repo, &options, &Selection::default(), &told, &Cancel::default())
        });
        given_up.recv_timeout(Duration::from_secs(120)).unwrap();
        reader.query_drop("COMMIT").unwrap();
        change.join().unwrap();
        let report = backup.join().unwrap().unwrap();
        println!("{:#?}", report.locks);
        let of_instance: Vec<_> =
            report.locks.iter().filter(|lock| lock.statement.starts_with("LOCK INSTANCE")).collect();
        assert!(of_instance.len() >= 2, "{:?}", report.locks);
        assert!(of_instance[0].held.is_zero() && of_instance[0].wait >= Duration::from_millis(900));
        assert!(!of_instance.last().unwrap().held.is_zero());
        let script = String::from_utf8(stage.script(report.run.backup, Some("shop.t"))).unwrap();
        assert!(script.contains("`c` int"), "{script}");
    });
}

/// Reports when the non-transactional tables have been read and released.
struct LetGo(Mutex<(bool, Option<mpsc::Sender<()>>)>);

impl Listener for LetGo {
    fn event(&self, event: Event) {
        let mut state = self.0.lock().unwrap();
        match &event {
            Event::Phase { name: "rows" } => state.0 = true,
            Event::Lock { .. } if state.0 => {
                if let Some(sender) = state.1.take() {
                    sender.send(()).unwrap();
                }
            }
            _ => {}
        }
        drop(state);
        Told.event(event);
    }
}

/// A physical backup completes while a logical one is reading, and does not wait for it: no try of a lock fails.
/// It must close tables of other engines for a moment. If there are none, the logical one keeps MySQL's instance
/// lock to its end.
fn physical_beside_logical(kind: ServerKind, is_innodb_only: bool) {
    let stage = stage(kind);
    let mut tables = vec!["shop.t", "shop.slow"];
    if is_innodb_only {
        stage.source.exec("DROP TABLE shop.m").unwrap();
    } else {
        tables.push("shop.m");
    }
    let spool = tempfile::tempdir().unwrap();
    let slow = Selection { filters: vec!["shop.slow=SLEEP(60) = 0".parse().unwrap()], ..slowly() };
    thread::scope(|scope| {
        let (sender, read) = mpsc::channel();
        let stage = &stage;
        let reading = scope.spawn(move || {
            let told = LetGo(Mutex::new((false, Some(sender))));
            logical::run(&stage.repo, &options(stage), &slow, &told, &Cancel::default()).map(drop)
        });
        if !is_innodb_only {
            read.recv_timeout(Duration::from_secs(120)).unwrap();
        }
        wait_for("the statement", || running(&stage.source, READS_SLOWLY).len() == 1);
        let physical = BackupOptions {
            locks: LockPolicy {
                wait_max: Duration::from_secs(2),
                tries: 2,
                patience: Duration::ZERO,
                ..stage.options().locks
            },
            spool_dir: Some(spool.path().to_owned()),
            ..stage.options()
        };
        let report = backup::run(&stage.repo, &physical, &Told, &Cancel::default());
        // The locks that protect definitions still hold, for tables that were read and those that were
        // not yet.
        for table in tables {
            let change = format!("ALTER TABLE {table} ADD COLUMN c INT");
            let changed = stage.source.exec_all(["SET SESSION lock_wait_timeout = 1", &change]);
            let error = format!("{:?}", changed.expect_err(table));
            assert!(error.contains("1205"), "{kind}: {error}");
        }
        let still = running(&stage.source, READS_SLOWLY).len();
        kill(&stage.source, READS_SLOWLY);
        reading.join().unwrap().unwrap_err();
        let report = report.unwrap();
        println!("{kind}: {:#?}", report.locks);
        assert_eq!(still, 1, "the logical backup is over too soon");
        assert!(!report.locks.is_empty());
        for lock in &report.locks {
            assert!(!lock.held.is_zero() && lock.wait < Duration::from_secs(2), "{kind}: {lock:?}");
        }
    });
}

#[test]
fn a_physical_backup_beside_a_logical_one() {
    for kind in ServerKind::all_kinds() {
        physical_beside_logical(kind, false);
    }
}

#[test]
fn a_physical_backup_beside_a_logical_one_of_innodb_only() {
    for kind in [ServerKind::MariaDb118, ServerKind::MySql97] {
        physical_beside_logical(kind, true);
    }
}

/// A server that does not record which sessions block others.
#[test]
fn a_server_that_notes_nothing() {
    let stage = Stage::with(ServerKind::MySql97, &["--performance-schema=OFF"]);
    stage.source.exec_all(["CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)"]).unwrap();
    let report = stage.back_up(&options(&stage), &Selection::default()).unwrap();
    assert_eq!(report.view.method, Method::TableLocks);
}

/// A MySQL replica that uses its primary's binlog files is backed up under either lock with its position, but
/// not if its appliers may have left gaps, since no position describes those.
#[test]
fn mysql_9_7_a_replica_by_file() {
    let args = ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--replica-parallel-workers=4"];
    let stage = Stage::with(ServerKind::MySql97, &args);
    let primary = start_with(ServerKind::MySql97, &args);
    let beginning = Position::File { name: "binlog.000001".to_owned(), offset: 4 };
    replica::follow(&primary, &stage.source, &beginning).unwrap();
    primary.exec_all(["CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)"]).unwrap();
    primary.exec_all((0..50).map(|id| format!("INSERT INTO shop.t VALUES ({id})"))).unwrap();
    primary.exec("CREATE TABLE shop.the_end (id INT PRIMARY KEY)").unwrap();
    wait_for("the last table", || stage.source.exec("SELECT 1 FROM shop.the_end").is_ok());
    let status: mysql::Row = primary.query("SHOW BINARY LOG STATUS").unwrap().pop().unwrap();
    let end: (String, u64) = (status.get(0).unwrap(), status.get(1).unwrap());
    let back_up = || stage.back_up(&options(&stage), &Selection::default());
    let place = |report: &LogicalReport| {
        let [channel] = &report.position.as_ref().unwrap().replica_of[..] else { panic!("{report:?}") };
        channel.executed.clone().map(|place| (place.file, place.offset))
    };
    let report = back_up().unwrap();
    assert_eq!((report.view.method, place(&report)), (Method::TableLocks, Some(end.clone())));
    let mut open = stage.source.conn().unwrap();
    open.query_drop("BEGIN").unwrap();
    open.query_drop("DELETE FROM shop.t WHERE id = 7").unwrap();
    let report = back_up().unwrap();
    assert_eq!((report.view.method, place(&report)), (Method::ReadLock, Some(end)));

    let order = ["STOP REPLICA", "SET GLOBAL replica_preserve_commit_order = OFF", "START REPLICA"];
    stage.source.exec_all(order).unwrap();
    let error = back_up().unwrap_err().to_string();
    assert!(error.contains("without preserving commit order"), "{error}");
    open.query_drop("ROLLBACK").unwrap();
    let error = back_up().unwrap_err().to_string();
    assert!(error.contains("without preserving commit order"), "{error}");
    stage.source.exec("STOP REPLICA SQL_THREAD").unwrap();
    back_up().unwrap();
}
