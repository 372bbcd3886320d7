use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    PackId, RunNo,
    data::writer::{BackupWriter, Foundation, WriterOptions},
    hooks::Hooks,
    log::{
        lease::LEASE,
        run::{BeginError, Run},
    },
    ops::{
        check::{CheckOptions, Finding},
        repair::repair,
    },
    store::{
        Store,
        faulty::{Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};

use crate::world::*;

pub(crate) const SUITES: [Suite; 2] = [Suite::None, Suite::X25519Aes256Gcm];

#[test]
fn what_an_unfinished_run_stored_is_not_stored_again() {
    for memory_bytes in [64 << 20, 200_000] {
        let world = World::new(Suite::X25519Aes256Gcm);
        let mut random = Random::new(1);
        let mut source = Source::new();
        source.insert("a".into(), SourceFile::random(&mut random, 4096, 5_000 * 4096));
        source.insert("b".into(), SourceFile::random(&mut random, 16_384, 300 * 16_384));
        let options = || WriterOptions { index_every: Duration::ZERO, memory_bytes, ..small_packs() };
        let run = world.begin();
        let writer = BackupWriter::new(&run, &Foundation::default(), options()).unwrap();
        give_all(&writer, &source, 1).unwrap();
        drop(writer);
        run.abandon("test").unwrap();
        let (run, totals) = world.backup(&source, options());
        let bytes = totals.bytes;
        assert!(totals.bytes_adopted > bytes * 3 / 4, "{totals:?}");
        assert_eq!(totals.bytes_adopted + totals.bytes_new, bytes);
        world.assert_is(run, &source);
        let (run, totals) = world.backup(&source, options());
        assert_eq!((totals.bytes_adopted, totals.bytes_new), (0, 0), "now it is the base's");
        world.assert_is(run, &source);
    }
}

/// No check covers leftovers of a dead run: they are read before they are taken up, and
/// damaged ones are stored again.
#[test]
fn what_is_damaged_of_an_unfinished_run_is_not_taken_up() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let world = World::new(suite);
        let mut random = Random::new(6);
        let mut source = Source::new();
        source.insert("a".into(), SourceFile::random(&mut random, 4096, 5_000 * 4096));
        let options = || WriterOptions { index_every: Duration::ZERO, ..small_packs() };
        let run = world.begin();
        let writer = BackupWriter::new(&run, &Foundation::default(), options()).unwrap();
        give_all(&writer, &source, 1).unwrap();
        drop(writer);
        let damaged = PackId { run: run.no(), part: 0 };
        run.abandon("test").unwrap();
        assert!(world.store.damage(&world.log.pack(damaged), |bytes| bytes[500] ^= 1));
        let mut unreadable = 0;
        let (run, totals) = world.backup_with(options(), |writer| {
            give_all(writer, &source, 2)?;
            unreadable = writer.meters().adopted_unreadable.units();
            Ok(())
        });
        assert_eq!(unreadable, 1);
        assert!(totals.bytes_adopted > totals.bytes / 2, "what is whole is taken up: {totals:?}");
        let refs = world.history().backup_refs(&world.repo, run).unwrap();
        let of_pack =
            refs.packs.iter().find(|pack| pack.pack == damaged).expect("its other chunks are whole");
        assert_eq!(of_pack.chunks[0].needed, 0);
        assert!(of_pack.chunks[1].needed > 0);
        world.assert_is(run, &source);
    }
}

/// Pages that must be stored again because the base's chunks are mostly dead, and that an unfinished run has
/// already stored again: they are adopted, and counted as adopted.
#[test]
fn what_an_unfinished_run_stored_again_is_not_stored_again() {
    let world = World::new(Suite::None);
    let mut random = Random::new(4);
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut random, 4096, 6_000 * 4096));
    let options =
        || WriterOptions { index_every: Duration::ZERO, max_rewrite_fraction: 1.0, ..small_packs() };
    world.backup(&source, options());
    for page in (0..6_000).filter(|page| page % 10 > 0) {
        source.get_mut("a").unwrap().change(&mut random, page);
    }
    let never = WriterOptions { max_rewrite_fraction: 0.0, ..options() };
    world.backup(&source, never);
    let run = world.begin();
    let foundation = Foundation { base: run.history().newest_backup(), ..Foundation::default() };
    let writer = BackupWriter::new(&run, &foundation, options()).unwrap();
    give_all(&writer, &source, 1).unwrap();
    assert!(writer.meters().rewritten.bytes() > 0);
    drop(writer);
    run.abandon("test").unwrap();
    let (run, totals) = world.backup(&source, options());
    assert!(totals.bytes_adopted > 0, "{totals:?}");
    assert_eq!(
        (totals.bytes_new, totals.bytes_adopted + totals.bytes_rewritten),
        (0, 600 * 4096),
        "{totals:?}"
    );
    world.assert_is(run, &source);
}

/// A host whose clock was ahead leaves a lease that would otherwise block its log until that time comes.
#[test]
fn a_dead_run_from_the_future_is_passed_over() {
    let is_refused_after = |back: Duration| {
        let clock = ManualClock::default();
        let world = World::over(MemStore::with_clock(clock.clone()), Suite::X25519Aes256Gcm);
        let _died = world.begin();
        clock.set_back(back);
        let next = Run::begin(&world.repo, &world.log, &run_options());
        matches!(next.map(drop), Err(BeginError::Active(_)))
    };
    assert!(is_refused_after(LEASE - Duration::from_secs(1)));
    assert!(!is_refused_after(LEASE));
    assert!(!is_refused_after(Duration::from_secs(5 * 365 * 86_400)));
}

#[test]
fn an_error_of_any_store_call_fails_the_backup_and_nothing_stands() {
    let mut random = Random::new(2);
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut random, 16_384, 400 * 16_384));
    let mut failures = 0;
    for seed in 0..20 {
        let world = World::new(Suite::None);
        let (first, _) = world.backup(&source, small_packs());
        let mut changed = source.clone();
        for page in 0..300 {
            changed.get_mut("a").unwrap().change(&mut random, page);
        }
        let faulty: Arc<dyn Store> =
            Arc::new(FaultyStore::random(Arc::new(world.store.clone()), seed, 20, vec![Fault::Error]));
        let Ok(repo) = holdfast_repo::Repo::open(faulty, None) else { continue };
        let faulty = world.with_repo(Arc::new(repo));
        let result = faulty.try_backup(small_packs(), |writer| give_all(writer, &changed, 2));
        match result {
            Ok((run, _)) => world.assert_is(run, &changed),
            Err(_) => {
                failures += 1;
                assert_eq!(world.history().newest_backup(), Some(first));
                world.assert_is(first, &source);
            }
        }
    }
    assert!(failures > 10, "the store hardly ever failed");
}

/// Files, and the same with most pages of one changed.
fn before_and_after(seed: u64) -> (Source, Source) {
    let mut random = Random::new(seed);
    let mut before = Source::new();
    before.insert("big".into(), SourceFile::random(&mut random, 1024, 6_000 * 1024));
    before.insert("small".into(), SourceFile::random(&mut random, 16_384, 100_000));
    let mut after = before.clone();
    for page in 1_000..5_000 {
        after.get_mut("big").unwrap().change(&mut random, page);
    }
    (before, after)
}

#[test]
fn a_death_at_any_change_of_the_store_leaves_a_repository_to_go_on_with() {
    let (before, after) = before_and_after(9);
    let options = || WriterOptions { index_every: Duration::ZERO, ..small_packs() };
    let mut deaths = 0;
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for n in 1.. {
            let clock = ManualClock::default();
            let world = World::over(MemStore::with_clock(clock.clone()), Suite::None);
            let (first, _) = world.backup(&before, options());
            let store =
                FaultyStore::scripted(Arc::new(world.store.clone()), n, fault, |call| call.op.changes());
            let dying = world.through(store);
            let died = dying.try_backup(options(), |writer| give_all(writer, &after, 2)).is_err();
            let history = world.history();
            world.assert_is(first, &before);
            if let Some(second) = history.newest_backup().filter(|newest| *newest != first) {
                world.assert_is(second, &after);
            }
            clock.advance(Duration::from_secs(16 * 60));
            let (run, _) = world.backup(&after, options());
            world.assert_is(run, &after);
            let report = world.check_all();
            assert!(report.findings.is_empty(), "{fault:?} at {n}: {:?}", report.findings);
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 10, "{deaths}");
}

/// What a store that lies keeps of a write that it confirms: nothing, or the first half.
pub(crate) const LIES: [Fault; 2] = [Fault::LostWrite, Fault::TornWrite];

/// A store that lies about its n-th change, and whether it has come to that.
pub(crate) fn lying(store: &MemStore, n: u64, fault: Fault) -> (FaultyStore, Arc<AtomicBool>) {
    let has_lied = Arc::new(AtomicBool::new(false));
    let (seen, lied) = (AtomicU64::new(0), Arc::clone(&has_lied));
    let store = FaultyStore::new(Arc::new(store.clone()), move |call| {
        let is_it = call.op.changes() && seen.fetch_add(1, Ordering::SeqCst) + 1 == n;
        is_it.then(|| {
            lied.store(true, Ordering::SeqCst);
            fault
        })
    });
    (store, has_lied)
}

/// Repairs what is damaged after a lie, which no backup may need. Of an outcome that was lost, a check goes on to say
/// that it may have held backups.
pub(crate) fn mend_after_a_lie(world: &World) {
    let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
    let plan = repair(&world.repo, &world.log, &options, &mut |_| true, &run_options()).unwrap();
    assert!(plan.dropped.is_empty() && plan.held.is_empty(), "{plan:?}");
    let is_harmless = |found: &Finding| found.object.contains("/outcomes/") && found.backups.is_empty();
    let findings = world.check_all().findings;
    assert!(findings.iter().all(is_harmless), "{findings:#?}");
}

/// A store confirms a write but does not keep all of the object, whichever it is: the backup fails, or
/// nothing in it is missing.
#[test]
fn a_confirmed_write_that_is_not_kept_leaves_no_backup() {
    let (before, after) = before_and_after(11);
    let options = || WriterOptions { index_every: Duration::ZERO, ..small_packs() };
    for (fault, suite) in LIES.into_iter().flat_map(|fault| SUITES.map(|suite| (fault, suite))) {
        let mut failures = 0;
        for n in 1.. {
            let clock = ManualClock::default();
            let world = World::over(MemStore::with_clock(clock.clone()), suite);
            let (first, _) = world.backup(&before, options());
            let (store, has_lied) = lying(&world.store, n, fault);
            let lied_to = world.through(store);
            let done = lied_to.try_backup(options(), |writer| give_all(writer, &after, 2));
            if !has_lied.load(Ordering::SeqCst) {
                break;
            }
            clock.advance(Duration::from_secs(16 * 60));
            mend_after_a_lie(&world);
            match done {
                Ok((run, _)) => world.assert_is(run, &after),
                Err(_) => {
                    failures += 1;
                    assert_eq!(world.history().newest_backup(), Some(first), "{fault:?} at {n}");
                }
            }
            let (run, _) = world.backup(&after, options());
            world.assert_is(run, &after);
            mend_after_a_lie(&world);
        }
        assert!(failures > 3, "{suite:?} {fault:?}: {failures}");
    }
}

/// A store confirms an outcome, but has kept only a part of it: that is no backup.
#[test]
fn a_confirmed_outcome_that_is_torn_is_no_success() {
    let (before, after) = before_and_after(11);
    let world = World::new(Suite::None);
    world.backup(&before, small_packs());
    let lying = world.through(FaultyStore::new(Arc::new(world.store.clone()), |call| {
        (call.op == Op::Create && call.path.contains("/outcomes/")).then_some(Fault::TornWrite)
    }));
    let error = lying.try_backup(small_packs(), |writer| give_all(writer, &after, 2)).unwrap_err();
    assert!(error.to_string().contains(world.log.outcome(RunNo(2)).as_str()), "{error}");
}

#[test]
fn every_named_point_is_passed() {
    let world = World::new(Suite::None);
    let mut random = Random::new(3);
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut random, 16_384, 200 * 16_384));
    let seen: Arc<std::sync::Mutex<std::collections::BTreeSet<&'static str>>> = Arc::default();
    let count = Arc::new(AtomicU64::new(0));
    let hooks = Hooks::new({
        let (seen, count) = (Arc::clone(&seen), Arc::clone(&count));
        move |name| {
            seen.lock().unwrap().insert(name);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    world.backup(&source, WriterOptions { hooks, ..small_packs() });
    for name in [
        "writer.pack.before_put",
        "writer.pack.after_put",
        "writer.pack.before_finish",
        "writer.pack.after_finish",
        "writer.index.before_put",
        "writer.index.after_put",
        "writer.packs.durable",
        "writer.refs.before_put",
        "writer.refs.after_put",
    ] {
        assert!(seen.lock().unwrap().contains(name), "{name}");
    }
}
