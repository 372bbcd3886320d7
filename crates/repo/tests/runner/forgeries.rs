//! In a store that does not allow anything to be replaced, additions by the holder of a writer's
//! key do not harm what others have stored: they are detected, reported and repaired, and no backup
//! is lost because of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use holdfast_formats::PageSize;
use holdfast_pipe::Suite;
use holdfast_repo::{
    Interrupt, ObjectKind, PackId, Place, RepoError, RunNo, RunSecrets,
    data::writer::ChunkRewriter,
    format::{
        index,
        pack::ChunkKind,
        refs::{BackupRefs, ChunkNeed, NeededPack},
    },
    log::{
        history::History,
        run::{Ending, PartCounts, Run, Standing, active, standing},
    },
    ops::{
        check::{CheckOptions, CheckReport, Severity, check},
        expire::{ExpireError, ExpireRequest, expire},
        prune::{PruneError, PruneOptions, prune},
        repair::{RepairPlan, repair},
        space::Space,
    },
    store::{ObjectPath, Store},
};

use crate::{
    damage::{copy, objects},
    world::*,
    writer_role::Roles,
};

fn look(world: &World, read_data: Option<f64>) -> CheckReport {
    check(&world.repo, &world.log, CheckOptions { read_data, ..CheckOptions::default() }).unwrap()
}

fn mend(world: &World) -> RepairPlan {
    let options = CheckOptions { read_data: Some(1.0), threads: 1, ..CheckOptions::default() };
    repair(&world.repo, &world.log, &options, &mut |_| true, &run_options()).unwrap()
}

/// A signed but empty backup with the given `refs`.
fn add_backup(world: &World, refs: &BackupRefs) -> RunNo {
    let mut run = Run::begin(&world.repo, &world.log, &run_options()).unwrap();
    let refs = run.write_backup_refs(refs).unwrap();
    let head = world.head(run.no()).encode().unwrap();
    let ending = Ending::Backup { head, refs, parts: PartCounts::default() };
    run.finish(ending).unwrap();
    run.no()
}

/// Adds an index part that contradicts the one that the run has written about its packs.
fn add_index_part(reader: &World, writer: &World, run: RunNo) -> ObjectPath {
    let mut place = Place { log: &reader.log, kind: ObjectKind::Index, run, part: 0 };
    let mut packs = index::decode(&reader.repo.read_object(&place, 1 << 28).unwrap()).unwrap();
    let mut forged = 0;
    for pack in &mut packs {
        let pages = |kind| matches!(kind, ChunkKind::Pages(_));
        let rows = &mut pack.rows;
        let two = (1..rows.len()).find(|at| rows[at - 1].sealed_len != rows[*at].sealed_len);
        match two.filter(|_| pack.part % 2 == 0) {
            // These seals cannot be opened at the swapped lengths.
            Some(at) => {
                (rows[at - 1].sealed_len, rows[at].sealed_len) =
                    (rows[at].sealed_len, rows[at - 1].sealed_len)
            }
            // These can be opened, but the pages differ.
            None => {
                for row in rows.iter_mut().filter(|row| pages(row.kind)) {
                    let ChunkKind::Pages(size) = row.kind else { continue };
                    let Some(half) = PageSize::from_bytes(size.bytes() as u32 / 2) else { continue };
                    row.kind = ChunkKind::Pages(half);
                    row.unit_count *= 2;
                }
            }
        }
        forged += 1;
    }
    assert!(forged > 0);
    place.part = 1;
    let secrets = RunSecrets::draw(writer.repo.keys(), &writer.log, run).unwrap();
    let object = secrets.seal_index(1, &index::encode(&packs)).unwrap();
    writer.repo.put(&place, &object).unwrap().path
}

fn reopened(world: &World) -> World {
    copy(world, &objects(world))
}

#[test]
fn refs_and_index_parts_that_a_writer_makes_up_take_no_backup_down() {
    let roles = Roles::of(World::new(Suite::X25519Aes256Gcm));
    let world = &roles.operator;
    let mut random = Random::new(3);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 4096, 900 * 4096));
    source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
    let mut backups = BTreeMap::new();
    for _ in 0..3 {
        backups.insert(world.backup(&source, small_packs()).0, source.clone());
        for page in 0..500 {
            source.get_mut("big").unwrap().change(&mut random, page);
        }
    }
    let good: Vec<RunNo> = backups.keys().copied().collect();
    let assert_good = |world: &World, what: &str| {
        let history = world.history();
        for (run, source) in &backups {
            assert!(history.stands(*run), "{what}: {run}");
            world.assert_is(*run, source);
        }
    };
    let assert_no_loss = |world: &World, what: &str| {
        for read_data in [None, Some(0.0), Some(1.0)] {
            let report = look(world, read_data);
            let lost = report.findings.iter().filter(|it| it.severity == Severity::Lost);
            let lost: Vec<_> = lost.filter(|it| it.backups.iter().any(|run| good.contains(run))).collect();
            assert!(lost.is_empty(), "{what}, {read_data:?}: {lost:?}");
            assert!(!report.findings.is_empty() || read_data != Some(1.0), "{what}: nothing was found");
        }
    };
    for case in ["sizes", "units", "index", "all"] {
        let world = &reopened(world);
        let writer = &roles.writer_of(world);
        let mut refs = world.history().backup_refs(&world.repo, good[1]).unwrap();
        for pack in &mut refs.packs {
            if case != "units" {
                pack.size_bytes += 1;
            }
            if case != "sizes" {
                pack.chunks.iter_mut().for_each(|chunk| chunk.units += 7);
            }
        }
        if case != "index" {
            add_backup(writer, &refs);
        }
        if case == "index" || case == "all" {
            for run in &good[..2] {
                add_index_part(world, writer, *run);
            }
        }
        assert_good(&reopened(world), case);
        assert_no_loss(&reopened(world), case);
        // Data written in the meantime do not rely on the forger's statements.
        let next = reopened(world);
        let (run, _) = next.backup(&source, small_packs());
        next.assert_is(run, &source);
        let mended = reopened(world);
        let plan = mend(&mended);
        assert!(plan.dropped.is_empty() && plan.held.is_empty(), "{case}: {plan:?}");
        let mended = reopened(&mended);
        assert_good(&mended, case);
        let left = look(&mended, Some(1.0)).findings;
        assert!(left.is_empty(), "{case}: {left:?}");
    }

    // A prune that rewrites chunks preserves their actual contents, not what an index says about them.
    let writer = roles.writer_of(world);
    for run in &good {
        add_index_part(world, &writer, *run);
    }
    expire(&world.repo, &world.log, &ExpireRequest::Exactly(vec![good[0]]), &run_options()).unwrap();
    backups.remove(&good[0]);
    let world = reopened(world);
    let mut rewriter = ChunkRewriter::open(&world.repo, &world.history(), small_packs()).unwrap();
    let now = PruneOptions { rewrite_below_percent: 90, grace: Duration::ZERO, ..PruneOptions::default() };
    let pruned = prune(&world.repo, &world.log, &now, Some(&mut rewriter), &run_options()).unwrap();
    assert!(!pruned.declared.rewrite.is_empty(), "otherwise nothing moves");
    let world = reopened(&world);
    for (run, source) in &backups {
        world.assert_is(*run, source);
    }
}

/// Refs that are wrong after their first packs are ignored as a whole, by everyone, including the packs
/// before the error.
#[test]
fn refs_that_are_wrong_in_the_middle_count_for_nothing() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut Random::new(5), 4096, 300 * 4096));
    let first = world.backup(&source, small_packs()).0;
    let good = world.history().backup_refs(&world.repo, first).unwrap();
    // Packs that do not exist, and too much of one that does; then one that is out of order.
    let nowhere = |part| NeededPack {
        pack: PackId { run: first, part },
        size_bytes: 1 << 20,
        chunks: vec![ChunkNeed { units: 1, needed: 1 }; 9],
    };
    let chunks = vec![ChunkNeed { units: 3, needed: 1 }; 4_096];
    let other = NeededPack { chunks, size_bytes: 1, ..good.packs[0].clone() };
    let wrong = add_backup(&world, &BackupRefs { packs: vec![other, nowhere(7_000), nowhere(6_000)] });
    let last = world.backup(&source, small_packs()).0;
    let refs = world.log.refs(wrong).to_string();
    let of_last = world.history().backup_refs(&world.repo, last).unwrap();
    let packs: BTreeSet<PackId> = good.packs.iter().chain(&of_last.packs).map(|pack| pack.pack).collect();
    for read_data in [None, Some(1.0)] {
        let report = look(&world, read_data);
        let found: Vec<_> = report.findings.iter().map(|it| (&it.object, &it.backups[..])).collect();
        assert_eq!(found, [(&refs, &[wrong][..])], "{read_data:?}");
        assert_eq!(report.backups, 3);
        assert_eq!(report.packs, packs.len() as u64);
    }
    let named = |error: RepoError| match error {
        RepoError::Damaged { object, .. } => object,
        error => panic!("{error}"),
    };
    let history = world.history();
    assert_eq!(named(history.backup_refs(&world.repo, wrong).unwrap_err()), refs);
    assert_eq!(named(Space::of(&world.repo, &history, &Interrupt::default()).unwrap_err()), refs);
    let pruned = prune(&world.repo, &world.log, &PruneOptions::default(), None, &run_options());
    let Err(PruneError::Repo(error)) = pruned else { panic!("{pruned:?}") };
    assert_eq!(named(error), refs);
    // That backup is not good, so rules use the one before it.
    expire(&world.repo, &world.log, &ExpireRequest::Exactly(vec![last]), &run_options()).unwrap();
    let named_first = ExpireRequest::Named(vec![first]);
    let refused = expire(&world.repo, &world.log, &named_first, &run_options());
    assert!(matches!(refused, Err(ExpireError::LastGood { run, .. }) if run == first), "{refused:?}");
    mend(&world);
    assert!(look(&world, Some(1.0)).findings.is_empty());
    world.assert_is(first, &source);
}

/// A lease or an outcome that is made up does not make a run that is alive look dead or ended.
#[test]
fn made_up_numbers_hide_no_active_run() {
    let world = World::new(Suite::None);
    let mut source = Source::new();
    source.insert("small".into(), SourceFile::random(&mut Random::new(4), 16_384, 30_000));
    let (last, _) = world.backup(&source, small_packs());
    let log = &world.log;
    // The last is so close that the run may have existed.
    for (number, is_far) in [("9999999998", true), ("0000005000", true), ("0000000060", false)] {
        for folders in [&["runs/N/000000"][..], &["outcomes/N"], &["runs/N/000000", "outcomes/N"]] {
            let world = reopened(&world);
            let run = Run::begin(&world.repo, log, &run_options()).unwrap();
            assert!(run.no() > last);
            for folder in folders {
                let name = format!("{}{}", log.prefix(), folder.replace('N', number));
                world.store.create_if_absent(&ObjectPath::new(name).unwrap(), b"{}").unwrap();
            }
            let found = active(&world.repo, log).unwrap().map(|active| active.run);
            assert_eq!(found, Some(run.no()), "{folders:?} {number}");
            assert_eq!(standing(&world.repo, log).unwrap(), Standing::Alive, "{folders:?} {number}");
            run.abandon("it was only to be seen").unwrap();
            let is_idle = standing(&world.repo, log).unwrap() == Standing::Idle;
            assert!(is_idle || !is_far, "{folders:?} {number}");
        }
    }
}

/// Creating a name costs nothing, and the name can contain any number.
#[test]
fn names_with_made_up_numbers_cost_nobody_time_or_numbers() {
    let world = World::new(Suite::None);
    let mut random = Random::new(4);
    let mut source = Source::new();
    source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
    for _ in 0..3 {
        world.backup(&source, small_packs());
        source.get_mut("small").unwrap().change(&mut random, 0);
    }
    let kept = world.history().newest_backup().unwrap();
    let last = {
        let mut source = source.clone();
        let (run, _) = world.backup(&source, small_packs());
        source.get_mut("small").unwrap().change(&mut random, 0);
        run
    };
    assert!(last > kept);
    let log = &world.log;
    for number in ["9999999998", "9999999999", "0000005000"] {
        let folders = [
            "outcomes/N",
            "runs/N/000000",
            "packs/N-000000",
            "refs/N",
            "index/N-000000",
            "reports/N",
            "checks/N",
        ];
        for folder in folders {
            let world = reopened(&world);
            let name = format!("{}{}", log.prefix(), folder.replace('N', number));
            let path = ObjectPath::new(name.clone()).unwrap();
            world.store.create_if_absent(&path, b"{}").unwrap();
            let mut told = 0;
            let history = History::salvage(&world.repo, log, &mut |_, _| told += 1).unwrap();
            assert!(told <= 1 && history.newest_backup() == Some(last), "{name}");
            world.assert_is(last, &source);
            let report = look(&world, Some(1.0));
            assert!(report.findings.len() <= 2, "{name}: {:?}", report.findings);
            assert!(report.findings.iter().all(|it| it.severity == Severity::Repairable), "{name}");
            let is_told = report.findings.iter().any(|it| it.object.contains(number));
            assert!(is_told || folder.starts_with("packs") || folder.starts_with("index"), "{name}");
            assert!(mend(&world).dropped.is_empty(), "{name}");
            let (run, _) = world.backup(&source, small_packs());
            assert!(run.0 < 100, "{name}: {run}");
            world.assert_is(run, &source);
        }
    }
    // This number is so close that the run may have existed: a repair ends all runs that may have existed.
    let name = format!("{}runs/{:010}/000000", log.prefix(), last.0 + 60);
    world.store.create_if_absent(&ObjectPath::new(name).unwrap(), b"{}").unwrap();
    let world = reopened(&world);
    assert!(Run::begin(&world.repo, log, &run_options()).is_err());
    mend(&world);
    let (run, _) = world.backup(&source, small_packs());
    world.assert_is(run, &source);
}
