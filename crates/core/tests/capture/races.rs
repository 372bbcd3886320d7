//! Server activity placed deliberately between two steps of a capture.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use holdfast_core::{
    server::{LockPolicy, RedoConsumer, locks::stale::other_sessions, status::MariaDbLsns},
    source::{CaptureStats, RedoProgress, page_reader::ReadMode, redo::mariadb::Follower, spool::Spool},
};
use holdfast_testkit::tables::{PURGE_MAX, awaits_purge};
use mysql::prelude::Queryable;
use rustix::process::Signal;

use super::*;
use crate::{listeners::Warnings, server::sleeper};

/// Runs an action on the server when a phase begins, before the capture continues.
pub(super) struct AtPhase<F: Fn() + Send + Sync> {
    pub(super) phase: &'static str,
    pub(super) action: F,
}

impl<F: Fn() + Send + Sync> Listener for AtPhase<F> {
    fn event(&self, event: Event) {
        if matches!(&event, Event::Phase { name } if *name == self.phase) {
            (self.action)();
        }
        Told.event(event);
    }
}

/// Runs a closure for each event.
pub(super) struct OnEvents<F: Fn(&Event) + Send + Sync>(pub(super) F);

impl<F: Fn(&Event) + Send + Sync> Listener for OnEvents<F> {
    fn event(&self, event: Event) {
        (self.0)(&event);
        Told.event(event);
    }
}

/// A server recovered from a capture.
pub(super) struct Recovered {
    pub(super) server: Server,
    pub(super) stats: CaptureStats,
    _dir: tempfile::TempDir,
}

/// Captures `source`, runs `action` when `phase` begins, and lets a server recover the capture.
pub(super) fn recovered(
    source: &Server,
    phase: &'static str,
    options: ServerOptions,
    action: impl Fn() + Send + Sync,
) -> Recovered {
    recovered_told(source, options, &AtPhase { phase, action })
}

/// The same, with `listener` instead of an action.
pub(super) fn recovered_told(source: &Server, options: ServerOptions, listener: &dyn Listener) -> Recovered {
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let captured = capture_told(source, &sink, dir.path(), listener);
    let target = dir.path().join("data");
    sink.place(&target);
    lay_out_redo(&target, &captured.redo);
    let server = Server::attach(source.kind(), target, options).unwrap();
    Recovered { server, stats: captured.stats, _dir: dir }
}

/// The same, and compares the result with the source, which must be idle apart from `action`.
pub(super) fn captured_while(
    source: &Server,
    phase: &'static str,
    options: ServerOptions,
    action: impl Fn() + Send + Sync,
) {
    let copy = recovered(source, phase, options, action);
    assert_equal_checksums(source, &copy.server).unwrap();
}

/// Makes threads stop, even when the test fails.
pub(super) struct StopOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Fails unless the table is intact and the server did not have to repair it.
pub(super) fn is_whole(server: &Server, table: &str) {
    let begun = Instant::now();
    let checked = loop {
        let checked: Vec<(String, String, String, String)> =
            server.query(format!("CHECK TABLE {table} EXTENDED")).unwrap();
        if !checked.iter().any(|row| awaits_purge(&row.3)) || begun.elapsed() > PURGE_MAX {
            break checked;
        }
        sleep(Duration::from_millis(200));
    };
    assert!(checked.iter().all(|row| row.3 == "OK"), "{checked:?}");
    // A server repairs what it can when it opens a table, and logs that.
    assert!(!server.log().contains("is marked as crashed"), "{}", server.log());
}

/// A table is discarded and imported before its first copy, or after the last check without a lock.
/// From the DISCARD on, recovery ignores the redo of its id, so only a copy made while the table was closed
/// to writes contains the rows written later.
#[test]
fn mariadb_a_table_imported_around_the_copy_is_whole() {
    for phase in ["copy", "stop"] {
        let source = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE imp",
                "CREATE TABLE imp.t (id INT PRIMARY KEY, v VARCHAR(200)) ENGINE=InnoDB",
                "INSERT INTO imp.t SELECT seq, REPEAT('x', 100) FROM imp.seq_1_to_5000",
            ])
            .unwrap();
        let kept = tempfile::tempdir().unwrap();
        let live = source.datadir().join("imp/t.ibd");
        let exported = kept.path().join("t.ibd");
        let put = |from: &Path, to: &Path| {
            for suffix in ["ibd", "cfg"] {
                fs::copy(from.with_extension(suffix), to.with_extension(suffix)).unwrap();
            }
        };
        let mut exporter = source.conn().unwrap();
        exporter.query_drop("FLUSH TABLES imp.t FOR EXPORT").unwrap();
        put(&live, &exported);
        drop(exporter);
        captured_while(&source, phase, ServerOptions::default(), || {
            source.exec("ALTER TABLE imp.t DISCARD TABLESPACE").unwrap();
            put(&exported, &live);
            source
                .exec_all([
                    "ALTER TABLE imp.t IMPORT TABLESPACE",
                    "INSERT INTO imp.t SELECT seq, REPEAT('y', 100) FROM imp.seq_10001_to_10500",
                ])
                .unwrap();
        });
    }
}

/// Redo is written while the position is read, and a position can become useless because a lock was lost: the
/// capture ends exactly at the last position that it is given, and contains everything before it.
#[test]
fn mariadb_redo_ends_exactly_where_it_is_told_however_late() {
    let source = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 10, ..shop::ShopOptions::default() }).unwrap();
    let load = WriteLoad::start(&source, 2, 3).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::create(dir.path(), 1 << 30, 0).unwrap();
    let log = source.datadir().join("ib_logfile0");
    let mut session = Session::open(&options(&source), Purpose::Control).unwrap();
    let mut asked = Session::open(&options(&source), Purpose::Control).unwrap();
    let durable = move || Ok(MariaDbLsns::read(&mut asked)?.flushed);
    let follower = Follower::start(&log, ReadMode::Direct, spool, durable).unwrap();
    let wait = Duration::from_secs(30);
    let mut stop_at = || {
        follower.hold();
        let stop = MariaDbLsns::read(&mut session).unwrap().current;
        sleep(Duration::from_millis(200));
        follower.stop_at(stop);
        follower.wait_for(stop, wait).unwrap();
        sleep(Duration::from_millis(200));
        assert_eq!(follower.captured(), stop);
        stop
    };
    let first = stop_at();
    follower.go_on();
    let (begun, before) = (Instant::now(), load.committed());
    while load.committed() < before + 2 {
        assert!(begun.elapsed() < Duration::from_secs(300), "nothing is written");
        sleep(Duration::from_millis(20));
    }
    let second = stop_at();
    assert!(second > first);
    let begin = follower.header().checkpoint().lsn;
    let captured = follower.finish(wait).unwrap();
    assert_eq!(captured.stop, second);
    assert_eq!(captured.spool.len(), second.bytes_since(begin).unwrap());
    load.stop().unwrap();
}

/// The session for queries is idle during a long copy, so the server closes it: the capture opens another.
#[test]
fn a_session_that_was_dropped_during_the_copy_is_replaced() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    captured_while(&source, "stop", ServerOptions::default(), || {
        let oldest: u64 = source
            .value("SELECT MIN(id) FROM information_schema.processlist WHERE user = 'root' AND command = 'Sleep'")
            .unwrap();
        source.exec(format!("KILL {oldest}")).unwrap();
    });
}

/// A table outside the data directory that the server has and this process cannot see is not left out
/// silently.
#[test]
fn a_tablespace_that_cannot_be_seen_here_fails_the_capture() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        misc::create(&source, misc::MiscOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let nowhere = vec![(source.outside(), dir.path().join("nowhere"))];
        let error = try_to_capture(&source, &sink, dir.path(), &Told, nowhere).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no file of it") || text.contains("which does not exist"), "{text}");
    }
}

/// Aria's log is rotated between its first copy and the locks: all of its files are captured to their ends.
#[test]
fn mariadb_an_aria_log_that_rotates_is_captured_to_its_end() {
    let options = ServerOptions::default().arg("--aria-log-file-size=8388608").arg("--slow-query-log=ON");
    let source = Server::start(ServerKind::MariaDb1011, options.clone()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE a",
            "CREATE TABLE a.t (id INT PRIMARY KEY, v LONGTEXT) ENGINE=Aria TRANSACTIONAL=1",
            "INSERT INTO a.t SELECT seq, REPEAT('x', 10000) FROM a.seq_1_to_500",
        ])
        .unwrap();
    let logs = || {
        let names = fs::read_dir(source.datadir()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("aria_log.")).count()
    };
    let before = logs();
    captured_while(&source, "stop", options, || {
        source.exec("INSERT INTO a.t SELECT seq, REPEAT('y', 10000) FROM a.seq_1001_to_4000").unwrap();
        source.exec("UPDATE a.t SET v = REPEAT('z', 9000) WHERE id % 3 = 0").unwrap();
    });
    assert!(logs() > before, "the log did not rotate");
}

/// A link to a tablespace elsewhere is created before it is written to.
/// A link that is empty at the first check is checked again when no more links can be created: it may be gone
/// or written by then, and fails the capture only if it is still empty.
#[test]
fn mariadb_a_link_that_is_being_made_is_looked_at_again() {
    let source = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    source.exec_all(["CREATE DATABASE l", "CREATE TABLE l.t (i INT PRIMARY KEY)"]).unwrap();
    let link = source.datadir().join("l/x.isl");
    fs::write(&link, "").unwrap();
    captured_while(&source, "stop", ServerOptions::default(), || {
        fs::remove_file(&link).unwrap();
        source
            .exec_all([
                &format!(
                    "CREATE TABLE l.x (i INT PRIMARY KEY) DATA DIRECTORY='{}'",
                    source.outside().display()
                ),
                "INSERT INTO l.x VALUES (7)",
            ])
            .unwrap();
    });
    source.exec("DROP TABLE l.x").unwrap();
    fs::write(&link, "").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let error = try_to_capture(&source, &sink, dir.path(), &Told, Vec::new()).unwrap_err();
    assert!(error.to_string().contains("l/x.isl"), "{error}");
}

/// The log tables are written to at any time, cannot be locked, and are not held up by any of MariaDB's
/// backup stages: a copy has empty, usable ones, and their contents are not read.
#[test]
fn log_tables_are_empty_and_whole_in_a_copy() {
    for kind in ServerKind::all_kinds() {
        let options = ServerOptions::default()
            .arg("--log-output=TABLE")
            .arg("--general-log=ON")
            .arg("--slow-query-log=ON")
            .arg("--long-query-time=0");
        let source = Server::start(kind, options).unwrap();
        source.exec_all(["CREATE DATABASE g", "CREATE TABLE g.t (i INT PRIMARY KEY)"]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sink = Watched {
            inner: DirectorySink::new(dir.path().join("staging")),
            on_pages: |path: &str, _: &Pages<'_>| assert!(!path.ends_with("_log.CSV"), "{path}"),
        };
        let stop = AtomicBool::new(false);
        let captured = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut conn = source.conn().unwrap();
                while !stop.load(Ordering::SeqCst) {
                    conn.query_drop("SELECT 1").unwrap();
                }
            });
            let _stopped = StopOnDrop(&stop);
            capture(&source, &sink, dir.path())
        });
        let rows = |server: &Server, table: &str| -> u64 {
            server.value(format!("SELECT COUNT(*) FROM mysql.{table}")).unwrap()
        };
        assert!(rows(&source, "general_log") > 10 && rows(&source, "slow_log") > 10);
        let target = dir.path().join("data");
        sink.inner.place(&target);
        lay_out_redo(&target, &captured.redo);
        let copy = Server::attach(source.kind(), target, ServerOptions::default().arg("--log-output=TABLE"));
        let copy = copy.unwrap();
        for table in ["general_log", "slow_log"] {
            assert_eq!(rows(&copy, table), 0, "{table}");
            is_whole(&copy, &format!("mysql.{table}"));
        }
        copy.exec("SET GLOBAL general_log = ON").unwrap();
        copy.exec("SELECT 'noted'").unwrap();
        assert!(rows(&copy, "general_log") > 0);
    }
}

/// While the server does not respond, its redo piles up for a consumer that cannot be advanced: the
/// registration is dropped, and the capture fails with the reason.
#[test]
fn mysql_a_server_that_does_not_answer_ends_the_capture() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 10, ..shop::ShopOptions::default() }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let action = || {
        source.signal(Signal::STOP).unwrap();
        sleep(RedoConsumer::SILENCE_MAX + Duration::from_secs(3));
        source.signal(Signal::CONT).unwrap();
    };
    let listener = AtPhase { phase: "copy", action };
    let error = try_to_capture(&source, &sink, dir.path(), &listener, Vec::new()).unwrap_err();
    assert!(error.to_string().contains("the redo consumer was not advanced"), "{error}");
}

/// A file of the system tablespace elsewhere that this process cannot see is not left out silently either.
#[test]
fn a_system_file_that_cannot_be_seen_here_fails_the_capture() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let volume = tempfile::tempdir().unwrap();
        let home = format!("--innodb-data-home-dir={}", volume.path().display());
        let options = ServerOptions::default().init_arg(home);
        let source = Server::start(kind, options).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let nowhere = vec![(volume.path().to_owned(), dir.path().join("nowhere"))];
        let error = try_to_capture(&source, &sink, dir.path(), &Told, nowhere).unwrap_err();
        assert!(error.to_string().contains("ibdata1: file of the system tablespace not found"), "{error}");
    }
}

/// Switching redo off and on again leaves no trace except the statement counters: writes
/// in between are in no redo.
#[test]
fn mysql_redo_that_was_off_for_a_while_fails_the_capture() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sink = DirectorySink::new(dir.path().join("staging"));
    let off_and_on = AtPhase {
        phase: "stop",
        action: || {
            source
                .exec_all([
                    "ALTER INSTANCE DISABLE INNODB REDO_LOG",
                    "CREATE DATABASE IF NOT EXISTS off",
                    "CREATE TABLE off.t (i INT PRIMARY KEY)",
                    "ALTER INSTANCE ENABLE INNODB REDO_LOG",
                ])
                .unwrap();
        },
    };
    let error = try_to_capture(&source, &sink, dir.path(), &off_and_on, Vec::new()).unwrap_err();
    assert!(error.to_string().contains("redo logging"), "{error}");
}

/// Temporary tables use up index ids that no listing shows, so the next real index has an id far above
/// all listed ones. Its bulk load is detected all the same, even if the index was dropped again and
/// nothing else is left of it.
#[test]
fn mysql_an_index_load_is_seen_whatever_ids_temporary_tables_have_taken() {
    let source = Server::start(ServerKind::MySql97, ServerOptions::default()).unwrap();
    let highest =
        || source.value::<u64>("SELECT MAX(index_id) FROM information_schema.innodb_indexes").unwrap();
    source
        .exec_all([
            "CREATE DATABASE x",
            "CREATE TABLE x.t (id INT PRIMARY KEY AUTO_INCREMENT, a INT, b VARCHAR(200))",
            "INSERT INTO x.t (a, b) VALUES (1, REPEAT('x', 150))",
        ])
        .unwrap();
    for _ in 0..12 {
        source.exec("INSERT INTO x.t (a, b) SELECT a + 1, b FROM x.t").unwrap();
    }
    let before = highest();
    let mut session = source.conn().unwrap();
    let columns: Vec<_> = (0..60).map(|at| format!("c{at} INT, KEY (c{at})")).collect();
    for _ in 0..100 {
        session.query_drop(format!("CREATE TEMPORARY TABLE x.burn ({})", columns.join(", "))).unwrap();
        session.query_drop("DROP TEMPORARY TABLE x.burn").unwrap();
    }
    captured_while(&source, "stop", ServerOptions::default(), || {
        source
            .exec_all([
                "ALTER TABLE x.t ADD INDEX gone (b)",
                "UPDATE x.t SET b = REPEAT('y', 150) WHERE id % 2 = 0",
                "ALTER TABLE x.t DROP INDEX gone",
            ])
            .unwrap();
    });
    source.exec("ALTER TABLE x.t ADD INDEX stays (a)").unwrap();
    assert!(highest() > before + 5000, "temporary tables took no ids here: {before}, then {}", highest());
}

/// A time limit can expire while the next lock is awaited.
/// All locks are then released and the capture tries again, as when a lock cannot be had.
#[test]
fn a_limit_that_ends_while_a_lock_is_waited_for_is_tried_again() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE d",
                "CREATE TABLE d.m (i INT) ENGINE=MyISAM",
                "INSERT INTO d.m VALUES (1)",
            ])
            .unwrap();
        // An obstacle to the second lock but not to the first: a DDL statement, or a read of a table.
        let in_the_way = match kind.is_mariadb() {
            true => "CREATE TABLE d.slow SELECT SLEEP(600) AS slept",
            false => "SELECT SLEEP(600) FROM d.m",
        };
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let options = CaptureOptions {
            locks: LockPolicy {
                ddl_held_max: Duration::from_secs(10),
                wait_max: Duration::from_secs(60),
                ..capture_options(&source, dir.path()).locks
            },
            ..capture_options(&source, dir.path())
        };
        let server = &source;
        std::thread::scope(|scope| {
            let asleep = Mutex::new(None);
            let wake = || {
                if let Some(id) = asleep.lock().unwrap().take() {
                    server.exec(format!("KILL {id}")).unwrap();
                }
            };
            let until_a_try_has_ended = OnEvents(|event| match event {
                Event::Phase { name: "stop" } => {
                    scope.spawn(move || server.exec(in_the_way));
                    *asleep.lock().unwrap() = Some(sleeper(server, in_the_way));
                }
                Event::Warning { text } if text.contains("trying again") => wake(),
                _ => {}
            });
            let captured = capture_with(&source, &sink, &until_a_try_has_ended, options);
            wake();
            let captured = captured.unwrap();
            let tries = captured.stats.locks.iter().filter(|lock| match kind.is_mariadb() {
                true => lock.statement == "BACKUP STAGE FLUSH",
                false => lock.statement == "LOCK INSTANCE FOR BACKUP",
            });
            assert!(tries.count() > 1, "{kind}: {:?}", captured.stats.locks);
        });
    }
}

/// Someone who sees DDL statements waiting kills the session in their way.
/// Nothing that was copied belongs to that session.
#[test]
fn a_lock_that_somebody_takes_away_is_asked_for_again() {
    for (kind, purpose) in
        [(ServerKind::MariaDb1011, Purpose::Stages), (ServerKind::MySql97, Purpose::InstanceLock)]
    {
        let source = Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all(["CREATE DATABASE d", "CREATE TABLE d.t (i INT)", "INSERT INTO d.t VALUES (1)"])
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        let (warnings, killed) = (Warnings::default(), AtomicBool::new(false));
        let kill_once = || {
            if !killed.swap(true, Ordering::Relaxed) {
                let mut session = Session::open(&options(&source), Purpose::Control).unwrap();
                let others = other_sessions(&mut session, "").unwrap();
                let holder = others.iter().find(|other| other.purpose.as_deref() == Some(purpose.name()));
                source.exec(format!("KILL {}", holder.unwrap().connection_id)).unwrap();
            }
        };
        let captured = at_point("backup.ddl.blocked", kill_once, || {
            capture_with(&source, &sink, &warnings, capture_options(&source, dir.path()))
        });
        captured.unwrap();
        let warnings = warnings.heard();
        assert!(
            warnings.iter().any(|text| text.contains("everything was released, trying again (1)")),
            "{warnings:?}"
        );
    }
}

/// A table without redo is written to continuously and cannot be copied again in the time for which its
/// writers may be blocked: this is reported before they are blocked for the first time, and they are not
/// blocked a second time. If the read rate is limited, only an attempt that has copied it tells that.
#[test]
fn what_cannot_be_copied_under_a_lock_is_locked_once() {
    let kinds = [ServerKind::MariaDb1011, ServerKind::MySql97];
    for (kind, limit) in kinds.into_iter().flat_map(|kind| [(kind, None), (kind, Some(256 << 20))]) {
        let source = &Server::start(kind, ServerOptions::default()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE d",
                "CREATE TABLE d.m (i INT PRIMARY KEY, v LONGBLOB) ENGINE=MyISAM",
                "INSERT INTO d.m VALUES (1, REPEAT('a', 8 << 20)), (2, REPEAT('b', 8 << 20))",
                "INSERT INTO d.m SELECT i + 2, v FROM d.m",
                "INSERT INTO d.m SELECT i + 4, v FROM d.m",
                "INSERT INTO d.m VALUES (100, 'x')",
            ])
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        // Enough to begin to copy it, in one attempt of several on a busy machine.
        let (little, most) = (Duration::from_millis(10), 6);
        let options = CaptureOptions {
            locks: LockPolicy {
                held_max: little,
                ddl_held_max: little,
                tries: most,
                ..capture_options(source, dir.path()).locks
            },
            read_bytes_per_s_max: limit,
            ..capture_options(source, dir.path())
        };
        let (warnings, ended) = (Warnings::default(), AtomicBool::new(false));
        let (began, begun) = channel();
        let error = std::thread::scope(|scope| {
            let ended = &ended;
            let write = move || {
                let mut conn = source.conn().unwrap();
                for n in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                    conn.query_drop(format!("UPDATE d.m SET v = '{}' WHERE i = 100", n % 10)).unwrap();
                    let _gone = began.send(());
                }
            };
            scope.spawn(write);
            begun.recv().unwrap();
            let captured = capture_with(source, &sink, &warnings, options);
            ended.store(true, Ordering::Relaxed);
            captured.map(drop).unwrap_err()
        });
        let text = error.to_string();
        assert!(text.contains("d/m.MYD") && text.contains("of non-transactional tables"), "{kind}: {text}");
        let warnings = warnings.heard();
        let tries = warnings.iter().filter(|text| text.contains("trying again")).count();
        assert!(tries == 1 || limit.is_some() && tries < most as usize, "{kind}: {warnings:?}");
        assert_eq!(warnings[0].contains("d/m.MYD"), limit.is_none(), "{kind}: {warnings:?}");
    }
}

/// Whether page 0 of a table is not in its file.
fn is_unwritten(server: &Server, file: &str) -> bool {
    let mut page = [1; 1024];
    File::open(server.datadir().join(file)).unwrap().read_exact_at(&mut page, 0).unwrap();
    page == [0; 1024]
}

/// A server that leaves pages in its memory.
fn lazy_writer(kind: ServerKind) -> Server {
    Server::start(kind, ServerOptions::default().arg("--innodb-max-dirty-pages-pct=90")).unwrap()
}

/// Tables whose page 0 is only in the server's memory go to another schema, are made again under the old name, swap
/// their places and come back, before the capture, between the copy of tablespaces and that of other files, and at the
/// end. A rename that fails changes nothing.
fn tables_renamed_before_their_first_page_is_written_are_captured(kind: ServerKind) {
    const NO_SUCH_SCHEMA: u16 = 1025;
    let source = lazy_writer(kind);
    source.exec_all(["CREATE DATABASE d", "CREATE DATABASE e"]).unwrap();
    let all_unwritten = |names: &[&str]| {
        let files = names.iter().flat_map(|name| [format!("d/{name}.ibd"), format!("e/{name}.ibd")]);
        let written: Vec<_> = files.filter(|file| !is_unwritten(&source, file)).collect();
        assert!(written.is_empty(), "{written:?}");
    };
    let make = |name: &str| {
        let (table, columns) = (format!("d.{name}"), "(id INT PRIMARY KEY, v VARCHAR(100)) ENGINE=InnoDB");
        source
            .exec_all([
                format!("CREATE TABLE {table} {columns}"),
                format!("INSERT INTO {table} VALUES (1, 'first'), (2, 'first')"),
                format!("RENAME TABLE {table} TO e.{name}"),
                format!("CREATE TABLE {table} {columns}"),
                format!("INSERT INTO {table} VALUES (1, 'second')"),
            ])
            .unwrap();
        let failed = source.conn().unwrap().query_drop(format!("RENAME TABLE {table} TO nowhere.{name}"));
        let code = match &failed {
            Err(mysql::Error::MySqlError(error)) => error.code,
            _ => 0,
        };
        assert_eq!(code, NO_SUCH_SCHEMA, "{failed:?}");
    };
    let swap = |name: &str| {
        source
            .exec_all([
                format!("RENAME TABLE d.{name} TO d.{name}_x, e.{name} TO d.{name}, d.{name}_x TO e.{name}"),
                format!("INSERT INTO d.{name} VALUES (100 + (SELECT COUNT(*) FROM e.{name}), 'swapped')"),
            ])
            .unwrap();
    };
    make("before");
    make("settled");
    swap("before");
    let at_stop = AtPhase {
        phase: "stop",
        action: || {
            make("late");
            swap("late");
            swap("early");
            swap("before");
            all_unwritten(&["before", "early", "late", "settled"]);
        },
    };
    let early = || {
        make("early");
        swap("before");
        all_unwritten(&["before", "early", "settled"]);
    };
    let copy = at_point("backup.tablespaces.copied", early, || {
        recovered_told(&source, ServerOptions::default(), &at_stop)
    });
    let tables: u64 = copy
        .server
        .value("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema IN ('d', 'e')")
        .unwrap();
    assert_eq!(tables, 8);
    assert_equal_checksums(&source, &copy.server).unwrap();
}

#[test]
fn mariadb_tables_renamed_before_their_first_page_is_written_are_captured() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        tables_renamed_before_their_first_page_is_written_are_captured(kind);
    }
}

/// Page 0 of tables that are older than the redo is only in the server's memory, and changed there: no redo creates it.
/// The server has to write it, under whatever name the table has by then.
fn a_first_page_that_only_the_server_has_is_captured(kind: ServerKind) {
    let source = lazy_writer(kind);
    source.exec("CREATE DATABASE o").unwrap();
    let tables = ["stays", "goes"];
    for table in tables {
        source
            .exec_all([
                format!("CREATE TABLE o.{table} (id INT PRIMARY KEY, v VARCHAR(200)) ENGINE=InnoDB"),
                format!("INSERT INTO o.{table} SELECT seq, '{table}' FROM o.seq_1_to_100"),
            ])
            .unwrap();
    }
    let mut session = source.conn().unwrap();
    for table in tables {
        session.query_drop(format!("FLUSH TABLES o.{table} FOR EXPORT")).unwrap();
        session.query_drop("UNLOCK TABLES").unwrap();
    }
    source.exec("SET GLOBAL innodb_log_checkpoint_now = ON").unwrap();
    for table in tables {
        let file = File::options().write(true).open(source.datadir().join(format!("o/{table}.ibd"))).unwrap();
        file.write_all_at(&[0; 16384], 0).unwrap();
        // Page 0 has the size of the tablespace.
        source
            .exec(format!("INSERT INTO o.{table} SELECT seq, REPEAT('x', 200) FROM o.seq_1001_to_9000"))
            .unwrap();
    }
    let all_unwritten = || tables.iter().all(|table| is_unwritten(&source, &format!("o/{table}.ibd")));
    assert!(all_unwritten(), "a page 0 was written");
    let rename = || {
        assert!(all_unwritten(), "a page 0 was written");
        source
            .exec_all([
                "RENAME TABLE o.goes TO o.gone",
                "CREATE TABLE o.goes (id INT PRIMARY KEY) ENGINE=InnoDB",
                "INSERT INTO o.goes VALUES (7)",
            ])
            .unwrap();
        assert!(is_unwritten(&source, "o/gone.ibd") && is_unwritten(&source, "o/goes.ibd"));
    };
    let notes = Mutex::new(Vec::new());
    let noting = OnEvents(|event| {
        if let Event::Note { text } = event {
            notes.lock().unwrap().push(text.clone());
        }
    });
    let copy = at_point("backup.tablespaces.copied", rename, || {
        recovered_told(&source, ServerOptions::default(), &noting)
    });
    let said =
        "page 0 is in the server's memory only; copied again while blocked for writes: o.gone, o.stays";
    assert!(notes.lock().unwrap().iter().any(|text| text == said), "{notes:?}");
    assert!(copy.stats.files_recopied >= 2, "{:?}", copy.stats);
    assert!(!is_unwritten(&source, "o/gone.ibd") && !is_unwritten(&source, "o/stays.ibd"));
    assert_equal_checksums(&source, &copy.server).unwrap();
}

#[test]
fn mariadb_a_first_page_that_only_the_server_has_is_captured() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        a_first_page_that_only_the_server_has_is_captured(kind);
    }
}
