//! From what was typed to what it means: the repository, the server, the backup.

pub(crate) mod repository;
pub(crate) mod select;
pub(crate) mod server;
