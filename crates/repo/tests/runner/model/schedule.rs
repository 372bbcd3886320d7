//! The scheduler: one thread for each client, and a token that lets one of them make one call.

use std::{
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
    Kind, LogName, Protection, Repo,
    expire::{ExpireError, ExpireRequest, Rules, expire},
    forward_store,
    history::History,
    hold::{HoldTerms, Until, hold},
    prune::prune,
    retention::RetentionPolicy,
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

/// What a run of the model did.
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
    /// Of the store, by all clients.
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
        self.calls += other.calls;
        self.fingerprint ^= other.fingerprint;
    }
}

impl Stats {
    /// A model in which something never happens says nothing about it.
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
            Report::Idle | Report::Missing(_) | Report::Violation(_) => {}
        }
    }
}

enum Event {
    /// The actor is about to make a call.
    Calls(Weight),
    Ended(Report),
}

/// What a call can do to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Reads,
    Writes,
    /// Ends a run, or deletes: the oracle looks afterwards.
    Decides,
}

impl Weight {
    fn of(call: &Call<'_>) -> Self {
        match call.op {
            Op::Delete => Self::Decides,
            Op::Create if call.path.contains("/outcomes/") => Self::Decides,
            Op::Create | Op::Finish => Self::Writes,
            _ => Self::Reads,
        }
    }
}

struct Running {
    grant: Sender<Option<Fault>>,
    events: Receiver<Event>,
    task: Task,
    /// Whose log.
    source: usize,
    thread: JoinHandle<()>,
    next_call: Weight,
    frozen_until: u32,
}

/// A server, and what is known of its backups.
struct ModelSource {
    log: LogName,
    oracle: Oracle,
    database: Arc<Mutex<Vec<u64>>>,
}

struct Model {
    memory: MemStore,
    clock: ManualClock,
    sources: Vec<ModelSource>,
    random: Random,
    ticks: Ticks,
    running: Vec<Running>,
    mutation: Mutation,
    stats: Stats,
}

/// Runs the model; the error is what did not hold.
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
        let memory = MemStore::with_clock(clock.clone());
        Repo::init(Arc::new(memory.clone()), &Protection::None).unwrap();
        let source = |name: &str| {
            let repo = Repo::open(Arc::new(memory.clone()), None).unwrap();
            let log = LogName { source: name.parse().unwrap(), kind: Kind::Physical };
            ModelSource {
                oracle: Oracle::new(repo, log.clone()),
                log,
                database: Arc::new(Mutex::new((0..PAGES).map(|page| page * 1000).collect())),
            }
        };
        Self {
            sources: vec![source("db1"), source("db2")],
            memory,
            clock,
            random: Random(seed),
            ticks: Ticks::default(),
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
            // Restores take long: they are what the grace is for.
            let freezes = if self.running[at].task == Task::Restore { 100 } else { 6 };
            if self.random.permille(freezes) {
                self.stats.frozen += 1;
                self.running[at].frozen_until = step + 20 + u32::try_from(self.random.below(200)).unwrap();
                continue;
            }
            // Most reads in a row are let through in a row: switching at each of them finds little and takes long.
            let actors = self.running.len();
            self.step(at, true)?;
            while self.running.len() == actors
                && self.running[at].next_call == Weight::Reads
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
        let store: Arc<dyn Store> = match self.mutation {
            Mutation::OutcomesAreReplaced => Arc::new(ReplacingStore(self.memory.clone())),
            _ => Arc::new(self.memory.clone()),
        };
        // Most see the store as it is.
        let lag = if self.random.permille(200) { 1 + self.random.below(60) } else { 0 };
        let skew_s = SKEW_MAX.as_secs();
        let skew_s = if self.random.permille(300) { self.random.below(2 * skew_s) } else { skew_s };
        self.stats.behind += u64::from(lag > 0);
        self.stats.skewed += u64::from(skew_s != SKEW_MAX.as_secs());
        let (ticks, skew) = (self.ticks.clone(), Duration::from_secs(skew_s));
        let store: Arc<dyn Store> = Arc::new(Weather { store, ticks, lag, skew });
        let gate = {
            let (armed, event) = (Arc::clone(&armed), event.clone());
            FaultyStore::new(store, move |call| {
                if !armed.load(Ordering::SeqCst) {
                    return None;
                }
                let fault = event
                    .send(Event::Calls(Weight::of(call)))
                    .ok()
                    .and_then(|()| granted.recv().ok())
                    .unwrap_or(Some(Fault::CrashBefore));
                if matches!(fault, Some(Fault::CrashBefore | Fault::CrashAfter)) {
                    armed.store(false, Ordering::SeqCst);
                }
                fault
            })
        };
        let repo = Arc::new(Repo::open(Arc::new(gate), None).unwrap());
        armed.store(true, Ordering::SeqCst);
        let actor = Actor {
            repo,
            log: self.sources[which].log.clone(),
            random: Random(self.random.next()),
            clock: self.clock.clone(),
            database: Arc::clone(&self.sources[which].database),
            mutation: self.mutation,
            is_behind: lag > 0,
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
            thread,
            next_call: Weight::Reads,
            frozen_until: 0,
        });
        self.await_event(self.running.len() - 1).unwrap();
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
        let decides = self.running[at].next_call == Weight::Decides;
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
                oracle.tell(&report)?;
                oracle.check()
            }
        }
    }

    /// Everybody ends or dies, then prunes free all that nobody needs.
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
        let repo = Arc::new(Repo::open(Arc::new(self.memory.clone()), None).unwrap());
        for source in &mut self.sources {
            let policy = RetentionPolicy { last: 2, ..RetentionPolicy::default() };
            let request = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
            if let Err(error) = expire(&repo, &source.log, &request, &options()) {
                // A run died that was to hold something: somebody says what is held.
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

/// A store that breaks its contract: creating an outcome replaces what is there.
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
