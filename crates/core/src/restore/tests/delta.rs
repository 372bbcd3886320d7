//! Onto a data directory that is there already.

use std::os::unix::{
    fs::{MetadataExt, symlink},
    process::ExitStatusExt,
};

use super::*;
use crate::restore::RestoreMode;

/// A delta does what the user has agreed to, or nothing.
#[test]
fn agreed() {
    let world = World::new();
    let run = world.backup(&source());
    let options = RestoreOptions { delta: true, ..world.options("target") };
    world.restore(run, &options).unwrap();
    let plan = restore::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
    let options = RestoreOptions { agreed: Some(Box::new(plan)), ..options };
    let new = options.target_dir.join("db/new.ibd");
    fs::write(&new, "rows").unwrap();
    let error = world.restore(run, &options).unwrap_err();
    assert!(error.to_string().contains("has changed since"), "{error}");
    assert!(new.exists());
    fs::remove_file(&new).unwrap();
    world.restore(run, &options).unwrap();
}

/// A delta that was killed before it changed anything has left somebody's data, not its own.
#[test]
fn a_delta_that_has_changed_nothing() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = world.options("target");
    world.restore(run, &options).unwrap();
    fs::write(options.target_dir.join("db/new.ibd"), "rows").unwrap();
    let before = listing(&options.target_dir);
    for (point, is_changed) in [("restore.claimed", false), ("restore.set.aside", true)] {
        let status = world.child(run, "target", "kill", point).env("CHILD_DELTA", "1").status().unwrap();
        assert_eq!(status.signal(), Some(9), "{point}");
        assert_eq!(is_startable(&options.target_dir), !is_changed);
        if !is_changed {
            assert_eq!(world.restore(run, &options).unwrap_err().kind(), ErrorKind::Usage);
            let mut found = listing(&options.target_dir);
            assert!(found.remove(MARKER).is_some() && found == before);
        }
    }
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
}

/// A stale directory becomes the backup: equal pages are not fetched, and what does not belong is removed.
#[test]
fn delta_onto_a_stale_directory() {
    let world = World::new();
    let mut files = source();
    let first = world.backup(&files);
    let options = world.options("target");
    world.restore(first, &options).unwrap();

    for page in [0, 77, 8_000, 18_999] {
        let big = &mut files.get_mut("db/big.ibd").unwrap().content;
        big[page * 1024..(page + 1) * 1024].copy_from_slice(&noise(page as u64, 1024));
    }
    files.get_mut("db/big.ibd").unwrap().content[6_000 * 1024..6_500 * 1024].fill(0);
    files.get_mut("ibdata1").unwrap().content.truncate(60 * 16384);
    let moved = files.remove("many/3/t3.frm").unwrap();
    files.insert("many/3/renamed.frm".into(), moved);
    files.insert("new/t.frm".into(), Fake::new(FileRole::Other, 16 << 10, noise(9, 70_000)));
    let second = world.backup(&files);

    for (name, content) in [
        ("binlog.000001", "events"),
        ("relay-log.info", "position"),
        ("ib_buffer_pool", "pages"),
        ("aria_log.00000001", "log"),
        ("#sql-ib7.ibd", "half a table"),
        ("dropped/db.opt", "utf8"),
    ] {
        let path = options.target_dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    assert_eq!(world.restore(second, &options).unwrap_err().kind(), ErrorKind::Usage);
    let options = RestoreOptions { delta: true, ..options };
    let plan = restore::plan(&world.repo, &log_name(), second, &options, &Cancel::default()).unwrap();
    assert_eq!(plan.mode, RestoreMode::Delta);
    let deleted: Vec<_> = plan
        .delete
        .iter()
        .map(|path| path.strip_prefix(&plan.target_dir).unwrap().to_str().unwrap())
        .collect();
    for name in ["binlog.000001", "#sql-ib7.ibd", "dropped", "ib_logfile0", "many/3/t3.frm", REPORT] {
        assert!(deleted.contains(&name), "{name}: {deleted:?}");
    }
    let report = world.restore(second, &options).unwrap();
    assert_restored(&options.target_dir, &files);
    assert_eq!(report.written.files_reused, report.written.files - 2);
    // Four pages, two files, the redo.
    assert!(report.written.bytes_written < 200_000, "{:?}", report.written);
}

/// Whatever happened to the directory, delta makes it right, and never writes through a link or into a file
/// that has another name elsewhere.
#[test]
fn delta_onto_a_spoiled_directory() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = RestoreOptions { delta: true, ..world.options("target") };
    world.restore(run, &options).unwrap();
    let at = |name: &str| options.target_dir.join(name);
    let theirs = world.path("theirs");
    fs::create_dir(&theirs).unwrap();

    let mut big = fs::read(at("db/big.ibd")).unwrap();
    for page in [0, 500, 4_999, 9_050, 12_345, 18_999] {
        big[page * 1024 + 5] ^= 1;
    }
    big.truncate(18_500 * 1024 + 7);
    fs::write(at("db/big.ibd"), &big).unwrap();
    fs::hard_link(at("ibdata1"), theirs.join("ibdata1")).unwrap();
    let mut longer = fs::read(at("db/o.ibd")).unwrap();
    longer.extend(noise(8, 50_000));
    fs::write(at("db/o.ibd"), longer).unwrap();
    fs::rename(at("many/2"), theirs.join("2")).unwrap();
    symlink(theirs.join("2"), at("many/2")).unwrap();
    let victim = fs::read(theirs.join("2/t2.frm")).unwrap();
    fs::write(theirs.join("2/t2.frm"), "precious").unwrap();
    fs::remove_file(at("db/y.MYD")).unwrap();
    fs::create_dir_all(at("db/y.MYD/inner")).unwrap();
    fs::write(at("db/y.MYD/inner/x"), "x").unwrap();
    fs::remove_file(at("aria_log_control")).unwrap();
    symlink("/etc/hostname", at("aria_log_control")).unwrap();
    fs::write(at("ibdata1.partial"), "from another time").unwrap();

    // Once set aside, none of these comes back in place of what keeps servers away.
    for point in ["restore.deleted", "restore.files.written"] {
        let status = world.child(run, "target", "kill", point).env("CHILD_DELTA", "1").status().unwrap();
        assert_eq!(status.signal(), Some(9), "{point}");
        for held in ["ibdata1", "aria_log_control"] {
            let text = fs::read_to_string(at(held)).unwrap_or_default();
            assert!(text.starts_with("holdfast: "), "{held} at {point}: {text:?}");
        }
        fs::remove_file(at("aria_log_control")).unwrap();
        symlink("/etc/hostname", at("aria_log_control")).unwrap();
        fs::remove_file(at("ibdata1")).unwrap();
        fs::hard_link(theirs.join("ibdata1"), at("ibdata1")).unwrap();
    }
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
    assert_eq!(fs::read(theirs.join("2/t2.frm")).unwrap(), b"precious");
    assert_ne!(victim, b"precious");
    assert_eq!(fs::metadata(theirs.join("ibdata1")).unwrap().nlink(), 1);
    assert_eq!(fs::read(theirs.join("ibdata1")).unwrap(), files["ibdata1"].content);
}

/// No server has a directory in the place of a system file: whoever made it must look at it.
#[test]
fn delta_onto_a_directory_in_the_place_of_a_system_file() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = RestoreOptions { delta: true, ..world.options("target") };
    fs::create_dir_all(options.target_dir.join("ibdata1/inner")).unwrap();
    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("ibdata1 is a directory"), "{error}");
    assert!(options.target_dir.join("ibdata1/inner").is_dir());
}
