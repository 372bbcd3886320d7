//! What is done with a repository besides writing and reading backups: checking, copying, dropping, freeing, repairing,
//! and telling what takes the space.
//!
//! Whatever changes what stands is a run of the [`log`](crate::log). These lean on everything else in this crate, and
//! nothing leans on them.

pub mod check;
pub mod compression;
pub mod copy;
pub mod expire;
pub mod object_lock;
pub mod prune;
pub mod repair;
pub mod retention;
pub mod space;
