//! `prune`: frees data that no backup needs.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Error, ErrorKind, Event, Listener as _, Result,
    binlog::{file_segments, plan_filing},
};
use holdfast_repo::{
    Act, Kind, LogName, Repo, RunNo,
    data::writer::{ChunkRewriter, Rewrite, WriterOptions},
    log::{history::History, run::RunOptions},
    ops::prune::{PruneError, PruneOptions, PrunePlan, Swept, UnreadablePack, declare, plan_prune, sweep},
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::{
        prune::PruneArgs,
        units::{ByteSize, Span},
    },
    exit::{Exit, is_worse},
    output::{Output, Render, text},
};

/// A pack that could not be rewritten.
#[derive(Serialize)]
struct Found {
    object: String,
    problem: String,
}

impl From<UnreadablePack> for Found {
    fn from(UnreadablePack { object, problem, .. }: UnreadablePack) -> Self {
        Self { object, problem }
    }
}

/// What was done for one log, or would be.
#[derive(Default, Serialize)]
struct PrunedLog {
    source: String,
    kind: String,
    /// Runs of an archiver that died, whose segments are in packs now, or would be.
    filed_runs: u64,
    filed_bytes: u64,
    /// Newly found unneeded; deleted after the grace period.
    dead_packs: u64,
    dead_bytes: u64,
    /// Mostly dead packs whose needed content was rewritten.
    rewritten_packs: u64,
    rewritten_bytes: u64,
    /// Mostly dead packs left alone: beyond what one prune moves, or too large for the free space.
    postponed_bytes: u64,
    /// Declared dead by an earlier prune; kept until the grace period ends.
    waiting_bytes: u64,
    /// Kept because a run could still take it up.
    unfinished_bytes: u64,
    live_bytes: u64,
    deleted_packs: u64,
    deleted_bytes: u64,
    deleted_others: u64,
    /// Due for deletion, but locked in the bucket.
    locked_packs: u64,
    locked_bytes: u64,
    /// When the last of these locks ends; absent if the store does not say.
    locked_until: Option<Timestamp>,
    findings: Vec<Found>,
    /// Why the prune stopped early.
    error: Option<String>,
}

/// What is the same for all logs.
struct Pruning<'a> {
    repo: &'a Arc<Repo>,
    options: &'a PruneOptions,
    dry_run: bool,
    writer: WriterOptions,
    output: &'a Arc<Output>,
}

impl Pruning<'_> {
    fn run_options(&self) -> RunOptions {
        RunOptions { interrupt: self.options.interrupt.clone(), ..RunOptions::of_this_process() }
    }
}

impl PrunedLog {
    fn new(log: &LogName) -> Self {
        Self { source: log.source.to_string(), kind: log.kind.to_string(), ..Self::default() }
    }

    /// Prunes one log, and records what was done even if it fails midway.
    fn prune(&mut self, log: &LogName, pruning: &Pruning<'_>) -> Result<()> {
        let Pruning { repo, options, dry_run, writer, output } = pruning;
        let mut history = History::read(repo, log)?;
        if !*dry_run {
            output.event(Event::Phase { name: "sweep" });
            self.swept(&sweep(repo, &history, options)?);
        }
        if log.kind == Kind::Binlog {
            output.event(Event::Phase { name: "file" });
            let filed = self.file(log, pruning);
            // It must not keep space from being freed.
            if let Err(error) = filed {
                if error.kind() == ErrorKind::Interrupted {
                    return Err(error);
                }
                self.findings.push(Found { object: log.to_string(), problem: error.to_string() });
            }
            history.refresh(repo)?;
        }
        output.event(Event::Phase { name: "plan" });
        // A keeper cannot read the data that would have to be rewritten.
        let mut rewriter = match repo.can_read() {
            true => {
                let rewriter = ChunkRewriter::open(repo, &history, writer.clone())?;
                Some(rewriter.interrupted_by(options.interrupt.clone()).telling(output.steps()))
            }
            false => None,
        };
        let rewriter = rewriter.as_mut().map(|rewriter| rewriter as &mut dyn Rewrite);
        let plan = if *dry_run {
            plan_prune(repo, &mut history, options, rewriter)?
        } else {
            let declared = declare(repo, &mut history, options, rewriter, &pruning.run_options());
            if let Err(PruneError::NotRewritten { declared, .. }) = &declared {
                self.declared((**declared).clone());
            }
            declared.map_err(of_prune)?
        };
        self.declared(plan);
        Ok(())
    }

    /// Files what archivers with a writer's key have left in segments.
    fn file(&mut self, log: &LogName, pruning: &Pruning<'_>) -> Result<()> {
        let Pruning { repo, dry_run, writer, output, .. } = pruning;
        let filed = if *dry_run || !repo.can_read() {
            plan_filing(repo, log)?
        } else {
            file_segments(repo, log, &pruning.run_options(), writer.clone())?
        };
        let runs = filed.runs.len();
        if repo.can_read() {
            (self.filed_runs, self.filed_bytes) = (runs as u64, filed.bytes);
        } else if runs > 0 {
            let runs = text::count(runs as u64, "run");
            output.warning(format!(
                "{log}: the segments of {runs} that died stay: filing them takes an operator's key"
            ));
        }
        let unreadable = filed.unreadable.into_iter();
        self.findings.extend(
            unreadable.map(|it| Found { object: format!("{log} {}", RunNo(it.run)), problem: it.problem }),
        );
        Ok(())
    }

    fn swept(&mut self, swept: &Swept) {
        self.deleted_packs = swept.packs;
        self.deleted_bytes = swept.pack_bytes;
        self.deleted_others = swept.others;
        self.locked_packs = swept.kept_packs;
        self.locked_bytes = swept.kept_bytes;
        self.locked_until = swept.kept_until.and_then(|until| Timestamp::try_from(until).ok());
    }

    fn declared(&mut self, plan: PrunePlan) {
        self.dead_packs = plan.dead.len() as u64;
        self.dead_bytes = plan.dead.iter().map(|(_, bytes)| bytes).sum();
        self.rewritten_packs = plan.rewrite.len() as u64;
        self.rewritten_bytes = plan.rewrite.iter().map(|pack| pack.live_bytes).sum();
        self.postponed_bytes = plan.postponed_bytes;
        self.waiting_bytes = plan.waiting_bytes;
        self.unfinished_bytes = plan.unfinished_bytes;
        self.live_bytes = plan.live_bytes;
        self.findings.extend(plan.missing.into_iter().chain(plan.unreadable).map(Found::from));
    }

    fn render(&self, out: &mut String, dry_run: bool, grace: Span) -> fmt::Result {
        writeln!(out, "{}/{}", self.source, self.kind)?;
        let packs = |n, bytes| format!("{}, {}", text::count(n, "pack"), ByteSize(bytes));
        if !dry_run {
            text::fact(out, "  deleted", packs(self.deleted_packs, self.deleted_bytes))?;
        }
        if self.locked_packs > 0 {
            let until = match self.locked_until {
                Some(until) => format!("locked in the bucket until {until:.0} at the latest"),
                None => "the store refuses to delete them (s3:DeleteObjectVersion, \
                         s3:GetObjectRetention)"
                    .to_owned(),
            };
            text::fact(out, "  locked", format!("{}, {until}", packs(self.locked_packs, self.locked_bytes)))?;
        }
        if self.filed_runs > 0 {
            let what = format!("segments of {} that died", text::count(self.filed_runs, "run"));
            text::fact(out, "  filed", what)?;
        }
        if let Some(error) = &self.error {
            text::fact(out, "  failed", error)?;
            // Some work may have been done before the failure.
            if self.dead_packs == 0 {
                return Ok(());
            }
        }
        text::fact(
            out,
            "  unneeded",
            format!("{}, deleted after {grace}", packs(self.dead_packs, self.dead_bytes)),
        )?;
        if self.rewritten_packs > 0 {
            let what = format!(
                "{} of {}",
                ByteSize(self.rewritten_bytes),
                text::count(self.rewritten_packs, "pack")
            );
            text::fact(out, "  rewritten", what)?;
        }
        if self.postponed_bytes > 0 {
            let what = format!(
                "{} of mostly dead packs, beyond what one prune moves",
                ByteSize(self.postponed_bytes)
            );
            text::fact(out, "  postponed", what)?;
        }
        if self.waiting_bytes > 0 {
            text::fact(
                out,
                "  waiting",
                format!("{}, declared dead by an earlier prune", ByteSize(self.waiting_bytes)),
            )?;
        }
        if self.unfinished_bytes > 0 {
            text::fact(
                out,
                "  unfinished",
                format!("{}, kept for the next backup to continue", ByteSize(self.unfinished_bytes)),
            )?;
        }
        text::fact(out, "  needed", ByteSize(self.live_bytes))?;
        for Found { object, problem } in &self.findings {
            text::fact(out, "  unreadable", format!("{object}: {problem}"))?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Pruned {
    dry_run: bool,
    grace_s: u64,
    logs: Vec<PrunedLog>,
}

impl Render for Pruned {
    fn render(&self, out: &mut String) -> fmt::Result {
        let grace = Span(std::time::Duration::from_secs(self.grace_s));
        if self.logs.is_empty() {
            writeln!(out, "nothing to free: the repository contains no backups yet")?;
        }
        for log in &self.logs {
            log.render(out, self.dry_run, grace)?;
        }
        if self.dry_run {
            writeln!(out, "nothing was changed (dry run)")?;
        }
        Ok(())
    }
}

pub(super) fn run(args: &PruneArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Prune, "pruning")?);
    let options = PruneOptions {
        grace: args.grace.0,
        rewrite_bytes_max: args.max_repack.0,
        interrupt: context.cancel.interrupt(),
        ..PruneOptions::default()
    };
    let mut writer = WriterOptions::default();
    writer.memory_bytes = args.memory.bytes_or(&context.config.resources).unwrap_or(writer.memory_bytes);
    let pruning =
        Pruning { repo: &repo, options: &options, dry_run: args.dry_run, writer, output: context.output };
    if !repo.can_read() {
        let text = "mostly dead packs are not rewritten: that takes an operator's key";
        context.output.event(Event::Note { text: text.to_owned() });
    }
    let mut pruned = Pruned { dry_run: args.dry_run, grace_s: args.grace.0.as_secs(), logs: Vec::new() };
    let mut worst: Option<Error> = None;
    for name in select::logs_named(&repo, args.name.as_ref())? {
        let mut log = PrunedLog::new(&name);
        // A failure in one source must not keep the space of the others from being freed.
        let done = context.cancel.check().and_then(|()| log.prune(&name, &pruning));
        let is_over = done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted);
        if let Err(error) = done {
            log.error = Some(error.to_string());
            if is_over || is_worse(&error, worst.as_ref()) {
                worst = Some(error.context(&name));
            }
        }
        pruned.logs.push(log);
        if is_over {
            break;
        }
    }
    let is_clean = pruned.logs.iter().all(|log| log.findings.is_empty());
    let exit = if is_clean { Exit::Done } else { Exit::Finding };
    context.output.ended(worst.map_or(Ok(exit), Err), &pruned, true)
}

fn of_prune(error: PruneError) -> Error {
    match error {
        PruneError::Begin(error) => error.into(),
        PruneError::Finish(error) => error.into(),
        PruneError::NotRewritten { error, .. } => {
            Error::from(error).context("could not rewrite mostly dead packs")
        }
        PruneError::Repo(error) => error.into(),
    }
}
