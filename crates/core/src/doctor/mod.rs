//! Finds what is wrong with a server or a repository, and what to do about it.
//!
//! A backup stops at the first problem. Here the same checks continue, and all problems are reported at once.

mod archive;
mod bucket;
mod finding;
mod repository;
mod server;
mod source;

pub use bucket::protection;
pub use finding::{Finding, Verdict};
pub use repository::{AgeMax, Asked, repository};
pub use server::server;
