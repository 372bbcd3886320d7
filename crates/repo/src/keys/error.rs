//! Why keys could not be made, opened or changed.

use std::fmt;

use thiserror::Error;

use super::{FORMAT, KdfError, KeyId, Role, Trusted};
use crate::store::StoreError;

/// Why keys could not be made, opened or changed.
#[derive(Debug, Error)]
pub enum KeyError {
    /// Nothing of ours is there.
    #[error("{location} holds no repository")]
    NotARepository {
        /// Where.
        location: String,
    },
    /// `init` found something.
    #[error("{location} is not empty: it holds {object}")]
    NotEmpty {
        /// Where.
        location: String,
        /// What was found first.
        object: String,
    },
    /// Locks were asked for.
    #[error("{location} cannot lock objects: {why}")]
    NoLocks {
        /// Where.
        location: String,
        /// Why.
        why: &'static str,
    },
    /// Written by a later version.
    #[error("{location} has format {format}, and this version knows formats up to {FORMAT}")]
    NewerFormat {
        /// Where.
        location: String,
        /// What it says.
        format: String,
    },
    /// Written by a version before the first release.
    #[error("{location} has format {format}, and this version knows format {FORMAT}")]
    OlderFormat {
        /// Where.
        location: String,
        /// What it says.
        format: u32,
    },
    /// No key object opens with it.
    #[error("wrong password for the repository {location}")]
    WrongPassword {
        /// Where.
        location: String,
    },
    /// No key object opens with it.
    #[error("no key of the repository {location} is for this identity")]
    WrongIdentity {
        /// Where.
        location: String,
    },
    /// A key object is sealed for the identity, but not by somebody whom it believes: anybody can seal for a public key.
    #[error("{object} was made for this identity by somebody whom it does not trust yet")]
    Untrusted {
        /// The key object.
        object: String,
        /// What the identity would have to say.
        trusted: Trusted,
    },
    /// The repository is encrypted and no password was given.
    #[error("the repository {location} is encrypted: it needs its password")]
    PasswordNeeded {
        /// Where.
        location: String,
    },
    /// A password was given for a repository that has none: it may have been exchanged for another.
    #[error("a password or identity was given, but the repository {location} is not encrypted")]
    NotEncrypted {
        /// Where.
        location: String,
    },
    /// It opens, and counts no more.
    #[error("the key {key_id} was removed from the repository")]
    Removed {
        /// Which.
        key_id: KeyId,
    },
    /// An object is not what was written.
    #[error("{object}: damaged: {what}")]
    Damaged {
        /// Its name.
        object: String,
        /// How.
        what: String,
    },
    /// A key object asks for too little or too much work.
    #[error("{object}: {source}")]
    Kdf {
        /// Its name.
        object: String,
        /// Which.
        #[source]
        source: KdfError,
    },
    /// Only operators manage keys.
    #[error("this key is a {role}'s: to {act} takes an operator's")]
    NotOperator {
        /// What is held.
        role: Role,
        /// What was tried.
        act: &'static str,
    },
    /// Without it nobody could read the repository.
    #[error("{key_id} is the last operator's key: without it nobody could read the repository")]
    LastOperator {
        /// Which.
        key_id: KeyId,
    },
    /// It is not there, and never was.
    #[error("the repository has no key {key_id}")]
    NoSuchKey {
        /// Which.
        key_id: KeyId,
    },
    /// Opening tries one after the other.
    #[error("the repository has {count} keys, and cannot have more")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// A removal tells of each log how far the key is believed.
    #[error("a removal would have to tell of {count} logs, and one record cannot")]
    TooManyLogs {
        /// How many.
        count: usize,
    },
    /// A repository without encryption has no keys to give.
    #[error("the repository {location} is not encrypted: there is nothing that a key would protect")]
    NothingToProtect {
        /// Where.
        location: String,
    },
    /// What people call a key.
    #[error("a label has at most {most} bytes and no control characters")]
    BadLabel {
        /// How many.
        most: usize,
    },
    /// Who can read all can sign all.
    #[error("an operator's key is for all sources")]
    OperatorOfSources,
    /// Made when keys could not be rotated yet, it has nothing that a new share could be sealed for.
    #[error("the key {key_id} was made by an early version and cannot take part in a rotation")]
    NoExchange {
        /// Which.
        key_id: KeyId,
    },
    /// As many as a header can name.
    #[error("the keys of this repository have been rotated {count} times, and cannot be once more")]
    RotatedOut {
        /// How often.
        count: usize,
    },
    /// Others changed keys at the same time.
    #[error("others kept changing keys at the same time")]
    Crowded,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The host gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    NoRandom(getrandom::Error),
}

pub(super) fn damaged(object: impl fmt::Display, what: impl fmt::Display) -> KeyError {
    KeyError::Damaged { object: object.to_string(), what: what.to_string() }
}
