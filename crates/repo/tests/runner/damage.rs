use std::{collections::BTreeSet, sync::Arc, time::Duration};

use holdfast_pipe::{Compression, Suite};
use holdfast_repo::{
    Damage, LogName, PackId, Password, Repo, RepoError, Role, RunNo,
    data::{
        reader::Backup,
        writer::{BackupWriter, Foundation, WriterOptions},
    },
    format::{
        item::{ItemMap, ItemPath},
        refs::BackupRefs,
    },
    keys::{KdfParams, NewSlot},
    log::{history::History, outcome::OutcomeType},
    ops::{
        check::{CheckOptions, Severity, check},
        expire::{ExpireError, ExpirePlan, ExpireRequest, Rules, expire, plan_expire},
        keys::{NewKey, add},
        prune::{PruneOptions, prune},
        retention::{Reason, RetentionPolicy},
    },
    store::{
        ObjectPath, Store,
        faulty::{FaultyStore, Op},
        mem::{ManualClock, MemStore},
        read_all,
    },
};

use crate::{tamper::back_up, world::*};

pub fn objects(world: &World) -> Vec<(ObjectPath, u64)> {
    let mut objects = Vec::new();
    world
        .store
        .list("sources/", &mut |info| {
            objects.push((info.path, info.size_bytes));
            true
        })
        .unwrap();
    objects
}

/// Two backups with every kind of chunk: inline entries, full leaves, overlays, shared item chunks.
pub fn world_of_two(suite: Suite) -> (World, Vec<Source>) {
    let world = World::new(suite);
    let mut random = Random::new(7);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 5_000 * 1024));
    source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
    let first = source.clone();
    world.backup(&source, small_packs());
    for page in [5, 700, 4_500] {
        source.get_mut("big").unwrap().change(&mut random, page);
    }
    world.backup(&source, small_packs());
    (world, vec![first, source])
}

#[test]
fn a_whole_repository_has_no_findings() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (world, sources) = world_of_two(suite);
        let report = world.check_all();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!((report.backups, report.items_walked), (2, 4));
        assert_eq!(report.packs, report.packs_read);
        for (run, source) in (1..).zip(&sources) {
            world.assert_is(RunNo(run), source);
        }
    }
}

/// Restores everything in a backup and returns whether that failed. Wrong bytes fail the test.
fn restore_fails(world: &World, run: RunNo, source: &Source) -> bool {
    let open = || -> Result<(), RepoError> {
        let history = History::salvage(&world.repo, &world.log, &mut |_, _| {})?;
        if !history.stands(run) {
            return Err(RepoError::malformed("outcome", "does not stand"));
        }
        let backup = Backup::open(&world.repo, &history, run)?;
        for item in backup.items() {
            let item = item?;
            let bytes = read_whole(&backup, &item)?;
            assert!(bytes == source[&item.path.to_string()].bytes, "{} was restored wrongly", item.path);
        }
        Ok(())
    };
    open().is_err()
}

#[test]
fn damage_of_any_object_is_found_and_named_and_never_restored() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (pristine, sources) = world_of_two(suite);
        let names = objects(&pristine);
        let mut random = Random::new(11);
        for (path, size) in &names {
            let name = path.as_str();
            // Leases only show that a run is alive.
            if name.contains("/runs/") {
                continue;
            }
            for damage in 0..6 {
                let world = copy(&pristine, &names);
                let at = random.below(*size) as usize;
                let done = world.store.damage(path, |bytes| match damage {
                    0 => bytes.truncate(at),
                    1 => bytes.clear(),
                    2 => bytes.extend_from_slice(b"more"),
                    _ => bytes[at] ^= 1 << (at % 8),
                });
                assert!(done);
                let report = world.check_all();
                assert!(!report.findings.is_empty(), "damage {damage} at {at} of {name} was not found");
                let failed: Vec<bool> = (1..)
                    .zip(&sources)
                    .map(|(run, source)| restore_fails(&world, RunNo(run), source))
                    .collect();
                for (run, failed) in (1..).zip(failed.clone()) {
                    let named = report.findings.iter().any(|finding| {
                        finding.severity == Severity::Lost
                            && (finding.backups.contains(&RunNo(run)) || finding.backups.is_empty())
                    });
                    assert!(!failed || named, "{name} {damage} at {at} {run}: {:?}", report.findings);
                }
                let kind = name.split('/').nth(3).unwrap();
                if kind == "outcomes" {
                    let own = |run: usize| name.ends_with(&format!("{run:010}"));
                    assert_eq!(failed, [own(1), own(2)], "{name} {damage} at {at}");
                }
                assert!(
                    report.findings.iter().any(|finding| finding.object.contains(kind)),
                    "{name}: {:?}",
                    report.findings
                );
            }
            let world = copy(&pristine, &names);
            world.store.delete(std::slice::from_ref(path)).unwrap();
            if !name.contains("/index/") {
                let report = world.check_all();
                assert!(
                    report.findings.iter().any(|finding| finding.object == name),
                    "{name} is gone: {report:?}"
                );
            }
        }
    }
}

/// Another store with the same objects, an hour later, so that all leases have expired.
pub fn copy(world: &World, names: &[(ObjectPath, u64)]) -> World {
    let clock = ManualClock::default();
    let store = MemStore::with_clock(clock.clone());
    let mut everything: Vec<_> = names.iter().map(|(path, _)| path.clone()).collect();
    for prefix in ["", "keys/"] {
        world
            .store
            .list(prefix, &mut |info| {
                let ours = !info.path.as_str().starts_with("sources/") && !everything.contains(&info.path);
                everything.extend(ours.then_some(info.path));
                true
            })
            .unwrap();
    }
    for path in everything {
        let bytes = read_all(&world.store, &path, 1 << 30).unwrap();
        store.create_if_absent(&path, &bytes).unwrap();
    }
    clock.advance(Duration::from_secs(3600));
    let repo = Arc::new(open_repo(Arc::new(store.clone()), world.suite));
    World { repo, store, suite: world.suite, log: world.log.clone() }
}

#[test]
fn a_missing_index_costs_nothing_but_reads() {
    let (world, sources) = world_of_two(Suite::X25519Aes256Gcm);
    let index: Vec<_> = objects(&world)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.as_str().contains("/index/"))
        .collect();
    world.store.delete(&index).unwrap();
    for (run, source) in (1..).zip(&sources) {
        world.assert_is(RunNo(run), source);
    }
    let report = world.check_all();
    assert!(!report.findings.is_empty());
    assert!(report.findings.iter().all(|finding| finding.severity == Severity::Repairable));
    let (run, totals) = world.backup(&sources[1], small_packs());
    assert_eq!(totals.bytes_new, 0);
    world.assert_is(run, &sources[1]);
}

#[test]
fn a_backup_heals_what_its_base_has_lost() {
    let (world, sources) = world_of_two(Suite::None);
    let packs: Vec<_> = objects(&world)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.as_str().contains("/packs/"))
        .collect();
    for lost in 0..packs.len() {
        let (world, sources) = (copy(&world, &objects(&world)), &sources);
        world.store.delete(&packs[lost..=lost]).unwrap();
        let (run, _) = world.try_backup(small_packs(), |writer| give_all(writer, &sources[1], 2)).unwrap();
        world.assert_is(run, &sources[1]);
    }
}

/// Deleting the newest outcome leaves no gap in the numbers.
/// The data stored by its run reveal the loss, until another run begins.
#[test]
fn that_the_newest_outcome_is_gone_is_found() {
    let clock = ManualClock::default();
    let store = MemStore::with_clock(clock.clone());
    let world = World::over(store, Suite::None);
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut Random::new(3), 4096, 100 * 4096));
    world.backup(&source, small_packs());
    let found = || {
        let findings = world.check_all().findings;
        findings.into_iter().map(|finding| (finding.severity, finding.object)).collect::<Vec<_>>()
    };
    let lost = |run| vec![(Severity::Lost, world.log.outcome(RunNo(run)).to_string())];

    let running = world.begin();
    assert_eq!(found(), [], "a run that lives");
    running.write_backup_refs(&BackupRefs::default()).unwrap();
    assert_eq!(found(), [], "and is about to end");
    clock.advance(Duration::from_secs(3600));
    assert_eq!(found(), lost(2), "or will not");
    running.abandon("test").unwrap();
    assert_eq!(found(), []);

    world.backup(&source, small_packs());
    world.store.delete(&[world.log.outcome(RunNo(3))]).unwrap();
    assert_eq!(found(), [], "it may be about to end");
    clock.advance(Duration::from_secs(3600));
    assert_eq!(found(), lost(3));
    world.store.delete(&[world.log.outcome(RunNo(2))]).unwrap();
    assert_eq!(found(), [lost(2), lost(3)].concat(), "two of them: the earlier one for certain");
    assert!(world.check_all().stops_runs);
}

#[test]
fn a_pack_that_is_gone_is_damage_wherever_it_is_missed() {
    let (world, _) = world_of_two(Suite::None);
    let all = objects(&world);
    for (path, _) in all.iter().filter(|(path, _)| path.as_str().contains("/packs/")) {
        let world = copy(&world, &all);
        let read = |backup: &Backup| {
            backup.items().try_for_each(|item| {
                backup.read_file(&item?, &mut |_| Ok::<_, RepoError>(()))?;
                Ok::<_, RepoError>(())
            })
        };
        let before = world.open(RunNo(1)).unwrap();
        world.store.delete(std::slice::from_ref(path)).unwrap();
        for error in [world.open(RunNo(1)).and_then(|backup| read(&backup)), read(&before)]
            .into_iter()
            .filter_map(Result::err)
        {
            let is_it = matches!(&error, RepoError::Damaged { damage: Damage::Missing, object } if object == path.as_str());
            assert!(is_it, "{error}");
        }
    }
}

/// Packs are sealed to the public read key, which every writer has: a writer who can also replace objects
/// puts packs of his own in place of an earlier backup's, with the same shape and internally consistent.
#[test]
fn packs_that_another_writer_has_put_in_the_place_of_ours_are_not_believed() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let world = World::new(suite);
        let forger = copy(&world, &[]);
        let options = || WriterOptions { compression: Compression::None, ..small_packs() };
        for (world, seed) in [(&world, 1), (&forger, 2)] {
            let mut random = Random::new(seed);
            let mut source = Source::new();
            source.insert("big".into(), SourceFile::random(&mut random, 1024, 5_000 * 1024));
            source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
            world.backup_with(options(), |writer| give_all(writer, &source, 1));
        }
        let mut replaced = 0;
        for (path, _) in objects(&forger).iter().filter(|(path, _)| path.as_str().contains("/packs/")) {
            let forged = read_all(&forger.store, path, 1 << 30).unwrap();
            replaced += usize::from(world.store.damage(path, |bytes| *bytes = forged));
        }
        assert!(replaced > 1);
        let error = world.open(RunNo(1)).err().expect("the forged packs were believed");
        assert!(matches!(error, RepoError::Damaged { damage: Damage::NotAsRecorded, .. }), "{error}");
        assert!(
            world
                .check_all()
                .findings
                .iter()
                .any(|finding| { finding.severity == Severity::Lost && finding.backups.contains(&RunNo(1)) })
        );
    }
}

#[test]
fn every_reference_to_leaves_and_items_says_what_must_be_there() {
    let (world, _) = world_of_two(Suite::X25519Aes256Gcm);
    let backup = world.open(RunNo(2)).unwrap();
    let mut item = backup.find(&ItemPath::new("big").unwrap()).unwrap().unwrap();
    backup.leaf(&item, 0).unwrap();
    let ItemMap::Leaves(leaves) = &mut item.map else { panic!("{item:?}") };
    leaves[0].hash.0[3] ^= 1;
    let mut root = backup.roots()[0].clone();
    backup.items_of(&root).unwrap();
    root.hash.0[3] ^= 1;
    // A new handle, which has no verified data in memory, reports the same.
    for backup in [backup, world.open(RunNo(2)).unwrap()] {
        let error = backup.leaf(&item, 0).unwrap_err();
        assert!(matches!(error, RepoError::Damaged { damage: Damage::NotAsRecorded, .. }), "{error}");
    }
    let error = world.open(RunNo(2)).unwrap().items_of(&root).unwrap_err();
    assert!(matches!(error, RepoError::Damaged { damage: Damage::NotAsRecorded, .. }), "{error}");
}

fn expire_all(world: &World, runs: Vec<RunNo>) {
    expire(&world.repo, &world.log, &ExpireRequest::Exactly(runs), &run_options()).unwrap();
}

/// A prune deletes the report of a backup that was dropped before a check began, while the check reads it.
/// The report of a backup that is still there may not be gone.
#[test]
fn a_report_is_missed_only_as_long_as_its_backup_is_there() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut source = Source::new();
    source.insert("small".into(), SourceFile::random(&mut Random::new(7), 16_384, 30_000));
    let backups = [back_up(&world, &source), back_up(&world, &source)];
    expire_all(&world, vec![backups[0]]);
    let memory = world.store.clone();
    let deleting = FaultyStore::new(Arc::new(world.store.clone()), move |call| {
        if call.op == Op::Read && call.path.contains("/reports/") {
            memory.delete(&[ObjectPath::new(call.path).unwrap()]).unwrap();
        }
        None
    });
    let repo = Arc::new(open_repo(Arc::new(deleting), world.suite));
    let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
    let report = check(&repo, &world.log, options).unwrap();
    let missed: Vec<_> = report.findings.iter().map(|finding| finding.object.clone()).collect();
    assert_eq!(missed, [world.log.report(backups[1]).to_string()], "{:#?}", report.findings);
    assert!(!objects(&world).iter().any(|(path, _)| path.to_string().contains("/reports/")));
}

/// Damage within a pack is not noticed by a backup, which shares the pack with its base.
/// A backup without a base does not share it, and backups based on that one are whole.
#[test]
fn a_backup_without_a_base_shares_no_damage() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (world, sources) = world_of_two(suite);
        let source = &sources[1];
        let damaged = PackId { run: RunNo(1), part: 0 };
        assert!(world.store.damage(&world.log.pack(damaged), |bytes| bytes[500] ^= 1));
        let (heir, _) = world.backup(source, small_packs());
        assert!(restore_fails(&world, heir, source), "otherwise there is nothing to be shared");
        let give = |writer: &BackupWriter| give_all(writer, source, 2);
        let (full, totals) = world.try_backup_on(Foundation::none, small_packs(), give).unwrap();
        assert_eq!((totals.bytes_reused, totals.bytes_adopted), (0, 0));
        world.assert_is(full, source);
        let refs = world.history().backup_refs(&world.repo, full).unwrap();
        assert!(refs.packs.iter().all(|pack| pack.pack.run == full), "it needs what it stored, and no more");
        let named: BTreeSet<RunNo> =
            world.check_all().findings.iter().flat_map(|finding| finding.backups.clone()).collect();
        assert_eq!(named, BTreeSet::from([RunNo(1), RunNo(2), heir]));
        expire_all(&world, named.into_iter().collect());
        let (next, totals) = world.backup(source, small_packs());
        assert_eq!(totals.bytes_new, 0, "it is the base of the next");
        world.assert_is(next, source);
        let report = world.check_all();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

/// Two backups that share no data.
fn world_of_two_whole(suite: Suite) -> World {
    let world = World::over(MemStore::with_clock(ManualClock::default()), suite);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut Random::new(5), 1024, 5_000 * 1024));
    for _ in 0..2 {
        world.try_backup_on(Foundation::none, small_packs(), |writer| give_all(writer, &source, 1)).unwrap();
    }
    world
}

/// Rules by which only the newest backup would be kept.
fn keep_last() -> ExpireRequest {
    let policy = RetentionPolicy { last: 1, ..RetentionPolicy::default() };
    ExpireRequest::ByRules(Rules::by_age(policy, jiff::tz::TimeZone::UTC))
}

fn planned(world: &World, repo: &Repo) -> ExpirePlan {
    plan_expire(repo, &world.history(), &keep_last(), repo.now().unwrap()).unwrap()
}

/// A backup is not good merely because its manifest says so; a keeper, who cannot read
/// manifests, knows the other facts.
#[test]
fn rules_drop_no_backup_that_is_whole_for_one_that_has_lost_something() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let pristine = world_of_two_whole(suite);
        if suite != Suite::None {
            let password = Password::new("keeper".to_owned()).unwrap();
            let new = NewKey { role: Role::Keeper, sources: Vec::new(), label: String::new() };
            let slot = NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM };
            add(&pristine.repo, &new, slot).unwrap();
        }
        let all = objects(&pristine);
        let pack = |run| pristine.log.pack(PackId { run: RunNo(run), part: 0 });
        let assert_kept = |world: &World, case: &str, dropped: &[RunNo]| {
            let mut repos = vec![Arc::clone(&world.repo)];
            if suite != Suite::None {
                let password = Password::new("keeper".to_owned()).unwrap();
                repos.push(Arc::new(Repo::open(Arc::new(world.store.clone()), Some(&password)).unwrap()));
            }
            for repo in repos {
                let plan = planned(world, &repo);
                let role = repo.keys().role();
                assert_eq!(plan.dropped, dropped, "{case}, {role}");
                let is_kept_as_good = plan.kept.iter().any(|kept| kept.reasons == [Reason::LastGood]);
                assert_eq!(is_kept_as_good, dropped.is_empty(), "{case}, {role}");
            }
        };
        // Which requests by name are refused: to drop the first, the second, or both.
        let assert_refused = |world: &World, case: &str, refused: [bool; 3]| {
            let named = [vec![RunNo(1)], vec![RunNo(2)], vec![RunNo(2), RunNo(1)]];
            for (runs, refused) in named.into_iter().zip(refused) {
                let (history, now) = (world.history(), world.repo.now().unwrap());
                let named = plan_expire(&world.repo, &history, &ExpireRequest::Named(runs.clone()), now);
                let is_refused = matches!(named, Err(ExpireError::LastGood { .. }));
                assert_eq!((named.is_err(), is_refused), (refused, refused), "{case}: {runs:?}");
                let all_the_same = ExpireRequest::Exactly(runs.clone());
                let dropped = plan_expire(&world.repo, &history, &all_the_same, now).unwrap().dropped;
                assert_eq!(dropped.len(), runs.len(), "{case}");
            }
        };
        let first = [RunNo(1)];
        assert_kept(&copy(&pristine, &all), "whole", &first);
        assert_refused(&copy(&pristine, &all), "whole", [false, false, true]);
        let world = copy(&pristine, &all);
        world.store.delete(&[pack(2)]).unwrap();
        assert_kept(&world, "a pack is missing", &[]);
        assert_refused(&world, "a pack is missing", [true, false, true]);
        world.store.delete(&[pack(1)]).unwrap();
        assert_kept(&world, "none is whole", &first);
        assert_refused(&world, "none is whole", [false, false, true]);
        let world = copy(&pristine, &all);
        world.store.damage(&pack(2), |bytes| bytes.truncate(bytes.len() - 1));
        assert_kept(&world, "a pack is cut", &[]);
        let world = copy(&pristine, &all);
        world.store.delete(&[world.log.refs(RunNo(2))]).unwrap();
        assert_kept(&world, "what it needs is not known", &[]);
        let world = copy(&pristine, &all);
        world.store.damage(&pack(2), |bytes| bytes[500] ^= 1);
        assert_kept(&world, "nobody has seen it", &first);
        assert!(!world.check_all().findings.is_empty());
        assert_kept(&world, "a check has", &[]);
        expire(&world.repo, &world.log, &keep_last(), &run_options()).unwrap();
        assert!(world.history().stands(RunNo(1)));
    }
}

/// A damaged outcome stops all runs of its log, and so does a damaged record of a prune, except for an
/// expiry. The error names the object; backups of other sources are not affected.
#[test]
fn a_history_that_cannot_be_continued_is_called_that() {
    let (world, sources) = world_of_two(Suite::X25519Aes256Gcm);
    expire_all(&world, vec![RunNo(1)]);
    let now =
        PruneOptions { grace: Duration::ZERO, resume_window: Duration::ZERO, ..PruneOptions::default() };
    let stray = world.begin();
    let writer = BackupWriter::new(&stray, &Foundation::none(stray.history()), small_packs()).unwrap();
    give_all(&writer, &sources[0], 1).unwrap();
    writer.finish(&stray).unwrap();
    stray.abandon("test").unwrap();
    prune(&world.repo, &world.log, &now, None, &run_options()).unwrap();
    let pruned = world.history().outcomes().last().unwrap().clone();
    assert_eq!(pruned.outcome_type, OutcomeType::Prune);
    let all = objects(&world);
    for object in [world.log.refs(pruned.run), world.log.outcome(pruned.run), world.log.outcome(RunNo(3))] {
        let world = copy(&world, &all);
        world.store.damage(&object, |bytes| bytes[140] ^= 1);
        let is_it = |error: &dyn std::error::Error| {
            let text = error.to_string();
            assert!(text.contains("the history of db1/physical cannot be continued"), "{text}");
            assert!(text.contains(object.as_str()), "{text}");
        };
        let backup = world.try_backup(small_packs(), |writer| give_all(writer, &sources[1], 2));
        is_it(&*backup.unwrap_err());
        is_it(&prune(&world.repo, &world.log, &now, None, &run_options()).unwrap_err());
        let request = ExpireRequest::Exactly(vec![RunNo(2)]);
        let expired = expire(&world.repo, &world.log, &request, &run_options());
        assert_eq!(expired.is_ok(), object == world.log.refs(pruned.run), "{object}");
        expired.err().iter().for_each(|error| is_it(error));
        assert!(world.check_all().stops_runs);
        let other = LogName { source: "db2".parse().unwrap(), ..world.log.clone() };
        let other = World { log: other, ..world };
        let (run, _) = other.backup(&sources[1], small_packs());
        other.assert_is(run, &sources[1]);
    }
    assert!(!world.check_all().stops_runs);
}

#[test]
fn a_finding_names_the_files() {
    let (world, _) = world_of_two(Suite::None);
    let (path, _) = objects(&world).into_iter().find(|(path, _)| path.as_str().contains("/packs/")).unwrap();
    world.store.damage(&path, |bytes| bytes[500] ^= 1);
    let report = world.check_all();
    let finding = &report.findings[0];
    assert_eq!((finding.severity, finding.backups.len()), (Severity::Lost, 2));
    assert_eq!(finding.object, format!("{path}, chunk 0"));
    assert!(finding.files.iter().any(|file| file.to_string() == "big"), "{finding:?}");
    // A pack that was found damaged is part of every sample.
    let sample = CheckOptions { read_data: Some(0.0), ..CheckOptions::default() };
    assert_eq!(check(&world.repo, &world.log, sample).unwrap().packs_read, 1);

    // Each file counts once, no matter how many of its pages are lost in how many backups.
    world.store.delete(std::slice::from_ref(&path)).unwrap();
    let of_pack = |files_named| {
        let options = CheckOptions { read_data: Some(1.0), files_named, ..CheckOptions::default() };
        let mut findings = check(&world.repo, &world.log, options).unwrap().findings;
        let at = findings.iter().position(|finding| finding.object == path.as_str()).unwrap();
        findings.swap_remove(at)
    };
    let all = of_pack(1_000);
    assert_eq!((all.files.len(), all.files_more), (1, 0), "{all:?}");
    let some = of_pack(0);
    assert_eq!((some.files.len(), some.files_more), (0, 1), "{some:?}");
}
