//! What a backup says of itself: its manifest head and its report.

use super::History;
use crate::{
    error::{Damage, RepoError},
    format::{
        hash::{ObjectHash, object_hash},
        names::{LogName, RunNo},
        place::{ObjectKind, Place},
    },
    log::outcome::{self, OUTCOME_BYTES_MAX, REPORT_BYTES_MAX},
    repo::Repo,
    sealed::sealed_limit_bytes,
    store::{ObjectInfo, ahead::in_order, read_known, read_listed},
};

impl History {
    /// The manifest head of a backup, as JSON.
    pub fn head(&self, repo: &Repo, run: RunNo) -> Result<Vec<u8>, RepoError> {
        let path = self.log.outcome(run);
        let recorded = self.outcome(run).ok_or_else(|| RepoError::damaged(&path, Damage::Missing))?;
        let info = ObjectInfo {
            path: path.clone(),
            size_bytes: recorded.size_bytes,
            created_at: recorded.created_at,
        };
        let bytes = read_listed(&**repo.store(), &info, OUTCOME_BYTES_MAX).map_err(RepoError::of_needed)?;
        if object_hash(&bytes) != recorded.hash {
            return Err(RepoError::damaged(&path, Damage::NotAsRecorded));
        }
        outcome::open_head(repo, &self.log, run, &bytes)
    }

    /// The report of a backup, as JSON: what its outcome recorded, if it did.
    pub fn report(&self, repo: &Repo, run: RunNo) -> Result<Vec<u8>, RepoError> {
        let recorded = self.outcome(run).and_then(|outcome| outcome.report);
        read_report(repo, &self.log, run, recorded, None)
    }

    /// Reads the manifest heads of several backups, several at a time if the store is far away.
    /// `each` gets them in order, or what is wrong with one object.
    pub fn heads<E: From<RepoError> + Send>(
        &self,
        repo: &Repo,
        runs: &[RunNo],
        mut each: impl FnMut(RunNo, Result<Vec<u8>, RepoError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let fetch = |run: &RunNo| match self.head(repo, *run) {
            Err(error) if !error.is_of_the_object() => Err(E::from(error)),
            head => Ok(head),
        };
        in_order(repo.store().reads_at_once(), runs, fetch, |run, head| each(*run, head))
    }
}

/// The report of `run`, an object that a listing may have returned, if it is the one whose hash its outcome has
/// recorded. Older outcomes have none.
pub(crate) fn read_report(
    repo: &Repo,
    log: &LogName,
    run: RunNo,
    recorded: Option<ObjectHash>,
    listed: Option<&ObjectInfo>,
) -> Result<Vec<u8>, RepoError> {
    let place = Place { log, kind: ObjectKind::Report, run, part: 0 };
    let object = read_known(&**repo.store(), &place.path(), listed, sealed_limit_bytes(REPORT_BYTES_MAX))?;
    if recorded.is_some_and(|recorded| recorded != object_hash(&object)) {
        return Err(RepoError::damaged(place, Damage::NotAsRecorded));
    }
    repo.open_object(&place, &object, REPORT_BYTES_MAX)
}
