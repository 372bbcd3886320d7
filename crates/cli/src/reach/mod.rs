//! Resolves what was typed: the repository, the server, the backup.

pub(crate) mod key_errors;
pub(crate) mod repository;
pub(crate) mod select;
pub(crate) mod server;
