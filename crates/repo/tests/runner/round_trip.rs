use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    Folder, RepoError,
    data::writer::{FileProblem, WriteError, WriterOptions},
    format::{
        item::{ItemPath, ItemType},
        refs::BackupRefs,
    },
    log::{
        outcome::{HEAD_BYTES_MAX, Outcome, OutcomeType},
        run::{Ending, FinishError, PartCounts, Run, stored_outcome},
    },
    store::{
        Store,
        faulty::{Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};

use crate::world::*;

/// Files of every page size and of awkward sizes: empty, partial last page, zeros, holes, more than a leaf.
fn awkward(seed: u64) -> Source {
    let mut random = Random::new(seed);
    let mut source = Source::new();
    for page_bytes in [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536] {
        let page = page_bytes as usize;
        for (name, len) in [
            ("empty", 0),
            ("byte", 1),
            ("page", page),
            ("partial", page * 3 + 5),
            ("inline", page * 64),
            ("leaves", page * 65),
            ("chunks", (2 << 20) + page / 2),
        ] {
            let mut file = SourceFile::random(&mut random, page_bytes, len);
            for page in 0..file.pages() {
                match random.below(10) {
                    0 => file.zero(page, false),
                    1 => file.zero(page, true),
                    _ => {}
                }
            }
            source.insert(format!("db{page_bytes}/{name}.ibd"), file);
        }
    }
    let long = SourceFile::random(&mut random, 1024, 9_000 * 1024 + 1);
    source.insert("long".into(), long);
    source
}

#[test]
fn files_of_every_kind_come_back_with_every_codec_and_suite() {
    for (seed, (suite, compression)) in [
        (Suite::X25519Aes256Gcm, "zstd"),
        (Suite::X25519Aes256Gcm, "none"),
        (Suite::None, "lz4"),
        (Suite::None, "gzip:1"),
        (Suite::None, "none"),
    ]
    .into_iter()
    .enumerate()
    {
        let world = World::new(suite);
        let source = awkward(seed as u64);
        let compression = compression.parse().unwrap();
        let options = WriterOptions { compression, encrypt_threads: 2, compress_threads: 2, ..small_packs() };
        let (run, totals) = world.backup(&source, options);
        assert_eq!(totals.files, source.len() as u64);
        assert_eq!(totals.bytes, source.values().map(|file| file.bytes.len() as u64).sum::<u64>());
        assert!(totals.packs > 3);
        world.assert_is(run, &source);
    }
}

#[test]
fn directories_and_attributes_come_back() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut random = Random::new(1);
    let file = SourceFile { space: Some(7), ..SourceFile::random(&mut random, 16_384, 100) };
    let (run, _) = world.backup_with(small_packs(), |writer| {
        writer.directory(ItemPath::new("db").unwrap(), 0o750);
        let mut spec = spec("db/t.ibd", &file);
        spec.outside = Some(b"/elsewhere/t.ibd".to_vec());
        let id = writer.begin_file(spec)?;
        writer.pages(id, 0, &file.padded(0..1))?;
        writer.end_file(id, 100)
    });
    let items: Vec<_> = world.open(run).unwrap().items().map(Result::unwrap).collect();
    assert_eq!((items[0].item_type, items[0].mode), (ItemType::Directory, 0o750));
    assert_eq!(items[1].outside.as_deref(), Some(&b"/elsewhere/t.ibd"[..]));
    assert_eq!(items[1].tablespace.unwrap().space.0, 7);
    assert_eq!(items[1].size_bytes, 100);
}

#[test]
fn a_backup_of_nothing_is_a_backup() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let (run, totals) = world.backup(&Source::new(), WriterOptions::default());
    assert_eq!(totals.items, 0);
    world.assert_is(run, &Source::new());
    let (run, _) = world.backup(&Source::new(), WriterOptions::default());
    world.assert_is(run, &Source::new());
}

#[test]
fn the_last_word_about_a_page_and_a_file_counts() {
    let world = World::new(Suite::None);
    let mut random = Random::new(3);
    for with_base in [false, true] {
        let mut source = Source::new();
        for name in ["early", "late", "many", "replaced", "renamed", "small"] {
            let pages = if name == "small" { 40 } else { 9_000 };
            source.insert(name.into(), SourceFile::random(&mut random, 1024, pages * 1024));
        }
        let stale = SourceFile::random(&mut random, 1024, 9_000 * 1024);
        let (run, _) = world.backup_with(small_packs(), |writer| {
            for (path, file) in &source {
                match path.as_str() {
                    "replaced" => {
                        give_file(writer, path, &stale)?;
                        give_file(writer, path, file)?;
                    }
                    "renamed" => {
                        give_file(writer, path, &stale)?;
                        let id = give_file(writer, "another name", file)?;
                        writer.rename_file(id, &ItemPath::new(path.as_str()).unwrap())?;
                    }
                    _ => {
                        // Wrong pages first, the right ones later: before the leaf is closed, after it, and
                        // so many that the leaf is rewritten.
                        let id = writer.begin_file(spec(path, file))?;
                        let wrong = match path.as_str() {
                            "early" => 7..9,
                            "late" => 4_000..4_200,
                            "small" => 3..4,
                            _ => 0..6_000,
                        };
                        if path == "early" {
                            writer.pages(id, 7, &stale.padded(wrong.clone()))?;
                            give_pages(writer, id, file, 0..9_000)?;
                        } else {
                            give_pages(writer, id, file, 0..wrong.start)?;
                            writer.pages(id, wrong.start, &stale.padded(wrong.clone()))?;
                            give_pages(writer, id, file, wrong.end..file.pages())?;
                            give_pages(writer, id, file, wrong)?;
                        }
                        writer.end_file(id, file.bytes.len() as u64)?;
                    }
                }
            }
            let gone = give_file(writer, "gone", &stale)?;
            writer.drop_file(gone)
        });
        world.assert_is(run, &source);
        assert_eq!(with_base, run.0 > 1);
    }
}

#[test]
fn a_page_that_was_never_given_fails_the_backup_by_name() {
    let world = World::new(Suite::None);
    let mut random = Random::new(4);
    let file = SourceFile::random(&mut random, 1024, 9_000 * 1024);
    world.backup_with(small_packs(), |writer| {
        let id = writer.begin_file(spec("t", &file))?;
        for (missing, given) in [(0, 0..0), (5_000, 0..5_000)] {
            give_pages(writer, id, &file, given)?;
            let error = writer.end_file(id, 9_000 * 1024).unwrap_err();
            let WriteError::File { path, problem } = error else { panic!("{error}") };
            assert_eq!(
                (path.to_string().as_str(), problem),
                ("t", FileProblem::PageMissing { page: missing })
            );
        }
        give_pages(writer, id, &file, 5_000..9_000)?;
        let error = writer.end_file(id, 8_999 * 1024).unwrap_err();
        assert!(error.to_string().contains("page 8999 is beyond the end"), "{error}");
        assert!(writer.pages(id, 0, &[0; 100]).is_err());
        writer.end_file(id, 9_000 * 1024)
    });
    let run = world.begin();
    let writer =
        holdfast_repo::data::writer::BackupWriter::new(&run, &Default::default(), small_packs()).unwrap();
    writer.begin_file(spec("t", &file)).unwrap();
    assert!(writer.finish(&run).unwrap_err().to_string().contains("t: was not read to its end"));
}

#[test]
fn several_threads_may_give_one_file_in_any_order() {
    let world = World::new(Suite::X25519Aes256Gcm);
    for seed in 0..3 {
        let mut random = Random::new(20 + seed);
        let mut file = SourceFile::random(&mut random, 1024, 20_000 * 1024 + 77);
        for page in 0..3_000 {
            file.zero(page * 6, page % 2 == 0);
        }
        let mut extents: Vec<u64> = (0..file.pages()).step_by(100).collect();
        for position in (1..extents.len()).rev() {
            extents.swap(position, random.below(position as u64 + 1) as usize);
        }
        let (run, _) = world.backup_with(small_packs(), |writer| {
            let id = writer.begin_file(spec("t", &file))?;
            std::thread::scope(|scope| {
                for extents in extents.chunks(extents.len() / 3) {
                    let file = &file;
                    scope.spawn(move || {
                        for first in extents {
                            let end = (first + 100).min(file.pages());
                            give_pages(writer, id, file, *first..end).unwrap();
                        }
                    });
                }
            });
            writer.end_file(id, file.bytes.len() as u64)
        });
        world.assert_is(run, &Source::from([("t".to_owned(), file)]));
    }
}

#[test]
fn random_doings_end_as_the_model_says() {
    for seed in 0..8 {
        let world = World::new(Suite::None);
        let mut random = Random::new(40 + seed);
        let mut before = Source::new();
        for _ in 0..3 {
            let mut source = before.clone();
            let (run, _) = world.backup_with(small_packs(), |writer| {
                let mut ids = std::collections::BTreeMap::new();
                for (path, file) in &source {
                    ids.insert(path.clone(), give_file(writer, path, file)?);
                }
                for _ in 0..30 {
                    let path = format!("f{}", random.below(8));
                    match (random.below(6), ids.get(&path).copied()) {
                        (0, Some(id)) => {
                            writer.drop_file(id)?;
                            ids.remove(&path);
                            source.remove(&path);
                        }
                        (1, Some(id)) => {
                            let to = format!("f{}", random.below(8));
                            writer.rename_file(id, &ItemPath::new(to.as_str()).unwrap())?;
                            if to != path {
                                ids.remove(&path);
                                ids.insert(to.clone(), id);
                                let file = source.remove(&path).unwrap();
                                source.insert(to, file);
                            }
                        }
                        (2, _) if before.contains_key(&path) => {
                            // Unchanged, except that some pages are given twice.
                            let file = before[&path].clone();
                            let id = writer.begin_file(spec(&path, &file))?;
                            let twice = random.below(file.pages() + 1);
                            let noise = vec![9; file.page_size.bytes()];
                            for page in 0..twice.min(file.pages()) {
                                if page % 3 == 0 {
                                    writer.pages(id, page, &noise)?;
                                }
                            }
                            give_pages(writer, id, &file, 0..file.pages())?;
                            writer.end_file(id, file.bytes.len() as u64)?;
                            ids.insert(path.clone(), id);
                            source.insert(path, file);
                        }
                        _ => {
                            let most = if random.below(3) == 0 { 9_000 } else { 80 };
                            let pages = random.below(most);
                            let len = (pages * 1024 + random.below(1024)) as usize;
                            let mut file = SourceFile::random(&mut random, 1024, len);
                            for page in 0..file.pages() {
                                if random.below(7) == 0 {
                                    file.zero(page, random.below(2) == 0);
                                }
                            }
                            ids.insert(path.clone(), give_file(writer, &path, &file)?);
                            source.insert(path, file);
                        }
                    }
                }
                Ok(())
            });
            world.assert_is(run, &source);
            before = source;
        }
    }
}

/// Paths outside the data directory and GTID sets: a head has room for what real servers have, and exceeding
/// that is not reported as damage.
#[test]
fn heads_are_bounded_far_above_what_servers_need() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut run = world.begin();
    let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
    let end = |head: &[u8]| Ending::Backup { head: head.to_vec(), refs, parts: PartCounts::default() };
    let mut random = Random::new(3);
    let noise = (0..=HEAD_BYTES_MAX / 8).flat_map(|_| random.next().to_le_bytes());
    let head: Vec<u8> = noise.take(HEAD_BYTES_MAX as usize + 1).collect();
    let error = run.finish(end(&head)).unwrap_err();
    assert!(matches!(error, FinishError::Repo(RepoError::TooLarge { .. })), "{error}");
    let most = &head[..HEAD_BYTES_MAX as usize];
    run.finish(end(most)).unwrap();
    assert!(world.history().head(&world.repo, run.no()).unwrap() == most);
}

/// A run that finds little to store does not leave a pack open for days, during which the
/// store may abort the upload.
#[test]
fn a_pack_that_was_begun_long_ago_is_closed() {
    let mut random = Random::new(47);
    let source: Source = [("t".into(), SourceFile::random(&mut random, 16_384, 8 << 20))].into();
    let packs = |pack_age| {
        let world = World::new(Suite::None);
        let (run, _) = world.backup(&source, WriterOptions { pack_age, ..WriterOptions::default() });
        world.assert_is(run, &source);
        let mut packs = 0;
        let mut each = |_| {
            packs += 1;
            true
        };
        world.store.list(&world.log.folder(Folder::Packs), &mut each).unwrap();
        packs
    };
    assert_eq!(packs(Duration::from_secs(3600)), 1);
    assert!(packs(Duration::ZERO) > 8);
}

/// A run reported as failed has failed, and a run reported as successful has succeeded, even if the
/// repository became unreachable before that could be verified. If the backup may exist, the error says so.
#[test]
fn a_run_that_may_stand_is_not_called_failed() {
    let mut unsure = [0, 0];
    let mut well = 0;
    let waits = [Duration::ZERO, Duration::from_secs(3600)];
    let faults = [Fault::Error, Fault::ErrorAfter, Fault::CrashBefore, Fault::CrashAfter];
    for (fault, waited) in faults.into_iter().flat_map(|fault| waits.map(|waited| (fault, waited))) {
        for n in 1.. {
            let clock = ManualClock::default();
            let world = World::over(MemStore::with_clock(clock.clone()), Suite::None);
            let seen = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&seen);
            let log = world.log.clone();
            // The n-th call, counted from the creation of the outcome.
            let store = FaultyStore::new(Arc::new(world.store.clone()), move |call| {
                let is_end = call.op == Op::Create && call.path.starts_with(&log.folder(Folder::Outcomes));
                if !is_end && counter.load(Ordering::SeqCst) == 0 {
                    return None;
                }
                (counter.fetch_add(1, Ordering::SeqCst) + 1 == n).then_some(fault)
            });
            let repo = Arc::new(open_repo(Arc::new(store), world.suite));
            let mut run = Run::begin(&repo, &world.log, &run_options()).unwrap();
            let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
            let no = run.no();
            clock.advance(waited);
            let ended =
                run.finish(Ending::Backup { head: b"{}".to_vec(), refs, parts: PartCounts::default() });
            let was_due = seen.load(Ordering::SeqCst) >= n;
            let is_abandoned = |outcome: &Outcome| outcome.outcome_type == OutcomeType::Abandoned;
            let is_settled = world.history().outcome(no).is_some_and(is_abandoned);
            drop(run);
            let history = world.history();
            let stands = history.stands(no);
            let case = format!("{fault:?} at call {n}, {waited:?} after the last renewal");
            match &ended {
                Ok(_) => assert!(stands, "{case}"),
                Err(FinishError::Unsure { outcome, .. }) => {
                    assert!(outcome.is_none() || waited > Duration::ZERO, "{case}: it lived");
                    unsure[usize::from(stands)] += 1;
                }
                // No call still in flight can turn it into a backup.
                Err(error) => assert!(!stands && is_settled, "{case}: {error}"),
            }
            if let Some(stored) = stored_outcome(&ended) {
                assert_eq!(history.outcome(no), Some(stored), "{case}");
            }
            well += u64::from(ended.is_ok() && was_due && fault != Fault::ErrorAfter);
            if !was_due {
                break;
            }
        }
    }
    assert!(unsure.iter().all(|&times| times > 0), "{unsure:?}");
    assert!(well > 0);
}
