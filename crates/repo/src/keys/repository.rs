//! What a repository says of itself, in `holdfast.json` and in the payload of every key.

use std::fmt;

use holdfast_pipe::Suite;
use serde::{Deserialize, Serialize};

use crate::{
    format::{hex::Hex, names::Folder},
    store::{ObjectPath, Store, locks::ObjectLock, writers},
};

/// Identifies a repository. Random, chosen at `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RepositoryId(pub Hex<16>);

impl fmt::Display for RepositoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Contents of `holdfast.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryInfo {
    /// Format of everything stored.
    pub format: u32,
    /// Identifies the repository.
    pub repository_id: RepositoryId,
    /// How objects are sealed.
    #[serde(with = "suite_name")]
    pub suite: Suite,
    /// RFC 3339, UTC, by the store's clock.
    pub created_at: String,
    /// The lock that everybody who writes here asks of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_lock: Option<ObjectLock>,
}

impl RepositoryInfo {
    /// Locks what is written from now on and lasts, if the repository asks for that.
    /// Whoever only reads needs no lock.
    pub(crate) fn apply_lock(&self, store: &dyn Store) {
        if let (Some(lock), Some(versioned)) = (self.object_lock, store.versioned()) {
            versioned.lock_new(lock, lasts);
        }
    }
}

/// Whether an object stays for as long as a backup may need it. Others are replaced, or deleted
/// when a run ends: leases, requests for room, segments, records of checks, and objects that
/// the store itself is probed with.
pub(crate) fn lasts(path: &ObjectPath) -> bool {
    const SHORT: [Folder; 4] = [Folder::Runs, Folder::Segments, Folder::Checks, Folder::Asks];
    let mut parts = path.as_str().split('/');
    match (parts.next(), parts.nth(2)) {
        (Some("sources"), Some(folder)) => SHORT.iter().all(|short| short.as_str() != folder),
        (Some(first), _) => first != writers::PROBES.trim_end_matches('/') && !first.starts_with('.'),
        (None, _) => false,
    }
}

mod suite_name {
    use holdfast_pipe::Suite;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(suite: &Suite, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match suite {
            Suite::None => "none",
            Suite::X25519Aes256Gcm => "x25519-aes256gcm",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Suite, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "none" => Ok(Suite::None),
            "x25519-aes256gcm" => Ok(Suite::X25519Aes256Gcm),
            other => Err(D::Error::custom(format!("unknown suite \"{other}\""))),
        }
    }
}
