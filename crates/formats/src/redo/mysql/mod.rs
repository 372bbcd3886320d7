//! The redo log of MySQL 8.0.30 and later: files `#ib_redoN` of 512-byte blocks, each covering a range of
//! LSNs.
//!
//! A log sequence number counts every byte of the blocks, headers and trailers included: byte `lsn` lies at
//! `2048 + lsn - start_lsn` of the file whose range contains it. Files follow each other without a gap.
//! Everything was verified on MySQL 9.7.4, format 6.

mod block;
mod file;

/// The directory of the log, in the data directory or in `innodb_log_group_home_dir`.
pub const DIRECTORY: &str = "#innodb_redo";

pub use block::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_TRAILER_BYTES, BlockHeader, BlockState, CutError, classify,
    cut_block, empty_block,
};
pub use file::{
    FILE_BYTES_MAX, FILE_HEADER_BYTES, RedoFile, RedoFileBuilder, RedoFileError, RedoFileHeader,
    RedoFileName, checkpoint, encryption_block, set_encryption_block,
};
