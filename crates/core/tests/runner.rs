//! Tests of the operations on real servers: one binary, with a module per subject.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod binlog;
mod capture;
mod extract;
mod freeze;
mod fuzz_seeds;
mod import;
mod listeners;
mod load;
mod logical;
mod mounts;
mod physical;
mod recovery;
mod restore;
mod scale;
mod server;
mod several;
