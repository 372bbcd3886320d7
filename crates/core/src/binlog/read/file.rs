//! A server's file, reassembled from its stretches.

use std::ops::ControlFlow;

use holdfast_formats::binlog::FILE_MAGIC;
use serde::Serialize;

use super::{Archive, ArchivedStretch};
use crate::{
    binlog::recorder::FILE_BEGIN,
    error::{Error, Result},
};

/// What was written of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FileContent {
    /// Where it begins in the server's file; 4 is the beginning of the file.
    pub begin: u64,
    /// Where it ends in the server's file.
    pub end: u64,
    /// Bytes written.
    pub bytes: u64,
}

impl Archive {
    /// Gives `sink` the newest file of this name as a binlog file: the server's bytes, as far as they are
    /// archived without a gap. If its beginning is not archived, the file's first event takes its place.
    pub fn file(&self, name: &str, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<FileContent> {
        let is_it = |archived: &ArchivedStretch| archived.stretch.file == name;
        let last = self.stretches.iter().rposition(is_it);
        let last = last.ok_or_else(|| {
            Error::failed(format!("the archive of {} has no file {name}", self.log.source))
                .hinted("\"holdfast binlog list\" shows the files")
        })?;
        let mut first = last;
        while first > 0
            && is_it(&self.stretches[first - 1])
            && self.stretches[first].gap.is_none()
            && self.stretches[first].stretch.begin != FILE_BEGIN
        {
            first -= 1;
        }
        let begin = self.stretches[first].stretch.begin;
        let mut bytes = FILE_MAGIC.len() as u64;
        sink(&FILE_MAGIC)?;
        if begin != FILE_BEGIN {
            let format = self.stretches[first].stretch.format_bytes()?;
            bytes += format.len() as u64;
            sink(&format)?;
        }
        self.events(first..last + 1, &mut |_, _, event| {
            bytes += event.len() as u64;
            sink(event).map(ControlFlow::Continue)
        })?;
        Ok(FileContent { begin, end: self.stretches[last].end, bytes })
    }
}
