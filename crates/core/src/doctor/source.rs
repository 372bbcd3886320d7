//! How recent the backups of a source are, and what is known of them.

use std::{collections::BTreeSet, time::Duration};

use holdfast_repo::{
    Kind, LogName, Repo, RunNo,
    format::manifest::DAMAGED_PAGES,
    log::{history::History, run},
    ops::suspects,
};
use jiff::{SignedDuration, Timestamp};

use super::finding::{Finding, Findings};
use crate::{
    error::{Error, ErrorKind, Result},
    head::read_heads,
};

/// Where backups are taken at all, an older newest backup means that one is overdue.
const OLD: Duration = Duration::from_secs(48 * 3600);
pub(super) const TAKEN_STILL: &str = "does the job that takes backups still run?";
/// The clocks of hosts differ by less than this.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_hours(1);

/// What a source has of one kind.
pub(super) enum Stands {
    Nothing,
    /// Only imported dumps.
    Imports,
    Backups,
}

/// The finding for a source of which no backup stands, but perhaps something else.
fn nothing_taken(repo: &Repo, log: &LogName, history: &History) -> Result<Finding> {
    let imports: Vec<RunNo> = history.standing().map(|outcome| outcome.run).collect();
    Ok(match &imports[..] {
        [] if log.kind == Kind::Binlog => {
            if run::active(repo, log)?.is_some_and(|run| !run.keeps_house()) {
                Finding::good(format!("{log}: an archiver is running, and no run of it has ended yet"))
            } else {
                Finding::notice(
                    format!("{log}: no finished run has archived anything"),
                    "continue with \"holdfast binlog archive\"",
                )
            }
        }
        [] => Finding::notice(format!("{log} has no backup"), "take one"),
        [only] => Finding::good(format!("{log}: one import stands, {only}: no age limit applies to it")),
        [.., newest] => Finding::good(format!(
            "{log}: {} imports stand, the newest is {newest}: no age limit applies to them",
            imports.len()
        )),
    })
}

/// Examines one kind of a source: it is a problem if its newest backup is older than `age_max`.
pub(super) fn source(
    repo: &Repo,
    log: &LogName,
    age_max: Option<Duration>,
    findings: &Findings,
) -> Result<Stands> {
    let history = History::salvage(repo, log, &mut |run, error| {
        findings.add(Error::from(error).context(format!("{log} {run}")));
    })?;
    let taken = Taken::read(repo, &history, findings)?;
    match &taken.newest {
        Some(newest) => findings.add(age(log, taken.count, newest, age_max)),
        None if taken.count == 0 => findings.add(nothing_taken(repo, log, &history)?),
        // None of those taken can be read, which findings say already.
        None => {}
    }
    if repo.can_read() {
        let found = suspected(log, &suspects(repo, &history)?, taken.newest.as_ref());
        found.into_iter().for_each(|finding| findings.add(finding));
    }
    let others = [with_damaged_pages(log, &taken.damaged), unfinished(log, &history)];
    others.into_iter().flatten().for_each(|finding| findings.add(finding));
    Ok(match taken.newest {
        Some(_) => Stands::Backups,
        None if taken.count == 0 && history.standing().next().is_some() => Stands::Imports,
        None => Stands::Nothing,
    })
}

/// The backups that were taken, and not imported.
struct Taken {
    count: usize,
    newest: Option<Newest>,
    /// Those for which the source had damaged pages.
    damaged: Vec<RunNo>,
}

/// The newest whole backup or, if there is none, the newest of a part.
struct Newest {
    run: RunNo,
    finished_at: Timestamp,
    is_whole: bool,
}

impl Taken {
    fn read(repo: &Repo, history: &History, findings: &Findings) -> Result<Self> {
        let taken: Vec<_> = history.standing().filter(|outcome| !outcome.imported).collect();
        let (mut ended, mut damaged) = (Vec::new(), Vec::new());
        if repo.can_read() {
            let runs: Vec<RunNo> = taken.iter().map(|outcome| outcome.run).collect();
            read_heads(repo, history, &runs, |run, head| {
                let head = match head {
                    Err(error) if error.kind() == ErrorKind::Damaged => {
                        findings.add(error);
                        return Ok(());
                    }
                    head => head?,
                };
                if head.flags.iter().any(|flag| flag == DAMAGED_PAGES) {
                    damaged.push(run);
                }
                ended.push((run, head.finished_at));
                Ok(())
            })?;
        } else {
            ended.extend(taken.iter().map(|outcome| (outcome.run, outcome.taken_at())));
        }
        let is_whole = |run: RunNo| taken.iter().any(|outcome| outcome.run == run && outcome.part.is_none());
        let newest = ended.iter().rev().find(|(run, _)| is_whole(*run)).or(ended.last());
        let newest = newest.map(|&(run, finished_at)| Newest { run, finished_at, is_whole: is_whole(run) });
        Ok(Self { count: taken.len(), newest, damaged })
    }
}

/// How old the newest of `count` backups is.
fn age(log: &LogName, count: usize, newest: &Newest, age_max: Option<Duration>) -> Finding {
    let one = if log.kind == Kind::Binlog { "run" } else { "backup" };
    let standing = match count {
        1 => format!("one {one} stands"),
        count => format!("{count} {one}s stand"),
    };
    let Newest { run, finished_at, is_whole } = newest;
    let what = if *is_whole { "" } else { " of a part" };
    let text = format!("{log}: {standing}; the newest{what}, {run}, is from {finished_at:.0}");
    match age_max {
        Some(age_max) if is_old(*finished_at, age_max) => {
            Error::failed(format!("{text}: older than the limit")).hinted(TAKEN_STILL).into()
        }
        // How far an archive reaches does not depend on when its last run ended.
        None if log.kind != Kind::Binlog && is_old(*finished_at, OLD) => {
            Finding::notice(format!("{text}: older than two days, or dated in the future"), TAKEN_STILL)
        }
        _ => Finding::good(text),
    }
}

/// Backups that need data in which a check has found damage.
fn suspected(log: &LogName, suspects: &BTreeSet<RunNo>, newest: Option<&Newest>) -> Option<Finding> {
    if suspects.is_empty() {
        return None;
    }
    let ids: Vec<String> = suspects.iter().map(|run| log.backup_id(*run)).collect();
    let text = format!("a check has found damage in data that is needed by {}", ids.join(", "));
    let hint = match log.kind {
        Kind::Binlog => {
            "\"holdfast check\" tells what is lost; \"holdfast binlog list\" shows what is archived"
        }
        _ => {
            "\"holdfast check\" tells what is lost; the next backup stores damaged data again, if the server \
              still has it"
        }
    };
    // Whoever needs a backup now would need that one.
    Some(match newest.is_some_and(|newest| suspects.contains(&newest.run)) {
        true => Error::failed(text).hinted(hint).into(),
        false => Finding::notice(text, hint),
    })
}

fn with_damaged_pages(log: &LogName, damaged: &[RunNo]) -> Option<Finding> {
    let runs: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    let text = format!("{log}: the source had damaged pages when these were taken: {}", runs.join(" "));
    let hint = "\"holdfast report\" names the pages; repair the server, and take a backup without \
         --allow-corrupt";
    (!runs.is_empty()).then(|| Finding::notice(text, hint))
}

/// Runs that ended before they were complete. A run of an archiver to which nothing came ends without effect.
fn unfinished(log: &LogName, history: &History) -> Option<Finding> {
    let count = if log.kind == Kind::Binlog { 0 } else { history.adoptable().len() };
    let ended = match count {
        0 => return None,
        1 => "a run ended before it was complete".to_owned(),
        count => format!("{count} runs ended before they were complete"),
    };
    let hint = "the next backup reuses what was stored; why a run ended is in its messages";
    Some(Finding::notice(format!("{log}: {ended}"), hint))
}

/// Whether a backup is too old, or from a future that only a wrong clock can have shown.
pub(super) fn is_old(at: Timestamp, age_max: Duration) -> bool {
    let age = Timestamp::now().duration_since(at);
    age < -CLOCKS_DIFFER || Duration::try_from(age).is_ok_and(|age| age > age_max)
}
