//! The operations: backup, restore, prepare, against real servers.
//!
//! Silent: returns values and [`error::Error`]s, emits [`event::Event`]s; never prints, exits or reads the
//! environment.

pub mod backup;
pub mod binlog;
pub mod copy;
pub mod doctor;
pub mod error;
pub mod event;
pub mod extract;
mod key_files;
pub mod logical;
pub mod physical;
pub mod points;
pub mod recovery;
pub mod restore;
pub mod server;
pub mod source;
pub mod usage;
mod work_place;

pub use error::{BENEATH_HINT, Context, Error, ErrorKind, HISTORY_HINT, Result};
pub use event::{Cancel, Event, Listener};
