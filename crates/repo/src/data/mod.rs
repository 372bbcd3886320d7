//! The way of the data: pages, rows and whole files into packs, and out of them again.
//!
//! It leans on [`log`](crate::log): what is written belongs to a run, and what is read to a backup that stands.

pub mod local_maps;
pub mod reader;
pub mod writer;
