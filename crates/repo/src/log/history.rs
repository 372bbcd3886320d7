//! The history of a log: all outcomes, verified; which backups stand; what prunes declared.
//!
//! Nothing is believed that is not signed, in its place, and in the chain.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use holdfast_pipe::{ObjectKey, lock::lock};
use jiff::Timestamp;

use crate::{
    error::{Damage, RepoError},
    format::{
        names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo},
        object::{Frames, NO_OBJECT, ObjectHash, ObjectKind, Place, object_hash, sealed_limit_bytes},
        refs::{
            BackupRefs, NeededPack, PruneRefs, REFS_BYTES_MAX, RebuiltRefs, RepairRefs, each_needed_pack,
        },
    },
    log::{
        hold::Hold,
        outcome::{self, Intent, LostOutcome, OUTCOME_BYTES_MAX, Outcome, OutcomeType, PartId},
    },
    repo::Repo,
    store::{
        ObjectInfo, ObjectPath,
        ahead::{in_order, sized_in_order},
        exists, read_known, read_listed,
    },
};

/// Of the outcomes of a log so many may be missing before it is not told any more how many runs there were.
const MISSING_MAX: usize = 64;

type LastRepair = Option<(RunNo, Arc<RepairRefs>)>;

/// The outcomes of a log, and what follows from them.
#[derive(Clone, Debug)]
pub struct History {
    log: LogName,
    /// In order of runs; without gaps unless it was salvaged.
    outcomes: Vec<Outcome>,
    standing: BTreeSet<RunNo>,
    /// Of backups that stand, the last that was said; it may have ended by itself.
    holds: BTreeMap<RunNo, Hold>,
    /// Outcomes that a repair has found lost.
    lost: BTreeMap<RunNo, LostOutcome>,
    /// Runs whose refs are in those of a later repair, which is named, and whether they are of a prune.
    rebuilt: BTreeMap<RunNo, (RunNo, bool)>,
    /// What a repair is about to make anew: for its own eyes.
    planned: Arc<RepairRefs>,
    /// The refs of the repair that were read last, while others may be wanted of it: they can be large.
    repair: Arc<Mutex<LastRepair>>,
    strangers: BTreeSet<RunNo>,
    is_salvaged: bool,
}

/// The stretches between `begin` and `end` of which nothing is known.
fn gaps(begin: RunNo, end: RunNo, is_known: impl Fn(&RunNo) -> bool) -> Vec<(RunNo, RunNo)> {
    let mut gaps: Vec<(RunNo, RunNo)> = Vec::new();
    for run in (begin.0..end.0).map(RunNo).filter(|run| !is_known(run)) {
        match gaps.last_mut() {
            Some((_, last)) if last.0 + 1 == run.0 => *last = run,
            _ => gaps.push((run, run)),
        }
    }
    gaps
}

/// Tells of outcomes that are missing, a stretch at a time.
fn tell_missing(log: &LogName, gaps: Vec<(RunNo, RunNo)>, each: &mut dyn FnMut(RunNo, RepoError)) {
    for (first, last) in gaps {
        let damage = match first == last {
            true => Damage::Missing,
            false => Damage::AllMissing { last },
        };
        each(first, RepoError::damaged(log.outcome(first), damage));
    }
}

impl History {
    /// Reads and verifies all outcomes.
    ///
    /// # Errors
    /// [`RepoError::History`] where one is damaged or missing.
    pub fn read(repo: &Repo, log: &LogName) -> Result<Self, RepoError> {
        let mut history = Self::empty(log);
        history.refresh(repo)?;
        Ok(history)
    }

    fn empty(log: &LogName) -> Self {
        Self {
            log: log.clone(),
            outcomes: Vec::new(),
            standing: BTreeSet::new(),
            holds: BTreeMap::new(),
            lost: BTreeMap::new(),
            rebuilt: BTreeMap::new(),
            planned: Arc::default(),
            repair: Arc::default(),
            strangers: BTreeSet::new(),
            is_salvaged: false,
        }
    }

    /// Reads what is whole, for those who only read: one damaged outcome shall not take all backups with it. Tells
    /// `each` what is not whole, and passes over it.
    ///
    /// What is there is signed and in its place; what a damaged outcome dropped stands again, what it held is not known
    /// to be held, and where a damaged prune
    /// moved chunks is not known, so that they are missing. Nothing may be written on the ground of such a history.
    pub fn salvage(
        repo: &Repo,
        log: &LogName,
        each: &mut dyn FnMut(RunNo, RepoError),
    ) -> Result<Self, RepoError> {
        let mut history = Self { is_salvaged: true, ..Self::empty(log) };
        let read = ReadOutcomes::read(repo, log, RunNo(1))?;
        let Weighed { lost, displaced } = read.weigh();
        history.lost = lost;
        history.strangers.clone_from(&read.strangers);
        let mut expected = RunNo(1);
        // Told since the last that is whole: behind them nothing tells of a run.
        let mut told = BTreeSet::new();
        for (run, outcome) in read.outcomes {
            // What a repair has found lost stays so, whatever is there now.
            if history.lost.contains_key(&run) {
                continue;
            }
            let outcome = match outcome {
                Ok(outcome) if displaced.contains(&run) => {
                    let damage = Damage::SignerRemoved { key_id: outcome.author.key_id };
                    told.insert(run);
                    each(run, RepoError::damaged(log.outcome(run), damage));
                    continue;
                }
                Ok(outcome) => outcome,
                Err(error) => {
                    told.insert(run);
                    each(run, error);
                    continue;
                }
            };
            let is_known = |run: &RunNo| told.contains(run) || history.lost.contains_key(run);
            tell_missing(log, gaps(expected, run, is_known), each);
            told.clear();
            expected = RunNo(run.0.saturating_add(1));
            if let Err(error) = history.append(outcome) {
                each(run, error);
            }
        }
        if let Some(last) = history.last_missing(repo)? {
            tell_missing(log, gaps(expected, RunNo(last.0 + 1), |run| told.contains(run)), each);
        }
        Ok(history)
    }

    /// The last outcome, if the history ends before it: when a key is removed it is told how far each log had come. Not so
    /// far that it would be of nobody's run.
    pub(crate) fn last_missing(&self, repo: &Repo) -> Result<Option<RunNo>, RepoError> {
        let missing = self.next_run()..=self.last_foreseen();
        match repo.newest_known(&self.log).filter(|last| missing.contains(last)) {
            // A listing may lag behind.
            Some(last) if !exists(&**repo.store(), &self.log.outcome(self.next_run()))? => Ok(Some(last)),
            _ => Ok(None),
        }
    }

    /// Objects that bear the names of outcomes so far behind the runs that they count for nothing.
    #[must_use]
    pub fn strangers(&self) -> &BTreeSet<RunNo> {
        &self.strangers
    }

    /// The last run of which something may be stored: whatever bears a higher number is of nobody's run.
    pub(crate) fn last_foreseen(&self) -> RunNo {
        RunNo(self.next_run().0.saturating_add(FORESEEN))
    }

    /// The same as it is now: salvaged, if it was.
    pub(crate) fn renewed(&self, repo: &Repo) -> Result<Self, RepoError> {
        if self.is_salvaged {
            return Self::salvage(repo, &self.log, &mut |_, _| {});
        }
        let mut renewed = self.clone();
        renewed.refresh(repo)?;
        Ok(renewed)
    }

    /// Reads what has come since.
    pub fn refresh(&mut self, repo: &Repo) -> Result<(), RepoError> {
        self.read_to_the_end(repo).map_err(|error| error.of_history(&self.log))
    }

    fn read_to_the_end(&mut self, repo: &Repo) -> Result<(), RepoError> {
        self.read_on(repo)?;
        if self.last_missing(repo)?.is_some() {
            // A key may have been removed while they were being listed.
            self.read_on(repo)?;
        }
        match self.last_missing(repo)? {
            None => Ok(()),
            Some(_) => Err(RepoError::damaged(self.log.outcome(self.next_run()), Damage::Missing)),
        }
    }

    /// The same, whatever is missing at the end.
    pub(crate) fn read_on(&mut self, repo: &Repo) -> Result<(), RepoError> {
        let mut begin = self.next_run();
        let mut read = ReadOutcomes::read(repo, &self.log, begin)?;
        if read.mends_before(begin) {
            // What was believed so far is lost by now.
            *self = Self { is_salvaged: self.is_salvaged, ..Self::empty(&self.log) };
            begin = RunNo(1);
            read = ReadOutcomes::read(repo, &self.log, begin)?;
        }
        self.lost.extend(read.weigh().lost);
        self.strangers.clone_from(&read.strangers);
        let mut expected = begin;
        for (run, outcome) in read.outcomes {
            while expected < run {
                if !self.lost.contains_key(&expected) {
                    return Err(RepoError::damaged(self.log.outcome(expected), Damage::Missing));
                }
                expected = RunNo(expected.0 + 1);
            }
            expected = RunNo(run.0.saturating_add(1));
            if !self.lost.contains_key(&run) {
                self.append(outcome?)?;
            }
        }
        Ok(())
    }

    fn append(&mut self, outcome: Outcome) -> Result<(), RepoError> {
        let before = RunNo(outcome.run.0.saturating_sub(1));
        let expected = match self.lost.get(&before) {
            Some(lost) => Some(lost.hash),
            // Across a gap that only a salvaged history has, there is nothing to compare with.
            None => (outcome.run == self.next_run()).then(|| self.last_hash()),
        };
        if expected.is_some_and(|expected| outcome.previous != expected) {
            return Err(RepoError::damaged(self.log.outcome(outcome.run), Damage::Chain));
        }
        let after = self.lost.get(&RunNo(outcome.run.0.saturating_add(1)));
        if after.and_then(|lost| lost.before).is_some_and(|expected| expected != outcome.hash) {
            return Err(RepoError::damaged(self.log.outcome(outcome.run), Damage::Chain));
        }
        if outcome.dropped.iter().any(|dropped| *dropped >= outcome.run) {
            return Err(RepoError::malformed(self.log.outcome(outcome.run), "it drops what came later"));
        }
        if outcome.backups.iter().any(|named| *named >= outcome.run) {
            return Err(RepoError::malformed(self.log.outcome(outcome.run), "it holds what came later"));
        }
        match outcome.outcome_type {
            OutcomeType::Backup => drop(self.standing.insert(outcome.run)),
            OutcomeType::Expire | OutcomeType::Repair => {
                for dropped in &outcome.dropped {
                    self.standing.remove(dropped);
                    self.holds.remove(dropped);
                }
                let rebuilt = outcome.rebuilt.iter();
                self.rebuilt.extend(rebuilt.map(|it| (RunNo(it.run), (outcome.run, it.is_prune))));
            }
            OutcomeType::Hold => {
                let hold = Hold { since: outcome.at, until: outcome.until, reason: outcome.why.clone() };
                let standing = outcome.backups.iter().filter(|run| self.standing.contains(run));
                self.holds.extend(standing.map(|run| (*run, hold.clone())));
            }
            OutcomeType::Release => {
                for released in &outcome.backups {
                    self.holds.remove(released);
                }
            }
            OutcomeType::Prune | OutcomeType::Tombstone | OutcomeType::Abandoned => {}
        }
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Whose.
    #[must_use]
    pub fn log(&self) -> &LogName {
        &self.log
    }

    /// All outcomes, in order.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The outcome of a run.
    #[must_use]
    pub fn outcome(&self, run: RunNo) -> Option<&Outcome> {
        let index = self.outcomes.binary_search_by_key(&run, |outcome| outcome.run).ok()?;
        self.outcomes.get(index)
    }

    /// When a run had ended, by the store: when its outcome appeared there, or, if that is later, when the next one was
    /// written. What changes the owner of all files of a directory, or links them, lets all objects appear anew. No later
    /// run can lie it back behind what the run itself has signed.
    pub(crate) fn ended_at(&self, run: RunNo) -> Option<SystemTime> {
        let from = self.outcomes.binary_search_by_key(&run, |outcome| outcome.run).ok()?;
        let outcome = self.outcomes.get(from)?;
        let next = self.outcomes.get(from + 1).map(|next| SystemTime::from(next.at.max(outcome.at)));
        Some(next.map_or(outcome.created_at, |next| next.min(outcome.created_at)))
    }

    /// The number after the last outcome.
    #[must_use]
    pub fn next_run(&self) -> RunNo {
        self.outcomes.last().map_or(RunNo(1), |last| RunNo(last.run.0.saturating_add(1)))
    }

    /// The number after the last outcome that follows on the others, with few at most that are missing: one that somebody
    /// has signed far beyond them says nothing of how many runs there were.
    pub(crate) fn next_unforeseen(&self) -> RunNo {
        let mut next = RunNo(1);
        let mut missing = 0;
        for run in self.outcomes.iter().map(|outcome| outcome.run) {
            let gap = (next.0..run.0).take(MISSING_MAX + 1).filter(|run| !self.is_lost(RunNo(*run))).count();
            missing += gap;
            if missing > MISSING_MAX {
                break;
            }
            next = RunNo(run.0.saturating_add(1));
        }
        next
    }

    /// What the outcome after that of `run` names as the one before it.
    pub(crate) fn hash_of(&self, run: RunNo) -> Option<ObjectHash> {
        self.outcome(run).map(|outcome| outcome.hash).or_else(|| self.lost.get(&run).map(|lost| lost.hash))
    }

    /// Whether a repair has found the outcome of `run` lost: the run had no effect, for good.
    #[must_use]
    pub fn is_lost(&self, run: RunNo) -> bool {
        self.lost.contains_key(&run)
    }

    /// Whether the refs of `run` are in those of a later repair.
    #[must_use]
    pub fn is_rebuilt(&self, run: RunNo) -> bool {
        self.rebuilt.contains_key(&run)
    }

    /// The same as it will be once a repair has made `planned` anew.
    pub(crate) fn with_planned(&self, planned: RepairRefs) -> Self {
        Self { planned: Arc::new(planned), repair: Arc::default(), ..self.clone() }
    }

    pub(crate) fn last_hash(&self) -> ObjectHash {
        self.outcomes.last().map_or(NO_OBJECT, |last| last.hash)
    }

    /// The backups that stand, oldest first.
    pub fn standing(&self) -> impl DoubleEndedIterator<Item = &Outcome> {
        self.standing.iter().filter_map(|run| self.outcome(*run))
    }

    /// Whether `run` is a backup that stands.
    #[must_use]
    pub fn stands(&self, run: RunNo) -> bool {
        self.standing.contains(&run)
    }

    /// The hold of a backup that stands, if it has not ended by `now`.
    #[must_use]
    pub fn hold(&self, run: RunNo, now: Timestamp) -> Option<&Hold> {
        self.holds.get(&run).filter(|hold| hold.is_active(now))
    }

    /// A run that was to hold backups, or to let go of them, and of which no outcome is left, if nothing was said of holds
    /// since, and a backup stands that it may have held: it may have ended, and what it held is not known.
    #[must_use]
    pub fn uncertain_hold(&self) -> Option<RunNo> {
        let of_holds = self.outcomes.iter().rev().find(|outcome| match outcome.outcome_type {
            OutcomeType::Hold | OutcomeType::Release => true,
            OutcomeType::Tombstone => outcome.intent == Some(Intent::Hold),
            _ => false,
        });
        let lost = of_holds.filter(|outcome| outcome.outcome_type == OutcomeType::Tombstone)?.run;
        self.standing.first().is_some_and(|oldest| *oldest < lost).then_some(lost)
    }

    /// The newest backup that stands.
    #[must_use]
    pub fn newest_backup(&self) -> Option<RunNo> {
        self.standing.last().copied()
    }

    /// The newest that was taken of a server, whole if there is one. An import stands behind backups of later rows, and a
    /// part is no backup of the rest.
    #[must_use]
    pub fn newest_taken(&self) -> Option<RunNo> {
        let newest = |is_whole: bool| {
            let is_it = |it: &&Outcome| !it.imported && (it.part.is_none() || !is_whole);
            self.standing().rev().find(is_it).map(|outcome| outcome.run)
        };
        newest(true).or_else(|| newest(false))
    }

    /// What a backup with the key at hand builds on: of those that it may build on the newest of the same part of the
    /// source, or else of all of it, or else of any part, by what it has most in common with.
    #[must_use]
    pub fn newest_base(&self, repo: &Repo, part: Option<PartId>) -> Option<RunNo> {
        let may = |outcome: &&Outcome| repo.may_build_on(&outcome.author);
        let newest = |is_it: &dyn Fn(&Outcome) -> bool| {
            self.standing().rev().filter(may).find(|outcome| is_it(outcome))
        };
        let like = newest(&|outcome| outcome.part == part)
            .or_else(|| newest(&|outcome| outcome.part.is_none()))
            .or_else(|| newest(&|_| true));
        like.map(|outcome| outcome.run)
    }

    /// Runs that were to become backups, and ended without effect after the newest that did: what they stored may be
    /// adopted. What other runs leave never is, so that it can go at once; nor what is left of logical backups, whose
    /// chunks of rows are found by what lists them, which a run that died has not written.
    #[must_use]
    pub fn adoptable(&self) -> Vec<RunNo> {
        if self.log.kind == Kind::Logical {
            return Vec::new();
        }
        let mut runs: Vec<RunNo> = self
            .outcomes
            .iter()
            .rev()
            .take_while(|outcome| outcome.outcome_type != OutcomeType::Backup)
            .filter(|outcome| {
                matches!(outcome.outcome_type, OutcomeType::Tombstone | OutcomeType::Abandoned)
                    && outcome.intent == Some(Intent::Backup)
            })
            .map(|outcome| outcome.run)
            .collect();
        runs.reverse();
        runs
    }

    /// The manifest head of a backup, as JSON.
    pub fn head(&self, repo: &Repo, run: RunNo) -> Result<Vec<u8>, RepoError> {
        let path = self.log.outcome(run);
        let recorded = self.outcome(run).ok_or_else(|| RepoError::damaged(&path, Damage::Missing))?;
        let info = ObjectInfo {
            path: path.clone(),
            size_bytes: recorded.size_bytes,
            created_at: recorded.created_at,
        };
        let bytes = read_listed(&**repo.store(), &info, OUTCOME_BYTES_MAX).map_err(RepoError::of_needed)?;
        if object_hash(&bytes) != recorded.hash {
            return Err(RepoError::damaged(&path, Damage::NotAsRecorded));
        }
        outcome::open_head(repo, &self.log, run, &bytes)
    }

    /// The manifest heads of several backups, several at a time where the store is far away; `each` gets them in order, or
    /// what is wrong with the one object.
    pub fn heads<E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        runs: &[RunNo],
        mut each: impl FnMut(RunNo, Result<Vec<u8>, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let fetch = |run: &RunNo| match self.head(repo, *run) {
            Err(error) if !error.is_of_the_object() => Err(E::from(error)),
            head => Ok(head),
        };
        in_order(repo.store().reads_at_once(), runs, fetch, |run, head| each(*run, head))
    }

    /// What a backup needs.
    pub fn backup_refs(&self, repo: &Repo, run: RunNo) -> Result<BackupRefs, RepoError> {
        let mut packs = Vec::new();
        self.stored_refs(repo, run)?.each_pack(|pack| packs.push(pack.clone()))?;
        Ok(BackupRefs { packs })
    }

    /// The same, to go through.
    pub(crate) fn stored_refs(&self, repo: &Repo, run: RunNo) -> Result<StoredRefs<'_>, RepoError> {
        let sealed = self.sealed_refs(repo, run, None);
        let refs = sealed.and_then(|sealed| self.open_backup_refs(repo, run, sealed));
        *lock(&self.repair) = None;
        refs
    }

    /// What each backup that stands needs, oldest first, to go through; several are read at a time where the store is far
    /// away.
    pub fn all_backup_refs<E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        each: impl FnMut(RunNo, Result<StoredRefs<'_>, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let standing: Vec<RunNo> = self.standing.iter().copied().collect();
        self.in_order_of_refs(repo, &standing, |run, sealed| self.open_backup_refs(repo, run, sealed), each)
    }

    /// Reads the refs of `runs`. Several are read at a time, and one is opened: of a backup that needs all of nearly every
    /// chunk 200 KB come to 200 MB.
    fn in_order_of_refs<R, E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        runs: &[RunNo],
        open: impl Fn(RunNo, SealedRefs) -> Result<R, RepoError>,
        mut take: impl FnMut(RunNo, Result<R, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        // For one the listing is not worth it.
        let listed = match runs {
            [] | [_] => BTreeMap::new(),
            _ => repo.list_folder(&self.log, Folder::Refs)?,
        };
        let listed = |run: &RunNo| listed.get(&(*run, 0));
        let done = sized_in_order(
            repo.store().reads_at_once(),
            runs,
            &|run| listed(run).map_or(0, |info| info.size_bytes),
            |run| Ok(self.sealed_refs(repo, *run, listed(run))),
            |run, sealed| take(*run, sealed.and_then(|sealed| open(*run, sealed))),
        );
        *lock(&self.repair) = None;
        done
    }

    fn open_backup_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        sealed: SealedRefs,
    ) -> Result<StoredRefs<'_>, RepoError> {
        let place = self.place_of_refs(run);
        if let Some(made) = self.rebuilt_by(repo, run)? {
            return match made.rebuilt.get(&run) {
                Some(RebuiltRefs::Backup(_)) => Ok(StoredRefs { place, form: FormOfRefs::Rebuilt(made) }),
                _ => Err(self.not_as_rebuilt(run)),
            };
        }
        let Some(object) = sealed else { return Err(self.not_as_rebuilt(run)) };
        let key = repo.key_of(&place, &object)?;
        Ok(StoredRefs { place, form: FormOfRefs::Sealed { key, object } })
    }

    /// What a repair has made anew, or is about to, if the refs of `run` are among it.
    fn rebuilt_by(&self, repo: &Repo, run: RunNo) -> Result<Option<Arc<RepairRefs>>, RepoError> {
        if self.planned.rebuilt.contains_key(&run) {
            return Ok(Some(Arc::clone(&self.planned)));
        }
        let Some((repair, _)) = self.rebuilt.get(&run) else { return Ok(None) };
        let made = self.last_repair_refs(repo, *repair)?;
        match made.rebuilt.contains_key(&run) {
            true => Ok(Some(made)),
            false => Err(self.not_as_rebuilt(*repair)),
        }
    }

    /// Read and opened once, by one at a time, however many ask for what is in them.
    fn last_repair_refs(&self, repo: &Repo, repair: RunNo) -> Result<Arc<RepairRefs>, RepoError> {
        let mut last = lock(&self.repair);
        if let Some((_, refs)) = last.as_ref().filter(|(run, _)| *run == repair) {
            return Ok(Arc::clone(refs));
        }
        // Never two in memory.
        *last = None;
        let refs = Arc::new(self.repair_refs(repo, repair)?);
        *last = Some((repair, Arc::clone(&refs)));
        Ok(refs)
    }

    fn not_as_rebuilt(&self, run: RunNo) -> RepoError {
        RepoError::malformed(self.log.refs(run), "it does not hold the refs that its repair made anew")
    }

    fn repair_refs(&self, repo: &Repo, repair: RunNo) -> Result<RepairRefs, RepoError> {
        let sealed = self.sealed_object_of_refs(repo, repair, None)?;
        let (path, bytes) = self.open_refs(repo, repair, Some(sealed))?;
        RepairRefs::decode(repair, &bytes).map_err(|e| RepoError::damaged(path, Damage::Format(e)))
    }

    /// Index parts that count for nothing, since a repair has written others. Where what it recorded is damaged, they
    /// count: readers pass over what they cannot read of an index.
    pub(crate) fn void_index(&self, repo: &Repo) -> Result<BTreeSet<(RunNo, u32)>, RepoError> {
        let mut void = BTreeSet::new();
        for repair in self.outcomes.iter().filter(|outcome| outcome.outcome_type == OutcomeType::Repair) {
            match self.repair_refs(repo, repair.run) {
                Ok(refs) => void.extend(refs.void_index),
                Err(error) if error.is_of_the_object() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(void)
    }

    /// The refs of a run as they are stored, unless a repair has made them anew.
    fn sealed_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        listed: Option<&ObjectInfo>,
    ) -> Result<SealedRefs, RepoError> {
        if self.planned.rebuilt.contains_key(&run) || self.rebuilt.contains_key(&run) {
            return Ok(None);
        }
        self.sealed_object_of_refs(repo, run, listed).map(Some)
    }

    fn sealed_object_of_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        listed: Option<&ObjectInfo>,
    ) -> Result<Vec<u8>, RepoError> {
        let path = self.place_of_refs(run).path();
        let recorded = self.outcome(run).and_then(|outcome| outcome.refs);
        let object = read_known(&**repo.store(), &path, listed, sealed_limit_bytes(REFS_BYTES_MAX))
            .map_err(RepoError::of_needed)?;
        if recorded != Some(object_hash(&object)) {
            return Err(RepoError::damaged(path, Damage::NotAsRecorded));
        }
        Ok(object)
    }

    fn open_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        sealed: SealedRefs,
    ) -> Result<(ObjectPath, Vec<u8>), RepoError> {
        let place = self.place_of_refs(run);
        let Some(object) = sealed else { return Err(self.not_as_rebuilt(run)) };
        let plain = repo.open_object(&place, &object, REFS_BYTES_MAX)?;
        Ok((place.path(), plain))
    }

    fn place_of_refs(&self, run: RunNo) -> Place<'_> {
        Place { log: &self.log, kind: ObjectKind::Refs, run, part: 0 }
    }

    /// What all prunes declared; of a salvaged history, as far as it can be read.
    ///
    /// # Errors
    /// [`RepoError::History`] where what one declared is damaged or missing.
    pub fn prunes(&self, repo: &Repo) -> Result<Prunes, RepoError> {
        self.prunes_or(repo, &mut |_, error| match self.is_salvaged {
            true => Ok(()),
            false => Err(error.of_history(&self.log)),
        })
    }

    /// What all prunes declared. `on_damage` is asked what shall become of it when that of one cannot be read.
    pub(crate) fn prunes_or(
        &self,
        repo: &Repo,
        on_damage: &mut dyn FnMut(RunNo, RepoError) -> Result<(), RepoError>,
    ) -> Result<Prunes, RepoError> {
        let mut prunes = Prunes::default();
        let own = self.outcomes.iter().filter(|outcome| outcome.outcome_type == OutcomeType::Prune);
        // A prune whose outcome is lost has declared what a repair has found of it.
        let planned = self.planned.rebuilt.iter();
        let planned = planned.filter(|(_, refs)| matches!(refs, RebuiltRefs::Prune(_))).map(|(run, _)| *run);
        let rebuilt = self.rebuilt.iter().filter(|(_, (_, is_prune))| *is_prune).map(|(run, _)| *run);
        let runs: BTreeSet<RunNo> = own.map(|outcome| outcome.run).chain(rebuilt).chain(planned).collect();
        let runs: Vec<RunNo> = runs.into_iter().collect();
        let open = |run, sealed| self.open_prune_refs(repo, run, sealed);
        self.in_order_of_refs(repo, &runs, open, |run, refs| {
            let added = refs.and_then(|(at, refs)| {
                let added = prunes.add(at, refs);
                added.map_err(|what| RepoError::malformed(self.log.refs(run), what))
            });
            match added {
                Err(error) if error.is_of_the_object() => on_damage(run, error),
                added => added,
            }
        })?;
        Ok(prunes)
    }

    /// What a prune declared, and since when that holds.
    fn open_prune_refs(
        &self,
        repo: &Repo,
        run: RunNo,
        sealed: SealedRefs,
    ) -> Result<(SystemTime, PruneRefs), RepoError> {
        let since = |run| self.ended_at(run).unwrap_or(SystemTime::UNIX_EPOCH);
        if let Some(made) = self.rebuilt_by(repo, run)? {
            let Some(RebuiltRefs::Prune(refs)) = made.rebuilt.get(&run) else {
                return Err(self.not_as_rebuilt(run));
            };
            let by = self.rebuilt.get(&run).map_or(run, |(repair, _)| *repair);
            return Ok((since(by), refs.clone()));
        }
        let (path, bytes) = self.open_refs(repo, run, sealed)?;
        let refs = PruneRefs::decode(run, &bytes).map_err(|e| RepoError::damaged(path, Damage::Format(e)))?;
        Ok((since(run), refs))
    }
}

/// Refs as they are stored, and as their outcome recorded; `None` where a repair has made them anew.
type SealedRefs = Option<Vec<u8>>;

/// What a backup needs, still sealed: of 20 TB decoded it would be some 300 MB.
pub struct StoredRefs<'a> {
    place: Place<'a>,
    form: FormOfRefs,
}

enum FormOfRefs {
    Sealed {
        key: ObjectKey,
        object: Vec<u8>,
    },
    /// It is among these.
    Rebuilt(Arc<RepairRefs>),
}

impl StoredRefs<'_> {
    /// Gives `each` one pack after the other, in order.
    ///
    /// # Errors
    /// What is wrong with the refs, as soon as it is met: what `each` has had by then counts for nothing.
    pub fn each_pack(&self, mut each: impl FnMut(&NeededPack)) -> Result<(), RepoError> {
        match &self.form {
            FormOfRefs::Sealed { key, object } => {
                let mut frames = Frames::new(key, &self.place, object, REFS_BYTES_MAX)?;
                let more = |plain: &mut Vec<u8>| frames.open_next(plain).map(|()| !frames.are_over());
                let broken = |error| RepoError::damaged(self.place, Damage::Format(error));
                each_needed_pack(self.place.run, more, broken, each)
            }
            FormOfRefs::Rebuilt(made) => {
                if let Some(RebuiltRefs::Backup(refs)) = made.rebuilt.get(&self.place.run) {
                    refs.packs.iter().for_each(&mut each);
                }
                Ok(())
            }
        }
    }
}

/// How far behind the last outcome that is whole an object may be and still be of a run. Anybody who can write the store
/// can make up names; at most so many runs are looked for because of them.
const FORESEEN: u64 = 1_000;
/// The same for an outcome that is whole itself: so many before it may have been lost together.
const FORESEEN_WHOLE: u64 = 1_000_000;

/// Outcomes as they are in the store, each by itself.
struct ReadOutcomes {
    outcomes: BTreeMap<RunNo, Result<Outcome, RepoError>>,
    /// With numbers that no run can have.
    strangers: BTreeSet<RunNo>,
}

impl ReadOutcomes {
    /// From `begin` on. Errors are those of the store; what is wrong with an outcome stands in its place.
    fn read(repo: &Repo, log: &LogName, begin: RunNo) -> Result<Self, RepoError> {
        let listed = repo.list_folder(log, Folder::Outcomes)?;
        let listed: Vec<(RunNo, ObjectInfo)> =
            listed.into_iter().map(|((run, _), info)| (run, info)).filter(|(run, _)| *run >= begin).collect();
        let fetch = |(run, info): &(RunNo, ObjectInfo)| {
            let read = read_listed(&**repo.store(), info, OUTCOME_BYTES_MAX)
                .map_err(RepoError::from)
                .and_then(|bytes| outcome::parse(repo, log, *run, &bytes, info.created_at));
            match read {
                Err(error) if !error.is_of_the_object() => Err(error),
                read => Ok(read),
            }
        };
        let mut outcomes = BTreeMap::new();
        in_order(repo.store().reads_at_once(), &listed, fetch, |(run, _), read| {
            outcomes.insert(*run, read);
            Ok(())
        })?;
        let mut last = begin.0.saturating_sub(1);
        let mut strangers = BTreeSet::new();
        outcomes.retain(|run, read| {
            let within = if read.is_ok() { FORESEEN_WHOLE } else { FORESEEN };
            let is_foreseen = run.0 <= last.saturating_add(within);
            if !is_foreseen {
                strangers.insert(*run);
            } else if read.is_ok() {
                last = run.0;
            }
            is_foreseen
        });
        Ok(Self { outcomes, strangers })
    }

    /// Which outcomes count. From the newest to the oldest, since what comes later decides: what a repair has found lost
    /// does not count, whatever is there now, nor do the words of a repair that is lost itself; and what the next one does
    /// not name as the one before it, if a key has signed it that was removed since and may have put it there.
    fn weigh(&self) -> Weighed {
        let mut weighed = Weighed::default();
        // The one behind, and what it names.
        let mut behind: Option<(RunNo, ObjectHash)> = None;
        for (run, outcome) in self.outcomes.iter().rev() {
            let next = RunNo(run.0.saturating_add(1));
            let named = match weighed.lost.get(&next) {
                Some(lost) => lost.before,
                None => behind.filter(|(behind, _)| *behind == next).map(|(_, named)| named),
            };
            behind = None;
            let Ok(outcome) = outcome else { continue };
            if weighed.lost.contains_key(run) {
                continue;
            }
            if outcome.author.yields_to_what_follows && named.is_some_and(|named| named != outcome.hash) {
                weighed.displaced.insert(*run);
                continue;
            }
            weighed.lost.extend(outcome.lost.iter().map(|lost| (RunNo(lost.run), *lost)));
            behind = Some((*run, outcome.previous));
        }
        weighed
    }

    /// Whether a repair has found an outcome before `begin` lost.
    fn mends_before(&self, begin: RunNo) -> bool {
        let read = self.outcomes.values().filter_map(|outcome| outcome.as_ref().ok());
        read.flat_map(|outcome| &outcome.lost).any(|lost| lost.run < begin.0)
    }
}

/// What of outcomes counts for nothing.
#[derive(Default)]
struct Weighed {
    /// What repairs have found lost.
    lost: BTreeMap<RunNo, LostOutcome>,
    /// What a removed key has signed, and what is behind it knows another in its place.
    displaced: BTreeSet<RunNo>,
}

/// What prunes declared, all together.
#[derive(Clone, Debug, Default)]
pub struct Prunes {
    dead_since: BTreeMap<PackId, SystemTime>,
    moves: HashMap<ChunkRef, ChunkRef>,
    moved_from: HashSet<PackId>,
}

impl Prunes {
    fn add(&mut self, at: SystemTime, refs: PruneRefs) -> Result<(), &'static str> {
        for moved in refs.moves {
            if self.moves.insert(moved.from, moved.to).is_some() {
                return Err("it moves a chunk that an earlier prune moved");
            }
            self.moved_from.insert(moved.from.pack);
        }
        for pack in refs.dead {
            // Named again only by a mistake, which does not make it younger.
            self.dead_since.entry(pack).or_insert(at);
        }
        Ok(())
    }

    /// Where the content of a chunk is now.
    #[must_use]
    pub fn resolve(&self, chunk: ChunkRef) -> ChunkRef {
        // Ends, since each move leads into a later run.
        let mut at = chunk;
        while let Some(next) = self.moves.get(&at) {
            at = *next;
        }
        at
    }

    /// Whether every chunk of a pack is where it was stored, so that none of them need be [resolved](Self::resolve).
    #[must_use]
    pub fn leaves(&self, pack: PackId) -> bool {
        !self.moved_from.contains(&pack)
    }

    /// Whether a prune declared the pack dead.
    #[must_use]
    pub fn is_dead(&self, pack: PackId) -> bool {
        self.dead_since.contains_key(&pack)
    }

    /// Whether a new backup may reference chunks of this pack: it is not dead and nothing was moved out of it.
    #[must_use]
    pub fn may_reference(&self, pack: PackId) -> bool {
        !self.is_dead(pack) && self.leaves(pack)
    }

    /// Packs into which chunks were moved.
    pub(crate) fn targets(&self) -> HashSet<PackId> {
        self.moves.values().map(|chunk| chunk.pack).collect()
    }

    /// When a prune declared the pack dead.
    #[must_use]
    pub fn dead_since(&self, pack: PackId) -> Option<SystemTime> {
        self.dead_since.get(&pack).copied()
    }
}
