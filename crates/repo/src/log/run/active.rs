//! What a log is doing: whether one of its runs is alive, and which, so that no other can begin.

use std::{collections::BTreeSet, fmt, time::SystemTime};

use jiff::Timestamp;
use thiserror::Error;

use crate::{
    error::RepoError,
    format::names::{Folder, Kind, LogName, RunNo},
    log::{
        client::ProcessId,
        history::foreseen_from,
        lease::{LeaseState, look},
        outcome::Intent,
    },
    repo::Repo,
};

/// Leases to look at, at most. Usually there is one; others are made up, or left by runs whose outcomes are lost.
const LOOKS_MAX: usize = 64;

/// Another run that is alive.
#[derive(Clone, Debug)]
pub struct ActiveRun {
    /// The log.
    pub log: LogName,
    /// Its number.
    pub run: RunNo,
    /// When it began, by the store's clock.
    pub started_at: SystemTime,
    /// Its last lease renewal, by the store's clock.
    pub renewed_at: SystemTime,
    /// Its process, if it recorded that.
    pub process: Option<ProcessId>,
    /// The name of its host, if it recorded that and the key at hand opens it.
    pub host: Option<String>,
    /// What it is to become, if it recorded that.
    pub intent: Option<Intent>,
    /// Whether it ends soon when it is asked to.
    pub makes_room: bool,
}

impl ActiveRun {
    pub(super) fn new(log: &LogName, run: RunNo, lease: LeaseState) -> Self {
        let LeaseState { started_at, renewed_at, intent, process, host, makes_room, is_alive: _ } = lease;
        Self { log: log.clone(), run, started_at, renewed_at, process, host, intent, makes_room }
    }

    /// Whether it drops, prunes, holds or repairs, so that its end is worth waiting for.
    #[must_use]
    pub fn keeps_house(&self) -> bool {
        self.intent.is_some_and(|intent| intent != Intent::Backup)
    }
}

impl fmt::Display for ActiveRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "run {} of {} is active: {} began at {} and last renewed its lease at {}",
            self.run,
            self.log,
            who(self),
            when(self.started_at),
            when(self.renewed_at)
        )
    }
}

/// What a log is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its last run has ended, or there was none.
    Idle,
    /// A run is under way.
    Alive,
    /// A run has begun and not ended, and its lease has run out: the next one to begin takes its place.
    Dead,
}

/// Finds out what a log is doing. Changes nothing.
pub fn standing(repo: &Repo, log: &LogName) -> Result<Standing, RepoError> {
    Ok(match newest(repo, log)? {
        Some((_, lease)) if lease.is_alive => Standing::Alive,
        Some(_) => Standing::Dead,
        None => Standing::Idle,
    })
}

/// The run that is under way, if any. Changes nothing.
pub fn active(repo: &Repo, log: &LogName) -> Result<Option<ActiveRun>, RepoError> {
    let alive = newest(repo, log)?.filter(|(_, lease)| lease.is_alive);
    Ok(alive.map(|(run, lease)| ActiveRun::new(log, run, lease)))
}

/// The run that has begun and not ended: one that is alive, or else the last after all outcomes.
///
/// Anybody who can write to the store can make up leases and the names of outcomes. So a made-up one hides no
/// run that is alive, and a lease too far ahead to be of any run is ignored.
fn newest(repo: &Repo, log: &LogName) -> Result<Option<(RunNo, LeaseState)>, RepoError> {
    let runs = |folder| -> Result<BTreeSet<RunNo>, RepoError> {
        Ok(repo.list_folder(log, folder)?.into_keys().map(|(run, _)| run).collect())
    };
    // Leases first: a run that ends between the two lists must not look like one that is still under way.
    let (mut begun, ended) = (runs(Folder::Runs)?, runs(Folder::Outcomes)?);
    begun.retain(|run| !ended.contains(run));
    let next = next_by_name(&ended);
    let likely_first = begun.range(next..=foreseen_from(next)).chain(begun.range(..next).rev());
    let mut dead = None;
    for run in likely_first.take(LOOKS_MAX) {
        match look(repo, log, *run)? {
            Some(lease) if lease.is_alive => return Ok(Some((*run, lease))),
            // What an earlier run has left says nothing of what the log is doing.
            Some(lease) if *run >= next => dead = Some((*run, lease)),
            _ => {}
        }
    }
    Ok(dead)
}

/// The number after the last outcome that may be of a run, by their names alone: outcomes may be missing
/// between them, and some may be made up.
fn next_by_name(ended: &BTreeSet<RunNo>) -> RunNo {
    let mut next = RunNo(1);
    for run in ended {
        if *run > foreseen_from(next) {
            break;
        }
        next = RunNo(run.0.saturating_add(1));
    }
    next
}

/// What the run is and where it runs, as far as it recorded that.
fn who(active: &ActiveRun) -> String {
    let what = match active.intent {
        Some(Intent::Backup) if active.log.kind == Kind::Binlog => "an archiver",
        Some(Intent::Backup) => "a backup",
        Some(Intent::Expire) => "an expiry",
        Some(Intent::Prune) => "a prune",
        Some(Intent::Hold) => "a hold or release",
        Some(Intent::Repair) => "a repair",
        None => "it",
    };
    match (active.process, &active.host) {
        (Some(process), _) if process.is_of_this_host() => {
            format!("{what} (process {} of this host)", process.pid)
        }
        // Containers and restarts of a host can share its name.
        (Some(process), Some(host)) => format!("{what} (process {} on {host})", process.pid),
        (None, Some(host)) => format!("{what} (on {host})"),
        (Some(_), None) => format!("{what} (on another host, or in another container)"),
        (None, None) => what.to_owned(),
    }
}

fn when(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "an unknown time".to_owned(), |time| format!("{time:.0}"))
}

/// Why a run could not begin.
#[derive(Debug, Error)]
pub enum BeginError {
    /// Another run is active.
    #[error("{0}")]
    Active(Box<ActiveRun>),
    /// Other runs kept beginning first.
    #[error("other runs of {log} kept beginning first")]
    Crowded {
        /// The log.
        log: LogName,
    },
    /// The lease thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The repository failed.
    #[error(transparent)]
    Repo(#[from] RepoError),
}
