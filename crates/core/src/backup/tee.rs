//! One capture into several repositories: each event goes to each of them, until it fails.
//!
//! Invariants:
//! - What one repository does is of no concern to what the others get: it fails alone. Only when none is left the
//!   capture hears of it.
//! - Readers wait for the slowest. One that holds them up alone, for longer in all than the user has patience, is given
//!   up: it counts how much longer each has held up the capture than the one that did so least.

use std::{
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use holdfast_pipe::lock::{into_inner, lock, read, write};
use holdfast_repo::writer::BackupWriter;

use super::sink::WriterSink;
use crate::{
    error::{Error, ErrorKind, Result},
    source::{FileId, FileSpec, Pages, Sink},
};

/// How often it is looked who holds up whom.
const SAMPLE: Duration = Duration::from_millis(250);

struct Branch<'a> {
    writer: &'a BackupWriter,
    sink: WriterSink<'a>,
    has_failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Readers in it now.
    inside: AtomicUsize,
    /// It was not drained when that was asked last.
    undrained: AtomicBool,
    /// In how many samples it held up the capture alone.
    samples: AtomicU64,
}

/// The writers of several repositories as one sink.
pub(super) struct Tee<'a> {
    branches: Vec<Branch<'a>>,
    /// What each file is to each of them.
    files: RwLock<Vec<Vec<Option<FileId>>>>,
}

impl<'a> Tee<'a> {
    pub(super) fn new(writers: impl IntoIterator<Item = &'a BackupWriter>) -> Self {
        let branch = |writer| Branch {
            writer,
            sink: WriterSink::new(writer),
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
            inside: AtomicUsize::new(0),
            undrained: AtomicBool::new(false),
            samples: AtomicU64::new(0),
        };
        Self { branches: writers.into_iter().map(branch).collect(), files: RwLock::default() }
    }

    /// Why each of them has failed, if it has.
    pub(super) fn into_failures(self) -> Vec<Option<Error>> {
        let failure = |branch: Branch<'_>| {
            // What stopped a writer that nobody has asked since.
            let own = into_inner(branch.failure);
            own.or_else(|| branch.writer.failure().map(Error::from))
        };
        self.branches.into_iter().map(failure).collect()
    }

    fn each<T>(&self, call: impl Fn(usize, &WriterSink<'_>) -> Result<T>) -> Result<Vec<Option<T>>> {
        let mut done = Vec::with_capacity(self.branches.len());
        for (position, branch) in self.branches.iter().enumerate() {
            if branch.has_failed.load(Relaxed) {
                done.push(None);
                continue;
            }
            branch.inside.fetch_add(1, Relaxed);
            let called = call(position, &branch.sink);
            branch.inside.fetch_sub(1, Relaxed);
            done.push(called.map_err(|error| branch.fail(error)).ok());
        }
        self.any_left()?;
        Ok(done)
    }

    /// The first failure, where all have failed.
    fn any_left(&self) -> Result<()> {
        if self.branches.iter().any(|branch| !branch.has_failed.load(Relaxed)) {
            return Ok(());
        }
        let first = self.branches.iter().find_map(|branch| {
            let failure = lock(&branch.failure);
            failure.as_ref().map(Error::again)
        });
        Err(first.unwrap_or_else(|| Error::failed("there is no repository to write to")))
    }

    fn of_file<T>(
        &self,
        file: FileId,
        call: impl Fn(&WriterSink<'_>, FileId) -> Result<T>,
    ) -> Result<Vec<Option<T>>> {
        let files = read(&self.files);
        let ids = usize::try_from(file.0).ok().and_then(|position| files.get(position)).cloned();
        drop(files);
        let ids = ids.ok_or_else(|| Error::failed("a file was sent that had not begun"))?;
        self.each(|position, sink| match ids.get(position).copied().flatten() {
            Some(id) => call(sink, id),
            None => Err(Error::failed("a file was sent that had not begun")),
        })
    }

    /// Until `ended` closes: gives up who holds up the others for longer than `patience`.
    pub(super) fn watch(&self, ended: &Receiver<()>, patience: Duration) {
        let most = u64::try_from(patience.as_millis() / SAMPLE.as_millis()).unwrap_or(u64::MAX).max(1);
        while ended.recv_timeout(SAMPLE) == Err(RecvTimeoutError::Timeout) {
            let left = || self.branches.iter().filter(|branch| !branch.has_failed.load(Relaxed));
            let mut holding = left().filter(|it| it.inside.load(Relaxed) > 0 || it.undrained.load(Relaxed));
            let (Some(one), None) = (holding.next(), holding.next()) else { continue };
            let samples = one.samples.fetch_add(1, Relaxed) + 1;
            let least = left().map(|branch| branch.samples.load(Relaxed)).min().unwrap_or_default();
            if left().count() > 1 && samples - least > most {
                let text = format!(
                    "it held up the backup for {} s longer than another repository, and was given up",
                    patience.as_secs()
                );
                one.fail(Error::new(ErrorKind::Store, text));
                one.writer.give_up();
            }
        }
    }
}

impl Branch<'_> {
    /// The first failure counts, and what the writer says of it more than what its caller heard.
    fn fail(&self, error: Error) {
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            *failure = Some(self.writer.failure().map_or(error, Error::from));
        }
        self.has_failed.store(true, Relaxed);
    }
}

impl Sink for Tee<'_> {
    fn file_begin(&self, spec: FileSpec) -> Result<FileId> {
        let ids = self.each(|_, sink| sink.file_begin(spec.clone()))?;
        let mut files = write(&self.files);
        files.push(ids);
        Ok(FileId(files.len() as u64 - 1))
    }

    fn pages(&self, file: FileId, pages: Pages<'_>) -> Result<()> {
        self.of_file(file, |sink, id| sink.pages(id, pages)).map(drop)
    }

    fn file_end(&self, file: FileId, size_bytes: u64) -> Result<()> {
        self.of_file(file, |sink, id| sink.file_end(id, size_bytes)).map(drop)
    }

    fn file_renamed(&self, file: FileId, path: &str) -> Result<()> {
        self.of_file(file, |sink, id| sink.file_renamed(id, path)).map(drop)
    }

    fn file_gone(&self, file: FileId) -> Result<()> {
        self.of_file(file, |sink, id| sink.file_gone(id)).map(drop)
    }

    fn directory(&self, path: &str, mode: u16) -> Result<()> {
        self.each(|_, sink| sink.directory(path, mode)).map(drop)
    }

    fn directory_gone(&self, path: &str) -> Result<()> {
        self.each(|_, sink| sink.directory_gone(path)).map(drop)
    }

    fn is_drained(&self) -> Result<bool> {
        let drained = self.each(|_, sink| sink.is_drained())?;
        for (branch, is_drained) in self.branches.iter().zip(&drained) {
            branch.undrained.store(*is_drained == Some(false), Relaxed);
        }
        Ok(drained.iter().all(|is_drained| *is_drained != Some(false)))
    }
}
