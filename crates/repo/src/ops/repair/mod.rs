//! Repair: rebuilds what was lost from what still exists, and drops by name what is beyond help
//! (`docs/reference/repository.md` section 14a).
//!
//! - A repair is a run. Only its outcome changes anything, so a repair that dies has done nothing, and two
//!   repairs cannot undo each other's work: nothing is overwritten, and objects that it deletes afterwards
//!   are never needed again.
//! - A repair deletes no packs. It declares packs dead only on behalf of a prune whose own record is lost.
//! - Anything that can be read counts as what it is; anything validly signed is never treated as damage.
//!
//! [`planning`] makes the [`plan`]: [`lost`] says what may be given up, [`walk`] what a backup needs, [`moves`] where
//! a prune has put it. [`repair`] carries it out.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;

use self::planning::Planning;
pub use self::{
    error::RepairError,
    plan::{BeyondHelp, RebuiltPrune, RepairPlan},
};
use crate::{
    error::RepoError,
    format::{
        names::{LogName, RunNo},
        refs::RebuiltRefs,
    },
    log::{
        outcome::{self, LostOutcome, Rebuilt},
        run::{Ending, Run, RunOptions},
    },
    ops::check::CheckOptions,
    repo::Repo,
    store::ObjectPath,
};

mod error;
mod index;
mod lost;
mod moves;
mod plan;
mod planning;
mod walk;

/// Objects are deleted in batches of this many.
const BATCH: usize = 1000;

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

#[cfg(test)]
mod tests {
    use holdfast_pipe::Suite;

    use super::*;
    use crate::{
        format::{
            hash::{NO_OBJECT, object_hash},
            place::{ObjectKind, Place},
        },
        log::outcome::{OutcomeType, PublicPart},
        repo::tests::new_repo,
        sealed::seal_object,
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
}
