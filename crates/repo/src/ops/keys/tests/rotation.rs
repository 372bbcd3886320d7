//! Rotated read keys.

use super::*;

fn rotated(number: u8, keys: usize) -> Rotated {
    Rotated { number, keys, without_share: Vec::new() }
}

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
    assert_eq!(rotate(&root).unwrap(), rotated(1, 2));
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

    assert_eq!(rotate(&late).unwrap(), rotated(2, 3));
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
    assert_eq!(rotate(&by_password(&store, "root").unwrap()).unwrap(), rotated(1, 1));
}

/// Whoever has a new key opens what is stored after a rotation that was made at the same time.
#[test]
fn a_key_added_beside_a_rotation_opens_what_is_new() {
    for what in ["signers/", "keys/"] {
        let (store, root) = new_repo();
        let rotating = by_password(&store, "root").unwrap();
        let rotates = once(
            move |call| call.op == Op::Create && call.path.starts_with(what),
            move || {
                rotate(&rotating).unwrap();
                None
            },
        );
        let adding = beside(&store, "root", rotates);
        add(&adding, &key(Role::Operator, &[]), behind(&password("offline"))).unwrap();
        let log = log("db1");
        let run = backup(&root, &log).unwrap();
        let offline = by_password(&store, "offline").unwrap();
        assert_eq!(offline.key_problems(), [], "{what}");
        assert_eq!(History::read(&offline, &log).unwrap().head(&offline, run).unwrap(), head_of(&log, run));
        assert_eq!(list(&root).unwrap().without_share, []);
    }
}

/// A rotation has decided who gets a share when the key is added: whoever comes second learns of the other.
#[test]
fn a_key_without_a_share_is_named() {
    let (store, root) = new_repo();
    let adding = by_password(&store, "root").unwrap();
    let adds = once(
        |call| call.op == Op::Create && call.path.starts_with("rotations/"),
        move || {
            add(&adding, &key(Role::Writer, &[]), behind(&password("writer"))).unwrap();
            None
        },
    );
    let Rotated { without_share, .. } = rotate(&beside(&store, "root", adds)).unwrap();
    let writer = by_password(&store, "writer").unwrap();
    let id = writer.keys().key_id();
    assert_eq!(without_share, [id]);
    let named = |repo: &Repo| {
        let without_share = list(repo).unwrap().without_share;
        without_share.into_iter().map(|(object, _)| object).collect::<Vec<_>>()
    };
    assert_eq!(named(&root), [format!("keys/{id}")]);
    // It keeps nobody from repairing anything.
    assert_eq!(list(&root).unwrap().problems, []);
    remove(&root, id).unwrap();
    let again = added(&store, &root, &key(Role::Writer, &[]), "writer");
    backup(&again, &log("db1")).unwrap();
    assert_eq!(named(&root), [] as [String; 0]);

    let (store, _, clock) = new_repo_with_clock();
    clock.advance(Duration::from_secs(2 * 3600));
    let elsewhere = copy_of(&store, clock.clone());
    rotate(&by_password(&elsewhere, "root").unwrap()).unwrap();
    clock.set_back(Duration::from_secs(2 * 3600));
    let path = object_path("rotations/001");
    let record = read_all(&elsewhere, &path, 1 << 20).unwrap();
    let to = store.clone();
    let rotates = once(
        |call| call.op == Op::Create && call.path.starts_with("keys/"),
        move || {
            to.create_if_absent(&path, &record).unwrap();
            None
        },
    );
    let adding = beside(&store, "root", rotates);
    let error = add(&adding, &key(Role::Writer, &[]), behind(&password("writer"))).unwrap_err();
    assert!(matches!(error, KeyError::NoShare { rotation: 1, .. }), "{error}");
    let root = by_password(&store, "root").unwrap();
    let [object] = &named(&root)[..] else { panic!("one key") };
    // As an earlier version has written it: then time tells.
    edit(&store, &object_path(object), "\"rotations\":0,", "");
    assert_eq!(named(&root).len(), 1);
}

/// An object that is hidden for a while, in a store that keeps versions.
#[test]
fn a_key_whose_object_is_gone_for_a_while_has_its_share() {
    let (store, root) = new_repo();
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let path = key_path(writer.keys());
    let object = read_all(&store, &path, 1 << 20).unwrap();
    store.delete(std::slice::from_ref(&path)).unwrap();
    assert_eq!(rotate(&root).unwrap(), rotated(1, 2));
    store.create_if_absent(&path, &object).unwrap();
    backup(&by_password(&store, "writer").unwrap(), &log("db1")).unwrap();
    assert_eq!(list(&root).unwrap().without_share, []);
}
