//! The data path: pages, rows and whole files into packs, and back out of them.
//!
//! Builds on [`log`](crate::log): everything written belongs to a run, and
//! everything read to a backup that stands.

pub mod local_maps;
pub(crate) mod pack_signature;
pub mod reader;
pub mod writer;
