//! Where objects are stored. One small trait; every concern (retry, rate, concurrency,
//! faults) is a wrapper around it.
//!
//! The contract of every implementation, which the conformance suite checks:
//! - an object appears whole, when [`Upload::finish`] or [`Store::create_if_absent`] returns, or not at all;
//! - whatever has been confirmed survives a crash of the host;
//! - nothing is overwritten: finishing or creating a name that exists fails with [`StoreErrorKind::Exists`];
//! - a listing that begins after a confirmation shows the object;
//! - times are by the store's own clock.

use std::{
    fmt, io,
    path::Path,
    time::{Duration, SystemTime},
};

use thiserror::Error;

pub(crate) mod ahead;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod faulty;
mod forward;
pub mod fs;
pub(crate) mod insistent;
pub mod landmark;
pub mod layout;
pub(crate) mod listed;
pub mod locks;
pub mod mem;
pub mod probe;
mod remote;
pub mod writers;

pub use probe::{Creation, probe_creation};
pub use remote::{RemoteCause, RemoteError};

/// Name of an object: relative, with parts separated by `/`, none of them empty, `.` or `..`. Without control
/// characters: whoever can write could forge lines of output with them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectPath(String);

impl ObjectPath {
    /// Takes a name that follows the rules; `None` if it does not.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Option<Self> {
        let name = name.into();
        let is_bad = |c: char| c.is_control() || c == '\\';
        let good = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(is_bad);
        (name.len() <= 512 && name.split('/').all(good)).then_some(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What follows the last `/`.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name.
    pub path: ObjectPath,
    /// Its size.
    pub size_bytes: u64,
    /// When it appeared, by the store's clock.
    pub created_at: SystemTime,
}

/// An object that is being uploaded. Dropping it unfinished leaves nothing that a listing shows.
pub trait Upload: Send {
    /// Appends bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Makes the object durable and visible; fails with [`StoreErrorKind::Exists`] if the name is taken.
    fn finish(self: Box<Self>) -> Result<ObjectInfo, StoreError>;
}

/// A place for objects. Shared between threads.
pub trait Store: Send + Sync {
    /// Where the store is, for people. Contains no secrets.
    fn location(&self) -> String;

    /// The directory of this host that holds it, if it is in one: it must not be taken for something else.
    fn local_root(&self) -> Option<&Path> {
        None
    }

    /// Begins to upload an object of any size.
    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError>;

    /// Creates a small object if the name is free. Of several callers exactly one succeeds;
    /// the others get [`StoreErrorKind::Exists`].
    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError>;

    /// Reads exactly `buffer.len()` bytes at `offset`; if there are fewer, fails with
    /// [`StoreErrorKind::ShortRead`].
    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError>;

    /// Reads a whole object of at most `limit_bytes`; of a larger one, nothing is read.
    /// Takes one request where requests are expensive.
    fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        read_listed(self, &self.head(path)?, limit_bytes)
    }

    /// Size and time of one object. It may be one whose confirmation failed:
    /// once it is returned here, it is durable as well.
    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError>;

    /// Calls `each` for every object whose name begins with `prefix` (which ends in `/` or is empty), in name
    /// order, until it returns `false`.
    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError>;

    /// The names directly below `prefix` that have objects below them, in order.
    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// Deletes objects; those already gone count as deleted.
    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError>;

    /// The store's clock, read from something that it has just written.
    fn now(&self) -> Result<SystemTime, StoreError>;

    /// Free space in bytes, if the store has such a thing.
    fn free_bytes(&self) -> Result<Option<u64>, StoreError>;

    /// Removes what interrupted uploads have left, if that is at least `min_age` old. By default nothing is
    /// left, and there is nothing to do.
    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        let _ = min_age;
        Ok(())
    }

    /// How many small objects are best requested at the same time:
    /// several if each answer comes from far away.
    fn reads_at_once(&self) -> usize {
        1
    }

    /// What the store can do with versions, if it keeps them or could.
    fn versioned(&self) -> Option<&dyn locks::Versioned> {
        None
    }
}

/// Whether there is an object of this name, even one that cannot be read.
pub fn exists(store: &dyn Store, path: &ObjectPath) -> Result<bool, StoreError> {
    match store.head(path) {
        Ok(_) => Ok(true),
        Err(error) if error.is_unreadable() => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads a whole small object. One larger than `limit_bytes` is an error before anything is allocated.
pub fn read_all(store: &dyn Store, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
    store.read_whole(path, limit_bytes)
}

/// As [`read_all`], for an object whose size is known from a listing.
pub fn read_listed<S: Store + ?Sized>(
    store: &S,
    info: &ObjectInfo,
    limit_bytes: u64,
) -> Result<Vec<u8>, StoreError> {
    let size = usize::try_from(info.size_bytes).ok().filter(|_| info.size_bytes <= limit_bytes);
    let Some(size) = size else {
        return Err(StoreError::new(
            &info.path,
            StoreErrorKind::TooLarge { size_bytes: info.size_bytes, limit_bytes },
        ));
    };
    let mut bytes = vec![0; size];
    store.read_exact_at(&info.path, 0, &mut bytes)?;
    Ok(bytes)
}

/// As [`read_listed`] if a listing has returned the object, and otherwise as [`read_all`].
pub(crate) fn read_known(
    store: &dyn Store,
    path: &ObjectPath,
    listed: Option<&ObjectInfo>,
    limit_bytes: u64,
) -> Result<Vec<u8>, StoreError> {
    match listed {
        Some(info) => read_listed(store, info, limit_bytes),
        None => read_all(store, path, limit_bytes),
    }
}

/// A failed store operation: on which object, and why.
#[derive(Debug, Error)]
#[error("{path}{}{kind}", if path.is_empty() { "" } else { ": " })]
pub struct StoreError {
    /// The object, or the prefix of a listing; empty if the whole store is meant.
    pub path: String,
    /// What happened.
    #[source]
    pub kind: StoreErrorKind,
}

impl StoreError {
    /// An error on `path`.
    pub fn new(path: impl fmt::Display, kind: StoreErrorKind) -> Self {
        Self { path: path.to_string(), kind }
    }

    /// Whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind, StoreErrorKind::NotFound)
    }

    /// Whether the error is about what was requested, not about access to the store: whoever can write can
    /// make any object one that the service refuses to show.
    #[must_use]
    pub fn is_of_one_object(&self) -> bool {
        match &self.kind {
            StoreErrorKind::Remote(remote) => remote.cause.is_of_one_object(),
            StoreErrorKind::Io(_) | StoreErrorKind::ReadOnly => false,
            StoreErrorKind::NotFound
            | StoreErrorKind::Exists
            | StoreErrorKind::ShortRead { .. }
            | StoreErrorKind::TooLarge { .. }
            | StoreErrorKind::Unreadable { .. } => true,
        }
    }

    /// Whether the store lets this client do other things, but not this: it may only read, for example.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        match &self.kind {
            StoreErrorKind::Remote(remote) => remote.cause == RemoteCause::Denied,
            StoreErrorKind::Io(error) => {
                matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
            }
            StoreErrorKind::ReadOnly => true,
            _ => false,
        }
    }

    /// Whether the name is taken.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Exists)
    }

    /// Whether only this object cannot be read. Its bytes may be there nevertheless.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unreadable { .. })
    }
}

/// Why a store operation failed.
#[derive(Debug, Error)]
pub enum StoreErrorKind {
    /// No such object.
    #[error("does not exist")]
    NotFound,
    /// The name is taken.
    #[error("exists already")]
    Exists,
    /// The object ends before the requested bytes do.
    #[error("ends before byte {end}")]
    ShortRead {
        /// One past the last byte requested.
        end: u64,
    },
    /// The object is larger than the caller is ready to hold.
    #[error("has {size_bytes} bytes, more than the limit of {limit_bytes} for such an object")]
    TooLarge {
        /// Its size.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The object exists and other objects can be read, but not this one: the disk cannot read where it lies, or the
    /// service has moved it to an archive.
    #[error("exists, but cannot be read: {why}")]
    Unreadable {
        /// What the system or the service said.
        why: String,
        /// Whether it is in an archive, from which it has to be brought back first.
        is_archived: bool,
    },
    /// The store is shown as it was in the past, and takes no change.
    #[error("is a past state of the store, in which nothing can be changed")]
    ReadOnly,
    /// The store or the way to it failed.
    #[error("{0}")]
    Io(#[source] std::io::Error),
    /// The store or the way to it failed, for one that is reached over a network.
    #[error("{0}")]
    Remote(#[source] RemoteError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_nothing_that_a_terminal_obeys() {
        for good in ["a", "signers/a b", "x/\u{e9}/y"] {
            assert!(ObjectPath::new(good).is_some(), "{good:?}");
        }
        for bad in [
            "a\u{1b}[2J",
            "a/b\nwarning: c",
            "a\r",
            "a\tb",
            "a\u{7f}",
            "a\u{9b}2J",
            "a\0",
            "a\\b",
            "a/../b",
            "",
        ] {
            assert!(ObjectPath::new(bad).is_none(), "{bad:?}");
        }
    }
}
