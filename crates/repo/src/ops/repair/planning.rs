//! How a repair is planned: look, rebuild what the look shows to be lost, look again with it, and sort what remains
//! by what can be done about it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    error::RepairError,
    lost::{require_damaged, require_known_keys, require_nothing_beneath},
    plan::{BeyondHelp, RepairPlan},
    walk,
};
use crate::{
    data::reader::ChunkSource,
    error::{Damage, RepoError},
    format::{
        names::{Folder, Kind, LogName, PackId, RunNo},
        place::{ObjectKind, Place},
        refs::{PruneRefs, REFS_BYTES_MAX, RebuiltRefs, RepairRefs},
    },
    log::{
        history::History,
        outcome::{self, LostOutcome, OutcomeType},
        segment::{hash_before, last_archived, list_segments},
    },
    ops::check::{CheckOptions, CheckReport, Finding, Proven, Remedy, Severity, check_history},
    repo::Repo,
    store::exists,
};

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
/// More files than anybody reads; those left out are counted.
const FILES_NAMED: usize = 1000;

/// A plan being made.
pub(super) struct Planning<'a> {
    pub(super) repo: &'a Arc<Repo>,
    pub(super) options: CheckOptions,
    /// What is intact of the history.
    pub(super) history: History,
    lost: BTreeMap<RunNo, RepoError>,
    pub(super) lost_prunes: BTreeSet<RunNo>,
    /// The newest of the lost that may have held backups: it has stored nothing.
    lost_hold: Option<RunNo>,
    pub(super) made: RepairRefs,
}

impl<'a> Planning<'a> {
    pub(super) fn begin(
        repo: &'a Arc<Repo>,
        log: &LogName,
        options: &CheckOptions,
    ) -> Result<Self, RepairError> {
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

    pub(super) fn finish(mut self, now: Timestamp) -> Result<RepairPlan, RepairError> {
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

    pub(super) fn source(&self) -> Result<Arc<ChunkSource>, RepoError> {
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

    fn plan(mut self, report: CheckReport, now: Timestamp) -> Result<RepairPlan, RepairError> {
        let acted_on = self.acted_on(&report);
        require_nothing_beneath(self.repo, &self.history, &acted_on, &self.options.interrupt)?;
        let after = (self.history.next_run(), self.history.last_hash());
        let made = mem::take(&mut self.made);
        let mut plan = RepairPlan { after: Some(after), made, ..RepairPlan::default() };
        self.declare_lost(&mut plan)?;
        let (newer, damage): (Vec<Finding>, Vec<Finding>) =
            report.findings.into_iter().partition(|it| it.severity == Severity::Newer);
        self.require_known_maps(&newer)?;
        let beyond = self.sort(damage, &newer, &mut plan);
        plan.left.extend(newer);
        self.give_up(beyond, now, &mut plan)?;
        let can_be_read =
            |run| self.history.stored_refs(self.repo, run).and_then(|refs| refs.each_pack(|_| {})).is_ok();
        plan.leave_refs_beyond(REFS_AT_ONCE_MAX, self.history.log(), can_be_read);
        plan.name_rebuilt();
        Ok(plan)
    }

    /// Adds the lost outcomes, each with the hash by which the chain goes on after it.
    fn declare_lost(&self, plan: &mut RepairPlan) -> Result<(), RepairError> {
        let log = self.history.log();
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
        Ok(())
    }

    /// Checks that the page maps by which moves are found can all be read.
    fn require_known_maps(&self, newer: &[Finding]) -> Result<(), RepairError> {
        let unknown = newer.iter().find(|it| !it.backups.is_empty());
        match unknown.filter(|_| !self.lost_prunes.is_empty()).cloned() {
            Some(Finding { object, problem, .. }) => Err(RepairError::Newer { object, problem }),
            None => Ok(()),
        }
    }

    /// Sorts the damage by what is done about it. Returns what is beyond help, by backup.
    fn sort(
        &self,
        damage: Vec<Finding>,
        newer: &[Finding],
        plan: &mut RepairPlan,
    ) -> BTreeMap<RunNo, Vec<Finding>> {
        let log = self.history.log();
        let of_newer: BTreeSet<RunNo> = newer.iter().flat_map(|it| it.backups.iter().copied()).collect();
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
        plan.index = index.into_iter().collect();
        beyond
    }

    /// Drops the backups that are beyond help and not held, if it is known that both are so.
    fn give_up(
        &self,
        beyond: BTreeMap<RunNo, Vec<Finding>>,
        now: Timestamp,
        plan: &mut RepairPlan,
    ) -> Result<(), RepairError> {
        let log = self.history.log();
        // Nothing records the content of a chunk that others are patches on,
        // so it cannot be found where it was moved.
        let of_rows = log.kind == Kind::Logical;
        if let Some(run) = self.lost_prunes.first().filter(|_| of_rows)
            && let Some((backup, _)) = beyond.first_key_value()
        {
            return Err(RepairError::Moved { object: log.outcome(*run).to_string(), backup: *backup });
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
        match (self.history.uncertain_hold(), plan.dropped.first()) {
            (Some(run), Some(dropped)) => {
                Err(RepairError::MayBeHeld { log: log.clone(), run, backup: dropped.run })
            }
            _ => Ok(()),
        }
    }
}

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
pub(super) fn may_hold_moved(history: &History, run: RunNo) -> bool {
    history.outcome(run).is_none_or(|outcome| match outcome.outcome_type {
        OutcomeType::Backup => false,
        OutcomeType::Expire | OutcomeType::Hold | OutcomeType::Release | OutcomeType::Repair => false,
        OutcomeType::Prune => true,
        // Everything of other runs may be deleted at any time: by a sweep, or by a prune that wakes up.
        OutcomeType::Tombstone | OutcomeType::Abandoned => outcome.intent == Some(outcome::Intent::Backup),
    })
}
