//! Objects by which runs ask another run of the log to end soon. They are readable without a key, and say nothing.

use crate::{
    error::RepoError,
    format::names::{LogName, RunNo},
    repo::Repo,
    store::exists,
};

/// Whether another run has asked `run` to end.
pub(crate) fn is_asked_for(repo: &Repo, log: &LogName, run: RunNo) -> Result<bool, RepoError> {
    Ok(exists(&**repo.store(), &log.ask(run))?)
}

/// Asks `run` to end.
pub(super) fn ask(repo: &Repo, log: &LogName, run: RunNo) -> Result<(), RepoError> {
    match repo.store().create_if_absent(&log.ask(run), b"{}") {
        Ok(_) => Ok(()),
        Err(error) if error.is_exists() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
