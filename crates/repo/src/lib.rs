//! The repository: store, keys, packs, page maps, manifests, the log of runs.
//!
//! Everything stored is specified in `docs/reference/repository.md`.
//!
//! Beneath what all use, each module leans only on those above it, with two exceptions: `format` and `keys` know each
//! other, since objects are sealed for keys, and keys are stored under names and hashes as all else is; and what adds,
//! removes and rotates keys (`keys::manage`, `keys::rotate`) works on an opened repository, and looks how far its logs
//! have come.

// What all use.
pub mod error;
pub mod hooks;
pub mod interrupt;
pub mod steps;

// Where objects are.
pub mod store;

// What is stored and how it is laid out, and for whom it is sealed.
pub mod format;
pub mod keys;

// Both together: a store, and the keys to it.
pub mod repo;

// The log of runs: who writes, what stands, what is held.
pub mod log;

// The way of the data: into the repository and out of it.
pub mod data;

// What is done with a repository.
pub mod ops;

#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use error::{Damage, RepoError};
pub use format::{
    names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo, SourceName},
    object::{ObjectKind, Place, RunSecrets},
};
pub use interrupt::Interrupt;
pub use keys::{Act, KeyError, KeyMaterial, Password, Protection, Role};
pub use repo::Repo;
