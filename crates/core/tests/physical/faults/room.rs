//! Full disks, and a repository that cannot be written.

use std::{fs::File, path::Path};

use holdfast_core::ErrorKind;
use rustix::fs::{FallocateFlags, fallocate};

use super::*;
use crate::mounts::{in_own_mounts, mount, mounted};

/// Enough for the redo log of a small server.
const SPOOL_SIZE: &str = "size=256m";

/// Creates a file system at `dir`, with plenty of space.
fn new_disk(dir: &Path) {
    fs::create_dir(dir).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=1g,mode=0700", "tmpfs"], dir);
}

/// Leaves this much free space on the file system at `dir`.
fn leave_free(dir: &Path, bytes: u64) {
    let left_free = || {
        let stat = rustix::fs::statvfs(dir).unwrap();
        let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
        mounted(&["-o", &format!("remount,size={}", used + bytes)], dir)
    };
    // Refused if more was written meanwhile than was to be left free.
    assert!((0..20).any(|_| left_free()));
}

/// A scene whose repository and spool are on their own disks.
fn scene_on_disks(kind: ServerKind, seed: u64) -> Scene {
    let source = small_server(kind, ServerOptions::default());
    let load = slow_load(&source, seed);
    let dir = tempfile::tempdir().unwrap();
    new_disk(&dir.path().join("repo"));
    let repo = new_repo(&dir.path().join("repo"));
    let stage = Stage::with_repo(source, repo, dir);
    mount(&["-t", "tmpfs", "-o", SPOOL_SIZE, "tmpfs"], &stage.dir.path().join("spool"));
    Scene { stage, load }
}

impl Scene {
    /// A backup to whose redo at least 4 MiB are added, after `first`, unless it fails earlier.
    fn back_up_while_redo_is_written(&self, place: &Place, first: impl FnOnce()) -> Ended {
        self.back_up_while_so_much_redo_is_written(place, 4 << 10, first)
    }

    fn back_up_while_so_much_redo_is_written(
        &self,
        place: &Place,
        kib: usize,
        first: impl FnOnce(),
    ) -> Ended {
        let file = self.stage.dir.path().join("held");
        let deed = Deed::Hold(file.clone());
        let trap = Trap { point: "backup.tablespaces.copied".to_owned(), nth: 1, deed };
        let mut child = Child::start(place, Work::BackUp, Some(trap));
        child.held_or_ended(&file);
        first();
        self.write_redo(kib, Duration::ZERO);
        Held { child, file }.ended()
    }

    fn begin_in(&self, place: &Place) -> Child {
        Child::start(place, Work::BackUp, None)
    }

    fn assert_untouched(&self, standing: &[u64]) {
        self.until_free();
        self.assert_nothing_spooled();
        assert_eq!(self.standing(), standing);
        self.assert_readable();
    }
}

/// The repository's disk fills up in mid-copy, and is enlarged; then it is read-only for a while; then the
/// spool's disk fills up, and then the spool reaches its own limit.
fn backup_without_room(kind: ServerKind, seed: u64) {
    let scene = scene_on_disks(kind, seed);
    let place = scene.place();
    let (repo, location) = (place.repo.as_path(), place.repo.display().to_string());
    let first = scene.stage.back_up();

    scene.change_much();
    let before = fs::read_dir(repo.join("sources/db1/physical/packs")).unwrap().count();
    leave_free(repo, 160 << 10);
    scene.begin(None).ended().assert_said(
        ErrorKind::Store,
        &[&location, "sources/db1/physical/", "No space left on device"],
        "make room",
    );
    scene.assert_untouched(&[first.run.backup]);
    assert_eq!(fs::read_dir(repo.join("sources/db1/physical/packs")).unwrap().count(), before);
    mount(&["-o", "remount,size=1g"], repo);
    let second = scene.assert_next_works();

    mount(&["-o", "remount,ro"], repo);
    scene.begin(None).ended().assert_said(
        ErrorKind::Store,
        &[&location, "Read-only file system"],
        "mounted read-only",
    );
    scene.assert_untouched(&[first.run.backup, second.run.backup]);
    mount(&["-o", "remount,rw"], repo);
    let third = scene.assert_next_works();

    let spool = place.spool.display().to_string();
    let fill = || leave_free(&place.spool, 256 << 10);
    scene.back_up_while_redo_is_written(&place, fill).assert_said(
        ErrorKind::Failed,
        &["write the redo spool in", &spool, "No space left on device"],
        "--spool-dir",
    );
    let standing = [first.run.backup, second.run.backup, third.run.backup];
    scene.assert_untouched(&standing);
    scene.begin(None).ended().assert_said(
        ErrorKind::Failed,
        &["free in", &spool, "of redo that a backup may have to capture"],
        "--spool-dir",
    );
    mount(&["-o", &format!("remount,{SPOOL_SIZE}")], &place.spool);
    let limited = Place { redo_spool_max_bytes: 1 << 20, ..place.clone() };
    scene.back_up_while_redo_is_written(&limited, || {}).assert_said(
        ErrorKind::Failed,
        &["the redo spool in", &spool, "is full", "more than 1048576 bytes of redo"],
        "--spool-max",
    );
    scene.assert_untouched(&standing);
    let newest = scene.assert_next_works();
    scene.prove(&first, &newest);
}

#[test]
fn mariadb_10_11_is_backed_up_when_there_is_room_again() {
    in_own_mounts("physical::faults::room::mariadb_10_11_is_backed_up_when_there_is_room_again", || {
        backup_without_room(ServerKind::MariaDb1011, 71);
    });
}

#[test]
fn mysql_9_7_is_backed_up_when_there_is_room_again() {
    in_own_mounts("physical::faults::room::mysql_9_7_is_backed_up_when_there_is_room_again", || {
        backup_without_room(ServerKind::MySql97, 72);
    });
}

/// A first backup that cannot fit is not begun.
#[test]
fn a_first_backup_that_cannot_fit_is_refused() {
    in_own_mounts("physical::faults::room::a_first_backup_that_cannot_fit_is_refused", || {
        let scene = scene_on_disks(ServerKind::MariaDb1011, 73);
        leave_free(&scene.place().repo, 64 << 10);
        let location = scene.place().repo.display().to_string();
        scene.begin(None).ended().assert_said(
            ErrorKind::Store,
            &[&location, "too little for a full backup of"],
            "make room",
        );
        assert_eq!(scene.history().outcomes().len(), 0);
    });
}

/// The redo spool is on the server's own disk, and another process fills the disk: the backup gives up while
/// the server can still write.
#[test]
fn a_spool_leaves_room_to_the_server() {
    in_own_mounts("physical::faults::room::a_spool_leaves_room_to_the_server", || {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        new_disk(&disk);
        let options = ServerOptions { parent: Some(disk.clone()), ..ServerOptions::default() };
        let source = small_server(ServerKind::MariaDb1011, options);
        let load = slow_load(&source, 74);
        let repo = new_repo(&dir.path().join("repo"));
        let scene = Scene { stage: Stage::with_repo(source, repo, dir), load };
        let spool = disk.join("spool");
        fs::create_dir(&spool).unwrap();
        let place = Place { spool: spool.clone(), ..scene.place() };
        scene.begin_in(&place).ended().succeeded();

        let reserve = rustix::fs::statvfs(&disk).unwrap().f_blocks * 4096 / 20;
        let fill = || {
            let free = rustix::fs::statvfs(&disk).unwrap();
            let taken = File::create(disk.join("taken")).unwrap();
            let all = free.f_bavail * free.f_frsize - reserve - (8 << 20);
            fallocate(&taken, FallocateFlags::empty(), 0, all).unwrap();
        };
        let ended = scene.back_up_while_so_much_redo_is_written(&place, 10 << 10, fill);
        let (spool, in_words) = (spool.display().to_string(), "on a file system that the server writes to");
        ended.assert_said(
            ErrorKind::Failed,
            &["the redo spool has grown to", &spool, in_words],
            "--spool-dir",
        );
        scene.begin_in(&place).ended().assert_said(
            ErrorKind::Failed,
            &["of redo that a backup may have to capture and ", "for the server, which writes there, too"],
            "--spool-dir",
        );
        fs::remove_file(disk.join("taken")).unwrap();
        scene.begin_in(&place).ended().succeeded();
        assert_eq!(scene.standing().len(), 2);
    });
}
