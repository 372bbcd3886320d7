//! The history of a log: all outcomes, verified; which backups stand; what prunes declared.
//!
//! An outcome is believed only if it is signed, in its place, and in the chain.

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
        outcome::{
            self, Intent, LostOutcome, OUTCOME_BYTES_MAX, Outcome, OutcomeType, Part, REPORT_BYTES_MAX,
        },
    },
    repo::Repo,
    store::{
        ObjectInfo, ObjectPath,
        ahead::{in_order, sized_in_order},
        exists, read_known, read_listed,
    },
};

/// Outcomes of a log that may be missing, at most, before the later ones no longer
/// tell how many runs there were.
const MISSING_MAX: usize = 64;

type LastRepair = Option<(RunNo, Arc<RepairRefs>)>;

/// The outcomes of a log, and what follows from them.
#[derive(Clone, Debug)]
pub struct History {
    log: LogName,
    /// In order of runs. Unless salvaged, the only gaps are outcomes that a repair has found lost.
    outcomes: Vec<Outcome>,
    standing: BTreeSet<RunNo>,
    /// The last hold placed on each backup that stands; it may have ended by itself.
    holds: BTreeMap<RunNo, Hold>,
    /// Outcomes that a repair has found lost.
    lost: BTreeMap<RunNo, LostOutcome>,
    /// Runs whose refs are among those of a later repair: the repair, and whether the refs are of a prune.
    rebuilt: BTreeMap<RunNo, (RunNo, bool)>,
    /// What a repair is about to make anew; seen only by that repair.
    planned: Arc<RepairRefs>,
    /// The repair refs that were read last, cached while more of them may be needed: they can be large.
    repair: Arc<Mutex<LastRepair>>,
    strangers: BTreeSet<RunNo>,
    is_salvaged: bool,
}

/// The stretches of runs from `begin` up to, not including, `end` that are not known.
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

/// Reports missing outcomes to `each`, one stretch at a time.
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
    /// [`RepoError::History`] if one is damaged or missing.
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

    /// Reads what is whole, for those who only read: one damaged outcome must not take all backups with it.
    /// Reports to `each` what is not whole, and skips it.
    ///
    /// What is left is signed and in its place. But backups that a damaged outcome dropped stand again,
    /// those that it held are not known to be held, and chunks that a damaged prune moved are missing,
    /// since their new places are not known. Only a repair may write on the basis of such a history.
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
        // Runs reported since the last whole outcome; damaged ones alone do not prove
        // that those between them existed.
        let mut told = BTreeSet::new();
        for (run, outcome) in read.outcomes {
            // What a repair has found lost stays lost, whatever is stored there now.
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

    /// The last outcome known to exist, if the history ends before it: the removal of a key records how far
    /// each log had come. `None` if that is too far ahead to be the outcome of any run.
    pub(crate) fn last_missing(&self, repo: &Repo) -> Result<Option<RunNo>, RepoError> {
        let missing = self.next_run()..=self.last_foreseen();
        match repo.newest_known(&self.log).filter(|last| missing.contains(last)) {
            // A listing may lag behind.
            Some(last) if !exists(&**repo.store(), &self.log.outcome(self.next_run()))? => Ok(Some(last)),
            _ => Ok(None),
        }
    }

    /// Objects named like outcomes, but so far after the runs that they count for nothing.
    #[must_use]
    pub fn strangers(&self) -> &BTreeSet<RunNo> {
        &self.strangers
    }

    /// The last run of which something may be stored: a higher number belongs to no run.
    pub(crate) fn last_foreseen(&self) -> RunNo {
        foreseen_from(self.next_run())
    }

    /// Reads the history as it is now; salvaged, if this one was.
    pub(crate) fn renewed(&self, repo: &Repo) -> Result<Self, RepoError> {
        if self.is_salvaged {
            return Self::salvage(repo, &self.log, &mut |_, _| {});
        }
        let mut renewed = self.clone();
        renewed.refresh(repo)?;
        Ok(renewed)
    }

    /// Reads what was added since.
    pub fn refresh(&mut self, repo: &Repo) -> Result<(), RepoError> {
        self.read_to_the_end(repo).map_err(|error| error.of_history(&self.log))
    }

    fn read_to_the_end(&mut self, repo: &Repo) -> Result<(), RepoError> {
        self.read_on(repo)?;
        if self.last_missing(repo)?.is_some() {
            // A key may have been removed while the outcomes were listed.
            self.read_on(repo)?;
        }
        match self.last_missing(repo)? {
            None => Ok(()),
            Some(_) => Err(RepoError::damaged(self.log.outcome(self.next_run()), Damage::Missing)),
        }
    }

    /// As [`refresh`](Self::refresh), whatever is missing at the end.
    pub(crate) fn read_on(&mut self, repo: &Repo) -> Result<(), RepoError> {
        let mut begin = self.next_run();
        let mut read = ReadOutcomes::read(repo, &self.log, begin)?;
        if read.mends_before(begin) {
            // Outcomes believed so far have been found lost: start over.
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
            return Err(RepoError::malformed(
                self.log.outcome(outcome.run),
                "it drops backups that are not earlier",
            ));
        }
        if outcome.backups.iter().any(|named| *named >= outcome.run) {
            return Err(RepoError::malformed(
                self.log.outcome(outcome.run),
                "it names backups that are not earlier",
            ));
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

    /// The log.
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

    /// When a run had ended, by the store's clock: when its outcome appeared there, or when the next one was
    /// written, if that is earlier. Changing the owner of all files of a directory, or linking them, makes
    /// all objects appear anew. No later run can move the time back before what the run itself has signed.
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

    /// The number after the last outcome that follows the others with only a few missing.
    /// An outcome that somebody has signed far beyond them says nothing of how many runs there were.
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

    /// The hash that the next outcome names as that of `run`.
    pub(crate) fn hash_of(&self, run: RunNo) -> Option<ObjectHash> {
        self.outcome(run).map(|outcome| outcome.hash).or_else(|| self.lost.get(&run).map(|lost| lost.hash))
    }

    /// Whether a repair has found the outcome of `run` lost: then the run had no effect, for good.
    #[must_use]
    pub fn is_lost(&self, run: RunNo) -> bool {
        self.lost.contains_key(&run)
    }

    /// Whether the refs of `run` are among those of a later repair.
    #[must_use]
    pub fn is_rebuilt(&self, run: RunNo) -> bool {
        self.rebuilt.contains_key(&run)
    }

    /// This history as it will be once a repair has made `planned` anew.
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

    /// A run that may have held or released backups, since it was to do so and has no real outcome, or since its
    /// outcome is lost, whatever that was; if no hold or release came after it and a backup that it may have held
    /// still stands.
    #[must_use]
    pub fn uncertain_hold(&self) -> Option<RunNo> {
        let ended = self.newest_run(|outcome| {
            outcome.outcome_type == OutcomeType::Tombstone && outcome.intent == Some(Intent::Hold)
        });
        let lost = self.lost.keys().next_back().copied();
        let untold = ended.max(lost).filter(|run| Some(*run) > self.holds_told())?;
        self.standing.first().is_some_and(|oldest| *oldest < untold).then_some(untold)
    }

    /// The newest run that says what is held.
    pub(crate) fn holds_told(&self) -> Option<RunNo> {
        self.newest_run(|it| matches!(it.outcome_type, OutcomeType::Hold | OutcomeType::Release))
    }

    fn newest_run(&self, is_it: impl Fn(&Outcome) -> bool) -> Option<RunNo> {
        self.outcomes.iter().rev().find(|outcome| is_it(outcome)).map(|outcome| outcome.run)
    }

    /// The newest backup that stands.
    #[must_use]
    pub fn newest_backup(&self) -> Option<RunNo> {
        self.standing.last().copied()
    }

    /// The newest backup that was taken of a server, of all of it if there is one. An import may come after
    /// backups of later rows, and a part is no backup of the rest.
    #[must_use]
    pub fn newest_taken(&self) -> Option<RunNo> {
        let newest = |is_whole: bool| {
            let is_it = |it: &&Outcome| !it.imported && (it.part.is_none() || !is_whole);
            self.standing().rev().find(is_it).map(|outcome| outcome.run)
        };
        newest(true).or_else(|| newest(false))
    }

    /// The base for a backup with the key at hand, by what the two have most in common: of those that it may
    /// build on, the newest of the same part of the source, or else of all of it, or else of any part.
    #[must_use]
    pub fn newest_base(&self, repo: &Repo, part: Option<Part>) -> Option<RunNo> {
        let may = |outcome: &&Outcome| repo.may_build_on(&outcome.author);
        let newest = |is_it: &dyn Fn(&Outcome) -> bool| {
            self.standing().rev().filter(may).find(|outcome| is_it(outcome))
        };
        let like = newest(&|outcome| outcome.part == part)
            .or_else(|| newest(&|outcome| outcome.part.is_none()))
            .or_else(|| newest(&|_| true));
        like.map(|outcome| outcome.run)
    }

    /// Runs that were to become backups, and ended without effect after the newest backup:
    /// what they stored may be adopted.
    ///
    /// What other runs leave never is, so it can be deleted at once.
    /// Nor are the leftovers of logical backups: their chunks of rows are found through what lists them,
    /// which a run that died has not written.
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

    /// The report of a backup, as JSON: what its outcome recorded, if it did.
    pub fn report(&self, repo: &Repo, run: RunNo) -> Result<Vec<u8>, RepoError> {
        self.listed_report(repo, run, None)
    }

    /// The same, of an object that a listing may have returned.
    pub(crate) fn listed_report(
        &self,
        repo: &Repo,
        run: RunNo,
        listed: Option<&ObjectInfo>,
    ) -> Result<Vec<u8>, RepoError> {
        let place = Place { log: &self.log, kind: ObjectKind::Report, run, part: 0 };
        let object =
            read_known(&**repo.store(), &place.path(), listed, sealed_limit_bytes(REPORT_BYTES_MAX))?;
        let recorded = self.outcome(run).and_then(|outcome| outcome.report);
        if recorded.is_some_and(|recorded| recorded != object_hash(&object)) {
            return Err(RepoError::damaged(place, Damage::NotAsRecorded));
        }
        repo.open_object(&place, &object, REPORT_BYTES_MAX)
    }

    /// Reads the manifest heads of several backups, several at a time if the store is far away.
    /// `each` gets them in order, or what is wrong with one object.
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

    /// As [`backup_refs`](Self::backup_refs), to be decoded pack by pack.
    pub(crate) fn stored_refs(&self, repo: &Repo, run: RunNo) -> Result<StoredRefs<'_>, RepoError> {
        let sealed = self.sealed_refs(repo, run, None);
        let refs = sealed.and_then(|sealed| self.open_backup_refs(repo, run, sealed));
        *lock(&self.repair) = None;
        refs
    }

    /// What each backup that stands needs, oldest first, to be decoded pack by pack. Several are read at a
    /// time if the store is far away.
    pub fn all_backup_refs<E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        each: impl FnMut(RunNo, Result<StoredRefs<'_>, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let standing: Vec<RunNo> = self.standing.iter().copied().collect();
        self.in_order_of_refs(repo, &standing, |run, sealed| self.open_backup_refs(repo, run, sealed), each)
    }

    /// Reads the refs of `runs`. Several are read at a time, but only one is open: for a backup that needs
    /// all of nearly every chunk, 200 KB become 200 MB.
    fn in_order_of_refs<R, E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        runs: &[RunNo],
        open: impl Fn(RunNo, SealedRefs) -> Result<R, RepoError>,
        mut take: impl FnMut(RunNo, Result<R, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        // A listing is not worth it for a single one.
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

    /// What a repair has made anew, or is about to, if the refs of `run` are part of it.
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

    /// The refs of `repair`, read and opened once, by one thread at a time,
    /// however many ask for parts of them.
    fn last_repair_refs(&self, repo: &Repo, repair: RunNo) -> Result<Arc<RepairRefs>, RepoError> {
        let mut last = lock(&self.repair);
        if let Some((_, refs)) = last.as_ref().filter(|(run, _)| *run == repair) {
            return Ok(Arc::clone(refs));
        }
        // Never hold two in memory.
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

    /// Index parts that count for nothing, since a repair has written others in their place.
    /// If what a repair recorded is damaged, the parts count: readers skip what they cannot read of an index.
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

    /// What all prunes declared; in a salvaged history, as far as it can be read.
    ///
    /// # Errors
    /// [`RepoError::History`] if what one declared is damaged or missing.
    pub fn prunes(&self, repo: &Repo) -> Result<Prunes, RepoError> {
        self.prunes_or(repo, &mut |_, error| match self.is_salvaged {
            true => Ok(()),
            false => Err(error.of_history(&self.log)),
        })
    }

    /// What all prunes declared. `on_damage` decides what to do when the refs of one cannot be read.
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

    /// What a prune declared, and since when that is in effect.
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

/// Refs as they are stored and as their outcome recorded them; `None` if a repair has made them anew.
type SealedRefs = Option<Vec<u8>>;

/// What a backup needs, still sealed: decoded, it would take some 300 MB for 20 TB.
pub struct StoredRefs<'a> {
    place: Place<'a>,
    form: FormOfRefs,
}

enum FormOfRefs {
    Sealed {
        key: ObjectKey,
        object: Vec<u8>,
    },
    /// Among those that a repair has made anew.
    Rebuilt(Arc<RepairRefs>),
}

impl StoredRefs<'_> {
    /// Passes the packs to `each`, one after another, in order.
    ///
    /// # Errors
    /// Whatever is wrong with the refs, as soon as it is found: packs passed to `each`
    /// before that count for nothing.
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

/// How far after the last whole outcome an object may be and still be of a run. Anybody who can write to the
/// store can make up names; at most this many runs are looked for because of them.
const FORESEEN: u64 = 1_000;
/// The same for an outcome that is whole itself: up to this many before it may have been lost together.
const FORESEEN_WHOLE: u64 = 1_000_000;

/// The last run of which something may be stored if `next` is the number after the last outcome.
pub(crate) fn foreseen_from(next: RunNo) -> RunNo {
    RunNo(next.0.saturating_add(FORESEEN))
}

/// Outcomes as they are in the store, each judged by itself.
struct ReadOutcomes {
    outcomes: BTreeMap<RunNo, Result<Outcome, RepoError>>,
    /// Outcomes with numbers that no run can have.
    strangers: BTreeSet<RunNo>,
}

impl ReadOutcomes {
    /// Reads them from `begin` on. Errors are those of the store;
    /// what is wrong with an outcome is kept in its place.
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

    /// Decides which outcomes count, from the newest to the oldest, since later
    /// ones decide about earlier ones.
    ///
    /// An outcome that a repair has found lost does not count, whatever is stored there now, and neither does
    /// what a repair says that is lost itself. An outcome signed by a key that was removed since does not
    /// count if the next one names another before it: the key's holder may have put it there.
    fn weigh(&self) -> Weighed {
        let mut weighed = Weighed::default();
        // The outcome after this one, and the hash that it names.
        let mut after: Option<(RunNo, ObjectHash)> = None;
        for (run, outcome) in self.outcomes.iter().rev() {
            let next = RunNo(run.0.saturating_add(1));
            let named = match weighed.lost.get(&next) {
                Some(lost) => lost.before,
                None => after.filter(|(after, _)| *after == next).map(|(_, named)| named),
            };
            after = None;
            let Ok(outcome) = outcome else { continue };
            if weighed.lost.contains_key(run) {
                continue;
            }
            if outcome.author.yields_to_what_follows && named.is_some_and(|named| named != outcome.hash) {
                weighed.displaced.insert(*run);
                continue;
            }
            weighed.lost.extend(outcome.lost.iter().map(|lost| (RunNo(lost.run), *lost)));
            after = Some((*run, outcome.previous));
        }
        weighed
    }

    /// Whether a repair has found an outcome before `begin` lost.
    fn mends_before(&self, begin: RunNo) -> bool {
        let read = self.outcomes.values().filter_map(|outcome| outcome.as_ref().ok());
        read.flat_map(|outcome| &outcome.lost).any(|lost| lost.run < begin.0)
    }
}

/// The outcomes that count for nothing.
#[derive(Default)]
struct Weighed {
    /// Outcomes that repairs have found lost.
    lost: BTreeMap<RunNo, LostOutcome>,
    /// Outcomes signed by a key removed since, where the next outcome names another in their place.
    displaced: BTreeSet<RunNo>,
}

/// What all prunes declared, together.
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
            // A pack is named again only by mistake, which does not make it younger.
            self.dead_since.entry(pack).or_insert(at);
        }
        Ok(())
    }

    /// Where the content of a chunk is now.
    #[must_use]
    pub fn resolve(&self, chunk: ChunkRef) -> ChunkRef {
        // Terminates, since each move leads into a later run.
        let mut at = chunk;
        while let Some(next) = self.moves.get(&at) {
            at = *next;
        }
        at
    }

    /// Whether every chunk of a pack is where it was stored, so that none of them needs
    /// to be [resolved](Self::resolve).
    #[must_use]
    pub fn left_in_place(&self, pack: PackId) -> bool {
        !self.moved_from.contains(&pack)
    }

    /// Whether a prune declared the pack dead.
    #[must_use]
    pub fn is_dead(&self, pack: PackId) -> bool {
        self.dead_since.contains_key(&pack)
    }

    /// Whether a new backup may reference chunks of this pack:
    /// it is not dead and nothing was moved out of it.
    #[must_use]
    pub fn may_reference(&self, pack: PackId) -> bool {
        !self.is_dead(pack) && self.left_in_place(pack)
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
