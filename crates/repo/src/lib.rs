//! The repository: store, keys, packs, page maps, manifests, the log of runs.
//!
//! Everything stored is specified in `docs/repository.md`.

pub mod names;
pub mod store;

pub use names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo, SourceName};
