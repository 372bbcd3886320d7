use std::{
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::{
    format::names::{Kind, LogName},
    keys::Protection,
    log::run::{Ending, Run, RunOptions},
    repo::Repo,
    store::{conformance, layout::LOST_AND_FOUND},
};

fn path(name: &str) -> ObjectPath {
    ObjectPath::new(name).unwrap()
}

#[test]
fn a_directory_is_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    conformance::check(|| {
        count += 1;
        Arc::new(FsStore::create(folder.path().join(count.to_string())).unwrap())
    });
}

#[test]
fn only_the_owner_can_read_objects() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path().join("repo")).unwrap();
    store.create_if_absent(&path("a/b"), b"x").unwrap();
    let mode = |name| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("repo"), 0o700);
    assert_eq!(mode("repo/a"), 0o700);
    assert_eq!(mode("repo/a/b"), 0o600);
}

/// The owner of the directory can continue with what root has made there.
#[test]
fn what_root_makes_belongs_to_the_owner_of_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = 65_534;
    let is_root = std::os::unix::fs::chown(folder.path(), Some(nobody), Some(nobody)).is_ok();
    let store = FsStore::open(folder.path()).unwrap();
    store.create_if_absent(&path("a/b"), b"x").unwrap();
    let mut upload = store.put(&path("a/c/d")).unwrap();
    upload.write(b"y").unwrap();
    upload.finish().unwrap();
    let own = if is_root { nobody } else { geteuid().as_raw() };
    for name in [".tmp", "a", "a/b", "a/c", "a/c/d"] {
        assert_eq!(fs::metadata(folder.path().join(name)).unwrap().uid(), own, "{name}");
    }
}

#[test]
fn a_large_object_arrives_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path()).unwrap();
    let mut upload = store.put(&path("packs/1")).unwrap();
    let block: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 251) as u8).collect();
    for _ in 0..20 {
        upload.write(&block).unwrap();
    }
    assert_eq!(upload.finish().unwrap().size_bytes, 20 * block.len() as u64);
    let mut again = vec![0; block.len()];
    for i in 0..20 {
        store.read_exact_at(&path("packs/1"), i * block.len() as u64, &mut again).unwrap();
        assert!(again == block, "block {i}");
    }
}

#[test]
fn what_interrupted_uploads_left_is_swept_by_age() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path()).unwrap();
    let upload = store.put(&path("a")).unwrap();
    std::mem::forget(upload);
    let left = || fs::read_dir(folder.path().join(TEMPORARY)).unwrap().count();
    store.sweep_uploads(Duration::from_secs(3600)).unwrap();
    assert_eq!(left(), 1);
    store.sweep_uploads(Duration::ZERO).unwrap();
    assert_eq!(left(), 0);
}

#[test]
fn an_upload_survives_the_removal_of_its_empty_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path()).unwrap();
    store.create_if_absent(&path("a/b/c"), b"x").unwrap();
    let upload = store.put(&path("a/b/d")).unwrap();
    store.delete(&[path("a/b/c")]).unwrap();
    assert!(!folder.path().join("a").exists());
    // Another process does this, without telling us.
    store.inner.make_folder(&folder.path().join("a/b")).unwrap();
    fs::remove_dir(folder.path().join("a/b")).unwrap();
    fs::remove_dir(folder.path().join("a")).unwrap();
    upload.finish().unwrap();
    assert_eq!(store.head(&path("a/b/d")).unwrap().size_bytes, 0);
}

/// One thread deletes what another makes in the same folder, which comes and goes, unless it is kept.
#[test]
fn objects_are_made_in_a_folder_that_comes_and_goes() {
    for keeps_folders in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = match keeps_folders {
            false => FsStore::create(folder.path()).unwrap(),
            true => FsStore::create_keeping_folders(folder.path()).unwrap(),
        };
        let (made, to_delete) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for path in to_delete {
                    store.delete(&[path]).unwrap();
                }
            });
            for number in 0..2000 {
                let path = path(&format!("a/b/c/{number}"));
                store.create_if_absent(&path, b"x").unwrap();
                made.send(path).unwrap();
            }
            drop(made);
        });
        assert_eq!(folder.path().join("a").exists(), keeps_folders);
    }
}

/// Checked on the store, and on a run that looks up what became of its outcome.
#[test]
fn what_was_published_without_becoming_durable_is_not_taken_for_done() {
    let folder = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let sync = move |folder: &Path| match failing.load(Ordering::SeqCst) && folder.ends_with("outcomes") {
        true => Err(io::Error::other("injected fault")),
        false => sync_folder(folder),
    };
    let store = Arc::new(FsStore::over(folder.path().to_owned(), false, Box::new(sync)).unwrap());
    let repo = Arc::new(Repo::init(Arc::<FsStore>::clone(&store), &Protection::None).unwrap());
    let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let mut run = Run::begin(&repo, &log, &options).unwrap();
    let end = |run: &mut Run| run.finish(Ending::Expire { dropped: Vec::new() });
    let outcome = log.outcome(run.no());

    fails.store(true, Ordering::SeqCst);
    end(&mut run).unwrap_err();
    assert!(folder.path().join(outcome.as_str()).exists());
    assert!(!store.head(&outcome).unwrap_err().is_not_found());
    // Trying again finds what the first attempt has left, and is no more certain of it.
    end(&mut run).unwrap_err();

    fails.store(false, Ordering::SeqCst);
    end(&mut run).unwrap();
    store.head(&outcome).unwrap();
}

/// An unmounted file system leaves the directory beneath: nothing is begun anew there.
#[test]
fn a_store_whose_file_system_is_gone_takes_nothing_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (root, away) = (folder.path().join("r"), folder.path().join("away"));
    let store = FsStore::create(&root).unwrap();
    store.create_if_absent(&path("mark"), b"x").unwrap();
    store.create_if_absent(&path("a/b"), b"x").unwrap();
    store.head(&path("mark")).unwrap();
    fs::rename(&root, &away).unwrap();
    fs::create_dir(&root).unwrap();
    let error = store.create_if_absent(&path("a/c"), b"x").unwrap_err();
    assert!(error.to_string().contains("mark is gone"), "{error}");
    assert!(store.put(&path("a/c")).is_err());
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    fs::remove_dir(&root).unwrap();
    fs::rename(&away, &root).unwrap();
    store.create_if_absent(&path("a/c"), b"x").unwrap();
    store.delete(&[path("mark")]).unwrap();
    store.create_if_absent(&path("a/d"), b"x").unwrap();
}

#[test]
fn a_new_directory_is_durable_before_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let synced = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&synced);
    let sync = move |folder: &Path| {
        noted.lock().unwrap().push(folder.to_owned());
        sync_folder(folder)
    };
    let (above, root) = (folder.path().join("a"), folder.path().join("a/b"));
    create_root(&root, &sync).unwrap();
    assert_eq!(*synced.lock().unwrap(), [folder.path().to_owned(), above.clone()]);
    create_root(&root, &sync).unwrap();
    assert_eq!(synced.lock().unwrap().len(), 2, "one that was there is left alone");

    fs::remove_dir(&root).unwrap();
    create_root(&root, &|_: &Path| Err(io::Error::other("injected fault"))).unwrap_err();
    assert!(!root.exists(), "or the next attempt would take it for durable");
    assert!(FsStore::create(&root).is_ok());
}

/// Somebody who can write to the store, but holds no keys, puts a link in the place of a folder.
#[test]
fn nothing_is_deleted_or_read_through_a_link() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = FsStore::create(folder.path()).unwrap();
    let uploads = "0123456789abcdef0123456789abcdef";
    for name in ["precious", uploads] {
        fs::write(elsewhere.path().join(name), b"x").unwrap();
    }
    for linked in [TEMPORARY, "packs"] {
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join(linked)).unwrap();
    }
    let error = store.sweep_uploads(Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("is a link"), "{error}");
    store.delete(&[path("packs/precious"), path("packs/none")]).unwrap();
    assert!(store.head(&path("packs/precious")).unwrap_err().is_not_found());
    let read = store.read_exact_at(&path("packs/precious"), 0, &mut [0]);
    assert!(read.unwrap_err().is_not_found());
    store.create_if_absent(&path("packs/new"), b"").unwrap_err();
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 2);

    // A folder of ours with a file in it that is not.
    fs::remove_file(folder.path().join(TEMPORARY)).unwrap();
    fs::create_dir(folder.path().join(TEMPORARY)).unwrap();
    for name in ["precious", uploads] {
        fs::write(folder.path().join(TEMPORARY).join(name), b"x").unwrap();
    }
    store.sweep_uploads(Duration::ZERO).unwrap();
    assert!(folder.path().join(TEMPORARY).join("precious").exists());
    assert!(!folder.path().join(TEMPORARY).join(uploads).exists());
}

/// Folders that this process has made or used are replaced by links to a place where it must not write.
#[test]
fn nothing_is_made_through_a_link() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = FsStore::create(folder.path()).unwrap();
    for (linked, new) in [(TEMPORARY, "packs/b"), ("packs", "packs/c"), ("sources", "sources/x/y/d")] {
        store.create_if_absent(&path("packs/a"), b"").ok();
        store.create_if_absent(&path("sources/x/a"), b"").ok();
        let (at, aside) = (folder.path().join(linked), folder.path().join("aside"));
        fs::rename(&at, &aside).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &at).unwrap();
        let error = store.create_if_absent(&path(new), b"x").unwrap_err();
        assert!(error.to_string().contains("is a link"), "{linked}: {error}");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "{linked}");
        fs::remove_file(&at).unwrap();
        fs::rename(&aside, &at).unwrap();
        store.create_if_absent(&path(new), b"x").unwrap();
    }
    // What was begun before is completed where it was begun.
    let mut upload = store.put(&path("packs/e")).unwrap();
    upload.write(b"x").unwrap();
    let (at, aside) = (folder.path().join(TEMPORARY), folder.path().join("aside"));
    fs::rename(&at, &aside).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &at).unwrap();
    upload.finish().unwrap();
    assert_eq!(fs::read(folder.path().join("packs/e")).unwrap(), b"x");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn what_is_no_file_is_no_object_and_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path()).unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), b"x").unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for name in ["fifo", "link", "folder", "socket", "file/below"] {
        assert!(store.head(&path(name)).unwrap_err().is_not_found(), "{name}");
        let read = store.read_exact_at(&path(name), 0, &mut [0]);
        assert!(read.unwrap_err().is_not_found(), "{name}");
    }
    store.read_exact_at(&path("file"), 0, &mut [0]).unwrap();
}

#[test]
fn a_directory_that_is_gone_is_not_taken_for_an_object_that_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path().join("repo")).unwrap();
    fs::remove_dir(folder.path().join("repo")).unwrap();
    let error = store.head(&path("a")).unwrap_err();
    assert!(!error.is_not_found() && error.to_string().contains("does not exist"), "{error}");
}

/// The names of all objects, as a list has them.
fn listed(store: &FsStore) -> Vec<String> {
    let mut names = Vec::new();
    store
        .list("", &mut |object| {
            names.push(object.path.to_string());
            true
        })
        .unwrap();
    names
}

#[test]
fn links_and_strangers_are_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path()).unwrap();
    fs::create_dir(folder.path().join(LOST_AND_FOUND)).unwrap();
    fs::write(folder.path().join(LOST_AND_FOUND).join("x"), b"").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
    assert_eq!(listed(&store), [""; 0]);
    assert_eq!(store.list_folders("").unwrap(), Vec::<String>::new());
}

/// Neither a file nor a folder whose name has control characters shows up, or is named in an error.
#[test]
fn names_that_a_terminal_obeys_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path()).unwrap();
    store.create_if_absent(&path("signers/a"), b"x").unwrap();
    fs::write(folder.path().join("signers/a\u{1b}[2J\nwarning: b"), b"x").unwrap();
    for above in ["signers/c\nd", "e\u{9b}2J", "f"] {
        fs::create_dir(folder.path().join(above)).unwrap();
    }
    fs::write(folder.path().join("signers/c\nd/x"), b"x").unwrap();
    fs::write(folder.path().join("f/\u{7}"), b"x").unwrap();
    assert_eq!(listed(&store), ["signers/a"]);
    assert_eq!(store.list_folders("").unwrap(), ["signers"]);
    assert_eq!(store.list_folders("signers/").unwrap(), [""; 0]);
}

/// Whoever can write can make folders in folders without end: they lock nobody out.
#[test]
fn folders_deeper_than_any_object_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(folder.path()).unwrap();
    let names = ["signers/a", "sources/a/physical/runs/0000000001/000001"];
    names.iter().for_each(|name| drop(store.create_if_absent(&path(name), b"x").unwrap()));
    for above in ["signers/", "", "sources/a/physical/runs/0000000001/"] {
        let deep = folder.path().join(format!("{above}{}", "d/".repeat(1500)));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x"), b"x").unwrap();
        fs::write(folder.path().join(format!("{above}d/d/d/d/d/d/x")), b"x").unwrap();
    }
    assert_eq!(listed(&store), names);
    assert_eq!(store.list_folders("").unwrap(), ["signers", "sources"]);
}
