//! Years in the life of a repository and its copy: several sources, an operator, a writer and a keeper,
//! faults at every call, crashes, holds, copies, new keys, damage and repair.
//! Everything is real code on stores in memory; events are drawn from a seed.
//!
//! After each step, no backup that users were told is safe may be missing unless it was dropped, and one
//! randomly chosen backup is restored byte for byte.
//! In the end all backups are restored, and no unneeded data may be left.
//!
//! `HOLDFAST_YEARS_SEEDS=1000` tries this many seeds, `HOLDFAST_YEARS_SEED=7` exactly that one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::Suite;
use holdfast_repo::{
    LogName, Password, Repo, Role, RunNo,
    data::{
        local_maps::LocalMaps,
        writer::{ChunkRewriter, Foundation, WriterOptions},
    },
    keys::{KdfParams, KeyId, NewSlot},
    log::{history::History, outcome::OutcomeType},
    ops::{
        check::{CheckOptions, Severity, check},
        copy::{Copier, CopyOptions},
        expire::{ExpireRequest, Rules, expire},
        hold::{HoldTerms, hold, release},
        keys::{NewKey, UnderWay, add, list, remove, rotate},
        prune::{PruneOptions, prune},
        repair::{RepairError, repair},
        retention::RetentionPolicy,
    },
    store::{
        ObjectPath, Store,
        faulty::{Fault, FaultyStore},
        mem::{ManualClock, MemStore},
    },
};
use jiff::tz::TimeZone;

use crate::world::*;

const STEPS: u32 = 50;
const SEEDS: u64 = 6;
const HOUR: Duration = Duration::from_secs(3600);

/// The next fault, and the number of calls so far.
#[derive(Default)]
struct Gate {
    calls: AtomicU64,
    plan: Mutex<Plan>,
}

#[derive(Clone, Copy, Default)]
struct Plan {
    /// The fault, and the number of calls until it happens.
    left: Option<(u64, Fault)>,
    /// Whether every call after the fault fails as well.
    dies: bool,
    is_dead: bool,
}

impl Gate {
    fn over(self: &Arc<Self>, store: &MemStore) -> Arc<dyn Store> {
        let gate = Arc::clone(self);
        Arc::new(FaultyStore::new(Arc::new(store.clone()), move |_| {
            gate.calls.fetch_add(1, Ordering::SeqCst);
            let mut plan = gate.plan.lock().unwrap();
            if plan.is_dead {
                return Some(Fault::Error);
            }
            match plan.left {
                Some((0, fault)) => {
                    plan.left = None;
                    plan.is_dead = plan.dies;
                    Some(fault)
                }
                Some((calls, fault)) => {
                    plan.left = Some((calls - 1, fault));
                    None
                }
                None => None,
            }
        }))
    }
}

/// One repository, and the holders of its keys.
struct Place {
    memory: MemStore,
    suite: Suite,
    gate: Arc<Gate>,
    operator: Arc<Repo>,
    writer: Option<Arc<Repo>>,
    keeper: Option<(Arc<Repo>, KeyId)>,
    /// The source of every backup that may be listed.
    taken: BTreeMap<(LogName, RunNo), Source>,
    /// Backups that users were told are safe.
    told: BTreeSet<(LogName, RunNo)>,
}

fn password(text: &str) -> Password {
    Password::new(text.to_owned()).unwrap()
}

impl Place {
    fn new(clock: &ManualClock, suite: Suite) -> Self {
        let memory = MemStore::with_clock(clock.clone());
        let World { .. } = World::over(memory.clone(), suite);
        let gate = Arc::new(Gate::default());
        let operator = Arc::new(open_repo(gate.over(&memory), suite));
        let mut place = Self {
            memory,
            suite,
            gate,
            operator,
            writer: None,
            keeper: None,
            taken: BTreeMap::new(),
            told: BTreeSet::new(),
        };
        if suite != Suite::None {
            place.add(Role::Writer);
            place.add(Role::Keeper);
            place.reopen();
        }
        place
    }

    fn add(&mut self, role: Role) {
        let new = NewKey { role, sources: Vec::new(), label: String::new() };
        let text = password(role.as_str());
        let slot = NewSlot::Password { password: &text, kdf: KdfParams::MINIMUM };
        let key = add(&self.operator, &new, slot).unwrap();
        if role == Role::Keeper {
            self.keeper = Some((Arc::clone(&self.operator), key.key_id));
        }
    }

    fn open(&self, role: Role) -> Arc<Repo> {
        Arc::new(Repo::open(self.gate.over(&self.memory), Some(&password(role.as_str()))).unwrap())
    }

    /// Reopens the repository with every key, as new processes would.
    fn reopen(&mut self) {
        self.operator = Arc::new(open_repo(self.gate.over(&self.memory), self.suite));
        if self.suite != Suite::None {
            self.writer = Some(self.open(Role::Writer));
            self.keeper = self.keeper.take().map(|(_, key_id)| (self.open(Role::Keeper), key_id));
        }
    }

    fn world(&self, log: &LogName, repo: &Arc<Repo>) -> World {
        World { store: self.memory.clone(), repo: Arc::clone(repo), log: log.clone(), suite: self.suite }
    }

    fn history(&self, log: &LogName) -> History {
        History::read(&self.operator, log).unwrap()
    }

    fn standing(&self, log: &LogName) -> Vec<RunNo> {
        self.history(log).standing().map(|outcome| outcome.run).collect()
    }
}

fn writer_options() -> WriterOptions {
    WriterOptions { pack_target_bytes: 96 << 10, memory_bytes: 64 << 20, ..WriterOptions::default() }
}

fn prune_options() -> PruneOptions {
    PruneOptions { grace: 24 * HOUR, resume_window: 12 * HOUR, ..PruneOptions::default() }
}

/// Counts of events, which show that everything has happened.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    calls: u64,
    backups: u64,
    by_writer: u64,
    failed: u64,
    expiries: u64,
    prunes: u64,
    by_keeper: u64,
    repacked_while_read: u64,
    copies: u64,
    key_changes: u64,
    damages: u64,
    repairs: u64,
    dropped_by_repair: u64,
    restores: u64,
}

impl Told {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.backups += other.backups;
        self.by_writer += other.by_writer;
        self.failed += other.failed;
        self.expiries += other.expiries;
        self.prunes += other.prunes;
        self.by_keeper += other.by_keeper;
        self.repacked_while_read += other.repacked_while_read;
        self.copies += other.copies;
        self.key_changes += other.key_changes;
        self.damages += other.damages;
        self.repairs += other.repairs;
        self.dropped_by_repair += other.dropped_by_repair;
        self.restores += other.restores;
    }

    /// A run in which something never happens proves nothing about it.
    fn assert_everything_happened(&self) {
        let counts = [
            self.backups,
            self.by_writer,
            self.failed,
            self.expiries,
            self.prunes,
            self.by_keeper,
            self.repacked_while_read,
            self.copies,
            self.key_changes,
            self.damages,
            self.repairs,
            self.restores,
        ];
        assert!(counts.iter().all(|count| *count > 0), "{self:?}");
    }
}

struct Years {
    random: Random,
    clock: ManualClock,
    places: [Place; 2],
    logs: Vec<LogName>,
    sources: BTreeMap<LogName, Source>,
    cache: tempfile::TempDir,
    told: Told,
}

impl Years {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let clock = ManualClock::default();
        let suite = if seed.is_multiple_of(2) { Suite::X25519Aes256Gcm } else { Suite::None };
        let places = [Place::new(&clock, suite), Place::new(&clock, Suite::None)];
        let of = |name: &str| LogName { source: name.parse().unwrap(), kind: holdfast_repo::Kind::Physical };
        let logs = vec![of("db1"), of("db2")];
        let sources = logs.iter().map(|log| {
            let mut source = Source::new();
            source.insert("a".into(), SourceFile::random(&mut random, 1024, 260 * 1024));
            source.insert("b".into(), SourceFile::random(&mut random, 4096, 20 * 4096));
            source.insert("c".into(), SourceFile::random(&mut random, 16_384, 50_000));
            (log.clone(), source)
        });
        let sources = sources.collect();
        let cache = tempfile::tempdir().unwrap();
        Self { random, clock, places, logs, sources, cache, told: Told::default() }
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.random.below(of.len() as u64) as usize].clone())
    }

    fn permille(&mut self, share: u64) -> bool {
        self.random.below(1000) < share
    }

    /// Plans a possible fault at one of the next calls, in either repository.
    fn let_fail(&mut self) {
        let reach = self.pick(&[10, 60, 300]).unwrap();
        let fault =
            self.pick(&[Fault::Error, Fault::ErrorAfter, Fault::ErrorAfter, Fault::ShortRead]).unwrap();
        let fails = self.permille(450);
        let dies = self.permille(600);
        let left = fails.then(|| (self.random.below(reach), fault));
        let which = usize::from(self.permille(300));
        *self.places[which].gate.plan.lock().unwrap() = Plan { left, dies, is_dead: false };
    }

    fn all_is_well(&mut self) {
        for place in &self.places {
            *place.gate.plan.lock().unwrap() = Plan::default();
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let log = self.pick(&self.logs.clone()).unwrap();
        let what = self.random.below(100);
        match what {
            0..30 => self.backup(&log),
            30..42 => self.expire(&log),
            42..47 => self.hold(&log),
            47..62 => self.prune(&log),
            62..76 => self.copy(&log),
            76..80 => self.change_keys(),
            80..88 => self.damage_and_repair(&log)?,
            88..93 => self.repack_while_read(&log)?,
            _ => self.check(&log)?,
        }
        self.all_is_well();
        let by = self.pick(&[0, 0, 1, 20, 20, 60 * 13, 60 * 30, 60 * 24 * 8]).unwrap();
        self.clock.advance(Duration::from_secs(60 * by));
        self.assert_told(what)
    }

    fn backup(&mut self, log: &LogName) {
        let mut source = self.sources[log].clone();
        for file in ["a", "b", "c"] {
            let file = source.get_mut(file).unwrap();
            for _ in 0..self.random.below(40) {
                let page = self.random.below(file.pages());
                file.change(&mut self.random, page);
            }
        }
        self.sources.insert(log.clone(), source.clone());
        let by_writer = self.permille(400);
        let writer = self.places[0].writer.clone().filter(|_| by_writer);
        let local =
            writer.as_ref().map(|repo| LocalMaps::open(self.cache.path(), repo, log).map(Arc::new).unwrap());
        let run = self.places[0].history(log).next_run();
        self.let_fail();
        let place = &mut self.places[0];
        // A run without an outcome is ended first.
        for run in [run, RunNo(run.0 + 1)] {
            place.taken.insert((log.clone(), run), source.clone());
        }
        let world = place.world(log, writer.as_ref().unwrap_or(&place.operator));
        let foundation = |history: &History| match &local {
            Some(local) => Foundation::remembered(history, Arc::clone(local)),
            None => Foundation::newest(history),
        };
        match world.try_backup_on(foundation, writer_options(), |writer| give_all(writer, &source, 1)) {
            Ok((run, _)) => {
                self.told.backups += 1;
                self.told.by_writer += u64::from(writer.is_some());
                place.told.insert((log.clone(), run));
            }
            Err(_) => self.told.failed += 1,
        }
    }

    fn expire(&mut self, log: &LogName) {
        let which = usize::from(self.permille(300));
        let standing = self.places[which].standing(log);
        let request = match self.permille(400) {
            true => ExpireRequest::Exactly(self.pick(&standing).into_iter().collect()),
            false => {
                let last = 1 + self.random.below(4) as u32;
                let policy = RetentionPolicy { last, ..RetentionPolicy::default() };
                ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC))
            }
        };
        let by_keeper = self.permille(500);
        self.let_fail();
        let place = &self.places[which];
        let keeper = place.keeper.as_ref().filter(|_| by_keeper).map(|(repo, _)| repo);
        match expire(keeper.unwrap_or(&place.operator), log, &request, &run_options()) {
            Ok(_) => self.told.expiries += 1,
            Err(_) => self.told.failed += 1,
        }
    }

    fn hold(&mut self, log: &LogName) {
        let standing = self.places[0].standing(log);
        let Some(run) = self.pick(&standing) else { return };
        let is_release = self.permille(700);
        self.let_fail();
        let repo = &self.places[0].operator;
        let terms = HoldTerms { until: None, reason: "asked for".to_owned() };
        let _ = match is_release {
            true => release(repo, log, &[run], &run_options()).map(drop),
            false => hold(repo, log, &[run], &terms, &run_options()).map(drop),
        };
    }

    fn prune(&mut self, log: &LogName) {
        let which = usize::from(self.permille(300));
        let by_keeper = self.permille(400);
        self.let_fail();
        let place = &self.places[which];
        let keeper = place.keeper.as_ref().filter(|_| by_keeper).map(|(repo, _)| repo);
        let pruned = match keeper {
            Some(keeper) => {
                self.told.by_keeper += 1;
                prune(keeper, log, &prune_options(), None, &run_options()).is_ok()
            }
            None => prune_as_operator(place, log).is_ok(),
        };
        *(if pruned { &mut self.told.prunes } else { &mut self.told.failed }) += 1;
    }

    fn copy(&mut self, log: &LogName) {
        let history = self.places[0].history(log);
        let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
        let Some(run) = self.pick(&standing) else { return };
        let next = self.places[1].history(log).next_run();
        let source = self.places[0].taken[&(log.clone(), run)].clone();
        self.let_fail();
        let options = CopyOptions {
            run: run_options(),
            writer: writer_options(),
            threads: 1,
            memory_bytes: 80 << 20,
            ..CopyOptions::default()
        };
        let [home, away] = &mut self.places;
        for run in [next, RunNo(next.0 + 1)] {
            away.taken.insert((log.clone(), run), source.clone());
        }
        let copier = Copier::new(&home.operator, &history, &away.operator, log.source.clone(), options);
        match copier.and_then(|mut copier| copier.copy(run)) {
            Ok(holdfast_repo::ops::copy::Copied::Now(_)) => self.told.copies += 1,
            Ok(_) => {}
            Err(_) => self.told.failed += 1,
        }
    }

    fn change_keys(&mut self) {
        let place = &mut self.places[0];
        if place.suite == Suite::None {
            return;
        }
        self.told.key_changes += 1;
        match self.random.below(2) {
            0 => drop(rotate(&place.operator).unwrap()),
            _ => {
                if let Some((_, key_id)) = place.keeper.take() {
                    remove(&place.operator, key_id, UnderWay::MayEnd).unwrap();
                }
                place.add(Role::Keeper);
            }
        }
        place.reopen();
        assert!(list(&place.operator).unwrap().problems.is_empty());
    }

    fn damage_and_repair(&mut self, log: &LogName) -> Result<(), String> {
        let mut objects: Vec<(ObjectPath, u64)> = Vec::new();
        let list = &mut |info: holdfast_repo::store::ObjectInfo| {
            let counts = !info.path.as_str().contains("/runs/");
            objects.extend(counts.then_some((info.path, info.size_bytes)));
            true
        };
        self.places[0].memory.list(&log.prefix(), list).unwrap();
        for _ in 0..=self.random.below(2) {
            let Some((path, size)) = self.pick(&objects) else { return Ok(()) };
            let at = self.random.below(size) as usize;
            let is_lost = self.permille(500);
            let place = &mut self.places[0];
            match is_lost {
                true => place.memory.delete(std::slice::from_ref(&path)).unwrap(),
                false => drop(place.memory.damage(&path, |bytes| bytes[at] ^= 32)),
            }
            self.told.damages += 1;
            // The loss of the newest outcome may go unnoticed, so the promise does not count.
            place.told.retain(|(log, run)| log.outcome(*run) != path);
        }
        let options = CheckOptions { read_data: Some(1.0), threads: 1, ..CheckOptions::default() };
        let mut holds = true;
        while holds {
            self.let_fail();
            let place = &self.places[0];
            let _ = repair(&place.operator, log, &options, &mut |_| true, &run_options());
            self.all_is_well();
            self.clock.advance(HOUR);
            let place = &self.places[0];
            let done = repair(&place.operator, log, &options, &mut |_| true, &run_options());
            // The repair before it may have recorded that the outcome of a hold is lost, and its answer is not known:
            // what is beyond help is then dropped only after somebody has said that it is not held.
            if let Err(RepairError::MayBeHeld { backup, .. }) = done {
                release(&place.operator, log, &[backup], &run_options()).map_err(|e| e.to_string())?;
                continue;
            }
            let done = done.map_err(|error| format!("the repair failed: {error}"))?;
            self.told.repairs += u64::from(!done.is_empty());
            self.told.dropped_by_repair += done.dropped.len() as u64;
            let held: Vec<RunNo> = done.held.iter().map(|held| held.run).collect();
            holds = !held.is_empty();
            // At once: if it was not known what is held, the first release settles it, and the others are not held.
            if holds {
                release(&place.operator, log, &held, &run_options()).map_err(|e| e.to_string())?;
            }
        }
        // Which backups were held is unknown, and no repair can find out: the hold is set again.
        let place = &self.places[0];
        if place.history(log).uncertain_hold().is_some() {
            let oldest = place.standing(log)[0];
            let terms = HoldTerms { until: None, reason: "once more".to_owned() };
            hold(&place.operator, log, &[oldest], &terms, &run_options()).map_err(|e| e.to_string())?;
            release(&place.operator, log, &[oldest], &run_options()).map_err(|e| e.to_string())?;
        }
        let report = check(&place.operator, log, options).map_err(|e| e.to_string())?;
        // An unneeded chunk in a pack that others need is kept, and reported.
        let is_left = |it: &holdfast_repo::ops::check::Finding| {
            it.severity == Severity::Repairable && it.object.contains("/packs/")
        };
        match report.findings.iter().find(|it| !is_left(it)) {
            Some(left) => Err(format!("after a repair: {left:?}")),
            None => self.assert_all(0, log),
        }
    }

    /// Opens a backup, moves its chunks away, and reads it.
    fn repack_while_read(&mut self, log: &LogName) -> Result<(), String> {
        let standing = self.places[0].standing(log);
        let Some(run) = self.pick(&standing) else { return Ok(()) };
        let place = &self.places[0];
        let world = place.world(log, &place.operator);
        let backup = world.open(run).map_err(|error| error.to_string())?;
        for _ in 0..2 {
            let _ = prune_as_operator(place, log);
            self.clock.advance(25 * HOUR);
        }
        self.told.repacked_while_read += 1;
        let source = &place.taken[&(log.clone(), run)];
        for item in backup.items() {
            let item = item.map_err(|error| format!("{run} while it was moved: {error}"))?;
            let bytes =
                read_whole(&backup, &item).map_err(|error| format!("{run} while it was moved: {error}"))?;
            if bytes != source[&item.path.to_string()].bytes {
                return Err(format!("{run} was read wrongly while it was moved"));
            }
        }
        Ok(())
    }

    fn check(&mut self, log: &LogName) -> Result<(), String> {
        let options = CheckOptions {
            read_data: Some(1.0),
            unread_for: Some(24 * HOUR),
            threads: 1,
            ..CheckOptions::default()
        };
        for place in &self.places {
            let report = check(&place.operator, log, options.clone()).map_err(|e| e.to_string())?;
            let is_bad = |it: &&holdfast_repo::ops::check::Finding| {
                // A run that died just before writing its outcome cannot be told from one whose outcome is
                // missing.
                it.severity == Severity::Lost && !it.object.contains("/outcomes/")
            };
            if let Some(bad) = report.findings.iter().find(is_bad) {
                return Err(format!("a check finds {bad:?}"));
            }
        }
        Ok(())
    }

    /// Checks that only dropped backups are missing, and that one random backup is intact.
    fn assert_told(&mut self, what: u64) -> Result<(), String> {
        for which in 0..2 {
            for log in self.logs.clone() {
                let place = &mut self.places[which];
                let history =
                    History::read(&place.operator, &log).map_err(|e| format!("step {what}: {e}"))?;
                let drops = |outcome: &&holdfast_repo::log::outcome::Outcome| {
                    matches!(outcome.outcome_type, OutcomeType::Expire | OutcomeType::Repair)
                };
                let dropped: BTreeSet<RunNo> =
                    history.outcomes().iter().filter(drops).flat_map(|it| it.dropped.clone()).collect();
                let gone = place
                    .told
                    .iter()
                    .find(|(of, run)| *of == log && !history.stands(*run) && !dropped.contains(run));
                if let Some((_, run)) = gone {
                    return Err(format!("step {what}: {run} of {log} is gone, and nobody dropped it"));
                }
                let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
                if let Some(run) = self.pick(&standing) {
                    self.assert_is(which, &log, run)?;
                }
            }
        }
        Ok(())
    }

    fn assert_is(&mut self, which: usize, log: &LogName, run: RunNo) -> Result<(), String> {
        let place = &self.places[which];
        let Some(source) = place.taken.get(&(log.clone(), run)) else {
            return Err(format!("nobody took {run} of {log}"));
        };
        place.world(log, &place.operator).assert_is(run, source);
        self.told.restores += 1;
        Ok(())
    }

    fn assert_all(&mut self, which: usize, log: &LogName) -> Result<(), String> {
        let standing = self.places[which].standing(log);
        standing.into_iter().try_for_each(|run| self.assert_is(which, log, run))
    }

    /// In the end, checks that everything can be restored, and that no unneeded data are left.
    fn end(&mut self) -> Result<(), String> {
        for which in 0..2 {
            for log in self.logs.clone() {
                self.clock.advance(HOUR);
                let policy = RetentionPolicy { last: 2, ..RetentionPolicy::default() };
                let request = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
                let place = &self.places[which];
                expire(&place.operator, &log, &request, &run_options()).map_err(|e| e.to_string())?;
                for _ in 0..4 {
                    self.clock.advance(8 * 24 * HOUR);
                    prune_as_operator(place, &log)?;
                }
                let history = place.history(&log);
                let prunes = history.prunes(&place.operator).map_err(|e| e.to_string())?;
                let mut needed = BTreeSet::new();
                for backup in history.standing() {
                    let refs = history.backup_refs(&place.operator, backup.run).map_err(|e| e.to_string())?;
                    for pack in refs.packs {
                        for (ordinal, _) in (0..).zip(&pack.chunks).filter(|(_, chunk)| chunk.needed > 0) {
                            let chunk = holdfast_repo::ChunkRef { pack: pack.pack, ordinal };
                            needed.insert(log.pack(prunes.resolve(chunk).pack).to_string());
                        }
                    }
                }
                let mut garbage = None;
                let prefix = log.folder(holdfast_repo::Folder::Packs);
                place
                    .memory
                    .list(&prefix, &mut |info| {
                        if !needed.contains(info.path.as_str()) {
                            garbage = Some(info.path);
                        }
                        true
                    })
                    .unwrap();
                if let Some(garbage) = garbage {
                    return Err(format!("{garbage} is garbage and was never freed"));
                }
                self.assert_all(which, &log)?;
            }
        }
        for place in &self.places {
            self.told.calls += place.gate.calls.load(Ordering::SeqCst);
        }
        Ok(())
    }
}

fn prune_as_operator(place: &Place, log: &LogName) -> Result<(), String> {
    let history = History::read(&place.operator, log).map_err(|error| error.to_string())?;
    let rewriter = ChunkRewriter::open(&place.operator, &history, writer_options());
    let mut rewriter = rewriter.map_err(|error| error.to_string())?;
    let pruned = prune(&place.operator, log, &prune_options(), Some(&mut rewriter), &run_options());
    pruned.map(drop).map_err(|error| error.to_string())
}

#[test]
fn years_of_faults_damage_and_repair_lose_nothing_that_was_not_lost() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds: Vec<u64> = match (number("HOLDFAST_YEARS_SEED"), number("HOLDFAST_YEARS_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, count) => (1..=count.unwrap_or(SEEDS)).collect(),
    };
    let mut told = Told::default();
    for seed in &seeds {
        println!("HOLDFAST_YEARS_SEED={seed}");
        let mut years = Years::new(*seed);
        let done = (0..STEPS).try_for_each(|_| years.step()).and_then(|()| years.end());
        if let Err(violation) = done {
            panic!("HOLDFAST_YEARS_SEED={seed}: {violation}");
        }
        told.add(years.told);
    }
    println!("{} seeds of {STEPS} steps: {told:?}", seeds.len());
    if seeds.len() >= SEEDS as usize {
        told.assert_everything_happened();
    }
}
