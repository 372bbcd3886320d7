//! What a repair is about to do, told before it is done.

use std::collections::BTreeSet;

use crate::{
    format::{
        hash::ObjectHash,
        names::{LogName, RunNo},
        refs::{PruneRefs, RebuiltRefs, RepairRefs},
    },
    log::outcome::LostOutcome,
    ops::check::{Finding, Remedy, Severity},
};

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
    pub(super) lost: Vec<LostOutcome>,
    pub(super) made: RepairRefs,
    /// The history that the plan is based on: the number after its
    /// last outcome, and the hash of that outcome.
    pub(super) after: Option<(RunNo, ObjectHash)>,
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
    pub(super) fn summary(&self) -> String {
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

    /// Leaves refs of backups that exceed `bytes_max`, together with those of prunes, to the next repair.
    /// Refs that can be read but lack what their backup needs come first: unreadable refs keep every prune
    /// from treating what the backup needs as garbage meanwhile.
    pub(super) fn leave_refs_beyond(
        &mut self,
        bytes_max: u64,
        log: &LogName,
        can_be_read: impl Fn(RunNo) -> bool,
    ) {
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

    /// Tells of what is rebuilt.
    pub(super) fn name_rebuilt(&mut self) {
        for (run, refs) in &self.made.rebuilt {
            match refs {
                RebuiltRefs::Backup(_) => self.refs.push(*run),
                RebuiltRefs::Prune(PruneRefs { dead, moves }) => {
                    let (moves, dead) = (moves.len() as u64, dead.len() as u64);
                    self.prunes.push(RebuiltPrune { run: *run, moves, dead });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{
        names::PackId,
        refs::{BackupRefs, ChunkNeed, NeededPack},
    };

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
