//! The log of runs: which run writes, which backups stand, which are held
//! (`docs/reference/repository.md` sections 6a, 11 and 12).
//!
//! It depends on [`format`](crate::format) and on an opened [`repo`](crate::repo), and knows
//! pages and chunks by name only.

mod ask;
pub mod beneath;
pub mod check_record;
pub mod client;
pub mod history;
pub mod hold;
pub mod lease;
pub mod moves;
pub mod outcome;
pub mod run;
pub mod segment;
pub(crate) mod signed;
