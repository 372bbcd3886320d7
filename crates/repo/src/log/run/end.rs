//! How a run ends: by one outcome, created conditionally.

use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;

use super::{PartCounts, Run, WrittenRefs};
use crate::{
    error::RepoError,
    format::{
        hash::object_hash,
        names::{Folder, LogName, RunNo},
    },
    log::{
        history::History,
        outcome::{self, LostOutcome, OUTCOME_BYTES_MAX, Outcome, OutcomeType, PublicPart, Rebuilt},
    },
    repo::Repo,
    store::{RemoteCause, StoreError, StoreErrorKind, read_listed},
    witness::Seen,
};

/// Why a run could not end as intended.
#[derive(Debug, Error)]
pub enum FinishError {
    /// Another run has ended it: nothing of it counts.
    #[error("run {run} of {log} was ended by another while it ran ({by}): nothing of it counts")]
    Lost {
        /// The log.
        log: LogName,
        /// Its number.
        run: RunNo,
        /// Type of its outcome.
        by: &'static str,
    },
    /// While the run's end was stored, or verified after that, the repository failed for so long that others
    /// may have ended the run. It may have ended as intended.
    #[error("cannot tell whether run {run} of {log} has ended as {wanted}")]
    Unsure {
        /// The log.
        log: LogName,
        /// Its number.
        run: RunNo,
        /// What it was to end as.
        wanted: &'static str,
        /// Its outcome, if that is stored and only may not count.
        outcome: Option<Box<Outcome>>,
        /// The failure.
        #[source]
        cause: Box<RepoError>,
    },
    /// The repository failed, and the run has not ended as intended.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

/// The outcome of a run that has ended as intended, or may have.
#[must_use]
pub fn stored_outcome(ended: &Result<Outcome, FinishError>) -> Option<&Outcome> {
    match ended {
        Ok(outcome) => Some(outcome),
        Err(FinishError::Unsure { outcome, .. }) => outcome.as_deref(),
        Err(_) => None,
    }
}

/// How a run ends.
#[derive(Clone, Debug)]
pub enum Ending {
    /// As a backup.
    Backup {
        /// The manifest head: JSON of at most [`HEAD_BYTES_MAX`](outcome::HEAD_BYTES_MAX).
        head: Vec<u8>,
        /// What the backup needs, as [`Run::write_backup_refs`] stored it.
        refs: WrittenRefs,
        /// How many part numbers it gave out.
        parts: PartCounts,
    },
    /// As a part of an archive: a backup that continues those before it.
    Archive {
        /// The manifest head: JSON of at most [`HEAD_BYTES_MAX`](outcome::HEAD_BYTES_MAX).
        head: Vec<u8>,
        /// What it needs, as [`Run::write_backup_refs`] stored it.
        refs: WrittenRefs,
        /// How many part numbers it gave out.
        parts: PartCounts,
        /// Where it ends, readable by every role.
        tail: Map<String, Value>,
        /// Runs that ended without effect and whose segments it has taken over.
        taken: Vec<RunNo>,
    },
    /// By dropping backups.
    Expire {
        /// The dropped backups.
        dropped: Vec<RunNo>,
    },
    /// By holding backups.
    Hold {
        /// The held backups.
        backups: Vec<RunNo>,
        /// When the hold ends by itself.
        until: Option<Timestamp>,
        /// Why, for people.
        reason: String,
    },
    /// By making anew what was lost.
    Repair {
        /// Outcomes that are lost.
        lost: Vec<LostOutcome>,
        /// Backups that are beyond help.
        dropped: Vec<RunNo>,
        /// Runs whose refs are in `refs`.
        rebuilt: Vec<Rebuilt>,
        /// What was made anew, as [`Run::write_repair_refs`] stored it.
        refs: WrittenRefs,
    },
    /// By releasing backups from their holds.
    Release {
        /// The released backups.
        backups: Vec<RunNo>,
    },
    /// By declaring packs dead and chunks moved.
    Prune {
        /// What it declares, as [`Run::write_prune_refs`] stored it.
        refs: WrittenRefs,
        /// How many part numbers it gave out.
        parts: PartCounts,
    },
}

impl Run {
    /// Why an operation of this run failed. If another has ended the run, what it relied on may be gone by
    /// now, and having lost is the reason.
    #[must_use]
    pub fn lost_or(&self, error: RepoError) -> FinishError {
        self.lost().unwrap_or_else(|| error.into())
    }

    /// [`FinishError::Lost`] if another has ended this run, as far as the repository can tell.
    #[must_use]
    pub fn lost(&self) -> Option<FinishError> {
        let (log, run) = (self.history.log(), self.no);
        let read = || -> Result<Outcome, RepoError> {
            let path = log.outcome(run);
            let info = self.repo.store().head(&path)?;
            let bytes = read_listed(&**self.repo.store(), &info, OUTCOME_BYTES_MAX)?;
            outcome::parse(&self.repo, log, run, &bytes, info.created_at)
        };
        match read() {
            Ok(found) if !self.attempts.contains(&found.hash) => {
                let by = found.outcome_type.as_str();
                Some(FinishError::Lost { log: log.clone(), run, by })
            }
            _ => None,
        }
    }

    /// Ends the run: once this succeeds, its effect is there for everybody and for good.
    pub fn finish(&mut self, ending: Ending) -> Result<Outcome, FinishError> {
        let mut public = self.public_part(OutcomeType::Abandoned, self.why.clone())?;
        let head = match ending {
            Ending::Backup { head, refs, parts } => {
                public.outcome_type = OutcomeType::Backup;
                public.copy_of = self.copy_of.clone();
                public.imported = self.imported;
                public.part = self.part.map(|part| part.id);
                public.rest = self.part.is_some_and(|part| part.is_rest);
                public.report = self.report;
                public.refs = Some(refs.0);
                public.index_parts = parts.index;
                public.pack_parts = parts.pack;
                Some(head)
            }
            Ending::Archive { head, refs, parts, tail, taken } => {
                public.outcome_type = OutcomeType::Backup;
                public.refs = Some(refs.0);
                public.index_parts = parts.index;
                public.pack_parts = parts.pack;
                public.tail = Some(tail);
                public.taken = taken.into_iter().map(|run| run.0).collect();
                Some(head)
            }
            Ending::Expire { dropped } => {
                public.outcome_type = OutcomeType::Expire;
                public.dropped = dropped.into_iter().map(|run| run.0).collect();
                None
            }
            Ending::Hold { backups, until, reason } => {
                public.outcome_type = OutcomeType::Hold;
                public.backups = backups.into_iter().map(|run| run.0).collect();
                public.until = until;
                public.why = reason;
                None
            }
            Ending::Repair { lost, dropped, rebuilt, refs } => {
                public.outcome_type = OutcomeType::Repair;
                public.lost = lost;
                public.dropped = dropped.into_iter().map(|run| run.0).collect();
                public.rebuilt = rebuilt;
                public.refs = Some(refs.0);
                None
            }
            Ending::Release { backups } => {
                public.outcome_type = OutcomeType::Release;
                public.backups = backups.into_iter().map(|run| run.0).collect();
                None
            }
            Ending::Prune { refs, parts } => {
                public.outcome_type = OutcomeType::Prune;
                public.refs = Some(refs.0);
                public.index_parts = parts.index;
                public.pack_parts = parts.pack;
                None
            }
        };
        self.end(&public, head.as_deref())
    }

    /// Ends the run without effect, unless it has already ended.
    /// What a backup stored may be adopted by the next one.
    pub fn abandon(mut self, why: &str) -> Result<(), FinishError> {
        if self.ended { Ok(()) } else { self.end_abandoned(why) }
    }

    /// Leaves the run without an outcome, for others to end.
    pub(crate) fn leave(mut self) {
        self.leave_to_others();
    }

    fn leave_to_others(&mut self) {
        self.ended = true;
        self.thread = None;
        self.renewer.give_up();
    }

    fn end_abandoned(&mut self, why: &str) -> Result<(), FinishError> {
        let public = self.public_part(OutcomeType::Abandoned, why.to_owned())?;
        self.end(&public, None).map(|_| ())
    }

    fn public_part(&self, outcome_type: OutcomeType, why: String) -> Result<PublicPart, RepoError> {
        let public = public_part(&self.repo, &self.history, self.no, outcome_type, &self.host, why)?;
        Ok(PublicPart { intent: Some(self.intent), ..public })
    }

    fn end(&mut self, public: &PublicPart, head: Option<&[u8]>) -> Result<Outcome, FinishError> {
        let (log, no) = (self.history.log().clone(), self.no);
        let bytes = outcome::encode(&self.repo, &log, public, head)?;
        let wanted = public.outcome_type;
        let unsure = |outcome, cause: RepoError| {
            let (log, wanted) = (log.clone(), wanted.as_str());
            FinishError::Unsure { log, run: no, wanted, outcome, cause: Box::new(cause) }
        };
        let mut failed = None;
        let (bytes, created_at) = match self.try_outcome(bytes) {
            Ok(there) => there,
            Err(missed) => {
                let settled = match wanted {
                    OutcomeType::Abandoned => None,
                    _ => Some(self.confirm(&missed.error)),
                };
                match settled {
                    Some(Ok(there)) => {
                        failed = Some(missed.error);
                        there
                    }
                    unsettled => {
                        self.leave_to_others();
                        let is_absent = missed.is_absent
                            || matches!(unsettled, Some(Err(Missed { is_absent: true, .. })));
                        return Err(match is_absent && !may_be_under_way(&missed.error) {
                            true => missed.error.into(),
                            false => unsure(None, missed.error),
                        });
                    }
                }
            }
        };
        self.ended = true;
        self.thread = None;
        let outcome = match outcome::parse(&self.repo, &log, no, &bytes, created_at) {
            Err(error @ RepoError::Store(_)) => return Err(unsure(None, error)),
            parsed => parsed?,
        };
        let lost = |by| Err(FinishError::Lost { log: log.clone(), run: no, by });
        let is_own = self.attempts.contains(&outcome.hash);
        if !is_own || outcome.outcome_type != wanted {
            return match failed.filter(|_| is_own) {
                Some(error) => Err(error.into()),
                None => lost(outcome.outcome_type.as_str()),
            };
        }
        // The key may have been removed since the outcome was signed: then nobody believes it, and it must
        // not be reported as a success. And a run that wakes late may end in the place of an outcome that a
        // repair has named lost: then its outcome counts for nothing.
        match self.repo.require_believed(&log, no).and_then(|()| self.is_named_lost()) {
            Ok(false) => {}
            Ok(true) => return lost(OutcomeType::Repair.as_str()),
            // Neither happens to a run whose lease was alive.
            Err(RepoError::Store(_)) if self.renewer.lived_at(outcome.created_at) => {}
            Err(cause @ RepoError::Store(_)) => return Err(unsure(Some(Box::new(outcome)), cause)),
            Err(error) => return Err(error.into()),
        }
        self.repo.witness().note(&log, Ok(Seen { run: no, outcome: outcome.hash }));
        Ok(outcome)
    }

    /// Creates the outcome, unless there is one already.
    /// Returns the one that is stored, and when it appeared.
    fn try_outcome(&mut self, bytes: Vec<u8>) -> Result<(Vec<u8>, SystemTime), Missed> {
        self.attempts.push(object_hash(&bytes));
        let (store, path) = (&**self.repo.store(), self.history.log().outcome(self.no));
        let error: RepoError = match store.create_if_absent(&path, &bytes) {
            Ok(info) => match self.repo.kept(&path, bytes.len() as u64) {
                // The store has confirmed it, but does not have it, or not all of it.
                Err(error @ RepoError::Damaged { .. }) => error,
                _ => return Ok((bytes, info.created_at)),
            },
            Err(error) => error.into(),
        };
        // Whatever the error says, what is stored decides.
        let info = store.head(&path);
        let is_absent = info.as_ref().is_err_and(StoreError::is_not_found);
        let found =
            info.and_then(|info| Ok((read_listed(store, &info, OUTCOME_BYTES_MAX)?, info.created_at)));
        found.map_err(|_| Missed { error, is_absent })
    }

    /// Settles an attempt that seems to have failed. It may have been carried out all the same, or may be
    /// yet: only another outcome in its place rules that out.
    fn confirm(&mut self, error: &RepoError) -> Result<(Vec<u8>, SystemTime), Missed> {
        let why = format!("its outcome could not be stored: {error}");
        let bytes = self
            .public_part(OutcomeType::Abandoned, why)
            .and_then(|public| outcome::encode(&self.repo, self.history.log(), &public, None))
            .map_err(|error| Missed { error, is_absent: false })?;
        self.try_outcome(bytes)
    }

    /// Whether a repair that came before the outcome of this run has named it lost.
    fn is_named_lost(&self) -> Result<bool, RepoError> {
        let (log, no) = (self.history.log(), self.no);
        let newest = self.repo.list_folder(log, Folder::Outcomes)?.last_key_value().map(|(key, _)| key.0);
        Ok(newest > Some(no) && History::salvage(&self.repo, log, &mut |_, _| {})?.is_lost(no))
    }
}

/// Why an outcome could not be created.
struct Missed {
    error: RepoError,
    /// Whether the store has said since that there is no outcome.
    is_absent: bool,
}

/// Whether the failed operation may still be carried out later by something on the way to the store.
fn may_be_under_way(error: &RepoError) -> bool {
    use RemoteCause::{Busy, Other, Unconfirmed, Unreachable, Untrusted};
    let RepoError::Store(StoreError { kind: StoreErrorKind::Remote(remote), .. }) = error else {
        return false;
    };
    matches!(remote.cause, Unreachable | Untrusted | Busy | Unconfirmed | Other)
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ended {
            // A courtesy to the next run, which would otherwise wait for the lease to run out.
            if self.end_abandoned("ended without giving a reason").is_err() && !self.ended {
                self.leave_to_others();
            }
        }
    }
}

pub(super) fn public_part(
    repo: &Repo,
    history: &History,
    run: RunNo,
    outcome_type: OutcomeType,
    host: &str,
    why: String,
) -> Result<PublicPart, RepoError> {
    let bare = PublicPart::bare(run, outcome_type, history.last_hash(), repo.now()?);
    Ok(PublicPart { host: host.to_owned(), why, ..bare })
}
