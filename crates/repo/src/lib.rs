//! The repository: store, keys, packs, page maps, manifests, the log of runs.
//!
//! Everything stored is specified in `docs/repository.md`.

pub mod columns;
pub mod index;
pub mod item;
pub mod names;
pub mod pack;
pub mod page_map;
pub mod store;
pub mod wire;

pub use names::{ChunkRef, Folder, Kind, LogName, PackId, RunNo, SourceName};
