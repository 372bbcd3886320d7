//! Fault injection: processes killed and frozen at every named point, servers that die, lost redo, full
//! disks, damaged objects (`docs/evidence/testing.md`).
//!
//! Afterwards, in all cases: earlier backups are listed and whole, nothing half done is visible, the server
//! is free, and the next run succeeds.
//! `HOLDFAST_FAULTS=long` makes the lists longer; `HOLDFAST_FAULTS_SEED` repeats random moments.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use holdfast_core::server::RedoConsumer;
use holdfast_repo::{
    log::{history::History, outcome::OutcomeType},
    ops::check::{CheckOptions, check},
};

use mysql::{Conn, prelude::Queryable};

use self::child::{Child, Deed, Ended, Place, Trap, Work};
use super::*;
use crate::server::{FREE_MAX, LOCK_MAX};

mod broken_off;
mod child;
mod damage;
mod freeze;
mod imports;
mod kill;
mod prune;
mod restore;
mod room;
mod source;

/// No statement of these tests takes this long, unless the server is stalled.
const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// How long a backup may block commits if it is stopped while it does so.
const SHORT_LOCK_MAX: Duration = Duration::from_secs(2);

/// Whether the long lists were requested.
fn long() -> bool {
    std::env::var("HOLDFAST_FAULTS").is_ok_and(|value| value == "long")
}

/// Whether faults are tried at a point: `HOLDFAST_FAULTS` can ask for all points, or for one.
fn is_tried(point: &str, is_usual: bool) -> bool {
    match std::env::var("HOLDFAST_FAULTS").as_deref() {
        Ok("long") => true,
        Ok(name) => name == point,
        Err(_) => is_usual,
    }
}

fn small_server(kind: ServerKind, options: ServerOptions) -> Server {
    let source = Server::start(kind, options).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 4, ..shop::ShopOptions::default() }).unwrap();
    source
        .exec_all([
            "CREATE DATABASE f",
            "CREATE TABLE f.t (i INT) ENGINE=InnoDB",
            // Written through to its file immediately: the next backup finds exactly these changes.
            "CREATE TABLE f.news (id INT PRIMARY KEY, v LONGTEXT) ENGINE=MyISAM",
            "INSERT INTO f.news VALUES (1, '')",
            "CREATE TABLE f.large (id INT PRIMARY KEY, v LONGTEXT) ENGINE=InnoDB",
        ])
        .unwrap();
    source
}

/// A slow load, so that a replica soon catches up with all of it.
fn slow_load(source: &Server, seed: u64) -> WriteLoad {
    WriteLoad::start_paced(source, 1, seed, Some(20)).unwrap()
}

fn eventually(limit: Duration, what: &str, done: impl Fn() -> bool) -> Duration {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(20));
    }
    begin.elapsed()
}

/// A small busy server and its repository.
struct Scene {
    stage: Stage,
    load: WriteLoad,
}

impl Scene {
    fn new(kind: ServerKind, seed: u64) -> Scene {
        Scene::with(kind, seed, ServerOptions::default())
    }

    fn with(kind: ServerKind, seed: u64, options: ServerOptions) -> Scene {
        let source = small_server(kind, options);
        let load = slow_load(&source, seed);
        Scene { stage: Stage::around(source), load }
    }

    fn place(&self) -> Place {
        Place {
            repo: self.stage.dir.path().join("repo"),
            spool: self.stage.dir.path().join("spool"),
            socket: self.stage.source.socket().to_owned(),
            redo_spool_max_bytes: 1 << 30,
            lock_max: LOCK_MAX,
        }
    }

    fn source(&self) -> &Server {
        &self.stage.source
    }

    /// Gives the next backup something to store.
    fn change(&self) {
        let text = "REPEAT(CONCAT(SHA2(RAND(), 512), SHA2(RAND(), 512)), 1500)";
        self.source().exec(format!("UPDATE f.news SET v = {text}")).unwrap();
    }

    /// Writes about this much redo, in pieces, each of which must be written in time.
    fn write_redo(&self, kib: usize, pause: Duration) {
        const PIECE_KIB: usize = 64;
        let mut conn = Conn::new(self.source().opts().read_timeout(Some(STATEMENT_MAX))).unwrap();
        // Never repeats a text, which a backup would not consider new.
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let mut rng = Rng::new(CALLS.fetch_add(1, Ordering::Relaxed));
        for piece in 0..kib.div_ceil(PIECE_KIB) {
            let text: String = (0..PIECE_KIB << 6).map(|_| format!("{:016x}", rng.next_u64())).collect();
            conn.query_drop(format!("REPLACE INTO f.large VALUES ({}, '{text}')", piece % 64)).unwrap();
            thread::sleep(pause);
        }
    }

    /// Like [`Scene::change`], with several MiB, enough for whole chunks.
    fn change_much(&self) {
        self.write_redo(4 << 10, Duration::ZERO);
        self.source().exec_all(["FLUSH TABLES f.large FOR EXPORT", "UNLOCK TABLES"]).unwrap();
    }

    fn begin(&self, trap: Option<Trap>) -> Child {
        Child::start(&self.place(), Work::BackUp, trap)
    }

    /// Starts a backup that is frozen at `point`, and waits until it is.
    fn begin_frozen(&self, place: &Place, point: &str) -> Child {
        let place = Place { lock_max: SHORT_LOCK_MAX, ..place.clone() };
        let trap = Trap { point: point.to_owned(), nth: 1, deed: Deed::Freeze };
        let mut child = Child::start(&place, Work::BackUp, Some(trap));
        child.frozen();
        child
    }

    /// Starts a backup, and waits until it is held at the `nth` passing of `point`.
    fn begin_held(&self, place: &Place, point: &str, nth: u64) -> Held {
        let file = self.stage.dir.path().join("held");
        let trap = Trap { point: point.to_owned(), nth, deed: Deed::Hold(file.clone()) };
        let mut child = Child::start(place, Work::BackUp, Some(trap));
        child.held(&file);
        Held { child, file }
    }

    fn history(&self) -> History {
        History::read(&self.stage.repo, &log()).unwrap()
    }

    /// The listed backups.
    fn standing(&self) -> Vec<u64> {
        standing_in(&self.stage.repo)
    }

    /// Checks that a backup's own result agrees with the backups now listed, besides those listed before.
    fn assert_told_the_truth(&self, before: &[u64], ended: &Ended, what: &str) {
        let standing = self.standing();
        assert!(standing.starts_with(before), "{before:?}, then {standing:?}");
        let told = usize::from(ended.status.success());
        assert_eq!(standing.len() - before.len(), told, "{what}: {}", ended.output);
    }

    /// Checks that all listed backups are whole, as far as names, sizes and refs show.
    fn assert_whole(&self) {
        check_all(&self.stage.repo, None);
    }

    /// Checks that all listed backups are whole, to the byte.
    fn assert_readable(&self) {
        check_all(&self.stage.repo, READ_ALL);
    }

    /// Waits until the server blocks nobody; returns how long that took.
    fn until_free(&self) -> Duration {
        eventually(FREE_MAX, "the server is free", || is_free(self.source()))
    }

    /// The spool file has no name, so it disappears however the process ends.
    fn assert_nothing_spooled(&self) {
        assert_eq!(fs::read_dir(self.place().spool).unwrap().count(), 0, "redo was left in the spool");
    }

    /// Checks what must hold when a backup was disturbed and has ended.
    fn assert_over(&self, before: &[u64], ended: &Ended, what: &str) {
        self.assert_told_the_truth(before, ended, what);
        self.until_free();
        self.assert_nothing_spooled();
        self.assert_next_works();
    }

    /// Proves, after everything that was done, that the next backup and the first equal the source.
    fn end(self, first: &BackupReport) {
        let newest = self.assert_next_works();
        self.assert_readable();
        self.prove(first, &newest);
    }

    /// Proves that the newest and the first backup equal the source once they have caught up with it.
    fn prove(self, first: &BackupReport, newest: &BackupReport) {
        let Scene { stage, load } = self;
        load.stop().unwrap();
        stage.prove(newest);
        stage.prove(first);
    }
}

fn standing_in(repo: &Repo) -> Vec<u64> {
    let history = History::read(repo, &log()).unwrap();
    history.standing().map(|outcome| outcome.run.0).collect()
}

const READ_ALL: Option<f64> = Some(1.0);

/// Checks that nothing is wrong with any listed backup.
/// A run that died with everything but its outcome stored cannot be told from one whose outcome was lost.
fn check_all(repo: &Arc<Repo>, read_data: Option<f64>) {
    let mut report = check(repo, &log(), CheckOptions { read_data, ..CheckOptions::default() }).unwrap();
    let unended = log().outcome(History::read(repo, &log()).unwrap().next_run()).to_string();
    report.findings.retain(|finding| finding.object != unended);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.backups, standing_in(repo).len() as u64);
}

/// An operation that is held at a point in one of its threads.
struct Held {
    child: Child,
    file: PathBuf,
}

impl Held {
    /// Lets it continue, and waits for it to end.
    fn ended(self) -> Ended {
        let _ = fs::remove_file(&self.file);
        self.child.ended()
    }
}

/// Whether DDL and commits are possible, and another backup could get its locks.
fn is_free(server: &Server) -> bool {
    let at_once = |statements: &[&str]| {
        let limited = ["SET SESSION lock_wait_timeout = 1", "SET SESSION innodb_lock_wait_timeout = 1"];
        server.exec_all(limited.iter().chain(statements)).is_ok()
    };
    at_once(&["CREATE OR REPLACE VIEW f.v AS SELECT 1", "ALTER TABLE f.t COMMENT 'x'"])
        && at_once(&["INSERT INTO f.t VALUES (1)", "UPDATE f.news SET id = 1"])
        && match server.kind().is_mariadb() {
            true => at_once(&["BACKUP STAGE START", "BACKUP STAGE END"]),
            false => RedoConsumer::register(&crate::server::options(server)).is_ok(),
        }
}
