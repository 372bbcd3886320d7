//! With files in places that mappings name.

use std::{
    io::Read,
    os::unix::{
        fs::{MetadataExt, symlink},
        process::ExitStatusExt,
    },
};

use super::*;

/// With a mapping, a table's file goes where the user wants it, and the target leads there.
#[test]
fn mapped() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let mut options = world.options("target");
    options.maps = vec![("/x".into(), world.path("elsewhere"))];
    world.restore(run, &options).unwrap();
    let found = listing(&options.target_dir);
    let goes_to = world.path("elsewhere/y.MYD");
    assert_eq!(found["db/y.MYD"], goes_to.as_os_str().as_encoded_bytes());
    assert_eq!(fs::read(&goes_to).unwrap(), files["db/y.MYD"].content);

    let mut again = world.options("second");
    again.maps = options.maps.clone();
    assert_eq!(world.restore(run, &again).unwrap_err().kind(), ErrorKind::Usage);
    assert!(!again.target_dir.exists());
    // A tablespace gets its place after recovery only.
    again.maps = vec![("/fast/shop".into(), world.path("fast"))];
    assert_eq!(world.restore(run, &again).unwrap_err().kind(), ErrorKind::Usage);
    again.maps = vec![("/x".into(), again.target_dir.join("x"))];
    assert_eq!(world.restore(run, &again).unwrap_err().kind(), ErrorKind::Usage);
}

/// What was in a mapped place before keeps its owner; what the restore makes there goes to the given one.
#[test]
fn mapped_places_of_others() {
    let world = World::new();
    let mut files = source();
    let deep = Fake { outside: Some("/x/old/new/z.MYD"), ..files["db/y.MYD"].clone() };
    files.insert("db/z.MYD".into(), deep);
    let run = world.backup(&files);
    let is_root = rustix::process::geteuid().is_root();
    let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = if is_root { (ours.0 + 4711, ours.1 + 4711) } else { ours };
    let place = world.path("place");
    fs::create_dir_all(place.join("old")).unwrap();
    let maps = vec![("/x".into(), place.clone())];
    let options = RestoreOptions { owner: Some(owner), maps, ..world.options("target") };
    world.restore(run, &options).unwrap();
    let owner_of = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.uid(), metadata.gid())
    };
    for (path, whose) in
        [("", ours), ("old", ours), ("old/new", owner), ("old/new/z.MYD", owner), ("y.MYD", owner)]
    {
        assert_eq!(owner_of(&place.join(path)), whose, "{path}");
    }
}

/// Two tables that the source kept in different directories under one name are never put into one file,
/// however the place that both would go to is spelled.
#[test]
fn two_mappings_to_one_place() {
    let world = World::new();
    let mut files = source();
    for (table, outside) in [("db/m.MYD", "/my/m.MYD"), ("db2/m.MYD", "/my2/m.MYD")] {
        files.insert(table.into(), Fake { outside: Some(outside), ..files["db/y.MYD"].clone() });
    }
    let run = world.backup(&files);
    let place = world.path("both");
    fs::create_dir(&place).unwrap();
    symlink(&place, world.path("link")).unwrap();
    let target = world.path("target");
    for other in [place.clone(), world.path("link"), world.path("no/../both/."), place.join("../both")] {
        let maps = vec![("/my".into(), place.clone()), ("/my2".into(), other)];
        let options = RestoreOptions { maps, ..world.options("target") };
        for error in [
            restore::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap_err(),
            world.restore(run, &options).unwrap_err(),
        ] {
            assert!(error.to_string().contains("would both go to"), "{error}");
        }
    }
    // Nor into the target, which has files of its own.
    fs::create_dir(&target).unwrap();
    symlink(&target, world.path("alias")).unwrap();
    files.get_mut("db/m.MYD").unwrap().outside = Some("/target/m.MYD");
    let run = world.backup(&files);
    for (from, to) in [
        ("/target", world.path("alias")),
        ("/target", world.path("no/../target/db")),
        ("/", world.path("no/..")),
    ] {
        let options = RestoreOptions { maps: vec![(from.into(), to)], ..world.options("target") };
        let error = world.restore(run, &options).unwrap_err();
        assert!(error.to_string().contains("in the target"), "{error}");
        assert!(listing(&target).is_empty());
    }
}

/// A mapping that covers no file is an error of spelling if some file is not covered, which would go into the
/// target.
#[test]
fn a_mapping_that_covers_nothing() {
    let world = World::new();
    let run = world.backup(&source());
    let maps = vec![("/x".into(), world.path("a")), ("/fsat".into(), world.path("b"))];
    let options = RestoreOptions { maps, ..world.options("target") };
    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("/fsat"), "{error}");
    assert!(error.hint().unwrap().contains("/fast/shop/db"), "{error}");
    assert!(!options.target_dir.exists());
    // It is of another source, if all are covered.
    let mut files = source();
    files.remove("db/o.ibd");
    let run = world.backup(&files);
    world.restore(run, &options).unwrap();
    assert_eq!(fs::read(world.path("a/y.MYD")).unwrap(), files["db/y.MYD"].content);
    assert!(!world.path("b").exists());
}

/// Files outside of the target are replaced only if they belong to the data directory in it, and nobody uses
/// them.
#[test]
fn mapped_files_that_exist() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let place = world.path("place");
    let theirs = place.join("y.MYD");
    fs::create_dir(&place).unwrap();
    fs::write(&theirs, "of the running source").unwrap();
    let maps = vec![("/x".into(), place.clone())];
    let onto = RestoreOptions { delta: true, maps, ..world.options("target") };
    let plan = || restore::plan(&world.repo, &log_name(), run, &onto, &Cancel::default());
    let refused = |why: &str| {
        for error in [plan().unwrap_err(), world.restore(run, &onto).unwrap_err()] {
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(fs::read(&theirs).unwrap(), b"of the running source");
    };
    // A new directory, and one whose table is elsewhere.
    refused("exists already");
    assert!(!onto.target_dir.exists());
    let elsewhere = vec![("/x".into(), world.path("elsewhere"))];
    world.restore(run, &RestoreOptions { maps: elsewhere, ..onto.clone() }).unwrap();
    refused("exists already");

    let link = onto.target_dir.join("db/y.MYD");
    fs::remove_file(&link).unwrap();
    symlink(world.path("no/../place/y.MYD"), &link).unwrap();
    let open = fs::File::open(&theirs).unwrap();
    refused("another process");
    drop(open);
    let planned = plan().unwrap();
    assert!(planned.replace.iter().any(|file| file.path == theirs), "{:?}", planned.replace);
    world.restore(run, &onto).unwrap();
    assert_eq!(fs::read(&theirs).unwrap(), files["db/y.MYD"].content);
    // Its report says so as well, which is all that there is on MySQL.
    fs::remove_file(&link).unwrap();
    fs::write(&theirs, "stale").unwrap();
    world.restore(run, &onto).unwrap();
    assert_eq!(fs::read(&theirs).unwrap(), files["db/y.MYD"].content);
}

/// A file that somebody puts into a mapped place after it was looked at is not the restore's, however often
/// that is run again.
#[test]
fn mapped_files_that_appear() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    world.restore(run, &world.options("used")).unwrap();
    fs::create_dir(world.path("new")).unwrap();
    for (target, delta) in [("new", false), ("used", true)] {
        let place = world.path(&format!("place of {target}"));
        let theirs = place.join("y.MYD");
        let maps = vec![("/x".into(), place.clone())];
        let options = RestoreOptions { delta, maps, ..world.options(target) };
        let child = |what: &str| {
            let mut child = world.child(run, target, what, "restore.claimed");
            child.env("CHILD_MAP", &place).envs(delta.then_some(("CHILD_DELTA", "1")));
            child
        };
        let before = listing(&options.target_dir);
        let mut paused = child("pause").stderr(Stdio::piped()).spawn().unwrap();
        let _output = wait_for(&mut paused, "paused");
        fs::create_dir(&place).unwrap();
        fs::write(&theirs, "theirs").unwrap();
        drop(paused.stdin.take());
        let mut said = String::new();
        paused.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!paused.wait().unwrap().success() && said.contains("has changed since"), "{said}");
        assert!(listing(&options.target_dir) == before, "{target}");

        // Nor if the restore was killed before it looked again.
        fs::remove_file(&theirs).unwrap();
        assert_eq!(child("kill").status().unwrap().signal(), Some(9));
        fs::write(&theirs, "theirs").unwrap();
        for _ in 0..2 {
            let error = world.restore(run, &options).unwrap_err();
            assert!(error.to_string().contains("exists already"), "{error}");
            assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        }
    }
}
