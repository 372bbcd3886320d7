//! Why a backup could not be written.

use holdfast_pipe::CodecError;
use thiserror::Error;

use crate::{
    error::RepoError,
    format::{item::ItemPath, wire::FormatError},
    store::StoreError,
};

/// Why a backup could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The repository: the store, or what was read of the base.
    #[error(transparent)]
    Repo(#[from] RepoError),
    /// Compression failed.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// What was given for a file cannot be a file.
    #[error("{path}: {problem}")]
    File {
        /// Which.
        path: ItemPath,
        /// What is wrong.
        problem: FileProblem,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// Whoever gave it pages has given it up.
    #[error("the writer was given up")]
    GivenUp,
    /// A thread of the writer panicked.
    #[error("a thread of the writer ended without a word")]
    Lost,
    /// Something failed before: [`BackupWriter::failure`](super::BackupWriter::failure) says what.
    #[error("the writer has stopped after an earlier error")]
    Stopped,
}

impl From<StoreError> for WriteError {
    fn from(error: StoreError) -> Self {
        Self::Repo(error.into())
    }
}

/// What is wrong with a file as it was given.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FileProblem {
    /// Not whole pages.
    #[error("{len} bytes are no whole pages of {page_size}")]
    NotPages {
        /// As given.
        len: usize,
        /// Of the file.
        page_size: usize,
    },
    /// A page within the size was never given.
    #[error("page {page} was never read")]
    PageMissing {
        /// The first such.
        page: u64,
    },
    /// A page beyond the size was given.
    #[error("page {page} is beyond the end at page {page_count}")]
    PageBeyondEnd {
        /// One such.
        page: u64,
        /// Pages of the file.
        page_count: u64,
    },
    /// The file is still being read.
    #[error("was not read to its end")]
    NotEnded,
    /// It ended, or was dropped.
    #[error("is no longer open")]
    NotOpen,
    /// A range of a table was to come after one that is none of it.
    #[error("has no such range")]
    NoSuchRange,
    /// A range of a table still takes rows, or was given up.
    #[error("has a range of rows that was not read to its end")]
    RangeNotEnded,
    /// Two things that are to be stored have one path.
    #[error("is given twice")]
    Twice,
    /// It breaks a rule of the format.
    #[error(transparent)]
    Format(FormatError),
}
