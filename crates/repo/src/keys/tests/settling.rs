//! Objects among the records of keys that nobody has signed: they stop nobody, except where one may be what is left of a
//! removal or a rotation, until an operator settles it.

use super::{
    settle::{Settlement, plan_settling, settle},
    *,
};
use crate::store::exists;

fn removal(number: u64) -> ObjectPath {
    object_path(&format!("removals/{number:010}"))
}

fn root_of(store: &MemStore) -> Arc<Repo> {
    by_password(store, "root").unwrap()
}

fn named(repo: &Repo) -> Vec<String> {
    repo.key_problems().into_iter().map(|(object, _)| object).collect()
}

fn is_removed(store: &MemStore, key_id: KeyId) -> bool {
    root_of(store).look_again().unwrap().is_removed(key_id)
}

/// Somebody who can only create objects keeps nobody from writing with them, nor from removing keys, and all of them are
/// named until an operator settles them.
#[test]
fn what_nobody_has_signed_stops_nobody() {
    let (store, root) = new_repo();
    let log = log("db1");
    added(&store, &root, &key(Role::Writer, &[]), "writer");
    let [gone, more] = ["gone", "more"].map(|name| added(&store, &root, &key(Role::Writer, &[]), name));
    remove(&root, gone.keys().key_id()).unwrap();
    let made_up = ["removals/0000000002", "removals/0000000003", "removals/0000000009", "rotations/005"];
    let copied = read_all(&store, &removal(1), 1 << 20).unwrap();
    for (name, bytes) in made_up.iter().zip([&b"{}"[..], &copied, &copied, b"{}"]) {
        store.create_if_absent(&object_path(name), bytes).unwrap();
    }
    backup(&by_password(&store, "writer").unwrap(), &log).unwrap();
    assert_eq!(named(&root_of(&store)), made_up);
    remove(&root_of(&store), more.keys().key_id()).unwrap();
    assert!(is_removed(&store, gone.keys().key_id()) && is_removed(&store, more.keys().key_id()));
    backup(&by_password(&store, "writer").unwrap(), &log).unwrap();

    let root = root_of(&store);
    let plan = plan_settling(&root).unwrap();
    assert_eq!(plan.objects.iter().map(|(object, _)| object.as_str()).collect::<Vec<_>>(), made_up);
    assert_eq!(plan.removed, []);
    assert_eq!(settle(&root).unwrap(), plan);
    let again = root_of(&store);
    assert_eq!(named(&again), [""; 0]);
    assert_eq!(plan_settling(&again).unwrap(), Settlement::default());
    // A number before others never becomes free: a removed operator could take it.
    for (name, is_there) in made_up.iter().zip([true, true, false, false]) {
        assert_eq!(exists(&store, &object_path(name)).unwrap(), is_there, "{name}");
    }
    assert_eq!(rotate(&again).unwrap().number, 1);
    let last = added(&store, &again, &key(Role::Writer, &[]), "last");
    remove(&again, last.keys().key_id()).unwrap();
    for key in [&gone, &more, &last] {
        assert!(is_removed(&store, key.keys().key_id()));
    }
    backup(&by_password(&store, "writer").unwrap(), &log).unwrap();
    // What is made up after that is named again.
    store.create_if_absent(&removal(7), b"x").unwrap();
    assert_eq!(named(&root_of(&store)), ["removals/0000000007"]);
}

/// Whatever becomes of a removal, nobody writes as if there had been none: an operator settles it, and then the key is
/// removed again.
#[test]
fn a_removal_that_is_lost_is_made_again() {
    for number in [1, 2] {
        for is_gone in [false, true] {
            let (store, root) = new_repo();
            let log = log("db1");
            let [first, second] =
                ["first", "second"].map(|name| added(&store, &root, &key(Role::Writer, &[]), name));
            backup(&root, &log).unwrap();
            remove(&root, first.keys().key_id()).unwrap();
            remove(&root, second.keys().key_id()).unwrap();
            match is_gone {
                // The deletion of the newest is not noticed.
                true if number == 2 => continue,
                true => store.delete(&[removal(number)]).unwrap(),
                false => assert!(store.damage(&removal(number), |bytes| bytes.truncate(40))),
            }
            let what = format!("{number}, gone: {is_gone}");
            let error = begin(&root_of(&store), &log).err().unwrap().to_string();
            assert!(error.starts_with(removal(number).as_str()), "{what}: {error}");
            let root = root_of(&store);
            let lost = [&first, &second][number as usize - 1].keys().key_id();
            assert_eq!(plan_settling(&root).unwrap().removed, [lost], "{what}");
            let settled = settle(&root).unwrap();
            assert_eq!(settled.objects[0].0, removal(number).as_str(), "{what}");
            assert!([&first, &second].iter().all(|key| is_removed(&store, key.keys().key_id())), "{what}");
            let root = root_of(&store);
            assert_eq!((named(&root), settle(&root).unwrap()), (Vec::new(), Settlement::default()), "{what}");
            backup(&root, &log).unwrap();
            let last = History::read(&root, &log).unwrap().last_hash();
            let forged = forge([&first, &second][number as usize - 1], &log, 3, OutcomeType::Abandoned, last);
            store.create_if_absent(&log.outcome(RunNo(3)), &forged).unwrap();
            assert_eq!(refused(&root_of(&store), &log).1, Damage::SignerRemoved { key_id: lost }, "{what}");
            store.delete(&[log.outcome(RunNo(3))]).unwrap();
            let third = added(&store, &root, &key(Role::Writer, &[]), "third");
            remove(&root, third.keys().key_id()).unwrap();
            assert!([&first, &second, &third].iter().all(|key| is_removed(&store, key.keys().key_id())));
        }
    }
}

/// What is in the place of the next rotation may be one: nobody writes until an operator takes it away. What backups
/// were sealed for is never taken away.
#[test]
fn a_made_up_rotation_is_taken_away_and_a_damaged_one_is_not() {
    let (store, root) = new_repo();
    let log = log("db1");
    let first = object_path("rotations/001");
    store.create_if_absent(&first, b"{}").unwrap();
    begin(&root_of(&store), &log).err().unwrap();
    let settled = settle(&root_of(&store)).unwrap();
    assert_eq!(settled.objects[0].0, first.as_str());
    backup(&root_of(&store), &log).unwrap();
    assert_eq!(rotate(&root).unwrap().number, 1);
    backup(&root_of(&store), &log).unwrap();
    assert!(store.damage(&first, |bytes| bytes[60] ^= 1));
    let error = settle(&root_of(&store)).unwrap_err();
    assert!(matches!(&error, KeyError::Damaged { object, .. } if *object == first.to_string()), "{error}");
    assert!(exists(&store, &first).unwrap());
}
