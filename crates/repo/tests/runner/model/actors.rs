//! The clients' operations: each actor is a process that does one thing and ends.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use holdfast_repo::{
    ChunkRef, Folder, LogName, PackId, Repo, RepoError, RunNo,
    data::writer::{Foundation, Rewrite},
    format::refs::{BackupRefs, ChunkNeed, NeededPack},
    keys::KeyError,
    log::{
        client::Client,
        history::{History, Prunes},
        moves::Moves,
        outcome::{Outcome, OutcomeType},
        run::{BeginError, Ending, FinishError, Run, RunOptions},
    },
    ops::{
        copy::{Verdict, verdict},
        expire::{ExpireError, ExpireRequest, Rules, expire, plan_expire},
        hold::{HoldError, HoldTerms, Until, hold, release},
        keys::rotate,
        prune::{PruneError, PruneOptions, prune},
        retention::RetentionPolicy,
    },
    store::{Store, mem::ManualClock},
};
use jiff::tz::TimeZone;

use super::{
    Mutation,
    chunks::{Content, ModelRewrite, PACK_CHUNKS, Writer, indexed_chunks, read_pack},
    random::Random,
    weather::SKEW_MAX,
};

pub(crate) const GRACE: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn prune_options() -> PruneOptions {
    PruneOptions {
        grace: GRACE,
        resume_window: Duration::from_secs(12 * 3600),
        rewrite_below_percent: 50,
        ..PruneOptions::default()
    }
}

/// The contents of a backup: the head of the model's manifest.
pub(crate) type Head = Vec<(Content, (u64, u32, u32))>;

pub(crate) fn chunk_of((run, part, ordinal): (u64, u32, u32)) -> ChunkRef {
    ChunkRef { pack: PackId { run: RunNo(run), part }, ordinal }
}

/// The task of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Backup,
    Expire,
    Hold,
    Prune,
    Restore,
    /// Copies backups to the other repository.
    Copy,
    /// Replaces the keys for everything written from now on.
    Rotate,
}

/// How an actor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A backup that the user was told is safe.
    BackedUp {
        run: RunNo,
        adopted: bool,
        followed_moves: bool,
    },
    /// A copy with these pages that the user was told is safe.
    Copied {
        run: RunNo,
        pages: Vec<Content>,
    },
    Rotated,
    Expired,
    /// A hold or a release that the user was told is in force.
    Held {
        run: RunNo,
        is_release: bool,
    },
    /// An expire was asked to drop a held backup.
    RefusedByHold,
    Pruned {
        moved: bool,
        swept: bool,
        by_keeper: bool,
        /// It took back what it had rewritten, and declared the rest without that.
        took_back: bool,
    },
    Restored,
    /// Another run was active.
    Refused,
    /// It was ended by another run.
    Lost {
        run: RunNo,
    },
    /// There was nothing to do.
    Idle,
    /// The store failed because of an injected fault.
    Failed,
    /// Something is missing.
    Missing(String),
    /// Something differs from what was written.
    Damaged(String),
    /// Something that must never happen.
    Violation(String),
}

impl From<RepoError> for Report {
    fn from(error: RepoError) -> Self {
        match &error {
            RepoError::Store(_) => Self::Failed,
            missing if missing.is_missing() => Self::Missing(missing.to_string()),
            RepoError::Damaged { .. } | RepoError::History { .. } => Self::Damaged(error.to_string()),
            other => Self::Violation(other.to_string()),
        }
    }
}

impl From<BeginError> for Report {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::Active(_) | BeginError::Crowded { .. } => Self::Refused,
            BeginError::Repo(error) => error.into(),
            BeginError::Thread(error) => Self::Violation(error.to_string()),
        }
    }
}

impl From<FinishError> for Report {
    fn from(error: FinishError) -> Self {
        match error {
            FinishError::Lost { run, .. } => Self::Lost { run },
            FinishError::Repo(error) => error.into(),
            FinishError::Unsure { cause, .. } => (*cause).into(),
        }
    }
}

impl From<holdfast_repo::store::StoreError> for Report {
    fn from(error: holdfast_repo::store::StoreError) -> Self {
        RepoError::from(error).into()
    }
}

/// A client.
pub(crate) struct Actor {
    pub(crate) repo: Arc<Repo>,
    pub(crate) log: LogName,
    pub(crate) random: Random,
    pub(crate) clock: ManualClock,
    /// The database: the current contents of its pages.
    pub(crate) database: Arc<Mutex<Vec<Content>>>,
    pub(crate) mutation: Mutation,
    /// Whether its listings lag behind, so that objects it misses there may exist.
    pub(crate) is_behind: bool,
    /// Whether it has read something other than what is stored.
    pub(crate) misread: Arc<AtomicBool>,
    /// Whether the store has lost something that it had confirmed.
    pub(crate) has_lost: Arc<AtomicBool>,
    /// The target of a copy.
    pub(crate) away: Option<Arc<Repo>>,
}

pub(crate) fn options() -> RunOptions {
    RunOptions {
        client: Client { host: "model".to_owned(), process: None },
        renew_every: None,
        patience: None,
        ..RunOptions::of_this_process()
    }
}

impl Actor {
    pub(crate) fn act(mut self, task: Task) -> Report {
        let done = match task {
            Task::Backup => self.backup(),
            Task::Expire => self.expire(),
            Task::Hold => self.hold(),
            Task::Prune => self.prune(),
            Task::Restore => self.restore(),
            Task::Copy => self.copy(),
            Task::Rotate => self.rotate(),
        };
        // It reports this and does nothing, which is all that can be expected.
        let may_be_misled = self.is_behind || self.has_misread();
        match done.unwrap_or_else(|report| report) {
            Report::Missing(_) if may_be_misled || self.has_lost.load(Ordering::SeqCst) => Report::Failed,
            Report::Damaged(_) if may_be_misled => Report::Failed,
            Report::Missing(what) | Report::Damaged(what) => Report::Violation(what),
            report => report,
        }
    }

    fn has_misread(&self) -> bool {
        self.misread.load(Ordering::SeqCst)
    }

    fn backup(&mut self) -> Result<Report, Report> {
        let mut run = Run::begin(&self.repo, &self.log, &options())?;
        match self.write_backup(&run) {
            Ok((ending, report)) => {
                run.finish(ending)?;
                Ok(report)
            }
            Err(error) => Err(run.lost_or(error).into()),
        }
    }

    fn write_backup(&mut self, run: &Run) -> Result<(Ending, Report), RepoError> {
        let prunes = run.history().prunes(&self.repo)?;
        let mut known: HashMap<Content, ChunkRef> = HashMap::new();
        let mut followed_moves = false;
        // A writer can read neither, and has kept nothing locally.
        let can_read = self.repo.can_read();
        for unfinished in self.adoptable(run.history()).into_iter().filter(|_| can_read) {
            for (content, chunk) in indexed_chunks(&self.repo, &self.log, unfinished)? {
                if prunes.may_reference(chunk.pack) || self.mutation == Mutation::ReferencesIgnorePrunes {
                    known.insert(content, chunk);
                }
            }
        }
        let adoptable = known.clone();
        let base = Foundation::newest_of(&self.repo, run.history(), None).base;
        if let Some(base) = base.filter(|_| can_read) {
            let head: Head = serde_json::from_slice(&run.history().head(&self.repo, base)?).unwrap();
            for (content, chunk) in head {
                let mut chunk = chunk_of(chunk);
                if self.mutation != Mutation::ReferencesIgnorePrunes {
                    let moved = prunes.resolve(chunk);
                    followed_moves |= moved != chunk;
                    chunk = moved;
                }
                known.insert(content, chunk);
            }
        }
        // If both hold the same content, either place will do.
        if self.random.permille(500) {
            known.extend(&adoptable);
        }
        let pages = self.database.lock().unwrap().clone();
        let mut new: Vec<Content> = pages.iter().copied().filter(|page| !known.contains_key(page)).collect();
        new.sort_unstable();
        new.dedup();
        let mut writer = Writer::new(run);
        for content in new {
            writer.add(content)?;
            if self.random.permille(100) {
                run.renew()?;
            }
        }
        let parts = writer.finish()?;
        known.extend(writer.written.iter().copied());
        let head = head_of(&pages, &known);
        let refs = run.write_backup_refs(&refs_of(&head))?;
        let head = serde_json::to_vec(&head).unwrap();
        let adopted = pages.iter().any(|page| adoptable.get(page).is_some_and(|chunk| *chunk == known[page]));
        let report = Report::BackedUp { run: run.no(), adopted, followed_moves };
        Ok((Ending::Backup { head, refs, parts }, report))
    }

    fn adoptable(&self, history: &History) -> Vec<RunNo> {
        if self.mutation != Mutation::AdoptsFromPrunes {
            return history.adoptable();
        }
        let came_to_nothing = |outcome: &&Outcome| {
            matches!(outcome.outcome_type, OutcomeType::Tombstone | OutcomeType::Abandoned)
        };
        history.outcomes().iter().filter(came_to_nothing).map(|outcome| outcome.run).collect()
    }

    fn expire(&mut self) -> Result<Report, Report> {
        let request = if self.random.permille(300) {
            let history = History::read(&self.repo, &self.log)?;
            let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
            ExpireRequest::Exactly(self.random.pick(&standing).copied().into_iter().collect())
        } else {
            let last = 1 + u32::try_from(self.random.below(3)).unwrap();
            let policy = RetentionPolicy { last, ..RetentionPolicy::default() };
            ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC))
        };
        if self.mutation == Mutation::ExpireDecidesBeforeItsRun {
            return self.expire_decided_early(&request);
        }
        match expire(&self.repo, &self.log, &request, &options()) {
            Ok(plan) if plan.dropped.is_empty() => Ok(Report::Idle),
            Ok(_) => Ok(Report::Expired),
            Err(ExpireError::NoSuchBackup { .. } | ExpireError::NoRules) => Ok(Report::Idle),
            Err(ExpireError::Held { .. }) => Ok(Report::RefusedByHold),
            // A run that was to hold something died, so what it held is unknown until the hold is set again.
            Err(ExpireError::MayBeHeld { .. } | ExpireError::LastGood { .. }) => Ok(Report::Idle),
            Err(ExpireError::Begin(error)) => Err(error.into()),
            Err(ExpireError::Finish(error)) => Err(error.into()),
            Err(ExpireError::Repo(error)) => Err(error.into()),
        }
    }

    /// The classic mistake: choosing what to drop before the run begins.
    fn expire_decided_early(&mut self, request: &ExpireRequest) -> Result<Report, Report> {
        let history = History::read(&self.repo, &self.log)?;
        let now = self.clock.now().try_into().unwrap();
        let Ok(plan) = plan_expire(&self.repo, &history, request, now) else { return Ok(Report::Idle) };
        if plan.dropped.is_empty() {
            return Ok(Report::Idle);
        }
        let mut run = Run::begin(&self.repo, &self.log, &options())?;
        run.finish(Ending::Expire { dropped: plan.dropped })?;
        Ok(Report::Expired)
    }

    fn hold(&mut self) -> Result<Report, Report> {
        let history = History::read(&self.repo, &self.log)?;
        let now = self.clock.now().try_into().unwrap();
        let is_release = self.random.permille(500);
        let candidates = history.standing().map(|outcome| outcome.run);
        let candidates: Vec<RunNo> =
            candidates.filter(|run| !is_release || history.hold(*run, now).is_some()).collect();
        let Some(backup) = self.random.pick(&candidates).copied() else { return Ok(Report::Idle) };
        let done = if is_release {
            release(&self.repo, &self.log, &[backup], &options())
        } else {
            let hours = 1 + self.random.below(100);
            let until = self.random.permille(500).then(|| Until::For(Duration::from_secs(hours * 3600)));
            let terms = HoldTerms { until, reason: "asked for".to_owned() };
            hold(&self.repo, &self.log, &[backup], &terms, &options()).map(|(run, _)| run)
        };
        match done {
            Ok(run) => Ok(Report::Held { run, is_release }),
            Err(HoldError::Begin(error)) => Err(error.into()),
            Err(HoldError::Finish(error)) => Err(error.into()),
            Err(HoldError::Repo(error)) => Err(error.into()),
            Err(
                HoldError::NoSuchBackup { .. } | HoldError::NotHeld { .. } | HoldError::HeldLonger { .. },
            ) => Ok(Report::Idle),
            Err(error) => Err(Report::Violation(error.to_string())),
        }
    }

    fn prune(&mut self) -> Result<Report, Report> {
        if self.mutation == Mutation::SweepsUndeclared {
            return self.sweep_undeclared();
        }
        let mut options_of_prune = prune_options();
        if self.mutation == Mutation::NoGrace {
            options_of_prune.grace = Duration::ZERO;
        }
        let room_chunks = if self.random.permille(500) { self.random.below(2) } else { u64::MAX };
        let mut rewrite = ModelRewrite { repo: &self.repo, log: &self.log, room_chunks };
        // A keeper cannot read what it would have to rewrite.
        let is_keeper = self.random.permille(300) || !self.repo.can_read();
        let rewrite: Option<&mut dyn Rewrite> = if is_keeper { None } else { Some(&mut rewrite) };
        let by_keeper = rewrite.is_none();
        match prune(&self.repo, &self.log, &options_of_prune, rewrite, &options()) {
            Ok(pruned) if !pruned.declared.missing.is_empty() => {
                Err(Report::Missing(pruned.declared.missing[0].object.clone()))
            }
            Err(PruneError::NotRewritten { declared, .. }) if !declared.missing.is_empty() => {
                Err(Report::Missing(declared.missing[0].object.clone()))
            }
            Ok(pruned) => Ok(Report::Pruned {
                moved: !pruned.declared.rewrite.is_empty(),
                swept: pruned.swept.packs > 0,
                by_keeper,
                took_back: false,
            }),
            Err(PruneError::NotRewritten { .. }) => {
                Ok(Report::Pruned { moved: false, swept: false, by_keeper, took_back: true })
            }
            Err(PruneError::Begin(error)) => Err(error.into()),
            Err(PruneError::Finish(error)) => Err(error.into()),
            Err(PruneError::Repo(error)) => Err(error.into()),
        }
    }

    /// The classic mistake: deleting unneeded data without declaring it.
    fn sweep_undeclared(&mut self) -> Result<Report, Report> {
        let history = History::read(&self.repo, &self.log)?;
        let mut needed = Vec::new();
        for backup in history.standing() {
            needed.extend(history.backup_refs(&self.repo, backup.run)?.packs.into_iter().map(|p| p.pack));
        }
        let mut garbage = Vec::new();
        self.repo.store().list(&self.log.folder(Folder::Packs), &mut |info| {
            let (run, part) = Folder::Packs.parse(info.path.file_name()).unwrap();
            if !needed.contains(&PackId { run, part }) {
                garbage.push(info.path);
            }
            true
        })?;
        self.repo.store().delete(&garbage)?;
        Ok(Report::Idle)
    }

    /// Copies each page of the backups to the other repository, unless an earlier copy brought it there.
    /// The program decides which backups are copied, and whether that is allowed.
    fn copy(&mut self) -> Result<Report, Report> {
        let Some(away) = self.away.clone() else { return Ok(Report::Idle) };
        let started_at = self.clock.now();
        let history = History::read(&self.repo, &self.log)?;
        let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
        let Some(backup) = self.random.pick(&standing).copied() else { return Ok(Report::Idle) };
        let outcome = history.outcome(backup).expect("it stands");
        let origin = outcome.origin(&self.repo, &self.log);
        let is_wanted =
            |there: &History| verdict(&self.repo, &history, outcome, &away, there) == Verdict::Copy;
        if !is_wanted(&History::read(&away, &self.log)?) {
            return Ok(Report::Idle);
        }
        let mut run = Run::begin(&away, &self.log, &options())?;
        if !is_wanted(run.history()) {
            run.abandon("it is there")?;
            return Ok(Report::Idle);
        }
        let Some(pages) = self.pages_of(&history, backup, started_at)? else { return Ok(Report::Idle) };
        let mut known: HashMap<Content, ChunkRef> = HashMap::new();
        let written = (|| {
            let prunes = run.history().prunes(&away)?;
            if let Some(base) = run.history().newest_backup() {
                let head: Head = serde_json::from_slice(&run.history().head(&away, base)?).unwrap();
                known.extend(head.into_iter().map(|(page, chunk)| (page, prunes.resolve(chunk_of(chunk)))));
            }
            let mut new: Vec<Content> =
                pages.iter().copied().filter(|page| !known.contains_key(page)).collect();
            new.sort_unstable();
            new.dedup();
            let mut writer = Writer::new(&run);
            new.into_iter().try_for_each(|page| writer.add(page))?;
            let parts = writer.finish()?;
            known.extend(writer.written.iter().copied());
            let head = head_of(&pages, &known);
            let refs = run.write_backup_refs(&refs_of(&head))?;
            Ok::<_, RepoError>((serde_json::to_vec(&head).unwrap(), refs, parts))
        })();
        let (head, refs, parts) = written.map_err(|error| Report::from(run.lost_or(error)))?;
        run.set_copy_of(origin);
        run.finish(Ending::Backup { head, refs, parts })?;
        Ok(Report::Copied { run: run.no(), pages })
    }

    fn rotate(&mut self) -> Result<Report, Report> {
        match rotate(&self.repo) {
            Ok(_) => Ok(Report::Rotated),
            Err(KeyError::Store(_)) => Err(Report::Failed),
            // Others may have rotated meanwhile, or it misread something.
            Err(_) => Err(Report::Refused),
        }
    }

    fn restore(&mut self) -> Result<Report, Report> {
        let started_at = self.clock.now();
        let history = History::read(&self.repo, &self.log)?;
        let standing: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
        let Some(backup) = self.random.pick(&standing).copied() else { return Ok(Report::Idle) };
        match self.pages_of(&history, backup, started_at)? {
            Some(_) => Ok(Report::Restored),
            None => Ok(Report::Idle),
        }
    }

    /// Reads the pages of a backup; `None` if it was dropped so long ago that it may be gone.
    fn pages_of(
        &self,
        history: &History,
        backup: RunNo,
        started_at: SystemTime,
    ) -> Result<Option<Vec<Content>>, Report> {
        let head: Head = serde_json::from_slice(&history.head(&self.repo, backup)?).unwrap();
        let prunes = match self.mutation {
            Mutation::MovesAreIgnored => Prunes::default(),
            _ => history.prunes(&self.repo)?,
        };
        let moves = Moves::new(history, prunes);
        let mut pages = Vec::with_capacity(head.len());
        for (content, chunk) in head {
            let found = match self.mutation {
                Mutation::NeverLooksAgain => self.chunk(moves.prunes().resolve(chunk_of(chunk))),
                _ => moves.follow(&self.repo, chunk_of(chunk), &mut |chunk| self.chunk(chunk)),
            };
            match found {
                Ok(found) if found == Some(content) => pages.push(content),
                Err(RepoError::Store(error)) if !error.is_not_found() => return Err(Report::Failed),
                Err(error) if self.has_misread() || self.has_lost.load(Ordering::SeqCst) => {
                    return Err(error.into());
                }
                // A dropped backup is readable within the grace period, and a listed one always.
                other => {
                    let within_grace =
                        self.clock.now().duration_since(started_at).unwrap() < GRACE - 2 * SKEW_MAX;
                    if within_grace || History::read(&self.repo, &self.log)?.stands(backup) {
                        let what = format!("a restore of {backup} found {other:?} for {content}");
                        return Err(Report::Violation(what));
                    }
                    return Ok(None);
                }
            }
        }
        Ok(Some(pages))
    }

    fn chunk(&self, chunk: ChunkRef) -> Result<Option<Content>, RepoError> {
        let store: &dyn Store = &**self.repo.store();
        Ok(read_pack(store, &self.log, chunk.pack)?.get(chunk.ordinal as usize).copied())
    }
}

fn head_of(pages: &[Content], known: &HashMap<Content, ChunkRef>) -> Head {
    let place = |page: &Content| {
        let chunk = known[page];
        (*page, (chunk.pack.run.0, chunk.pack.part, chunk.ordinal))
    };
    pages.iter().map(place).collect()
}

/// The refs of a backup.
/// The number of chunks in a pack is not known here, only its maximum, which is enough to make a prune look.
pub(crate) fn refs_of(head: &Head) -> BackupRefs {
    let mut packs: BTreeMap<PackId, Vec<ChunkNeed>> = BTreeMap::new();
    for (_, chunk) in head {
        let chunk = chunk_of(*chunk);
        let nothing = vec![ChunkNeed { units: 1, needed: 0 }; PACK_CHUNKS];
        packs.entry(chunk.pack).or_insert(nothing)[chunk.ordinal as usize].needed = 1;
    }
    let packs = packs.into_iter().map(|(pack, chunks)| NeededPack { pack, size_bytes: 1, chunks }).collect();
    BackupRefs { packs }
}
