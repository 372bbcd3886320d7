//! Tests of the real program on a local repository; some of them also on database servers.

#![allow(clippy::unwrap_used, reason = "tests")]

mod archived;
mod backups;
mod binlogs;
mod bucket_storm;
mod copies;
mod hooks;
mod init;
mod json;
mod keys;
mod licences;
mod loads;
mod locks;
mod pitr;
mod program;
mod reader;
mod repository;
mod rows;
mod servers;
mod set_back;
mod stores;
mod surroundings;
mod terminal;
mod tidy;
mod usage;
