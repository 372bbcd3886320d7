//! How far the logs have come when a key is removed.

use std::{collections::BTreeMap, sync::Mutex};

use holdfast_pipe::lock::lock;

use super::ATTEMPTS;
use crate::{
    error::RepoError,
    format::{
        hash::ObjectHash,
        names::{Kind, LogName, RunNo},
    },
    log::{history::History, lease},
    repo::Repo,
    store::{ahead::in_order, exists},
};

/// How far each log has come. Object names, which anybody can create, say nothing about that.
pub(super) struct Newest {
    /// Whether runs that are under way may end.
    may_end: bool,
    pub(super) logs: BTreeMap<LogName, Known>,
}

/// How far a log has come.
pub(super) struct Known {
    pub(super) history: History,
    /// The run after the history, if it may end.
    under_way: Option<RunNo>,
}

impl Known {
    fn last(&self) -> RunNo {
        RunNo(self.history.next_unforeseen().0 - 1)
    }
}

impl Newest {
    pub(super) fn new(may_end: bool) -> Self {
        Self { may_end, logs: BTreeMap::new() }
    }

    /// Looks until nothing has been added since the previous look, at most [`ATTEMPTS`] times.
    pub(super) fn catch_up(&mut self, repo: &Repo) -> Result<(), RepoError> {
        for _ in 0..ATTEMPTS {
            let before = self.seen();
            self.look(repo)?;
            if self.seen() == before {
                break;
            }
        }
        Ok(())
    }

    /// Looks at all logs, several at a time if the store is far away.
    pub(super) fn look(&mut self, repo: &Repo) -> Result<(), RepoError> {
        let mut known = std::mem::take(&mut self.logs);
        let mut logs = Vec::new();
        for log in repo.logs()? {
            let history = match known.remove(&log) {
                Some(known) => known.history,
                // This reads all of it, and several outcomes at a time already.
                None => History::salvage(repo, &log, &mut |_, _| {})?,
            };
            logs.push((log, Mutex::new(Some(history))));
        }
        let may_end = self.may_end;
        let fetch = |(log, history): &(LogName, Mutex<Option<History>>)| {
            let history = lock(history).take();
            let history = match history.map(|mut history| history.refresh(repo).map(|()| history)) {
                Some(Ok(history)) => history,
                Some(Err(error)) if !matches!(error, RepoError::History { .. }) => return Err(error),
                _ => History::salvage(repo, log, &mut |_, _| {})?,
            };
            let next = history.next_unforeseen();
            let may_end = may_end && (is_alive(repo, log, next)? || has_segments(repo, log, next)?);
            Ok(Known { history, under_way: may_end.then_some(next) })
        };
        in_order(repo.store().reads_at_once(), &logs, fetch, |(log, _), newest| {
            self.logs.insert(log.clone(), newest);
            Ok(())
        })
    }

    pub(super) fn seen(&self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        (self.runs(), self.may_end())
    }

    pub(super) fn runs(&self) -> BTreeMap<String, u64> {
        // In a log without an outcome, there is nothing to be believed.
        let ended = self.logs.iter().filter(|(_, known)| known.last() > RunNo(0));
        ended.map(|(log, known)| (log.to_string(), known.last().0)).collect()
    }

    /// Hashes of the outcomes of these runs.
    pub(super) fn tips(&self) -> BTreeMap<String, ObjectHash> {
        let tip = |known: &Known| Some(known.history.outcome(known.last())?.hash);
        self.logs.iter().filter_map(|(log, known)| Some((log.to_string(), tip(known)?))).collect()
    }

    /// Runs that are under way, and may end.
    pub(super) fn may_end(&self) -> BTreeMap<String, u64> {
        self.logs.iter().filter_map(|(log, known)| Some((log.to_string(), known.under_way?.0))).collect()
    }
}

fn is_alive(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    Ok(lease::look(repo, log, run)?.is_some_and(|lease| lease.is_alive))
}

/// Whether a run of an archiver has left segments, which the next one takes over.
fn has_segments(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    Ok(log.kind == Kind::Binlog && exists(&**repo.store(), &log.segment(run, 0))?)
}
