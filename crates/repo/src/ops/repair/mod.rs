//! Repair: rebuilds what was lost from what still exists, and drops by name what is beyond help
//! (`docs/reference/repository.md` section 14a).
//!
//! - A repair is a run. Only its outcome changes anything, so a repair that dies has done nothing, and two
//!   repairs cannot undo each other's work: nothing is overwritten, and objects that it deletes afterwards
//!   are never needed again.
//! - A repair deletes no packs. It declares packs dead only on behalf of a prune whose own record is lost.
//! - Anything that can be read counts as what it is; anything validly signed is never treated as damage.

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
    log::{
        history::History,
        outcome::{self, LostOutcome, OutcomeType, Rebuilt},
        run::{BeginError, Ending, FinishError, Run, RunOptions},
        segment::{hash_before, last_archived, list_segments},
    },
    ops::check::{CheckOptions, CheckReport, Finding, Proven, Remedy, Severity, check_history},
    repo::Repo,
    store::{ObjectPath, exists},
};

mod index;
mod lost;
mod moves;
mod walk;

use lost::{require_damaged, require_known_keys, require_nothing_beneath};

/// Caches of items and leaves for the walks of a repair.
const CACHE_BYTES: usize = 64 << 20;
/// Each round reads with what the round before has rebuilt. After moves, refs, and another look at both,
/// further rounds find nothing new.
const ROUNDS_MAX: u32 = 6;
/// How many outcomes one repair can declare lost: as many as fit into its own outcome.
const LOST_MAX: u64 = 10_000;
/// Maximum bytes of refs that one repair rebuilds, unless a single backup's refs exceed it: the rebuilt refs
/// of backups and prunes are one object.
const REFS_AT_ONCE_MAX: u64 = REFS_BYTES_MAX / 2;
/// Objects are deleted in batches of this many.
const BATCH: usize = 1000;

/// A backup that cannot be restored in full.
#[derive(Clone, Debug)]
pub struct BeyondHelp {
    /// The backup.
    pub run: RunNo,
    /// What it has lost, with the files and tables that need that.
    pub findings: Vec<Finding>,
}

/// A prune whose record of what it did is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuiltPrune {
    /// The prune.
    pub run: RunNo,
    /// How many chunks were found where it had moved them.
    pub moves: u64,
    /// How many packs, needed by nothing, it may have declared dead.
    pub dead: u64,
}

/// What a repair is about to do.
#[derive(Clone, Debug, Default)]
pub struct RepairPlan {
    /// Lost outcomes: their runs count as having had no effect.
    pub outcomes: Vec<Finding>,
    /// Prunes whose record is lost, and is rebuilt.
    pub prunes: Vec<RebuiltPrune>,
    /// Backups whose refs are rebuilt.
    pub refs: Vec<RunNo>,
    /// Runs whose index is rebuilt.
    pub index: Vec<RunNo>,
    /// Damaged objects that nothing needs.
    pub discarded: Vec<Finding>,
    /// Backups that are beyond help and are dropped.
    pub dropped: Vec<BeyondHelp>,
    /// Backups that are beyond help, but are held, or may be: what held them may be among the lost.
    pub held: Vec<BeyondHelp>,
    /// Findings that the repair leaves as they are.
    pub left: Vec<Finding>,
    /// Why an object that is useless now could not be deleted; the next prune deletes it.
    pub not_deleted: Option<String>,
    /// The lost outcomes, as the repair's own outcome will name them.
    lost: Vec<LostOutcome>,
    made: RepairRefs,
    /// The history that the plan is based on: the number after its
    /// last outcome, and the hash of that outcome.
    after: Option<(RunNo, ObjectHash)>,
}

impl RepairPlan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
            && self.lost.is_empty()
            && self.made.rebuilt.is_empty()
            && self.index.is_empty()
            && self.discarded.is_empty()
            && self.dropped.is_empty()
    }

    /// A one-line summary, for the outcome.
    fn summary(&self) -> String {
        format!(
            "outcomes lost: {}; prunes and refs rebuilt: {}; indexes rebuilt: {}; objects discarded: {}; \
             backups dropped: {}",
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
    /// An object is signed with a trusted key, but is not understood.
    #[error(
        "{object} is intact and signed, but this version cannot use it ({problem}): nothing was repaired"
    )]
    Intact {
        /// The object.
        object: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An intact outcome is signed with an unknown key.
    #[error(
        "{object} is intact, but signed with an unknown key: nothing was repaired, and nothing is until \
         it is known whose key it is"
    )]
    Stranger {
        /// The outcome.
        object: String,
    },
    /// Outcomes cannot be opened, and the records of whose signatures to trust have a problem.
    #[error(
        "{object}: {problem}: nothing was repaired, since outcomes that seem lost may be signed with a key \
         that this record names"
    )]
    Keys {
        /// The record.
        object: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A logical backup seems beyond help, but may only need chunks that a prune has moved.
    #[error(
        "it is not known what the prune of {object} moved, and backup {backup} may need just that: \
         nothing was dropped"
    )]
    Moved {
        /// The outcome of the prune.
        object: String,
        /// The first such backup.
        backup: RunNo,
    },
    /// A backup is beyond help, and it is not known what is held.
    #[error(
        "backup {backup} of {log} cannot be restored, but may be held: run {run} may have held it, \
         and its outcome is missing; nothing was repaired"
    )]
    MayBeHeld {
        /// The log.
        log: LogName,
        /// The run that was to hold backups.
        run: RunNo,
        /// The first backup that is beyond help.
        backup: RunNo,
    },
    /// What a prune moved is found through page maps, and some are of a later version.
    #[error(
        "the record of a prune is lost, and what it moved cannot be found, since {object} {problem}: nothing \
         was repaired"
    )]
    Newer {
        /// The object.
        object: String,
        /// What is not known.
        problem: String,
    },
    /// More outcomes are missing than one outcome can name.
    #[error(
        "{count} outcomes are missing before {object}, more than one repair can declare lost: nothing was \
         repaired; if you do not trust whoever wrote that object, delete it"
    )]
    Gap {
        /// The outcome after the missing ones.
        object: String,
        /// How many are missing.
        count: u64,
    },
    /// An object that seems lost still exists as an older version.
    #[error(
        "{object} {}{}, but what it was still exists as an older version: nothing was repaired, \
         since nothing need be lost",
        if *.is_hidden { "was deleted" } else { "was overwritten" },
        told_since(*.since)
    )]
    Beneath {
        /// The object.
        object: String,
        /// Whether it was deleted.
        is_hidden: bool,
        /// When that happened, if known.
        since: Option<SystemTime>,
    },
    /// Two readings of what everything builds on, or of what is to be dropped, differ.
    #[error("two readings of what is lost in {log} differ: nothing was repaired; try again")]
    Unsteady {
        /// The log.
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
    time.map_or_else(String::new, |time| format!(" at {time:.0}"))
}

/// Plans a repair of one log. `options` tell how much data to read: with none, only objects that are missing
/// or cannot be opened are found; with all, every damaged byte is. Changes nothing, but records, as every check
/// does, which packs it has found good, damaged or gone.
pub fn plan_repair(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &CheckOptions,
    now: Timestamp,
) -> Result<RepairPlan, RepairError> {
    repo.require(crate::keys::Act::Read, outcome::REPAIRING)?;
    Planning::begin(&Arc::new(repo.insisting()), log, options)?.finish(now)
}

/// Carries out what [`plan_repair`] plans. A log without damage is left as it is. More may be lost by now
/// than the plan that was shown said, so `is_agreed` is asked about what is really done.
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
    // Planned again within the run: no backup can appear now that counts.
    let mut inside = plan_repair(repo, log, options, repo.now()?)?;
    if inside.after != Some((run.history().next_run(), run.history().last_hash())) {
        // An outcome of this run would not continue the chain; the next run ends this one.
        run.leave();
        return Err(RepairError::Unsteady { log: log.clone() });
    }
    let is_dropped = |it: &BeyondHelp| plan.dropped.iter().any(|known| known.run == it.run);
    let is_lost = |it: &LostOutcome| {
        // In the first plan, a run that died without an outcome is only a finding.
        let name = log.outcome(RunNo(it.run)).to_string();
        plan.lost.iter().any(|known| known.run == it.run)
            || plan.outcomes.iter().any(|known| known.object == name)
    };
    if !inside.dropped.iter().all(is_dropped) {
        // One reading is not enough to give up a backup: it may have gone wrong once.
        run.abandon("two readings of what was lost differed")?;
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
    // The repair is done, and must be reported as such, even if the cleanup fails.
    inside.not_deleted = inside.clean_up(repo, log).err().map(|error| error.to_string());
    // Runs that had ended without an outcome have one by now.
    let known: BTreeSet<String> = inside.outcomes.iter().map(|it| it.object.clone()).collect();
    inside.outcomes.extend(plan.outcomes.into_iter().filter(|it| !known.contains(&it.object)));
    Ok(inside)
}

impl RepairPlan {
    /// Leaves refs of backups that exceed `bytes_max`, together with those of prunes, to the next repair.
    /// Refs that can be read but lack what their backup needs come first: unreadable refs keep every prune
    /// from treating what the backup needs as garbage meanwhile.
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
            // A single backup's refs are rebuilt whatever their size.
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
                    problem: "must be rebuilt by another repair: there was no room for it in this one"
                        .to_owned(),
                    remedy: Remedy::Refs,
                    backups: vec![*run],
                    ..Finding::of_object(log.refs(*run).to_string(), Severity::Repairable)
                });
            }
            is_within
        });
    }

    /// Stores everything that the outcome will refer to.
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

    /// Deletes objects that the outcome has made useless for good. The
    /// next prune deletes what is left of them.
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

/// A plan being made.
struct Planning<'a> {
    repo: &'a Arc<Repo>,
    options: CheckOptions,
    /// What is intact of the history.
    history: History,
    lost: BTreeMap<RunNo, RepoError>,
    lost_prunes: BTreeSet<RunNo>,
    /// The newest of the lost that may have held backups: it has stored nothing.
    lost_hold: Option<RunNo>,
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
        if let Some(archived) = last_archived(repo, &history)? {
            for run in (history.next_run().0..archived.0).map(RunNo) {
                lost.entry(run).or_insert_with(|| RepoError::damaged(log.outcome(run), Damage::Missing));
            }
        }
        let (mut lost_prunes, mut lost_hold) = (BTreeSet::new(), None);
        if !lost.is_empty() {
            require_known_keys(repo)?;
        }
        for (run, error) in &lost {
            require_damaged(repo, log, *run, error)?;
            if was_prune(repo, log, *run)? {
                lost_prunes.insert(*run);
            } else if !exists(&**repo.store(), &log.refs(*run)).map_err(RepoError::from)? {
                lost_hold = Some(*run);
            }
        }
        history.all_prunes_or(repo, &mut |run, error| {
            if error.is_unknown() {
                return Err(error);
            }
            lost_prunes.insert(run);
            Ok(())
        })?;
        // Page maps are always read, packs as far as requested.
        let read_data = options.read_data.or(Some(0.0));
        let options = CheckOptions { read_data, files_named: FILES_NAMED, ..options.clone() };
        Ok(Self { repo, options, history, lost, lost_prunes, lost_hold, made: RepairRefs::default() })
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

    /// Checks the log, with everything that has been rebuilt so far.
    fn look(&self, proven: &mut Proven) -> Result<CheckReport, RepoError> {
        let history = self.history.with_planned(self.made.clone());
        let prunes = history.all_prunes_or(self.repo, &mut |_, _| Ok(()))?;
        let (options, report) = (&self.options, CheckReport::default());
        check_history(self.repo, history, prunes, report, options, proven).map(|(report, _)| report)
    }

    fn source(&self) -> Result<Arc<ChunkSource>, RepoError> {
        let history = self.history.with_planned(self.made.clone());
        let prunes = history.all_prunes_or(self.repo, &mut |_, _| Ok(()))?;
        Ok(Arc::new(ChunkSource::with_prunes(Arc::clone(self.repo), &history, prunes, CACHE_BYTES)))
    }

    /// Rebuilds the refs of backups whose refs are lost, or disagree with
    /// their page maps. Returns whether any are new.
    fn rebuild_refs(&mut self, report: &CheckReport) -> Result<bool, RepoError> {
        let is_wanted = |it: &&Finding| it.remedy == Remedy::Refs && it.severity != Severity::Newer;
        let wanted = report.findings.iter().filter(is_wanted);
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

    /// Declares packs dead that nothing needs, since a prune whose record is lost may have done so: nothing
    /// may ever need them.
    fn name_dead(&mut self) -> Result<(), RepoError> {
        if self.lost_prunes.is_empty() {
            return Ok(());
        }
        let history = self.history.with_planned(self.made.clone());
        let prunes = history.all_prunes_or(self.repo, &mut |_, _| Ok(()))?;
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
        // If refs are unreadable, packs that seem unneeded may be needed, so none may be declared dead.
        if !is_known {
            return Ok(());
        }
        let there = self.repo.list_folder(history.log(), Folder::Packs)?;
        let there: Vec<PackId> = there.into_keys().map(|(run, part)| PackId { run, part }).collect();
        let unneeded = there.into_iter().filter(|pack| !needed.contains(pack) && !prunes.is_dead(*pack));
        for pack in unneeded {
            // The first lost prune after the pack declares it, on behalf of all.
            let by = self.lost_prunes.iter().find(|run| **run > pack.run);
            if let Some(RebuiltRefs::Prune(refs)) = by.and_then(|run| self.made.rebuilt.get_mut(run)) {
                refs.dead.push(pack);
            }
        }
        Ok(())
    }

    /// What is to be given up or replaced, as findings name it.
    fn acted_on(&self, report: &CheckReport) -> Vec<String> {
        let log = self.history.log();
        let is_acted_on = |it: &&Finding| match it.severity {
            Severity::Newer => false,
            Severity::Lost if !it.backups.is_empty() => true,
            Severity::Lost | Severity::Repairable => it.remedy != Remedy::Drop,
        };
        let found = report.findings.iter().filter(is_acted_on).map(|it| it.object.clone());
        let outcomes = self.lost.keys().map(|run| log.outcome(*run).to_string());
        let refs = self.made.rebuilt.keys().map(|run| log.refs(*run).to_string());
        found.chain(outcomes).chain(refs).collect()
    }

    fn plan(self, report: CheckReport, now: Timestamp) -> Result<RepairPlan, RepairError> {
        let acted_on = self.acted_on(&report);
        require_nothing_beneath(self.repo, &self.history, &acted_on, &self.options.interrupt)?;
        let log = self.history.log();
        let after = (self.history.next_run(), self.history.last_hash());
        let mut plan = RepairPlan { after: Some(after), made: self.made, ..RepairPlan::default() };
        let segments = match self.lost.is_empty() {
            true => BTreeMap::new(),
            false => list_segments(self.repo, log)?,
        };
        for (run, error) in &self.lost {
            let after = RunNo(run.0 + 1);
            let named = match self.history.outcome(after) {
                Some(next) => Some(next.previous),
                None if segments.contains_key(&after) => hash_before(self.repo, log, after)?,
                None => None,
            };
            let hash = named.unwrap_or_else(|| self.history.last_hash());
            let before = self.history.outcome(RunNo(run.0.saturating_sub(1))).map(|before| before.hash);
            plan.lost.push(LostOutcome { run: run.0, hash, before });
            plan.outcomes.push(Finding { remedy: Remedy::Outcome, ..Finding::of(error, Severity::Lost) });
        }
        let (newer, damage): (Vec<Finding>, Vec<Finding>) =
            report.findings.into_iter().partition(|it| it.severity == Severity::Newer);
        let of_newer: BTreeSet<RunNo> = newer.iter().flat_map(|it| it.backups.iter().copied()).collect();
        if let (Some(_), Some(it)) =
            (self.lost_prunes.first(), newer.iter().find(|it| !it.backups.is_empty()))
        {
            let Finding { object, problem, .. } = it.clone();
            return Err(RepairError::Newer { object, problem });
        }
        let has_newer_packs = |run: RunNo| {
            let of_run = [Folder::Packs, Folder::Index].map(|of| format!("{}{:010}-", log.folder(of), run.0));
            newer.iter().any(|it| of_run.iter().any(|begin| it.object.starts_with(begin)))
        };
        let takes_newer = |finding| Finding { severity: Severity::Newer, ..finding };
        let mut beyond: BTreeMap<RunNo, Vec<Finding>> = BTreeMap::new();
        let mut index = BTreeSet::new();
        for finding in damage {
            match finding.remedy {
                Remedy::Outcome if plan.outcomes.iter().any(|it| it.object == finding.object) => {}
                Remedy::Outcome => plan.outcomes.push(finding),
                // A new index could not list those packs, and would replace one that may.
                Remedy::Index(run) if has_newer_packs(run) => plan.left.push(takes_newer(finding)),
                Remedy::Index(run) => drop(index.insert(run)),
                Remedy::Discard => plan.discarded.push(finding),
                // They could not be made anew from page maps that this version cannot read.
                Remedy::Refs if finding.backups.iter().all(|run| of_newer.contains(run)) => {
                    plan.left.push(takes_newer(finding));
                }
                _ if finding.severity == Severity::Repairable || finding.backups.is_empty() => {
                    plan.left.push(finding);
                }
                // If refs could not be rebuilt, the losses of the page maps tell why.
                Remedy::Drop | Remedy::Refs => {
                    for run in &finding.backups {
                        beyond.entry(*run).or_default().push(finding.clone());
                    }
                }
            }
        }
        plan.left.extend(newer);
        // Nothing records the content of a chunk that others are patches on,
        // so it cannot be found where it was moved.
        let of_rows = self.history.log().kind == Kind::Logical;
        if let Some(run) = self.lost_prunes.first().filter(|_| of_rows)
            && let Some((backup, _)) = beyond.first_key_value()
        {
            let object = self.history.log().outcome(*run).to_string();
            return Err(RepairError::Moved { object, backup: *backup });
        }
        let lost_hold = self.lost_hold.filter(|lost| Some(*lost) > self.history.holds_told());
        for (run, findings) in beyond {
            let it = BeyondHelp { run, findings };
            match self.history.hold(run, now).is_some() || lost_hold.is_some_and(|lost| lost > run) {
                true => plan.held.push(it),
                false => plan.dropped.push(it),
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

/// More files than anybody reads; those left out are counted.
const FILES_NAMED: usize = 1000;

/// Whether the remains of a run whose outcome is lost are those of a prune.
fn was_prune(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    let place = Place { log, kind: ObjectKind::Refs, run, part: 0 };
    match repo.read_object(&place, REFS_BYTES_MAX) {
        Ok(plain) => match PruneRefs::decode(run, &plain).map_err(|e| RepoError::damaged(place, e.into())) {
            Err(error) if error.is_unknown() => Err(error),
            decoded => Ok(decoded.is_ok()),
        },
        Err(error) if error.is_unknown() => Err(error),
        Err(error) if error.is_of_the_object() => {
            let lease = crate::log::lease::look(repo, log, run)?;
            Ok(lease.is_some_and(|lease| lease.intent == Some(outcome::Intent::Prune)))
        }
        Err(error) => Err(error),
    }
}

/// Whether packs of a run may hold chunks that a prune moved there, going by the run's outcome.
fn may_hold_moved(history: &History, run: RunNo) -> bool {
    history.outcome(run).is_none_or(|outcome| match outcome.outcome_type {
        OutcomeType::Backup => false,
        OutcomeType::Expire | OutcomeType::Hold | OutcomeType::Release | OutcomeType::Repair => false,
        OutcomeType::Prune => true,
        // Everything of other runs may be deleted at any time: by a sweep, or by a prune that wakes up.
        OutcomeType::Tombstone | OutcomeType::Abandoned => outcome.intent == Some(outcome::Intent::Backup),
    })
}

#[cfg(test)]
mod tests {
    use holdfast_pipe::Suite;

    use super::*;
    use crate::{
        format::{
            object::{NO_OBJECT, object_hash, seal_object},
            refs::{BackupRefs, ChunkNeed, NeededPack},
        },
        log::outcome::PublicPart,
        repo::tests::new_repo,
        store::Store,
    };

    /// The record of a prune is not known, and no other is made in its place, even if its outcome is lost.
    #[test]
    fn a_prune_of_a_later_version_is_left() {
        let (store, repo) = new_repo(Suite::None);
        let (repo, log) = (Arc::new(repo), crate::repo::tests::log());
        let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
        let place = Place { log: &log, kind: ObjectKind::Refs, run: RunNo(1), part: 0 };
        let refs = seal_object(repo.keys(), &place, &[9]).unwrap();
        repo.put(&place, &refs).unwrap();
        let bare = PublicPart::bare(place.run, OutcomeType::Prune, NO_OBJECT, repo.now().unwrap());
        let public = PublicPart { refs: Some(object_hash(&refs)), ..bare };
        let pruned = outcome::encode(&repo, &log, &public, None).unwrap();
        store.create_if_absent(&log.outcome(place.run), &pruned).unwrap();
        Run::begin(&repo, &log, &options).unwrap().abandon("test").unwrap();
        let refused = |done: Result<RepairPlan, RepairError>| {
            let Err(RepairError::Repo(error)) = done else { panic!("{done:?}") };
            assert_eq!(
                error.to_string(),
                format!("{place}: uses type of refs 9, which this version does not know")
            );
        };
        let mend = || repair(&repo, &log, &CheckOptions::default(), &mut |_| true, &options);
        refused(mend());
        assert!(store.damage(&log.outcome(place.run), |bytes| bytes[150] ^= 1));
        refused(mend());
    }

    /// However much there is to rebuild, each repair rebuilds some of it, and names what it leaves.
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
        // Damaged refs stop prunes by themselves; refs that can be read but lack something do not.
        assert_eq!(plan(300), (vec![2, 3], vec![1, 4]));
        assert_eq!(plan(0), (vec![3], vec![1, 2, 4]));
    }
}
