//! The contract of [`Store`] as tests that every implementation passes.
//!
//! Panics with the sentence that does not hold. Meant to be called from tests,
//! including those of other crates.

#![allow(clippy::unwrap_used, reason = "a test suite")]

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{ObjectPath, Store, StoreErrorKind, read_all};

/// Runs every test on an empty store of its own.
///
/// # Panics
/// If the store breaks the contract.
pub fn check(mut empty: impl FnMut() -> Arc<dyn Store>) {
    an_object_is_read_back_as_it_was_written(&*empty());
    an_unfinished_upload_is_invisible(&*empty());
    nothing_is_overwritten(&*empty());
    of_many_creators_one_succeeds(&*empty());
    of_many_uploads_one_succeeds(&*empty());
    names_are_taken_as_they_are(&*empty());
    reading_past_the_end_is_an_error(&*empty());
    what_does_not_exist_is_not_found(&*empty());
    listings_are_in_name_order_and_stop_when_told(&*empty());
    folders_are_those_with_objects(&*empty());
    deleting_twice_is_fine(&*empty());
    times_are_the_stores_own(&*empty());
}

/// Runs what takes longer: objects of several parts of `part_bytes`, and more names than
/// one answer of a service holds.
///
/// # Panics
/// If the store breaks the contract.
pub fn check_large(mut empty: impl FnMut() -> Arc<dyn Store>, part_bytes: usize, names: usize) {
    large_objects_arrive_whole(&*empty(), part_bytes);
    long_listings_are_complete(&*empty(), names);
}

fn path(name: &str) -> ObjectPath {
    ObjectPath::new(name).unwrap()
}

fn names(store: &dyn Store, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    store
        .list(prefix, &mut |info| {
            names.push(info.path.as_str().to_owned());
            true
        })
        .unwrap();
    names
}

fn create(store: &dyn Store, name: &str) {
    store.create_if_absent(&path(name), name.as_bytes()).unwrap();
}

fn an_object_is_read_back_as_it_was_written(store: &dyn Store) {
    let object = path("some/folder/object");
    let mut upload = store.put(&object).unwrap();
    upload.write(b"first ").unwrap();
    upload.write(b"").unwrap();
    upload.write(b"second").unwrap();
    let info = upload.finish().unwrap();
    assert_eq!((info.path.as_str(), info.size_bytes), (object.as_str(), 12));
    assert_eq!(store.head(&object).unwrap(), info);
    let mut middle = [0; 5];
    store.read_exact_at(&object, 4, &mut middle).unwrap();
    assert_eq!(&middle, b"t sec");
    assert_eq!(read_all(store, &object, 12).unwrap(), b"first second");
    let too_large = read_all(store, &object, 11).unwrap_err().kind;
    assert!(matches!(too_large, StoreErrorKind::TooLarge { size_bytes: 12, limit_bytes: 11 }));

    store.put(&path("empty")).unwrap().finish().unwrap();
    assert_eq!(store.head(&path("empty")).unwrap().size_bytes, 0);
    store.read_exact_at(&path("empty"), 0, &mut []).unwrap();
}

fn an_unfinished_upload_is_invisible(store: &dyn Store) {
    let object = path("packs/1");
    let mut upload = store.put(&object).unwrap();
    upload.write(&vec![7; 3 << 20]).unwrap();
    assert!(store.head(&object).unwrap_err().is_not_found(), "head shows an unfinished upload");
    assert_eq!(names(store, ""), [""; 0], "a listing shows an unfinished upload");
    drop(upload);
    assert!(store.head(&object).unwrap_err().is_not_found(), "a dropped upload left an object");
    assert_eq!(names(store, ""), [""; 0]);
    assert_eq!(store.list_folders("").unwrap(), [""; 0]);
}

fn nothing_is_overwritten(store: &dyn Store) {
    let object = path("a");
    let mut early = store.put(&object).unwrap();
    early.write(b"early").unwrap();
    store.create_if_absent(&object, b"winner").unwrap();
    assert!(store.create_if_absent(&object, b"late").unwrap_err().is_exists());
    assert!(early.finish().unwrap_err().is_exists(), "finish replaced an object");
    // Whether the loss shows at once or at the end is up to the store.
    let late = store.put(&object).and_then(|mut upload| {
        upload.write(b"late")?;
        upload.finish()
    });
    assert!(late.unwrap_err().is_exists());
    assert_eq!(read_all(store, &object, 100).unwrap(), b"winner");
}

fn of_many_creators_one_succeeds(store: &dyn Store) {
    for round in 0..20 {
        let object = path(&format!("outcomes/{round}"));
        let winners = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let (winners, object) = (&winners, &object);
                scope.spawn(move || match store.create_if_absent(object, &[thread; 100]) {
                    Ok(_) => {
                        winners.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(read_all(store, object, 100).unwrap(), [thread; 100]);
                    }
                    Err(error) => assert!(error.is_exists(), "{error}"),
                });
            }
        });
        assert_eq!(winners.into_inner(), 1);
    }
}

fn of_many_uploads_one_succeeds(store: &dyn Store) {
    for round in 0..3 {
        let object = path(&format!("packs/{round}"));
        let start = Barrier::new(4);
        let winners: Vec<u8> = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..4_u8)
                .map(|racer| {
                    let (object, start) = (&object, &start);
                    scope.spawn(move || {
                        let mut upload = store.put(object).unwrap();
                        upload.write(&vec![racer; 100_000]).unwrap();
                        start.wait();
                        match upload.finish() {
                            Ok(_) => Some(racer),
                            Err(error) => {
                                assert!(error.is_exists(), "{error}");
                                None
                            }
                        }
                    })
                })
                .collect();
            racers.into_iter().filter_map(|racer| racer.join().unwrap()).collect()
        });
        assert_eq!(winners.len(), 1);
        assert!(read_all(store, &object, 100_000).unwrap() == vec![winners[0]; 100_000]);
    }
}

fn names_are_taken_as_they_are(store: &dyn Store) {
    let long = format!("sources/{}/{}", "s".repeat(64), "n".repeat(100));
    let mut sorted = [
        "sources/db.example.com:3306/physical/packs/0000000001-000000",
        "sources/A_b-c.d:1/runs/1",
        "sources/%41/x",
        &long,
    ];
    for name in sorted {
        create(store, name);
        assert_eq!(read_all(store, &path(name), 1 << 10).unwrap(), name.as_bytes());
    }
    sorted.sort_unstable();
    assert_eq!(names(store, ""), sorted);
    assert_eq!(names(store, "sources/db.example.com:3306/").len(), 1);
    let folders = ["%41", "A_b-c.d:1", "db.example.com:3306", &"s".repeat(64)];
    assert_eq!(store.list_folders("sources/").unwrap(), folders);
}

fn large_objects_arrive_whole(store: &dyn Store, part_bytes: usize) {
    let byte = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[5];
    // Just below, at and above the limits of one part, and of several.
    for size in [part_bytes - 1, part_bytes, part_bytes + 1, 2 * part_bytes, 4 * part_bytes + part_bytes / 3]
    {
        let object = path(&format!("packs/{size}"));
        let bytes: Vec<u8> = (0..size).map(byte).collect();
        let mut upload = store.put(&object).unwrap();
        for block in bytes.chunks(100_003) {
            upload.write(block).unwrap();
        }
        assert_eq!(upload.finish().unwrap().size_bytes, size as u64);
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let (object, bytes) = (&object, &bytes);
                scope.spawn(move || {
                    for step in 0..8 {
                        let from = (reader * 8 + step) * size / 40;
                        let mut part = vec![0; (size / 7).min(size - from)];
                        store.read_exact_at(object, from as u64, &mut part).unwrap();
                        assert!(part == bytes[from..from + part.len()], "{size} at {from}");
                    }
                });
            }
        });
        assert!(read_all(store, &object, size as u64).unwrap() == bytes);
    }
    let taken = path(&format!("packs/{part_bytes}"));
    let late = store.put(&taken).and_then(|mut upload| {
        upload.write(&vec![0; 3 * part_bytes])?;
        upload.finish()
    });
    assert!(late.unwrap_err().is_exists(), "finish of an upload in parts replaced an object");
    assert_eq!(store.head(&taken).unwrap().size_bytes, part_bytes as u64);
}

fn long_listings_are_complete(store: &dyn Store, count: usize) {
    let expected: Vec<String> =
        (0..count).map(|number| format!("runs/{:04}/{number:06}", number / 400)).collect();
    std::thread::scope(|scope| {
        for part in expected.chunks(count.div_ceil(8)) {
            scope.spawn(move || part.iter().for_each(|name| create(store, name)));
        }
    });
    assert!(names(store, "runs/") == expected);
    assert_eq!(store.list_folders("runs/").unwrap().len(), count.div_ceil(400));
    let all: Vec<ObjectPath> = expected.iter().map(|name| path(name)).collect();
    store.delete(&all).unwrap();
    assert_eq!(names(store, ""), [""; 0]);
}

fn reading_past_the_end_is_an_error(store: &dyn Store) {
    create(store, "abc");
    for (offset, len) in [(0, 4), (2, 2), (3, 1), (4, 1), (u64::MAX, 1), (u64::MAX - 1, 4)] {
        let mut buffer = vec![0; len];
        let error = store.read_exact_at(&path("abc"), offset, &mut buffer).unwrap_err();
        // Offsets that no file system can have may be refused as such.
        let expected = matches!(error.kind, StoreErrorKind::ShortRead { .. })
            || (offset > i64::MAX as u64 && matches!(error.kind, StoreErrorKind::Io(_)));
        assert!(expected, "{offset}+{len}: {error}");
    }
}

fn what_does_not_exist_is_not_found(store: &dyn Store) {
    create(store, "folder/object");
    for name in ["missing", "folder", "folder/missing", "no/such/folder"] {
        assert!(store.head(&path(name)).unwrap_err().is_not_found(), "{name}");
    }
    assert!(store.read_exact_at(&path("missing"), 0, &mut [0]).unwrap_err().is_not_found());
    assert_eq!(names(store, "no/such/folder/"), [""; 0]);
    assert_eq!(store.list_folders("no/such/").unwrap(), [""; 0]);
}

fn listings_are_in_name_order_and_stop_when_told(store: &dyn Store) {
    let sorted = ["a-b", "a.b", "a/1-0", "a/1/0", "a/10", "a/2", "a0", "b/x"];
    for name in sorted.iter().rev() {
        create(store, name);
    }
    assert_eq!(names(store, ""), sorted);
    assert_eq!(names(store, "a/"), ["a/1-0", "a/1/0", "a/10", "a/2"]);
    assert_eq!(names(store, "a/1/"), ["a/1/0"]);
    let mut seen = 0;
    store
        .list("", &mut |_| {
            seen += 1;
            seen < 3
        })
        .unwrap();
    assert_eq!(seen, 3);
}

fn folders_are_those_with_objects(store: &dyn Store) {
    for name in ["top", "a/1", "a/b/2", "c/d/e/3"] {
        create(store, name);
    }
    assert_eq!(store.list_folders("").unwrap(), ["a", "c"]);
    assert_eq!(store.list_folders("a/").unwrap(), ["b"]);
    assert_eq!(store.list_folders("c/d/e/").unwrap(), [""; 0]);
    store.delete(&[path("c/d/e/3")]).unwrap();
    assert_eq!(store.list_folders("").unwrap(), ["a"]);
}

fn deleting_twice_is_fine(store: &dyn Store) {
    create(store, "a/1");
    create(store, "a/2");
    store.delete(&[path("a/1"), path("a/never")]).unwrap();
    store.delete(&[path("a/1")]).unwrap();
    store.delete(&[]).unwrap();
    assert_eq!(names(store, ""), ["a/2"]);
    store.create_if_absent(&path("a/1"), b"again").unwrap();
    assert_eq!(names(store, ""), ["a/1", "a/2"]);
}

fn times_are_the_stores_own(store: &dyn Store) {
    // File systems record times by the tick of the kernel.
    let tolerance = Duration::from_secs(2);
    let before = store.now().unwrap();
    let info = store.create_if_absent(&path("a"), b"").unwrap();
    let after = store.now().unwrap();
    assert!(info.created_at + tolerance >= before && info.created_at <= after + tolerance);
    assert_eq!(names(store, ""), ["a"], "reading the clock left an object");
}
