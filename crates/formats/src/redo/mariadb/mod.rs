//! The redo log of MariaDB 10.8 and later: one circular file, `ib_logfile0`.
//!
//! | offset | content |
//! |---|---|
//! | 0 | 512 bytes of header: [`LogHeader`] |
//! | 0x1000, 0x2000 | 64 bytes of [`Checkpoint`] each; the newest valid one counts |
//! | 0x3000 | the circle, to the end of the file: mini-transactions without block structure ([`MtrWalker`]) |
//!
//! A log sequence number counts the bytes of the circle; the header tells where the byte at an LSN lies in
//! the file. Captured redo is kept *linear*: from a checkpoint on, with every marker byte 1, so that it fits
//! a log that never wrapped ([`LinearLog`]). Everything was verified on MariaDB 10.11.19 and 11.8.6, which
//! write the same format.

mod header;
mod linear;
mod mtr;
mod relocate;

pub use header::{Checkpoint, DATA_START, LogHeader, LogHeaderError};
pub use linear::{LinearLog, LinearLogError};
pub use mtr::{FileOp, FileOpKind, MtrWalker, WalkStop, Walked, hidden_bytes};
pub use relocate::{AbsolutePaths, CopiedFiles, Dropped, PathRelocator, RelocateError, Relocated};

#[cfg(test)]
mod tests;
