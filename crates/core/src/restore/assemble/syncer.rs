//! Makes complete files durable while the next ones are written.
//!
//! A file is synced before it is closed, through the descriptor that wrote it, so that no writeback error is
//! lost. Filesystems commit several syncs together, so many threads wait at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::file::TargetFile;
use crate::error::{Context, Error, Result};

const THREADS: usize = 16;
/// Files that wait to be synced; they stay open.
const QUEUE: usize = 256;

/// Threads that sync files and close them.
pub(super) struct Syncer {
    files: Option<Sender<TargetFile>>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// Whether the restore has failed, so that nothing needs to be durable.
    stopped: Arc<AtomicBool>,
}

impl Syncer {
    pub(super) fn start() -> Result<Self> {
        let (sender, receiver) = bounded(QUEUE);
        let mut syncer = Self { files: Some(sender), threads: Vec::new(), stopped: Arc::default() };
        for _ in 0..THREADS {
            let (files, stopped) = (receiver.clone(), Arc::clone(&syncer.stopped));
            let thread =
                thread::Builder::new().name("sync".to_owned()).spawn(move || sync_all(&files, &stopped));
            syncer.threads.push(thread.context("start a thread")?);
        }
        Ok(syncer)
    }

    /// Takes a complete file; waits while too many are being synced.
    pub(super) fn push(&mut self, file: TargetFile) -> Result<()> {
        match self.files.as_ref().map(|files| files.send(file)) {
            Some(Ok(())) => Ok(()),
            // All threads have ended, which only an error causes.
            _ => self.finish().and(Err(Error::failed("the restored files could not be synced"))),
        }
    }

    /// Waits until everything is durable.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.files = None;
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let this = thread.join().unwrap_or_else(|_| Err(Error::failed("a syncing thread panicked")));
            result = result.and(this);
        }
        result
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Nobody listens any more.
        let _ = self.finish();
    }
}

fn sync_all(files: &Receiver<TargetFile>, stopped: &AtomicBool) -> Result<()> {
    for file in files {
        if !stopped.load(Ordering::Relaxed) {
            file.sync()?;
        }
    }
    Ok(())
}
