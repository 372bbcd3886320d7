//! Repair: what was lost is made anew from what is there, and what is beyond help is dropped, by name
//! (`docs/reference/repository.md` section 14a).
//!
//! - A repair is a run. Only its outcome changes anything, so one that dies has done nothing, and two cannot undo each
//!   other's work: nothing is written over, and what it deletes afterwards nobody needs any more, for good.
//! - It deletes no pack and names none dead but in the place of a prune whose own word is lost.
//! - What can be read is believed for what it is; what somebody has signed is never taken for damage.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use jiff::Timestamp;
use thiserror::Error;

use crate::{
    data::reader::ChunkSource,
    error::{Damage, RepoError},
    format::{
        names::{Folder, Kind, LogName, PackId, RunNo},
        object::{ObjectHash, ObjectKind, Place},
        refs::{PruneRefs, REFS_BYTES_MAX, RebuiltRefs, RepairRefs},
    },
    keys::{KeyError, manage},
    log::{
        beneath::{BeneathFinder, outcomes_beneath},
        history::History,
        outcome::{self, LostOutcome, OUTCOME_BYTES_MAX, OutcomeType, Rebuilt, SignedBy},
        run::{BeginError, Ending, FinishError, Run, RunOptions},
    },
    ops::check::{CheckOptions, CheckReport, Finding, Proven, Remedy, Severity, check_history},
    repo::Repo,
    store::{ObjectPath, locks::Beneath, read_all},
};

mod index;
mod moves;
mod walk;

/// Caches of items and leaves for the walks of a repair.
const CACHE_BYTES: usize = 64 << 20;
/// Each round reads with what the one before has made anew; more than moves, refs, and a look at both come to nothing.
const ROUNDS_MAX: u32 = 6;
/// Outcomes that one can name lost: what fits into its own.
const LOST_MAX: u64 = 10_000;
/// Bytes of refs of backups that one makes anew, at most, but for a single one's: with those of prunes they are one
/// object.
const REFS_AT_ONCE_MAX: u64 = REFS_BYTES_MAX / 2;
/// Deleted in batches of so many.
const BATCH: usize = 1000;

/// A backup that cannot be restored whole.
#[derive(Clone, Debug)]
pub struct BeyondHelp {
    /// Which.
    pub run: RunNo,
    /// What of it is lost, with the files and tables that need it.
    pub findings: Vec<Finding>,
}

/// A prune whose word is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuiltPrune {
    /// Which.
    pub run: RunNo,
    /// Chunks that were found where it had moved them.
    pub moves: u64,
    /// Packs that nothing needs, which it may have named dead.
    pub dead: u64,
}

/// What a repair is about to do.
#[derive(Clone, Debug, Default)]
pub struct RepairPlan {
    /// Outcomes that are lost: their runs count as if they had come to nothing.
    pub outcomes: Vec<Finding>,
    /// Prunes whose word is lost.
    pub prunes: Vec<RebuiltPrune>,
    /// Backups whose refs are made anew.
    pub refs: Vec<RunNo>,
    /// Runs whose index is made anew.
    pub index: Vec<RunNo>,
    /// Objects that nobody needs, and are damaged.
    pub discarded: Vec<Finding>,
    /// Backups that are dropped.
    pub dropped: Vec<BeyondHelp>,
    /// Backups that would be dropped, and are held.
    pub held: Vec<BeyondHelp>,
    /// What stays as it is.
    pub left: Vec<Finding>,
    /// Why something that is useless now could not be deleted; the next prune deletes it.
    pub not_deleted: Option<String>,
    /// Outcomes as the repair's own will name them.
    lost: Vec<LostOutcome>,
    made: RepairRefs,
    /// The history that it is made on: the number after its last outcome, and the hash of that.
    after: Option<(RunNo, ObjectHash)>,
}

impl RepairPlan {
    /// Whether there is nothing to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
            && self.lost.is_empty()
            && self.made.rebuilt.is_empty()
            && self.index.is_empty()
            && self.discarded.is_empty()
            && self.dropped.is_empty()
    }

    /// In one line, for the outcome.
    fn summary(&self) -> String {
        format!(
            "outcomes lost: {}; prunes and refs made anew: {}; indexes made anew: {}; objects given up: {}; backups dropped: {}",
            self.lost.len(),
            self.made.rebuilt.len(),
            self.index.len(),
            self.discarded.len(),
            self.dropped.len(),
        )
    }
}

/// Why nothing was repaired.
#[derive(Debug, Error)]
pub enum RepairError {
    /// An object that somebody who may has signed, and that is not understood.
    #[error(
        "{object} is whole and signed, and not what this version can go on from ({problem}): nothing is repaired"
    )]
    Intact {
        /// Which.
        object: String,
        /// What is the matter with it.
        problem: String,
    },
    /// A whole outcome, signed with a key of which nothing is known.
    #[error(
        "{object} is whole, and signed with a key that nobody vouches for here: nothing is repaired before it is known \
         whose it is"
    )]
    Stranger {
        /// Which.
        object: String,
    },
    /// Outcomes do not open, and something is wrong with what says whose signatures are believed.
    #[error(
        "{object}: {problem}: outcomes that seem lost may only be signed with a key that it tells of; nothing is repaired"
    )]
    Keys {
        /// Which.
        object: String,
        /// What is the matter with it.
        problem: String,
    },
    /// A logical backup seems beyond help, and may only lean on what a prune has moved.
    #[error(
        "what the prune of {object} moved is not known, and backup {backup} may only need that: nothing is dropped for it"
    )]
    Moved {
        /// The outcome of the prune.
        object: String,
        /// The first such backup.
        backup: RunNo,
    },
    /// A backup is beyond help, and what is held is not known.
    #[error(
        "backup {backup} of {log} is beyond help, and may be held: run {run} was to hold backups, and its outcome is gone, \
         or never was: nothing is repaired"
    )]
    MayBeHeld {
        /// Whose log.
        log: LogName,
        /// The run.
        run: RunNo,
        /// The first such backup.
        backup: RunNo,
    },
    /// More outcomes are missing than one outcome can name.
    #[error(
        "{count} outcomes are missing before {object}, more than a repair can name: nothing is repaired; if that object is \
         nobody's whom you trust, delete it"
    )]
    Gap {
        /// The outcome behind them.
        object: String,
        /// How many.
        count: u64,
    },
    /// What seems lost is there.
    #[error(
        "{object} {} {}, and what it held is still there: nothing is repaired, since nothing need be lost",
        if *.is_hidden { "was deleted" } else { "was written over" },
        told_since(*.since)
    )]
    Beneath {
        /// Which.
        object: String,
        /// Whether it was deleted.
        is_hidden: bool,
        /// When, where that is known.
        since: Option<SystemTime>,
    },
    /// Two looks at what everything builds on, or at what is to be dropped, differ.
    #[error("what is lost of {log} does not read the same twice: nothing is repaired; try again")]
    Unsteady {
        /// Whose.
        log: LogName,
    },
    /// The run could not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The run could not end.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// The repository failed.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

fn told_since(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| Timestamp::try_from(time).ok());
    time.map_or_else(|| "once".to_owned(), |time| format!("at {time:.0}"))
}

/// What a repair of one log would do. `options` say how much is read: nothing, and only what is missing or does not
/// open is found; all, and every damaged byte is. Writes nothing.
pub fn plan_repair(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &CheckOptions,
    now: Timestamp,
) -> Result<RepairPlan, RepairError> {
    repo.require(crate::keys::Act::Read, outcome::REPAIRING)?;
    Planning::begin(repo, log, options)?.finish(now)
}

/// Does what [`plan_repair`] says. A log that is whole is left as it is; what is lost may be more by now than a plan that
/// was shown said, and `is_agreed` is asked about what is really done.
pub fn repair(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &CheckOptions,
    is_agreed: &mut dyn FnMut(&RepairPlan) -> bool,
    run_options: &RunOptions,
) -> Result<RepairPlan, RepairError> {
    let plan = plan_repair(repo, log, options, repo.now()?)?;
    if plan.is_empty() || !is_agreed(&plan) {
        return Ok(plan);
    }
    let mut run = Run::begin_repair(repo, log, run_options)?;
    // Made within the run: no backup can appear now that counts.
    let mut inside = plan_repair(repo, log, options, repo.now()?)?;
    if inside.after != Some((run.history().next_run(), run.history().last_hash())) {
        // What this run would say of its end would not continue the chain: whoever comes next ends it.
        run.leave();
        return Err(RepairError::Unsteady { log: log.clone() });
    }
    let is_dropped = |it: &BeyondHelp| plan.dropped.iter().any(|known| known.run == it.run);
    let is_lost = |it: &LostOutcome| {
        // That a run had died without one was no word of anybody's.
        let name = log.outcome(RunNo(it.run)).to_string();
        plan.lost.iter().any(|known| known.run == it.run)
            || plan.outcomes.iter().any(|known| known.object == name)
    };
    if !inside.dropped.iter().all(is_dropped) {
        // One look is not enough to give up a backup: something may have been read wrongly once.
        run.abandon("what was lost did not read the same twice")?;
        return Err(RepairError::Unsteady { log: log.clone() });
    }
    let is_more = !inside.lost.iter().all(is_lost);
    if is_more && !is_agreed(&inside) {
        run.abandon("what was lost had become more")?;
        return Ok(inside);
    }
    let written = inside.write(&run).map_err(|error| run.lost_or(error))?;
    run.set_why(inside.summary());
    run.finish(written)?;
    // It has been done, and must be told: what is in the way of this is no reason to say otherwise.
    inside.not_deleted = inside.clean_up(repo, log).err().map(|error| error.to_string());
    // Runs that had ended without an outcome have one by now.
    let known: BTreeSet<String> = inside.outcomes.iter().map(|it| it.object.clone()).collect();
    inside.outcomes.extend(plan.outcomes.into_iter().filter(|it| !known.contains(&it.object)));
    Ok(inside)
}

impl RepairPlan {
    /// Leaves refs of backups that come to more than `bytes_max`, with those of prunes, to the next repair. Refs that can be
    /// read and lack what their backup needs come first: those that cannot keep every prune from what it would take for
    /// unneeded meanwhile.
    fn leave_refs_beyond(&mut self, bytes_max: u64, log: &LogName, can_be_read: impl Fn(RunNo) -> bool) {
        let sizes: Vec<(RunNo, bool, u64)> = self
            .made
            .rebuilt
            .iter()
            .map(|(run, refs)| match refs {
                RebuiltRefs::Backup(refs) => (*run, true, refs.encode().len() as u64),
                RebuiltRefs::Prune(refs) => (*run, false, refs.encode().len() as u64),
            })
            .collect();
        if sizes.iter().map(|(.., bytes)| bytes).sum::<u64>() <= bytes_max {
            return;
        }
        let (backups, prunes): (Vec<_>, Vec<_>) = sizes.into_iter().partition(|(_, is_backup, _)| *is_backup);
        let mut bytes: u64 = prunes.iter().map(|(.., bytes)| bytes).sum();
        let (lacking, damaged): (Vec<_>, Vec<_>) =
            backups.into_iter().partition(|(run, ..)| can_be_read(*run));
        let mut within = BTreeSet::new();
        for (run, _, size) in lacking.into_iter().chain(damaged) {
            // Whatever its size, one at a time gets done.
            let is_only = prunes.is_empty() && within.is_empty();
            if bytes + size > bytes_max && !is_only {
                break;
            }
            bytes += size;
            within.insert(run);
        }
        let left = &mut self.left;
        self.made.rebuilt.retain(|run, refs| {
            let is_within = matches!(refs, RebuiltRefs::Prune(_)) || within.contains(run);
            if !is_within {
                left.push(Finding {
                    problem: "has to be made anew, which the next repair does: this one makes all that fits"
                        .to_owned(),
                    remedy: Remedy::Refs,
                    backups: vec![*run],
                    ..Finding::of_object(log.refs(*run).to_string(), Severity::Repairable)
                });
            }
            is_within
        });
    }

    /// Stores all that the outcome will stand for.
    fn write(&mut self, run: &Run) -> Result<Ending, RepoError> {
        for of in &self.index {
            self.made.void_index.extend(index::write(run, *of)?);
        }
        let rebuilt = self.made.rebuilt.iter();
        let rebuilt = rebuilt
            .map(|(run, refs)| Rebuilt { run: run.0, is_prune: matches!(refs, RebuiltRefs::Prune(_)) });
        Ok(Ending::Repair {
            lost: self.lost.clone(),
            dropped: self.dropped.iter().map(|it| it.run).collect(),
            rebuilt: rebuilt.collect(),
            refs: run.write_repair_refs(&self.made)?,
        })
    }

    /// Deletes what the outcome has made useless for good. What is left of this the next prune deletes.
    fn clean_up(&self, repo: &Repo, log: &LogName) -> Result<(), RepoError> {
        let mut useless: Vec<ObjectPath> =
            self.lost.iter().map(|lost| log.outcome(RunNo(lost.run))).collect();
        useless.extend(self.made.rebuilt.keys().map(|run| log.refs(*run)));
        useless.extend(self.made.void_index.iter().map(|(run, part)| log.index(*run, *part)));
        useless.extend(self.discarded.iter().filter_map(|it| ObjectPath::new(it.object.clone())));
        for batch in useless.chunks(BATCH) {
            repo.discard(batch)?;
        }
        Ok(())
    }
}

/// A plan in the making.
struct Planning<'a> {
    repo: &'a Arc<Repo>,
    options: CheckOptions,
    /// What is whole of it.
    history: History,
    lost: BTreeMap<RunNo, RepoError>,
    lost_prunes: BTreeSet<RunNo>,
    made: RepairRefs,
}

impl<'a> Planning<'a> {
    fn begin(repo: &'a Arc<Repo>, log: &LogName, options: &CheckOptions) -> Result<Self, RepairError> {
        let mut lost = BTreeMap::new();
        let mut told = Vec::new();
        let history = History::salvage(repo, log, &mut |run, error| told.push((run, error)))?;
        for (run, error) in told {
            let RepoError::Damaged { damage: Damage::AllMissing { last }, .. } = error else {
                lost.insert(run, error);
                continue;
            };
            let count = last.0 - run.0 + 1 + lost.len() as u64;
            if count > LOST_MAX {
                let object = log.outcome(RunNo(last.0 + 1)).to_string();
                return Err(RepairError::Gap { object, count });
            }
            lost.extend(
                (run.0..=last.0)
                    .map(RunNo)
                    .map(|run| (run, RepoError::damaged(log.outcome(run), Damage::Missing))),
            );
        }
        let mut lost_prunes = BTreeSet::new();
        if !lost.is_empty() {
            require_known_keys(repo)?;
        }
        for (run, error) in &lost {
            require_damaged(repo, log, *run, error)?;
            if was_prune(repo, log, *run)? {
                lost_prunes.insert(*run);
            }
        }
        history.prunes_or(repo, &mut |run, _| {
            lost_prunes.insert(run);
            Ok(())
        })?;
        // Page maps are read in any case, packs as far as was asked.
        let read_data = options.read_data.or(Some(0.0));
        let options = CheckOptions { read_data, files_named: FILES_NAMED, ..options.clone() };
        Ok(Self { repo, options, history, lost, lost_prunes, made: RepairRefs::default() })
    }

    fn finish(mut self, now: Timestamp) -> Result<RepairPlan, RepairError> {
        let mut proven = Proven::default();
        let mut report = self.look(&mut proven)?;
        for round in 0..ROUNDS_MAX {
            let is_new = (round == 0 && self.find_moves(&report)?) || self.rebuild_refs(&report)?;
            if !is_new {
                break;
            }
            report = self.look(&mut proven)?;
        }
        self.name_dead()?;
        self.plan(report, now)
    }

    /// What is wrong, with what was made anew so far.
    fn look(&self, proven: &mut Proven) -> Result<CheckReport, RepoError> {
        let history = self.history.with_planned(self.made.clone());
        let prunes = history.prunes_or(self.repo, &mut |_, _| Ok(()))?;
        let (options, report) = (&self.options, CheckReport::default());
        check_history(self.repo, history, prunes, report, options, proven).map(|(report, _)| report)
    }

    fn source(&self) -> Result<Arc<ChunkSource>, RepoError> {
        let history = self.history.with_planned(self.made.clone());
        let prunes = history.prunes_or(self.repo, &mut |_, _| Ok(()))?;
        Ok(Arc::new(ChunkSource::with_prunes(Arc::clone(self.repo), &history, prunes, CACHE_BYTES)))
    }

    /// Refs of backups whose own are lost, or disagree with their page maps. Whether there are new ones.
    fn rebuild_refs(&mut self, report: &CheckReport) -> Result<bool, RepoError> {
        let wanted = report.findings.iter().filter(|it| it.remedy == Remedy::Refs);
        let wanted: BTreeSet<RunNo> = wanted.flat_map(|it| it.backups.iter().copied()).collect();
        let mut is_new = false;
        for run in wanted {
            let source = self.source()?;
            if let Some(refs) = walk::refs(&source, &self.history, run, &self.options.interrupt)? {
                let refs = RebuiltRefs::Backup(refs);
                is_new |= self.made.rebuilt.insert(run, refs.clone()) != Some(refs);
            }
        }
        Ok(is_new)
    }

    /// Packs that nothing needs may have been named dead by a prune whose word is lost: nothing may ever need them.
    fn name_dead(&mut self) -> Result<(), RepoError> {
        if self.lost_prunes.is_empty() {
            return Ok(());
        }
        let history = self.history.with_planned(self.made.clone());
        let prunes = history.prunes_or(self.repo, &mut |_, _| Ok(()))?;
        let mut needed = BTreeSet::new();
        let mut is_known = true;
        history.all_backup_refs(self.repo, |_, refs| {
            let gone_through = refs.and_then(|refs| {
                refs.each_pack(|of| needed.extend(of.needed().map(|chunk| prunes.resolve(chunk).pack)))
            });
            match gone_through {
                Err(error) if error.is_of_the_object() => is_known = false,
                done => done?,
            }
            Ok::<_, RepoError>(())
        })?;
        // What is not known to be needed may be, and nobody shall say that nothing does.
        if !is_known {
            return Ok(());
        }
        let there = self.repo.list_folder(history.log(), Folder::Packs)?;
        let there: Vec<PackId> = there.into_keys().map(|(run, part)| PackId { run, part }).collect();
        let unneeded = there.into_iter().filter(|pack| !needed.contains(pack) && !prunes.is_dead(*pack));
        for pack in unneeded {
            // The first that came after it says so for all.
            let by = self.lost_prunes.iter().find(|run| **run > pack.run);
            if let Some(RebuiltRefs::Prune(refs)) = by.and_then(|run| self.made.rebuilt.get_mut(run)) {
                refs.dead.push(pack);
            }
        }
        Ok(())
    }

    /// That nothing of what would be given up is only hidden or covered in a store that keeps versions.
    fn require_nothing_beneath(&self, report: &CheckReport) -> Result<(), RepairError> {
        let log = self.history.log();
        let is_acted_on = |it: &&Finding| {
            it.remedy != Remedy::Drop || (it.severity == Severity::Lost && !it.backups.is_empty())
        };
        let found = report.findings.iter().filter(is_acted_on).map(|it| it.object.clone());
        let outcomes = self.lost.keys().map(|run| log.outcome(*run).to_string());
        let refs = self.made.rebuilt.keys().map(|run| log.refs(*run).to_string());
        let objects: Vec<String> = found.chain(outcomes).chain(refs).collect();
        if objects.is_empty() {
            return Ok(());
        }
        let next = self.history.next_run();
        let beneath = outcomes_beneath(self.repo, log)?;
        if let Some((run, it)) = beneath.range(next..).find(|(_, it)| it.is_hidden) {
            let object = log.outcome(*run).to_string();
            return Err(RepairError::Beneath { object, is_hidden: true, since: Some(it.since) });
        }
        let mut finder = BeneathFinder::new(self.repo, log);
        for object in objects {
            self.options.interrupt.check()?;
            if let Some((object, Beneath { is_hidden, since })) = finder.look(&object)? {
                let object = object.to_string();
                return Err(RepairError::Beneath { object, is_hidden, since: Some(since) });
            }
        }
        Ok(())
    }

    fn plan(self, report: CheckReport, now: Timestamp) -> Result<RepairPlan, RepairError> {
        self.require_nothing_beneath(&report)?;
        let after = (self.history.next_run(), self.history.last_hash());
        let mut plan = RepairPlan { after: Some(after), made: self.made, ..RepairPlan::default() };
        for (run, error) in &self.lost {
            let next = self.history.outcome(RunNo(run.0 + 1)).map(|next| next.previous);
            let hash = next.unwrap_or_else(|| self.history.last_hash());
            let before = self.history.outcome(RunNo(run.0.saturating_sub(1))).map(|before| before.hash);
            plan.lost.push(LostOutcome { run: run.0, hash, before });
            plan.outcomes.push(Finding { remedy: Remedy::Outcome, ..Finding::of(error, Severity::Lost) });
        }
        let mut beyond: BTreeMap<RunNo, Vec<Finding>> = BTreeMap::new();
        let mut index = BTreeSet::new();
        for finding in report.findings {
            match finding.remedy {
                Remedy::Outcome => plan.outcomes.push(finding),
                Remedy::Index(run) => drop(index.insert(run)),
                Remedy::Discard => plan.discarded.push(finding),
                _ if finding.severity == Severity::Repairable || finding.backups.is_empty() => {
                    plan.left.push(finding);
                }
                // What could not be made anew shows in what its page maps have lost.
                Remedy::Drop | Remedy::Refs => {
                    for run in &finding.backups {
                        beyond.entry(*run).or_default().push(finding.clone());
                    }
                }
            }
        }
        // Nothing tells what was in a chunk that others are patches on, so that it is not found where it was moved.
        let of_rows = self.history.log().kind == Kind::Logical;
        if let Some(run) = self.lost_prunes.first().filter(|_| of_rows)
            && let Some((backup, _)) = beyond.first_key_value()
        {
            let object = self.history.log().outcome(*run).to_string();
            return Err(RepairError::Moved { object, backup: *backup });
        }
        for (run, findings) in beyond {
            let it = BeyondHelp { run, findings };
            match self.history.hold(run, now) {
                Some(_) => plan.held.push(it),
                None => plan.dropped.push(it),
            }
            plan.made.rebuilt.retain(|of, refs| *of != run || matches!(refs, RebuiltRefs::Prune(_)));
        }
        if let (Some(run), Some(dropped)) = (self.history.uncertain_hold(), plan.dropped.first()) {
            let log = self.history.log().clone();
            return Err(RepairError::MayBeHeld { log, run, backup: dropped.run });
        }
        plan.index = index.into_iter().collect();
        let can_be_read =
            |run| self.history.stored_refs(self.repo, run).and_then(|refs| refs.each_pack(|_| {})).is_ok();
        plan.leave_refs_beyond(REFS_AT_ONCE_MAX, self.history.log(), can_be_read);
        for (run, refs) in &plan.made.rebuilt {
            match refs {
                RebuiltRefs::Backup(_) => plan.refs.push(*run),
                RebuiltRefs::Prune(PruneRefs { dead, moves }) => {
                    let (moves, dead) = (moves.len() as u64, dead.len() as u64);
                    plan.prunes.push(RebuiltPrune { run: *run, moves, dead });
                }
            }
        }
        Ok(plan)
    }
}

/// More than anybody reads; what is left out is counted.
const FILES_NAMED: usize = 1000;

/// That the outcome is damaged, and not only beyond this version, or beside a chain that somebody has altered.
fn require_damaged(repo: &Repo, log: &LogName, run: RunNo, error: &RepoError) -> Result<(), RepairError> {
    let path = log.outcome(run);
    let bytes = match read_all(&**repo.store(), &path, OUTCOME_BYTES_MAX).map_err(RepoError::from) {
        Err(error) if error.is_of_the_object() => return Ok(()),
        bytes => bytes?,
    };
    match outcome::signed_by(repo, log, run, &bytes)? {
        SignedBy::Nobody => Ok(()),
        // By a key that was removed, and nothing behind it tells that it was signed before.
        SignedBy::Believed if error.is_of_removed_signer() => Ok(()),
        SignedBy::Stranger => Err(RepairError::Stranger { object: path.to_string() }),
        SignedBy::Believed => {
            Err(RepairError::Intact { object: path.to_string(), problem: error.to_string() })
        }
    }
}

/// That it is known whose signatures are to be believed: what is lost with a record of a key would else be taken for
/// damage, for good.
fn require_known_keys(repo: &Repo) -> Result<(), RepairError> {
    match manage::list(repo) {
        Ok(keys) => match keys.problems.into_iter().next() {
            Some((object, problem)) => Err(RepairError::Keys { object, problem }),
            None => Ok(()),
        },
        Err(KeyError::Store(error)) => Err(RepoError::from(error).into()),
        Err(error) => {
            let object = "keys/".to_owned();
            Err(RepairError::Keys { object, problem: error.to_string() })
        }
    }
}

/// Whether what is left of a run whose outcome is lost is that of a prune.
fn was_prune(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    let place = Place { log, kind: ObjectKind::Refs, run, part: 0 };
    match repo.read_object(&place, REFS_BYTES_MAX) {
        Ok(plain) => Ok(PruneRefs::decode(run, &plain).is_ok()),
        Err(error) if error.is_of_the_object() => {
            let lease = crate::log::lease::look(repo, log, run)?;
            Ok(lease.is_some_and(|lease| lease.intent == Some(outcome::Intent::Prune)))
        }
        Err(error) => Err(error),
    }
}

/// Whether packs of a run with this outcome may hold what a prune has moved there.
fn may_hold_moved(history: &History, run: RunNo) -> bool {
    history.outcome(run).is_none_or(|outcome| match outcome.outcome_type {
        OutcomeType::Backup => false,
        OutcomeType::Expire | OutcomeType::Hold | OutcomeType::Release | OutcomeType::Repair => false,
        OutcomeType::Prune => true,
        // Of others everything may be deleted at any time: by a sweep, or by a prune that wakes.
        OutcomeType::Tombstone | OutcomeType::Abandoned => outcome.intent == Some(outcome::Intent::Backup),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::refs::{BackupRefs, ChunkNeed, NeededPack};

    /// Whatever there is to be made anew, each repair makes some of it, and names what it leaves.
    #[test]
    fn refs_that_do_not_fit_are_left_to_the_next_repair() {
        let log: LogName = crate::repo::tests::log();
        let chunks = vec![ChunkNeed { units: 1, needed: 1 }; 100];
        let pack = NeededPack { pack: PackId { run: RunNo(1), part: 0 }, size_bytes: 1, chunks };
        let backup = RebuiltRefs::Backup(BackupRefs { packs: vec![pack] });
        let prune = RebuiltRefs::Prune(PruneRefs::default());
        let plan = |bytes_max| {
            let mut plan = RepairPlan::default();
            let made = [(1, &backup), (2, &backup), (3, &prune), (4, &backup)];
            plan.made.rebuilt.extend(made.map(|(run, refs)| (RunNo(run), refs.clone())));
            plan.leave_refs_beyond(bytes_max, &log, |run| run == RunNo(2));
            let left: Vec<u64> = plan.left.iter().map(|it| it.backups[0].0).collect();
            (plan.made.rebuilt.into_keys().map(|run| run.0).collect::<Vec<_>>(), left)
        };
        assert_eq!(plan(10_000), (vec![1, 2, 3, 4], vec![]));
        assert_eq!(plan(500), (vec![1, 2, 3], vec![4]));
        // What is damaged keeps prunes away by itself; what can be read and lacks something does not.
        assert_eq!(plan(300), (vec![2, 3], vec![1, 4]));
        assert_eq!(plan(0), (vec![3], vec![1, 2, 4]));
    }
}
