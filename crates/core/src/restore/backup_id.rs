//! Which backup a restore is of.

use holdfast_repo::{Kind, LogName, Repo, RunNo};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The identity of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupId {
    /// Id of the repository, hex.
    pub repository: String,
    /// Name of the source.
    pub source: String,
    /// Kind of backup.
    pub kind: String,
    /// Number of its run.
    pub run: u64,
}

impl BackupId {
    /// The identity of a backup, which must be a physical one.
    pub(crate) fn of_physical(repo: &Repo, log: &LogName, run: RunNo) -> Result<Self> {
        if log.kind != Kind::Physical {
            let error = Error::new(ErrorKind::Usage, format!("{log} {run} is not a physical backup"));
            return Err(error.hinted(
                "a logical one is loaded into a running server (--to-server), or written as files (export, cat)",
            ));
        }
        Ok(Self::of(repo, log, run))
    }

    /// The identity of a backup.
    pub(crate) fn of(repo: &Repo, log: &LogName, run: RunNo) -> Self {
        Self {
            repository: repo.info().repository_id.to_string(),
            source: log.source.to_string(),
            kind: log.kind.to_string(),
            run: run.0,
        }
    }
}

impl std::fmt::Display for BackupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} #{}", self.source, self.kind, self.run)
    }
}
