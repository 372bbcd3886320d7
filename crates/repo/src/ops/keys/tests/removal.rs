//! Keys that are removed, while others are at work and afterwards.

use super::*;

#[test]
fn of_two_operators_who_remove_each_other_at_once_one_stays() {
    for _ in 0..3 {
        let (store, root) = new_repo();
        let second = added(&store, &root, &key(Role::Operator, &[]), "second");
        let start = Barrier::new(2);
        let removes = |by: &Repo, other: &Repo| {
            start.wait();
            remove(by, other.keys().key_id())
        };
        let (one, other) = thread::scope(|scope| {
            let one = scope.spawn(|| removes(&root, &second));
            let other = scope.spawn(|| removes(&second, &root));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        assert!(by_password(&store, "root").is_ok() != by_password(&store, "second").is_ok());
        // Each removes its own key: the same race with both ends open.
        let left = by_password(&store, "root").or_else(|_| by_password(&store, "second")).unwrap();
        let third = added(&store, &left, &key(Role::Operator, &[]), "third");
        let leaves = |repo: &Repo| {
            start.wait();
            remove(repo, repo.keys().key_id())
        };
        let (one, other) = thread::scope(|scope| {
            let one = scope.spawn(|| leaves(&left));
            let other = scope.spawn(|| leaves(&third));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    }
}

/// What the key signed before it was removed stays; a run that had begun may end.
#[test]
fn what_a_removed_key_signs_is_not_believed() {
    let (store, root) = new_repo();
    let (log, quiet) = (log("db1"), log("db2"));
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    backup(&writer, &log).unwrap();
    let begun = begin(&writer, &log).unwrap();
    remove(&root, writer.keys().key_id()).unwrap();
    begun.abandon("late").unwrap();
    let history = History::read(&root, &log).unwrap();
    assert_eq!(history.outcomes().len(), 2);
    // Whoever continues with the key learns of the removal before doing harm.
    let error = begin(&writer, &log).err().unwrap();
    assert!(matches!(error, BeginError::Repo(RepoError::NotBelieved { .. })), "{error}");
    let forged = forge(&writer, &log, 3, OutcomeType::Abandoned, history.last_hash());
    store.create_if_absent(&log.outcome(RunNo(3)), &forged).unwrap();
    let (object, damage) = refused(&root, &log);
    assert_eq!(object, log.outcome(RunNo(3)).to_string());
    assert_eq!(damage, Damage::SignerRemoved { key_id: writer.keys().key_id() });
    let forged = forge(&writer, &quiet, 1, OutcomeType::Abandoned, Hex([0; 32]));
    store.create_if_absent(&quiet.outcome(RunNo(1)), &forged).unwrap();
    assert!(matches!(refused(&root, &quiet).1, Damage::SignerRemoved { .. }));
}

/// A log with a run under way when a key is removed can continue, however that run ends.
#[test]
fn a_key_is_removed_while_somebody_is_at_work() {
    for under_way in [UnderWay::MayEnd, UnderWay::Refused] {
        for dies in [false, true] {
            let (store, root, clock) = new_repo_with_clock();
            let log = log("db1");
            let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
            for _ in 1..=3 {
                backup(&writer, &log).unwrap();
            }
            let begun = begin(&root, &log).unwrap();
            let removed = super::super::remove(&root, writer.keys().key_id(), under_way).unwrap();
            assert_eq!(removed.may_end.len(), usize::from(under_way == UnderWay::MayEnd));
            assert_eq!(History::read(&root, &log).unwrap().standing().count(), 3);
            assert_eq!(salvaged(&root, &log), (vec![1, 2, 3], Vec::new()));
            match dies {
                true => {
                    begun.leave();
                    clock.advance(Duration::from_secs(3600));
                }
                false => begun.abandon("over").unwrap(),
            }
            let plan = repaired(&root, &log);
            assert!(plan.is_empty(), "{plan:?}");
            backup(&root, &log).unwrap();
            assert_eq!(History::read(&root, &log).unwrap().standing().count(), 4);
        }
    }
}

/// Whoever learns later that somebody else has the key can refuse what was to end with it.
#[test]
fn a_removed_key_is_removed_at_once_after_all() {
    let (store, root) = new_repo();
    let log = log("db1");
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    let run = begin(&writer, &log).unwrap();
    let may_end = vec![(log.clone(), run.no())];
    for _ in 0..2 {
        assert_eq!(super::super::remove(&root, id, UnderWay::MayEnd).unwrap().may_end, may_end);
    }
    assert_eq!(super::super::remove(&root, id, UnderWay::Refused).unwrap().may_end, []);
    assert!(run.abandon("over").is_err());
    assert_eq!(History::read(&root, &log).unwrap().outcomes().len(), 0);
    backup(&root, &log).unwrap();
}

/// What an archiver has stored before it died stays, to be taken over, unless its key was somebody else's.
#[test]
fn what_an_archiver_has_left_outlives_its_key() {
    for (under_way, segments) in [(UnderWay::MayEnd, 2), (UnderWay::Refused, 0)] {
        let (store, root, clock) = new_repo_with_clock();
        let log = LogName { kind: Kind::Binlog, ..log("db1") };
        let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
        begin(&writer, &log).unwrap().abandon("nothing came").unwrap();
        let run = begin(&writer, &log).unwrap();
        let dead = run.no();
        let mut to = run.segment_writer();
        for bytes in [b"one", b"two"] {
            let sealed = to.seal(serde_json::Map::new(), bytes).unwrap();
            to.store(&sealed).unwrap();
        }
        run.leave();
        clock.advance(Duration::from_secs(3600));
        let removed = super::super::remove(&root, writer.keys().key_id(), under_way).unwrap();
        assert_eq!(removed.may_end.len(), usize::from(segments > 0));
        let read = || {
            let history = History::read(&root, &log).unwrap();
            let mut reader = SegmentReader::new(&root, &history, dead);
            let mut read = 0;
            while reader.read_next().unwrap().is_some() {
                read += 1;
            }
            reader.check_end().unwrap();
            read
        };
        assert_eq!(read(), segments);
        // The next run ends the dead one, and finds the segments all the same.
        begin(&root, &log).unwrap().abandon("nothing came").unwrap();
        assert_eq!(read(), segments);
    }
}

/// A run that was under way may end, once; or may not, as whoever removes the key decides.
#[test]
fn a_run_that_is_under_way_may_end_or_may_not() {
    for (under_way, may) in [(UnderWay::MayEnd, true), (UnderWay::Refused, false)] {
        let (store, root) = new_repo();
        let log = log("db1");
        let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
        let run = begin(&writer, &log).unwrap();
        let removed = super::super::remove(&root, writer.keys().key_id(), under_way).unwrap();
        assert_eq!(removed.may_end, if may { vec![(log.clone(), run.no())] } else { Vec::new() });
        assert_eq!(run.abandon("over").is_ok(), may);
        assert_eq!(History::read(&root, &log).unwrap().outcomes().len(), usize::from(may));
        let again = super::super::remove(&root, writer.keys().key_id(), under_way).unwrap();
        assert_eq!(
            again,
            super::super::Removed::default(),
            "what has ended well is not told as if it had not"
        );
    }
}

/// An operator who was removed meanwhile writes no record that nobody would believe.
#[test]
fn whoever_was_removed_removes_nobody() {
    let (store, root) = new_repo();
    let log = log("db1");
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let id = second.keys().key_id();
    let _under_way = begin(&root, &log).unwrap();
    let may_end = super::super::remove(&root, id, UnderWay::MayEnd).unwrap().may_end;
    assert_eq!(super::super::remove(&second, id, UnderWay::Refused).unwrap().may_end, may_end);
    by_password(&store, "root").unwrap().require_sound_keys().unwrap();
    assert_eq!(super::super::remove(&root, id, UnderWay::Refused).unwrap().may_end, []);
    by_password(&store, "root").unwrap().require_sound_keys().unwrap();
}

/// Looking at all logs takes a while, in which the holder of the key continues.
#[test]
fn what_ends_while_a_key_is_being_removed_stays_or_is_named() {
    let (store, root) = new_repo();
    let (first, second) = (log("db1"), log("db2"));
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    backup(&writer, &first).unwrap();
    backup(&writer, &second).unwrap();
    let (goes_on, prefix) = (Arc::clone(&writer), second.folder(Folder::Outcomes));
    let at_the_second = move |call: &Call<'_>| call.op == Op::List && call.path == prefix;
    let slow = beside(
        &store,
        "root",
        once(at_the_second, move || {
            backup(&goes_on, &log("db1")).unwrap();
            None
        }),
    );
    assert_eq!(remove(&slow, id).unwrap(), []);
    assert_eq!(History::read(&root, &first).unwrap().standing().count(), 2);

    let writer = added(&store, &root, &key(Role::Writer, &[]), "second");
    let id = writer.keys().key_id();
    let goes_on = Arc::clone(&writer);
    let at_the_last = |call: &Call<'_>| call.op == Op::Create && call.path.starts_with("removals/");
    let slow = beside(
        &store,
        "root",
        once(at_the_last, move || {
            backup(&goes_on, &log("db1")).unwrap();
            None
        }),
    );
    let late = [first.outcome(RunNo(3))];
    assert_eq!(remove(&slow, id).unwrap(), late);
    root.look_again().unwrap();
    assert_eq!(refused(&root, &first).1, Damage::SignerRemoved { key_id: id });
    assert_eq!(remove(&root, id).unwrap(), late, "whoever asks again is told again");
}

/// Looking at all logs takes a while, in which the operator who is being removed adds a key.
#[test]
fn a_key_added_while_its_operator_is_being_removed_stays_or_is_named() {
    let log = log("db1");
    let beside_removal = |is_it: fn(&Call<'_>) -> bool, ends: bool| {
        let (store, root) = new_repo();
        let leaving = added(&store, &root, &key(Role::Operator, &[]), "leaving");
        let id = leaving.keys().key_id();
        let (to, log) = (store.clone(), log.clone());
        let adds = once(is_it, move || {
            let writer = added(&to, &leaving, &key(Role::Writer, &[]), "writer");
            if ends {
                backup(&writer, &log).unwrap();
            }
            None
        });
        let removed = super::super::remove(&beside(&store, "root", adds), id, UnderWay::MayEnd).unwrap();
        (store, root, id, removed)
    };

    let (store, root, _, removed) = beside_removal(|call| call.op == Op::Now, false);
    assert_eq!(removed, super::super::Removed::default());
    backup(&by_password(&store, "writer").unwrap(), &log).unwrap();
    assert_eq!(list(&root).unwrap().problems, []);

    let at_the_last = |call: &Call<'_>| call.op == Op::Create && call.path.starts_with("removals/");
    let (store, root, id, removed) = beside_removal(at_the_last, true);
    let writer = by_password(&store, "writer").unwrap().keys().key_id();
    assert_eq!((removed.dropped, removed.too_late), (vec![writer], vec![log.outcome(RunNo(1))]));
    root.look_again().unwrap();
    assert_eq!(refused(&root, &log).1, Damage::SignerRemoved { key_id: writer });
    // Once the key that counts for nothing is gone, a repair gives up what it has signed.
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let refused = repair(&root, &log, &CheckOptions::default(), &mut |_| true, &options).unwrap_err();
    assert!(refused.to_string().starts_with(&format!("keys/{writer}: ")), "{refused}");
    assert_eq!(remove(&root, writer).unwrap(), []);
    assert_eq!(repaired(&root, &log).outcomes.len(), 1);
    assert_eq!(super::super::remove(&root, id, UnderWay::MayEnd).unwrap(), super::super::Removed::default());
    backup(&root, &log).unwrap();
}

/// Whoever adds a key is told if its voucher does not count any more, and no key object is left.
#[test]
fn a_key_added_by_a_removed_operator_is_not_told_to_be_good() {
    for what in ["signers/", "keys/"] {
        let (store, root) = new_repo();
        let id = added(&store, &root, &key(Role::Operator, &[]), "leaving").keys().key_id();
        // A removal that knows nothing of the new key.
        let elsewhere = copy_of(&store, ManualClock::default());
        remove(&by_password(&elsewhere, "root").unwrap(), id).unwrap();
        let path = object_path("removals/0000000001");
        let record = read_all(&elsewhere, &path, 1 << 20).unwrap();
        let to = store.clone();
        let removes = once(
            move |call| call.op == Op::Create && call.path.starts_with(what),
            move || {
                to.create_if_absent(&path, &record).unwrap();
                None
            },
        );
        let leaving = beside(&store, "leaving", removes);
        let error = add(&leaving, &key(Role::Writer, &[]), behind(&password("writer"))).unwrap_err();
        assert!(matches!(error, KeyError::Removed { key_id } if key_id == id), "{error}");
        assert!(matches!(by_password(&store, "writer"), Err(KeyError::WrongPassword { .. })));
        assert_eq!(list(&root).unwrap().problems.len(), 2, "the voucher, and the object of the removed key");
    }
}

/// A voucher that a removal keeps was altered since: what the key has signed may be genuine.
#[test]
fn a_repair_gives_up_nothing_of_a_signer_that_a_removal_keeps() {
    let (store, root) = new_repo();
    let log = log("db1");
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&store, &second, &key(Role::Writer, &[]), "writer");
    remove(&root, second.keys().key_id()).unwrap();
    backup(&writer, &log).unwrap();
    let path = signer_path(writer.keys().key_id());
    let record = read_all(&store, &path, 1 << 20).unwrap();
    let repository = root.info().repository_id;
    let (voucher, _): (trust::Voucher, _) = signed::read(repository, signed::Sort::Signer, &record).unwrap();
    let altered = trust::Voucher { label: "altered".to_owned(), ..voucher };
    put(&store, &path, &signed::sign(second.keys(), signed::Sort::Signer, &altered));
    store.delete(&[key_path(writer.keys())]).unwrap();
    let again = by_password(&store, "root").unwrap();
    assert_eq!(refused(&again, &log).1, Damage::Signature);
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let refused = repair(&again, &log, &CheckOptions::default(), &mut |_| true, &options).unwrap_err();
    assert!(refused.to_string().starts_with(path.as_str()), "{refused}");
}

/// A run that was frozen before its outcome was created, until its key was
/// removed, is not told that all is well.
#[test]
fn what_nobody_believes_has_not_ended_well() {
    let (store, root, clock) = new_repo_with_clock();
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    let id = writer.keys().key_id();
    let at_the_end = |call: &Call<'_>| call.op == Op::Create && call.path.contains("/outcomes/");
    let frozen = beside(
        &store,
        "writer",
        once(at_the_end, move || {
            clock.advance(Duration::from_secs(3600));
            assert_eq!(remove(&root, id).unwrap(), []);
            None
        }),
    );
    let error = backup(&frozen, &log("db1")).unwrap_err();
    assert!(matches!(error, FinishError::Repo(RepoError::NotBelieved { .. })), "{error}");
}

/// Anybody can copy records, and a look can fail temporarily.
#[test]
fn a_removal_is_kept_once_and_a_signer_who_could_not_be_looked_for_is_no_stranger() {
    let (store, root) = new_repo();
    let removed = added(&store, &root, &key(Role::Writer, &[]), "removed");
    remove(&root, removed.keys().key_id()).unwrap();
    let removal = read_all(&store, &object_path("removals/0000000001"), 1 << 20).unwrap();
    store.delete(&[object_path("removals/0000000001")]).unwrap();
    for number in 2..40 {
        store.create_if_absent(&object_path(&format!("removals/{number:010}")), &removal).unwrap();
    }
    let trust = root.look_again().unwrap();
    assert!(trust.is_removed(removed.keys().key_id()));
    assert_eq!(trust.removals_known(), 1);

    let (store, root) = new_repo();
    let is_armed = Arc::new(Mutex::new(false));
    let armed = Arc::clone(&is_armed);
    let reader = beside(&store, "root", move |call| {
        let fails =
            call.op == Op::List && call.path == "signers/" && std::mem::take(&mut *armed.lock().unwrap());
        fails.then_some(Fault::Error)
    });
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    backup(&writer, &log("db1")).unwrap();
    *is_armed.lock().unwrap() = true;
    let error = History::read(&reader, &log("db1")).unwrap_err();
    assert!(matches!(error, RepoError::Store(_)), "{error}");
    assert_eq!(History::read(&reader, &log("db1")).unwrap().standing().count(), 1);
}

/// Keys that an operator added stay when the operator goes; what is added afterwards counts for nothing.
#[test]
fn a_removed_operator_vouches_for_nobody_any_more() {
    let (store, root) = new_repo();
    let second = added(&store, &root, &key(Role::Operator, &[]), "second");
    let writer = added(&store, &second, &key(Role::Writer, &[]), "writer");
    remove(&root, second.keys().key_id()).unwrap();
    backup(&writer, &log("db1")).unwrap();
    assert_eq!(History::read(&root, &log("db1")).unwrap().standing().count(), 1);

    // Written by other means than this program, which refuses.
    let own = OwnKeys::generate().unwrap();
    let signer = own.signer(Role::Operator, Vec::new());
    let voucher = trust::Voucher { format: FORMAT, signer, label: String::new(), created_at: String::new() };
    let record = signed::sign(second.keys(), signed::Sort::Signer, &voucher);
    store.create_if_absent(&signer_path(own.key_id), &record).unwrap();
    let listed = list(&root).unwrap();
    assert!(listed.problems[0].0.contains(&own.key_id.to_string()), "{listed:?}");
    // The record is reported, and blocks nothing.
    backup(&root, &log("db1")).unwrap();
}
