//! Why keys could not be made, opened or changed.

use std::fmt;

use thiserror::Error;

use super::{FORMAT, KdfError, KeyId, Role, Trusted};
use crate::store::StoreError;

/// Why keys could not be made, opened or changed.
#[derive(Debug, Error)]
pub enum KeyError {
    /// There is no repository.
    #[error("there is no repository at {location}")]
    NotARepository {
        /// The location.
        location: String,
    },
    /// `init` found an object.
    #[error("{location} is not empty: it holds {object}")]
    NotEmpty {
        /// The location.
        location: String,
        /// The object found first.
        object: String,
    },
    /// Locks were requested, and the store cannot lock.
    #[error("{location} cannot lock objects: {why}")]
    NoLocks {
        /// The location.
        location: String,
        /// Why not.
        why: &'static str,
    },
    /// Written by a later version.
    #[error("{location} has format {format}, and this version knows formats up to {FORMAT}")]
    NewerFormat {
        /// The location.
        location: String,
        /// The format found.
        format: String,
    },
    /// Written by a version before the first release.
    #[error("{location} has format {format}, and this version knows format {FORMAT}")]
    OlderFormat {
        /// The location.
        location: String,
        /// The format found.
        format: u32,
    },
    /// No key object opens with the password.
    #[error("wrong password for the repository {location}")]
    WrongPassword {
        /// The location.
        location: String,
    },
    /// No key object is for the identity.
    #[error("no key of the repository {location} is for this identity")]
    WrongIdentity {
        /// The location.
        location: String,
    },
    /// A key object is sealed for the identity, but by somebody whom the identity does not trust:
    /// anybody can seal for a public key.
    #[error("{object} was sealed for this identity by an operator that it does not trust yet")]
    Untrusted {
        /// The key object.
        object: String,
        /// What the identity would have to trust.
        trusted: Trusted,
    },
    /// The repository is encrypted and no password was given.
    #[error("the repository {location} is encrypted: it needs its password")]
    PasswordNeeded {
        /// The location.
        location: String,
    },
    /// A password was given for a repository that has none: it may have been put in the place of another.
    #[error("a password or identity was given, but the repository {location} is not encrypted")]
    NotEncrypted {
        /// The location.
        location: String,
    },
    /// The key opens, but was removed.
    #[error("the key {key_id} was removed from the repository")]
    Removed {
        /// The key.
        key_id: KeyId,
    },
    /// An object is not what was written.
    #[error("{object}: damaged: {what}")]
    Damaged {
        /// The object's name.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// A key object asks for too little or too much work.
    #[error("{object}: {source}")]
    Kdf {
        /// The object's name.
        object: String,
        /// Which of the two.
        #[source]
        source: KdfError,
    },
    /// Only operators manage keys.
    #[error("this is a {role}'s key: to {act} takes an operator's")]
    NotOperator {
        /// The role of the opened key.
        role: Role,
        /// The operation.
        act: &'static str,
    },
    /// It is the last operator's key: without it nobody could read the repository.
    #[error("{key_id} is the last operator's key: without it nobody could read the repository")]
    LastOperator {
        /// The key.
        key_id: KeyId,
    },
    /// The repository has no such key.
    #[error("the repository has no key {key_id}")]
    NoSuchKey {
        /// The key.
        key_id: KeyId,
    },
    /// The repository has too many keys already: opening tries them one after another.
    #[error("the repository has {count} keys, and cannot have more")]
    TooMany {
        /// The number of keys.
        count: usize,
    },
    /// A removal records for each log how far the key is believed, and there are too many logs.
    #[error("a removal would have to list {count} logs, more than fit in one record")]
    TooManyLogs {
        /// The number of logs.
        count: usize,
    },
    /// A repository without encryption has no keys to manage.
    #[error("the repository {location} is not encrypted: there is nothing that a key would protect")]
    NothingToProtect {
        /// The location.
        location: String,
    },
    /// A label is too long, or has control characters.
    #[error("a label has at most {most} bytes and no control characters")]
    BadLabel {
        /// Bytes allowed.
        most: usize,
    },
    /// An operator's key cannot be limited to sources: whoever can read everything can sign everything.
    #[error("an operator's key is for all sources")]
    OperatorOfSources,
    /// The key was made when keys could not be rotated yet, and has nothing that a
    /// new share could be sealed for.
    #[error("the key {key_id} was made by an early version and cannot take part in a rotation")]
    NoExchange {
        /// The key.
        key_id: KeyId,
    },
    /// The keys have been rotated as often as a header can name.
    #[error("the keys of this repository have been rotated {count} times, and cannot be rotated again")]
    RotatedOut {
        /// How often.
        count: usize,
    },
    /// A rotation came too late: the key that signed it was removed at the same time.
    #[error("{object} keeps everybody from writing: whoever signed it is not, or no longer, an operator")]
    RotationRefused {
        /// The rotation.
        object: String,
    },
    /// A key was added while another operator rotated the keys, and opens nothing sealed since.
    #[error(
        "the key {key_id} was added while the keys were rotated, and has no share in rotation {rotation}: \
         remove it, and add it again"
    )]
    NoShare {
        /// The new key.
        key_id: KeyId,
        /// Number of the rotation.
        rotation: u8,
    },
    /// Others changed keys at the same time.
    #[error("others kept changing keys at the same time")]
    Crowded,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers: {0}")]
    NoRandom(getrandom::Error),
}

pub(crate) fn damaged(object: impl fmt::Display, what: impl fmt::Display) -> KeyError {
    KeyError::Damaged { object: object.to_string(), what: what.to_string() }
}
