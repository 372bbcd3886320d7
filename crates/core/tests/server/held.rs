//! Locks are held as long as necessary, and no longer: not by a client that is frozen, cut off, slow or gone.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use holdfast_core::server::{
    Attempt, BackupStages, ConnectOptions, HeldSession, InstanceLock, LockLimits, Purpose, RedoConsumer,
    Session, SqlCause, Stage, TableLock, TableName, WAIT_TIMEOUT, locks::STOPPED_PURGE_NOTE,
    status::MariaDbPosition,
};
use holdfast_formats::Lsn;
use holdfast_testkit::{Server, ServerKind};

use super::{FREE_MAX, on_each, options, sleeper, start, tcp};

const MARIADB: [ServerKind; 2] = [ServerKind::MariaDb1011, ServerKind::MariaDb118];

fn unlimited() -> LockLimits {
    LockLimits { wait_max: Duration::from_secs(1), held_max: None }
}

fn limited(held_max: Duration) -> LockLimits {
    LockLimits { held_max: Some(held_max), ..unlimited() }
}

fn granted(attempt: Attempt) {
    assert_eq!(attempt, Attempt::Granted);
}

/// Whether a statement succeeds within a second.
fn passes(server: &Server, statement: &str) -> bool {
    match server.exec_all(["SET SESSION lock_wait_timeout = 1", statement]) {
        Ok(()) => true,
        Err(error) => {
            assert!(format!("{error:#}").contains("1205"), "{error:#}");
            false
        }
    }
}

fn enter_all(stages: &mut BackupStages) {
    for stage in [Stage::Start, Stage::Flush, Stage::BlockDdl, Stage::BlockCommit] {
        granted(stages.enter(stage).unwrap());
    }
}

/// Whether all stages are entered within the limit.
fn enter_within(stages: &mut BackupStages) -> bool {
    for stage in [Stage::Start, Stage::Flush, Stage::BlockDdl, Stage::BlockCommit] {
        match stages.enter(stage) {
            Ok(attempt) => granted(attempt),
            Err(error) => {
                assert_eq!(*error.cause(), SqlCause::Expired, "{error}");
                return false;
            }
        }
    }
    true
}

fn eventually(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Each stage blocks what it should, the position can be read in it, and the end releases everything.
#[test]
fn stages_block_and_release() {
    for kind in MARIADB {
        let server = start(kind);
        server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT)"]).unwrap();
        let ddl = "CREATE OR REPLACE TABLE d.x (i INT)";
        let commit = "INSERT INTO d.t VALUES (1)";
        let mut stages = BackupStages::open(&options(&server), unlimited()).unwrap();
        assert!(stages.enter(Stage::Flush).is_err(), "no stage without a start");
        granted(stages.enter(Stage::Start).unwrap());
        assert!(passes(&server, ddl) && passes(&server, commit));
        granted(stages.enter(Stage::BlockDdl).unwrap());
        assert!(!passes(&server, ddl) && passes(&server, commit));
        granted(stages.enter(Stage::BlockCommit).unwrap());
        assert!(!passes(&server, ddl) && !passes(&server, commit));
        let position = stages.session().with(MariaDbPosition::read).unwrap();
        assert!(position.binlog.unwrap().offset > 0 && position.gtid_binlog_pos.starts_with("0-"));
        assert!(stages.enter(Stage::Flush).is_err(), "no way back");
        stages.release().unwrap();
        assert!(passes(&server, ddl) && passes(&server, commit));
        let statements: Vec<&str> = stages.records().iter().map(|record| record.statement.as_str()).collect();
        assert_eq!(statements, ["BACKUP STAGE START", "BACKUP STAGE BLOCK_DDL", "BACKUP STAGE BLOCK_COMMIT"]);
        assert!(stages.records().iter().all(|record| record.held > Duration::ZERO));
        enter_all(&mut stages);
        drop(stages);
        assert!(passes(&server, ddl) && passes(&server, commit), "dropping releases");
    }
}

/// A stage that is blocked gives up soon, reports that, and can be requested again.
#[test]
fn stages_time_out() {
    for kind in MARIADB {
        let server = start(kind);
        server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.m (i INT) ENGINE=MyISAM"]).unwrap();
        let mut stages = BackupStages::open(&options(&server), unlimited()).unwrap();
        let mut writer = session(&options(&server));
        writer.exec("LOCK TABLES d.m WRITE").unwrap();
        assert_eq!(stages.enter(Stage::Start).unwrap(), Attempt::TimedOut);
        assert_eq!(stages.stage(), None);
        writer.exec("UNLOCK TABLES").unwrap();
        enter_all(&mut stages);
        stages.release().unwrap();
        assert_eq!(stages.records()[0].held, Duration::ZERO);
    }
}

fn session(options: &ConnectOptions) -> Session {
    Session::open(options, Purpose::Control).unwrap()
}

/// A lock held for too long is released at its limit, whether idle or in the middle of a statement, and its
/// holder is informed.
#[test]
fn the_limit_releases() {
    on_each(|server| {
        server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT)"]).unwrap();
        let ddl = "CREATE TABLE d.x (i INT)";
        for busy in [false, true] {
            let mut held_max = Duration::from_millis(300);
            let mut stages = None;
            let mut lock = None;
            let held: &HeldSession = if server.kind().is_mariadb() {
                // The time limit starts at the first blocking stage: a slow server may need longer to reach
                // the last one.
                while !enter_within(
                    stages.insert(BackupStages::open(&options(server), limited(held_max)).unwrap()),
                ) {
                    held_max *= 10;
                }
                stages.as_ref().unwrap().session()
            } else {
                let lock = lock.insert(InstanceLock::open(&options(server), limited(held_max)).unwrap());
                granted(lock.try_lock().unwrap());
                lock.session()
            };
            let begin = Instant::now();
            let error = if busy {
                held.exec("SELECT SLEEP(600)").unwrap_err()
            } else {
                eventually(Duration::from_secs(60), "released while nobody looks", || passes(server, ddl));
                server.exec("DROP TABLE d.x").unwrap();
                held.exec("SELECT 1").unwrap_err()
            };
            assert!(begin.elapsed() < Duration::from_secs(300), "it ended by itself");
            assert_eq!(*error.cause(), SqlCause::Expired, "{error}");
            assert!(
                error.to_string().contains(&format!("released after {} ms", held_max.as_millis())),
                "{error}"
            );
            let what = format!("{} busy {busy} release", server.kind());
            eventually(Duration::from_secs(60), &what, || passes(server, "DROP TABLE IF EXISTS d.y"));
            assert!(stages.map_or(Ok(()), |mut stages| stages.release()).is_err() || lock.is_some());
        }
    });
}

/// What the server refuses to release ends with the session: nothing stays locked, and the holder is told.
#[test]
fn a_release_that_is_refused_ends_the_session() {
    for kind in MARIADB {
        let server = start(kind);
        server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT)"]).unwrap();
        let mut stages = BackupStages::open(&options(&server), unlimited()).unwrap();
        enter_all(&mut stages);
        // In such a transaction the server accepts no statement that would commit it.
        stages.session().exec("XA START 'open'").unwrap();
        let error = stages.release().unwrap_err();
        assert!(error.to_string().contains("XAER_RMFAIL"), "{error}");
        eventually(FREE_MAX, "released with the session", || passes(&server, "INSERT INTO d.t VALUES (1)"));
        assert!(stages.enter(Stage::Start).is_err() && stages.session().alive().is_err());
    }
}

/// MySQL: the instance lock blocks DDL, tables are locked in the same session, and each lock is released.
#[test]
fn instance_lock() {
    let server = start(ServerKind::MySql97);
    server
        .exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.`m,1` (i INT) ENGINE=MyISAM",
            "CREATE TABLE d.t (i INT)",
        ])
        .unwrap();
    let ddl = "ALTER TABLE d.t COMMENT 'x'";
    let write = "INSERT INTO d.`m,1` VALUES (1)";
    let tables = [TableName { schema: "d".into(), table: "m,1".into() }];
    let mut lock = InstanceLock::open(&options(&server), unlimited()).unwrap();
    granted(lock.try_lock().unwrap());
    assert!(!passes(&server, ddl) && passes(&server, write));
    granted(lock.try_lock_tables(&tables, None).unwrap());
    assert!(!passes(&server, write) && passes(&server, "INSERT INTO d.t VALUES (1)"));
    assert!(!passes(&server, ddl), "the instance is still locked");
    lock.release().unwrap();
    assert!(passes(&server, ddl) && passes(&server, write));
    let statements: Vec<&str> = lock.records().iter().map(|record| record.statement.as_str()).collect();
    assert_eq!(statements, ["LOCK INSTANCE FOR BACKUP", "FLUSH TABLES WITH READ LOCK"]);
    // Alternatively, InnoDB tables can be closed.
    let innodb = [TableName { schema: "d".into(), table: "t".into() }];
    granted(lock.try_lock().unwrap());
    granted(lock.try_close_tables(&innodb).unwrap());
    assert!(!passes(&server, "INSERT INTO d.t VALUES (2)") && passes(&server, write));
    assert!(lock.try_lock_tables(&tables, None).is_err(), "not both");
    lock.release().unwrap();
    assert!(passes(&server, ddl) && passes(&server, "INSERT INTO d.t VALUES (2)"));
    // DDL in progress is waited for, briefly.
    let attempt = thread::scope(|scope| {
        scope.spawn(|| server.exec("CREATE TABLE d.slow SELECT SLEEP(600)"));
        let slow = sleeper(&server, "CREATE TABLE d.slow");
        let attempt = lock.try_lock();
        server.exec(format!("KILL {slow}")).unwrap();
        attempt
    });
    assert_eq!(attempt.unwrap(), Attempt::TimedOut);
    granted(lock.try_lock().unwrap());
    // Table locks have their own limit, within that of the instance lock.
    granted(lock.try_lock_tables(&tables, Some(Duration::from_millis(200))).unwrap());
    eventually(Duration::from_secs(60), "release", || passes(&server, write) && passes(&server, ddl));
    assert!(lock.release().is_err());
}

/// MySQL: a table that the server cannot open makes the lock of all tables fail, is identified,
/// and has no other effect.
#[test]
fn tables_that_cannot_be_opened() {
    let server = start(ServerKind::MySql97);
    server
        .exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.m (i INT) ENGINE=MyISAM",
            "CREATE TABLE d.n LIKE d.m",
            "CREATE TABLE d.merged (i INT) ENGINE=MERGE UNION=(d.n)",
            "DROP TABLE d.n",
        ])
        .unwrap();
    let tables = ["merged", "m"].map(|table| TableName { schema: "d".into(), table: table.into() });
    let mut lock = InstanceLock::open(&options(&server), unlimited()).unwrap();
    granted(lock.try_lock().unwrap());
    lock.try_lock_tables(&tables, None).unwrap_err();
    assert!(!passes(&server, "CREATE TABLE d.x (i INT)"), "the instance is still locked");
    let broken = lock.not_to_be_opened(&tables).unwrap();
    let [(table, why)] = &broken[..] else { panic!("{broken:?}") };
    assert!(*table == tables[0] && why.code() == Some(1168), "{broken:?}");
    granted(lock.try_lock_tables(&tables[1..], None).unwrap());
    assert!(!passes(&server, "INSERT INTO d.m VALUES (1)") && !passes(&server, "CREATE TABLE d.x (i INT)"));
    lock.release().unwrap();
    assert!(passes(&server, "INSERT INTO d.m VALUES (1)"));
}

/// MySQL: there is one redo consumer; it can be advanced, cannot be registered twice,
/// and ends with its session.
#[test]
fn redo_consumer() {
    let server = start(ServerKind::MySql97);
    let mut consumer = RedoConsumer::register(&options(&server)).unwrap();
    let taken = RedoConsumer::register(&options(&server)).unwrap_err();
    assert!(taken.to_string().contains("redo consumer is in use") && taken.hint().is_some());
    consumer.advance(Lsn(1)).unwrap();
    let lsn: u64 =
        server.value("SELECT storage_engines->>'$.InnoDB.LSN' FROM performance_schema.log_status").unwrap();
    consumer.advance(Lsn(lsn)).unwrap();
    consumer.advance(Lsn(lsn)).unwrap();
    consumer.unregister().unwrap();
    drop(RedoConsumer::register(&options(&server)).unwrap());
    eventually(Duration::from_secs(60), "unregistered", || RedoConsumer::register(&options(&server)).is_ok());
}

/// The consumer is not advanced although the process is alive and shows it: the server gets its redo back,
/// and the owner learns that when it continues.
#[test]
fn a_redo_consumer_that_nobody_advances_lets_go() {
    let server = start(ServerKind::MySql97);
    let mut consumer = RedoConsumer::register_within(&options(&server), Duration::from_secs(10)).unwrap();
    for _ in 0..3 {
        thread::sleep(Duration::from_secs(4));
        consumer.advance(Lsn(1)).unwrap();
    }
    assert!(RedoConsumer::register(&options(&server)).is_err());
    eventually(Duration::from_secs(60), "the consumer lets go", || {
        RedoConsumer::register(&options(&server)).is_ok()
    });
    let error = consumer.advance(Lsn(2)).unwrap_err();
    assert!(error.to_string().contains("the redo consumer was not advanced"), "{error}");
}

/// MariaDB: tables can be held for export in addition to the stages.
#[test]
fn export_lock() {
    let server = start(ServerKind::MariaDb1011);
    server.exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT)"]).unwrap();
    let tables = [TableName { schema: "d".into(), table: "t".into() }];
    let mut stages = BackupStages::open(&options(&server), unlimited()).unwrap();
    granted(stages.enter(Stage::Start).unwrap());
    granted(stages.enter(Stage::BlockDdl).unwrap());
    let mut writer = session(&options(&server));
    writer.exec("BEGIN").unwrap();
    writer.exec("INSERT INTO d.t VALUES (1)").unwrap();
    let mut lock = TableLock::open(&options(&server), unlimited()).unwrap();
    let minute = Duration::from_secs(60);
    assert_eq!(lock.try_export(&tables, minute).unwrap(), Attempt::TimedOut);

    // A wait in the server itself is cut off.
    let patient = LockLimits { wait_max: minute, held_max: None };
    let mut cut = TableLock::open(&options(&server), patient).unwrap();
    let asked_at = Instant::now();
    let error = cut.try_export(&tables, Duration::from_millis(300)).unwrap_err();
    assert!(
        *error.cause() == SqlCause::Lost && error.to_string().contains("no answer within 300 ms"),
        "{error}"
    );
    assert!(asked_at.elapsed() < minute / 2, "{:?}", asked_at.elapsed());
    cut.alive().unwrap_err();
    writer.exec("COMMIT").unwrap();
    granted(lock.try_export(&tables, minute).unwrap());
    stages.release().unwrap();
    let write = "INSERT INTO d.t VALUES (2)";
    assert!(!passes(&server, write));
    lock.release().unwrap();
    assert!(passes(&server, write));
}

/// MariaDB: a purge that waits, and an export of the table, do not wait for each other.
/// With the purge not stopped, an export would wait here forever with its table locked, even after a KILL.
fn exports_behind_a_purge_that_waits(kind: ServerKind) {
    let server = start(kind);
    server
        .exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.t (i INT PRIMARY KEY, j INT, KEY (j)) ENGINE=InnoDB",
            "CREATE TABLE d.altered LIKE d.t",
            "INSERT INTO d.t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i, i FROM n",
            "INSERT INTO d.altered SELECT * FROM d.t",
        ])
        .unwrap();
    let mut view = session(&options(&server));
    view.exec("START TRANSACTION WITH CONSISTENT SNAPSHOT").unwrap();
    for _ in 0..20 {
        server.exec_all(["UPDATE d.t SET j = j + 1", "UPDATE d.altered SET j = j + 1"]).unwrap();
    }
    let mut reader = session(&options(&server));
    reader.exec("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED").unwrap();
    reader.exec("BEGIN").unwrap();
    reader.exec("SELECT 1 FROM d.altered LIMIT 1").unwrap();
    let waits_for = |text: &str| {
        let query = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '{text}%' AND state LIKE 'Waiting for%'"
        );
        eventually(Duration::from_secs(60), text, || server.value::<u32>(&query).unwrap() == 1);
    };
    thread::scope(|scope| {
        scope.spawn(|| server.exec("ALTER TABLE d.altered ADD COLUMN k INT, ALGORITHM=COPY").unwrap());
        waits_for("ALTER TABLE d.altered");
        view.exec("ROLLBACK").unwrap();

        // The purge reaches that table when it is woken.
        eventually(Duration::from_secs(60), "the purge waits", || {
            server.exec("UPDATE d.t SET j = j + 1").unwrap();
            let mut cut = TableLock::open(&options(&server), unlimited()).unwrap();
            let stopped = cut.try_stopping_purge(Duration::from_secs(1));
            stopped.is_err_and(|error| *error.cause() == SqlCause::Lost)
        });
        // While it waits, the other table can be changed in any way.
        server.exec_all(["TRUNCATE TABLE d.t", "INSERT INTO d.t VALUES (1, 1)"]).unwrap();
        let mut again = TableLock::open(&options(&server), unlimited()).unwrap();
        assert_eq!(again.try_stopping_purge(Duration::from_secs(60)).unwrap(), Attempt::TimedOut);
        reader.exec("ROLLBACK").unwrap();
    });
    let minute = Duration::from_secs(60);
    let mut purge = TableLock::open(&options(&server), unlimited()).unwrap();
    eventually(minute, "the purge stops", || purge.try_stopping_purge(minute).unwrap() == Attempt::Granted);
    server.exec("UPDATE d.t SET j = 7").unwrap();
    let mut stages = BackupStages::open(&options(&server), unlimited()).unwrap();
    granted(stages.enter(Stage::Start).unwrap());
    granted(stages.enter(Stage::BlockDdl).unwrap());
    let mut lock = TableLock::open(&options(&server), unlimited()).unwrap();
    let tables = [TableName { schema: "d".into(), table: "t".into() }];
    granted(lock.try_export(&tables, minute).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| server.exec("TRUNCATE TABLE d.t").unwrap());
        waits_for("TRUNCATE TABLE d.t");
        stages.release().unwrap();
        for lock in [&mut lock, &mut purge] {
            lock.alive().unwrap();
            lock.release().unwrap();
        }
    });
    assert_eq!(server.value::<u32>("SELECT COUNT(*) FROM d.t").unwrap(), 0);
    let note = server.datadir().join(STOPPED_PURGE_NOTE);
    assert!(!note.exists());
}

#[test]
fn mariadb_10_11_exports_behind_a_purge_that_waits() {
    exports_behind_a_purge_that_waits(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_exports_behind_a_purge_that_waits() {
    exports_behind_a_purge_that_waits(ServerKind::MariaDb118);
}

/// A session that holds something stays alive although it is idle for longer than the server's timeout. The server
/// waits no longer than that in a read or a write, either, if this process is frozen in the middle of an answer.
#[test]
fn idle_sessions_stay() {
    let servers = ServerKind::all_kinds().map(start);
    let held: Vec<HeldSession> =
        servers.iter().map(|server| HeldSession::open(&options(server), Purpose::Stages).unwrap()).collect();
    for session in &held {
        for timeout in ["wait_timeout", "net_write_timeout", "net_read_timeout"] {
            let seconds = session.with(|session| session.value(&format!("SELECT @@{timeout}"))).unwrap();
            assert_eq!(seconds, Some(WAIT_TIMEOUT.as_secs().to_string()), "{timeout}");
        }
    }
    thread::sleep(WAIT_TIMEOUT + Duration::from_secs(4));
    for session in held {
        session.exec("SELECT 1").unwrap();
    }
}

const HOLD_SOCKET: &str = "HOLDFAST_TEST_HOLD_SOCKET";

/// Not a test by itself: a client that takes the locks of a backup, reports that, and sleeps.
#[test]
#[ignore = "a process for the tests below"]
fn holder() {
    let options = ConnectOptions {
        socket: Some(std::env::var_os(HOLD_SOCKET).unwrap().into()),
        user: Some("root".to_owned()),
        run: "holder".to_owned(),
        ..ConnectOptions::default()
    };
    let mariadb = session(&options).version().text.contains("MariaDB");
    let held: Box<dyn std::any::Any> = if mariadb {
        let mut stages = BackupStages::open(&options, unlimited()).unwrap();
        enter_all(&mut stages);
        Box::new(stages)
    } else {
        let mut lock = InstanceLock::open(&options, unlimited()).unwrap();
        granted(lock.try_lock().unwrap());
        Box::new((lock, RedoConsumer::register(&options).unwrap()))
    };
    std::io::stdout().write_all(b"\nholding\n").unwrap();
    thread::sleep(Duration::from_secs(600));
    drop(held);
}

struct Holder(Child);

impl Holder {
    fn start(server: &Server) -> Holder {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server::held::holder", "--ignored", "--nocapture"])
            .env(HOLD_SOCKET, server.socket())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        let holder = Holder(child);
        let mut said = String::new();
        let mut byte = [0];
        while !said.ends_with("\nholding\n") {
            assert_eq!(output.read(&mut byte).unwrap(), 1, "the holder failed: {said}");
            said.push(char::from(byte[0]));
        }
        holder
    }

    fn freeze(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_free(server: &Server) -> bool {
    passes(server, "CREATE TABLE IF NOT EXISTS d.free (i INT)")
        && passes(server, "DROP TABLE IF EXISTS d.free")
        && (server.kind().is_mariadb() || RedoConsumer::register(&options(server)).is_ok())
}

/// A killed client lets go immediately; a frozen one lets go when the server's timeout expires.
#[test]
fn frozen_clients_let_go() {
    thread::scope(|scope| {
        for kind in ServerKind::all_kinds() {
            scope.spawn(move || {
                let server = start(kind);
                server.exec("CREATE DATABASE d").unwrap();
                let holder = Holder::start(&server);
                assert!(!passes(&server, "CREATE TABLE d.x (i INT)"), "{kind}: it holds");
                drop(holder);
                // Before the server's timeout could expire.
                eventually(WAIT_TIMEOUT - Duration::from_secs(2), "killed", || is_free(&server));

                let holder = Holder::start(&server);
                holder.freeze();
                assert!(!passes(&server, "CREATE TABLE d.x (i INT)"), "{kind}: it holds");
                eventually(FREE_MAX, "frozen", || is_free(&server));
            });
        }
    });
}

/// A TCP relay that can go silent without closing anything, like a lost network.
struct Relay {
    port: u16,
    is_cut: Arc<AtomicBool>,
}

impl Relay {
    fn to(server_port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&is_cut);
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect(("127.0.0.1", server_port)).unwrap();
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let cut = Arc::clone(&cut);
                    thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        loop {
                            let count = from.read(&mut buffer).unwrap_or(0);
                            if cut.load(Ordering::Acquire) {
                                thread::sleep(Duration::from_secs(60));
                            }
                            if count == 0 || to.write_all(&buffer[..count]).is_err() {
                                let _ = to.shutdown(std::net::Shutdown::Both);
                                return;
                            }
                        }
                    });
                }
            }
        });
        Relay { port, is_cut }
    }
}

/// When the network is lost, the server releases the locks by itself, and the client notices by itself.
#[test]
fn cut_off_clients_let_go() {
    let server = start(ServerKind::MariaDb1011);
    server.exec("CREATE DATABASE d").unwrap();
    let relay = Relay::to(server.port());
    let far = ConnectOptions { port: Some(relay.port), ..tcp(&server) };
    let mut stages = BackupStages::open(&far, unlimited()).unwrap();
    enter_all(&mut stages);
    stages.alive().unwrap();
    relay.is_cut.store(true, Ordering::Release);
    eventually(FREE_MAX, "server", || is_free(&server));
    eventually(FREE_MAX, "client", || stages.alive().is_err());
}
