//! Targets that somebody else uses or changes meanwhile.

use std::{io::Read, os::unix::process::ExitStatusExt};

use super::*;

/// What is put into the target after it was looked at is not overwritten, and not mixed with.
#[test]
fn changed_since_it_was_planned() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let other = world.backup(&files);
    let meanwhile = |name: &str, delta: bool, what: &dyn Fn(&Path)| {
        let mut child = world.child(run, name, "pause", "restore.planned");
        if delta {
            child.env("CHILD_DELTA", "1");
        }
        let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
        let _output = wait_for(&mut child, "paused");
        what(&world.path(name));
        let before = listing(&world.path(name));
        drop(child.stdin.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!child.wait().unwrap().success(), "{name}");
        assert!(said.contains("has changed since"), "{name}: {said}");
        assert!(listing(&world.path(name)) == before, "{name}");
    };
    let data = |target: &Path| {
        fs::create_dir_all(target).unwrap();
        fs::write(target.join("ibdata1"), "production").unwrap();
    };
    meanwhile("absent", false, &data);
    fs::create_dir(world.path("empty")).unwrap();
    meanwhile("empty", false, &data);
    meanwhile("restored", false, &|_| drop(world.restore(other, &world.options("restored")).unwrap()));
    data(&world.path("used"));
    meanwhile("used", true, &|target| fs::write(target.join("ibdata1"), "PRODUCTION").unwrap());
    let killed = world.child(run, "left", "kill", "restore.files.written").output().unwrap();
    assert_eq!(killed.status.signal(), Some(9));
    meanwhile("left", false, &|_| drop(world.restore(run, &world.options("left")).unwrap()));
}

/// While a server has its files locked, nothing is changed; nor while another restore is at work.
#[test]
fn locked() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = RestoreOptions { delta: true, ..world.options("target") };
    world.restore(run, &options).unwrap();
    // Whatever the names of that server's files are, and wherever they are.
    for name in ["ibdata1", "aria_log_control", "ibdata_a", "sub/system"] {
        if !options.target_dir.join(name).exists() {
            fs::create_dir_all(options.target_dir.join(name).parent().unwrap()).unwrap();
            fs::write(options.target_dir.join(name), "pages").unwrap();
        }
        let before = listing(&options.target_dir);
        let mut child = world.child(run, "target", "lock", name).spawn().unwrap();
        let _output = wait_for(&mut child, "locked");
        let error = world.restore(run, &options).unwrap_err();
        assert!(error.to_string().contains("a server is running on"), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(restore::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).is_err());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(listing(&options.target_dir) == before, "{name}");
    }
    world.restore(run, &options).unwrap();
    assert_restored(&options.target_dir, &files);
    let mut child = world.child(run, "busy", "pause", "restore.set.aside").spawn().unwrap();
    let _output = wait_for(&mut child, "paused");
    let busy = world.options("busy");
    assert_eq!(world.restore(run, &busy).unwrap_err().kind(), ErrorKind::Active);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_restored(&busy.target_dir, &files);
}
