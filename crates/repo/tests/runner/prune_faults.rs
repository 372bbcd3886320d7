//! Expiry and pruning in stores that fail or lie at any call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    Repo, RunNo,
    data::{
        reader::ChunkSource,
        writer::{ChunkRewriter, WriterOptions},
    },
    log::history::History,
    ops::{
        expire::{ExpireRequest, expire},
        prune::prune,
    },
    store::faulty::{Fault, FaultyStore, Op},
};

use crate::{
    prune::{at_once, dead_packs, drop_backups, try_plan, try_prune},
    repair::copy_with_clock,
    resume::{LIES, SUITES, lying, mend_after_a_lie},
    world::*,
};

/// Longer than a lease lasts.
const LATER: Duration = Duration::from_secs(16 * 60);

fn tiny_packs() -> WriterOptions {
    WriterOptions { pack_target_bytes: 256 << 10, ..small_packs() }
}

/// Three backups, of which the newest needs some of the packs of each, some of them partly.
fn world_of_three(suite: Suite) -> (World, Vec<Source>) {
    let world = World::new(suite);
    let mut random = Random::new(31);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 1_600 * 1024));
    let mut sources = Vec::new();
    for changed in [0..0, 0..700, 400..1_200] {
        changed.for_each(|page| source.get_mut("big").unwrap().change(&mut random, page));
        world.backup(&source, tiny_packs());
        sources.push(source.clone());
    }
    (world, sources)
}

/// Prunes without faults until a prune has nothing to do.
fn prune_to_the_end(world: &World) {
    for _ in 0..4 {
        try_prune(world, &world.repo, tiny_packs()).unwrap();
    }
    let plan = try_plan(world);
    assert!(plan.declares_nothing() && plan.missing.is_empty(), "{plan:?}");
    assert_eq!(dead_packs(world), 0);
}

/// A store confirms a write of a prune but does not keep all of the object, whichever it is. What it was to
/// replace may be deleted by the next prune.
#[test]
fn a_confirmed_write_of_a_prune_that_is_not_kept_loses_nothing() {
    for suite in SUITES {
        let (ripe, mut sources) = world_of_three(suite);
        drop_backups(&ripe, &[RunNo(1), RunNo(2)]);
        let source = sources.pop().unwrap();
        for fault in LIES {
            let mut failures = 0;
            for n in 1.. {
                let (world, clock) = copy_with_clock(&ripe);
                let (store, has_lied) = lying(&world.store, n, fault);
                let lied_to = world.through(store);
                failures += u64::from(try_prune(&world, &lied_to.repo, tiny_packs()).is_err());
                if !has_lied.load(Ordering::SeqCst) {
                    break;
                }
                println!("{suite:?} {fault:?} at {n}");
                clock.advance(LATER);
                mend_after_a_lie(&world);
                world.assert_is(RunNo(3), &source);
                prune_to_the_end(&world);
                world.assert_is(RunNo(3), &source);
                mend_after_a_lie(&world);
            }
            assert!(failures > 3, "{suite:?} {fault:?}: {failures}");
        }
    }
}

/// Opens the repository, expires two of three backups, and prunes twice, so that what was declared is deleted.
fn expire_and_prune(world: &World, store: FaultyStore) -> Result<(), Box<dyn std::error::Error>> {
    let repo = Arc::new(Repo::open(Arc::new(store), None)?);
    let dropped = ExpireRequest::Exactly(vec![RunNo(1), RunNo(2)]);
    expire(&repo, &world.log, &dropped, &run_options())?;
    for _ in 0..2 {
        let history = History::read(&repo, &world.log)?;
        let source = ChunkSource::new(Arc::clone(&repo), &history, 8 << 20)?;
        let mut rewriter = ChunkRewriter::new(Arc::new(source), tiny_packs());
        prune(&repo, &world.log, &at_once(), Some(&mut rewriter), &run_options())?;
    }
    Ok(())
}

#[test]
fn a_failure_of_any_call_of_expire_and_prune_loses_nothing_and_is_made_good() {
    const FAULTS: [Fault; 5] =
        [Fault::Error, Fault::ErrorAfter, Fault::ShortRead, Fault::CrashBefore, Fault::CrashAfter];
    let (three, sources) = world_of_three(Suite::None);
    // By default each call fails in one of these ways.
    let every = if std::env::var_os("HOLDFAST_FAULTS").is_some() { 1 } else { FAULTS.len() };
    let mut failures = 0;
    for (which, fault) in FAULTS.into_iter().enumerate() {
        for n in (1 + which..).step_by(every) {
            let (world, clock) = copy_with_clock(&three);
            let seen = Arc::new(AtomicU64::new(0));
            let calls = Arc::clone(&seen);
            let store = FaultyStore::new(Arc::new(world.store.clone()), move |call| {
                let concerns = fault != Fault::ShortRead || call.op == Op::Read;
                let is_it = concerns && calls.fetch_add(1, Ordering::SeqCst) + 1 == n as u64;
                is_it.then_some(fault)
            });
            let failed = expire_and_prune(&world, store).err();
            let assert_all_stand = || {
                let standing: Vec<RunNo> = world.history().standing().map(|outcome| outcome.run).collect();
                assert!(standing.contains(&RunNo(3)));
                standing.iter().for_each(|run| world.assert_is(*run, &sources[run.0 as usize - 1]));
                standing
            };
            println!("{fault:?} at {n}: {failed:?}");
            failures += u64::from(failed.is_some());
            let standing = assert_all_stand();
            clock.advance(LATER);
            if standing.len() == 3 {
                drop_backups(&world, &[RunNo(1), RunNo(2)]);
            }
            prune_to_the_end(&world);
            assert_all_stand();
            world.assert_sound();
            if seen.load(Ordering::SeqCst) < n as u64 {
                break;
            }
        }
    }
    assert!(failures > 20, "{failures}");
}
