//! Objects that exist, but that the medium cannot read, or the store does not deliver, at the moment: each
//! counts as damage of its own, so that it stops nothing else. But nothing is given up because of it.

use std::{collections::BTreeSet, sync::Arc};

use holdfast_pipe::Suite;
use holdfast_repo::{
    data::reader::Backup,
    log::{history::History, outcome::OutcomeType},
    ops::{
        check::{Finding, Severity, check},
        prune::{PruneOptions, prune},
        repair::repair,
    },
    store::{
        ObjectPath,
        faulty::{Fault, FaultyStore, Op},
    },
};

use crate::{
    damage::{copy, objects},
    repair::{all, bytes_of, findings, world_of_all},
    world::*,
};

/// The same repository on a medium that cannot read one object, or in a store that does not deliver it.
fn sick(world: &World, object: &ObjectPath, fault: Fault) -> World {
    let object = object.to_string();
    world.through(FaultyStore::new(Arc::new(world.store.clone()), move |call| {
        let is_of_fault = call.op == Op::Read || (fault == Fault::NotFound && call.op == Op::Head);
        (is_of_fault && call.path == object).then_some(fault)
    }))
}

#[test]
fn whatever_object_is_unreadable_stops_nothing_else_and_is_not_given_up() {
    let (pristine, backups) = world_of_all(Suite::X25519Aes256Gcm);
    let names = objects(&pristine);
    let mut seen = BTreeSet::new();
    for (path, _) in &names {
        let name = path.as_str();
        if !name.starts_with(&pristine.log.prefix()) || name.contains("/runs/") {
            continue;
        }
        let kind = name.split('/').nth(3).unwrap();
        let world = copy(&pristine, &names);
        let sick = sick(&world, path, Fault::Unreadable);
        let before = bytes_of(&world);
        let found =
            check(&sick.repo, &sick.log, all()).unwrap_or_else(|error| panic!("{name}: {error}")).findings;
        assert!(found.iter().any(|it| it.object.contains(name)) || found.is_empty(), "{name}: {found:?}");
        let harmed: BTreeSet<_> = found
            .iter()
            .filter(|it| it.severity == Severity::Lost)
            .flat_map(|it| it.backups.clone())
            .collect();
        let history = History::salvage(&sick.repo, &sick.log, &mut |_, _| {}).unwrap();
        let mut whole = 0;
        for (run, source) in backups.iter().filter(|(run, _)| history.stands(*run) && !harmed.contains(run)) {
            let backup =
                Backup::open(&sick.repo, &history, *run).unwrap_or_else(|error| panic!("{name}: {error}"));
            for item in backup.items() {
                let item = item.unwrap_or_else(|error| panic!("{name}: {error}"));
                let bytes = read_whole(&backup, &item).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(bytes == source[&item.path.to_string()].bytes, "{name}: {run}");
            }
            whole += 1;
        }
        // What a prune has moved is not found without its record.
        assert!(whole > 0 || matches!(kind, "packs" | "refs"), "{name}");

        let repaired = repair(&sick.repo, &sick.log, &all(), &mut |_| true, &run_options());
        match &repaired {
            Ok(plan) => assert!(plan.is_empty(), "{name}: {plan:?}"),
            Err(error) => assert!(error.to_string().contains(name), "{name}: {error}"),
        }
        assert!(repaired.is_err() || found.is_empty(), "{name}: {repaired:?}");
        assert!(bytes_of(&world) == before, "{name}: nothing is given up");

        let source = &backups.last().unwrap().1;
        match sick.try_backup(small_packs(), |writer| give_all(writer, source, 1)) {
            Ok((run, _)) => {
                sick.assert_is(run, source);
                let now = PruneOptions { grace: std::time::Duration::ZERO, ..PruneOptions::default() };
                let pruned = prune(&sick.repo, &sick.log, &now, None, &run_options());
                // What is not known to be unneeded stays.
                if let Err(error) = pruned {
                    assert!(kind == "refs" && error.to_string().contains(name), "{name}: {error}");
                }
            }
            // Every run builds on what is recorded, and on what prunes have moved.
            Err(error) => {
                let run = pristine
                    .history()
                    .outcomes()
                    .iter()
                    .find(|it| pristine.log.refs(it.run) == *path)
                    .cloned();
                let is_of_prune = run.is_some_and(|it| it.outcome_type == OutcomeType::Prune);
                assert!(is_of_prune || kind == "outcomes", "{name}: {error}");
                assert!(error.to_string().contains(name), "{name}: {error}");
            }
        }
        // It was the cable.
        assert!(findings(&world).findings.is_empty(), "{name}");
        for (run, source) in &backups {
            world.assert_is(*run, source);
        }
        seen.insert((kind, found.is_empty()));
    }
    println!("{seen:?}");
}

/// A store that has lost a disk may list an object and say that there is none of that name.
#[test]
fn whatever_object_is_listed_but_not_delivered_is_not_missing_and_not_given_up() {
    let (pristine, backups) = world_of_all(Suite::None);
    let names = objects(&pristine);
    let mut refused = 0;
    for (path, _) in &names {
        let name = path.as_str();
        if !name.starts_with(&pristine.log.prefix()) || name.contains("/runs/") {
            continue;
        }
        let world = copy(&pristine, &names);
        let sick = sick(&world, path, Fault::NotFound);
        let before = bytes_of(&world);
        let found = check(&sick.repo, &sick.log, all()).unwrap().findings;
        let is_missing = |it: &Finding| it.object.contains(name) && it.problem.contains("missing");
        assert!(!found.iter().any(is_missing), "{name}: {found:?}");
        match repair(&sick.repo, &sick.log, &all(), &mut |_| true, &run_options()) {
            Ok(plan) => assert!(plan.is_empty() && found.is_empty(), "{name}: {plan:?} {found:?}"),
            Err(error) => {
                assert!(error.to_string().contains(name), "{name}: {error}");
                assert!(error.to_string().contains("does not deliver it"), "{name}: {error}");
                refused += 1;
            }
        }
        assert!(bytes_of(&world) == before, "{name}: nothing is given up");
        assert!(findings(&world).findings.is_empty(), "{name}");
        backups.iter().for_each(|(run, source)| world.assert_is(*run, source));
    }
    assert!(refused > 5, "{refused}");
}
