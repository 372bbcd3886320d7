//! What each role may do.

use super::*;

#[test]
fn a_writer_adds_and_neither_reads_nor_drops() {
    let (store, root) = new_repo();
    let log = log("db1");
    backup(&root, &log).unwrap();
    let writer = added(&store, &root, &key(Role::Writer, &[]), "writer");
    assert_eq!(backup(&writer, &log).unwrap(), RunNo(2));
    // A repository opened before the writer was known believes it all the same.
    let history = History::read(&root, &log).unwrap();
    assert_eq!(history.standing().count(), 2);
    assert_eq!(history.head(&root, RunNo(2)).unwrap(), head_of(&log, RunNo(2)));
    let own = History::read(&writer, &log).unwrap();
    for run in [RunNo(1), RunNo(2)] {
        assert!(matches!(own.head(&writer, run), Err(RepoError::NotReadable { role: Role::Writer, .. })));
        let report = Place { log: &log, kind: ObjectKind::Report, run, part: 0 };
        assert!(matches!(writer.read_object(&report, 100), Err(RepoError::NotReadable { .. })));
    }
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let error = Run::begin_as(Intent::Expire, &writer, &own, &options).err().unwrap();
    assert!(error.to_string().contains("a writer's key: dropping and pruning takes a keeper's"), "{error}");
    assert!(matches!(
        add(&writer, &key(Role::Writer, &[]), behind(&password("x"))),
        Err(KeyError::NotOperator { .. })
    ));

    let forged = forge(&writer, &log, 3, OutcomeType::Expire, history.last_hash());
    store.create_if_absent(&log.outcome(RunNo(3)), &forged).unwrap();
    let (object, damage) = refused(&root, &log);
    assert_eq!(object, log.outcome(RunNo(3)).to_string());
    assert_eq!(damage, Damage::Role { act: "expire", role: Role::Writer });
}

#[test]
fn a_writer_neither_holds_nor_releases() {
    for outcome_type in [OutcomeType::Hold, OutcomeType::Release] {
        let (store, root) = new_repo();
        let log = log("db1");
        backup(&root, &log).unwrap();
        let writer = added(&store, &root, &key(Role::Writer, &["db1"]), "writer");
        let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
        let error = crate::ops::hold::hold(&writer, &log, &[RunNo(1)], &HoldTerms::default(), &options);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("a writer's key: holding and releasing backups"), "{error}");
        let previous = History::read(&root, &log).unwrap().last_hash();
        let forged = forge(&writer, &log, 2, outcome_type, previous);
        store.create_if_absent(&log.outcome(RunNo(2)), &forged).unwrap();
        let (_, damage) = refused(&root, &log);
        assert_eq!(damage, Damage::Role { act: outcome_type.as_str(), role: Role::Writer });
    }
}

#[test]
fn a_keeper_drops_and_neither_reads_nor_adds() {
    let (store, root) = new_repo();
    let log = log("db1");
    backup(&root, &log).unwrap();
    backup(&root, &log).unwrap();
    let keeper = added(&store, &root, &key(Role::Keeper, &[]), "keeper");
    assert!(keeper.keys().hash_key().is_none());
    let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
    let history = History::read(&keeper, &log).unwrap();
    let mut run = Run::begin_as(Intent::Expire, &keeper, &history, &options).unwrap();
    run.finish(Ending::Expire { dropped: vec![RunNo(1)] }).unwrap();
    let history = History::read(&root, &log).unwrap();
    assert_eq!(history.standing().count(), 1);
    let own = History::read(&keeper, &log).unwrap();
    assert!(matches!(own.head(&keeper, RunNo(2)), Err(RepoError::NotReadable { role: Role::Keeper, .. })));
    let error = begin(&keeper, &log).err().unwrap();
    assert!(error.to_string().contains("a backup takes a writer's or an operator's"), "{error}");
}

#[test]
fn a_key_for_one_source_signs_for_no_other() {
    let (store, root) = new_repo();
    let writer = added(&store, &root, &key(Role::Writer, &["db1"]), "writer");
    backup(&writer, &log("db1")).unwrap();
    let elsewhere = log("db2");
    let forged = forge(&writer, &elsewhere, 1, OutcomeType::Abandoned, Hex([0; 32]));
    store.create_if_absent(&elsewhere.outcome(RunNo(1)), &forged).unwrap();
    let (object, damage) = refused(&root, &elsewhere);
    assert!(object.contains("db2") && matches!(damage, Damage::SignerElsewhere { .. }), "{object}: {damage}");
    History::read(&root, &log("db1")).unwrap();
    let of_all = NewKey { sources: vec!["db1".parse().unwrap()], ..key(Role::Operator, &[]) };
    assert!(matches!(add(&root, &of_all, behind(&password("x"))), Err(KeyError::OperatorOfSources)));
}
