//! Redo logs: what a copy needs to follow, cut and rebuild one. Nothing here applies redo.

pub mod encryption_change;
pub mod file_delete;
pub mod index_load;
pub mod mariadb;
pub mod mysql;
pub mod page_allocation;
pub mod search;
