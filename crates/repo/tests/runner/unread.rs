//! Checks record what they have read, so that the next check reads the rest, whatever its key and host.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    RunNo,
    format::refs::BackupRefs,
    ops::{
        check::{CheckOptions, CheckReport, check},
        prune::{PruneOptions, prune, sweep},
        suspects,
    },
    store::{
        Store,
        faulty::{Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};

use crate::{damage::objects, prune::drop_backups, world::*};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn world_of_packs(suite: Suite) -> (World, ManualClock, Source) {
    let clock = ManualClock::default();
    let world = World::over(MemStore::with_clock(clock.clone()), suite);
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut Random::new(3), 4096, 2_000 * 4096));
    world.backup(&source, small_packs());
    (world, clock, source)
}

fn read(world: &World, options: CheckOptions) -> CheckReport {
    let read_data = options.read_data.or(Some(1.0));
    let options = CheckOptions { read_data, threads: 1, ..options };
    let report = check(&world.repo, &world.log, options).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    report
}

fn unread_for(days: u32) -> CheckOptions {
    CheckOptions { unread_for: Some(DAY * days), ..CheckOptions::default() }
}

fn records(world: &World) -> Vec<String> {
    let names = objects(world).into_iter().map(|(path, _)| path.to_string());
    names.filter(|name| name.contains("/checks/")).collect()
}

#[test]
fn what_was_not_read_for_long_is_read_first_and_within_bounds() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (world, clock, _) = world_of_packs(suite);
        let all = read(&world, unread_for(7));
        assert_eq!((all.packs_read, all.unread.never_packs), (0, all.packs), "what was written today");
        assert!(records(&world).is_empty());
        clock.advance(DAY * 8);
        assert!(all.packs > 2, "otherwise nothing is bounded");
        let mut packs_read = 0;
        for nights in 1.. {
            let report = read(&world, CheckOptions { bytes_max: Some(1), ..unread_for(7) });
            assert_eq!(report.packs_read, 1);
            packs_read += 1;
            assert_eq!(report.packs_left, all.packs - packs_read);
            assert_eq!(report.unread.never_packs, all.packs - packs_read);
            assert_eq!(report.not_recorded, None);
            if report.packs_left == 0 {
                assert_eq!(nights, all.packs);
                break;
            }
            clock.advance(Duration::from_secs(3600));
        }
        assert_eq!(records(&world).len(), 1, "one says all");
        let none = read(&world, CheckOptions { time_max: Some(Duration::ZERO), ..unread_for(0) });
        assert_eq!((none.packs_read, none.packs_left), (0, all.packs));
        assert_eq!(read(&world, unread_for(1)).packs_read, 0);
        let oldest = read(&world, CheckOptions { bytes_max: Some(1), ..unread_for(0) });
        assert!(oldest.unread.since > none.unread.since, "what was read longest ago came first");
        clock.advance(DAY * 2);
        assert_eq!(read(&world, unread_for(1)).packs_read, all.packs);
    }
}

/// A share is a chance: over many checks it is what was asked for, and no pack is always left out.
#[test]
fn a_share_is_what_is_read_on_average_and_reaches_every_pack() {
    let world = World::new(Suite::None);
    let (mut random, mut source) = (Random::new(3), Source::new());
    source.insert("a".into(), SourceFile::random(&mut random, 4096, 100 * 4096));
    for page in 0..24 {
        source.get_mut("a").unwrap().change(&mut random, page);
        world.backup(&source, small_packs());
    }
    const CHECKS: u64 = 100;
    let (mut packs, mut packs_read, mut never_read) = (0, 0, Vec::new());
    for seed in 0..CHECKS {
        let report = read(&world, CheckOptions { read_data: Some(0.3), seed, ..CheckOptions::default() });
        packs = report.packs;
        packs_read += report.packs_read;
        never_read.push(report.unread.never_packs);
    }
    assert!(packs >= 20, "{packs}");
    let share = packs_read as f64 / (packs * CHECKS) as f64;
    assert!((0.27..0.33).contains(&share), "{share} of {packs} packs");
    assert!(never_read[0] > packs / 2 && never_read.is_sorted_by(|a, b| a >= b), "{never_read:?}");
    assert_eq!(never_read[CHECKS as usize / 2], 0, "{never_read:?}");
}

/// A record only affects what is read: if it is damaged, forged, from the future or lost, this costs an extra
/// reading, and the next record is correct again.
#[test]
fn a_record_that_cannot_be_believed_costs_a_reading() {
    let (world, clock, _) = world_of_packs(Suite::X25519Aes256Gcm);
    clock.advance(DAY * 8);
    let all = read(&world, CheckOptions::default()).packs_read;
    let path = world.log.check_record(RunNo(1));
    let size = world.store.head(&path).unwrap().size_bytes as usize;
    for at in (0..size).step_by(29) {
        let world = crate::damage::copy(&world, &objects(&world));
        assert!(world.store.damage(&path, |bytes| bytes[at] ^= 4));
        let options = CheckOptions { read_data: Some(1.0), threads: 1, ..unread_for(0) };
        let report = check(&world.repo, &world.log, options.clone()).unwrap();
        assert_eq!(report.findings.len(), 1, "byte {at}: {:?}", report.findings);
        assert!(report.findings[0].object.contains("checks/0000000001"));
        assert_eq!((report.packs_read, report.unread.never_packs), (all, 0), "byte {at}");
        assert_eq!(records(&world), [world.log.check_record(RunNo(2)).to_string()]);
        assert!(read(&world, CheckOptions::default()).findings.is_empty(), "it has taken its place");
    }
    // An object created after the recorded reading is a different object.
    let pack = objects(&world).into_iter().find(|(path, _)| path.as_str().contains("/packs/")).unwrap().0;
    let bytes = holdfast_repo::store::read_all(&world.store, &pack, 1 << 30).unwrap();
    world.store.delete(std::slice::from_ref(&pack)).unwrap();
    clock.advance(DAY);
    world.store.create_if_absent(&pack, &bytes).unwrap();
    let report = check(&world.repo, &world.log, CheckOptions::default()).unwrap();
    assert_eq!(report.unread.never_packs, 1);
}

/// The second of two concurrent checks includes the first one's record, and a read-only store
/// is checked all the same.
#[test]
fn concurrent_checks_forget_nothing_of_each_other() {
    let (world, clock, _) = world_of_packs(Suite::None);
    clock.advance(DAY);
    thread::scope(|scope| {
        for seed in 0..4 {
            let world = &world;
            scope.spawn(move || {
                let options = CheckOptions { read_data: Some(0.5), seed, ..CheckOptions::default() };
                check(&world.repo, &world.log, options).unwrap();
            });
        }
    });
    let seen: u64 = check(&world.repo, &world.log, CheckOptions::default()).unwrap().unread.never_packs;
    let (alone, clock, _) = world_of_packs(Suite::None);
    clock.advance(DAY);
    for seed in 0..4 {
        let options = CheckOptions { read_data: Some(0.5), seed, ..CheckOptions::default() };
        check(&alone.repo, &alone.log, options).unwrap();
    }
    let expected = check(&alone.repo, &alone.log, CheckOptions::default()).unwrap().unread.never_packs;
    assert_eq!(seen, expected);

    let refusing = FaultyStore::new(Arc::new(world.store.clone()), |call| {
        (call.op == Op::Create || call.op == Op::Finish).then_some(Fault::Error)
    });
    let repo = Arc::new(open_repo(Arc::new(refusing), Suite::None));
    let options = CheckOptions { read_data: Some(1.0), ..CheckOptions::default() };
    let report = check(&repo, &world.log, options).unwrap();
    assert!(report.findings.is_empty() && report.not_recorded.is_some(), "{report:?}");
}

/// Whoever may only read can check beside a run that lives, and after one has died: the store's clock, which
/// takes a write, is all that tells the two apart.
#[test]
fn a_check_that_may_only_read_says_nothing_of_a_run_without_an_outcome() {
    let (world, clock, _) = world_of_packs(Suite::X25519Aes256Gcm);
    let run = world.begin();
    run.write_backup_refs(&BackupRefs::default()).unwrap();
    let reader = world.through(FaultyStore::new(Arc::new(world.store.clone()), |call| {
        (call.op.changes() || matches!(call.op, Op::Put | Op::Now)).then_some(Fault::Denied)
    }));
    for is_dead in [false, true] {
        let report = check(&reader.repo, &reader.log, CheckOptions::default()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(world.check_all().findings.len(), usize::from(is_dead), "with the clock it shows");
        clock.advance(Duration::from_secs(16 * 60));
    }
}

#[test]
fn what_is_said_of_packs_that_are_gone_goes_with_them() {
    let (world, ..) = world_of_packs(Suite::X25519Aes256Gcm);
    read(&world, CheckOptions::default());
    let first = records(&world);
    let packs =
        objects(&world).into_iter().map(|(path, _)| path).filter(|path| path.as_str().contains("/packs/"));
    let packs: Vec<_> = packs.collect();
    let options = PruneOptions::default();
    sweep(&world.repo, &world.history(), &options).unwrap();
    assert_eq!(records(&world), first, "nothing is gone");
    let size = |world: &World| world.store.head(&world.log.check_record(RunNo(2))).unwrap().size_bytes;
    world.store.delete(&packs[..1]).unwrap();
    sweep(&world.repo, &world.history(), &options).unwrap();
    assert_eq!(records(&world), [world.log.check_record(RunNo(2)).to_string()]);
    let before = size(&world);
    sweep(&world.repo, &world.history(), &options).unwrap();
    assert_eq!(size(&world), before);
    world.store.delete(&packs[1..]).unwrap();
    sweep(&world.repo, &world.history(), &options).unwrap();
    assert!(records(&world).is_empty());
}

/// That a needed pack is gone is known until it is there again, whatever prunes sweep.
#[test]
fn a_needed_pack_that_is_gone_is_not_forgotten() {
    let (world, ..) = world_of_packs(Suite::X25519Aes256Gcm);
    let (pack, _) = objects(&world).into_iter().find(|(path, _)| path.as_str().contains("/packs/")).unwrap();
    let bytes = holdfast_repo::store::read_all(&world.store, &pack, 1 << 30).unwrap();
    let look = || check(&world.repo, &world.log, CheckOptions::default()).unwrap().findings.len();
    let suspects = || suspects(&world.repo, &world.history()).unwrap().len();
    world.store.delete(std::slice::from_ref(&pack)).unwrap();
    assert_eq!(suspects(), 0, "nobody has looked");
    for _ in 0..2 {
        assert!(look() > 0);
        assert_eq!((suspects(), records(&world).len()), (1, 1));
        sweep(&world.repo, &world.history(), &PruneOptions::default()).unwrap();
        assert_eq!(suspects(), 1);
    }
    world.store.create_if_absent(&pack, &bytes).unwrap();
    assert_eq!((look(), suspects()), (0, 0));
}

/// Once a damaged pack is dead and nothing needs it, lists are fast again after the next check.
#[test]
fn a_damaged_pack_that_nothing_needs_is_forgotten() {
    let (world, _, source) = world_of_packs(Suite::X25519Aes256Gcm);
    let (pack, size) =
        objects(&world).into_iter().find(|(path, _)| path.as_str().contains("/packs/")).unwrap();
    assert!(world.store.damage(&pack, |bytes| bytes[size as usize / 2] ^= 1));
    let reads_refs = || {
        let has_read = Arc::new(AtomicBool::new(false));
        let reads = Arc::clone(&has_read);
        let watched = world.through(FaultyStore::new(Arc::new(world.store.clone()), move |call| {
            reads.fetch_or(call.path.contains("/refs/"), Ordering::SeqCst);
            None
        }));
        let suspects = suspects(&watched.repo, &world.history()).unwrap().len();
        (suspects, has_read.load(Ordering::SeqCst))
    };
    assert!(!world.check_all().findings.is_empty());
    assert_eq!(reads_refs(), (1, true));
    world.backup(&source, small_packs());
    drop_backups(&world, &[RunNo(1)]);
    assert!(world.check_all().findings.is_empty());
    assert_eq!(reads_refs(), (0, true), "a run may still take it for its base");
    prune(&world.repo, &world.log, &PruneOptions::default(), None, &run_options()).unwrap();
    assert_eq!(reads_refs(), (0, true));
    assert!(check(&world.repo, &world.log, CheckOptions::default()).unwrap().findings.is_empty());
    assert_eq!(reads_refs(), (0, false));
    assert!(world.store.head(&pack).is_ok(), "its grace lasts");
}

/// A pack found damaged counts as never read until it has been read without errors, whatever was read before.
#[test]
fn a_pack_that_was_found_damaged_is_read_again_until_it_is_good() {
    let (world, clock, _) = world_of_packs(Suite::X25519Aes256Gcm);
    clock.advance(DAY);
    read(&world, CheckOptions::default());
    let (pack, size) =
        objects(&world).into_iter().find(|(path, _)| path.as_str().contains("/packs/")).unwrap();
    let harm = || assert!(world.store.damage(&pack, |bytes| bytes[size as usize / 2] ^= 1));
    harm();
    let look = |options| {
        let options = CheckOptions { read_data: Some(1.0), threads: 1, ..options };
        check(&world.repo, &world.log, options).unwrap()
    };
    assert!(look(unread_for(30)).findings.is_empty(), "nobody has looked");
    assert!(!look(CheckOptions::default()).findings.is_empty());
    for _ in 0..3 {
        clock.advance(DAY);
        let report = look(unread_for(30));
        assert_eq!((report.packs_read, report.unread.never_packs), (1, 1));
        assert!(!report.findings.is_empty());
    }
    harm();
    let mended = look(unread_for(30));
    assert_eq!((mended.packs_read, mended.findings.len(), mended.unread.never_packs), (1, 0, 0));
    assert_eq!(look(unread_for(30)).packs_read, 0);
}

/// Names that somebody has made up are stepped over, however many they are, and are deleted.
#[test]
fn made_up_records_keep_none_from_being_written() {
    let (world, clock, _) = world_of_packs(Suite::X25519Aes256Gcm);
    let all = read(&world, CheckOptions::default()).packs_read;
    for number in 2..=40 {
        world.store.create_if_absent(&world.log.check_record(RunNo(number)), b"made up").unwrap();
    }
    clock.advance(DAY);
    let options = CheckOptions { read_data: Some(1.0), threads: 1, ..unread_for(0) };
    let report = check(&world.repo, &world.log, options).unwrap();
    assert_eq!((report.packs_read, report.not_recorded), (all, None));
    assert_eq!(records(&world), [world.log.check_record(RunNo(41)).to_string()]);
    for number in 42..=80 {
        world.store.create_if_absent(&world.log.check_record(RunNo(number)), b"made up").unwrap();
    }
    let pruned = prune(&world.repo, &world.log, &PruneOptions::default(), None, &run_options());
    assert!(pruned.is_ok(), "{pruned:?}");
    assert_eq!(records(&world), [world.log.check_record(RunNo(41)).to_string()]);
}

/// Whoever copies a repository, or gives it another owner, has read nothing of it.
#[test]
fn objects_that_appear_anew_were_not_read() {
    let (world, clock, _) = world_of_packs(Suite::X25519Aes256Gcm);
    let all = read(&world, CheckOptions::default()).packs_read;
    clock.advance(DAY * 30);
    for (path, _) in objects(&world) {
        let bytes = holdfast_repo::store::read_all(&world.store, &path, 1 << 30).unwrap();
        world.store.delete(std::slice::from_ref(&path)).unwrap();
        world.store.create_if_absent(&path, &bytes).unwrap();
    }
    assert_eq!(read(&world, unread_for(7)).packs_read, all);
    assert_eq!(read(&world, unread_for(7)).packs_read, 0);
}
