//! Into a directory that is not there or empty.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    sync::Mutex,
};

use holdfast_formats::Flavor;

use super::*;
use crate::{
    event::{Event, Listener},
    restore::RestoreMode,
};

/// Everything is there as it was: holes are holes, zeros take space, and nothing comes back that should not.
#[test]
fn into_an_empty_directory() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let options = world.options("target");
    let plan = restore::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).unwrap();
    assert!(!options.target_dir.exists());
    assert_eq!((plan.mode, plan.files), (RestoreMode::Fresh, restored(&files).len() as u64));
    assert_eq!(plan.create.len() as u64, plan.files + 1);
    assert!(plan.delete.is_empty() && plan.replace.is_empty());
    assert_eq!(plan.external.len(), 2);
    assert_eq!(plan.dropped.len(), 3);
    let dropped = plan.dropped;
    assert!(plan.room[0].needed_bytes > plan.bytes);

    let phases = Mutex::new(Vec::new());
    struct Phases<'a>(&'a Mutex<Vec<String>>);
    impl Listener for Phases<'_> {
        fn event(&self, event: Event) {
            if let Event::Phase { name } = event {
                self.0.lock().unwrap().push(name.to_owned());
            }
        }
    }
    let report =
        restore::run(&world.repo, &log_name(), run, &options, &Phases(&phases), &Cancel::default()).unwrap();
    assert_restored(&options.target_dir, &files);
    assert_eq!(*phases.lock().unwrap(), ["plan", "assemble", "place", "complete"]);
    assert_eq!(report.phases.len(), 4);
    assert_eq!(report.dropped, dropped);
    assert_eq!(report.server_version.flavor, Flavor::MariaDb);
    assert!(report.replicate_statement.unwrap().contains("gtid_slave_pos = '0-1-99'"));
    let big = fs::metadata(options.target_dir.join("db/big.ibd")).unwrap();
    let room = big.blocks() * 512;
    let stored = 14_100 << 10;
    assert!((stored..stored + (64 << 10)).contains(&room), "{room}");

    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert_restored(&options.target_dir, &files);
}

/// Only its owner and group get into a new data directory; whoever may enter the directories above still may.
#[test]
fn modes_of_new_directories() {
    let world = World::new();
    let run = world.backup(&source());
    let maps = vec![("/x".into(), world.path("above/place"))];
    let options = RestoreOptions { maps, ..world.options("over/target") };
    world.restore(run, &options).unwrap();
    let mode = |path: &str| fs::metadata(world.path(path)).unwrap().permissions().mode() & 0o777;
    let usual = {
        fs::create_dir(world.path("usual")).unwrap();
        mode("usual")
    };
    assert_eq!(["over/target", "above/place"].map(mode), [usual & 0o750; 2]);
    assert_eq!(["over", "above"].map(mode), [usual; 2]);
}

/// No restore deletes the repository that it reads from, or writes into it.
#[test]
fn beside_the_repository() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    fs::write(world.path("ibdata1"), "pages").unwrap();
    symlink(world.path("repo"), world.path("alias")).unwrap();
    let before = listing(&world.path("repo"));
    for (delta, target) in
        [(true, "."), (true, ""), (false, "repo/new"), (true, "repo"), (false, "alias/x/y")]
    {
        let options = RestoreOptions { delta, ..world.options(target) };
        let error = world.restore(run, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{target}: {error}");
        assert!(error.to_string().contains("the repository"), "{target}: {error}");
        assert!(restore::plan(&world.repo, &log_name(), run, &options, &Cancel::default()).is_err());
    }
    fs::remove_file(world.path("ibdata1")).unwrap();
    let maps = vec![("/x".into(), world.path("alias/x"))];
    let error = world.restore(run, &RestoreOptions { maps, ..world.options("target") }).unwrap_err();
    assert!(error.to_string().contains("the repository"), "{error}");
    assert!(listing(&world.path("repo")) == before);
    // Nor by a mapping to a directory around it.
    let outside = Fake { outside: Some("/x/repo/y.MYD"), ..files["db/y.MYD"].clone() };
    let run = world.backup(&Files::from([("db/y.MYD".into(), outside)]));
    let before = listing(&world.path("repo"));
    let maps = vec![("/x".into(), world.path("."))];
    let error = world.restore(run, &RestoreOptions { maps, ..world.options("target") }).unwrap_err();
    assert!(error.to_string().contains("the repository"), "{error}");
    assert!(listing(&world.path("repo")) == before);
}

/// Damage in the repository fails the restore by name, and leaves nothing a server starts on.
#[test]
fn damaged_repository() {
    let world = World::new();
    let files = source();
    let run = world.backup(&files);
    let packs = world.path("repo/sources/db1/physical/packs");
    // The pack of pages: others are smaller, and come first in some directories.
    let packs = fs::read_dir(packs).unwrap().map(|entry| entry.unwrap().path());
    let pack = packs.max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    bytes[200_000] ^= 1;
    fs::set_permissions(&pack, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&pack, bytes).unwrap();
    let options = world.options("target");
    let error = world.restore(run, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(!is_startable(&options.target_dir));
    assert!(options.target_dir.join(MARKER).exists());
}

/// A backup can say which settings the source had, and no other option of the server that is started here.
#[test]
fn no_option_is_the_backups_choice() {
    let mut facts = facts();
    for (name, value) in [
        ("old_mode", ""),
        ("plugin_load_add", "evil.so"),
        ("init_file", "/x"),
        ("x_stopword_table", "a/b"),
        ("=", ""),
    ] {
        facts.sql.deciding.insert(name.to_owned(), value.to_owned());
    }
    assert_eq!(restore::server_options::deciding_options(&facts, false), ["--loose-old_mode="]);
}
