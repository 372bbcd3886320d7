//! What goes wrong with objects of the repository: the store, the object itself, or a key that is not held.

use thiserror::Error;

use crate::{
    format::{
        names::{LogName, RunNo},
        wire::FormatError,
    },
    keys::{Act, KeyId, Role},
    store::{StoreError, StoreErrorKind},
};

/// A failed operation on the repository.
#[derive(Debug, Error)]
pub enum RepoError {
    /// The store failed, or an object is not there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object is not what was written: damage, or somebody's doing.
    #[error("{object}: {damage}")]
    Damaged {
        /// Its name.
        object: String,
        /// What is wrong with it.
        damage: Damage,
    },
    /// Every run builds on this, and it cannot be read: nothing more can be written to the log. Its backups can be read.
    #[error("the history of {log} cannot be continued: {damage}")]
    History {
        /// Whose log.
        log: LogName,
        /// What is wrong with which object.
        damage: Box<RepoError>,
    },
    /// What was opened lacks the private key for this kind of object.
    #[error("this key is a {role}'s: to read {object} takes an operator's")]
    NotReadable {
        /// Its name.
        object: String,
        /// What is held.
        role: Role,
    },
    /// The role does not allow it.
    #[error("this key is a {role}'s: {doing} takes {needs}")]
    NotAllowed {
        /// What is held.
        role: Role,
        /// What was tried.
        doing: &'static str,
        /// Whose key it takes.
        needs: &'static str,
    },
    /// What is written here is to be locked, and that cannot be done.
    #[error(
        "{doing} writes, and everything in this repository is to be locked, which {location} does not do"
    )]
    NoLocks {
        /// Where.
        location: String,
        /// What was tried.
        doing: &'static str,
    },
    /// Nothing is locked here.
    #[error("{location} was made without locks")]
    NothingToLock {
        /// Where.
        location: String,
    },
    /// What the key at hand would sign is not believed (any more).
    #[error("nothing can be added to {log} with this key: what it signs {damage}")]
    NotBelieved {
        /// Whose log.
        log: LogName,
        /// Why.
        damage: Damage,
    },
    /// Something to be written is larger than the format allows.
    #[error("{object}: its {what} would be {size_bytes} bytes, more than the {limit_bytes} that it can be")]
    TooLarge {
        /// Its name.
        object: String,
        /// Which part of it.
        what: &'static str,
        /// How much was to be written.
        size_bytes: u64,
        /// The bound.
        limit_bytes: u64,
    },
    /// Somebody asked for the end ([`crate::Interrupt`]).
    #[error("interrupted")]
    Interrupted,
    /// The host gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    NoRandom(getrandom::Error),
}

impl RepoError {
    /// What to `doing` takes that is not held.
    #[must_use]
    pub fn not_allowed(role: Role, act: Act, doing: &'static str) -> Self {
        Self::NotAllowed { role, doing, needs: act.needs() }
    }

    /// Damage of `object`.
    pub fn damaged(object: impl std::fmt::Display, damage: Damage) -> Self {
        Self::Damaged { object: object.to_string(), damage }
    }

    /// `object` does not follow the format: `what` says where.
    pub fn malformed(object: impl std::fmt::Display, what: &'static str) -> Self {
        Self::damaged(object, Damage::Malformed { what })
    }

    /// Of an object that must be there: the store has answered, so that its absence is damage.
    pub(crate) fn of_needed(error: StoreError) -> Self {
        match error.is_not_found() {
            true => Self::damaged(error.path, Damage::Missing),
            false => error.into(),
        }
    }

    /// Damage of what every run on `log` builds on; other errors as they are.
    pub(crate) fn of_history(self, log: &LogName) -> Self {
        match self {
            Self::Damaged { .. } => Self::History { log: log.clone(), damage: Box::new(self) },
            other => other,
        }
    }

    /// Whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_not_found())
    }

    /// Whether an object is gone that should be there, or was never there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Damaged { damage, .. } => matches!(damage, Damage::Missing | Damage::AllMissing { .. }),
            Self::History { damage, .. } => damage.is_missing(),
            _ => self.is_not_found(),
        }
    }

    /// Whether it is about one object, not about the way to the store.
    pub(crate) fn is_of_the_object(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Store(error) => matches!(
                error.kind,
                StoreErrorKind::NotFound | StoreErrorKind::ShortRead { .. } | StoreErrorKind::TooLarge { .. }
            ),
            _ => false,
        }
    }

    /// Whether it is about a signature of a key that was removed.
    pub(crate) fn is_of_removed_signer(&self) -> bool {
        matches!(self, Self::Damaged { damage: Damage::SignerRemoved { .. }, .. })
    }

    /// Whether the name was taken.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_exists())
    }
}

/// What is wrong with an object.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Damage {
    /// It does not begin as an object of this format.
    #[error("is no object of this format")]
    NoHeader,
    /// Its header names another repository.
    #[error("belongs to another repository")]
    OtherRepository,
    /// Its header names another place.
    #[error("is another object under this name: {found}")]
    Misplaced {
        /// What the header says.
        found: String,
    },
    /// A secret was not wrapped for this repository, or a seal does not open.
    #[error("does not open: damaged, exchanged or forged ({what})")]
    Sealed {
        /// Which part of it.
        what: &'static str,
    },
    /// It ends early, goes on too long, or its parts contradict each other.
    #[error("does not follow the format: {what}")]
    Malformed {
        /// Where.
        what: &'static str,
    },
    /// A field breaks its rule.
    #[error("does not follow the format: {0}")]
    Format(#[source] FormatError),
    /// Written by a later version.
    #[error("uses {what}, which this version does not know")]
    Unknown {
        /// What.
        what: String,
    },
    /// It was deleted where versions are kept.
    #[error("was deleted, and its bytes are still there")]
    Hidden,
    /// It was written over where versions are kept.
    #[error("was written over, and what it was is still there")]
    Covered,
    /// Nobody who may have signed it.
    #[error("is signed by nobody known to this repository, or its signature is wrong")]
    Signature,
    /// Signed by a key that had been removed by then.
    #[error("is signed by the key {key_id}, which was removed before")]
    SignerRemoved {
        /// Whose signature it is.
        key_id: KeyId,
    },
    /// Signed by a key that is for other sources.
    #[error("is signed by the key {key_id}, which may not sign for this source")]
    SignerElsewhere {
        /// Whose signature it is.
        key_id: KeyId,
    },
    /// A chunk of page maps that a writer should have kept, since it cannot read it.
    #[error("is not among the page maps that this host has kept, or is damaged there")]
    NotRemembered,
    /// Keys have been rotated since the repository was opened, or without a share for this one.
    #[error("is sealed with the keys of rotation {rotation}, which this key does not have (yet)")]
    NewerKeys {
        /// Number of the rotation.
        rotation: u8,
    },
    /// Signed by somebody who may not do this.
    #[error("is a {act} signed by a {role} key, which may not do that")]
    Role {
        /// What it does.
        act: &'static str,
        /// Who signed.
        role: Role,
    },
    /// It does not continue the outcome before it.
    #[error("does not continue the outcome before it: the history was altered")]
    Chain,
    /// It does not continue the segment before it.
    #[error("does not continue the segment or outcome before it: some were taken away or exchanged")]
    SegmentChain,
    /// It should be there.
    #[error("is missing")]
    Missing,
    /// It should be there, and so should those after it.
    #[error("is missing, and so are all up to run {last}")]
    AllMissing {
        /// The last of them.
        last: RunNo,
    },
    /// The object is there, with other contents than the outcome says.
    #[error("is not what the outcome of its run recorded")]
    NotAsRecorded,
}
