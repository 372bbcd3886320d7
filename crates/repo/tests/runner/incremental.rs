use std::sync::{Arc, atomic::Ordering};

use holdfast_pipe::Suite;
use holdfast_repo::data::writer::WriterOptions;

use crate::world::*;

fn two_files(random: &mut Random) -> Source {
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(random, 4096, 10_000 * 4096));
    source.insert("b".into(), SourceFile::random(random, 4096, 50 * 4096));
    source
}

#[test]
fn an_unchanged_backup_stores_nothing() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut random = Random::new(1);
    let source = two_files(&mut random);
    world.backup(&source, small_packs());
    let (run, totals) = world.backup(&source, small_packs());
    assert_eq!((totals.packs, totals.bytes_stored, totals.bytes_new), (0, 0, 0));
    assert_eq!(totals.bytes_reused, 10_050 * 4096);
    world.assert_is(run, &source);
}

#[test]
fn a_backup_stores_about_what_has_changed() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut random = Random::new(2);
    let mut source = two_files(&mut random);
    let (_, full) = world.backup(&source, small_packs());
    for round in 0..12 {
        let file = source.get_mut("a").unwrap();
        for _ in 0..100 {
            let page = random.below(file.pages());
            file.change(&mut random, page);
        }
        let (run, totals) = world.backup(&source, small_packs());
        assert!(totals.bytes_new <= 100 * 4096);
        // A hundredth of the pages; each round's page map contains the patches of all earlier rounds.
        assert!(totals.bytes_stored < full.bytes_stored / 100 + 90_000, "round {round}: {totals:?}");
        world.assert_is(run, &source);
    }
}

/// A leaf being compared with the base's leaf keeps that in memory until the chunk of its changes has been
/// placed, which takes long if there are few changes.
#[test]
fn few_changes_hold_up_few_leaves() {
    const LEAVES: u64 = 30;
    const PAGES: u64 = 4_096;
    let world = World::new(Suite::None);
    let mut random = Random::new(3);
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut random, 1024, (LEAVES * PAGES * 1024) as usize));
    let options = || WriterOptions { memory_bytes: 8 << 20, ..small_packs() };
    world.backup(&source, options());
    let most_waiting = |source: &Source| {
        let mut meters = None;
        let (run, totals) = world.backup_with(options(), |writer| {
            meters = Some(Arc::clone(writer.meters()));
            give_all(writer, source, 1)
        });
        world.assert_is(run, source);
        (meters.unwrap().leaves_waiting_max.load(Ordering::Relaxed), totals.bytes_new)
    };
    source.get_mut("a").unwrap().change(&mut random, 7);
    assert_eq!(most_waiting(&source), (1, 1024), "leaves without changes wait for nothing");
    for leaf in 0..LEAVES {
        source.get_mut("a").unwrap().change(&mut random, leaf * PAGES + 9);
    }
    let (waiting, bytes_new) = most_waiting(&source);
    assert!(bytes_new == LEAVES * 1024 && waiting < 10, "{waiting} leaves, {bytes_new} bytes");
}

#[test]
fn files_that_grow_shrink_and_swap_kinds_of_pages_come_back() {
    let world = World::new(Suite::None);
    for seed in 0..6 {
        let mut random = Random::new(seed + 10);
        let mut source = Source::new();
        for name in 0..4 {
            let pages = 1 + random.below(6_000) as usize;
            source.insert(format!("f{name}"), SourceFile::random(&mut random, 1024, pages * 1024));
        }
        for _ in 0..5 {
            for file in source.values_mut() {
                match random.below(5) {
                    0 => {
                        let pages = random.below(6_000) as usize;
                        file.bytes.resize(pages * 1024 + 3, 7);
                        let pages = file.pages();
                        file.holes.retain(|page| *page < pages);
                    }
                    1 => {
                        for _ in 0..random.below(2_000) {
                            let page = random.below(file.pages().max(1));
                            if page < file.pages() {
                                file.change(&mut random, page);
                            }
                        }
                    }
                    2 => {
                        for page in 0..file.pages().min(100) {
                            let hole = random.below(2) == 0;
                            file.zero(page, hole);
                        }
                    }
                    _ => {}
                }
            }
            let (run, _) = world.backup(&source, small_packs());
            world.assert_is(run, &source);
        }
    }
}

#[test]
fn a_renamed_tablespace_is_recognized_by_its_id() {
    let world = World::new(Suite::None);
    let mut random = Random::new(5);
    let mut source = two_files(&mut random);
    for (space, file) in source.values_mut().enumerate() {
        file.space = Some(space as u32 + 1);
    }
    world.backup(&source, small_packs());
    let moved = source.remove("a").unwrap();
    source.insert("db/z".into(), moved);
    let (run, totals) = world.backup(&source, small_packs());
    assert_eq!(totals.bytes_new, 0);
    world.assert_is(run, &source);
}

#[test]
fn skewed_change_keeps_what_a_restore_must_read_within_bounds() {
    let world = World::new(Suite::None);
    let mut random = Random::new(6);
    let mut source = Source::new();
    source.insert("hot".into(), SourceFile::random(&mut random, 16_384, 2_000 * 16_384));
    let options = || WriterOptions { compression: "none".parse().unwrap(), ..small_packs() };
    world.backup(&source, options());
    let mut last = None;
    for _ in 0..50 {
        let file = source.get_mut("hot").unwrap();
        for _ in 0..60 {
            // Nine out of ten changes hit a tenth of the pages.
            let pages = if random.below(10) > 0 { file.pages() / 10 } else { file.pages() };
            let page = random.below(pages);
            file.change(&mut random, page);
        }
        last = Some(world.backup(&source, options()));
    }
    let (run, _) = last.unwrap();
    world.assert_is(run, &source);
    let refs = world.history().backup_refs(&world.repo, run).unwrap();
    let (mut read, mut needed) = (0, 0);
    for chunk in refs.packs.iter().flat_map(|pack| &pack.chunks).filter(|chunk| chunk.needed > 0) {
        read += chunk.units;
        needed += chunk.needed;
    }
    assert!(read < needed * 2, "{read} pages to be read for {needed}");
}

#[test]
fn many_small_files_share_their_unchanged_stretches() {
    let world = World::new(Suite::None);
    let mut random = Random::new(7);
    let mut source = Source::new();
    for name in 0..3_000 {
        source.insert(format!("db/t{name:05}"), SourceFile::random(&mut random, 1024, 700));
    }
    let (_, full) = world.backup(&source, small_packs());
    for name in ["db/t00007", "db/t02900"] {
        source.get_mut(name).unwrap().change(&mut random, 0);
    }
    let (run, totals) = world.backup(&source, small_packs());
    assert_eq!(totals.bytes_new, 2 * 1024);
    assert!(totals.bytes_stored * 5 < full.bytes_stored, "{totals:?}");
    world.assert_is(run, &source);
}

#[test]
fn memory_too_small_for_the_base_costs_time_only() {
    let world = World::new(Suite::None);
    let mut random = Random::new(8);
    let source = two_files(&mut random);
    let options = || WriterOptions { memory_bytes: 1, ..small_packs() };
    world.backup(&source, options());
    let (run, totals) = world.backup(&source, options());
    assert_eq!(totals.bytes_new, 0);
    world.assert_is(run, &source);
}
