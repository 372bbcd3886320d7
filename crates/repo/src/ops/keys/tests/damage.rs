//! What was lost or altered, beside removed keys.

use super::*;

/// The holder of a removed key can write to the store, and puts what the key signs now in
/// the place of earlier outcomes.
#[test]
fn what_a_removed_key_signs_takes_the_place_of_nothing_that_is_there() {
    let (store, root, clock) = new_repo_with_clock();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    for repo in [&writer, &root, &writer, &writer] {
        backup(repo, &log).unwrap();
    }
    remove(&root, writer.keys().key_id()).unwrap();
    let whole = outcomes_of(&store, &log, 4);
    let previous = {
        let history = History::read(&root, &log).unwrap();
        move |run: u64| history.outcome(RunNo(run)).unwrap().previous
    };
    // The removal has the hash of the newest outcome; any other is displaced by the next
    // one, which names the original.
    for (run, first_wrong) in [(4, 4), (3, 4), (2, 3)] {
        let path = log.outcome(RunNo(run));
        put(&store, &path, &forge(&writer, &log, run, OutcomeType::Abandoned, previous(run)));
        let again = by_password(&store, "root").unwrap();
        let (object, damage) = refused(&again, &log);
        assert_eq!(object, log.outcome(RunNo(first_wrong)).to_string(), "{run}: {damage:?}");
        let (standing, told) = salvaged(&again, &log);
        assert_eq!((told, standing.len()), (vec![run], 3), "{run}");
        assert!(!standing.contains(&run));
        whole.iter().for_each(|(path, bytes)| put(&store, path, bytes));
        assert_eq!(History::read(&again, &log).unwrap().standing().count(), 4);
    }
    // A log that ends too early is noticed: it could end with what the key's holder has put there.
    // A repair records that it does.
    for gone in [3, 4] {
        (gone..=4).for_each(|run| store.delete(&[log.outcome(RunNo(run))]).unwrap());
        let again = by_password(&store, "root").unwrap();
        let (object, damage) = refused(&again, &log);
        assert_eq!((object, damage), (log.outcome(RunNo(gone)).to_string(), Damage::Missing));
        assert_eq!(salvaged(&again, &log), ((1..gone).collect(), vec![gone]));
        clock.advance(Duration::from_secs(3600));
        let plan = repaired(&again, &log);
        assert!(!plan.outcomes.is_empty() && plan.dropped.is_empty(), "{plan:?}");
        let history = History::read(&again, &log).unwrap();
        assert_eq!(history.standing().count() as u64, gone - 1);
        assert_eq!(salvaged(&again, &log).1, [] as [u64; 0]);
        backup(&again, &log).unwrap();
        (1..=9).for_each(|run| store.delete(&[log.outcome(RunNo(run))]).unwrap());
        whole.iter().for_each(|(path, bytes)| put(&store, path, bytes));
    }
}

/// A damaged outcome takes nothing with it but itself: the signatures on those before it still count.
#[test]
fn damage_loses_nothing_of_a_removed_key_but_itself() {
    let (store, root) = new_repo();
    let log = log("db1");
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    for _ in 1..=5 {
        backup(&second, &log).unwrap();
    }
    remove(&root, second.keys().key_id()).unwrap();
    backup(&root, &log).unwrap();
    assert_eq!(History::read(&root, &log).unwrap().standing().count(), 6);
    store.damage(&log.outcome(RunNo(3)), |bytes| bytes[40] ^= 1);
    assert_eq!(salvaged(&root, &log), (vec![1, 2, 4, 5, 6], vec![3]));
    repaired(&root, &log);
    let standing = History::read(&root, &log).unwrap().standing().map(|it| it.run.0).collect::<Vec<_>>();
    assert_eq!(standing, [1, 2, 4, 5, 6]);

    // What a repair has found lost stays lost, and nothing in its place counts;
    // nor can anything be put before it.
    let history = History::read(&root, &log).unwrap();
    let first = history.outcome(RunNo(1)).unwrap().hash;
    let lost = |run| LostOutcome { run, hash: first, before: None };
    let forged = forge_with(&second, &log, 3, OutcomeType::Repair, first, |public| {
        public.lost = vec![lost(1), lost(2)];
    });
    put(&store, &log.outcome(RunNo(3)), &forged);
    let again = by_password(&store, "root").unwrap();
    assert_eq!(History::read(&again, &log).unwrap().standing().count(), 5);
    assert_eq!(salvaged(&again, &log), (standing.clone(), Vec::new()));
    put(&store, &log.outcome(RunNo(2)), &forge(&second, &log, 2, OutcomeType::Abandoned, first));
    assert_eq!(refused(&by_password(&store, "root").unwrap(), &log).1, Damage::Chain);
    assert_eq!(salvaged(&again, &log), (vec![1, 4, 5, 6], vec![2]));
}

/// However much is missing at the end of a log, one repair is enough.
#[test]
fn a_log_that_has_lost_its_end_is_mended_at_once() {
    let (store, root, clock) = new_repo_with_clock();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    for _ in 1..=40 {
        backup(&writer, &log).unwrap();
    }
    remove(&root, writer.keys().key_id()).unwrap();
    (5..=40).for_each(|run| store.delete(&[log.outcome(RunNo(run))]).unwrap());
    clock.advance(Duration::from_secs(3600));
    repaired(&root, &log);
    assert_eq!(History::read(&root, &log).unwrap().standing().count(), 4);
    backup(&root, &log).unwrap();
}

/// Leases are not signed. One that is made up for the run after the next looks as if an outcome were lost: no
/// run begins until a repair has ended what seems to have been there, and nothing that is there is lost by that.
#[test]
fn a_made_up_lease_stops_a_log_until_it_is_repaired() {
    let (store, root, clock) = new_repo_with_clock();
    let log = log("db1");
    backup(&root, &log).unwrap();
    store.create_if_absent(&log.lease(RunNo(3), 0), b"{}").unwrap();
    clock.advance(Duration::from_secs(3600));
    let error = begin(&root, &log).err().unwrap().to_string();
    assert!(error.contains("outcomes/0000000002: is missing"), "{error}");
    repaired(&root, &log);
    backup(&root, &log).unwrap();
    assert_eq!(History::read(&root, &log).unwrap().standing().count(), 2);
}

/// A removed operator cannot promote anybody by the name of a key that the operator had added, nor
/// make anybody seal for other keys.
#[test]
fn a_removed_operator_changes_no_word_of_before() {
    let (store, root) = new_repo();
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&store, &second, &key(Role::Writer, &[]), "writer");
    let path = signer_path(writer.keys().key_id());
    let (voucher, _): (trust::Voucher, _) = signed::read(
        root.info().repository_id,
        signed::Sort::Signer,
        &read_all(&store, &path, 1 << 20).unwrap(),
    )
    .unwrap();
    // Another rotation that the same operator could have made.
    let beside = copy_of(&store, ManualClock::default());
    rotate(&by_password(&beside, "second").unwrap()).unwrap();
    let another = read_all(&beside, &object_path("rotations/001"), 1 << 20).unwrap();
    rotate(&second).unwrap();
    remove(&root, second.keys().key_id()).unwrap();
    let signer = Signer { role: Role::Operator, ..voucher.signer.clone() };
    let promoted = signed::sign(second.keys(), signed::Sort::Signer, &trust::Voucher { signer, ..voucher });
    store.damage(&path, |bytes| *bytes = promoted.clone());
    let listed = list(&by_password(&store, "root").unwrap()).unwrap();
    assert!(listed.problems.iter().any(|(object, _)| *object == path.to_string()), "{listed:?}");

    let again = |store: &MemStore| by_password(store, "root").unwrap();
    // Another rotation cannot take the place of the operator's last.
    let path = object_path("rotations/001");
    assert_eq!(by_password(&store, "root").unwrap().keys().rotations(), 1);
    store.damage(&path, |bytes| *bytes = another.clone());
    assert_eq!(by_password(&store, "root").unwrap().keys().rotations(), 0);
    assert!(again(&store).require_sound_keys().is_err());

    // Nor can an earlier one, when the last is gone.
    store.delete(&[path]).unwrap();
    assert!(again(&store).require_sound_keys().is_err(), "nothing is sealed for what he made");
}

#[test]
fn records_of_keys_that_were_tampered_with_count_for_nothing() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    let voucher = read_all(&store, &signer_path(id), 1 << 20).unwrap();
    // A writer makes itself an operator.
    edit(&store, &signer_path(id), "writer\\\"", "operator\\\"");
    let error = begin(&by_password(&store, "writer").unwrap(), &log).err().unwrap();
    assert!(error.to_string().contains(&format!("signers/{id}")), "{error}");
    store.damage(&signer_path(id), |bytes| *bytes = voucher.clone());
    // A voucher of another repository.
    let (other_store, other) = new_repo();
    let stranger = added(&other_store, &other, &key(Role::Writer, &[]), "writer");
    let path = signer_path(stranger.keys().key_id());
    store.create_if_absent(&path, &read_all(&other_store, &path, 1 << 20).unwrap()).unwrap();
    assert_eq!(list(&root).unwrap().problems.len(), 1);
    backup(&root, &log).unwrap();

    for name in ["one", "two"] {
        let more = added(&store, &root, &key(Role::Writer, &[]), name);
        remove(&root, more.keys().key_id()).unwrap();
    }
    // The record of a removal is taken away, and whatever builds on it names it.
    let first = object_path("removals/0000000001");
    let removal = read_all(&store, &first, 1 << 20).unwrap();
    store.delete(std::slice::from_ref(&first)).unwrap();
    let again = by_password(&store, "root").unwrap();
    let error = begin(&again, &log).err().unwrap();
    assert!(error.to_string().starts_with("removals/0000000001: is missing"), "{error}");
    let error = add(&again, &key(Role::Writer, &[]), behind(&password("x"))).unwrap_err();
    assert!(
        matches!(error, KeyError::Damaged { ref object, .. } if object == "removals/0000000001"),
        "{error}"
    );
    // Readers are not affected.
    assert_eq!(History::read(&again, &log).unwrap().standing().count(), 1);
    store.create_if_absent(&first, b"{}").unwrap();
    assert!(begin(&by_password(&store, "root").unwrap(), &log).is_err());
    store.damage(&first, |bytes| *bytes = removal);
    begin(&by_password(&store, "root").unwrap(), &log).unwrap();
}

/// Whoever can only create objects cannot make a removed key believed, nor hide one that was added.
#[test]
fn objects_without_a_signature_change_nobodys_mind() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let stolen = added(&store, &root, &key(Role::Writer, &[]), "stolen");
    backup(&writer, &log).unwrap();
    backup(&stolen, &log).unwrap();
    // While the thief still has the key, it takes numbers far ahead: they are of no use later.
    let far = [object_path("sources/db1/physical/runs/9999999998/000000"), log.outcome(RunNo(9_999_999_998))];
    let signed = forge(&stolen, &log, 9_999_999_998, OutcomeType::Abandoned, Hex([1; 32]));
    store.create_if_absent(&far[0], b"{}").unwrap();
    store.create_if_absent(&far[1], &signed).unwrap();
    remove(&root, stolen.keys().key_id()).unwrap();
    store.delete(&far).unwrap();
    let last = History::read(&root, &log).unwrap().last_hash();
    let forged = forge(&stolen, &log, 3, OutcomeType::Abandoned, last);
    let third = log.outcome(RunNo(3));
    store.create_if_absent(&third, &forged).unwrap();
    let assert_removed = |what: &str| {
        let again = by_password(&store, "root").unwrap();
        let removed = Damage::SignerRemoved { key_id: stolen.keys().key_id() };
        assert_eq!(refused(&again, &log), (third.to_string(), removed), "{what}");
        let mut whole = 0;
        History::salvage(&again, &log, &mut |_, _| whole += 1).unwrap();
        assert_eq!(whole, 1, "{what}: the others are believed");
    };
    assert_removed("as it is");
    let voucher = read_all(&store, &signer_path(writer.keys().key_id()), 1 << 20).unwrap();
    for name in ["removals/0", "removals/0000000000", "removals/x", "signers/0", "signers/zz", "rotations/0"]
    {
        store.create_if_absent(&object_path(name), b"{}").unwrap();
        assert_removed(name);
        let again = by_password(&store, "root").unwrap();
        let is_told = again.key_problems().iter().any(|(object, _)| object == name);
        assert!(is_told || name.starts_with("rotations/"), "{name} is told");
        // It blocks no writing.
        begin(&again, &LogName { source: "other".parse().unwrap(), ..log.clone() }).unwrap();
        store.delete(&[object_path(name)]).unwrap();
    }
    for number in 0..300 {
        store.create_if_absent(&object_path(&format!("signers/{number:016x}")), &voucher).unwrap();
    }
    assert_removed("many");
    // These are for operators to look at, and writers wait.
    for name in ["removals/0000000002", "removals/0000000007", "rotations/001"] {
        store.create_if_absent(&object_path(name), b"{}").unwrap();
        assert_removed(name);
        store.delete(&[object_path(name)]).unwrap();
    }
    // Even if the first is gone, those that operators have signed after it count
    // against the keys that they name.
    let more = added(&store, &root, &key(Role::Writer, &[]), "more");
    remove(&root, more.keys().key_id()).unwrap();
    let first = object_path("removals/0000000001");
    let bytes = read_all(&store, &first, 1 << 20).unwrap();
    store.delete(std::slice::from_ref(&first)).unwrap();
    store.create_if_absent(&object_path("removals/0000000003"), &bytes).unwrap();
    assert_removed("moved");
}

/// Each of these is refused by name, whoever wrote it.
#[test]
fn outcomes_are_believed_in_their_own_place_only() {
    let (store, root) = new_repo();
    let (log, twin) = (log("db1"), log("db2"));
    for _ in 0..3 {
        backup(&root, &log).unwrap();
    }
    backup(&root, &twin).unwrap();
    let (other_store, other) = new_repo();
    backup(&other, &log).unwrap();
    let bytes =
        |store: &MemStore, log: &LogName, run| read_all(store, &log.outcome(RunNo(run)), 1 << 20).unwrap();
    let honest: Vec<Vec<u8>> = (1..=3).map(|run| bytes(&store, &log, run)).collect();
    let history = History::read(&root, &log).unwrap();
    let put = |run, bytes: &[u8]| store.damage(&log.outcome(RunNo(run)), |there| *there = bytes.to_vec());

    let cases: [(u64, &str, Vec<u8>); 7] = [
        (3, "an older outcome", honest[1].clone()),
        (1, "another source's", bytes(&store, &twin, 1)),
        (1, "another repository's", bytes(&other_store, &log, 1)),
        (2, "cut off", honest[1][..honest[1].len() - 1].to_vec()),
        (2, "longer", [&honest[1][..], &[0]].concat()),
        (2, "signed over", [&honest[1][..honest[1].len() - 64], &[7; 64]].concat()),
        (3, "out of the chain", forge(&root, &log, 3, OutcomeType::Abandoned, history.outcomes()[0].hash)),
    ];
    for (run, what, forged) in cases {
        assert!(put(run, &forged), "{what}");
        let (object, damage) = refused(&root, &log);
        assert_eq!(object, log.outcome(RunNo(run)).to_string(), "{what}");
        let expected = match what {
            "out of the chain" => damage == Damage::Chain,
            "cut off" | "longer" => matches!(damage, Damage::Format(_)),
            _ => damage == Damage::Signature,
        };
        assert!(expected, "{what}: {damage}");
        assert!(put(run, &honest[run as usize - 1]));
    }
    store.delete(&[log.outcome(RunNo(2))]).unwrap();
    let (object, damage) = refused(&root, &log);
    assert_eq!((object, damage), (log.outcome(RunNo(2)).to_string(), Damage::Missing));
}
