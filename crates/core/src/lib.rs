//! The operations on real servers: take backups, bring them back, archive binlogs, recover, diagnose.
//!
//! Silent: returns values and [`error::Error`]s, emits [`event::Event`]s; never prints, exits or reads the
//! environment.

// What all use. `points` are where tests stop the process, as `holdfast_repo::hooks` are a writer's.
mod child;
pub mod error;
pub mod event;
mod key_files;
pub mod meter;
pub mod points;
pub mod size;
pub mod usage;
mod watch;
mod work_place;

// A server: connections, locks, what it is, its programs.
pub mod server;

// Its data directory, captured while it writes: pages, redo, position.
pub mod source;

// What the head of a manifest says of a server, and of a physical backup of it.
pub mod head;
pub mod physical;

// Taking: what both kinds share, pages, and rows (with their export, import and load).
pub mod backup;
pub mod logical;
mod taking;

// Bringing back: into a directory; the archive of binlogs; both together; single tables out of them.
pub mod binlog;
pub mod extract;
pub mod recovery;
pub mod restore;

// Beside these.
pub mod copy;
pub mod doctor;

pub use error::{BENEATH_HINT, Context, Error, ErrorKind, HISTORY_HINT, Result};
pub use event::{Cancel, Event, Listener};
pub use taking::{REPORT_SCHEMA, RunReport, StageTime, await_housekeeping};
pub use watch::PhaseTime;
