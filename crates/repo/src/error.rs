//! Failures with objects of the repository: in the store, in the object itself, or for lack of a key.

use thiserror::Error;

use crate::{
    format::{
        names::{KeyId, LogName, RunNo},
        role::{Act, Role},
        wire::{FormatError, Problem},
    },
    store::{StoreError, StoreErrorKind},
};

/// A failed operation on the repository.
#[derive(Debug, Error)]
pub enum RepoError {
    /// The store failed, or the object does not exist.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object is not what was written: it was damaged, or tampered with.
    #[error("{object}: {damage}")]
    Damaged {
        /// The object's name.
        object: String,
        /// What is wrong with it.
        damage: Damage,
    },
    /// A part of the history cannot be read. Every run builds on it, so nothing more can be written to the
    /// log; its backups can still be read.
    #[error("the history of {log} cannot be continued: {damage}")]
    History {
        /// The log.
        log: LogName,
        /// The object, and what is wrong with it.
        damage: Box<RepoError>,
    },
    /// The opened key lacks the private key for this kind of object.
    #[error("this is a {role}'s key: reading {object} takes an operator's")]
    NotReadable {
        /// The object's name.
        object: String,
        /// The role of the opened key.
        role: Role,
    },
    /// The role of the opened key does not allow the operation.
    #[error("this is a {role}'s key: {doing} takes {needs}")]
    NotAllowed {
        /// The role of the opened key.
        role: Role,
        /// The operation.
        doing: &'static str,
        /// Whose key the operation takes.
        needs: &'static str,
    },
    /// Everything written to this repository must be locked, and the store cannot lock.
    #[error(
        "{doing} writes, and everything in this repository must be locked, but {location} cannot lock objects"
    )]
    NoLocks {
        /// Location of the store.
        location: String,
        /// The operation.
        doing: &'static str,
    },
    /// The repository was made without locks.
    #[error("the repository {location} was created without object locks")]
    NothingToLock {
        /// Location of the store.
        location: String,
    },
    /// Signatures of the opened key are not believed, or no longer.
    #[error("nothing can be added to {log} with this key: its outcome {damage}")]
    NotBelieved {
        /// The log.
        log: LogName,
        /// Why they are not believed.
        damage: Damage,
    },
    /// An object would be larger than the format allows.
    #[error("{object}: its {what} would be {size_bytes} bytes, more than the limit of {limit_bytes}")]
    TooLarge {
        /// The object's name.
        object: String,
        /// The part that is too large.
        what: &'static str,
        /// Its size.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// An interrupt was requested ([`crate::Interrupt`]).
    #[error("interrupted")]
    Interrupted,
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    NoRandom(getrandom::Error),
}

impl RepoError {
    /// The error of a `role` that does not allow `act`; `doing` names the operation.
    #[must_use]
    pub fn not_allowed(role: Role, act: Act, doing: &'static str) -> Self {
        Self::NotAllowed { role, doing, needs: act.needs() }
    }

    /// Damage of `object`.
    pub fn damaged(object: impl std::fmt::Display, damage: Damage) -> Self {
        Self::Damaged { object: object.to_string(), damage }
    }

    /// `object` does not follow the format; `what` says in what respect.
    pub fn malformed(object: impl std::fmt::Display, what: &'static str) -> Self {
        Self::damaged(object, Damage::Malformed { what })
    }

    /// The error of reading an object that must exist: the store has answered, so its absence is damage.
    pub(crate) fn of_needed(error: StoreError) -> Self {
        match error.is_not_found() {
            true => Self::damaged(error.path, Damage::Missing),
            false => error.into(),
        }
    }

    /// Turns damage into [`RepoError::History`], since every run on `log` builds on the object;
    /// other errors stay as they are.
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

    /// Whether an object that should exist is gone, or never existed.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Damaged { damage, .. } => matches!(damage, Damage::Missing | Damage::AllMissing { .. }),
            Self::History { damage, .. } => damage.is_missing(),
            _ => self.is_not_found(),
        }
    }

    /// Whether the error is about one object, not about access to the store.
    pub(crate) fn is_of_the_object(&self) -> bool {
        self.is_damage() || matches!(self, Self::Store(error) if error.is_unreadable())
    }

    /// Whether the object is known not to be what was stored. One that cannot be read may be: nothing is given up
    /// for that.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Store(error) => matches!(
                error.kind,
                StoreErrorKind::NotFound | StoreErrorKind::ShortRead { .. } | StoreErrorKind::TooLarge { .. }
            ),
            _ => false,
        }
    }

    /// Whether the object may be intact, but was stored by a later version or with newer keys. Readers treat it as
    /// damage; nothing is dropped or replaced because of it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Damaged { damage: Damage::Unknown { .. } | Damage::NewerKeys { .. }, .. })
    }

    /// Whether the error is a segment that does not continue what is before it.
    pub(crate) fn is_of_segment_chain(&self) -> bool {
        matches!(self, Self::Damaged { damage: Damage::SegmentChain, .. })
    }

    /// Whether the error is a signature by a key that was removed.
    pub(crate) fn is_of_removed_signer(&self) -> bool {
        matches!(self, Self::Damaged { damage: Damage::SignerRemoved { .. }, .. })
    }

    /// Whether the name was already taken.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_exists())
    }
}

/// What is wrong with an object.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Damage {
    /// It does not begin with the header of this format.
    #[error("is not an object of this format")]
    NoHeader,
    /// Its header names another repository.
    #[error("belongs to another repository")]
    OtherRepository,
    /// Its header or its public part names another place.
    #[error("is another object under this name: {found}")]
    Misplaced {
        /// The place that it names.
        found: String,
    },
    /// A secret was not wrapped for this repository, or a seal does not open.
    #[error("does not open: damaged, swapped or forged ({what})")]
    Sealed {
        /// The part that does not open.
        what: &'static str,
    },
    /// It ends too early or too late, or its parts contradict each other.
    #[error("does not follow the format: {what}")]
    Malformed {
        /// The rule that is broken.
        what: &'static str,
    },
    /// A field breaks its rule.
    #[error("does not follow the format: {0}")]
    Format(#[source] FormatError),
    /// It was written by a later version, which can read it.
    #[error("uses {what}, which this version does not know")]
    Unknown {
        /// The unknown feature.
        what: String,
    },
    /// It was deleted, in a store that keeps versions.
    #[error("was deleted, but its bytes still exist as an older version")]
    Hidden,
    /// It was overwritten, in a store that keeps versions.
    #[error("was overwritten, but the original still exists as an older version")]
    Covered,
    /// Its signer is unknown, or its signature is wrong.
    #[error("is signed by nobody known to this repository, or its signature is wrong")]
    Signature,
    /// Its bytes are not those that its signature covers.
    #[error("is not as its run wrote it: damaged or forged")]
    NotAsWritten,
    /// It is signed by a key that had already been removed.
    #[error("is signed by the key {key_id}, which had already been removed")]
    SignerRemoved {
        /// The key.
        key_id: KeyId,
    },
    /// It is signed by a key that is for other sources.
    #[error("is signed by the key {key_id}, which may not sign for this source")]
    SignerElsewhere {
        /// The key.
        key_id: KeyId,
    },
    /// A chunk of page maps that a writer should have kept on its host, since it
    /// cannot read it from the repository.
    #[error("is missing or damaged in the page maps that this host has kept")]
    NotRemembered,
    /// It is sealed with the keys of a rotation that came after the repository was opened,
    /// or that has no share for this key.
    #[error("is sealed with the keys of rotation {rotation}, which this key does not have (yet)")]
    NewerKeys {
        /// Number of the rotation.
        rotation: u8,
    },
    /// It is signed by a key whose role does not allow it.
    #[error("is a {act} signed by a {role} key, which may not do that")]
    Role {
        /// What the object is.
        act: &'static str,
        /// The signer's role.
        role: Role,
    },
    /// It does not continue the outcome before it.
    #[error("does not continue the outcome before it: the history was altered")]
    Chain,
    /// It does not continue the segment before it.
    #[error("does not continue the segment or outcome before it: some were removed or swapped")]
    SegmentChain,
    /// It should exist, and does not.
    #[error("is missing")]
    Missing,
    /// It should exist, as should those after it, and none of them does.
    #[error("is missing, and so are all up to run {last}")]
    AllMissing {
        /// The last of them.
        last: RunNo,
    },
    /// The object exists, but its contents are not what its outcome recorded.
    #[error("is not what the outcome of its run recorded")]
    NotAsRecorded,
}

impl Damage {
    /// JSON that somebody who may has signed, and that this version cannot read.
    pub(crate) fn unknown(part: &str, error: &serde_json::Error) -> Self {
        Self::Unknown { what: format!("{part} ({error})") }
    }
}

impl From<FormatError> for Damage {
    fn from(error: FormatError) -> Self {
        match error.problem {
            Problem::Unknown(number) => Self::Unknown { what: format!("{} {number}", error.field) },
            _ => Self::Format(error),
        }
    }
}
