//! Data that is read once for several repositories: each piece goes to every repository's writer, until that
//! writer fails.
//!
//! Invariants:
//! - A failure in one repository does not affect what the others get. Readers see an error only when no
//!   writer is left.
//! - Readers wait for the slowest. A writer that alone holds them up, for longer in all than the user allows,
//!   is given up. What counts is how much longer it has held up the readers than the writer that did so
//!   least.
//! - A writer whose store accepts nothing for too long is given up even if it is the only one. Readers may
//!   hold locks, and a network file system that is gone reports no error.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use holdfast_pipe::lock::{into_inner, lock};
use holdfast_repo::data::writer::BackupWriter;

use crate::error::{Error, ErrorKind, Result};

/// How often to check which writer holds up the others.
const SAMPLE: Duration = Duration::from_millis(250);

struct One<'a> {
    writer: &'a BackupWriter,
    has_failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Number of readers inside the writer now.
    inside: AtomicUsize,
    /// Whether it was not drained at the last check.
    undrained: AtomicBool,
    /// Number of samples in which it alone held up the readers.
    samples: AtomicU64,
    /// How many bytes had passed its stages, and for how many samples none have since. Counted in samples,
    /// not time, so that a store is not taken for silent because this process was frozen.
    silent: Mutex<(u64, u32)>,
}

/// The writers of several repositories.
pub(crate) struct Writers<'a>(Vec<One<'a>>);

impl<'a> Writers<'a> {
    pub(crate) fn new(writers: impl IntoIterator<Item = &'a BackupWriter>) -> Self {
        let one = |writer| One {
            writer,
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
            inside: AtomicUsize::new(0),
            undrained: AtomicBool::new(false),
            samples: AtomicU64::new(0),
            silent: Mutex::default(),
        };
        Self(writers.into_iter().map(one).collect())
    }

    /// Why each writer has failed, if it has.
    pub(super) fn into_failures(self) -> Vec<Option<Error>> {
        let failure = |one: One<'_>| {
            // May have stopped since the last call.
            let own = into_inner(one.failure);
            own.or_else(|| one.writer.take_failure().map(Error::from))
        };
        self.0.into_iter().map(failure).collect()
    }

    /// Calls each writer that has not failed, with its position. Fails if none is left.
    pub(crate) fn each(&self, mut call: impl FnMut(usize, &'a BackupWriter) -> Result<()>) -> Result<()> {
        let mut is_one_left = false;
        for (position, one) in self.0.iter().enumerate() {
            if one.has_failed.load(Relaxed) {
                continue;
            }
            let called = match self.0.len() {
                // A single writer holds up nobody, and a row costs less than this bookkeeping.
                1 => call(position, one.writer),
                _ => {
                    one.inside.fetch_add(1, Relaxed);
                    let called = call(position, one.writer);
                    one.inside.fetch_sub(1, Relaxed);
                    called
                }
            };
            match called {
                Ok(()) => is_one_left = true,
                Err(error) => one.fail(error),
            }
        }
        if is_one_left { Ok(()) } else { Err(self.first_failure()) }
    }

    /// Like [`each`](Self::each), but returns the results by position; `None` for writers that have failed.
    pub(crate) fn each_says<T>(
        &self,
        mut call: impl FnMut(usize, &'a BackupWriter) -> Result<T>,
    ) -> Result<Vec<Option<T>>> {
        let mut said: Vec<Option<T>> = self.0.iter().map(|_| None).collect();
        self.each(|position, writer| {
            said[position] = Some(call(position, writer)?);
            Ok(())
        })?;
        Ok(said)
    }

    /// Whether all writers have compressed what they were given.
    pub(crate) fn are_drained(&self) -> Result<bool> {
        let drained = self.each_says(|_, writer| Ok(writer.is_drained()?))?;
        for (one, is_drained) in self.0.iter().zip(&drained) {
            one.undrained.store(*is_drained == Some(false), Relaxed);
        }
        Ok(drained.iter().all(|is_drained| *is_drained != Some(false)))
    }

    fn first_failure(&self) -> Error {
        let first = self.0.iter().find_map(|one| lock(&one.failure).as_ref().map(Error::again));
        first.unwrap_or_else(|| Error::failed("there is no repository to write to"))
    }

    /// Watches the writers while `work` feeds them. Gives up a writer that holds up the others for longer
    /// than the current `patience`, and one whose store accepts nothing for `silence_max`.
    pub(crate) fn while_giving<T>(
        &self,
        patience: impl Fn() -> Duration + Send,
        silence_max: Duration,
        work: impl FnOnce() -> T,
    ) -> T {
        thread::scope(|scope| {
            // Dropped when the work is over, however it ends.
            let (_working, over) = mpsc::channel::<()>();
            scope.spawn(move || {
                self.0.iter().for_each(One::listen);
                while over.recv_timeout(SAMPLE) == Err(RecvTimeoutError::Timeout) {
                    self.give_up_the_slow(patience());
                    self.give_up_the_silent(silence_max);
                }
            });
            work()
        })
    }

    fn left(&self) -> impl Iterator<Item = &One<'a>> {
        self.0.iter().filter(|one| !one.has_failed.load(Relaxed))
    }

    fn give_up_the_slow(&self, patience: Duration) {
        let mut holding = self.left().filter(|it| it.inside.load(Relaxed) > 0 || it.undrained.load(Relaxed));
        let (Some(one), None) = (holding.next(), holding.next()) else { return };
        let samples = one.samples.fetch_add(1, Relaxed) + 1;
        let least = self.left().map(|one| one.samples.load(Relaxed)).min().unwrap_or_default();
        let most = u64::try_from(patience.as_millis() / SAMPLE.as_millis()).unwrap_or(u64::MAX).max(1);
        if self.left().count() > 1 && samples - least > most {
            let seconds = patience.as_secs();
            one.give_up(&format!(
                "given up: it held up the backup for {seconds} s longer than another repository"
            ));
        }
    }

    fn give_up_the_silent(&self, silence_max: Duration) {
        for one in self.left() {
            if one.silence() > silence_max {
                let seconds = silence_max.as_secs();
                one.give_up(&format!("given up: its store accepted no data for {seconds} s"));
            }
        }
    }
}

impl One<'_> {
    fn passed_bytes(&self) -> u64 {
        let meters = &self.writer.meters().pipeline;
        [&meters.compress, &meters.seal, &meters.upload, &meters.finish]
            .iter()
            .map(|stage| stage.bytes())
            .sum()
    }

    /// Starts to count silence from now.
    fn listen(&self) {
        *lock(&self.silent) = (self.passed_bytes(), 0);
    }

    /// Takes one more sample. Returns for how long nothing has moved of what the writer was given.
    fn silence(&self) -> Duration {
        let (is_drained, passed_bytes) = (self.writer.is_drained().unwrap_or(true), self.passed_bytes());
        let mut silent = lock(&self.silent);
        let samples = if is_drained || silent.0 != passed_bytes { 0 } else { silent.1.saturating_add(1) };
        *silent = (passed_bytes, samples);
        SAMPLE * samples
    }

    /// Lets readers continue without it, even while its store does not answer.
    fn give_up(&self, why: &str) {
        self.fail(Error::new(ErrorKind::Store, why.to_owned()));
        self.writer.give_up();
    }

    /// The first failure counts, and the writer's own error is preferred to the one that its caller got.
    fn fail(&self, error: Error) {
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            *failure = Some(self.writer.take_failure().map_or(error, Error::from));
        }
        self.has_failed.store(true, Relaxed);
    }
}
