//! `prune`: frees what no backup needs.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{Error, Result};
use holdfast_repo::{
    LogName, Repo,
    history::History,
    prune::{PruneError, PruneOptions, PrunePlan, Swept, plan_prune, prune},
    reader::ChunkSource,
    run::RunOptions,
    writer::{ChunkRewriter, WriterOptions},
};
use serde::Serialize;

use super::{Context, repository};
use crate::{
    args::{
        prune::PruneArgs,
        units::{ByteSize, Span},
    },
    exit::Exit,
    output::{Render, text},
};

/// Cache of page maps while chunks are written anew.
const CACHE_BYTES: usize = 32 << 20;

/// What was done to one log, or would be.
#[derive(Serialize)]
struct Log {
    source: String,
    kind: String,
    /// Found unneeded now, to be deleted after the grace.
    dead_packs: u64,
    dead_bytes: u64,
    /// Mostly dead, with what was still needed written anew.
    rewritten_packs: u64,
    rewritten_bytes: u64,
    /// Named by an earlier prune, and there until the grace is over.
    waiting_bytes: u64,
    /// Kept for a run that could take it up.
    unfinished_bytes: u64,
    live_bytes: u64,
    deleted_packs: u64,
    deleted_bytes: u64,
    deleted_others: u64,
}

impl Log {
    fn new(log: &LogName, plan: &PrunePlan, swept: &Swept) -> Self {
        Self {
            source: log.source.to_string(),
            kind: log.kind.to_string(),
            dead_packs: plan.dead.len() as u64,
            dead_bytes: plan.dead.iter().map(|(_, bytes)| bytes).sum(),
            rewritten_packs: plan.rewrite.len() as u64,
            rewritten_bytes: plan.rewrite.iter().map(|pack| pack.live_bytes).sum(),
            waiting_bytes: plan.waiting_bytes,
            unfinished_bytes: plan.unfinished_bytes,
            live_bytes: plan.live_bytes,
            deleted_packs: swept.packs,
            deleted_bytes: swept.pack_bytes,
            deleted_others: swept.others,
        }
    }
}

#[derive(Serialize)]
struct Pruned {
    dry_run: bool,
    grace_s: u64,
    logs: Vec<Log>,
}

impl Render for Pruned {
    fn render(&self, out: &mut String) -> fmt::Result {
        let grace = Span(std::time::Duration::from_secs(self.grace_s));
        for log in &self.logs {
            writeln!(out, "{}/{}", log.source, log.kind)?;
            let packs = |n, bytes| format!("{}, {}", text::count(n, "pack"), ByteSize(bytes));
            if !self.dry_run {
                text::fact(out, "  deleted", packs(log.deleted_packs, log.deleted_bytes))?;
            }
            text::fact(
                out,
                "  unneeded",
                format!("{}, deleted after {grace}", packs(log.dead_packs, log.dead_bytes)),
            )?;
            if log.rewritten_packs > 0 {
                let what = format!(
                    "{} of {}",
                    ByteSize(log.rewritten_bytes),
                    text::count(log.rewritten_packs, "pack")
                );
                text::fact(out, "  written anew", what)?;
            }
            if log.waiting_bytes > 0 {
                text::fact(
                    out,
                    "  waiting",
                    format!("{}, named by an earlier prune", ByteSize(log.waiting_bytes)),
                )?;
            }
            if log.unfinished_bytes > 0 {
                text::fact(
                    out,
                    "  unfinished",
                    format!("{}, kept for the next backup to take up", ByteSize(log.unfinished_bytes)),
                )?;
            }
            text::fact(out, "  needed", ByteSize(log.live_bytes))?;
        }
        if self.dry_run {
            writeln!(out, "nothing was changed (dry run)")?;
        }
        Ok(())
    }
}

pub(super) fn run(args: &PruneArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open(context)?);
    let options = PruneOptions {
        grace: args.grace.0,
        interrupt: context.cancel.interrupt(),
        ..PruneOptions::default()
    };
    let mut pruned = Pruned { dry_run: args.dry_run, grace_s: args.grace.0.as_secs(), logs: Vec::new() };
    for log in repo.logs()? {
        if args.name.as_ref().is_some_and(|name| *name != log.source) {
            continue;
        }
        context.cancel.check()?;
        let mut rewriter = rewriter(&repo, &log)?.interrupted_by(context.cancel.interrupt());
        let (plan, swept) = if args.dry_run {
            (plan_prune(&repo, &log, &options, Some(&mut rewriter))?, Swept::default())
        } else {
            let done = prune(&repo, &log, &options, Some(&mut rewriter), &RunOptions::of_this_process())
                .map_err(of_prune)?;
            (done.declared, done.swept)
        };
        pruned.logs.push(Log::new(&log, &plan, &swept));
    }
    context.output.result(Exit::Done, &pruned);
    Ok(Exit::Done)
}

/// What writes the needed chunks of mostly dead packs anew.
fn rewriter(repo: &Arc<Repo>, log: &LogName) -> Result<ChunkRewriter> {
    let prunes = History::read(repo, log)?.prunes(repo)?;
    let source = ChunkSource::new(Arc::clone(repo), log.clone(), Arc::new(prunes), CACHE_BYTES);
    Ok(ChunkRewriter::new(Arc::new(source), WriterOptions::default()))
}

fn of_prune(error: PruneError) -> Error {
    match error {
        PruneError::Begin(error) => error.into(),
        PruneError::Finish(error) => error.into(),
        PruneError::Repo(error) => error.into(),
    }
}
