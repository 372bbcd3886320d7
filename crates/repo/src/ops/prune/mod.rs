//! Prune: freeing what no backup needs (`docs/reference/repository.md` section 14).
//!
//! - *Sweeping* deletes what an earlier prune declared, after a grace. It needs no run: dead is dead for good. It comes
//!   first, so that it also frees space where a run cannot begin: because another lives, or for want of that space.
//! - *Declaring* is a run: its outcome names packs dead, for good, and says where chunks went that were written anew.
//!   What cannot be read is not written anew: it stays where it is, and is told. So is what is missing; meanwhile what
//!   unfinished runs left stays, too. Nothing is written anew at the cost of the space that is left: of what is free,
//!   half is taken at most, and where the store gives out all the same, what was written is taken back and what nothing
//!   needs is declared without it.
//!
//! Only outcomes and refs are read, so that a keeper, who can read no backup, can prune; writing chunks anew takes a
//! [`Rewrite`], and an operator.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use thiserror::Error;

mod plan;
mod sweep;

pub(crate) use plan::needed_packs;
pub use plan::{PrunePlan, RewritePack, UnreadablePack};
pub(crate) use sweep::keeps_records;
pub use sweep::{Swept, sweep};

use crate::{
    data::writer::{Rewrite, Rewritten},
    error::RepoError,
    format::{
        names::{ChunkRef, LogName, PackId},
        refs::PruneRefs,
    },
    interrupt::Interrupt,
    log::{
        history::History,
        outcome::Intent,
        run::{BeginError, Ending, FinishError, PartCounts, Run, RunOptions, WrittenRefs, end_if_dead},
    },
    repo::Repo,
};

/// How to prune.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// How long a pack stays after it was declared dead, for restores that are under way.
    pub grace: Duration,
    /// How long the remains of unfinished runs stay for a run that could take them over.
    pub resume_window: Duration,
    /// Packs are written anew when less than so many percent of their stored bytes are needed.
    pub rewrite_below_percent: u64,
    /// At most so many bytes are written anew, and at most half of what is free: no backup begins meanwhile.
    pub rewrite_bytes_max: u64,
    /// Ends it early, with [`RepoError::Interrupted`]: then nothing is declared, or nothing more is deleted.
    pub interrupt: Interrupt,
}

impl Default for PruneOptions {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(24 * 3600),
            resume_window: Duration::from_secs(7 * 24 * 3600),
            rewrite_below_percent: 50,
            rewrite_bytes_max: 1 << 40,
            interrupt: Interrupt::default(),
        }
    }
}

/// What a prune did.
#[derive(Clone, Debug, Default)]
pub struct Pruned {
    /// What it deleted.
    pub swept: Swept,
    /// What it declared; nothing where there was nothing to declare.
    pub declared: PrunePlan,
}

/// Why a prune failed. What it had declared or deleted by then is right.
#[derive(Debug, Error)]
pub enum PruneError {
    /// The run could not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The run could not end.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// What is needed of mostly dead packs could not be written anew; all else is done.
    #[error("mostly dead packs could not be written anew: {error}")]
    NotRewritten {
        /// What was declared all the same.
        declared: Box<PrunePlan>,
        /// Why.
        error: RepoError,
    },
    /// The repository failed, or is damaged.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

/// What a prune would declare now. Others may change the log meanwhile: what they have deleted is not missed once their
/// outcomes are seen. What is still missed then frees nothing, and keeps nothing else from being freed.
pub fn plan_prune(
    repo: &Repo,
    history: &mut History,
    options: &PruneOptions,
    mut rewrite: Option<&mut dyn Rewrite>,
) -> Result<PrunePlan, RepoError> {
    /// An archiver may end runs as fast as a plan is made.
    const LOOKS_MAX: u32 = 3;
    let mut looks = 0;
    loop {
        let planned = PrunePlan::make(repo, history, options, reborrow(&mut rewrite));
        looks += 1;
        let misses = match &planned {
            Ok(plan) => !plan.missing.is_empty() && looks < LOOKS_MAX,
            Err(error) => error.is_missing(),
        };
        let known = history.next_run();
        if misses {
            history.refresh(repo)?;
        }
        if history.next_run() == known {
            return planned;
        }
    }
}

/// Sweeps what was declared earlier and declares what is dead.
pub fn prune(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &PruneOptions,
    rewrite: Option<&mut dyn Rewrite>,
    run_options: &RunOptions,
) -> Result<Pruned, PruneError> {
    let mut history = History::read(repo, log)?;
    let swept = sweep(repo, &history, options)?;
    let declared = declare(repo, &mut history, options, rewrite, run_options)?;
    Ok(Pruned { swept, declared })
}

/// Declares what is dead, in a run if there is anything to declare.
pub fn declare(
    repo: &Arc<Repo>,
    history: &mut History,
    options: &PruneOptions,
    mut rewrite: Option<&mut dyn Rewrite>,
    run_options: &RunOptions,
) -> Result<PrunePlan, PruneError> {
    history.refresh(repo)?;
    // What a dead run left is garbage only once it is known to be dead.
    end_if_dead(repo, history, &run_options.client)?;
    history.refresh(repo)?;
    let mut plan = plan_prune(repo, history, options, reborrow(&mut rewrite))?;
    if plan.declares_nothing() {
        return Ok(plan);
    }
    let mut run = Run::begin_as(Intent::Prune, repo, history, run_options)?;
    let declare = || {
        // From here on no other backup can appear that counts. Where one has since it was planned, it is planned anew.
        if run.no() != history.next_run() {
            plan = PrunePlan::make(repo, run.history(), options, reborrow(&mut rewrite))?;
        }
        write_declaration(&run, plan, options, rewrite)
    };
    let Declaration { plan, refs, parts, not_rewritten } = declare().map_err(|error| run.lost_or(error))?;
    run.finish(Ending::Prune { refs, parts })?;
    match not_rewritten {
        None => Ok(plan),
        Some(error) => Err(PruneError::NotRewritten { declared: Box::new(plan), error }),
    }
}

/// A second borrow of what is behind the option.
fn reborrow<'a>(rewrite: &'a mut Option<&mut dyn Rewrite>) -> Option<&'a mut dyn Rewrite> {
    match rewrite {
        Some(rewrite) => Some(&mut **rewrite),
        None => None,
    }
}

/// All that a prune's outcome stands for, stored.
struct Declaration {
    plan: PrunePlan,
    refs: WrittenRefs,
    parts: PartCounts,
    /// Why what the plan was to write anew stays where it is.
    not_rewritten: Option<RepoError>,
}

fn write_declaration(
    run: &Run,
    mut plan: PrunePlan,
    options: &PruneOptions,
    rewrite: Option<&mut dyn Rewrite>,
) -> Result<Declaration, RepoError> {
    let mut not_rewritten = None;
    let copied = match rewrite {
        Some(rewrite) if !plan.rewrite.is_empty() => copy(run, rewrite, &plan).or_else(|error| {
            // Room for what is still to be written. Where this fails, sweeping does it later.
            let _ = sweep::discard(run.repo(), run.log(), run.no());
            plan.rewrite.clear();
            if plan.dead.is_empty() || matches!(error, RepoError::Interrupted) {
                return Err(error);
            }
            not_rewritten = Some(error);
            Ok(Rewritten::default())
        })?,
        _ => Rewritten::default(),
    };
    let emptied = plan.rewrite.iter().map(|pack| pack.pack);
    let dead: BTreeSet<PackId> = plan.dead.iter().map(|(pack, _)| *pack).chain(emptied).collect();
    options.interrupt.check()?;
    let refs = PruneRefs { dead: dead.into_iter().collect(), moves: copied.moves };
    let refs = run.write_prune_refs(&refs)?;
    Ok(Declaration { plan, refs, parts: copied.parts, not_rewritten })
}

/// Writes anew what the plan says, and makes sure that all of it went somewhere: its packs are about to die.
fn copy(run: &Run, rewrite: &mut dyn Rewrite, plan: &PrunePlan) -> Result<Rewritten, RepoError> {
    let chunks: Vec<ChunkRef> = plan.rewrite.iter().flat_map(RewritePack::chunks).collect();
    let mut copied = rewrite.copy(run, &chunks)?;
    copied.moves.sort_unstable();
    if !copied.moves.iter().map(|moved| moved.from).eq(chunks) {
        let object = run.log().refs(run.no());
        return Err(RepoError::malformed(object, "it would not say where every chunk went"));
    }
    Ok(copied)
}
