//! The repository as its users see it: one binary, a module for each subject.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod log;
mod model;
