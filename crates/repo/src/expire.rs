//! Expire: dropping backups, by rules or by name. What they alone needed is freed by later prunes.

use std::sync::Arc;

use jiff::{Timestamp, tz::TimeZone};
use thiserror::Error;

use crate::{
    error::RepoError,
    history::History,
    names::{LogName, RunNo},
    outcome::Intent,
    repo::Repo,
    retention::{Candidate, Reason, RetentionPolicy},
    run::{BeginError, Ending, FinishError, Run, RunOptions},
};

/// What is asked for.
#[derive(Clone, Debug)]
pub enum ExpireRequest {
    /// Keep what the rules keep, and in any case the newest backup.
    ByRules {
        /// The rules.
        policy: RetentionPolicy,
        /// Whose days and hours.
        zone: TimeZone,
    },
    /// Drop exactly these.
    Exactly(Vec<RunNo>),
}

/// A backup that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its run.
    pub run: RunNo,
    /// When it ended.
    pub at: Timestamp,
    /// The rules that keep it; none where it was not asked for, or is the last.
    pub reasons: Vec<Reason>,
}

/// What an expire does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpirePlan {
    /// What stays, oldest first.
    pub kept: Vec<Kept>,
    /// What is dropped, oldest first.
    pub dropped: Vec<RunNo>,
}

/// Why nothing was dropped.
#[derive(Debug, Error)]
pub enum ExpireError {
    /// The rules keep nothing.
    #[error("the rules keep no backup at all: give at least one --keep rule")]
    NoRules,
    /// It does not stand.
    #[error("{log} has no backup {run}")]
    NoSuchBackup {
        /// Whose log.
        log: LogName,
        /// What was asked for.
        run: RunNo,
    },
    /// The run could not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The run could not end.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// The repository failed.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

/// What would be dropped.
pub fn plan_expire(history: &History, request: &ExpireRequest) -> Result<ExpirePlan, ExpireError> {
    let candidates: Vec<Candidate> =
        history.standing().map(|outcome| Candidate { run: outcome.run, at: outcome.at }).collect();
    let verdicts: Vec<Option<Vec<Reason>>> = match request {
        ExpireRequest::ByRules { policy, .. } if policy.is_empty() => return Err(ExpireError::NoRules),
        ExpireRequest::ByRules { policy, zone } => {
            let newest = history.newest_backup();
            let reasons = policy.judge(&candidates, zone);
            let keep = |(candidate, reasons): (&Candidate, Vec<Reason>)| {
                (!reasons.is_empty() || newest == Some(candidate.run)).then_some(reasons)
            };
            candidates.iter().zip(reasons).map(keep).collect()
        }
        ExpireRequest::Exactly(runs) => {
            if let Some(run) = runs.iter().find(|run| !history.stands(**run)) {
                return Err(ExpireError::NoSuchBackup { log: history.log().clone(), run: *run });
            }
            candidates.iter().map(|c| (!runs.contains(&c.run)).then(Vec::new)).collect()
        }
    };
    let mut plan = ExpirePlan::default();
    for (candidate, verdict) in candidates.into_iter().zip(verdicts) {
        match verdict {
            Some(reasons) => plan.kept.push(Kept { run: candidate.run, at: candidate.at, reasons }),
            None => plan.dropped.push(candidate.run),
        }
    }
    Ok(plan)
}

/// Drops backups; where there is none to drop, without a run.
pub fn expire(
    repo: &Arc<Repo>,
    log: &LogName,
    request: &ExpireRequest,
    options: &RunOptions,
) -> Result<ExpirePlan, ExpireError> {
    let plan = plan_expire(&History::read(repo, log)?, request)?;
    if plan.dropped.is_empty() {
        return Ok(plan);
    }
    let mut run = Run::begin_as(Intent::Expire, repo, log, options)?;
    // Again, now that nothing can come between.
    let plan = match plan_expire(run.history(), request) {
        Ok(plan) if !plan.dropped.is_empty() => plan,
        nothing => {
            run.abandon("nothing was left to drop")?;
            return nothing;
        }
    };
    run.finish(Ending::Expire { dropped: plan.dropped.clone() })?;
    Ok(plan)
}
