//! The repository: store, keys, packs, page maps, manifests, the log of runs.
//!
//! Everything stored is specified in `docs/repository.md`.

pub mod beneath;
pub mod check;
pub mod checked;
pub mod client;
pub mod columns;
pub mod compression;
pub mod copy;
pub mod error;
pub mod expire;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod hex;
pub mod history;
pub mod hold;
pub mod hooks;
pub mod index;
pub mod interrupt;
pub mod item;
pub mod keys;
pub mod lease;
pub mod local_maps;
mod lock;
pub mod locking;
pub mod manifest;
pub mod moves;
pub mod names;
pub mod object;
pub mod outcome;
pub mod pack;
pub mod page_map;
pub mod prune;
pub mod reader;
pub mod refs;
pub mod repair;
pub mod repo;
pub mod retention;
mod room;
pub mod rows;
pub mod run;
pub mod segment;
pub mod space;
pub mod steps;
pub mod store;
mod units;
pub mod wire;
pub mod writer;
pub mod writers;

pub use error::{Damage, RepoError};
pub use interrupt::Interrupt;
pub use keys::{Act, KeyError, KeyMaterial, Password, Protection, Role};
pub use names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo, SourceName};
pub use object::{ObjectKind, Place, RunSecrets};
pub use repo::Repo;
