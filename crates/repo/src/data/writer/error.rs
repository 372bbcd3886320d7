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
    /// The repository: the store failed, or the base could not be read.
    #[error(transparent)]
    Repo(#[from] RepoError),
    /// Compression failed.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The file as given is not valid.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: ItemPath,
        /// What is wrong.
        problem: FileProblem,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The caller has given up the writer.
    #[error("the writer was given up")]
    GivenUp,
    /// A thread of the writer panicked.
    #[error("a thread of the writer ended unexpectedly")]
    Lost,
    /// Something failed earlier: [`take_failure`](super::BackupWriter::take_failure) tells what.
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
    /// The bytes are not whole pages.
    #[error("{len} bytes are not a multiple of the page size {page_size}")]
    NotPages {
        /// Bytes given.
        len: usize,
        /// Page size of the file.
        page_size: usize,
    },
    /// A page within the file's size was never given.
    #[error("page {page} was never read")]
    PageMissing {
        /// The first such page.
        page: u64,
    },
    /// A page beyond the file's size was given.
    #[error("page {page} is beyond the end of the file ({page_count} pages)")]
    PageBeyondEnd {
        /// One such page.
        page: u64,
        /// Pages of the file.
        page_count: u64,
    },
    /// The file is still being read.
    #[error("was not read to its end")]
    NotEnded,
    /// The file has ended, or was dropped.
    #[error("is no longer open")]
    NotOpen,
    /// A range was to come after one that is not in the table.
    #[error("has no such range of rows")]
    NoSuchRange,
    /// A range of a table still takes rows, or was given up.
    #[error("has a range of rows that was not read to its end")]
    RangeNotEnded,
    /// Two things to be stored have the same path.
    #[error("is given twice")]
    Twice,
    /// The file breaks a rule of the format.
    #[error(transparent)]
    Format(FormatError),
}
