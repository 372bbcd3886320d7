//! What opens a repository, and what is readable without a key.

use super::*;

#[test]
fn keys_come_back_with_the_password_and_not_without() {
    let (store, made) = new_repository("right");
    let opened = open(&store, Some(&password("right"))).unwrap();
    assert_eq!(opened.repository(), made.repository());
    assert_eq!(opened.hash_key().unwrap().expose(), made.hash_key().unwrap().expose());
    assert!(matches!(open(&store, Some(&password("wrong"))), Err(KeyError::WrongPassword { .. })));
    assert!(matches!(open(&store, None), Err(KeyError::PasswordNeeded { .. })));
    let json = read_all(&store, &key_path(&made), 1 << 20).unwrap();
    let secret = to_hex(made.hash_key().unwrap().expose());
    assert!(!String::from_utf8(json).unwrap().contains(&secret));
}

#[test]
fn a_repository_without_encryption_is_never_taken_for_an_encrypted_one() {
    let store = MemStore::new();
    init(&store, &Protection::None, None).unwrap();
    assert_eq!(open(&store, None).unwrap().repository().suite, Suite::None);
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NotEncrypted { .. })));
}

#[test]
fn init_takes_empty_places_only() {
    let (store, _) = new_repository("x");
    assert!(matches!(init(&store, &Protection::None, None), Err(KeyError::NotEmpty { .. })));
    let store = MemStore::new();
    store.create_if_absent(&object_path("sources/db1/physical/outcomes/1"), b"").unwrap();
    assert!(matches!(init(&store, &Protection::None, None), Err(KeyError::NotEmpty { .. })));
    let store = MemStore::new();
    store.create_if_absent(&object_path("keys/0011223344556677"), b"died young").unwrap();
    init(&store, &Protection::None, None).unwrap();
    open(&store, None).unwrap();
}

#[test]
fn what_is_wrong_is_told_apart() {
    let empty = MemStore::new();
    assert!(matches!(open(&empty, None), Err(KeyError::NotARepository { .. })));

    let (store, _) = new_repository("x");
    store.create_if_absent(&object_path("format/3"), b"").unwrap();
    let newer = open(&store, Some(&password("x"))).unwrap_err();
    assert!(matches!(newer, KeyError::NewerFormat { ref format, .. } if format == "3"), "{newer}");

    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "\"format\":2", "\"format\":9");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NewerFormat { .. })));

    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "\"format\":2", "\"format\":1");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::OlderFormat { format: 1, .. })));

    let (store, _) = new_repository("x");
    store.damage(&info_path(), |bytes| bytes.truncate(20));
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::Damaged { .. })));

    let (store, material) = new_repository("x");
    store.damage(&key_path(&material), |bytes| bytes.truncate(100));
    let error = open(&store, Some(&password("x"))).unwrap_err();
    assert!(error.to_string().contains(&material.key_id().to_string()), "{error}");
}

#[test]
fn what_is_readable_without_a_key_cannot_be_altered_unnoticed() {
    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "\"created_at\":\"", "\"created_at\":\"1");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::Damaged { .. })));
    let (store, _) = new_repository("x");
    edit(&store, &info_path(), "x25519-aes256gcm", "none");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::NotEncrypted { .. })));
    let (store, material) = new_repository("x");
    edit(&store, &key_path(&material), "\"role\":\"operator\"", "\"role\":\"keeper\"");
    assert!(matches!(open(&store, Some(&password("x"))), Err(KeyError::WrongPassword { .. })));
    let (store, material) = new_repository("x");
    edit(&store, &key_path(&material), "19456", "8");
    assert!(matches!(
        open(&store, Some(&password("x"))),
        Err(KeyError::Kdf { source: KdfError::Weak { .. }, .. })
    ));
}

#[test]
fn passwords_come_and_go_and_the_last_operator_stays() {
    let (store, root) = new_repo();
    let own = root.keys().key_id();
    assert!(matches!(remove(&root, own), Err(KeyError::LastOperator { .. })));
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    assert_eq!(second.keys().hash_key().unwrap().expose(), root.keys().hash_key().unwrap().expose());
    let listed = list(&second).unwrap();
    assert!(listed.problems.is_empty(), "{listed:?}");
    let seen: Vec<_> = listed.keys.iter().map(|key| (key.label.as_str(), key.role, key.is_own)).collect();
    assert!(
        seen.contains(&("", Role::Operator, false)) && seen.contains(&("the operator", Role::Operator, true))
    );

    remove(&second, own).unwrap();
    assert!(matches!(by_password(&store, "root"), Err(KeyError::WrongPassword { .. })));
    assert!(matches!(remove(&second, second.keys().key_id()), Err(KeyError::LastOperator { .. })));
    assert!(matches!(remove(&second, Hex([9; 8])), Err(KeyError::NoSuchKey { .. })));
    remove(&second, own).unwrap();
    // The removed operator continues with what is in memory.
    let error = add(&root, &key(Role::Writer, &[]), behind(&password("back door"))).unwrap_err();
    assert!(matches!(error, KeyError::Removed { .. }), "{error}");
    assert!(matches!(remove(&root, second.keys().key_id()), Err(KeyError::Removed { .. })));

    let (changed, ..) = change(&second, behind(&password("third"))).unwrap();
    assert_eq!(changed.label, "the operator");
    assert!(matches!(by_password(&store, "second"), Err(KeyError::WrongPassword { .. })));
    assert_eq!(list(&by_password(&store, "third").unwrap()).unwrap().keys.len(), 1);
}

/// An operator's key whose object is damaged opens nothing: it does not keep the last good one from being the last, and
/// the list names it.
#[test]
fn a_damaged_object_is_no_other_operators_key() {
    let identity = Identity::generate();
    let second = password("second");
    for (slot, from, to) in [
        (behind(&second), "\"key_id\"", "\"key_\""),
        (behind(&second), "\"sealed\":\"", "\"sealed\":\"x"),
        (behind(&second), "argon2id", "argon2ie"),
        (behind(&second), "19456", "8"),
        (behind(&second), "\"role\":\"operator\"", "\"role\":\"keeper\""),
        (NewSlot::Public(identity.public()), "\"sealed\":\"", "\"sealed\":\"00"),
    ] {
        let (store, root) = new_repo();
        let own = root.keys().key_id();
        let info = add(&root, &key(Role::Operator, &[]), slot).unwrap();
        let path = object_path(&format!("keys/{}", info.key_id));
        assert!(list(&root).unwrap().problems.is_empty());
        edit(&store, &path, from, to);
        let error = remove(&root, own).unwrap_err();
        assert!(matches!(error, KeyError::LastOperator { .. }), "{to}: {error}");
        let listed = list(&root).unwrap();
        assert_eq!((listed.keys.len(), listed.problems.len()), (1, 1), "{to}: {listed:?}");
        assert_eq!(listed.problems[0].0, path.to_string(), "{to}");
        // It can be removed itself.
        remove(&root, info.key_id).unwrap();
    }
}

#[test]
fn a_removed_key_object_that_is_put_back_opens_nothing() {
    let (store, root) = new_repo();
    let info = add(&root, &key(Role::Operator, &[]), behind(&password("second"))).unwrap();
    let path = object_path(&format!("keys/{}", info.key_id));
    let copy = read_all(&store, &path, 1 << 20).unwrap();
    remove(&root, info.key_id).unwrap();
    store.create_if_absent(&path, &copy).unwrap();
    assert!(matches!(by_password(&store, "second"), Err(KeyError::Removed { .. })));
    assert_eq!(list(&root).unwrap().problems.len(), 1);
    remove(&root, info.key_id).unwrap();
    assert!(list(&root).unwrap().problems.is_empty());
}

#[test]
fn a_key_pair_opens_what_an_operator_it_trusts_sealed_for_it() {
    let (store, root) = new_repo();
    let identity = Identity::generate();
    let unlock = |identity: &Identity| {
        Repo::unlock(Arc::new(store.clone()), Unlock::Identity(identity), None).map(Arc::new)
    };
    assert!(matches!(unlock(&identity), Err(KeyError::WrongIdentity { .. })));
    let info = add(&root, &key(Role::Operator, &[]), NewSlot::Public(identity.public())).unwrap();
    assert_eq!(info.slot, super::super::SlotInfo::Public(identity.public()));
    let Err(KeyError::Untrusted { trusted: found, .. }) = unlock(&identity) else {
        panic!("believed anybody")
    };
    assert_eq!(found, trusted(&root));
    let identity = identity.trusting(found);
    let opened = unlock(&identity).unwrap();
    backup(&opened, &log("db1")).unwrap();
    assert_eq!(History::read(&root, &log("db1")).unwrap().standing().count(), 1);
    assert!(matches!(unlock(&Identity::generate()), Err(KeyError::WrongIdentity { .. })));

    // Somebody who can write to the store seals other keys for it.
    let (other_store, other) = new_repo();
    let theirs = add(&other, &key(Role::Operator, &[]), NewSlot::Public(identity.public())).unwrap();
    let path = |id| object_path(&format!("keys/{id}"));
    let forged = read_all(&other_store, &path(theirs.key_id), 1 << 20).unwrap();
    store.delete(&[path(info.key_id)]).unwrap();
    store.create_if_absent(&path(theirs.key_id), &forged).unwrap();
    let error = unlock(&identity).unwrap_err();
    assert!(matches!(error, KeyError::Untrusted { .. } | KeyError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(&theirs.key_id.to_string()), "{error}");
}
