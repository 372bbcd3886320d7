//! `copy`: copies backups into another repository.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{
    Error, ErrorKind, Event, Listener as _, Result,
    binlog::{Unfiled, unfiled},
    copy,
};
use holdfast_repo::{
    Act, Kind, LogName, Repo, RepoError, RunNo,
    log::{history::History, outcome::CopyOf},
    ops::copy::{Copied, Copier, CopyError, CopyOptions, CopyReport, Verdict},
};
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::{copy::CopyArgs, units::ByteSize},
    config::usual_cache_dir,
    exit::{Exit, is_worse},
    output::{Render, text},
};

/// The origin of a copied backup, as `list` and `show` present it.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct CopyShown(CopyOf);

impl CopyShown {
    pub(super) fn of(history: &History, run: RunNo) -> Option<Self> {
        history.outcome(run)?.copy_of.clone().map(Self)
    }

    /// `db1#7`.
    pub(super) fn short(&self) -> String {
        let CopyOf { source, run, .. } = &self.0;
        // Whoever signed it, the name must not break out of its line.
        let source: String = source.chars().filter(|c| !c.is_control()).take(64).collect();
        format!("{source}{}", RunNo(*run))
    }
}

/// `db1#7 of repository 0123…`.
impl fmt::Display for CopyShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of repository {}", self.short(), self.0.repository)
    }
}

/// The result for one backup.
#[derive(Serialize)]
struct Backup {
    /// Its id in the source repository.
    id: String,
    state: State,
    /// Its id in the target repository; for a backup that is skipped as too old, the id of the newest there.
    there: Option<String>,
    /// The writer's key that vouches for this, if it is not the key in use.
    word_of: Option<String>,
    /// The report of the copy, if one was made.
    report: Option<CopyReport>,
    error: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// Copied by this run.
    Copied,
    ToCopy,
    /// Copied by an earlier run.
    WasThere,
    /// Copied by an earlier run, and damaged since.
    ThereDamaged,
    /// Older than the newest backup in the target.
    Older,
    /// Dropped in the source repository since the copy began.
    Dropped,
    Failed,
}

#[derive(Serialize)]
struct Done {
    dry_run: bool,
    from: String,
    to: String,
    backups: Vec<Backup>,
    /// Why the copy stopped early.
    error: Option<String>,
}

impl Render for Backup {
    fn render(&self, out: &mut String) -> fmt::Result {
        let there = self.there.as_deref().unwrap_or_default();
        let word = match &self.word_of {
            Some(key) => format!(", according to the writer's key {key}"),
            None => String::new(),
        };
        match (self.state, &self.report) {
            (State::Copied, Some(report)) => writeln!(
                out,
                "{} copied as {there}: {} read, {} stored, {}",
                self.id,
                ByteSize(report.bytes_read),
                ByteSize(report.totals.bytes_stored),
                text::millis(report.total_ms)
            ),
            (State::Copied | State::ToCopy, _) => writeln!(out, "{} is to be copied", self.id),
            (State::WasThere, _) => writeln!(out, "{} exists there already, as {there}{word}", self.id),
            (State::ThereDamaged, _) => {
                writeln!(out, "{} exists there already, as {there}, but is damaged there{word}", self.id)
            }
            (State::Older, _) => {
                writeln!(out, "{} is not copied: {there} in the target is newer{word}", self.id)
            }
            (State::Dropped, _) => writeln!(out, "{} was dropped meanwhile, and is not copied", self.id),
            (State::Failed, _) => {
                let error = text::one_line(self.error.as_deref().unwrap_or_default());
                writeln!(out, "{} failed: {error}", self.id)
            }
        }
    }
}

impl Render for Done {
    fn render(&self, out: &mut String) -> fmt::Result {
        // A backup copied earlier is worth a line only if it was named explicitly, or if
        // another key vouches for it.
        let is_news =
            |it: &&Backup| self.backups.len() == 1 || it.state != State::WasThere || it.word_of.is_some();
        self.backups.iter().filter(is_news).try_for_each(|backup| backup.render(out))?;
        let count = |state| self.backups.iter().filter(|it| it.state == state).count() as u64;
        if self.dry_run {
            return writeln!(out, "nothing was copied (dry run)");
        }
        let (copied, there) = (count(State::Copied), count(State::WasThere));
        let end = if self.error.is_none() { " completed OK" } else { "; not all could be copied" };
        let copied = text::count(copied, "backup");
        writeln!(out, "copy to {}: {copied} copied, {there} already there{end}", self.to)
    }
}

pub(super) fn run(args: CopyArgs, context: &Context<'_>) -> Result<Exit> {
    let (from, to) = repository::open_both(
        context,
        (Act::Read, "copying backups"),
        &args.other,
        (Act::Backup, "adding copies"),
    )?;
    let (from, to) = (Arc::new(from), Arc::new(to));
    let options = options(&args, context);
    let mut done = Done {
        dry_run: args.dry_run,
        from: from.store().location(),
        to: to.store().location(),
        backups: Vec::new(),
        error: None,
    };
    let mut worst: Option<Error> = None;
    for Chosen { history, runs, unreadable } in chosen(&args, context, &from, &to)? {
        let name = args.as_name.clone().unwrap_or_else(|| history.log().source.clone());
        let copier = Copier::new(&from, &history, &to, name, options.clone());
        let copier = copier.map_err(|error| copy::failed(error, &from, &to));
        let copied = copier.and_then(|copier| {
            let mut log = LogCopy { from: &from, to: &to, history: &history, copier, context };
            log.copy(&runs, &args, &mut done.backups)
        });
        // A failure in one source must not keep the others from being copied.
        if let Err(error) = copied.and(unreadable.map_or(Ok(()), Err)) {
            let is_interrupted = error.kind() == ErrorKind::Interrupted;
            if is_interrupted || is_worse(&error, worst.as_ref()) {
                worst = Some(if args.all { error.context(history.log()) } else { error });
            }
            if is_interrupted {
                break;
            }
        }
    }
    done.error = worst.as_ref().map(ToString::to_string);
    let is_any = !done.backups.is_empty();
    context.output.ended(worst.map_or(Ok(Exit::Done), Err), &done, is_any)
}

fn options(args: &CopyArgs, context: &Context<'_>) -> CopyOptions {
    let mut options = CopyOptions {
        interrupt: context.cancel.interrupt(),
        steps: context.output.steps(),
        ..CopyOptions::default()
    };
    let configured = &context.config.resources;
    // A compression typed on the command line applies to all chunks; a configured one only to
    // chunks that are rebuilt.
    options.keep_chunks = args.compress.is_none();
    if let Some(threads) = args.parallel.or(configured.parallel) {
        options.threads = threads;
    }
    if let Some(compression) = args.compress.or(configured.compress) {
        options.writer.compression = compression;
    }
    if let Some(bytes) = args.memory.bytes_or(configured) {
        options.memory_bytes = bytes;
    }
    let cache_dir = args.cache_dir.clone().or_else(|| configured.cache_dir.clone());
    options.cache_dir = cache_dir.or_else(usual_cache_dir);
    options
}

/// What to copy of a log.
struct Chosen {
    history: History,
    /// The backups, oldest first.
    runs: Vec<RunNo>,
    /// Why there may be more to copy than that.
    unreadable: Option<Error>,
}

/// The backups to copy, by log.
fn chosen(args: &CopyArgs, context: &Context<'_>, from: &Repo, to: &Repo) -> Result<Vec<Chosen>> {
    if let Some(id) = &args.id {
        let chosen = select::backup(context, from, id, args.name.name.as_ref())?;
        return Ok(vec![Chosen { runs: vec![chosen.run], history: chosen.history, unreadable: None }]);
    }
    let name = args.name.name.as_ref().or(context.config.name.as_ref());
    let logs: Vec<LogName> =
        from.logs()?.into_iter().filter(|log| name.is_none_or(|name| *name == log.source)).collect();
    let mut sources: Vec<_> = logs.iter().map(|log| &log.source).collect();
    sources.dedup();
    match (sources.len(), name, &args.as_name) {
        (0, Some(name), _) => return Err(select::holds_nothing_of(name)),
        (2.., _, Some(_)) => {
            let text = "several sources cannot be copied to one name";
            return Err(Error::new(ErrorKind::Usage, text).hinted("name one with --name"));
        }
        _ => {}
    }
    let mut all = Vec::new();
    for log in &logs {
        let mut unreadable = BTreeMap::new();
        let history =
            select::salvaged(context, from, log, &mut |run, error| drop(unreadable.insert(run, error)))?;
        if log.kind == Kind::Binlog {
            let text = match unfiled(from, &history)? {
                Unfiled { due, .. } if !due.is_empty() => Some(
                    "what archivers that died have left in segments is not copied: \"holdfast prune\" with an \
                     operator's key moves it into packs",
                ),
                Unfiled { last, .. } if !last.is_empty() => Some(
                    "what its last archiver, which died, has left in segments is not copied before an archiver \
                     continues or, if the server is gone, \"holdfast binlog close\" moves it into packs",
                ),
                _ => None,
            };
            if let Some(text) = text {
                context.output.warning(format!("{log}: {text}"));
            }
        }
        // A run of an archive is copied before what follows it or never; so is one that a later version can copy.
        let stops = |error: &RepoError| log.kind == Kind::Binlog || error.is_unknown();
        let end = unreadable.iter().find(|(_, error)| stops(error)).map(|(run, _)| *run);
        let runs = history.standing().map(|outcome| outcome.run);
        let runs = runs.filter(|run| end.is_none_or(|end| *run < end)).collect();
        let first = end.and_then(|end| unreadable.remove(&end)).or_else(|| Some(unreadable.pop_first()?.1));
        let unreadable = first.map(|error| copy::failed(CopyError::From(error), from, to));
        all.push(Chosen { history, runs, unreadable });
    }
    Ok(all)
}

/// The copy of one log.
struct LogCopy<'a> {
    from: &'a Arc<Repo>,
    to: &'a Arc<Repo>,
    history: &'a History,
    copier: Copier<'a>,
    context: &'a Context<'a>,
}

impl LogCopy<'_> {
    /// Copies the backups that need copying, oldest first.
    /// A damaged backup does not keep later ones from being copied; a damaged run of a binlog archive does.
    fn copy(&mut self, runs: &[RunNo], args: &CopyArgs, done: &mut Vec<Backup>) -> Result<()> {
        let failed = |error| copy::failed(error, self.from, self.to);
        let plan = self.copier.plan(runs).map_err(failed)?;
        let is_asked_for = args.id.is_some();
        // Nothing older than what is there can be copied later: that would be a gap for good.
        let is_archive = self.history.log().kind == Kind::Binlog;
        let mut worst = None;
        for (run, verdict) in plan {
            self.context.cancel.check()?;
            let mut backup = Backup {
                id: self.history.log().backup_id(run),
                state: State::ToCopy,
                there: None,
                word_of: None,
                report: None,
                error: None,
            };
            match verdict {
                Verdict::IsThere(_) => backup.stays(&self.copier, verdict),
                Verdict::Older(_) if !is_asked_for => backup.stays(&self.copier, verdict),
                Verdict::ThereDamaged(there) => {
                    backup.stays(&self.copier, verdict);
                    let error = CopyError::ThereDamaged { log: self.copier.log().clone(), there };
                    let error = failed(error);
                    backup.error = Some(error.to_string());
                    worst = Some(error);
                }
                _ if args.dry_run => {}
                _ => {
                    if let Err(error) = self.copy_one(run, &mut backup) {
                        let may_go_on = error.kind() == ErrorKind::Damaged && !is_asked_for;
                        if may_go_on && self.was_dropped(run)? {
                            backup.state = State::Dropped;
                        } else if may_go_on && !is_archive {
                            backup.state = State::Failed;
                            backup.error = Some(error.to_string());
                            worst = Some(error);
                        } else {
                            return Err(error);
                        }
                    }
                }
            }
            done.push(backup);
        }
        worst.map_or(Ok(()), Err)
    }

    /// Whether a backup that stood when the copy began no longer does: then a prune may have freed what it needed.
    fn was_dropped(&self, run: RunNo) -> Result<bool> {
        Ok(!History::salvage(self.from, self.history.log(), &mut |_, _| {})?.stands(run))
    }

    fn copy_one(&mut self, run: RunNo, backup: &mut Backup) -> Result<()> {
        let failed = |error| copy::failed(error, self.from, self.to);
        let there = self.copier.there().map_err(failed)?;
        copy::check_server((self.from, self.history), run, (self.to, there))?;
        let text = format!("copying {}", backup.id);
        self.context.output.event(Event::Note { text });
        match self.copier.copy(run).map_err(failed)? {
            Copied::Now(report) => {
                backup.state = State::Copied;
                backup.there = Some(self.copier.log().backup_id(RunNo(report.backup)));
                backup.report = Some(report);
            }
            Copied::WasThere(run) => backup.stays(&self.copier, Verdict::IsThere(run)),
        }
        Ok(())
    }
}

impl Backup {
    /// Marks the backup as skipped, with the backup in the target that is the reason.
    fn stays(&mut self, copier: &Copier<'_>, verdict: Verdict) {
        let (state, there) = match verdict {
            Verdict::Copy => return,
            Verdict::IsThere(run) => (State::WasThere, run),
            Verdict::ThereDamaged(run) => (State::ThereDamaged, run),
            Verdict::Older(newest) => (State::Older, newest),
        };
        self.state = state;
        self.there = Some(copier.log().backup_id(there));
        self.word_of = copier.word_of(verdict).map(|key| key.to_string());
    }
}
