//! The scheduler: one thread per client, and a token that lets one of them make one call.

use std::{
    collections::HashSet,
    ops::AddAssign,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, bounded};
use holdfast_repo::{
    Kind, LogName, Protection, Repo, forward_store,
    keys::{Identity, KdfParams, KeyId, NewSlot, Password, Role, Unlock},
    log::history::History,
    ops::{
        expire::{ExpireError, ExpireRequest, Rules, expire},
        hold::{HoldTerms, Until, hold},
        keys::{NewKey, UnderWay, add, remove, trusted},
        prune::prune,
        retention::RetentionPolicy,
    },
    store::{
        ObjectInfo, ObjectPath, Store, StoreError,
        faulty::{Call, Fault, FaultyStore, Op},
        mem::{ManualClock, MemStore},
    },
};
use jiff::tz::TimeZone;

use super::{
    Mutation,
    actors::{Actor, Report, Task, options, prune_options},
    chunks::ModelRewrite,
    oracle::Oracle,
    random::Random,
    weather::{SKEW_MAX, Ticks, Weather},
};

const STEPS: u32 = 800;
const ACTORS_AT_ONCE: usize = 5;
const PAGES: u64 = 7;
const HOUR: Duration = Duration::from_secs(3600);

/// The index of the log, among the sources, that receives copies of the first one.
const AWAY: usize = 2;

/// What happened in a run of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    backups: u64,
    adoptions: u64,
    followed_moves: u64,
    expiries: u64,
    holds: u64,
    releases: u64,
    refused_by_hold: u64,
    prunes: u64,
    moves: u64,
    sweeps: u64,
    taken_back: u64,
    restores: u64,
    refused: u64,
    lost: u64,
    failed: u64,
    crashes: u64,
    frozen: u64,
    by_keeper: u64,
    behind: u64,
    skewed: u64,
    copies: u64,
    rotations: u64,
    keys_exchanged: u64,
    by_writer: u64,
    misread: u64,
    lost_packs: u64,
    lost_deletions: u64,
    /// Calls to the store by all clients.
    pub(crate) calls: u64,
    fingerprint: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.backups += other.backups;
        self.adoptions += other.adoptions;
        self.followed_moves += other.followed_moves;
        self.expiries += other.expiries;
        self.holds += other.holds;
        self.releases += other.releases;
        self.refused_by_hold += other.refused_by_hold;
        self.prunes += other.prunes;
        self.moves += other.moves;
        self.sweeps += other.sweeps;
        self.taken_back += other.taken_back;
        self.restores += other.restores;
        self.refused += other.refused;
        self.lost += other.lost;
        self.failed += other.failed;
        self.crashes += other.crashes;
        self.frozen += other.frozen;
        self.by_keeper += other.by_keeper;
        self.behind += other.behind;
        self.skewed += other.skewed;
        self.copies += other.copies;
        self.rotations += other.rotations;
        self.keys_exchanged += other.keys_exchanged;
        self.by_writer += other.by_writer;
        self.misread += other.misread;
        self.lost_packs += other.lost_packs;
        self.lost_deletions += other.lost_deletions;
        self.calls += other.calls;
        self.fingerprint ^= other.fingerprint;
    }
}

impl Stats {
    /// A model in which something never happens proves nothing about it.
    pub(crate) fn assert_everything_happened(&self) {
        let counts = [
            self.backups,
            self.adoptions,
            self.followed_moves,
            self.expiries,
            self.holds,
            self.releases,
            self.refused_by_hold,
            self.prunes,
            self.moves,
            self.sweeps,
            self.taken_back,
            self.restores,
            self.refused,
            self.lost,
            self.failed,
            self.crashes,
            self.frozen,
            self.by_keeper,
            self.behind,
            self.skewed,
            self.copies,
            self.rotations,
            self.keys_exchanged,
            self.by_writer,
            self.misread,
            self.lost_packs,
            self.lost_deletions,
        ];
        assert!(counts.iter().all(|count| *count >= 10), "{self:?}");
    }

    fn count(&mut self, report: &Report) {
        match report {
            Report::BackedUp { adopted, followed_moves, .. } => {
                self.backups += 1;
                self.adoptions += u64::from(*adopted);
                self.followed_moves += u64::from(*followed_moves);
            }
            Report::Copied { .. } => self.copies += 1,
            Report::Rotated => self.rotations += 1,
            Report::Expired => self.expiries += 1,
            Report::Held { is_release: false, .. } => self.holds += 1,
            Report::Held { is_release: true, .. } => self.releases += 1,
            Report::RefusedByHold => self.refused_by_hold += 1,
            Report::Pruned { moved, swept, by_keeper, took_back } => {
                self.by_keeper += u64::from(*by_keeper);
                self.prunes += 1;
                self.moves += u64::from(*moved);
                self.sweeps += u64::from(*swept);
                self.taken_back += u64::from(*took_back);
            }
            Report::Restored => self.restores += 1,
            Report::Refused => self.refused += 1,
            Report::Lost { .. } => self.lost += 1,
            Report::Failed => self.failed += 1,
            Report::Idle | Report::Missing(_) | Report::Damaged(_) | Report::Violation(_) => {}
        }
    }
}

enum Event {
    /// The actor is about to make a call.
    Calls(Weight),
    Ended(Report),
}

/// How a call can affect others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Reads,
    /// Reads sealed data, so that any deviation from what was written is detected.
    ReadsSealed,
    Writes,
    StoresPack,
    Deletes,
    /// Ends a run: the oracle checks afterwards, as it does after deletions.
    Decides,
}

impl Weight {
    fn of(call: &Call<'_>) -> Self {
        let is_pack = call.path.contains("/packs/");
        match call.op {
            Op::Delete => Self::Deletes,
            Op::Create if call.path.contains("/outcomes/") => Self::Decides,
            Op::Finish if is_pack => Self::StoresPack,
            Op::Create | Op::Finish => Self::Writes,
            Op::Read if !is_pack => Self::ReadsSealed,
            _ => Self::Reads,
        }
    }

    fn only_reads(self) -> bool {
        matches!(self, Self::Reads | Self::ReadsSealed)
    }
}

struct Running {
    grant: Sender<Option<Fault>>,
    events: Receiver<Event>,
    task: Task,
    /// The source whose log it works on.
    source: usize,
    /// The role of its key.
    role: Role,
    thread: JoinHandle<()>,
    next_call: Weight,
    frozen_until: u32,
}

/// A server and its log.
struct ModelSource {
    memory: MemStore,
    ticks: Ticks,
    log: LogName,
    oracle: Oracle,
    database: Arc<Mutex<Vec<u64>>>,
}

/// The keys of an encrypted repository.
struct Keys {
    operator: Identity,
    writer: (Identity, KeyId),
    keeper: (Identity, KeyId),
}

impl Keys {
    /// Creates the repository.
    fn init(memory: &MemStore) -> Self {
        let password = Password::new("model".to_owned()).unwrap();
        let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
        let repo = Repo::init(Arc::new(memory.clone()), &protection).unwrap();
        Self {
            operator: new_key(&repo, Role::Operator).0,
            writer: new_key(&repo, Role::Writer),
            keeper: new_key(&repo, Role::Keeper),
        }
    }

    fn of(&self, role: Role) -> &Identity {
        match role {
            Role::Operator => &self.operator,
            Role::Writer => &self.writer.0,
            Role::Keeper => &self.keeper.0,
        }
    }
}

fn new_key(repo: &Repo, role: Role) -> (Identity, KeyId) {
    let identity = Identity::generate();
    let new = NewKey { role, sources: Vec::new(), label: String::new() };
    let key = add(repo, &new, NewSlot::Public(identity.public())).unwrap();
    (identity.trusting(trusted(repo)), key.key_id)
}

fn open(store: Arc<dyn Store>, keys: Option<&Keys>, role: Role) -> Repo {
    match keys {
        Some(keys) => Repo::unlock(store, Unlock::Identity(keys.of(role)), None).unwrap(),
        None => Repo::open(store, None).unwrap(),
    }
}

/// Violations of a store's contract.
#[derive(Clone, Default)]
struct Lies {
    /// Packs that the store confirmed but did not keep.
    packs: Arc<Mutex<HashSet<String>>>,
    has_lost: Arc<AtomicBool>,
}

struct Model {
    memory: MemStore,
    keys: Option<Keys>,
    /// Randomness for later additions, so that the deliberate defects are still found by their seeds.
    extras: Option<Random>,
    is_lying: bool,
    lies: Lies,
    clock: ManualClock,
    sources: Vec<ModelSource>,
    random: Random,
    ticks: Ticks,
    running: Vec<Running>,
    mutation: Mutation,
    stats: Stats,
}

/// Runs the model; the error describes the violation.
pub(crate) fn try_seed(seed: u64, mutation: Mutation) -> Result<Stats, String> {
    let mut model = Model::new(seed, mutation);
    let done = model.run().and_then(|()| model.settle());
    model.kill_all();
    let fingerprints = model.sources.iter().map(|source| source.oracle.fingerprint());
    let fingerprint = fingerprints.fold(0, |all, next| all ^ next);
    done.map(|()| Stats { fingerprint, calls: model.ticks.now(), ..model.stats })
}

impl Model {
    fn new(seed: u64, mutation: Mutation) -> Self {
        let clock = ManualClock::default();
        let (memory, away) = (MemStore::with_clock(clock.clone()), MemStore::with_clock(clock.clone()));
        let has_extras = mutation == Mutation::None;
        let keys = (has_extras && seed.is_multiple_of(4)).then(|| Keys::init(&memory));
        if keys.is_none() {
            Repo::init(Arc::new(memory.clone()), &Protection::None).unwrap();
        }
        Repo::init(Arc::new(away.clone()), &Protection::None).unwrap();
        let (ticks, lies) = (Ticks::default(), Lies::default());
        let source = |name: &str, memory: &MemStore, keys: Option<&Keys>, ticks: Ticks| {
            let repo = open(Arc::new(memory.clone()), keys, Role::Operator);
            let log = LogName { source: name.parse().unwrap(), kind: Kind::Physical };
            ModelSource {
                memory: memory.clone(),
                ticks,
                oracle: Oracle::new(repo, log.clone(), Arc::clone(&lies.packs)),
                log,
                database: Arc::new(Mutex::new((0..PAGES).map(|page| page * 1000).collect())),
            }
        };
        Self {
            sources: vec![
                source("db1", &memory, keys.as_ref(), ticks.clone()),
                source("db2", &memory, keys.as_ref(), ticks.clone()),
                source("db1", &away, None, ticks.elsewhere()),
            ],
            memory,
            keys,
            extras: has_extras.then_some(Random(!seed)),
            is_lying: has_extras && seed % 8 == 3,
            lies,
            clock,
            random: Random(seed),
            ticks,
            running: Vec::new(),
            mutation,
            stats: Stats::default(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for step in 0..STEPS {
            if self.running.len() < ACTORS_AT_ONCE && self.random.permille(150) {
                self.spawn();
            }
            self.pass_time();
            let ready: Vec<usize> =
                (0..self.running.len()).filter(|at| self.running[*at].frozen_until <= step).collect();
            let Some(at) = self.random.pick(&ready).copied() else { continue };
            // Restores take long, which is why there is a grace period.
            let freezes = if self.running[at].task == Task::Restore { 100 } else { 6 };
            if self.random.permille(freezes) {
                self.stats.frozen += 1;
                self.running[at].frozen_until = step + 20 + u32::try_from(self.random.below(200)).unwrap();
                continue;
            }
            // Most consecutive reads are let through together: switching at each of them finds little and
            // takes long.
            let actors = self.running.len();
            self.step(at, true)?;
            while self.running.len() == actors
                && self.running[at].next_call.only_reads()
                && self.random.permille(850)
            {
                self.step(at, true)?;
            }
        }
        Ok(())
    }

    fn pass_time(&mut self) {
        let by = match self.random.below(1000) {
            0..5 => HOUR * u32::try_from(12 + self.random.below(48)).unwrap(),
            5..12 => Duration::from_secs(16 * 60),
            12..300 => Duration::from_secs(self.random.below(60)),
            _ => return,
        };
        self.clock.advance(by);
    }

    fn spawn(&mut self) {
        let task = match self.random.below(100) {
            0..42 => Task::Backup,
            42..58 => Task::Expire,
            58..64 => Task::Hold,
            64..83 => Task::Prune,
            _ => Task::Restore,
        };
        let which = usize::from(self.random.permille(150));
        let (task, which) = self.or_extra(task, which);
        let role = self.role_for(task, which);
        if task == Task::Backup {
            let mut database = self.sources[which].database.lock().unwrap();
            for page in 0..PAGES {
                if self.random.permille(250) {
                    database[usize::try_from(page).unwrap()] += 1;
                }
            }
        }
        let (grant, granted) = bounded::<Option<Fault>>(0);
        let (event, events) = bounded(0);
        let armed = Arc::new(AtomicBool::new(false));
        let memory = if task == Task::Copy { &self.memory } else { &self.sources[which].memory };
        let store: Arc<dyn Store> = match self.mutation {
            Mutation::OutcomesAreReplaced => Arc::new(ReplacingStore(memory.clone())),
            _ => Arc::new(memory.clone()),
        };
        // Most clients see the current state of the store.
        let lag = if self.random.permille(200) { 1 + self.random.below(60) } else { 0 };
        let skew_s = SKEW_MAX.as_secs();
        let skew_s = if self.random.permille(300) { self.random.below(2 * skew_s) } else { skew_s };
        self.stats.behind += u64::from(lag > 0);
        self.stats.skewed += u64::from(skew_s != SKEW_MAX.as_secs());
        let skew = Duration::from_secs(skew_s);
        let (misread, lies) = (Arc::<AtomicBool>::default(), self.lies.clone());
        let decide = {
            let (armed, event, misread) = (Arc::clone(&armed), event.clone(), Arc::clone(&misread));
            move |call: &Call<'_>| {
                if !armed.load(Ordering::SeqCst) {
                    return None;
                }
                let fault = event
                    .send(Event::Calls(Weight::of(call)))
                    .ok()
                    .and_then(|()| granted.recv().ok())
                    .unwrap_or(Some(Fault::CrashBefore));
                match fault {
                    Some(Fault::CrashBefore | Fault::CrashAfter) => armed.store(false, Ordering::SeqCst),
                    Some(Fault::BitFlip { .. } | Fault::ShortRead) => misread.store(true, Ordering::SeqCst),
                    Some(Fault::LostWrite) if call.op == Op::Finish => {
                        lies.has_lost.store(true, Ordering::SeqCst);
                        lies.packs.lock().unwrap().insert(call.path.to_owned());
                    }
                    _ => {}
                }
                fault
            }
        };
        let decide = Arc::new(decide);
        let gated = |store: Arc<dyn Store>, ticks: &Ticks| -> Arc<dyn Store> {
            let store: Arc<dyn Store> = Arc::new(Weather { store, ticks: ticks.clone(), lag, skew });
            let decide = Arc::clone(&decide);
            Arc::new(FaultyStore::new(store, move |call| decide(call)))
        };
        let keys = self.keys.as_ref().filter(|_| which != AWAY || task == Task::Copy);
        let ticks = if task == Task::Copy { &self.ticks } else { &self.sources[which].ticks };
        let repo = Arc::new(open(gated(store, ticks), keys, role));
        let away = (task == Task::Copy).then(|| {
            let away = &self.sources[AWAY];
            Arc::new(open(gated(Arc::new(away.memory.clone()), &away.ticks), None, Role::Operator))
        });
        armed.store(true, Ordering::SeqCst);
        let actor = Actor {
            repo,
            log: self.sources[which].log.clone(),
            random: Random(self.random.next()),
            clock: self.clock.clone(),
            database: Arc::clone(&self.sources[which].database),
            mutation: self.mutation,
            is_behind: lag > 0,
            misread,
            has_lost: Arc::clone(&self.lies.has_lost),
            away,
        };
        let thread = std::thread::spawn(move || {
            let report = actor.act(task);
            let _ = event.send(Event::Ended(report));
        });
        self.running.push(Running {
            grant,
            events,
            task,
            source: which,
            role,
            thread,
            next_call: Weight::Reads,
            frozen_until: 0,
        });
        self.await_event(self.running.len() - 1).unwrap();
    }

    /// Replaces some tasks: by a copy, by a task on the copies, or by new keys.
    fn or_extra(&mut self, task: Task, which: usize) -> (Task, usize) {
        let has_keys = self.keys.is_some();
        let Some(extras) = &mut self.extras else { return (task, which) };
        match extras.below(100) {
            0..12 => return (Task::Copy, AWAY),
            12..20 if task != Task::Backup => return (task, AWAY),
            20..26 if has_keys => return (Task::Rotate, which),
            26..32 if has_keys => self.exchange_keys(),
            _ => {}
        }
        (task, which)
    }

    /// A role that is sufficient for the task, or else operator.
    fn role_for(&mut self, task: Task, which: usize) -> Role {
        let (Some(extras), true) = (&mut self.extras, self.keys.is_some() && which != AWAY) else {
            return Role::Operator;
        };
        let role = match task {
            Task::Backup if extras.permille(400) => Role::Writer,
            Task::Expire | Task::Hold | Task::Prune if extras.permille(500) => Role::Keeper,
            _ => Role::Operator,
        };
        self.stats.by_writer += u64::from(role == Role::Writer);
        role
    }

    /// Replaces the keys of roles that are not active. Outcomes signed with a key that is removed meanwhile
    /// are not trusted, and the log would be blocked until a repair.
    /// Not during a rotation: a key added at the same time may not be included in it, and
    /// would have to be added again.
    fn exchange_keys(&mut self) {
        if self.running.iter().any(|running| running.task == Task::Rotate) {
            return;
        }
        let Some(keys) = &mut self.keys else { return };
        let repo =
            Repo::unlock(Arc::new(self.memory.clone()), Unlock::Identity(&keys.operator), None).unwrap();
        for (role, key) in [(Role::Writer, &mut keys.writer), (Role::Keeper, &mut keys.keeper)] {
            if self.running.iter().all(|running| running.role != role) {
                remove(&repo, key.1, UnderWay::MayEnd).unwrap();
                *key = new_key(&repo, role);
                self.stats.keys_exchanged += 1;
            }
        }
    }

    /// Additional faults of reads, deletions and, if the store lies, uploads, besides those
    /// that can affect any call.
    /// A rotation must read correct data: a damaged record is ignored, since anybody can make one up, and its
    /// key would not be included.
    fn extra_fault(&mut self, call: Weight, task: Task) -> Option<Fault> {
        let is_lying = self.is_lying;
        if task == Task::Rotate {
            return None;
        }
        let extras = self.extras.as_mut()?;
        let draw = extras.below(1000);
        let fault = match call {
            Weight::ReadsSealed if draw < 2 => Some(Fault::BitFlip { bit: extras.next() }),
            Weight::ReadsSealed if draw < 3 => Some(Fault::ShortRead),
            Weight::Deletes if draw < 50 => Some(Fault::LostWrite),
            Weight::StoresPack if is_lying && draw < 60 => Some(Fault::LostWrite),
            _ => None,
        };
        match (call, fault) {
            (Weight::Deletes, Some(_)) => self.stats.lost_deletions += 1,
            (Weight::StoresPack, Some(_)) => self.stats.lost_packs += 1,
            (_, Some(_)) => self.stats.misread += 1,
            _ => {}
        }
        fault
    }

    /// Lets one actor make its next call.
    fn step(&mut self, at: usize, with_faults: bool) -> Result<(), String> {
        let fault = match self.random.below(1000) {
            0 => Some(Fault::CrashBefore),
            1 => Some(Fault::CrashAfter),
            2 => Some(Fault::Error),
            3 => Some(Fault::ErrorAfter),
            _ => None,
        }
        .filter(|_| with_faults);
        if matches!(fault, Some(Fault::CrashBefore | Fault::CrashAfter)) {
            self.stats.crashes += 1;
        }
        let (call, task) = (self.running[at].next_call, self.running[at].task);
        let fault = fault.or_else(|| if with_faults { self.extra_fault(call, task) } else { None });
        let decides = matches!(call, Weight::Decides | Weight::Deletes);
        let source = self.running[at].source;
        self.ticks.advance();
        self.running[at].grant.send(fault).unwrap();
        self.await_event(at)?;
        if decides { self.sources[source].oracle.check() } else { Ok(()) }
    }

    fn await_event(&mut self, at: usize) -> Result<(), String> {
        match self.running[at].events.recv().expect("an actor panicked") {
            Event::Calls(weight) => {
                self.running[at].next_call = weight;
                Ok(())
            }
            Event::Ended(report) => {
                let ended = self.running.swap_remove(at);
                ended.thread.join().unwrap();
                self.stats.count(&report);
                let oracle = &mut self.sources[ended.source].oracle;
                let whose =
                    |what| format!("{:?} by {}, source {}: {what}", ended.task, ended.role, ended.source);
                oracle.tell(&report).map_err(whose)?;
                oracle.check().map_err(|what| format!("after {:?}: {}", report, whose(what)))
            }
        }
    }

    /// Lets all actors end or die, then frees all unneeded data with prunes.
    fn settle(&mut self) -> Result<(), String> {
        while !self.running.is_empty() {
            let at = usize::try_from(self.random.below(self.running.len() as u64)).unwrap();
            if self.random.permille(20) {
                self.kill(at);
            } else {
                self.step(at, false)?;
            }
        }
        self.clock.advance(HOUR);
        for (which, source) in self.sources.iter_mut().enumerate() {
            let keys = self.keys.as_ref().filter(|_| which != AWAY);
            let repo = Arc::new(open(Arc::new(source.memory.clone()), keys, Role::Operator));
            let policy = RetentionPolicy { last: 2, ..RetentionPolicy::default() };
            let request = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
            if let Err(error) = expire(&repo, &source.log, &request, &options()) {
                // A run that was to hold something died, so the hold is set again.
                let ExpireError::MayBeHeld { .. } = error else { return Err(error.to_string()) };
                let history = History::read(&repo, &source.log).map_err(|e| e.to_string())?;
                let newest: Vec<_> = history.newest_backup().into_iter().collect();
                let terms = HoldTerms { until: Some(Until::For(HOUR)), reason: String::new() };
                hold(&repo, &source.log, &newest, &terms, &options()).map_err(|e| e.to_string())?;
                expire(&repo, &source.log, &request, &options()).map_err(|e| e.to_string())?;
            }
            for _ in 0..4 {
                self.clock.advance(HOUR * 24 * 8);
                let mut rewrite = ModelRewrite { repo: &repo, log: &source.log, room_chunks: u64::MAX };
                prune(&repo, &source.log, &prune_options(), Some(&mut rewrite), &options())
                    .map_err(|e| e.to_string())?;
                source.oracle.check()?;
            }
            source.oracle.check_no_garbage()?;
        }
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        let Running { grant, events, thread, .. } = self.running.swap_remove(at);
        drop(grant);
        drop(events);
        thread.join().unwrap();
    }

    fn kill_all(&mut self) {
        while !self.running.is_empty() {
            self.kill(0);
        }
    }
}

/// A store that violates its contract: creating an outcome replaces an existing one.
struct ReplacingStore(MemStore);

impl Store for ReplacingStore {
    forward_store!(
        self => self.0;
        location, put, read_exact_at, head, list, list_folders, delete, now, free_bytes
    );

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        match self.0.create_if_absent(path, bytes) {
            Err(error) if error.is_exists() && path.as_str().contains("/outcomes/") => {
                self.0.damage(path, |old| *old = bytes.to_vec());
                self.0.head(path)
            }
            done => done,
        }
    }
}
