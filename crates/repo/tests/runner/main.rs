//! Tests of the repository as its users see it: one binary, with a module per subject.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod log;
mod model;
