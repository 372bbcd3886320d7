//! `expire`: drops backups by rules or by name.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use holdfast_core::{Error, ErrorKind, Event, Listener as _, Result, binlog::Archive};
use holdfast_repo::{
    Act, Kind, LogName, Repo, RunNo, SourceName,
    log::{history::History, outcome::Outcome, run::active},
    ops::{
        expire::{self, ExpireError, ExpirePlan, ExpireRequest, Rules, expire, plan_expire},
        retention::RetentionPolicy,
        space::freed_by,
    },
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde::Serialize;

use super::{Context, repository, select};
use crate::{
    args::{
        backup_ref::BackupNo,
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

/// What was kept and dropped.
#[derive(Serialize)]
struct Expired {
    dry_run: bool,
    kept: Vec<Kept>,
    dropped: Vec<Dropped>,
    /// Roughly what prune would free as a result.
    /// Only for dry runs, and only where everything that a backup needs can be read.
    freed_bytes: Option<u64>,
    /// Whether backups were named instead of rules.
    #[serde(skip)]
    is_by_name: bool,
}

impl Render for Expired {
    fn render(&self, out: &mut String) -> fmt::Result {
        let kept = self.kept.iter().map(|kept| {
            let why = match &kept.reasons[..] {
                [] if self.is_by_name => "not named".to_owned(),
                [] => "last".to_owned(),
                reasons => reasons.join(" "),
            };
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
    let mut expired = Expired {
        dry_run: args.dry_run,
        kept: Vec::new(),
        dropped: Vec::new(),
        freed_bytes: None,
        is_by_name: !args.ids.is_empty(),
    };
    if args.ids.is_empty() && !repo.can_read() {
        let text = "only an operator's key can tell whether backups contain damaged pages: regardless of \
                    the rules, the newest backup of each source is kept, and the newest one that has lost \
                    nothing since";
        context.output.event(Event::Note { text: text.to_owned() });
    }
    let mut looked = Vec::new();
    for (log, request) in requests(args, context, &repo)? {
        context.cancel.check()?;
        let history = History::read(&repo, &log)?;
        // Asking for the store's clock writes an object, which a dry run must not do.
        let now = if args.dry_run { Timestamp::now() } else { repo.now()? };
        let plan = plan_expire(&repo, &history, &request, now).map_err(of_expire)?;
        looked.push((log, request, history, plan));
    }
    // A refusal for one source must come before anything is dropped of another.
    let expire_all = || {
        let mut done = Vec::new();
        for looked in looked {
            done.push(expired.carry_out(looked, args, context, &repo)?);
        }
        if args.ids.is_empty() && args.kind.is_none() {
            // Only now is it known what is kept: a backup may be held since it was looked at.
            for unneeded in unneeded_binlogs(args, context, &repo, &done)? {
                expired.carry_out(unneeded, args, context, &repo)?;
            }
        }
        Ok(Exit::Done)
    };
    let done = expire_all();
    let is_any = !expired.dropped.is_empty();
    context.output.ended(done, &expired, is_any)
}

impl Expired {
    /// Drops what is planned, or what a plan made then says. Returns that plan. A dry run drops nothing.
    fn carry_out(
        &mut self,
        looked: Looked,
        args: &ExpireArgs,
        context: &Context<'_>,
        repo: &Arc<Repo>,
    ) -> Result<Looked> {
        let (log, request, history, mut plan) = looked;
        if args.dry_run {
            match freed_by(repo, &history, &plan.dropped, &context.cancel.interrupt()) {
                Ok(bytes) => *self.freed_bytes.get_or_insert(0) += bytes,
                Err(error) => {
                    context.output.warning(format!("cannot determine how much would be freed: {error}"));
                }
            }
        } else {
            context.cancel.check()?;
            let done = expire(repo, &log, &request, &context.run_options()).map_err(of_expire);
            plan = done.map_err(|error| error.context(&log))?;
        }
        self.add(&history, &plan);
        Ok((log, request, history, plan))
    }

    fn add(&mut self, history: &History, plan: &ExpirePlan) {
        let log = history.log();
        self.kept.extend(shown(history, plan));
        self.dropped.extend(plan.dropped.iter().filter_map(|run| {
            let finished_at = history.outcome(*run)?.taken_at();
            Some(Dropped { id: log.backup_id(*run), finished_at })
        }));
    }
}

fn shown(history: &History, plan: &ExpirePlan) -> Vec<Kept> {
    let kept = plan.kept.iter().map(|kept| Kept {
        id: history.log().backup_id(kept.run),
        finished_at: kept.at,
        reasons: kept.reasons.iter().map(ToString::to_string).collect(),
    });
    kept.collect()
}

/// A time that is certainly before the backup's position, whatever its kind and whichever key asks: the
/// preceding run had ended before this one began.
/// A copy began elsewhere, and its end time is only what it claims. Returns `None` if no run came before.
fn not_before(history: &History, run: RunNo, at: Timestamp) -> Option<Timestamp> {
    let before = history.outcomes().iter().rev().find(|outcome| outcome.run < run)?;
    Some(before.at.min(at.checked_sub(POSITION_AGE_MIN).unwrap_or(Timestamp::MIN)))
}

/// How far before its end a backup's position is assumed to be, at the least.
const POSITION_AGE_MIN: SignedDuration = SignedDuration::from_hours(24);

/// A log, the request for it, its history, and the resulting plan.
type Looked = (LogName, ExpireRequest, History, ExpirePlan);

/// Applies retention to binlog archives.
/// Rules count backups; archives keep whatever recovery from a kept backup may need.
/// The time of that backup bounds how far back this goes.
/// If the archive can be read, the backup's position also bounds it.
fn unneeded_binlogs(
    args: &ExpireArgs,
    context: &Context<'_>,
    repo: &Arc<Repo>,
    looked: &[Looked],
) -> Result<Vec<Looked>> {
    let kept = looked.iter().flat_map(|(_, _, history, plan)| {
        continued(history, plan).map(|kept| not_before(history, kept.run, kept.at))
    });
    // If any start time is unknown, all binlogs may be needed.
    let begun: Option<Vec<Timestamp>> = kept.collect();
    let Some(oldest) = begun.and_then(|begun| begun.into_iter().min()) else { return Ok(Vec::new()) };
    let logs = select::logs_of_source(context, repo, args.name.name.as_ref())?;
    let oldest = under_way(repo, &logs)?.map_or(oldest, |begun| begun.min(oldest));
    let mut unneeded = Vec::new();
    for log in logs.into_iter().filter(|log| log.kind == Kind::Binlog) {
        let history = History::read(repo, &log)?;
        let mut dropped = ended_before(&history, oldest);
        if !dropped.is_empty() && repo.can_read() {
            match needed_from(repo, &log.source, looked) {
                Ok(needed_from) => dropped.retain(|run| needed_from.is_none_or(|first| *run < first)),
                Err(error) => {
                    let text = format!(
                        "{log}: cannot determine which runs are needed, so nothing is dropped: {error}"
                    );
                    context.output.warning(text);
                    continue;
                }
            }
        }
        if dropped.is_empty() {
            continue;
        }
        let request = ExpireRequest::Chosen(dropped);
        match plan_expire(repo, &history, &request, Timestamp::now()) {
            Ok(plan) if plan.dropped.is_empty() => {}
            Ok(plan) => unneeded.push((log, request, history, plan)),
            Err(error @ ExpireError::MayBeHeld { .. }) => {
                let hint = super::repair::MAY_BE_HELD_HINT;
                context.output.warning(format!("{error}, so nothing of it is dropped: {hint}"));
            }
            Err(error) => return Err(of_expire(error)),
        }
    }
    Ok(unneeded)
}

/// A time before the position of any backup that is under way, if one is.
fn under_way(repo: &Repo, logs: &[LogName]) -> Result<Option<Timestamp>> {
    let mut first = None;
    for log in logs.iter().filter(|log| log.kind != Kind::Binlog) {
        if let Some(run) = active(repo, log)? {
            let begun = Timestamp::try_from(run.started_at).unwrap_or(Timestamp::MIN);
            first = first.into_iter().chain([begun]).min();
        }
    }
    Ok(first)
}

/// Kept backups from which recovery may continue. The newest of a list of exclusions, kept only as such, does
/// not count.
fn continued<'a>(history: &'a History, plan: &'a ExpirePlan) -> impl Iterator<Item = &'a expire::KeptBackup> {
    let newest = history.newest_taken();
    let is_continued = move |kept: &&expire::KeptBackup| {
        let outcome = history.outcome(kept.run);
        let is_left_over = kept.reasons.is_empty()
            && Some(kept.run) != newest
            && outcome.is_some_and(|it| it.part.is_some());
        outcome.is_none_or(Outcome::can_be_continued) && !is_left_over
    };
    plan.kept.iter().filter(is_continued)
}

/// The first run of an archive that is needed to recover from any kept backup of its source,
/// whatever the backup's kind.
fn needed_from(repo: &Arc<Repo>, source: &SourceName, looked: &[Looked]) -> Result<Option<RunNo>> {
    let archive = Archive::open(repo, source)?;
    if let Some(unreadable) = archive.unreadable().first() {
        return Err(Error::failed(unreadable.problem.clone()));
    }
    let mut first: Option<RunNo> = None;
    for (log, _, history, plan) in looked.iter().filter(|(log, ..)| log.source == *source) {
        let kept: Vec<RunNo> = continued(history, plan).map(|kept| kept.run).collect();
        let needed = archive.needed_from(log.kind, &kept)?;
        first = first.into_iter().chain(needed).min();
    }
    Ok(first)
}

/// The runs of an archive that ended before the `oldest` backup began, except the last of them that an archiver
/// has ended.
/// If the server was idle, the backup's position is the end of that last run, and no later run contains it.
fn ended_before(history: &History, oldest: Timestamp) -> Vec<RunNo> {
    let ended: Vec<&Outcome> = history.standing().take_while(|outcome| outcome.at < oldest).collect();
    let last = ended.iter().rev().find(|outcome| !outcome.is_filing()).map(|outcome| outcome.run);
    ended.iter().map(|outcome| outcome.run).filter(|run| Some(*run) != last).collect()
}

/// The request for each log.
/// Named backups may belong to several sources; rules apply to the logs of one source.
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
        let BackupNo::Number(run) = id.which else {
            return Err(Error::new(ErrorKind::Usage, "expire does not accept \"latest\"")
                .hinted("name the backup by its number"));
        };
        let log = select::log(context, repo, id.source.as_ref().or(name), id.kind)?;
        match by_log.iter_mut().find(|(known, _)| *known == log) {
            Some((_, runs)) => runs.push(run),
            None => by_log.push((log, vec![run])),
        }
    }
    // The remaining archive itself shows until when it can recover.
    let request = |log: &LogName, runs| match args.last_too || log.kind == Kind::Binlog {
        true => ExpireRequest::Exactly(runs),
        false => ExpireRequest::Named(runs),
    };
    let requests = by_log.into_iter().map(|(log, runs)| {
        let request = request(&log, runs);
        (log, request)
    });
    Ok(requests.collect())
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
            let id = log.backup_id(run);
            Error::failed(error.to_string())
                .hinted(format!("\"holdfast list\" says why; \"holdfast release {id}\" ends the hold"))
        }
        ExpireError::LastGood { .. } => Error::failed(error.to_string())
            .hinted("take a backup before it is dropped; --last-too drops it all the same"),
        ExpireError::MayBeHeld { .. } => {
            Error::failed(error.to_string()).hinted(super::repair::MAY_BE_HELD_HINT)
        }
        ExpireError::Begin(error) => error.into(),
        ExpireError::Finish(error) => error.into(),
        ExpireError::Repo(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_repo::{
        Protection,
        format::refs::BackupRefs,
        log::run::{Ending, PartCounts, Run, RunOptions},
        store::mem::{ManualClock, MemStore},
    };

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_archive_stays_from_the_run_on_that_ends_where_a_kept_backup_may_stand() {
        let clock = ManualClock::default();
        let store = Arc::new(MemStore::with_clock(clock.clone()));
        let repo = Arc::new(Repo::init(store, &Protection::None).unwrap());
        let log = |kind| LogName { source: "db1".parse().unwrap(), kind };
        let run = |kind, lasts: Duration| {
            let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
            let mut run = Run::begin(&repo, &log(kind), &options).unwrap();
            let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
            clock.advance(lasts);
            let ending = Ending::Backup { head: b"{}".to_vec(), refs, parts: PartCounts::default() };
            run.finish(ending).unwrap().at
        };
        let first = run(Kind::Logical, HOUR);
        for _ in 0..3 {
            run(Kind::Binlog, HOUR);
        }
        // Idle for days, followed by a backup that takes two days.
        clock.advance(48 * HOUR);
        let before = run(Kind::Logical, HOUR);
        let at = run(Kind::Logical, 48 * HOUR);
        run(Kind::Binlog, HOUR);

        let history = |kind| History::read(&repo, &log(kind)).unwrap();
        let backups = history(Kind::Logical);
        assert_eq!(not_before(&backups, RunNo(1), first), None);
        assert_eq!(not_before(&backups, RunNo(2), before), Some(first.min(before - POSITION_AGE_MIN)));
        assert_eq!(not_before(&backups, RunNo(3), at), Some(before));
        // What a signer claims may be any time.
        assert_eq!(not_before(&backups, RunNo(3), Timestamp::MIN), Some(Timestamp::MIN));
        assert_eq!(ended_before(&history(Kind::Binlog), before), [RunNo(1), RunNo(2)]);
        assert_eq!(ended_before(&history(Kind::Binlog), first), []);
    }
}
