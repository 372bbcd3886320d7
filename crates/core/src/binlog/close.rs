//! Closing: what the last archiver of a server that is gone has left in segments goes into packs, as if it had been
//! stopped. Otherwise the next archiver does this, but there will be none.
//!
//! Nothing keeps an archiver from continuing the archive later. But a spool that has more than the repository comes
//! too late then: the archive goes on without it.

use std::sync::Arc;

use holdfast_repo::{LogName, Repo, RunNo, data::writer::WriterOptions, log::run::RunOptions};

use super::{run::ArchiveRun, stretch::Place};
use crate::error::{Error, ErrorKind, Result};

/// How an archive was closed.
#[derive(Debug, Default)]
pub struct Closed {
    /// The run that has in packs what was left in segments; `None` if nothing was.
    pub into: Option<RunNo>,
    /// Bytes of its events.
    pub bytes: u64,
    /// Where the archive ends; `None` if it is empty.
    pub until: Option<Place>,
    /// What is wrong with segments that cannot be read. The archive ends before them, and what else was left stays
    /// until a repair has given them up.
    pub unreadable: Vec<String>,
}

/// Closes an archive.
///
/// # Errors
/// The key cannot read, or a run of the archive is active.
pub fn close(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &RunOptions,
    writer: &WriterOptions,
) -> Result<Closed> {
    if !repo.can_read() {
        return Err(Error::new(ErrorKind::Key, "closing an archive takes an operator's key"));
    }
    let mut never_wait = |_: &_| false;
    let (mut run, recorder, _) = ArchiveRun::begin(repo, log, None, options, writer, None, &mut never_wait)?;
    let mut closed = Closed { unreadable: std::mem::take(&mut run.unreadable), ..Closed::default() };
    let Some(mut recorder) = recorder else {
        run.give_up("there is no archive");
        return Ok(closed);
    };
    closed.until = recorder.tail().map(|tail| tail.place);
    if let Some(mut ended) = run.finish(&mut recorder)? {
        (closed.into, closed.bytes) = (Some(ended.run), ended.bytes);
        ended.wait();
    }
    Ok(closed)
}
