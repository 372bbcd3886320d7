//! Tests of the real program on a local repository; only `servers` and `rows` use database servers.

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
