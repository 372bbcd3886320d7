//! Prune: frees what no backup needs (`docs/reference/repository.md` section 14).
//!
//! - *Sweeping* deletes what an earlier prune declared dead, after a grace. It needs no run, since what is
//!   dead stays dead. It comes first, so that it frees space even if no run can begin: because another one is
//!   alive, or for lack of that space.
//! - *Declaring* is a run: its outcome names packs dead, for good, and says where rewritten chunks went.
//!   Chunks that cannot be read are not rewritten: they stay where they are, and are reported. Missing packs
//!   are reported, too, and while some are missing, the remains of unfinished runs also stay. Rewriting never
//!   uses up the remaining space: it takes at most half of what is free, and if the store runs out of space
//!   all the same, what was written is deleted, and what nothing needs is declared without it.
//!
//! Only outcomes and refs are read, so a keeper, who can read no backup, can prune. Rewriting chunks takes a
//! [`Rewrite`], and an operator.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use thiserror::Error;

mod plan;
mod sweep;

pub(crate) use plan::needed_packs;
pub use plan::{PrunePlan, RewritePack, UnreadablePack};
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

/// Options of a prune.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// How long a pack stays after it was declared dead, so that restores under way can finish.
    pub grace: Duration,
    /// How long the remains of unfinished runs stay for a run that may take them up.
    pub resume_window: Duration,
    /// Packs are rewritten when less than this percentage of their stored bytes is needed.
    pub rewrite_below_percent: u64,
    /// At most this many bytes are rewritten, and at most half of the
    /// free space: no backup can begin meanwhile.
    pub rewrite_bytes_max: u64,
    /// Ends the prune early, with [`RepoError::Interrupted`]: then nothing
    /// is declared, or nothing more is deleted.
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
    /// What it declared; empty if there was nothing to declare.
    pub declared: PrunePlan,
}

/// Why a prune failed. What it declared or deleted before stays valid.
#[derive(Debug, Error)]
pub enum PruneError {
    /// The run could not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The run could not end.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// The needed chunks of mostly dead packs could not be rewritten; everything else is done.
    #[error("mostly dead packs could not be rewritten: {error}")]
    NotRewritten {
        /// What was declared nevertheless.
        declared: Box<PrunePlan>,
        /// Why they could not be rewritten.
        error: RepoError,
    },
    /// The repository failed, or is damaged.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

/// What a prune would declare now. Others may change the log meanwhile: packs that they have deleted no
/// longer count as missing once their outcomes are seen. Packs that are still missing then free nothing, and
/// do not keep anything else from being freed. Writes nothing but what the store's clock is read from; in a store
/// that refuses that, this host's clock is taken.
pub fn plan_prune(
    repo: &Repo,
    history: &mut History,
    options: &PruneOptions,
    rewrite: Option<&mut dyn Rewrite>,
) -> Result<PrunePlan, RepoError> {
    let now = match repo.store().now() {
        Err(error) if error.is_refused() => SystemTime::now(),
        now => now?,
    };
    plan_at(now, repo, history, options, rewrite)
}

fn plan_at(
    now: SystemTime,
    repo: &Repo,
    history: &mut History,
    options: &PruneOptions,
    mut rewrite: Option<&mut dyn Rewrite>,
) -> Result<PrunePlan, RepoError> {
    /// Limited, since an archiver may end runs as fast as a plan is made.
    const LOOKS_MAX: u32 = 3;
    let mut looks = 0;
    loop {
        let planned = PrunePlan::make(now, repo, history, options, reborrow(&mut rewrite));
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

/// Sweeps what was declared earlier, and declares what is dead now.
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
    // The remains of a dead run are garbage only once it is known to be dead.
    end_if_dead(repo, history, &run_options.client)?;
    history.refresh(repo)?;
    // What is declared is decided by the store's clock alone.
    let now = repo.store().now().map_err(RepoError::from)?;
    let mut plan = plan_at(now, repo, history, options, reborrow(&mut rewrite))?;
    if plan.declares_nothing() {
        return Ok(plan);
    }
    let mut run = Run::begin_as(Intent::Prune, repo, history, run_options)?;
    let declare = || {
        // From here on no other backup can appear that counts. If one has
        // appeared since the plan was made, plan again.
        if run.no() != history.next_run() {
            plan =
                PrunePlan::make(repo.store().now()?, repo, run.history(), options, reborrow(&mut rewrite))?;
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

/// Reborrows what the option holds.
fn reborrow<'a>(rewrite: &'a mut Option<&mut dyn Rewrite>) -> Option<&'a mut dyn Rewrite> {
    match rewrite {
        Some(rewrite) => Some(&mut **rewrite),
        None => None,
    }
}

/// Everything that a prune's outcome refers to, stored.
struct Declaration {
    plan: PrunePlan,
    refs: WrittenRefs,
    parts: PartCounts,
    /// Why the chunks that were to be rewritten stay where they are.
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
            // Makes room for what is still to be written. If this fails, a sweep does it later.
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

/// Rewrites what the plan says, and makes sure that every chunk went somewhere: the
/// old packs are about to be declared dead.
fn copy(run: &Run, rewrite: &mut dyn Rewrite, plan: &PrunePlan) -> Result<Rewritten, RepoError> {
    let chunks: Vec<ChunkRef> = plan.rewrite.iter().flat_map(RewritePack::chunks).collect();
    let mut copied = rewrite.copy(run, &chunks)?;
    copied.moves.sort_unstable();
    if !copied.moves.iter().map(|moved| moved.from).eq(chunks) {
        let object = run.log().refs(run.no());
        return Err(RepoError::malformed(object, "it would not record where every chunk was moved"));
    }
    Ok(copied)
}
