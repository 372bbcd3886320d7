//! Operations on a repository besides writing and reading backups: checking, copying, dropping, freeing,
//! repairing, changing keys, and reporting what takes the space.
//!
//! Every operation that changes which backups stand is a run of the [`log`](crate::log). These modules depend
//! on everything else in this crate, and nothing depends on them.

pub mod check;
pub mod compression;
pub mod copy;
pub mod expire;
pub mod hold;
pub mod keys;
pub mod object_lock;
pub mod prune;
pub mod repair;
pub mod retention;
pub mod space;
mod stored;

pub use stored::suspects;
