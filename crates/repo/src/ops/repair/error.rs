//! Why a repair repairs nothing.

use std::time::SystemTime;

use jiff::Timestamp;
use thiserror::Error;

use crate::{
    error::RepoError,
    format::names::{LogName, RunNo},
    log::run::{BeginError, FinishError},
};

/// Why nothing was repaired.
#[derive(Debug, Error)]
pub enum RepairError {
    /// An object is signed with a trusted key, but is not understood.
    #[error(
        "{object} is intact and signed, but this version cannot use it ({problem}): nothing was repaired"
    )]
    Intact {
        /// The object.
        object: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An intact outcome is signed with an unknown key.
    #[error(
        "{object} is intact, but signed with an unknown key: nothing was repaired, and nothing is until \
         it is known whose key it is"
    )]
    Stranger {
        /// The outcome.
        object: String,
    },
    /// Outcomes cannot be opened, and the records of whose signatures to trust have a problem.
    #[error(
        "{object}: {problem}: nothing was repaired, since outcomes that seem lost may be signed with a key \
         that this record names"
    )]
    Keys {
        /// The record.
        object: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A logical backup seems beyond help, but may only need chunks that a prune has moved.
    #[error(
        "it is not known what the prune of {object} moved, and backup {backup} may need just that: \
         nothing was dropped"
    )]
    Moved {
        /// The outcome of the prune.
        object: String,
        /// The first such backup.
        backup: RunNo,
    },
    /// A backup is beyond help, and it is not known what is held.
    #[error(
        "backup {backup} of {log} cannot be restored, but may be held: run {run} may have held it, \
         and its outcome is missing; nothing was repaired"
    )]
    MayBeHeld {
        /// The log.
        log: LogName,
        /// The run that was to hold backups.
        run: RunNo,
        /// The first backup that is beyond help.
        backup: RunNo,
    },
    /// What a prune moved is found through page maps, and some are of a later version.
    #[error(
        "the record of a prune is lost, and what it moved cannot be found, since {object} {problem}: nothing \
         was repaired"
    )]
    Newer {
        /// The object.
        object: String,
        /// What is not known.
        problem: String,
    },
    /// More outcomes are missing than one outcome can name.
    #[error(
        "{count} outcomes are missing before {object}, more than one repair can declare lost: nothing was \
         repaired; if you do not trust whoever wrote that object, delete it"
    )]
    Gap {
        /// The outcome after the missing ones.
        object: String,
        /// How many are missing.
        count: u64,
    },
    /// An object that seems lost still exists as an older version.
    #[error(
        "{object} {}{}, but what it was still exists as an older version: nothing was repaired, \
         since nothing need be lost",
        if *.is_hidden { "was deleted" } else { "was overwritten" },
        told_since(*.since)
    )]
    NoncurrentVersion {
        /// The object.
        object: String,
        /// Whether it was deleted.
        is_hidden: bool,
        /// When that happened, if known.
        since: Option<SystemTime>,
    },
    /// Two readings of what everything builds on, or of what is to be dropped, differ.
    #[error("two readings of what is lost in {log} differ: nothing was repaired; try again")]
    Unsteady {
        /// The log.
        log: LogName,
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

fn told_since(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| Timestamp::try_from(time).ok());
    time.map_or_else(String::new, |time| format!(" at {time:.0}"))
}
