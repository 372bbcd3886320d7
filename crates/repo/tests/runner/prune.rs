use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    ChunkRef, Folder, PackId, Repo, RunNo,
    data::{
        reader::{Backup, ChunkSource},
        writer::{BackupWriter, ChunkRewriter, Foundation, WriterOptions},
    },
    format::{
        item::Item,
        pack::{Directory, TRAILER_BYTES, Trailer, directory_seal_context},
        place::{ObjectKind, Place},
    },
    log::{
        outcome::{Intent, OutcomeType},
        run::BeginError,
    },
    ops::{
        check::{CheckOptions, check},
        expire::{ExpireRequest, expire},
        prune::{PruneError, PruneOptions, PrunePlan, Pruned, plan_prune, prune},
        repair::repair,
    },
    store::{
        Store,
        faulty::{Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};

use crate::{
    damage::{copy, objects},
    world::*,
};

/// Puts everything in a backup into one pack, so that packs become partly dead.
pub(crate) fn large_packs() -> WriterOptions {
    WriterOptions { pack_target_bytes: 16 << 20, ..small_packs() }
}

pub(crate) fn prune_all(world: &World) -> u64 {
    try_prune(world, &world.repo, large_packs()).unwrap().declared.rewrite.len() as u64
}

/// Prunes through `repo`, another handle of the same store.
pub(crate) fn try_prune(
    world: &World,
    repo: &Arc<Repo>,
    writing: WriterOptions,
) -> Result<Pruned, PruneError> {
    prune(repo, &world.log, &at_once(), Some(&mut rewriter(world, repo, writing)), &run_options())
}

fn rewriter(world: &World, repo: &Arc<Repo>, writing: WriterOptions) -> ChunkRewriter {
    let source = ChunkSource::new(Arc::clone(repo), &world.history(), 8 << 20).unwrap();
    ChunkRewriter::new(Arc::new(source), writing)
}

/// Without any grace period.
pub(crate) fn at_once() -> PruneOptions {
    PruneOptions {
        grace: Duration::ZERO,
        resume_window: Duration::ZERO,
        rewrite_below_percent: 90,
        ..PruneOptions::default()
    }
}

pub(crate) fn drop_backups(world: &World, runs: &[RunNo]) {
    expire(&world.repo, &world.log, &ExpireRequest::Exactly(runs.to_vec()), &run_options()).unwrap();
}

/// Backups #1 to #3; the newest needs a part of each one's pack.
pub(crate) fn world_of_three() -> (World, Source) {
    world_of_three_in(World::new(Suite::X25519Aes256Gcm), large_packs)
}

fn world_of_three_in(world: World, packs: fn() -> WriterOptions) -> (World, Source) {
    let mut random = Random::new(29);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 9_000 * 1024));
    world.backup(&source, packs());
    for changed in [0..4_000, 2_000..7_000] {
        for page in changed {
            source.get_mut("big").unwrap().change(&mut random, page);
        }
        world.backup(&source, packs());
    }
    (world, source)
}

/// The number of existing packs that a prune has declared dead.
pub(crate) fn dead_packs(world: &World) -> usize {
    let prunes = world.history().all_prunes(&world.repo).unwrap();
    let packs = packs(world);
    packs.iter().filter(|pack| prunes.is_dead(**pack)).count()
}

fn packs(world: &World) -> Vec<PackId> {
    let prefix = world.log.folder(Folder::Packs);
    let mut packs = Vec::new();
    world
        .store
        .list(&prefix, &mut |info| {
            let name = info.path.as_str().strip_prefix(&prefix).unwrap();
            let (run, part) = Folder::Packs.parse(name).unwrap();
            packs.push(PackId { run, part });
            true
        })
        .unwrap();
    packs
}

#[test]
fn what_is_due_is_swept_where_no_run_can_begin() {
    let (ripe, source) = world_of_three();
    drop_backups(&ripe, &[RunNo(1)]);
    prune_all(&ripe);
    drop_backups(&ripe, &[RunNo(2)]);
    assert!(dead_packs(&ripe) > 0);

    let world = copy(&ripe, &objects(&ripe));
    let full = FaultyStore::new(Arc::new(world.store.clone()), |call| {
        matches!(call.op, Op::Create | Op::Put).then_some(Fault::Error)
    });
    let repo = Arc::new(open_repo(Arc::new(full), world.suite));
    let error = try_prune(&world, &repo, large_packs()).unwrap_err();
    assert!(matches!(error, PruneError::Begin(BeginError::Repo(_))), "{error}");
    assert_eq!(dead_packs(&world), 0);
    world.assert_is(RunNo(3), &source);

    let world = copy(&ripe, &objects(&ripe));
    let active = world.begin();
    let error = try_prune(&world, &world.repo, large_packs()).unwrap_err();
    assert!(matches!(error, PruneError::Begin(BeginError::Active(_))), "{error}");
    assert_eq!(dead_packs(&world), 0);
    drop(active);
    assert!(!try_prune(&world, &world.repo, large_packs()).unwrap().declared.declares_nothing());
    world.assert_is(RunNo(3), &source);
}

/// Readers of packs that wait a while until this many of them are present at once.
struct Meeting {
    of: usize,
    there: Mutex<usize>,
    come: Condvar,
}

impl Meeting {
    fn new(of: usize) -> Arc<Self> {
        Arc::new(Self { of, there: Mutex::new(0), come: Condvar::new() })
    }

    /// Once they have met, nobody waits again; a lone reader continues after a timeout.
    fn wait(&self) {
        let mut there = self.there.lock().unwrap();
        *there += 1;
        self.come.notify_all();
        let too_few = |there: &mut usize| *there < self.of;
        let (mut there, waited) =
            self.come.wait_timeout_while(there, Duration::from_secs(2), too_few).unwrap();
        if waited.timed_out() {
            *there -= 1;
        }
    }

    fn has_met(&self) -> bool {
        *self.there.lock().unwrap() >= self.of
    }
}

/// If every response takes long, several chunks are requested at a time: before a run, and within it.
#[test]
fn a_far_store_is_asked_for_several_chunks_at_a_time() {
    const AT_ONCE: usize = 4;
    let (world, source) = world_of_three();
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    let (before, within) = (Meeting::new(AT_ONCE), Meeting::new(AT_ONCE));
    let (early, late) = (Arc::clone(&before), Arc::clone(&within));
    let is_within = AtomicBool::new(false);
    let far = FaultyStore::far_away(Arc::new(world.store.clone()), AT_ONCE, move |call| {
        if call.op == Op::Create {
            is_within.store(true, Ordering::SeqCst);
        }
        if call.op == Op::Read && call.path.contains("/packs/") {
            let meeting = if is_within.load(Ordering::SeqCst) { &late } else { &early };
            meeting.wait();
        }
        None
    });
    let repo = Arc::new(open_repo(Arc::new(far), world.suite));
    let pruned = try_prune(&world, &repo, large_packs()).unwrap();
    assert!(!pruned.declared.rewrite.is_empty() && pruned.declared.unreadable.is_empty(), "{pruned:?}");
    assert!(before.has_met(), "chunks are checked one after the other");
    assert!(within.has_met(), "chunks are written anew one after the other");
    world.assert_is(RunNo(3), &source);
}

/// Two dropped backups, so that packs are wholly or partly dead, and the parts still
/// needed exceed `room` bytes.
fn world_with_little_room(store: MemStore, room: u64) -> (World, Source) {
    let (world, source) = world_of_three_in(World::over(store, Suite::X25519Aes256Gcm), small_packs);
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    let wanted = try_plan(&world);
    assert!(!wanted.dead.is_empty(), "{wanted:?}");
    assert!(wanted.rewrite.iter().map(|pack| pack.live_bytes).sum::<u64>() > room, "{wanted:?}");
    (world, source)
}

pub(crate) fn try_plan(world: &World) -> PrunePlan {
    let mut rewriter = rewriter(world, &world.repo, small_packs());
    plan_prune(&world.repo, &mut world.history(), &at_once(), Some(&mut rewriter)).unwrap()
}

/// As on an object store, which does not report its free space, or if someone else fills the disk meanwhile.
#[test]
fn what_is_dead_is_declared_where_nothing_can_be_written_anew() {
    let (world, source) = world_with_little_room(MemStore::new(), 600 << 10);
    let (memory, limit) = (world.store.clone(), world.store.used_bytes() + (500 << 10));
    let full = FaultyStore::new(Arc::new(world.store.clone()), move |call| {
        let writes = matches!(call.op, Op::Write | Op::Finish | Op::Create);
        (writes && memory.used_bytes() > limit).then_some(Fault::Error)
    });
    let repo = Arc::new(open_repo(Arc::new(full), world.suite));
    let error = try_prune(&world, &repo, small_packs()).unwrap_err();
    let PruneError::NotRewritten { declared, .. } = error else { panic!("{error}") };
    assert!(!declared.dead.is_empty() && declared.rewrite.is_empty(), "{declared:?}");
    let history = world.history();
    let last = history.outcomes().last().unwrap();
    assert_eq!(last.outcome_type, OutcomeType::Prune);
    assert_eq!(dead_packs(&world), declared.dead.len());
    assert!(packs(&world).iter().all(|pack| pack.run != last.run), "what it wrote is in the way");
    world.assert_is(RunNo(3), &source);

    let pruned = try_prune(&world, &world.repo, small_packs()).unwrap();
    assert_eq!(pruned.swept.packs, declared.dead.len() as u64);
    assert!(!pruned.declared.rewrite.is_empty());
    world.assert_is(RunNo(3), &source);
}

#[test]
fn writing_anew_takes_half_of_what_is_free_at_most() {
    let (world, source) = world_with_little_room(MemStore::new(), 400 << 10);
    world.store.set_capacity(Some(world.store.used_bytes() + (800 << 10)));
    let declared = try_prune(&world, &world.repo, small_packs()).unwrap().declared;
    assert!(!declared.dead.is_empty() && declared.postponed_bytes > 0, "{declared:?}");
    assert!(declared.rewrite.iter().map(|pack| pack.live_bytes).sum::<u64>() <= 400 << 10, "{declared:?}");
    world.store.set_capacity(None);
    let declared = try_prune(&world, &world.repo, small_packs()).unwrap().declared;
    assert!(!declared.rewrite.is_empty() && declared.postponed_bytes == 0, "{declared:?}");
    world.assert_is(RunNo(3), &source);
}

#[test]
fn what_a_prune_left_that_died_goes_with_the_next_one() {
    let clock = ManualClock::default();
    let (world, source) = world_with_little_room(MemStore::with_clock(clock.clone()), 600 << 10);
    let dying = FaultyStore::scripted(Arc::new(world.store.clone()), 1, Fault::CrashAfter, |call| {
        call.op == Op::Finish && call.path.contains("/packs/")
    });
    let repo = Arc::new(open_repo(Arc::new(dying), world.suite));
    let died = world.history().next_run();
    try_prune(&world, &repo, small_packs()).unwrap_err();
    let left = |world: &World| packs(world).into_iter().filter(|pack| pack.run == died).count();
    assert!(left(&world) > 0);
    clock.advance(Duration::from_secs(3600));
    let (run, _) = world.backup(&source, small_packs());
    let history = world.history();
    let tombstone = history.outcome(died).unwrap();
    assert_eq!((tombstone.outcome_type, tombstone.intent), (OutcomeType::Tombstone, Some(Intent::Prune)));
    // By default such leftovers wait for a week, and then for a day.
    prune(&world.repo, &world.log, &PruneOptions::default(), None, &run_options()).unwrap();
    assert_eq!(left(&world), 0);
    world.assert_is(run, &source);
}

/// A chunk in the first backup's pack that the newest of three backups needs, and the offset where it begins.
fn needed_chunk(world: &World) -> (ChunkRef, usize) {
    let refs = world.history().backup_refs(&world.repo, RunNo(3)).unwrap();
    let pack = refs.packs.iter().find(|pack| pack.pack.run == RunNo(1)).unwrap();
    let ordinal = pack.chunks.iter().rposition(|chunk| chunk.needed > 0).unwrap();
    let rows = world.open(RunNo(3)).unwrap().source().pack(pack.pack).unwrap();
    let before: u64 = rows.rows()[..ordinal].iter().map(|row| u64::from(row.sealed_len)).sum();
    (ChunkRef { pack: pack.pack, ordinal: ordinal as u32 }, 116 + before as usize)
}

#[test]
fn what_cannot_be_read_is_told_and_keeps_nothing_else_from_being_freed() {
    let (world, source) = world_of_three();
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    let (chunk, offset) = needed_chunk(&world);
    let path = world.log.pack(chunk.pack);
    let flip = || assert!(world.store.damage(&path, |bytes| bytes[offset + 7] ^= 1));
    flip();
    let declared = try_prune(&world, &world.repo, large_packs()).unwrap().declared;
    assert!(!declared.rewrite.is_empty(), "{declared:?}");
    assert!(declared.rewrite.iter().all(|pack| pack.pack != chunk.pack), "{declared:?}");
    let [unreadable] = &declared.unreadable[..] else { panic!("{declared:?}") };
    assert_eq!(unreadable.object, format!("{path}, chunk {}", chunk.ordinal));

    // The unreadable chunk does not make later prunes begin needless runs.
    let next = world.history().next_run();
    let pruned = try_prune(&world, &world.repo, large_packs()).unwrap();
    assert_eq!((world.history().next_run(), pruned.declared.unreadable.len()), (next, 1));
    assert!(pruned.swept.packs > 0);

    flip();
    assert_eq!(prune_all(&world), 1);
    prune_all(&world);
    assert_eq!(dead_packs(&world), 0);
    world.assert_is(RunNo(3), &source);
}

#[test]
fn a_backup_heals_what_its_base_has_lost_since_it_moved() {
    let (pristine, source) = world_of_three();
    drop_backups(&pristine, &[RunNo(1), RunNo(2)]);
    // The packs whose chunks were moved still exist.
    let moved = try_prune(&pristine, &pristine.repo, small_packs()).unwrap().declared;
    assert!(!moved.rewrite.is_empty());
    let prune = pristine.history().outcomes().last().unwrap().run;
    let targets: Vec<PackId> = packs(&pristine).into_iter().filter(|pack| pack.run == prune).collect();
    assert!(targets.len() > 1, "{targets:?}");
    for lost in targets {
        let world = copy(&pristine, &objects(&pristine));
        world.store.delete(&[world.log.pack(lost)]).unwrap();
        let (run, _) = world.backup(&source, small_packs());
        world.assert_is(run, &source);
    }
}

/// A restore that takes longer than the grace period, while prunes move what it reads, twice.
#[test]
fn what_moves_while_it_is_read_is_found_where_it_went() {
    for suite in [Suite::None, Suite::X25519Aes256Gcm] {
        let (world, source) = world_of_three_in(World::over(MemStore::new(), suite), large_packs);
        let [backup, unread] = [(); 2].map(|()| world.open(RunNo(3)).unwrap());
        let items: Vec<Item> = backup.items().collect::<Result<_, _>>().unwrap();
        let wants = wants(&backup, &items);
        let before = packs(&world);
        for dropped in [1, 2] {
            drop_backups(&world, &[RunNo(dropped)]);
            assert!(prune_all(&world) > 0);
        }
        prune_all(&world);
        let gone = before.iter().filter(|pack| !packs(&world).contains(pack)).count();
        assert!(gone > 0 && dead_packs(&world) == 0);
        assert_fetched(&backup, &items, &wants, &source);
        for item in unread.items() {
            let item = item.unwrap();
            assert!(read_whole(&unread, &item).unwrap() == source[&item.path.to_string()].bytes);
        }
    }
}

/// As above, of a backup that was dropped meanwhile: moves are followed from where they were when it stood.
#[test]
fn what_has_moved_twice_is_found_by_those_who_read_what_was_dropped() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut random = Random::new(31);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, 4_000 * 1024));
    source.insert("kept".into(), SourceFile::random(&mut random, 1024, 8 * 1024));
    let mut change_and_backup = |pages: std::ops::Range<u64>| {
        pages.for_each(|page| source.get_mut("big").unwrap().change(&mut random, page));
        world.backup(&source, large_packs()).0
    };
    let first = change_and_backup(0..0);
    let second = change_and_backup(0..3_000);
    drop_backups(&world, &[first]);
    assert!(prune_all(&world) > 0);
    let kept = |backup: &Backup| {
        backup.items().map(Result::unwrap).find(|item| item.path.to_string() == "kept").unwrap()
    };
    let reader = world.open(second).unwrap();
    let item = kept(&reader);
    let third = change_and_backup(2_000..4_000);
    drop_backups(&world, &[second]);
    assert!(prune_all(&world) > 0);
    prune_all(&world);
    let whole = &source["kept"].bytes;
    assert!(read_whole(&reader, &item).unwrap() == *whole);
    let stands = world.open(third).unwrap();
    assert!(read_whole(&stands, &kept(&stands)).unwrap() == *whole);
}

/// What a prune has moved concerns only backups that are older than it.
#[test]
fn a_prune_before_the_oldest_backup_that_stands_is_asked_only_by_those_who_delete() {
    let (world, source) = world_of_three();
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    assert!(prune_all(&world) > 0);
    let record = world.log.refs(world.history().outcomes().last().unwrap().run);
    let (run, _) = world.backup(&source, small_packs());
    let older = copy(&world, &objects(&world));
    older.store.delete(std::slice::from_ref(&record)).unwrap();
    assert!(older.open(RunNo(3)).is_err());

    drop_backups(&world, &[RunNo(3)]);
    for _ in 0..2 {
        prune_all(&world);
        world.assert_is(run, &source);
    }
    world.assert_sound();
    world.store.delete(&[record]).unwrap();
    world.assert_is(run, &source);
    let (next, totals) = world.backup(&source, small_packs());
    assert_eq!(totals.bytes_new, 0);
    world.assert_is(next, &source);
    assert!(try_prune(&world, &world.repo, large_packs()).is_err());
    assert!(!world.check_all().findings.is_empty());
}

/// Others drop backups, move data that is still needed and delete unneeded data, at any point of the check.
#[test]
fn a_check_beside_an_expiry_and_prunes_finds_nothing() {
    let (pristine, _) = world_of_three();
    let mut disturbed = 0;
    for at in (1..).step_by(9) {
        let world = Arc::new(copy(&pristine, &objects(&pristine)));
        let other = Arc::clone(&world);
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let store = FaultyStore::new(Arc::new(world.store.clone()), move |call| {
            if call.number >= at && call.path.starts_with("sources/") && !done.swap(true, Ordering::SeqCst) {
                drop_backups(&other, &[RunNo(1), RunNo(2)]);
                assert!(prune_all(&other) > 0);
                prune_all(&other);
            }
            None
        });
        let repo = Arc::new(open_repo(Arc::new(store), world.suite));
        let options = CheckOptions { read_data: Some(1.0), threads: 1, ..CheckOptions::default() };
        let report = check(&repo, &world.log, options).unwrap();
        assert!(report.findings.is_empty(), "disturbed at call {at}: {:?}", report.findings);
        assert_eq!(report.packs, report.packs_read);
        if !is_done.load(Ordering::SeqCst) {
            break;
        }
        disturbed += 1;
    }
    assert!(disturbed > 5, "{disturbed}");
}

#[test]
fn packs_that_were_swept_after_their_chunks_moved_are_not_missed() {
    let (world, source) = world_of_three();
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    prune_all(&world);
    let swept = try_prune(&world, &world.repo, large_packs()).unwrap().swept;
    assert!(swept.packs > 0);
    let (run, totals) = world.backup_with(small_packs(), |writer| {
        assert_eq!(writer.meters().base_unreadable.units(), 0);
        give_all(writer, &source, 2)
    });
    assert_eq!(totals.bytes_new, 0);
    world.assert_is(run, &source);
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
            // Contiguous ranges, so that whole chunks die, and scattered pages.
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
            let report = world.check_all();
            assert!(report.findings.is_empty(), "round {round}: {:?}", report.findings);
        }
        assert!(rewritten > 3, "hardly anything was written anew: {rewritten}");
    }
}

/// A missing pack frees nothing. It prevents nothing else from being freed, except leftovers of later runs
/// that were ended by others: one of those may have been a prune that had moved the pack's contents there.
#[test]
fn a_pack_that_is_gone_keeps_nothing_else_from_being_freed() {
    let world = World::new(Suite::X25519Aes256Gcm);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut Random::new(31), 1024, 3_000 * 1024));
    let give = |writer: &BackupWriter| give_all(writer, &source, 1);
    for _ in 0..3 {
        world.try_backup_on(Foundation::none, small_packs(), give).unwrap();
    }
    let stray = world.begin();
    let writer = BackupWriter::new(&stray, &Foundation::none(stray.history()), small_packs()).unwrap();
    give(&writer).unwrap();
    writer.finish(&stray).unwrap();
    stray.abandon("test").unwrap();
    let lost = PackId { run: RunNo(2), part: 0 };
    world.store.delete(&[world.log.pack(lost)]).unwrap();
    drop_backups(&world, &[RunNo(1)]);
    let dead_of =
        |plan: &PrunePlan| -> BTreeSet<RunNo> { plan.dead.iter().map(|(pack, _)| pack.run).collect() };
    let declared = try_prune(&world, &world.repo, large_packs()).unwrap().declared;
    assert_eq!(
        dead_of(&declared),
        BTreeSet::from([RunNo(1), RunNo(4)]),
        "what ended itself has moved nothing"
    );
    assert_eq!(declared.missing.iter().map(|it| it.pack).collect::<Vec<_>>(), [lost]);
    drop_backups(&world, &[RunNo(2)]);
    let declared = try_prune(&world, &world.repo, large_packs()).unwrap().declared;
    assert_eq!(dead_of(&declared), BTreeSet::from([RunNo(2)]));
    assert_eq!(declared.missing.len(), 0);
    world.assert_is(RunNo(3), &source);
}

/// Data moved by a prune whose outcome is missing look like leftovers of an unfinished run: other prunes
/// leave them for a repair to find.
#[test]
fn what_a_lost_prune_had_moved_is_there_after_other_prunes() {
    let clock = ManualClock::default();
    let world = World::over(MemStore::with_clock(clock.clone()), Suite::X25519Aes256Gcm);
    let (world, source) = world_of_three_in(world, large_packs);
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    assert!(prune_all(&world) > 0);
    let after = try_prune(&world, &world.repo, large_packs()).unwrap();
    assert!(after.swept.packs > 0 && after.declared.declares_nothing());
    let lost = world.history().outcomes().last().unwrap().run;
    clock.advance(Duration::from_secs(3600));
    world.store.delete(&[world.log.outcome(lost)]).unwrap();
    let world = copy(&world, &objects(&world));
    for _ in 0..2 {
        let declared = try_prune(&world, &world.repo, large_packs()).unwrap().declared;
        assert!(!declared.missing.is_empty() && declared.unfinished_bytes > 0);
    }
    let options = CheckOptions { read_data: Some(1.0), threads: 1, ..CheckOptions::default() };
    let mended = repair(&world.repo, &world.log, &options, &mut |_| true, &run_options()).unwrap();
    assert!(mended.dropped.is_empty());
    world.assert_is(RunNo(3), &source);
}

/// A page that was damaged before it was sealed is detected by its hash in the directory, and by nothing
/// else: a prune does not rewrite it with the hash of the damaged contents.
#[test]
fn what_a_check_finds_it_finds_behind_a_prune() {
    let (world, _) = world_of_three();
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    let (chunk, _) = needed_chunk(&world);
    let pack = chunk.pack;
    let path = world.log.pack(pack);
    let place = Place { log: &world.log, kind: ObjectKind::Pack, run: pack.run, part: pack.part };
    let is_damaged = world.store.damage(&path, |bytes| {
        let end = bytes.len() - TRAILER_BYTES;
        let trailer = Trailer::decode(bytes.last_chunk().unwrap(), bytes.len() as u64).unwrap();
        let key = world.repo.object_key(&place, bytes.first_chunk().unwrap()).unwrap();
        let context = directory_seal_context(trailer.plain_len);
        let sealed = &mut bytes[trailer.offset as usize..end];
        let mut directory = Directory::decode(key.open(context, sealed).unwrap()).unwrap();
        directory.hashes.iter_mut().for_each(|hash| hash.0[0] ^= 1);
        let mut resealed = directory.encode();
        key.seal(context, &mut resealed);
        bytes[trailer.offset as usize..end].copy_from_slice(&resealed);
    });
    assert!(is_damaged);
    let finds = || {
        let found = world.check_all().findings;
        found.iter().any(|finding| format!("{finding:?}").contains("differs from that in the directory"))
    };
    assert!(finds());
    let declared = try_prune(&world, &world.repo, large_packs()).unwrap().declared;
    assert!(declared.rewrite.iter().all(|rewritten| rewritten.pack != pack), "{declared:?}");
    assert!(declared.unreadable.iter().any(|found| found.object.starts_with(path.as_str())), "{declared:?}");
    assert!(finds());
}

/// Concurrent readers of chunks in one pack do not each read the pack's directory.
#[test]
fn a_pack_that_is_written_anew_is_asked_once_what_it_holds() {
    let (world, _) = world_of_three();
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    let asked = Arc::new((Mutex::new(BTreeMap::<String, u64>::new()), Condvar::new()));
    let asking = Arc::clone(&asked);
    let packs = world.log.folder(Folder::Packs);
    let store = FaultyStore::far_away(Arc::new(world.store.clone()), 16, move |call| {
        if call.op == Op::Head && call.path.starts_with(&packs) {
            let (counts, changed) = &*asking;
            let mut counts = counts.lock().unwrap();
            *counts.entry(call.path.to_owned()).or_default() += 1;
            changed.notify_all();
            // Gives another reader that is about to ask time to do so.
            let is_alone = |counts: &mut BTreeMap<String, u64>| counts[call.path] < 2;
            drop(changed.wait_timeout_while(counts, Duration::from_millis(200), is_alone).unwrap());
        }
        None
    });
    let repo = Arc::new(open_repo(Arc::new(store), world.suite));
    let mut rewriter = rewriter(&world, &repo, large_packs());
    let plan = plan_prune(&repo, &mut world.history(), &at_once(), Some(&mut rewriter)).unwrap();
    assert!(plan.rewrite.iter().any(|pack| pack.ordinals.len() > 1));
    let asked = asked.0.lock().unwrap();
    assert!(plan.rewrite.iter().all(|pack| asked[world.log.pack(pack.pack).as_str()] == 1), "{asked:?}");
}

/// A plan can be made where nothing may be written, as of a copy that is mounted read-only; a prune is refused there.
#[test]
fn a_plan_needs_no_right_to_write() {
    let (world, _) = world_of_three_in(World::new(Suite::X25519Aes256Gcm), small_packs);
    drop_backups(&world, &[RunNo(1), RunNo(2)]);
    let store = FaultyStore::new(Arc::new(world.store.clone()), |call| {
        (call.op.changes() || matches!(call.op, Op::Put | Op::Now | Op::Sweep)).then_some(Fault::Denied)
    });
    let closed = world.through(store);
    let (planned, wanted) = (try_plan(&closed), try_plan(&world));
    assert!(!wanted.dead.is_empty(), "{wanted:?}");
    assert_eq!(planned.dead, wanted.dead);
    let before = objects(&world);
    prune(&closed.repo, &closed.log, &at_once(), None, &run_options()).unwrap_err();
    assert_eq!(objects(&world), before);
}
