//! `restore`: makes a plan, shows it, and carries it out.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use holdfast_core::{
    Cancel, Context as _, Error, ErrorKind, Result,
    recovery::{Recovery, RecoveryPlan},
    restore::{
        self, LeftOut, Loaded, PlannedOwner, PlannedRows, Reached, RestoreMode, RestoreOptions, RestorePlan,
        RestoreReport,
    },
};
use holdfast_repo::{Act, Kind, LogName, Repo, RunNo, log::history::History};
use serde::Serialize;

use super::{Context, load, recovery, report::position_facts, repository, select};
use crate::{
    args::{restore::RestoreArgs, units::ByteSize},
    exit::Exit,
    output::{Render, text},
};

/// At most this many files are named before "and N more".
const NAMED_MAX: usize = 10;

/// Hint for a backup that was dropped while it was restored.
const DROPPED_HINT: &str = "\
restore another: \"holdfast list\" shows them. A prune with the usual --grace leaves a restore a day before it \
deletes what was dropped";

/// The plan that a dry run shows.
#[derive(Serialize)]
struct Planned {
    dry_run: bool,
    #[serde(flatten)]
    plan: Plan,
}

/// How a backup is restored, and what is replayed afterwards.
#[derive(Serialize)]
struct Plan {
    plan: RestorePlan,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Reached>,
}

impl Render for Planned {
    fn render(&self, out: &mut String) -> fmt::Result {
        show_plan(out, &self.plan)?;
        writeln!(out, "nothing was changed (dry run)")
    }
}

fn show_plan(out: &mut String, Plan { plan, replay }: &Plan) -> fmt::Result {
    let how = match plan.mode {
        RestoreMode::Fresh => "new",
        RestoreMode::Continue if plan.rows.is_some() => "begins an interrupted restore again",
        RestoreMode::Continue => "completes an interrupted restore",
        RestoreMode::Complete => "complete, except for its report",
        RestoreMode::Delta => "made into the backup",
    };
    text::fact(out, "backup", &plan.backup)?;
    text::fact(out, "of", &plan.server_version)?;
    text::fact(out, "target", format!("{} ({how})", plan.target_dir.display()))?;
    if let Some(PlannedOwner { uid, gid }) = plan.owner {
        text::fact(out, "owner", format!("user {uid}, group {gid}"))?;
    }
    match &plan.rows {
        Some(PlannedRows { tables, rows, bytes }) => {
            let (tables, rows) = (text::count(*tables, "table"), text::count(*rows, "row"));
            text::fact(out, "tables", format!("{tables}, {rows}, {}", ByteSize(*bytes)))?;
        }
        None => {
            let files = text::count(plan.files, "file");
            text::fact(out, "files", format!("{files}, {}", ByteSize(plan.bytes)))?;
            text::fact(out, "redo", format!("{} to recover", ByteSize(plan.redo_bytes)))?;
        }
    }
    for room in &plan.room {
        let (needed, free) = (ByteSize(room.needed_bytes), ByteSize(room.free_bytes));
        text::fact(out, "room", format!("{needed} needed of {free} free at {}", room.path.display()))?;
    }
    match &plan.prepare {
        Some(prepare) if plan.rows.is_some() => text::fact(
            out,
            "loaded",
            format!(
                "by {} ({}), buffer pool {}",
                prepare.program.display(),
                prepare.version,
                ByteSize(prepare.buffer_pool_bytes)
            ),
        )?,
        Some(prepare) => text::fact(
            out,
            "recovery",
            format!(
                "by {} ({}), buffer pool {}, at least {}",
                prepare.program.display(),
                prepare.version,
                ByteSize(prepare.buffer_pool_bytes),
                text::millis(prepare.least_ms)
            ),
        )?,
        None => text::fact(out, "recovery", "by the server, when it is started on the files")?,
    }
    if let Some(reached) = replay {
        recovery::show_reached(out, "replay", reached, "")?;
    }
    for file in &plan.external {
        text::fact(
            out,
            "from outside",
            format!("{} goes to {}", file.was.display(), file.goes_to.display()),
        )?;
    }
    left_out(out, &plan.dropped)?;
    let (inside, outside): (Vec<_>, Vec<_>) =
        plan.replace.iter().map(|file| &file.path).partition(|path| path.starts_with(&plan.target_dir));
    text::first(out, "replace outside", usize::MAX, outside.iter().map(|path| path.display()))?;
    text::first(out, "replace", NAMED_MAX, inside.iter().map(|path| path.display()))?;
    text::first(out, "DELETE", usize::MAX, deleted(&plan.target_dir, &plan.delete).iter())
}

/// All that is deleted, by its names at the top of the target.
fn deleted(target_dir: &Path, paths: &[PathBuf]) -> Vec<String> {
    // By name: whether it goes itself, and how much of what is in it.
    let mut tops: BTreeMap<PathBuf, (bool, u64)> = BTreeMap::new();
    for path in paths {
        let mut parts = path.strip_prefix(target_dir).unwrap_or(path).components();
        let top = parts.next().map(|part| target_dir.join(part)).unwrap_or_default();
        let (goes, inside) = tops.entry(top).or_default();
        match parts.next() {
            None => *goes = true,
            Some(_) => *inside += 1,
        }
    }
    let shown = tops.into_iter().map(|(top, (goes, inside))| match (goes, inside) {
        (true, 0) => top.display().to_string(),
        (true, _) => format!("{} with all in it ({inside})", top.display()),
        (false, _) => format!("{} below {}", text::count(inside, "name"), top.display()),
    });
    shown.collect()
}

fn left_out(out: &mut String, files: &[LeftOut]) -> fmt::Result {
    text::first(
        out,
        "left out",
        NAMED_MAX,
        files.iter().map(|LeftOut { path, why }| format!("{path}: {why}")),
    )
}

/// A restored data directory that a server can start on.
#[derive(Serialize)]
struct Restored {
    dry_run: bool,
    report: RestoreReport,
}

impl Render for Restored {
    fn render(&self, out: &mut String) -> fmt::Result {
        let report = &self.report;
        let written = &report.written;
        text::fact(out, "server", &report.server_version)?;
        let mut data = format!("{} in {}", ByteSize(written.bytes), text::count(written.files, "file"));
        if written.files_reused > 0 {
            write!(data, ", {} of pages already up to date", ByteSize(written.bytes_kept))?;
        }
        text::fact(out, "data", data)?;
        if written.deleted > 0 {
            text::fact(out, "deleted", text::count(written.deleted, "file"))?;
        }
        left_out(out, &report.dropped)?;
        text::fact(out, "time", text::phases(&report.phases))?;
        match (&report.prepared, &report.loaded) {
            (_, Some(loaded)) => show_loaded(out, loaded)?,
            (Some(prepared), None) => {
                text::fact(out, "recovered", format!("by {} to lsn {}", prepared.version, prepared.lsn))?
            }
            (None, None) => text::fact(out, "recovered", "not yet: the first start does it")?,
        }
        if let Some(replayed) = &report.replayed {
            let how = format!(", {} in {}", ByteSize(replayed.bytes), text::millis(replayed.ms));
            recovery::show_reached(out, "replayed", &replayed.reached, &how)?;
            text::first(out, "disabled events", NAMED_MAX, replayed.events_disabled.iter())?;
        }
        report.position.iter().try_for_each(|position| position_facts(out, position))?;
        if !report.server_options.is_empty() {
            text::fact(out, "start with", report.server_options.join("\n"))?;
        }
        if !report.primary_statements.is_empty() {
            text::fact(out, "go on as a replica", report.primary_statements.join("\n"))?;
        }
        if let Some(statement) = &report.continue_statement {
            text::fact(out, "go on as a primary", statement)?;
        }
        if let Some(statement) = &report.replicate_statement {
            text::fact(out, "replicate with", statement.replace("; ", ";\n"))?;
        }
        writeln!(out, "restore {} to {} completed OK", report.backup, report.target_dir.display())
    }
}

/// What a server did with the rows of a logical backup.
fn show_loaded(out: &mut String, loaded: &Loaded) -> fmt::Result {
    let Loaded { version, tables, rows, row_bytes, tables_verified, accounts, adapted, left_out, .. } =
        loaded;
    let rows = text::count(*rows, "row");
    text::fact(out, "loaded", format!("{rows}, {}, by {version}", ByteSize(*row_bytes)))?;
    let (tables, accounts) = (text::count(*tables, "table"), text::count(*accounts, "account"));
    text::fact(out, "has", format!("{tables}, {accounts}"))?;
    let verified = text::count(*tables_verified, "table");
    text::fact(out, "verified", format!("{verified}, by number and checksum of all rows"))?;
    text::first(out, "adapted", NAMED_MAX, adapted.iter())?;
    text::first(out, "left out", NAMED_MAX, left_out.iter())
}

pub(super) fn run(args: RestoreArgs, context: &Context<'_>) -> Result<Exit> {
    load::refuse_contradictions(&args)?;
    let Some(target_dir) = args.target_dir.clone() else { return load::run(args, context) };
    let (dry_run, ask) = (args.dry_run, args.delta && !args.yes);
    if ask && !dry_run && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let text = "--delta changes and deletes files in the target, and there is no terminal to ask on";
        return Err(Error::new(ErrorKind::Usage, text).hinted("look at what --dry-run shows, then add --yes"));
    }
    let repo = Arc::new(repository::open_for(context, Act::Read, "a restore")?);
    let wanted = Wanted::choose(&args, context, &repo)?;
    if args.load.leave_out && wanted.kind() != Kind::Logical {
        let text = "--leave-out has no effect here: the files of a physical backup are restored as they are";
        return Err(Error::new(ErrorKind::Usage, text).hinted("it is for logical backups"));
    }
    let mut options = options(args, target_dir, context);
    if dry_run || ask {
        let plan = wanted.plan(&repo, &options, context.cancel)?;
        if dry_run {
            context.output.result(Exit::Done, &Planned { dry_run, plan });
            return Ok(Exit::Done);
        }
        confirm(&plan, context)?;
        options.agreed = Some(Box::new(plan.plan));
    }
    let report =
        wanted.restore(&repo, &options, context).map_err(|error| wanted.unless_dropped(&repo, error))?;
    context.output.result(Exit::Done, &Restored { dry_run, report });
    Ok(Exit::Done)
}

/// What to restore.
enum Wanted {
    Backup(select::Chosen),
    Moment(Recovery),
}

impl Wanted {
    /// The backup that is restored.
    fn backup(&self) -> (&LogName, RunNo) {
        match self {
            Self::Backup(chosen) => (chosen.log(), chosen.run),
            Self::Moment(recovery) => recovery.base(),
        }
    }

    fn kind(&self) -> Kind {
        self.backup().0.kind
    }

    /// Why a restore failed. If its backup was dropped meanwhile, a prune may have deleted what it needed, and the
    /// repository is not damaged.
    fn unless_dropped(&self, repo: &Repo, error: Error) -> Error {
        let (log, run) = self.backup();
        let is_dropped = error.kind() == ErrorKind::Damaged
            && History::read(repo, log).is_ok_and(|history| !history.stands(run));
        if !is_dropped {
            return error;
        }
        Error::failed(format!("{} was dropped while it was restored: {error}", log.backup_id(run)))
            .hinted(DROPPED_HINT)
    }

    fn choose(args: &RestoreArgs, context: &Context<'_>, repo: &Arc<Repo>) -> Result<Self> {
        let name = args.name.name.as_ref();
        let Some(until) = args.moment.until() else {
            let id = args.id.as_ref().ok_or_else(|| Error::new(ErrorKind::Usage, "no backup is named"))?;
            return Ok(Self::Backup(select::backup(context, repo, id, name)?));
        };
        recovery::choose(context, repo, args.id.as_ref(), name, until).map(Self::Moment)
    }

    fn plan(&self, repo: &Arc<Repo>, options: &RestoreOptions, cancel: &Cancel) -> Result<Plan> {
        match self {
            Self::Backup(chosen) => {
                let plan = restore::plan(repo, chosen.log(), chosen.run, options, cancel)?;
                Ok(Plan { plan, replay: None })
            }
            Self::Moment(recovery) => {
                let RecoveryPlan { restore, replay } = recovery.plan(repo, options, cancel)?;
                Ok(Plan { plan: restore, replay: Some(replay) })
            }
        }
    }

    fn restore(
        &self,
        repo: &Arc<Repo>,
        options: &RestoreOptions,
        context: &Context<'_>,
    ) -> Result<RestoreReport> {
        match self {
            Self::Backup(chosen) => {
                restore::run(repo, chosen.log(), chosen.run, options, &**context.output, context.cancel)
            }
            Self::Moment(recovery) => recovery.run(repo, options, &**context.output, context.cancel),
        }
    }
}

/// Shows at the terminal what a delta restore will delete and replace, and continues only if the user agrees.
fn confirm(plan: &Plan, context: &Context<'_>) -> Result<()> {
    let mut shown = String::new();
    show_plan(&mut shown, plan).context("show the plan")?;
    context.output.notice(shown.trim_end());
    context.output.ask("continue? [y/N] ");
    if matches!(answer(context.cancel)?.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(Error::failed("the restore was not confirmed; nothing was changed"))
    }
}

/// Reads the user's answer, unless a signal arrives first: reading from a terminal is
/// not interrupted by signals.
fn answer(cancel: &Cancel) -> Result<String> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let (typed, answers) = mpsc::channel();
    let read = move || {
        let mut line = String::new();
        let _gone = typed.send(io::stdin().read_line(&mut line).map(|_| line));
    };
    thread::Builder::new().name("answer".to_owned()).spawn(read).context("start a thread")?;
    loop {
        match answers.recv_timeout(LOOK_EVERY) {
            Ok(answer) => return answer.context("read the answer"),
            Err(mpsc::RecvTimeoutError::Timeout) => cancel.check()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::failed("the answer cannot be read"));
            }
        }
    }
}

fn options(args: RestoreArgs, target_dir: PathBuf, context: &Context<'_>) -> RestoreOptions {
    let chosen = recovery::options(RestoreOptions::new(target_dir), args.recovery, args.parallel, context);
    RestoreOptions {
        delta: args.delta,
        prepare: !args.no_prepare,
        maps: args.map.into_iter().map(|pair| (pair.from, pair.to)).collect(),
        sparse: args.sparse,
        leave_out: args.load.leave_out,
        ..chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that is deleted goes unnamed, however much it is.
    #[test]
    fn all_that_is_deleted_is_named() {
        let paths = (1..=40).map(|n| format!("binlog.{n:06}"));
        let more =
            ["db/t1.ibd", "db/t2.ibd", "dropped", "dropped/a", "dropped/b", "one/x"].map(str::to_owned);
        let paths: Vec<PathBuf> = paths.chain(more).map(|path| Path::new("/srv/db1").join(path)).collect();
        let shown = deleted(Path::new("/srv/db1"), &paths);
        assert_eq!(shown.len(), 43);
        assert_eq!((&*shown[0], &*shown[39]), ("/srv/db1/binlog.000001", "/srv/db1/binlog.000040"));
        assert_eq!(
            shown[40..],
            ["2 names below /srv/db1/db", "/srv/db1/dropped with all in it (2)", "1 name below /srv/db1/one"]
        );
    }
}
