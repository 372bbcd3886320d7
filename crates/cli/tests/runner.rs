//! The real program on a local repository, without servers.

#![allow(clippy::unwrap_used, reason = "tests")]

mod backups;
mod init;
mod json;
mod licences;
mod program;
mod repository;
mod usage;
