//! One capture into several repositories: each event goes to all of them.

use std::sync::RwLock;

use holdfast_pipe::lock::{read, write};

use super::sink::WriterSink;
use crate::{
    error::{Error, Result},
    source::{FileId, FileSpec, Pages, Sink},
    taking::Writers,
};

/// The writers of several repositories as one sink.
pub(super) struct Tee<'a> {
    writers: &'a Writers<'a>,
    /// The id of each file in each of the writers.
    files: RwLock<Vec<Vec<Option<FileId>>>>,
}

impl<'a> Tee<'a> {
    pub(super) fn new(writers: &'a Writers<'a>) -> Self {
        Self { writers, files: RwLock::default() }
    }

    fn of_file(&self, file: FileId, call: impl Fn(WriterSink<'_>, FileId) -> Result<()>) -> Result<()> {
        let files = read(&self.files);
        let ids = usize::try_from(file.0).ok().and_then(|position| files.get(position)).cloned();
        drop(files);
        let ids = ids.ok_or_else(|| Error::failed("a file was sent that had not begun"))?;
        self.writers.each(|position, writer| match ids.get(position).copied().flatten() {
            Some(id) => call(WriterSink::new(writer), id),
            None => Err(Error::failed("a file was sent that had not begun")),
        })
    }
}

impl Sink for Tee<'_> {
    fn file_begin(&self, spec: FileSpec) -> Result<FileId> {
        let ids = self.writers.each_says(|_, writer| WriterSink::new(writer).file_begin(spec.clone()))?;
        let mut files = write(&self.files);
        files.push(ids);
        Ok(FileId(files.len() as u64 - 1))
    }

    fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()> {
        self.of_file(file, |sink, id| sink.pages(id, pages))
    }

    fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()> {
        self.of_file(file, |sink, id| sink.file_end(id, size_bytes))
    }

    fn file_renamed(&self, file: FileId, path: &str) -> Result<()> {
        self.of_file(file, |sink, id| sink.file_renamed(id, path))
    }

    fn file_gone(&self, file: FileId) -> Result<()> {
        self.of_file(file, |sink, id| sink.file_gone(id))
    }

    fn directory(&self, path: &str, mode: u16) -> Result<()> {
        self.writers.each(|_, writer| WriterSink::new(writer).directory(path, mode))
    }

    fn directory_gone(&self, path: &str) -> Result<()> {
        self.writers.each(|_, writer| WriterSink::new(writer).directory_gone(path))
    }

    fn is_drained(&self) -> Result<bool> {
        self.writers.are_drained()
    }
}
