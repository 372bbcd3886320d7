//! The operations on real servers: take backups, restore them, archive binlogs, recover, diagnose.
//!
//! The library is silent: it returns values and [`error::Error`]s and emits [`event::Event`]s; it never
//! prints, exits or reads the environment.

// Used everywhere. `points` are where tests stop the process; `holdfast_repo::hooks` are the same in a
// writer.
mod child;
mod data_directory;
pub mod error;
pub mod event;
mod foreign_files;
mod key_files;
pub mod meter;
mod name_list;
pub mod points;
mod real_path;
pub mod size;
pub mod usage;
mod watch;
mod work_place;

// A server: connections, locks, its facts, its programs.
pub mod server;

// Its data directory, captured while it writes: pages, redo, position.
pub mod source;

// What a manifest head says about a server, and about a backup of it.
pub mod captured_redo;
pub mod head;
pub mod position;

// Taking backups: what both kinds share, physical ones, and logical ones (with their export, import and
// load).
pub mod backup;
pub mod logical;
mod taking;

// Restoring: into a directory; the archive of binlogs; both together; single tables from them.
pub mod binlog;
pub mod extract;
pub mod recovery;
pub mod restore;

// Other operations.
pub mod copy;
pub mod doctor;

pub use error::{BENEATH_HINT, Context, Error, ErrorKind, HISTORY_HINT, NEWER_HINT, Result};
pub use event::{Cancel, Event, Listener};
pub use taking::{REPORT_SCHEMA, RunReport, StageTime, await_housekeeping};
pub use watch::PhaseTime;
