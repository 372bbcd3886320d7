//! The history of a log: all outcomes, verified; which backups stand; what prunes declared.
//!
//! An outcome is believed only if it is signed, in its place, and in the chain.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use jiff::Timestamp;

use self::reading::{ReadOutcomes, Weighed, gaps, tell_missing};
use crate::{
    error::{Damage, RepoError},
    format::{
        hash::{NO_OBJECT, ObjectHash},
        names::{Kind, LogName, RunNo},
        refs::RepairRefs,
    },
    log::{
        hold::Hold,
        outcome::{Intent, LostOutcome, Outcome, OutcomeType, Part},
    },
    repo::Repo,
    store::exists,
};

mod prunes;
mod reading;
mod records;
mod refs;
mod witnessed;

pub use prunes::Prunes;
pub(crate) use reading::foreseen_from;
pub(crate) use records::read_report;
pub use refs::StoredRefs;

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
        witnessed::compare(repo, &history)?;
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
        self.read_to_the_end(repo).map_err(|error| error.of_history(&self.log))?;
        witnessed::compare(repo, self)
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

    /// When a run had certainly stored all that it stored, as far as it is known: its outcome says so itself, or
    /// [`Self::ended_at`].
    pub(crate) fn stored_by(&self, run: RunNo) -> Option<SystemTime> {
        Some(self.ended_at(run)?.min(self.outcome(run)?.at.into()))
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

    /// Whether the refs and reports of a run are still of use: those of backups while the backup stands, those of
    /// prunes and other runs with an effect for good, as moves are.
    pub(crate) fn keeps_records(&self, run: RunNo) -> bool {
        self.outcome(run).is_some_and(|outcome| match outcome.outcome_type {
            OutcomeType::Backup => self.stands(run),
            OutcomeType::Prune
            | OutcomeType::Expire
            | OutcomeType::Hold
            | OutcomeType::Release
            | OutcomeType::Repair => true,
            OutcomeType::Tombstone | OutcomeType::Abandoned => false,
        })
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
}
