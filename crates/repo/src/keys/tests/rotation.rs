//! Rotated read keys.

use super::*;

/// No removal is based on rotations whose records are gone.
#[test]
fn no_key_is_removed_while_a_rotation_is_missing() {
    let (store, root) = new_repo();
    rotate(&root).unwrap();
    let root = by_password(&store, "root").unwrap();
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let path = object_path("rotations/001");
    let record = read_all(&store, &path, 1 << 20).unwrap();
    store.delete(std::slice::from_ref(&path)).unwrap();
    let error = remove(&second, writer.keys().key_id()).unwrap_err();
    assert!(error.to_string().contains("rotations/001"), "{error}");
    store.create_if_absent(&path, &record).unwrap();
    remove(&second, writer.keys().key_id()).unwrap();
    by_password(&store, "second").unwrap().require_sound_keys().unwrap();
}

#[test]
fn after_a_rotation_what_is_new_opens_for_those_who_have_a_share() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let leaving = added(&store, &root, &key(Role::Operator, &[]), "leaving");
    backup(&writer, &log).unwrap();
    remove(&root, leaving.keys().key_id()).unwrap();
    assert_eq!(rotate(&root).unwrap(), Rotated { number: 1, keys: 2 });
    assert!(matches!(rotate(&leaving), Err(KeyError::Removed { .. })));

    // A process that has run since before seals for the new keys with its next run, and reads
    // what others have sealed for them.
    let run = backup(&writer, &log).unwrap();
    for path in [log.report(run), log.outcome(run)] {
        let bytes = read_all(&store, &path, 1 << 20).unwrap();
        let header = if path == log.report(run) { 0 } else { 8 };
        assert_eq!(bytes[header + 7], 1, "{path}");
    }
    assert_eq!(root.keys().rotations(), 0);
    assert_eq!(History::read(&root, &log).unwrap().head(&root, run).unwrap(), head_of(&log, run));
    let expire = ExpireRequest::Exactly(vec![run]);
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    crate::ops::expire::expire(&root, &log, &expire, &options).unwrap();

    // New keys, on the same pages.
    let writer = by_password(&store, "writer").unwrap();
    assert_eq!(writer.keys().rotations(), 1);
    backup(&writer, &log).unwrap();
    let root = by_password(&store, "root").unwrap();
    let late = added(&store, &root, &key(Role::Operator, &[]), "late");
    for repo in [&root, &late] {
        let history = History::read(repo, &log).unwrap();
        for run in [RunNo(1), RunNo(4)] {
            assert_eq!(history.head(repo, run).unwrap(), head_of(&log, run));
        }
    }
    assert_eq!(root.keys().hash_key().unwrap().expose(), leaving.keys().hash_key().unwrap().expose());
    // The copied keys open what was sealed before, and nothing since.
    let report = |run| Place { log: &log, kind: ObjectKind::Report, run, part: 0 };
    leaving.read_object(&report(RunNo(1)), 100).unwrap();
    let error = leaving.read_object(&report(RunNo(4)), 100).unwrap_err();
    assert!(matches!(error, RepoError::Damaged { damage: Damage::NewerKeys { rotation: 1 }, .. }), "{error}");

    assert_eq!(rotate(&late).unwrap(), Rotated { number: 2, keys: 3 });
    assert_eq!(rotate(&root).unwrap().number, 3, "with keys that were opened before");
    // Without the record, nobody silently goes back to the old keys.
    let second = object_path("rotations/002");
    store.damage(&second, |bytes| bytes[40] ^= 1);
    let error = begin(&by_password(&store, "root").unwrap(), &log).err().unwrap();
    assert!(error.to_string().starts_with("rotations/002: "), "{error}");
    store.delete(&[second]).unwrap();
    let error = begin(&by_password(&store, "writer").unwrap(), &log).err().unwrap();
    assert!(error.to_string().starts_with("rotations/002: is missing"), "{error}");
}

/// An operator rotates while another removes his key: either the rotation counts, or somebody is told.
#[test]
fn a_rotation_beside_a_removal_counts_or_is_named() {
    let sound = |store: &MemStore| by_password(store, "root").unwrap().require_sound_keys().is_ok();
    let first = object_path("rotations/001");
    let named =
        |error: KeyError| matches!(error, KeyError::RotationRefused { object } if object == "rotations/001");
    let beside_removal = |is_it: fn(&Call<'_>) -> bool| {
        let (store, root) = new_repo();
        let leaving = added(&store, &root, &key(Role::Operator, &[]), "leaving");
        let id = leaving.keys().key_id();
        let rotates = once(is_it, move || {
            assert_eq!(rotate(&leaving).unwrap().number, 1);
            None
        });
        let removed = remove(&beside(&store, "root", rotates), id);
        (store, root, id, removed)
    };

    let (store, .., removed) = beside_removal(|call| call.op == Op::Now);
    assert_eq!(removed.unwrap(), []);
    assert!(sound(&store), "the removal knows the rotation");

    let (store, root, id, removed) =
        beside_removal(|call| call.op == Op::Create && call.path.starts_with("removals/"));
    assert!(named(removed.unwrap_err()));
    assert!(!sound(&store));
    store.delete(std::slice::from_ref(&first)).unwrap();
    assert_eq!(remove(&root, id).unwrap(), []);
    assert!(sound(&store));

    let (store, root) = new_repo();
    let id = added(&store, &root, &key(Role::Operator, &[]), "leaving").keys().key_id();
    let late = once(
        |call| call.op == Op::Create && call.path.starts_with("rotations/"),
        move || {
            assert_eq!(remove(&root, id).unwrap(), []);
            None
        },
    );
    assert!(named(rotate(&beside(&store, "leaving", late)).unwrap_err()));
    store.delete(&[first]).unwrap();
    assert!(sound(&store));
    assert_eq!(rotate(&by_password(&store, "root").unwrap()).unwrap(), Rotated { number: 1, keys: 1 });
}
