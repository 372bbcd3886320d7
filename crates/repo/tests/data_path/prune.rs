use std::{sync::Arc, time::Duration};

use holdfast_pipe::Suite;
use holdfast_repo::{
    RunNo,
    check::{CheckOptions, check},
    expire::{ExpireRequest, expire},
    prune::{PruneOptions, prune},
    reader::ChunkSource,
    run::RunOptions,
    writer::{ChunkRewriter, WriterOptions},
};

use crate::world::*;

fn run_options() -> RunOptions {
    RunOptions { renew_every: None, ..RunOptions::of_this_process() }
}

/// Everything of a backup in one pack, so that packs die in part.
fn large_packs() -> WriterOptions {
    WriterOptions { pack_target_bytes: 16 << 20, ..small_packs() }
}

fn prune_all(world: &World) -> u64 {
    let prunes = Arc::new(world.history().prunes(&world.repo).unwrap());
    let source = ChunkSource::new(Arc::clone(&world.repo), world.log.clone(), prunes, 8 << 20);
    let mut rewriter = ChunkRewriter::new(Arc::new(source), large_packs());
    let options = PruneOptions {
        grace: Duration::ZERO,
        resume_window: Duration::ZERO,
        rewrite_below_percent: 90,
        ..PruneOptions::default()
    };
    let pruned = prune(&world.repo, &world.log, &options, Some(&mut rewriter), &run_options()).unwrap();
    pruned.declared.rewrite.len() as u64
}

#[test]
fn backups_outlive_their_packs_and_are_built_upon_after_they_moved() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let world = World::new(suite);
        let mut random = Random::new(5);
        let mut source = Source::new();
        source.insert("big".into(), SourceFile::random(&mut random, 1024, 9_000 * 1024));
        source.insert("small".into(), SourceFile::random(&mut random, 16_384, 300_000));
        let mut rewritten = 0;
        let mut last = None;
        for round in 0..12 {
            // Stretches, so that whole chunks die, and scattered pages.
            let file = source.get_mut("big").unwrap();
            let begin = random.below(file.pages() - 2_500);
            for page in begin..begin + 2_500 {
                file.change(&mut random, page);
            }
            for _ in 0..40 {
                let page = random.below(file.pages());
                file.change(&mut random, page);
            }
            let page = random.below(source["small"].pages());
            source.get_mut("small").unwrap().change(&mut random, page);
            let (run, totals) = world.backup(&source, large_packs());
            assert!(
                round == 0 || totals.bytes_new < 4 << 20,
                "moved chunks are still the base's: {totals:?}"
            );
            world.assert_is(run, &source);
            if let Some((last, before)) = last.replace((run, source.clone())) {
                let last: RunNo = last;
                let request = ExpireRequest::Exactly(vec![last]);
                if round % 4 > 0 {
                    world.assert_is(last, &before);
                    expire(&world.repo, &world.log, &request, &run_options()).unwrap();
                }
            }
            rewritten += prune_all(&world);
            world.assert_is(run, &source);
            let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
            let report = check(&world.repo, &world.log, options).unwrap();
            assert!(report.findings.is_empty(), "round {round}: {:?}", report.findings);
        }
        assert!(rewritten > 3, "hardly anything was written anew: {rewritten}");
    }
}
