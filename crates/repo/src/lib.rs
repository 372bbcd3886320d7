//! The repository: store, keys, packs, page maps, manifests, the log of runs.
//!
//! Everything stored is specified in `docs/repository.md`.

// What all use.
pub mod error;
pub mod hooks;
pub mod interrupt;
pub mod steps;

// Bytes (docs/repository.md sections 4 to 10): what is stored, and how it is laid out.
pub mod columns;
pub mod hex;
pub mod index;
pub mod item;
pub mod manifest;
pub mod names;
pub mod object;
mod ordinals;
pub mod pack;
pub mod page_map;
pub mod refs;
pub mod rows;
mod units;
pub mod wire;

// Where it is stored, and for whom it is sealed.
pub mod keys;
pub mod repo;
pub mod store;
pub mod writers;

// The log of runs: who writes, what stands, what is held.
pub mod beneath;
pub mod client;
pub mod history;
pub mod hold;
pub mod lease;
pub mod moves;
pub mod outcome;
mod room;
pub mod run;
pub mod segment;

// The way of the data: into the repository and out of it.
pub mod local_maps;
pub mod reader;
pub mod writer;

// What is done with a repository.
pub mod check;
pub mod checked;
pub mod compression;
pub mod copy;
pub mod expire;
pub mod locking;
pub mod prune;
pub mod repair;
pub mod retention;
pub mod space;

#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use error::{Damage, RepoError};
pub use interrupt::Interrupt;
pub use keys::{Act, KeyError, KeyMaterial, Password, Protection, Role};
pub use names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo, SourceName};
pub use object::{ObjectKind, Place, RunSecrets};
pub use repo::Repo;
