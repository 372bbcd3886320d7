//! The repository as its users see it: one binary, a module for each subject.

mod log;
mod model;
