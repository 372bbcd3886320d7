//! A directory that a restore writes into, and the only way it touches anything below it.
//!
//! Paths come from a manifest, and what is in the directory may come from anybody. So the kernel resolves
//! every name beneath the directory's own descriptor and without following a link (`openat2`, Linux 5.6): a
//! path that leads outside, or through a planted link, is an error and never a write elsewhere. Only regular
//! files and directories are made, except for the links that a mapping asks for,
//! and no mode has more than permission bits.
//!
//! - [`tree`]: the directory, and what is below it.
//! - [`in_use`], [`server_locks`]: whether a server runs on it.
//! - [`survey`]: what is there before a restore.
//! - [`claim`]: the restore's right to it, from the first write to the report. [`marker`] is what a restore leaves
//!   there meanwhile, under one of the [`names`] that it has for its own files.

pub(super) mod claim;
pub(super) mod in_use;
mod io_error;
pub(super) mod marker;
pub(super) mod names;
mod server_locks;
pub(super) mod survey;
mod tree;

pub(super) use self::{
    io_error::io_failed,
    tree::{DIRECTORY_MODE, Found, FoundKind, Room, Tree, create_durably},
};
