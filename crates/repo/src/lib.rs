//! The repository: store, keys, packs, page maps, manifests, the log of runs.
//!
//! Everything stored is specified in `docs/repository.md`.

pub mod columns;
pub mod error;
pub mod hex;
pub mod index;
pub mod item;
pub mod keys;
pub mod names;
pub mod object;
pub mod pack;
pub mod page_map;
pub mod repo;
pub mod store;
pub mod wire;

pub use error::{Damage, RepoError};
pub use keys::{KeyError, KeyMaterial, Password, Protection};
pub use names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo, SourceName};
pub use object::{ObjectKind, Place, RunSecrets};
pub use repo::Repo;
