//! The room that a restore is forecast to need.

use super::*;
use crate::mounts::{in_own_mounts, mount, mounted};

/// The file system itself takes a page or two.
const MARGIN_BYTES: u64 = 64 << 10;

/// On a file system that has exactly so much free, the restore succeeds; with less, nothing is written.
fn as_much_as_forecast(kind: ServerKind) {
    let source = Server::start(kind, ServerOptions::default()).unwrap();
    shop::load(&source, shop::ShopOptions { size_mib: 24, ..shop::ShopOptions::default() }).unwrap();
    misc::create(&source, misc::MiscOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let repo = new_repo();
    let load = WriteLoad::start(&source, 2, 51).unwrap();
    let backup = back_up(&repo, &source, dir.path());
    load.stop().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=8g,mode=0700", "tmpfs"], &disk);
    let options = options(kind, disk.join("data"));
    let run = RunNo(backup.run.backup);
    let resized = |bytes: u64| assert!(mounted(&["-o", &format!("remount,size={bytes}")], &disk));
    let needed_bytes = || {
        let plan = restore::plan(&repo, &log(), run, &options, &Cancel::default()).unwrap();
        let [room] = &plan.room[..] else { panic!("{:?}", plan.room) };
        room.needed_bytes
    };
    // What holes do not take is counted only if it matters.
    let with_holes_bytes = needed_bytes();
    resized(with_holes_bytes - MARGIN_BYTES);
    let needed_bytes = needed_bytes();
    println!("{kind}: {with_holes_bytes} bytes with holes, {needed_bytes} without");
    resized(needed_bytes - MARGIN_BYTES);
    let error = restore(&repo, &backup, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    let text = error.to_string();
    assert!(text.contains(&disk.display().to_string()) && text.contains("and the restore needs"), "{text}");
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0);
    resized(needed_bytes + MARGIN_BYTES);
    let report = restore(&repo, &backup, &options).unwrap();
    assert_eq!(report.prepared.unwrap().lsn, backup.position.lsn);
    resized(8 << 30);
    assert_follows(&source, &options.target_dir, &backup, true);
}

#[test]
fn mariadb_10_11_as_much_as_forecast() {
    in_own_mounts("restore::room::mariadb_10_11_as_much_as_forecast", || {
        as_much_as_forecast(ServerKind::MariaDb1011);
    });
}

#[test]
fn mysql_9_7_as_much_as_forecast() {
    in_own_mounts("restore::room::mysql_9_7_as_much_as_forecast", || {
        as_much_as_forecast(ServerKind::MySql97);
    });
}
