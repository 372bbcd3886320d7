//! Tests of the repository as its users see it: one binary, with a module per subject. Except for the
//! [`model`], they are end to end: pages and rows in, a repository in memory, the same pages and rows out.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

mod copies;
mod damage;
mod forgeries;
mod hidden;
mod incremental;
mod interrupt;
mod model;
mod newer;
mod prune;
mod prune_faults;
mod repair;
mod resume;
mod round_trip;
mod rows;
mod rows_faults;
mod sealed_packs;
mod space;
mod tamper;
mod unread;
mod unreadable;
mod world;
mod writer_role;
mod years;
