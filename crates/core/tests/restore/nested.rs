//! A directory within a directory: targets in data directories, and filesystems that are mounted in targets.

use std::process::Command;

use holdfast_core::{
    extract::{self, ExtractOptions, Origin},
    logical::Selection,
};

use super::*;
use crate::mounts::{in_own_mounts, mount};

/// A server with a table in its data directory and one outside.
fn small_source() -> Server {
    let source = Server::start(ServerKind::MariaDb1011, ServerOptions::default()).unwrap();
    source
        .exec_all([
            "CREATE DATABASE x".to_owned(),
            "CREATE TABLE x.t (i INT PRIMARY KEY)".to_owned(),
            "INSERT INTO x.t VALUES (1)".to_owned(),
            format!("CREATE TABLE x.o (i INT PRIMARY KEY) DATA DIRECTORY='{}'", source.outside().display()),
        ])
        .unwrap();
    source
}

fn rows(target: &Path) -> u64 {
    let copy = Server::attach(ServerKind::MariaDb1011, target, ServerOptions::default()).unwrap();
    copy.value("SELECT COUNT(*) FROM x.t").unwrap()
}

/// A server takes what is in its data directory for its own, so nothing is restored, mapped or worked on there, and
/// nothing is left there by the refusal.
#[test]
fn nothing_is_restored_into_a_data_directory() {
    let (source, repo) = (small_source(), new_repo());
    let dir = tempfile::tempdir().unwrap();
    let backup = back_up(&repo, &source, dir.path());
    let inside = source.datadir().join("restored");
    let whole = |target: PathBuf| options(source.kind(), target);
    let mapped = |to: PathBuf| RestoreOptions {
        maps: vec![(source.outside(), to)],
        ..whole(dir.path().join("elsewhere"))
    };
    for options in [
        whole(inside.clone()),
        whole(inside.join("deeper")),
        RestoreOptions { delta: true, ..whole(inside.clone()) },
        mapped(inside.clone()),
        mapped(source.datadir().to_owned()),
    ] {
        let error = restore(&repo, &backup, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains("looks like a data directory"), "{error}");
        assert!(!inside.exists() && !options.target_dir.exists(), "{options:?}");
    }
    let wanted = ExtractOptions {
        work_place: inside.clone(),
        restore: whole(inside.clone()),
        ..ExtractOptions::new(Selection { tables: vec!["x.t".parse().unwrap()], ..Selection::default() })
    };
    let (log, run) = (log(), RunNo(backup.run.backup));
    let extracted = extract::run(&repo, Origin::Backup(&log, run), &wanted, &Told, &Cancel::default());
    let error = extracted.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(!inside.exists());
}

/// The directory of a schema can be the root of a filesystem, with a `lost+found` of its own: no backup has that, and
/// no restore removes it.
#[test]
fn what_a_filesystem_has_lost_is_left_where_it_is() {
    let (source, repo) = (small_source(), new_repo());
    let lose = |datadir: &Path| {
        let lost = datadir.join("x/lost+found");
        fs::create_dir(&lost).unwrap();
        fs::write(lost.join("#12"), "lost").unwrap();
        fs::set_permissions(&lost, fs::Permissions::from_mode(0o000)).unwrap();
        lost
    };
    let lost = lose(source.datadir());
    let dir = tempfile::tempdir().unwrap();
    let backup = back_up(&repo, &source, dir.path());
    let target = dir.path().join("target");
    let options = options(source.kind(), target.clone());
    restore(&repo, &backup, &options).unwrap();
    assert!(!target.join("x/lost+found").exists());
    let lost_there = lose(&target);
    restore(&repo, &backup, &RestoreOptions { delta: true, ..options }).unwrap();
    for lost in [lost, lost_there] {
        fs::set_permissions(&lost, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(fs::read_to_string(lost.join("#12")).unwrap(), "lost");
    }
    assert_eq!(rows(&target), 1);
}

/// A filesystem that is mounted in the target cannot be removed: a delta that would have to is refused before it
/// touches anything. One that the backup has a directory for stays, and gets its files.
#[test]
fn a_delta_never_removes_what_is_mounted() {
    in_own_mounts("restore::nested::a_delta_never_removes_what_is_mounted", || {
        let (source, repo) = (small_source(), new_repo());
        let dir = tempfile::tempdir().unwrap();
        let backup = back_up(&repo, &source, dir.path());
        let (target, bound) = (dir.path().join("target"), dir.path().join("bound"));
        let fresh = options(source.kind(), target.clone());
        let delta = RestoreOptions { delta: true, ..fresh.clone() };
        restore(&repo, &backup, &fresh).unwrap();
        assert_eq!(rows(&target), 1);
        let extra = target.join("extra");
        for directory in [&extra, &bound] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(bound.join("t.MYD"), "theirs").unwrap();
        for arguments in [&["-t", "tmpfs", "tmpfs"][..], &["--bind", bound.to_str().unwrap()]] {
            mount(arguments, &extra);
            fs::write(extra.join("t.MYD"), "theirs").unwrap();
            let error = restore(&repo, &backup, &delta).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(error.to_string().contains("extra would be removed"), "{error}");
            assert_eq!(fs::read_to_string(extra.join("t.MYD")).unwrap(), "theirs");
            assert_eq!(rows(&target), 1);
            assert!(Command::new("umount").arg(&extra).status().unwrap().success());
        }
        mount(&["-t", "tmpfs", "tmpfs"], &target.join("x"));
        restore(&repo, &backup, &delta).unwrap();
        assert!(!extra.exists() && target.join("x/t.ibd").exists());
        assert_eq!(rows(&target), 1);
    });
}
