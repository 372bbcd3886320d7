//! Damage and repair: everything that can still be restored is restored, and dropped backups are named.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::bounded;
use jiff::tz::TimeZone;

use holdfast_pipe::Suite;
use holdfast_repo::{
    Folder, LogName, Repo, RepoError, RunNo,
    data::writer::{ChunkRewriter, WriterOptions},
    log::{
        history::History,
        outcome::OutcomeType,
        run::{FinishError, RunOptions},
    },
    ops::{
        check::{CheckOptions, CheckReport, Severity, check},
        expire::{ExpireError, ExpireRequest, Rules, expire},
        hold::{HoldTerms, hold},
        prune::{PruneOptions, prune},
        repair::{RepairError, RepairPlan, plan_repair, repair},
        retention::RetentionPolicy,
    },
    store::{
        ObjectPath, Store,
        faulty::{Call, Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
        read_all,
    },
};

use crate::{
    damage::{copy, objects},
    world::*,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

pub fn all() -> CheckOptions {
    CheckOptions { read_data: Some(1.0), threads: 1, ..CheckOptions::default() }
}

pub fn findings(world: &World) -> CheckReport {
    check(&world.repo, &world.log, all()).unwrap()
}

fn mend(world: &World) -> RepairPlan {
    repair(&world.repo, &world.log, &all(), &mut |_| true, &run_options()).unwrap()
}

/// A history with everything: backups, an expiry, a hold, a prune that moved chunks and declared packs dead,
/// which have since been deleted, and later backups. Returns the source of each backup as well.
pub fn world_of_all(suite: Suite) -> (World, Vec<(RunNo, Source)>) {
    let clock = ManualClock::default();
    let world = World::over(MemStore::with_clock(clock.clone()), suite);
    let mut random = Random::new(5);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 2_600 * 1024));
    source.insert("other".into(), SourceFile::random(&mut random, 4096, 300 * 4096));
    source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
    let mut backups = Vec::new();
    let mut take = |source: &Source| {
        backups.push((world.backup(source, small_packs()).0, source.clone()));
    };
    take(&source);
    for page in 0..2_048 {
        source.get_mut("big").unwrap().change(&mut random, page);
    }
    take(&source);
    source.get_mut("other").unwrap().change(&mut random, 7);
    take(&source);
    let dropped = backups.remove(0).0;
    expire(&world.repo, &world.log, &ExpireRequest::Exactly(vec![dropped]), &run_options()).unwrap();
    let terms = HoldTerms { until: None, reason: "test".into() };
    hold(&world.repo, &world.log, &[backups[1].0], &terms, &run_options()).unwrap();
    let now =
        PruneOptions { grace: Duration::ZERO, resume_window: Duration::ZERO, ..PruneOptions::default() };
    let prune_now = || {
        let options = WriterOptions { pack_target_bytes: 1 << 20, ..WriterOptions::default() };
        let mut rewriter = ChunkRewriter::open(&world.repo, &world.history(), options).unwrap();
        prune(&world.repo, &world.log, &now, Some(&mut rewriter), &run_options()).unwrap()
    };
    let pruned = prune_now();
    assert!(!pruned.declared.rewrite.is_empty(), "otherwise nothing moves");
    clock.advance(DAY);
    assert!(prune_now().swept.packs > 0);
    source.get_mut("small").unwrap().change(&mut random, 1);
    let (run, _) = world.backup(&source, small_packs());
    backups.push((run, source.clone()));
    clock.advance(DAY);
    let whole = copy(&world, &objects(&world));
    assert!(findings(&whole).findings.is_empty());
    (whole, backups)
}

/// Every listed backup is intact, and those no longer listed are reported as dropped, with what was lost.
fn assert_told(world: &World, backups: &[(RunNo, Source)], plan: &RepairPlan, what: &str) {
    let history = world.history();
    for (run, source) in backups {
        if history.stands(*run) {
            world.assert_is(*run, source);
            continue;
        }
        let dropped = plan.dropped.iter().find(|it| it.run == *run);
        let is_lost = plan.outcomes.iter().any(|it| it.object == world.log.outcome(*run).to_string());
        assert!(is_lost || dropped.is_some(), "{what}: {run} is gone, and nobody said so: {plan:?}");
        if let Some(dropped) = dropped {
            assert!(!dropped.findings.is_empty(), "{what}: {run}");
        }
    }
}

/// Objects and their bytes, without leases and records of checks.
pub fn bytes_of(world: &World) -> Vec<(ObjectPath, Vec<u8>)> {
    let names = objects(world).into_iter().map(|(path, _)| path);
    let kept = names.filter(|path| !path.as_str().contains("/checks/"));
    kept.map(|path| (path.clone(), read_all(&world.store, &path, 1 << 30).unwrap())).collect()
}

/// The next backup reuses nothing that is lost, and the one after it is whole, too.
fn assert_goes_on(world: &World, backups: &[(RunNo, Source)], what: &str) {
    let source = &backups.last().unwrap().1;
    let (run, _) = world
        .try_backup(small_packs(), |writer| give_all(writer, source, 1))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    world.assert_is(run, source);
    let now =
        PruneOptions { grace: Duration::ZERO, resume_window: Duration::ZERO, ..PruneOptions::default() };
    for _ in 0..2 {
        prune(&world.repo, &world.log, &now, None, &run_options())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    world.assert_is(run, source);
    let left = findings(world).findings;
    assert!(left.is_empty(), "{what}: {left:?}");
}

/// Damage found by a check stays known: every later check reports it, the next backup is whole, and a repair
/// drops the backups affected.
#[test]
fn damage_that_was_found_is_not_built_upon() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let world = World::new(suite);
        let mut random = Random::new(4);
        let source = Source::from([("a".to_owned(), SourceFile::random(&mut random, 16_384, 3_000_000))]);
        let (first, _) = world.backup(&source, small_packs());
        let (second, _) = world.backup(&source, small_packs());
        let packs: Vec<ObjectPath> = objects(&world)
            .into_iter()
            .map(|(path, _)| path)
            .filter(|it| it.as_str().contains("/packs/"))
            .collect();
        world.store.damage(&packs[0], |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        let quick = || check(&world.repo, &world.log, CheckOptions::default()).unwrap();
        let harmed = |report: &CheckReport| -> BTreeSet<RunNo> {
            let lost = report.findings.iter().filter(|finding| finding.severity == Severity::Lost);
            lost.flat_map(|finding| finding.backups.iter().copied()).collect()
        };
        // Nothing has read it yet.
        assert!(quick().findings.is_empty());
        assert_eq!(harmed(&findings(&world)), BTreeSet::from([first, second]));
        assert_eq!(harmed(&quick()), BTreeSet::from([first, second]));
        let (third, stored) = world.backup(&source, small_packs());
        assert!(stored.bytes_new > 0, "{stored:?}");
        world.assert_is(third, &source);
        assert_eq!(harmed(&quick()), BTreeSet::from([first, second]));
        let plan =
            plan_repair(&world.repo, &world.log, &CheckOptions::default(), jiff::Timestamp::now()).unwrap();
        let dropped: BTreeSet<RunNo> = plan.dropped.iter().map(|lost| lost.run).collect();
        assert_eq!(dropped, BTreeSet::from([first, second]));
        // An object that was put back is good again.
        world.store.damage(&packs[0], |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        assert!(quick().findings.is_empty());
        world.assert_is(first, &source);
    }
}

#[test]
fn a_repository_that_is_whole_is_left_alone() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (world, _) = world_of_all(suite);
        let before = bytes_of(&world);
        let plan = mend(&world);
        assert!(plan.is_empty() && plan.left.is_empty(), "{plan:?}");
        assert!(bytes_of(&world) == before);
    }
}

#[test]
fn whatever_object_is_lost_or_damaged_all_that_can_be_restored_is() {
    let (pristine, backups) = world_of_all(Suite::X25519Aes256Gcm);
    let names = objects(&pristine);
    let held = backups[1].0;
    let mut outcomes = BTreeSet::new();
    for (number, (path, size)) in (0..).zip(&names) {
        let name = path.as_str();
        if name.contains("/runs/") || name.contains("/checks/") {
            continue;
        }
        for damage in 0..2 {
            // Packs take long and are much alike, so each is damaged in only one of the two ways.
            if name.contains("/packs/") && damage != number % 2 {
                continue;
            }
            let what = format!("{} {name}", ["lost", "damaged"][damage]);
            let world = copy(&pristine, &names);
            match damage {
                0 => world.store.delete(std::slice::from_ref(path)).unwrap(),
                _ => assert!(world.store.damage(path, |bytes| bytes[*size as usize / 2] ^= 8)),
            }
            let found = findings(&world);
            if found.findings.is_empty() {
                // A run that nothing can be based on: the loss of its outcome goes unnoticed.
                assert!(name.contains("/outcomes/") || name.contains("/reports/"), "{what} was not found");
                continue;
            }
            let planned = plan_repair(&world.repo, &world.log, &all(), jiff::Timestamp::now()).unwrap();
            let plan = mend(&world);
            assert!(!plan.is_empty() || !plan.held.is_empty() || !plan.left.is_empty(), "{what}");
            assert_eq!(
                planned.dropped.iter().map(|it| it.run).collect::<Vec<_>>(),
                plan.dropped.iter().map(|it| it.run).collect::<Vec<_>>(),
                "{what}: what was shown is what was done"
            );
            let mut told = plan;
            if !told.held.is_empty() {
                // Held backups are never dropped: the owner is informed, and releases the hold.
                assert!(world.history().stands(held), "{what}");
                holdfast_repo::ops::hold::release(&world.repo, &world.log, &[held], &run_options()).unwrap();
                let mut more = mend(&world);
                told.dropped.append(&mut more.dropped);
            }
            let history = world.history();
            if history.uncertain_hold().is_some() {
                assert!(name.contains("/outcomes/"), "{what}");
                let any = [history.newest_backup().unwrap()];
                holdfast_repo::ops::hold::release(&world.repo, &world.log, &any, &run_options()).unwrap();
            }
            assert_told(&world, &backups, &told, &what);
            if name.contains("/packs/") {
                assert!(
                    told.dropped.iter().all(|it| it.findings.iter().any(|f| f.severity == Severity::Lost))
                );
            } else {
                let others = told.dropped.iter().filter(|it| backups.iter().any(|(run, _)| *run == it.run));
                assert_eq!(others.count(), 0, "{what}: of all that stood, only what was lost itself is gone");
            }
            if !name.contains("/packs/") && !name.contains("/outcomes/") {
                assert!(told.dropped.is_empty(), "{what}: nothing of a backup was lost: {:?}", told.dropped);
            }
            outcomes.insert(name.split('/').nth(3).unwrap().to_owned());
            // A chunk that is no longer needed, in a pack that is, is reported and kept.
            let left = findings(&world).findings;
            assert!(
                left.iter().all(|it| it.severity == Severity::Repairable && it.object.contains("/packs/")),
                "{what}: {left:?}"
            );
            if left.is_empty() {
                let before = bytes_of(&world);
                assert!(mend(&world).is_empty(), "{what}: once is enough");
                assert!(bytes_of(&world) == before, "{what}");
                assert_goes_on(&world, &backups, &what);
            }
        }
    }
    let seen: Vec<_> = outcomes.iter().map(String::as_str).collect();
    assert_eq!(seen, ["index", "outcomes", "packs", "refs"]);
}

/// Damages something of each kind: refs of a backup and of the prune, an index part, and an
/// outcome that can be spared.
fn damage_much(world: &World) {
    let history = world.history();
    let last = |wanted| {
        let of_type = history.outcomes().iter().rev().find(|outcome| outcome.outcome_type == wanted);
        of_type.unwrap().run
    };
    let backup = history.newest_backup().unwrap();
    let first = history.standing().next().unwrap().run;
    let prune = history.outcomes().iter().find(|outcome| outcome.outcome_type == OutcomeType::Prune).unwrap();
    let lost = [
        world.log.refs(backup),
        world.log.refs(prune.run),
        world.log.index(first, 0),
        world.log.outcome(last(OutcomeType::Hold)),
    ];
    world.store.delete(&lost[..2]).unwrap();
    for path in &lost[2..] {
        assert!(world.store.damage(path, |bytes| bytes[150] ^= 1));
    }
}

fn assert_mended(world: &World, backups: &[(RunNo, Source)], what: &str) {
    let history = world.history();
    for (run, source) in backups {
        assert!(history.stands(*run), "{what}: {run} is gone");
        world.assert_is(*run, source);
    }
    // Any of them may have been held by what is lost. Until somebody says what is, none is dropped.
    let left: Vec<_> = findings(world).findings.into_iter().map(|it| it.problem).collect();
    assert!(matches!(&left[..], [one] if one.contains("may have held")), "{what}: {left:?}");
    let policy = RetentionPolicy { last: 1, ..RetentionPolicy::default() };
    let by_rules = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
    let refused = expire(&world.repo, &world.log, &by_rules, &run_options());
    assert!(matches!(refused, Err(ExpireError::MayBeHeld { .. })), "{what}: {refused:?}");
}

fn through(world: &World, decide: impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static) -> Arc<Repo> {
    let store = FaultyStore::new(Arc::new(world.store.clone()), decide);
    Arc::new(open_repo(Arc::new(store), world.suite))
}

fn mend_as(repo: &Arc<Repo>, log: &LogName) -> Result<RepairPlan, RepairError> {
    // No process id: a client that dies in a test leaves its lease behind.
    let client = holdfast_repo::log::client::Client { host: "test".to_owned(), process: None };
    let options = CheckOptions { read_data: Some(0.0), threads: 1, ..CheckOptions::default() };
    repair(repo, log, &options, &mut |_| true, &RunOptions { client, ..run_options() })
}

/// The same world on an adjustable clock.
pub(crate) fn copy_with_clock(world: &World) -> (World, ManualClock) {
    let clock = ManualClock::default();
    let store = MemStore::with_clock(clock.clone());
    for prefix in ["", "keys/", "sources/"] {
        let mut names = Vec::new();
        world
            .store
            .list(prefix, &mut |info| {
                names.push(info.path);
                true
            })
            .unwrap();
        for path in names {
            let bytes = read_all(&world.store, &path, 1 << 30).unwrap();
            let _ = store.create_if_absent(&path, &bytes);
        }
    }
    clock.advance(DAY);
    let repo = Arc::new(open_repo(Arc::new(store.clone()), world.suite));
    (World { repo, store, suite: world.suite, log: world.log.clone() }, clock)
}

#[test]
fn a_repair_that_is_killed_at_any_point_has_done_no_harm_and_the_next_does_it_all() {
    let (damaged, backups) = world_of_all(Suite::None);
    damage_much(&damaged);
    let changes = AtomicU64::new(0);
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for nth in 1.. {
            let (world, clock) = copy_with_clock(&damaged);
            let seen = Arc::new(AtomicU64::new(0));
            let repo = through(&world, {
                let seen = Arc::clone(&seen);
                move |call| {
                    let counts = call.op.changes() && call.path.starts_with("sources/");
                    let is_it = counts && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth;
                    is_it.then_some(fault)
                }
            });
            let done = mend_as(&repo, &world.log);
            let is_over = seen.load(Ordering::SeqCst) < nth;
            changes.fetch_max(nth, Ordering::SeqCst);
            assert!(done.is_ok() || !is_over, "{fault:?} {nth}: {done:?}");
            clock.advance(Duration::from_secs(3600));
            let what = format!("{fault:?} at change {nth}");
            mend_as(&world.repo, &world.log).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_mended(&world, &backups, &what);
            if is_over {
                break;
            }
        }
    }
    assert!(changes.load(Ordering::SeqCst) > 6, "otherwise little was done");
}

#[test]
fn a_repair_that_freezes_and_wakes_after_another_undoes_nothing() {
    let (damaged, backups) = world_of_all(Suite::None);
    damage_much(&damaged);
    for nth in 1.. {
        let (world, clock) = copy_with_clock(&damaged);
        let (frozen, is_frozen) = bounded::<()>(0);
        let (wake, woken) = bounded::<()>(0);
        let seen = AtomicU64::new(0);
        let repo = through(&world, move |call| {
            let counts = call.op.changes() && call.path.starts_with("sources/");
            if counts && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth {
                let _ = frozen.send(());
                let _ = woken.recv();
            }
            None
        });
        let log = world.log.clone();
        let sleeper = thread::spawn(move || {
            let done = mend_as(&repo, &log);
            drop(repo);
            done
        });
        let froze = is_frozen.recv().is_ok();
        if froze {
            clock.advance(Duration::from_secs(3600));
            mend_as(&world.repo, &world.log).unwrap();
            assert_mended(&world, &backups, &format!("frozen at change {nth}, before it wakes"));
            let _ = wake.send(());
        }
        let done = sleeper.join().unwrap();
        assert!(froze || done.is_ok(), "{done:?}");
        assert_mended(&world, &backups, &format!("frozen at change {nth}"));
        if !froze {
            break;
        }
    }
}

/// The outcome of a run that another has ended is lost, along with the one after it, and a repair has closed
/// the gap; then the run resumes.
#[test]
fn who_wakes_in_the_place_of_a_lost_outcome_is_told_that_it_is_lost() {
    let clock = ManualClock::default();
    let world = World::over(MemStore::with_clock(clock.clone()), Suite::None);
    let mut random = Random::new(43);
    let source: Source = [("t".into(), SourceFile::random(&mut random, 16_384, 1 << 20))].into();
    world.backup(&source, small_packs());
    let other = copy_of_handle(&world);
    let has_woken = AtomicU64::new(0);
    let frozen = through(&world, move |call| {
        let is_end = call.op == Op::Create && call.path.contains("/outcomes/");
        if is_end && has_woken.fetch_add(1, Ordering::SeqCst) == 0 {
            clock.advance(Duration::from_secs(3600));
            let terms = HoldTerms { until: None, reason: "test".into() };
            hold(&other.repo, &other.log, &[RunNo(1)], &terms, &run_options()).unwrap();
            for run in [2, 3] {
                assert!(other.store.damage(&other.log.outcome(RunNo(run)), |bytes| bytes[150] ^= 1));
            }
            assert_eq!(mend(&other).outcomes.len(), 2);
            assert!(other.store.head(&other.log.outcome(RunNo(3))).is_err());
        }
        None
    });
    let frozen = World { repo: frozen, ..copy_of_handle(&world) };
    let ended = frozen.try_backup(small_packs(), |writer| give_all(writer, &source, 1));
    let error = ended.unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(FinishError::Lost { by: "repair", .. })), "{error}");
}

fn copy_of_handle(world: &World) -> World {
    let World { store, repo, log, suite } = world;
    World { store: store.clone(), repo: Arc::clone(repo), log: log.clone(), suite: *suite }
}

/// A look-up of one pack reads the whole index part that lists it.
#[test]
fn an_index_that_is_made_anew_has_small_parts() {
    let world = World::new(Suite::None);
    let mut random = Random::new(41);
    let source: Source = [("t".into(), SourceFile::random(&mut random, 16_384, 36 << 20))].into();
    let (run, _) = world.backup(&source, WriterOptions { pack_target_bytes: 64 << 10, ..small_packs() });
    let count = |prefix: String| {
        let mut count = 0_u32;
        let mut each = |_| {
            count += 1;
            true
        };
        world.store.list(&prefix, &mut each).unwrap();
        count
    };
    let packs = count(world.log.folder(Folder::Packs));
    assert!(packs > 32 && count(world.log.folder(Folder::Index)) == 1);
    world.store.delete(&[world.log.index(run, 0)]).unwrap();
    mend(&world);
    assert_eq!(count(world.log.folder(Folder::Index)), packs.div_ceil(32));
    assert!(findings(&world).findings.is_empty());
    world.assert_is(run, &source);
}

#[test]
fn what_somebody_has_signed_is_no_damage() {
    let (world, _) = world_of_all(Suite::X25519Aes256Gcm);
    let other = copy(&world, &objects(&world));
    let newest = world.history().newest_backup().unwrap();
    let next = world.history().next_run();
    for (world, reason) in [(&world, "one"), (&other, "two")] {
        let terms = HoldTerms { until: None, reason: reason.into() };
        hold(&world.repo, &world.log, &[newest], &terms, &run_options()).unwrap();
    }
    let terms = HoldTerms { until: None, reason: "three".into() };
    hold(&world.repo, &world.log, &[newest], &terms, &run_options()).unwrap();
    let path = world.log.outcome(next);
    let exchanged = read_all(&other.store, &path, 1 << 20).unwrap();
    assert!(world.store.damage(&path, |bytes| *bytes = exchanged));
    let before = bytes_of(&world);
    let error = repair(&world.repo, &world.log, &all(), &mut |_| true, &run_options()).unwrap_err();
    let is_it = matches!(&error, RepairError::Intact { object, .. } if *object == world.log.outcome(RunNo(next.0 + 1)).to_string());
    assert!(is_it, "{error}");
    assert!(bytes_of(&world) == before);
}

/// The directory of a pack contradicts its contents: the data are damaged where a prune whose record is lost
/// has moved them, and intact at their original place.
#[test]
fn nothing_is_moved_to_where_it_cannot_be_read() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut random = Random::new(5);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 2_600 * 1024));
    let (first, _) = world.backup(&source, small_packs());
    for page in 0..2_048 {
        source.get_mut("big").unwrap().change(&mut random, page);
    }
    let (second, _) = world.backup(&source, small_packs());
    expire(&world.repo, &world.log, &ExpireRequest::Exactly(vec![first]), &run_options()).unwrap();
    let now =
        PruneOptions { grace: Duration::ZERO, resume_window: Duration::ZERO, ..PruneOptions::default() };
    let options = WriterOptions { pack_target_bytes: 1 << 20, ..WriterOptions::default() };
    let mut rewriter = ChunkRewriter::open(&world.repo, &world.history(), options).unwrap();
    let pruned = prune(&world.repo, &world.log, &now, Some(&mut rewriter), &run_options()).unwrap();
    assert!(!pruned.declared.rewrite.is_empty(), "otherwise nothing moves");
    let prune_run = world.history().outcomes().last().unwrap().run;
    let mut harmed = 0;
    for (path, size) in objects(&world) {
        if path.as_str().contains(&format!("/packs/{:010}-", prune_run.0)) {
            assert!(world.store.damage(&path, |bytes| bytes[size as usize / 3] ^= 1));
            harmed += 1;
        }
    }
    assert!(harmed > 0);
    assert!(world.store.damage(&world.log.outcome(prune_run), |bytes| bytes[150] ^= 1));
    let options = CheckOptions { threads: 1, ..CheckOptions::default() };
    let plan = repair(&world.repo, &world.log, &options, &mut |_| true, &run_options()).unwrap();
    assert!(plan.dropped.is_empty(), "{:?}", plan.dropped);
    world.assert_is(second, &source);
    for _ in 0..2 {
        prune(&world.repo, &world.log, &now, None, &run_options()).unwrap();
    }
    world.assert_is(second, &source);
}

/// No matter when a concurrent run ends, a repair leaves an intact chain.
#[test]
fn a_run_that_ends_while_a_repair_begins_breaks_no_chain() {
    let pristine = World::new(Suite::None);
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut Random::new(3), 4096, 20 * 4096));
    let (first, _) = pristine.backup(&source, small_packs());
    pristine.backup(&source, small_packs());
    let names = objects(&pristine);
    let mut mended = 0;
    for nth in 1.. {
        let world = copy(&pristine, &names);
        world.store.delete(&[world.log.index(first, 0)]).unwrap();
        let beside = Mutex::new(Some(world.begin()));
        let seen = Arc::new(AtomicU64::new(0));
        let repo = through(&world, {
            let seen = Arc::clone(&seen);
            move |call| {
                let counts =
                    matches!(call.op, Op::List | Op::Read | Op::Head) && call.path.contains("/outcomes/");
                if counts && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth {
                    beside.lock().unwrap().take().unwrap().abandon("test").unwrap();
                }
                None
            }
        });
        let done = mend_as(&repo, &world.log);
        let is_over = seen.load(Ordering::SeqCst) < nth;
        drop(repo);
        mended += u32::from(done.is_ok());
        let log = &world.log;
        holdfast_repo::log::history::History::read(&world.repo, log)
            .unwrap_or_else(|error| panic!("ended at call {nth}: {error}; {done:?}"));
        if is_over {
            break;
        }
    }
    assert!(mended > 1);
}

/// When a repair has rebuilt the refs of many backups, its own refs are read once for all of
/// them, not by each reader.
#[test]
fn what_a_repair_made_anew_of_many_backups_is_read_once() {
    let (world, backups) = world_of_all(Suite::X25519Aes256Gcm);
    let refs: Vec<ObjectPath> = backups.iter().map(|(run, _)| world.log.refs(*run)).collect();
    world.store.delete(&refs).unwrap();
    assert_eq!(mend(&world).refs.len(), backups.len());
    let path = world.log.refs(world.history().outcomes().last().unwrap().run).to_string();
    let reads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reads);
    let store = FaultyStore::far_away(Arc::new(world.store.clone()), 16, move |call| {
        counted.fetch_add(u64::from(call.op == Op::Read && call.path == path), Ordering::SeqCst);
        None
    });
    let repo = open_repo(Arc::new(store), world.suite);
    let history = History::read(&repo, &world.log).unwrap();
    history.backup_refs(&repo, backups[0].0).unwrap();
    let once = reads.swap(0, Ordering::SeqCst);
    let mut seen = 0;
    history
        .all_backup_refs(&repo, |_, refs| {
            seen += usize::from(refs.is_ok());
            Ok::<_, RepoError>(())
        })
        .unwrap();
    assert!(once > 0 && backups.len() > 2);
    assert_eq!((seen, reads.load(Ordering::SeqCst)), (backups.len(), once));
}
