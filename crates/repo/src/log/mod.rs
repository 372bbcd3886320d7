//! The log of runs: who writes, what stands, what is held (`docs/reference/repository.md` sections 6a, 11 and 12).
//!
//! It leans on [`format`](crate::format) and on an opened [`repo`](crate::repo), and knows nothing of pages and chunks but
//! their names.

pub mod beneath;
pub mod check_record;
pub mod client;
pub mod history;
pub mod hold;
pub mod lease;
pub mod moves;
pub mod outcome;
mod room;
pub mod run;
pub mod segment;
