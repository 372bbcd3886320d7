//! `expire`: drops backups by rules or by name.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{Error, ErrorKind, Event, Listener as _, Result};
use holdfast_repo::{
    Act, Kind, LogName, Repo, RunNo, SourceName,
    expire::{ExpireError, ExpirePlan, ExpireRequest, Rules, expire, plan_expire},
    history::History,
    outcome::Outcome,
    retention::RetentionPolicy,
    space::freed_by,
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde::Serialize;

use super::{Context, list, repository, select};
use crate::{
    args::{
        backup_ref::Which,
        expire::{ExpireArgs, KeepArgs},
        units::ByteSize,
    },
    exit::Exit,
    output::{
        Render,
        text::{self, words},
    },
};

#[derive(Serialize)]
struct Kept {
    id: String,
    finished_at: Timestamp,
    reasons: Vec<String>,
}

#[derive(Serialize)]
struct Dropped {
    id: String,
    finished_at: Timestamp,
}

/// What was decided.
#[derive(Serialize)]
struct Expired {
    dry_run: bool,
    kept: Vec<Kept>,
    dropped: Vec<Dropped>,
    /// About what prune would free for it; only of a dry run, and where all that a backup needs can be read.
    freed_bytes: Option<u64>,
}

impl Render for Expired {
    fn render(&self, out: &mut String) -> fmt::Result {
        let kept = self.kept.iter().map(|kept| {
            let why = if kept.reasons.is_empty() { "last".to_owned() } else { kept.reasons.join(" ") };
            [kept.id.clone(), text::instant(kept.finished_at), "keep".to_owned(), why]
        });
        let dropped = self
            .dropped
            .iter()
            .map(|it| [it.id.clone(), text::instant(it.finished_at), "drop".to_owned(), String::new()]);
        let rows: Vec<_> = dropped.chain(kept).collect();
        if !rows.is_empty() {
            text::table(out, &[words("ID"), words("TIME (UTC)"), words(""), words("RULES")], &rows)?;
        }
        let n = text::count(self.dropped.len() as u64, "backup");
        match (self.dry_run, self.dropped.is_empty(), self.freed_bytes) {
            (_, true, _) => writeln!(out, "nothing to drop"),
            (true, _, Some(freed)) => {
                let freed = ByteSize(freed);
                writeln!(out, "{n} would be dropped, and about {freed} freed by prune (dry run)")
            }
            (true, ..) => writeln!(out, "{n} would be dropped (dry run)"),
            (false, ..) => writeln!(out, "{n} dropped; prune frees the space"),
        }
    }
}

pub(super) fn run(args: &ExpireArgs, context: &Context<'_>) -> Result<Exit> {
    let repo = Arc::new(repository::open_for(context, Act::Prune, "dropping backups")?);
    let mut expired =
        Expired { dry_run: args.dry_run, kept: Vec::new(), dropped: Vec::new(), freed_bytes: None };
    if args.ids.is_empty() && !repo.can_read() {
        let text = "whether backups have damaged pages takes an operator's key to tell: of each source only the newest is kept whatever the rules are";
        context.output.event(Event::Note { text: text.to_owned() });
    }
    let mut looked = Vec::new();
    for (log, request) in requests(args, context, &repo)? {
        context.cancel.check()?;
        let history = History::read(&repo, &log)?;
        // Asking the store's clock writes to it, which a dry run does not.
        let now = if args.dry_run { Timestamp::now() } else { repo.now()? };
        let plan = plan_expire(&repo, &history, &request, now).map_err(of_expire)?;
        looked.push((log, request, history, plan));
    }
    if args.ids.is_empty() && args.kind.is_none() {
        let kept: Vec<Kept> = looked.iter().flat_map(|(_, _, history, plan)| shown(history, plan)).collect();
        looked.extend(unneeded_binlogs(args, context, &repo, &kept)?);
    }
    // What is refused of one source is to be refused before anything is dropped of another.
    for (log, request, history, mut plan) in looked {
        context.cancel.check()?;
        if !args.dry_run {
            plan = expire(&repo, &log, &request, &context.run_options()).map_err(of_expire)?;
        } else {
            match freed_by(&repo, &history, &plan.dropped, &context.cancel.interrupt()) {
                Ok(bytes) => *expired.freed_bytes.get_or_insert(0) += bytes,
                Err(error) => context.output.warning(format!("what would be freed is not known: {error}")),
            }
        }
        expired.add(&history, plan);
    }
    context.output.result(Exit::Done, &expired);
    Ok(Exit::Done)
}

impl Expired {
    fn add(&mut self, history: &History, plan: ExpirePlan) {
        let log = history.log();
        self.kept.extend(shown(history, &plan));
        self.dropped.extend(plan.dropped.into_iter().filter_map(|run| {
            let finished_at = history.outcome(run)?.taken_at();
            Some(Dropped { id: list::id(log, run), finished_at })
        }));
    }
}

fn shown(history: &History, plan: &ExpirePlan) -> Vec<Kept> {
    let kept = plan.kept.iter().map(|kept| Kept {
        id: list::id(history.log(), kept.run),
        finished_at: kept.at,
        reasons: kept.reasons.iter().map(ToString::to_string).collect(),
    });
    kept.collect()
}

/// How long before its end a backup may have stood at its position.
const POSITION_AGE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Rules count backups. Of a binlog archive they leave all that recovery from a backup that is `kept` can need: only runs
/// that ended before the oldest of these began go.
fn unneeded_binlogs(
    args: &ExpireArgs,
    context: &Context<'_>,
    repo: &Repo,
    kept: &[Kept],
) -> Result<Vec<(LogName, ExpireRequest, History, ExpirePlan)>> {
    let mut unneeded = Vec::new();
    let Some(oldest) = kept.iter().map(|kept| kept.finished_at).min() else { return Ok(unneeded) };
    let logs = select::logs_of_source(context, repo, args.name.name.as_ref())?;
    for log in logs.into_iter().filter(|log| log.kind == Kind::Binlog) {
        let history = History::read(repo, &log)?;
        let now = Timestamp::now();
        let is_unneeded = |outcome: &&Outcome| {
            outcome.at < oldest - POSITION_AGE_MAX && history.hold(outcome.run, now).is_none()
        };
        let dropped: Vec<RunNo> = history.standing().filter(is_unneeded).map(|outcome| outcome.run).collect();
        if dropped.is_empty() {
            continue;
        }
        let request = ExpireRequest::Exactly(dropped);
        let plan = plan_expire(repo, &history, &request, now).map_err(of_expire)?;
        unneeded.push((log, request, history, plan));
    }
    Ok(unneeded)
}

/// What is asked of which log: named backups may be of several sources, rules go for those of one.
fn requests(args: &ExpireArgs, context: &Context<'_>, repo: &Repo) -> Result<Vec<(LogName, ExpireRequest)>> {
    let name = args.name.name.as_ref();
    if !args.ids.is_empty() {
        return named(args, context, repo, name);
    }
    let keep = args.keep.clone().or(context.config.retention.clone());
    let policy = policy(&keep);
    if policy.is_empty() && keep.keep_tag.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no rule says which backups to keep")
            .hinted("use --keep-last, --keep-daily …, [retention] in the configuration file, or name the backups to drop"));
    }
    let rules = Rules {
        keep_tags: keep.keep_tag,
        only_tag: args.tag.clone(),
        ..Rules::by_age(policy, TimeZone::UTC)
    };
    let request = ExpireRequest::ByRules(rules);
    let mut logs = select::logs_of_source(context, repo, name)?;
    logs.retain(|log| args.kind.map_or(log.kind != Kind::Binlog, |kind| kind == log.kind));
    Ok(logs.into_iter().map(|log| (log, request.clone())).collect())
}

fn named(
    args: &ExpireArgs,
    context: &Context<'_>,
    repo: &Repo,
    name: Option<&SourceName>,
) -> Result<Vec<(LogName, ExpireRequest)>> {
    let mut by_log: Vec<(LogName, Vec<RunNo>)> = Vec::new();
    for id in &args.ids {
        let Which::Number(run) = id.which else {
            return Err(Error::new(ErrorKind::Usage, "the latest backup is not dropped by that name")
                .hinted("write its number"));
        };
        let log = select::log(context, repo, id.source.as_ref().or(name), id.kind)?;
        match by_log.iter_mut().find(|(known, _)| *known == log) {
            Some((_, runs)) => runs.push(run),
            None => by_log.push((log, vec![run])),
        }
    }
    Ok(by_log.into_iter().map(|(log, runs)| (log, ExpireRequest::Exactly(runs))).collect())
}

fn policy(keep: &KeepArgs) -> RetentionPolicy {
    RetentionPolicy {
        last: keep.keep_last.unwrap_or(0),
        hourly: keep.keep_hourly.unwrap_or(0),
        daily: keep.keep_daily.unwrap_or(0),
        weekly: keep.keep_weekly.unwrap_or(0),
        monthly: keep.keep_monthly.unwrap_or(0),
        yearly: keep.keep_yearly.unwrap_or(0),
    }
}

fn of_expire(error: ExpireError) -> Error {
    match error {
        ExpireError::NoRules => Error::new(ErrorKind::Usage, error.to_string()),
        ExpireError::NoSuchBackup { .. } => {
            Error::failed(error.to_string()).hinted("\"holdfast list\" shows the backups")
        }
        ExpireError::Held { ref log, run, .. } => {
            let id = list::id(log, run);
            Error::failed(error.to_string())
                .hinted(format!("\"holdfast list\" says why; \"holdfast release {id}\" ends the hold"))
        }
        ExpireError::MayBeHeld { .. } => {
            Error::failed(error.to_string()).hinted(super::repair::MAY_BE_HELD_HINT)
        }
        ExpireError::Begin(error) => error.into(),
        ExpireError::Finish(error) => error.into(),
        ExpireError::Repo(error) => error.into(),
    }
}
