//! A restore killed while the server's own program recovers the restored files.
//!
//! Whatever the moment, a server started on the files must end immediately, since nobody has verified them;
//! and the restore completes when it is run again.

use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use holdfast_core::points::set_hook;
use holdfast_repo::store::fs::FsStore;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::*;
use crate::extract::interrupted::processes_of;

const ORDERS: &str = "HOLDFAST_TEST_RESTORE";

#[derive(Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) repo: PathBuf,
    pub(super) target: PathBuf,
    pub(super) program: PathBuf,
    /// The kind of the backup.
    pub(super) kind: String,
    pub(super) run: u64,
    pub(super) point: String,
    /// The delay after the point.
    pub(super) after_ms: u64,
}

/// Not a test by itself: restores, and is killed where it is told to.
#[test]
#[ignore = "a process for the tests of this module"]
fn operation() {
    let orders: Orders = serde_json::from_str(&std::env::var(ORDERS).unwrap()).unwrap();
    let (point, after) = (orders.point, Duration::from_millis(orders.after_ms));
    set_hook(move |name| {
        let kill = move || {
            sleep(after);
            kill_process(getpid(), Signal::KILL).unwrap();
        };
        if name == point && after.is_zero() {
            kill();
        } else if name == point {
            thread::spawn(kill);
        }
    });
    let store = FsStore::open(orders.repo).unwrap();
    let repo = Arc::new(Repo::open(Arc::new(store), None).unwrap());
    let options =
        RestoreOptions { server_binary: Some(orders.program), ..RestoreOptions::new(orders.target) };
    let log = LogName { kind: orders.kind.parse().unwrap(), ..log() };
    restore::run(&repo, &log, RunNo(orders.run), &options, &Told, &Cancel::default()).unwrap();
}

/// Whether it was killed, instead of completing first.
pub(super) fn killed(orders: &Orders) -> bool {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restore::killed::operation", "--ignored", "--nocapture"])
        .env(ORDERS, serde_json::to_string(orders).unwrap())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let status = ended.status;
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(status.success() || status.signal() == Some(9), "{status}: {said}");
    // Its server is killed with it, but not at the same instant.
    let begin = Instant::now();
    while !processes_of(&orders.target).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "a server outlives the restore that started it");
        sleep(Duration::from_millis(50));
    }
    !status.success()
}

fn killed_while_recovering(kind: ServerKind, seed: u64, server_options: &ServerOptions) {
    let source = Server::start(kind, server_options.clone()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 12, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&source, misc::MiscOptions::default()).unwrap();
    let load = WriteLoad::start(&source, 2, seed).unwrap();
    sleep(Duration::from_secs(1));
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("repo");
    let store = FsStore::create(&place).unwrap();
    let repo = Arc::new(Repo::init(Arc::new(store), &Protection::None).unwrap());
    let backup = back_up(&repo, &source, dir.path());
    load.stop().unwrap();
    let target = dir.path().join("target");
    let at = |point: &str, after_ms| Orders {
        repo: place.clone(),
        target: target.clone(),
        program: kind.server_program().unwrap(),
        kind: log().kind.to_string(),
        run: backup.run.backup,
        point: point.to_owned(),
        after_ms,
    };
    let killed_at = |point: &str, after_ms| {
        // Once the files have their names, only the report is missing.
        let was_killed = killed(&at(point, after_ms)) && (after_ms == 0 || !is_there(&target));
        if was_killed {
            assert!(!is_there(&target), "{point}");
            let started = Server::attach(kind, &target, server_options.clone());
            assert!(started.is_err(), "a server starts after {after_ms} ms after {point}");
            assert!(!is_there(&target), "a server has made files after {point}");
        } else {
            println!("{kind}: {after_ms} ms after {point} it was complete");
            fs::remove_dir_all(&target).unwrap();
        }
        was_killed
    };
    for point in ["restore.names.durable", "restore.private.entered"] {
        assert!(killed_at(point, 0), "{point}");
    }
    // However long the server takes, some of these moments are before it is done.
    let mut moments = (0..11).rev().map(|exponent| 1 << exponent);
    let recovering = moments.by_ref().filter(|after_ms| killed_at("restore.private.entered", *after_ms));
    assert_eq!(recovering.take(3).count(), 3, "it was hardly ever killed while the server recovered");
    // At the end, the redo has its name, and the system tablespace does not.
    for point in ["restore.recovered", "restore.prepared", "restore.file.named"] {
        assert!(killed_at(point, 0), "{point}");
    }
    let report = restore(&repo, &backup, &options(kind, target.clone())).unwrap();
    assert_eq!(report.prepared.unwrap().lsn, backup.position.lsn);
    assert!(!target.join("holdfast-restore.partial").exists());
    assert!(!target.join("holdfast-restore.incomplete").exists());
    assert_follows_with(&source, &target, &backup, true, server_options);
}

#[test]
fn mariadb_10_11_killed_while_recovering() {
    killed_while_recovering(ServerKind::MariaDb1011, 41, &ServerOptions::default());
}

#[test]
fn mariadb_11_8_killed_while_recovering() {
    killed_while_recovering(ServerKind::MariaDb118, 42, &ServerOptions::default());
}

#[test]
fn mysql_9_7_killed_while_recovering() {
    let two_files = "--innodb-data-file-path=ibdata1:12M;ibdata2:12M:autoextend";
    killed_while_recovering(ServerKind::MySql97, 43, &ServerOptions::default().init_arg(two_files));
}

/// Whether the system tablespace has its own name.
fn is_there(target: &Path) -> bool {
    !fs::read(target.join("ibdata1")).unwrap().starts_with(b"holdfast: ")
}
