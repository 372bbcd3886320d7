use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    Interrupt, Repo, RepoError, RunNo,
    data::{
        reader::ChunkSource,
        writer::{ChunkRewriter, WriterOptions},
    },
    ops::{
        check::{CheckOptions, check},
        expire::{ExpireRequest, expire},
        prune::{PruneError, PruneOptions, prune},
    },
    steps::{Step, Steps},
    store::faulty::FaultyStore,
};

use crate::world::*;

/// More calls than any one object takes.
const CALLS_AFTER_MAX: u64 = 25;

/// A repository that is interrupted at the n-th call, and the number of calls so far.
fn interrupted_at(world: &World, n: u64) -> (Arc<Repo>, Interrupt, Arc<AtomicU64>) {
    let interrupt = Interrupt::default();
    let calls = Arc::new(AtomicU64::new(0));
    let (asked, counted) = (interrupt.clone(), Arc::clone(&calls));
    let store = FaultyStore::new(Arc::new(world.store.clone()), move |_| {
        if counted.fetch_add(1, Ordering::SeqCst) + 1 == n {
            asked.interrupt();
        }
        None
    });
    let repo = Arc::new(open_repo(Arc::new(store), Suite::None));
    (repo, interrupt, calls)
}

/// Many small packs, of which those of the first backup are mostly dead.
fn world() -> World {
    let world = World::new(Suite::None);
    let mut random = Random::new(9);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 16_384, 40 << 20));
    world.backup(&source, small_packs());
    for page in (0..source["big"].pages()).filter(|page| page % 3 > 0) {
        source.get_mut("big").unwrap().change(&mut random, page);
    }
    world.backup(&source, small_packs());
    expire(&world.repo, &world.log, &ExpireRequest::Exactly(vec![RunNo(1)]), &run_options()).unwrap();
    world
}

#[test]
fn a_check_ends_soon_after_it_was_asked_to() {
    let world = world();
    let mut whole = 0;
    for n in (1..).step_by(40) {
        let (repo, interrupt, calls) = interrupted_at(&world, n);
        let options = CheckOptions { read_data: Some(1.0), threads: 1, interrupt, ..CheckOptions::default() };
        match check(&repo, &world.log, options) {
            Err(RepoError::Interrupted) => {
                assert!(calls.load(Ordering::SeqCst) < n + CALLS_AFTER_MAX, "from {n} to {calls:?}");
            }
            other => {
                assert!(other.unwrap().findings.is_empty());
                whole = calls.load(Ordering::SeqCst);
                break;
            }
        }
    }
    assert!(whole > 5 * CALLS_AFTER_MAX, "{whole}");
}

/// Progress reports name each part of the work, and say at its end that all of it is done.
#[test]
fn long_work_tells_how_far_it_is() {
    let world = world();
    let told = Arc::new(Mutex::new(Vec::new()));
    let steps = || {
        let told = Arc::clone(&told);
        Steps::new(move |step| told.lock().unwrap().push(step))
    };
    let last_of = |phase: &'static str| {
        let told = told.lock().unwrap();
        let mut after = told.iter().skip_while(|step| **step != Step::Phase(phase)).skip(1);
        after.by_ref().take_while(|step| !matches!(step, Step::Phase(_))).last().copied()
    };
    let options = CheckOptions { read_data: Some(1.0), steps: steps(), ..CheckOptions::default() };
    let bytes = check(&world.repo, &world.log, options).unwrap().bytes_read;
    assert_eq!(last_of("data"), Some(Step::Bytes { done: bytes, total: bytes }));

    let source = ChunkSource::new(Arc::clone(&world.repo), &world.history(), 8 << 20).unwrap();
    let mut rewriter = ChunkRewriter::new(Arc::new(source), small_packs()).telling(steps());
    let options = PruneOptions { rewrite_below_percent: 90, ..PruneOptions::default() };
    let pruned = prune(&world.repo, &world.log, &options, Some(&mut rewriter), &run_options()).unwrap();
    let bytes = pruned.declared.rewrite.iter().map(|pack| pack.live_bytes).sum();
    assert!(bytes > 0);
    assert_eq!(last_of("rewrite"), Some(Step::Bytes { done: bytes, total: bytes }));
}

/// Work done by an interrupted prune is correct, and the next prune continues immediately.
#[test]
fn a_prune_ends_soon_after_it_was_asked_to_and_leaves_the_repository_whole() {
    let world = world();
    let mut interrupted = 0;
    for n in (1..).step_by(15) {
        let (repo, interrupt, _) = interrupted_at(&world, n);
        let source = ChunkSource::new(Arc::clone(&repo), &world.history(), 8 << 20).unwrap();
        let mut rewriter = ChunkRewriter::new(
            Arc::new(source),
            WriterOptions { pack_target_bytes: 16 << 20, ..small_packs() },
        )
        .interrupted_by(interrupt.clone());
        let options = PruneOptions {
            grace: Duration::ZERO,
            resume_window: Duration::ZERO,
            rewrite_below_percent: 90,
            interrupt,
            ..PruneOptions::default()
        };
        let done = prune(&repo, &world.log, &options, Some(&mut rewriter), &run_options());
        let whole =
            check(&world.repo, &world.log, CheckOptions { read_data: Some(1.0), ..CheckOptions::default() });
        assert!(whole.unwrap().findings.is_empty(), "interrupted at {n}");
        match done {
            Ok(_) => break,
            Err(error) => {
                let is_it = matches!(&error, PruneError::Repo(RepoError::Interrupted))
                    || matches!(&error, PruneError::Finish(finish) if finish.to_string() == "interrupted");
                assert!(is_it, "interrupted at {n}: {error}");
                interrupted += 1;
            }
        }
    }
    assert!(interrupted > 3, "{interrupted}");
}
