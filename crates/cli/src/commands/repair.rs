//! `repair`: rebuilds what it can of lost objects, and drops by name the backups that cannot be saved.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{BENEATH_HINT, Error, ErrorKind, NEWER_HINT, Result};
use holdfast_repo::{
    Act, LogName,
    ops::{
        check::{CheckOptions, Finding, Remedy, Severity},
        keys,
        repair::{BeyondHelp, RepairError, RepairPlan, plan_repair, repair},
    },
};
use jiff::Timestamp;
use serde::Serialize;

use super::{Context, key_errors, repository, select};
use crate::{
    args::repair::RepairArgs,
    exit::{Exit, is_worse},
    output::{Render, text},
};

const HELD_HINT: &str = "\
a held backup is not dropped: save its intact tables (holdfast restore ID --to-server --table), then \
\"holdfast release ID\" and repair again";
const LEFT_HINT: &str = "\
no backup needs the damaged part; once less than half of the pack is needed, prune moves what is \
needed elsewhere and deletes the pack";
const AGAIN_HINT: &str = "run it again: one repair rebuilds only as much as fits into one object";
const LOST_HINT: &str = "its content cannot be rebuilt: put the object back from a copy of the repository";
const KEYS_HINT: &str = "\
a key cannot be rebuilt: add another (holdfast key add) and remove the lost one (holdfast key remove)";

const MOVED_HINT: &str = "put the outcome of that prune and its refs back from a copy of the repository";
const SIGNERS_HINT: &str = "\
put the records of keys (keys/, signers/, removals/) back from a copy of the repository, or remove the lost \
key (holdfast key remove); holdfast key list shows them";

/// A lost object.
#[derive(Serialize)]
struct Lost {
    object: String,
    problem: String,
    files: Vec<String>,
    /// The tables that these files belong to.
    tables: Vec<String>,
    files_more: u64,
}

impl Lost {
    fn of_key(object: String, problem: String) -> Self {
        Self { object, problem, files: Vec::new(), tables: Vec::new(), files_more: 0 }
    }
}

impl From<Finding> for Lost {
    fn from(finding: Finding) -> Self {
        Self {
            object: finding.object,
            problem: finding.problem,
            files: finding.files.iter().map(ToString::to_string).collect(),
            tables: finding.tables,
            files_more: finding.files_more,
        }
    }
}

/// A backup that cannot be restored whole.
#[derive(Serialize)]
struct Backup {
    id: String,
    lost: Vec<Lost>,
}

/// A prune whose record is lost.
#[derive(Serialize)]
struct Prune {
    id: String,
    moves: u64,
    dead_packs: u64,
}

/// What was done for one log, or would be.
#[derive(Default, Serialize)]
struct RepairedLog {
    source: String,
    kind: String,
    lost_outcomes: Vec<Lost>,
    prunes_made_anew: Vec<Prune>,
    refs_made_anew: Vec<String>,
    indexes_made_anew: Vec<String>,
    given_up: Vec<Lost>,
    dropped: Vec<Backup>,
    held: Vec<Backup>,
    left: Vec<Lost>,
    /// Why nothing was done for this log.
    error: Option<String>,
}

impl RepairedLog {
    fn failed(log: &LogName, error: &Error) -> Self {
        let (source, kind) = (log.source.to_string(), log.kind.to_string());
        Self { source, kind, error: Some(error.to_string()), ..Self::default() }
    }

    fn new(log: &LogName, plan: RepairPlan) -> Self {
        let id = |run| log.backup_id(run);
        let lost = |findings: Vec<Finding>| findings.into_iter().map(Lost::from).collect();
        let backups = |them: Vec<BeyondHelp>| {
            them.into_iter().map(|it| Backup { id: id(it.run), lost: lost(it.findings) }).collect()
        };
        Self {
            source: log.source.to_string(),
            kind: log.kind.to_string(),
            lost_outcomes: lost(plan.outcomes),
            prunes_made_anew: plan
                .prunes
                .into_iter()
                .map(|it| Prune { id: id(it.run), moves: it.moves, dead_packs: it.dead })
                .collect(),
            refs_made_anew: plan.refs.into_iter().map(id).collect(),
            indexes_made_anew: plan.index.into_iter().map(id).collect(),
            given_up: lost(plan.discarded),
            dropped: backups(plan.dropped),
            held: backups(plan.held),
            left: lost(plan.left),
            error: None,
        }
    }

    fn render(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{}/{}", self.source, self.kind)?;
        for it in &self.lost_outcomes {
            let what =
                format!("{}: {}; the outcome of its run is lost and does not count", it.object, it.problem);
            text::fact(out, "  outcome", what)?;
        }
        for it in &self.prunes_made_anew {
            let chunks = text::count(it.moves, "chunk");
            let packs = text::count(it.dead_packs, "pack");
            text::fact(
                out,
                "  prune",
                format!("{}: {chunks} found at their new places, {packs} unneeded", it.id),
            )?;
        }
        for (name, ids) in [("  refs", &self.refs_made_anew), ("  index", &self.indexes_made_anew)] {
            if !ids.is_empty() {
                text::fact(out, name, format!("{}: rebuilt", ids.join(" ")))?;
            }
        }
        for it in &self.given_up {
            text::fact(out, "  given up", format!("{}: {}", it.object, it.problem))?;
        }
        for (name, backups) in [("  dropped", &self.dropped), ("  held", &self.held)] {
            for it in backups {
                text::fact(out, name, &it.id)?;
                for lost in &it.lost {
                    text::fact(out, "    lost", format!("{}: {}", lost.object, lost.problem))?;
                    if !lost.tables.is_empty() {
                        text::fact(out, "    tables", text::one_line(&lost.tables.join(", ")))?;
                    }
                    text::files(out, "    files", &lost.files, lost.files_more)?;
                }
            }
        }
        for it in &self.left {
            text::fact(out, "  left", format!("{}: {}", it.object, it.problem))?;
        }
        if let Some(error) = &self.error {
            text::fact(out, "  failed", error)?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Repaired {
    dry_run: bool,
    logs: Vec<RepairedLog>,
    /// Objects of keys, which cannot be rebuilt from anything.
    keys: Vec<Lost>,
    hints: Vec<&'static str>,
}

impl Render for Repaired {
    fn render(&self, out: &mut String) -> fmt::Result {
        for log in &self.logs {
            log.render(out)?;
        }
        for it in &self.keys {
            text::fact(out, "key", format!("{}: {}", it.object, it.problem))?;
        }
        let is_any = self.logs.iter().any(|log| !log.dropped.is_empty());
        match (self.logs.is_empty(), self.dry_run) {
            (true, _) => writeln!(out, "nothing to repair")?,
            (false, true) if is_any => {
                writeln!(out, "nothing was changed: with --yes, the backups above are dropped for good")?;
            }
            (false, true) => writeln!(out, "nothing was changed: run it with --yes to apply this")?,
            (false, false) if self.logs.iter().all(|log| log.error.is_some()) => {}
            (false, false) => writeln!(out, "done; \"holdfast check\" says whether all is well")?,
        }
        self.hints.iter().try_for_each(|hint| out.write_str(&text::hint(hint)))
    }
}

pub(super) fn run(args: &RepairArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Read, "a repair")?);
    let chosen = CheckOptions::default();
    let memory = args.memory.bytes_or(&context.config.resources);
    let options = CheckOptions {
        memory_bytes: memory.unwrap_or(chosen.memory_bytes),
        read_data: args.read_data.map(|percent| percent.fraction()),
        seed: Timestamp::now().as_second().unsigned_abs(),
        interrupt: context.cancel.interrupt(),
        steps: context.output.steps(),
        ..chosen
    };
    let names = select::logs_named(&repo, args.name.as_ref())?;
    let keys = keys::list(&repo).map_err(key_errors::of_keys_in(&repo))?.problems.into_iter();
    let keys = keys.map(|(object, problem)| Lost::of_key(object, problem)).collect();
    let mut repaired = Repaired { dry_run: !args.yes, logs: Vec::new(), keys, hints: Vec::new() };
    let mut is_mended = true;
    let mut worst: Option<Error> = None;
    for name in names {
        if let Err(error) = context.cancel.check() {
            worst = Some(error);
            break;
        }
        let plan = match args.yes {
            // Asking for the store's clock writes an object, which merely showing a plan must not do.
            false => plan_repair(&repo, &name, &options, Timestamp::now()),
            true => repair(&repo, &name, &options, &mut |_| true, &context.run_options()),
        };
        let plan = match plan.map_err(of_repair) {
            Ok(plan) => plan,
            // Work already done on other logs must still be reported.
            Err(error) => {
                let is_over = error.kind() == ErrorKind::Interrupted;
                repaired.logs.push(RepairedLog::failed(&name, &error));
                if is_over || is_worse(&error, worst.as_ref()) {
                    worst = Some(error.context(&name));
                }
                if is_over {
                    break;
                }
                continue;
            }
        };
        if let Some(error) = &plan.not_deleted {
            let text =
                format!("{name}: objects that are no longer needed are left to the next prune: {error}");
            context.output.warning(text);
        }
        is_mended &= plan.held.is_empty() && plan.left.is_empty() && (args.yes || plan.is_empty());
        if !plan.held.is_empty() {
            repaired.hints.push(HELD_HINT);
        }
        let hint_of = |finding: &Finding| match finding.severity {
            Severity::Repairable if finding.remedy == Remedy::Refs => AGAIN_HINT,
            Severity::Repairable => LEFT_HINT,
            Severity::Newer => NEWER_HINT,
            Severity::Lost => LOST_HINT,
        };
        repaired.hints.extend(plan.left.iter().map(hint_of));
        if !plan.is_empty() || !plan.held.is_empty() || !plan.left.is_empty() {
            repaired.logs.push(RepairedLog::new(&name, plan));
        }
    }
    if !repaired.keys.is_empty() {
        repaired.hints.push(KEYS_HINT);
    }
    repaired.hints.sort_unstable();
    repaired.hints.dedup();
    let exit = if is_mended && repaired.keys.is_empty() { Exit::Done } else { Exit::Finding };
    let is_any = !repaired.logs.is_empty();
    context.output.ended(worst.map_or(Ok(exit), Err), &repaired, is_any)
}

/// Hint for when a hold may be lost.
pub(super) const MAY_BE_HELD_HINT: &str = "\
set the holds again with \"holdfast hold\"; if there were none, \"holdfast release\" of any backup says so";

fn of_repair(error: RepairError) -> Error {
    match error {
        RepairError::Begin(error) => error.into(),
        RepairError::Finish(error) => error.into(),
        RepairError::Repo(error) if error.is_unknown() => Error::from(error).hinted(NEWER_HINT),
        RepairError::Repo(error) => error.into(),
        stranger @ (RepairError::Stranger { .. } | RepairError::Keys { .. }) => {
            Error::new(ErrorKind::Damaged, stranger.to_string()).hinted(SIGNERS_HINT)
        }
        moved @ RepairError::Moved { .. } => {
            Error::new(ErrorKind::Damaged, moved.to_string()).hinted(MOVED_HINT)
        }
        held @ RepairError::MayBeHeld { .. } => {
            Error::new(ErrorKind::Damaged, held.to_string()).hinted(MAY_BE_HELD_HINT)
        }
        beneath @ RepairError::NoncurrentVersion { .. } => {
            Error::new(ErrorKind::Damaged, beneath.to_string()).hinted(BENEATH_HINT)
        }
        newer @ RepairError::Newer { .. } => {
            Error::new(ErrorKind::Damaged, newer.to_string()).hinted(NEWER_HINT)
        }
        gap @ RepairError::Gap { .. } => Error::new(ErrorKind::Damaged, gap.to_string()),
        unsteady @ RepairError::Unsteady { .. } => Error::new(ErrorKind::Damaged, unsteady.to_string()),
        intact @ RepairError::Intact { .. } => {
            let else_put_back =
                "if no newer version has written here, put it back from a copy of the repository";
            Error::new(ErrorKind::Damaged, intact.to_string())
                .hinted(format!("{NEWER_HINT}\n{else_put_back}"))
        }
    }
}
