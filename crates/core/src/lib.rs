//! The operations: backup, restore, prepare, against real servers.
