//! The repository: store, keys, packs, page maps, manifests, the log of runs.
//!
//! Everything stored is specified in `docs/reference/repository.md`.
//!
//! Below the modules that all others use, each module depends only on those above it.

// Used by all others.
pub mod error;
pub mod hooks;
pub mod interrupt;
pub mod steps;

// Where objects are stored.
pub mod store;

// What is stored, how it is laid out, and for whom it is sealed.
pub mod format;
pub mod keys;
pub(crate) mod sealed;

// What a client remembers of a repository outside of it.
pub mod witness;

// A store together with the keys to it.
pub mod repo;

// The log of runs: which run writes, which backups stand, which are held.
pub mod log;

// The path of the data into the repository and out of it.
pub mod data;

// Operations on a repository.
pub mod ops;

#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use error::{Damage, RepoError};
pub use format::{
    names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo, SourceName},
    place::{ObjectKind, Place},
};
pub use interrupt::Interrupt;
pub use keys::{Act, KeyError, KeyMaterial, Password, Protection, Role};
pub use repo::Repo;
pub use sealed::RunSecrets;
