//! Much redo, written during one backup in many laps of the server's log: spooled,
//! stored, and recovered at once.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Instant,
};

use holdfast_repo::store::fs::FsStore;
use mysql::Conn;

use super::*;

/// `20`: GiB of redo, instead of an amount that takes a few seconds.
const REDO: &str = "HOLDFAST_REDO";
const REDO_DEFAULT_BYTES: u64 = 384 << 20;
/// Size of the server's log, which wraps around more than once.
const LOG_MIB: u32 = 256;
const LOG_MIB_LONG: u32 = 1024;
const FILE_BYTES_MAX_SHORT: u64 = 100 << 20;
const ROWS: u32 = 8_000;
/// Rows per transaction.
const STEP: u32 = 200;
/// How far the server may be ahead of the capture; other tests cover redo that is lost
/// because it was overwritten.
const AHEAD_BYTES_MAX: u64 = 96 << 20;

fn wanted_bytes() -> Option<u64> {
    let asked = std::env::var(REDO).ok()?;
    Some(asked.parse::<u64>().unwrap_or_else(|_| panic!("{REDO} is a number of GiB: {asked}")) << 30)
}

fn current_lsn(conn: &mut Conn, kind: ServerKind) -> u64 {
    let name = if kind.is_mariadb() { "Innodb_lsn_current" } else { "Innodb_redo_log_current_lsn" };
    let row: (String, u64) = conn.query_first(format!("SHOW GLOBAL STATUS LIKE '{name}'")).unwrap().unwrap();
    row.1
}

/// The bytes in unnamed files of `dir`, which belong to the spool: the captured redo.
fn captured_bytes(dir: &Path) -> u64 {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let nameless = links.filter(|link| {
        std::fs::read_link(link).is_ok_and(|file| {
            let file = file.to_string_lossy();
            file.starts_with(&*dir.to_string_lossy()) && file.ends_with("(deleted)")
        })
    });
    // A file that is closed meanwhile counts as zero.
    nameless.filter_map(|link| Some(std::fs::metadata(link).ok()?.len())).sum()
}

/// Changes every second row, starting at `first`, over and over, as fast as the redo is
/// captured in `spool_dir`.
fn rewrite(source: &Server, first: u32, begun: u64, spool_dir: &Path, ends: &AtomicBool) {
    let mut conn = source.conn().unwrap();
    for round in 0.. {
        for from in (0..ROWS).step_by(STEP as usize) {
            let is_far_ahead = |conn: &mut Conn| {
                current_lsn(conn, source.kind()) > begun + captured_bytes(spool_dir) + AHEAD_BYTES_MAX
            };
            while !ends.load(Ordering::SeqCst) && is_far_ahead(&mut conn) {
                sleep(Duration::from_millis(10));
            }
            if ends.load(Ordering::SeqCst) {
                return;
            }
            let to = from + STEP;
            // Bytes that no redo record can abbreviate.
            conn.query_drop(format!(
                "UPDATE r.t SET v = REPEAT(SHA2(CONCAT(id, '-', {round}), 512), 55)
                 WHERE id >= {from} AND id < {to} AND id % 2 = {first}"
            ))
            .unwrap();
        }
    }
}

/// The half of the rows that each writer writes.
const WRITERS: [u32; 2] = [0, 1];

/// Delays the stop phase until this much redo has been written since the backup began, and the writers have
/// ended: commits after the backup's position would not be in the copy.
struct UntilWritten<'a> {
    source: &'a Server,
    begun: u64,
    bytes: u64,
    ends: &'a AtomicBool,
    ended: &'a AtomicUsize,
}

impl Listener for UntilWritten<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name: "stop" }) {
            let mut conn = self.source.conn().unwrap();
            while current_lsn(&mut conn, self.source.kind()) < self.begun + self.bytes {
                sleep(Duration::from_millis(100));
            }
            self.ends.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            while self.ended.load(Ordering::SeqCst) < WRITERS.len() {
                assert!(begun.elapsed() < Duration::from_secs(120), "writers do not end");
                sleep(Duration::from_millis(10));
            }
        }
        Told.event(event);
    }
}

fn much_redo_is_recovered(kind: ServerKind) {
    let asked = wanted_bytes();
    let redo_mib = if asked.is_some() { LOG_MIB_LONG } else { LOG_MIB };
    let bytes = asked.unwrap_or(REDO_DEFAULT_BYTES);
    let server_options = ServerOptions { redo_mib: Some(redo_mib), ..ServerOptions::default() };
    let server_options = server_options.arg("--innodb-flush-log-at-trx-commit=2").arg("--skip-log-bin");
    let mut source = Server::start(kind, server_options).unwrap();
    source
        .exec_all([
            "CREATE DATABASE r",
            "CREATE TABLE r.t (id INT PRIMARY KEY, v VARCHAR(8000) CHARACTER SET latin1) ENGINE=InnoDB",
        ])
        .unwrap();
    for from in (0..ROWS).step_by(STEP as usize) {
        let rows: Vec<_> = (from..from + STEP).map(|id| format!("({id}, REPEAT('x', 7040))")).collect();
        source.exec(format!("INSERT INTO r.t VALUES {}", rows.join(","))).unwrap();
    }
    // The capture begins at the last checkpoint: the writers must not count the redo from there as theirs.
    source.restart().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = FsStore::create(dir.path().join("repo")).unwrap();
    let repo = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
    let (ends, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    let backup = std::thread::scope(|scope| {
        let begun = current_lsn(&mut source.conn().unwrap(), kind);
        for first in WRITERS {
            let (source, dir, ends, ended) = (&source, dir.path(), &ends, &ended);
            scope.spawn(move || {
                rewrite(source, first, begun, dir, ends);
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        let backup_options = BackupOptions {
            name: Some("db1".parse().unwrap()),
            spool_dir: Some(dir.path().to_owned()),
            redo_spool_max_bytes: bytes + bytes / 2 + (1 << 30),
            ..crate::server::backup_options(crate::server::options(&source))
        };
        let listener = UntilWritten { source: &source, begun, bytes, ends: &ends, ended: &ended };
        let backup = backup::run(&repo, &backup_options, &listener, &Cancel::default());
        ends.store(true, Ordering::SeqCst);
        backup.unwrap()
    });
    assert!(backup.capture.redo_bytes >= bytes, "{:?}", backup.capture);
    let target = dir.path().join("target");
    // Short redo is split into small files, as long redo is into files of the server's maximum size.
    let short_bytes = asked.is_none().then_some(FILE_BYTES_MAX_SHORT);
    let mut restore_options = options(kind, target.clone());
    restore_options.redo_file_bytes_max = short_bytes.unwrap_or(restore_options.redo_file_bytes_max);
    let report = restore(&repo, &backup, &restore_options).unwrap();
    let prepared = report.prepared.unwrap();
    assert_eq!(prepared.lsn, backup.position.lsn);
    let copy = Server::attach(kind, &target, ServerOptions::default()).unwrap();
    assert_equal_checksums(&source, &copy).unwrap();
    println!(
        "{kind}: {} MiB of redo, {} s to back up, {} s to restore, {} s of them to recover",
        backup.capture.redo_bytes >> 20,
        backup.run.total_ms / 1000,
        report.phases.iter().map(|phase| phase.ms).sum::<u64>() / 1000,
        prepared.ms / 1000
    );
}

#[test]
fn mariadb_10_11_much_redo_is_recovered() {
    much_redo_is_recovered(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_much_redo_is_recovered() {
    much_redo_is_recovered(ServerKind::MySql97);
}
