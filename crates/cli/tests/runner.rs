//! The real program, on a local repository; with servers in `servers` and `rows` only.

#![allow(clippy::unwrap_used, reason = "tests")]

mod backups;
mod binlogs;
mod copies;
mod hooks;
mod init;
mod json;
mod keys;
mod licences;
mod locks;
mod pitr;
mod program;
mod reader;
mod repository;
mod rows;
mod servers;
mod stores;
mod surroundings;
mod terminal;
mod usage;
