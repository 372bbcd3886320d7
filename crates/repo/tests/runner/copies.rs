//! Copies of backups to another repository: whatever happens on the way, the copy equals the original.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use holdfast_pipe::{Compression, Suite};
use holdfast_repo::{
    Kind, LogName, PackId, Password, Repo, RepoError, Role, RunNo,
    data::writer::WriterOptions,
    format::manifest::Head,
    forward_store,
    keys::{KdfParams, NewSlot},
    log::{
        history::History,
        run::{BeginError, FinishError},
    },
    ops::{
        copy::{Copied, Copier, CopyError, CopyOptions, CopyReport, Verdict},
        expire::{ExpireRequest, Rules, expire, plan_expire},
        keys::{NewKey, add},
        retention::RetentionPolicy,
    },
    store::{
        ObjectPath, Store, StoreError,
        faulty::{Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};

use crate::{
    damage::{copy as snapshot, objects},
    prune::prune_all,
    world::*,
};

const MINUTES_16: Duration = Duration::from_secs(16 * 60);

fn options() -> CopyOptions {
    CopyOptions {
        run: run_options(),
        writer: WriterOptions { index_every: Duration::ZERO, ..small_packs() },
        threads: 2,
        memory_bytes: 80 << 20,
        ..CopyOptions::default()
    }
}

fn copy(from: &World, to: &World, run: u64) -> Result<Copied, CopyError> {
    copy_with(from, to, run, options())
}

fn copy_with(from: &World, to: &World, run: u64, options: CopyOptions) -> Result<Copied, CopyError> {
    let history = from.history();
    Copier::new(&from.repo, &history, &to.repo, to.log.source.clone(), options)?.copy(RunNo(run))
}

fn copied(from: &World, to: &World, run: u64) -> CopyReport {
    match copy(from, to, run).unwrap() {
        Copied::Now(report) => report,
        Copied::WasThere(run) => panic!("was there as {run}"),
    }
}

fn plan(from: &World, to: &World) -> Vec<(u64, Verdict)> {
    let history = from.history();
    let runs: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
    let mut copier = Copier::new(&from.repo, &history, &to.repo, to.log.source.clone(), options()).unwrap();
    copier.plan(&runs).unwrap().into_iter().map(|(run, verdict)| (run.0, verdict)).collect()
}

fn drop_backup(world: &World, run: u64) {
    let request = ExpireRequest::Exactly(vec![RunNo(run)]);
    expire(&world.repo, &world.log, &request, &options().run).unwrap();
}

/// Files of every shape, in four states, and a world with a backup of each state.
fn four_backups(suite: Suite, clock: Option<&ManualClock>) -> (World, Vec<Source>) {
    four_backups_of(suite, clock, 2)
}

/// The same, smaller by a factor of `less`.
fn four_backups_of(suite: Suite, clock: Option<&ManualClock>, less: u64) -> (World, Vec<Source>) {
    let big = 9_000 / less;
    let store = clock.map_or_else(MemStore::new, |clock| MemStore::with_clock(clock.clone()));
    let world = World::over(store, suite);
    let mut random = Random::new(41);
    let mut source = Source::new();
    source.insert("big".into(), SourceFile::random(&mut random, 1024, big as usize * 1024));
    source.insert("holes".into(), SourceFile::random(&mut random, 4096, 5_000 / less as usize * 4096));
    source.insert("middle".into(), SourceFile::random(&mut random, 16_384, 100 / less as usize * 16_384));
    source.insert("#redo".into(), SourceFile::random(&mut random, 16_384, 30_001));
    for table in 0..40 {
        let mut file = SourceFile::random(&mut random, 16_384, 20_000);
        file.space = Some(100 + table);
        source.insert(format!("shop/t{table:02}.ibd"), file);
    }
    let mut states = Vec::new();
    for round in 0..4_u64 {
        if let Some(clock) = clock {
            clock.advance(Duration::from_secs(24 * 3600));
        }
        if round > 0 {
            for page in [5 + round, big / 13, big / 2, big - 1] {
                source.get_mut("big").unwrap().change(&mut random, page);
            }
            for page in round * 30..round * 30 + 20 {
                source.get_mut("holes").unwrap().zero(page, page % 2 == 0);
            }
            source.insert("#redo".into(), SourceFile::random(&mut random, 16_384, 40_000 * round as usize));
            // Rename one file, and drop its neighbour.
            let renamed = source.remove(&format!("shop/t{round:02}.ibd")).unwrap();
            source.insert(format!("shop/renamed{round}.ibd"), renamed);
            source.remove(&format!("shop/t{:02}.ibd", 20 + round));
        }
        let (run, _) = world.backup(&source, small_packs());
        assert_eq!(run.0, round + 1);
        states.push(source.clone());
    }
    (world, states)
}

/// All backups arrive intact, and a second copy does nothing.
#[test]
fn copies_are_what_they_are_copies_of_and_are_known_again() {
    for (from, to) in
        [(Suite::X25519Aes256Gcm, Suite::X25519Aes256Gcm), (Suite::X25519Aes256Gcm, Suite::None)]
    {
        let (from, states) = four_backups_of(from, None, 1);
        let to = World::new(to);
        assert!(plan(&from, &to).iter().all(|(_, verdict)| *verdict == Verdict::Copy));
        let mut reports = Vec::new();
        for (run, state) in (1..).zip(&states) {
            reports.push(copied(&from, &to, run));
            to.assert_is(RunNo(run), state);
        }
        assert!(!reports[0].compared_by_maps && reports[1..].iter().all(|report| report.compared_by_maps));
        let whole = reports[0].bytes_read;
        for report in &reports[1..] {
            assert!(report.bytes_read < whole / 20, "unchanged pages were read: {report:?}");
            assert!(report.totals.bytes_stored < reports[0].totals.bytes_stored / 15, "{report:?}");
            assert_eq!(report.totals.bytes, from.open(RunNo(report.backup)).unwrap().head().totals.bytes);
        }
        to.assert_sound();
        let outcomes = to.history().outcomes().len();
        for (run, (planned, verdict)) in (1..).zip(plan(&from, &to)) {
            assert_eq!((planned, verdict), (run, Verdict::IsThere(RunNo(run))));
            assert_eq!(copy(&from, &to, run).unwrap(), Copied::WasThere(RunNo(run)));
        }
        assert_eq!(to.history().outcomes().len(), outcomes, "no run was begun");

        let origin = to.history().outcome(RunNo(3)).unwrap().copy_of.clone().unwrap();
        assert_eq!(origin.repository, from.repo.info().repository_id);
        assert_eq!((origin.run, origin.outcome), (3, from.history().outcome(RunNo(3)).unwrap().hash));
        assert_eq!(
            to.history().outcome(RunNo(3)).unwrap().taken_at(),
            from.history().outcome(RunNo(3)).unwrap().at
        );
    }
}

/// Chunks whose pages are all new keep their compression, and are recompressed on request; either way, the
/// pages are the same.
#[test]
fn chunks_stay_as_they_are_compressed() {
    let (from, states) = four_backups(Suite::X25519Aes256Gcm, None);
    let stored = |keep_chunks| {
        let to = World::new(Suite::None);
        let none = WriterOptions { compression: Compression::None, ..options().writer };
        let options = CopyOptions { keep_chunks, writer: none, ..options() };
        let stored = [1, 2].map(|run| match copy_with(&from, &to, run, options.clone()).unwrap() {
            Copied::Now(report) => report.totals.bytes_stored,
            Copied::WasThere(run) => panic!("was there as {run}"),
        });
        to.assert_is(RunNo(1), &states[0]);
        to.assert_is(RunNo(2), &states[1]);
        to.assert_sound();
        stored
    };
    let (kept, anew) = (stored(true), stored(false));
    let taken = from.open(RunNo(1)).unwrap().head().totals;
    assert!(anew[0] > taken.bytes * 9 / 10 && anew[0] > kept[0] * 2, "{kept:?} {anew:?}");
    assert!(kept[0] < taken.bytes_stored * 11 / 10, "{kept:?} {taken:?}");
}

/// A copy of a copy is recognised as the same backup, both on the way back and when it reaches a third
/// repository in two ways.
#[test]
fn copies_of_copies_are_the_same_backup() {
    let (first, states) = four_backups(Suite::None, None);
    let (second, third) = (World::new(Suite::X25519Aes256Gcm), World::new(Suite::None));
    for run in 1..=4 {
        copied(&first, &second, run);
    }
    assert!(plan(&second, &first).iter().all(|(_, verdict)| matches!(verdict, Verdict::IsThere(_))));
    copied(&second, &third, 1);
    copied(&second, &third, 2);
    let by_the_other_way = copied(&first, &third, 3);
    assert!(by_the_other_way.compared_by_maps);
    let found = plan(&first, &third);
    assert!(found[..3].iter().all(|(_, verdict)| matches!(verdict, Verdict::IsThere(_))), "{found:?}");
    for (run, state) in (1..=3).zip(&states) {
        third.assert_is(RunNo(run), state);
    }
}

/// The target has its own history: backups dropped there stay dropped, and nothing older
/// is added after the newest.
#[test]
fn copies_stand_in_order_and_the_target_keeps_what_it_wants() {
    let (from, states) = four_backups(Suite::None, None);
    let to = World::new(Suite::None);
    copied(&from, &to, 2);
    copied(&from, &to, 3);
    drop_backup(&to, 1);
    // #1 of the target is #2 of the source.
    let newest = RunNo(2);
    assert_eq!(
        plan(&from, &to),
        [
            (1, Verdict::Older(newest)),
            (2, Verdict::Older(newest)),
            (3, Verdict::IsThere(newest)),
            (4, Verdict::Copy)
        ]
    );
    let error = copy(&from, &to, 1).unwrap_err();
    assert!(matches!(error, CopyError::Older { .. }), "{error}");
    // If the source drops the backup that the target builds on, everything is read, and
    // only changes are stored.
    drop_backup(&from, 3);
    let report = copied(&from, &to, 4);
    assert!(!report.compared_by_maps && report.totals.bytes_new < report.totals.bytes / 20, "{report:?}");
    to.assert_is(RunNo(report.backup), &states[3]);
    assert!(matches!(copy(&from, &to, 3), Err(CopyError::NoSuchBackup { .. })));
    assert!(matches!(copy(&from, &from, 4), Err(CopyError::SameRepository { .. })));
}

/// A store whose clock is fast.
struct Ahead(MemStore);

impl Store for Ahead {
    forward_store!(
        self => self.0;
        location, put, create_if_absent, read_exact_at, head, list, list_folders, delete, free_bytes
    );

    fn now(&self) -> Result<SystemTime, StoreError> {
        Ok(self.0.now()? + MINUTES_16)
    }
}

/// Runs determine the order of backups, not clocks: a clock that was fast for a while does not put an older
/// copy after a newer one.
#[test]
fn copies_stand_in_order_where_clocks_do_not() {
    let (from, to) = (World::new(Suite::None), World::new(Suite::None));
    let mut source = Source::new();
    source.insert("a".into(), SourceFile::random(&mut Random::new(43), 1024, 9_000));
    from.through(Ahead(from.store.clone())).backup(&source, small_packs());
    from.backup(&source, small_packs());
    let at = |run| from.history().outcome(RunNo(run)).unwrap().at;
    assert!(at(1) > at(2));
    copied(&from, &to, 2);
    assert_eq!(plan(&from, &to), [(1, Verdict::Older(RunNo(1))), (2, Verdict::IsThere(RunNo(1)))]);
    assert!(matches!(copy(&from, &to, 1), Err(CopyError::Older { .. })));
}

/// Chunks that prunes have moved on either side are found, and later copies build on them.
#[test]
fn copies_go_on_after_prunes_on_both_sides() {
    let (from, states) = four_backups(Suite::X25519Aes256Gcm, None);
    let to = World::new(Suite::None);
    copied(&from, &to, 1);
    copied(&from, &to, 2);
    for (world, dropped) in [(&from, 1), (&to, 1)] {
        drop_backup(world, dropped);
        prune_all(world);
        prune_all(world);
    }
    for run in [3, 4] {
        let report = copied(&from, &to, run);
        assert!(report.compared_by_maps && report.bytes_read < report.totals.bytes / 5, "{report:?}");
        to.assert_is(RunNo(report.backup), &states[run as usize - 1]);
    }
    to.assert_sound();
}

/// A copy that is killed at any change of the target and run again succeeds, and stores nothing twice.
#[test]
fn a_death_at_any_change_of_the_target_is_made_up_for() {
    let (from, states) = four_backups_of(Suite::None, None, 8);
    let (mut deaths, mut adopted) = (0, 0);
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for n in (1..).step_by(2) {
            let clock = ManualClock::default();
            let to = World::over(MemStore::with_clock(clock.clone()), Suite::None);
            let store = FaultyStore::scripted(Arc::new(to.store.clone()), n, fault, |call| call.op.changes());
            let dying = to.through(store);
            let died = copy(&from, &dying, 1).and_then(|_| copy(&from, &dying, 2)).is_err();
            clock.advance(MINUTES_16);
            for run in [1, 2] {
                if let Copied::Now(report) = copy(&from, &to, run).unwrap() {
                    adopted += report.totals.bytes_adopted;
                }
            }
            let standing: Vec<RunNo> = to.history().standing().map(|outcome| outcome.run).collect();
            assert_eq!(standing.len(), 2, "{fault:?} at {n}: each is there once");
            to.assert_is(standing[0], &states[0]);
            to.assert_is(standing[1], &states[1]);
            to.assert_sound();
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 10 && adopted > 10 << 20, "{deaths}, {adopted}");
}

/// If any call to either store fails or flips a bit, the copy fails or is correct.
#[test]
fn a_copy_through_bad_stores_fails_or_is_right() {
    let (from, states) = four_backups_of(Suite::X25519Aes256Gcm, None, 8);
    let (mut failures, mut copies) = (0, 0);
    for seed in 0..40 {
        let to = World::new(Suite::None);
        copied(&from, &to, 1);
        let faults =
            vec![Fault::Error, Fault::ErrorAfter, Fault::ShortRead, Fault::BitFlip { bit: seed * 977 }];
        let bad = |world: &World, every| {
            FaultyStore::random(Arc::new(world.store.clone()), seed, every, faults.clone())
        };
        let password = Password::new("x".to_owned()).unwrap();
        let Ok(repo) = Repo::open(Arc::new(bad(&from, 80)), Some(&password)) else { continue };
        let bad_from = from.with_repo(Arc::new(repo));
        let Ok(repo) = Repo::open(Arc::new(bad(&to, 160)), None) else { continue };
        let bad_to = to.with_repo(Arc::new(repo));
        // Read the listed backups through a good store.
        let Ok(history) = History::read(&bad_from.repo, &from.log) else { continue };
        let done = Copier::new(&bad_from.repo, &history, &bad_to.repo, to.log.source.clone(), options())
            .and_then(|mut copier| copier.copy(RunNo(2)));
        match done {
            Ok(_) => copies += 1,
            Err(_) => failures += 1,
        }
        for (backup, state) in to.history().standing().zip(&states) {
            to.assert_is(backup.run, state);
        }
    }
    assert!(failures > 5 && copies > 5, "{failures} failed, {copies} did not");
}

/// Damage in the source is reported with the file and is never copied; intact backups are copied.
#[test]
fn damage_of_the_source_is_named_and_not_copied() {
    let (from, states) = four_backups(Suite::X25519Aes256Gcm, None);
    let to = World::new(Suite::None);
    assert!(from.store.damage(&from.log.pack(PackId { run: RunNo(3), part: 0 }), |bytes| bytes[300] ^= 1));
    copied(&from, &to, 2);
    let error = copy(&from, &to, 3).unwrap_err();
    let CopyError::From(RepoError::Damaged { object, .. }) = &error else { panic!("{error:?}") };
    assert!(object.contains("packs/0000000003-000000"), "{error}");
    assert_eq!(to.history().standing().count(), 1);
    to.assert_is(RunNo(1), &states[1]);
    to.assert_sound();
}

/// A page that the target has lost is read from the source and stored again.
#[test]
fn what_the_target_has_lost_is_copied_again() {
    let (from, states) = four_backups(Suite::None, None);
    let to = World::new(Suite::None);
    copied(&from, &to, 1);
    to.store.delete(&[to.log.pack(PackId { run: RunNo(1), part: 2 })]).unwrap();
    let report = copied(&from, &to, 2);
    assert!(report.totals.bytes_new > 500_000, "{report:?}");
    to.assert_is(RunNo(2), &states[1]);
}

/// A backup of which the target has lost something is told as damaged there, whether a pack is plainly missing or a
/// check has found it damaged; the others are there. Once a repair has given it up, it is copied again.
#[test]
fn what_is_damaged_in_the_target_is_not_there() {
    for is_recorded in [false, true] {
        let (from, states) = four_backups_of(Suite::None, None, 8);
        let to = World::new(Suite::X25519Aes256Gcm);
        copied(&from, &to, 1);
        copied(&from, &to, 2);
        let pack = to.log.pack(PackId { run: RunNo(2), part: 0 });
        if is_recorded {
            // Of the size that it had.
            assert!(to.store.damage(&pack, |bytes| bytes[300] ^= 1));
            assert_eq!(plan(&from, &to)[1].1, Verdict::IsThere(RunNo(2)), "nobody has looked");
            assert!(!to.check_all().findings.is_empty());
        } else {
            to.store.delete(&[pack]).unwrap();
        }
        let found = plan(&from, &to);
        assert_eq!(
            found[..2],
            [(1, Verdict::IsThere(RunNo(1))), (2, Verdict::ThereDamaged(RunNo(2)))],
            "recorded: {is_recorded}"
        );
        let error = copy(&from, &to, 2).unwrap_err();
        assert!(matches!(error, CopyError::ThereDamaged { there: RunNo(2), .. }), "{error}");
        drop_backup(&to, 2);
        assert_eq!(plan(&from, &to)[1].1, Verdict::Copy);
        let report = copied(&from, &to, 2);
        to.assert_is(RunNo(report.backup), &states[1]);
    }
}

/// A copy is a run like any other: it does not wait for an active run, and is lost if another has ended it.
#[test]
fn a_copy_is_a_run_of_the_target() {
    let (from, states) = four_backups(Suite::None, None);
    let clock = ManualClock::default();
    let to = World::over(MemStore::with_clock(clock.clone()), Suite::None);
    let active = to.begin();
    let error = copy(&from, &to, 1).unwrap_err();
    assert!(matches!(error, CopyError::Begin(BeginError::Active(_))), "{error}");
    active.abandon("test").unwrap();
    copied(&from, &to, 1);

    // The copy freezes for longer than its lease; meanwhile another copies the same backup.
    let other = to.through(to.store.clone());
    let (others, late) = (Arc::new((from.history(), other)), clock.clone());
    let repo = Arc::clone(&from.repo);
    let store = FaultyStore::new(Arc::new(to.store.clone()), move |call| {
        if call.op == Op::Finish && call.path.contains("/packs/") && others.1.history().outcomes().len() == 2
        {
            late.advance(MINUTES_16);
            let (history, to) = &*others;
            let mut copier = Copier::new(&repo, history, &to.repo, to.log.source.clone(), options()).unwrap();
            assert!(matches!(copier.copy(RunNo(2)), Ok(Copied::Now(_))));
        }
        None
    });
    let error = copy(&from, &to.through(store), 2).unwrap_err();
    assert!(matches!(error, CopyError::Finish(FinishError::Lost { .. })), "{error}");
    let standing: Vec<RunNo> = to.history().standing().map(|outcome| outcome.run).collect();
    assert_eq!(standing.len(), 2);
    to.assert_is(standing[1], &states[1]);
}

/// Retention of copies counts the days on which the backups were taken, even if all are copied at once.
#[test]
fn retention_of_copies_goes_by_when_they_were_taken() {
    let clock = ManualClock::default();
    let (from, _) = four_backups(Suite::None, Some(&clock));
    let to = World::over(MemStore::with_clock(clock), Suite::None);
    for run in 1..=4 {
        copied(&from, &to, run);
    }
    let policy = RetentionPolicy { daily: 3, ..RetentionPolicy::default() };
    let rules = ExpireRequest::ByRules(Rules::by_age(policy, jiff::tz::TimeZone::UTC));
    let plan = plan_expire(&to.repo, &to.history(), &rules, to.repo.now().unwrap()).unwrap();
    assert_eq!(plan.dropped, [RunNo(1)]);
}

/// A key that cannot read the target adds copies to it, each based on the previous one.
#[test]
fn a_writer_of_the_target_copies_what_it_cannot_read_there() {
    let (from, states) = four_backups(Suite::None, None);
    let to = World::new(Suite::X25519Aes256Gcm);
    let password = Password::new("writer".to_owned()).unwrap();
    let key = NewKey { role: Role::Writer, sources: Vec::new(), label: String::new() };
    add(&to.repo, &key, NewSlot::Password { password: &password, kdf: KdfParams::MINIMUM }).unwrap();
    let cache = tempfile::tempdir().unwrap();
    for (run, state) in (1..).zip(&states[..2]) {
        let repo = Arc::new(Repo::open(Arc::new(to.store.clone()), Some(&password)).unwrap());
        let writer = to.with_repo(repo);
        let options = CopyOptions { cache_dir: Some(cache.path().to_owned()), ..options() };
        let Copied::Now(report) = copy_with(&from, &writer, run, options).unwrap() else {
            panic!("was there")
        };
        assert_eq!(report.compared_by_maps, run > 1);
        assert!(run == 1 || report.bytes_read < report.totals.bytes / 20, "{report:?}");
        to.assert_is(RunNo(run), state);
        assert_eq!(copy(&from, &writer, run).unwrap(), Copied::WasThere(RunNo(run)));
    }
    // Hashes of one repository mean nothing in the other, and an operator does not rely on a writer's
    // statements about what is there.
    for (run, is_compared) in [(3, false), (4, true)] {
        let report = copied(&from, &to, run);
        assert_eq!((report.compared_by_maps, report.base), (is_compared, is_compared.then_some(3)));
        to.assert_is(RunNo(run), &states[run as usize - 1]);
    }
    to.assert_sound();
}

/// Copied under another name and with little memory; the contents of the head are preserved.
#[test]
fn a_copy_says_what_the_backup_said() {
    let (from, states) = four_backups(Suite::None, None);
    let mut to = World::new(Suite::None);
    to.log = LogName { source: "offsite".parse().unwrap(), kind: Kind::Physical };
    let options = CopyOptions { memory_bytes: 1 << 20, ..options() };
    let Copied::Now(_) = copy_with(&from, &to, 4, options).unwrap() else { panic!("was there") };
    to.assert_is(RunNo(1), &states[3]);
    let head = |world: &World, run| world.open(RunNo(run)).unwrap().head().clone();
    let (taken, copied) = (head(&from, 4), head(&to, 1));
    let expected = Head {
        run: 1,
        source: "offsite".into(),
        totals: copied.totals,
        roots: copied.roots.clone(),
        base: None,
        ..taken
    };
    assert_eq!(copied, expected);
}

/// Tables, rows that span several chunks, and definitions; a copy stores only what is new.
#[test]
fn logical_backups_are_copied_with_every_row() {
    let from = World::logical(Suite::X25519Aes256Gcm);
    let to = World::logical(Suite::None);
    let mut random = Random::new(5);
    let mut tables = crate::rows::Tables::new();
    tables.insert("db/t".into(), crate::rows::rows(&mut random, 900, 9_000));
    tables.insert("db/long".into(), [(b"1".to_vec(), vec![3; 3 << 20])].into());
    tables.insert("db/none".into(), Default::default());
    let mut first_stored = None;
    for round in 1..3 {
        let (run, _) = crate::rows::back_up(&from, &tables, 1);
        let totals = copied(&from, &to, run.0).totals;
        crate::rows::assert_is(&to, RunNo(round), &tables);
        // How much an edit changes depends on where chunks end, and that on the repository's keys.
        let first = *first_stored.get_or_insert(totals.bytes_stored);
        assert!(round == 1 || totals.bytes_stored < first / 20, "{totals:?}");
        crate::rows::edit(&mut random, tables.get_mut("db/t").unwrap(), 3);
    }
}

/// The storage of the source is rolled back to an old state, so that run numbers are reused: new
/// backups are still copied.
#[test]
fn a_source_that_was_set_back_is_copied_on() {
    let from = World::over(MemStore::with_clock(ManualClock::default()), Suite::None);
    let mut random = Random::new(43);
    let mut source = Source::new();
    source.insert("small".into(), SourceFile::random(&mut random, 16_384, 30_000));
    let to = World::new(Suite::None);
    for run in 1..=4 {
        from.backup(&source, small_packs());
        source.get_mut("small").unwrap().change(&mut random, 1);
        copied(&from, &to, run);
    }
    let old: Vec<_> = objects(&from).into_iter().filter(|(path, _)| !is_of_run(path, 2)).collect();
    // An hour later by the store's clock.
    let back = snapshot(&from, &old);
    assert_eq!(back.history().next_run(), RunNo(2));
    back.backup(&source, small_packs());
    assert_eq!(plan(&back, &to), [(1, Verdict::IsThere(RunNo(1))), (2, Verdict::Copy)]);
    copied(&back, &to, 2);
    to.assert_is(RunNo(5), &source);
}

/// Whether the object belongs to this run or a later one.
fn is_of_run(path: &ObjectPath, least: u64) -> bool {
    let name = path.as_str().split('/').nth(4).unwrap_or_default();
    name.split('-').next().and_then(|run| run.parse::<u64>().ok()).is_some_and(|run| run >= least)
}
