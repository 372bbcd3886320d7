//! End-to-end tests of the data path: pages in, a repository in memory, the same pages out.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

mod copies;
mod damage;
mod forgeries;
mod hidden;
mod incremental;
mod interrupt;
mod prune;
mod repair;
mod resume;
mod round_trip;
mod rows;
mod rows_faults;
mod space;
mod tamper;
mod unread;
mod world;
mod writer_role;
mod years;
