//! What is read once, for several repositories: each piece goes to the writer of each of them, until that fails.
//!
//! Invariants:
//! - What one repository does is of no concern to what the others get: it fails alone. Only when none is left the reader
//!   hears of it.
//! - Readers wait for the slowest. One that holds them up alone, for longer in all than the user has patience, is given
//!   up: it counts how much longer each has held up the readers than the one that did so least.
//! - One whose store takes nothing for that long is given up even when it is the only one. Readers may hold locks, and a
//!   network file system that is gone gives no error.

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

/// How often it is looked who holds up whom.
const SAMPLE: Duration = Duration::from_millis(250);

struct One<'a> {
    writer: &'a BackupWriter,
    has_failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Readers in it now.
    inside: AtomicUsize,
    /// It was not drained when that was asked last.
    undrained: AtomicBool,
    /// In how many samples it held up the readers alone.
    samples: AtomicU64,
    /// How many bytes had passed its stages, and in how many samples since then none has. Samples, not time: a process that
    /// was frozen is none whose store was silent.
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

    /// Why each of them has failed, if it has.
    pub(super) fn into_failures(self) -> Vec<Option<Error>> {
        let failure = |one: One<'_>| {
            // What stopped a writer that nobody has asked since.
            let own = into_inner(one.failure);
            own.or_else(|| one.writer.failure().map(Error::from))
        };
        self.0.into_iter().map(failure).collect()
    }

    /// Calls each that has not failed, with its position. Fails when none is left.
    pub(crate) fn each(&self, mut call: impl FnMut(usize, &'a BackupWriter) -> Result<()>) -> Result<()> {
        let mut is_one_left = false;
        for (position, one) in self.0.iter().enumerate() {
            if one.has_failed.load(Relaxed) {
                continue;
            }
            let called = match self.0.len() {
                // It holds up nobody, and a row costs less than to say so.
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

    /// The same, with what each has said, by position; `None` of those that have failed.
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

    /// Whether all of them have compressed what they were given.
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

    /// While `work` gives them something: gives up a writer that holds up the others for longer than `patience` at that
    /// time, and one whose store takes nothing for `silence_max`.
    pub(crate) fn while_giving<T>(
        &self,
        patience: impl Fn() -> Duration + Send,
        silence_max: Duration,
        work: impl FnOnce() -> T,
    ) -> T {
        thread::scope(|scope| {
            // Hung up when the work is over, however it ends.
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
                "it held up the backup for {seconds} s longer than another repository, and was given up"
            ));
        }
    }

    fn give_up_the_silent(&self, silence_max: Duration) {
        for one in self.left() {
            if one.silence() > silence_max {
                let seconds = silence_max.as_secs();
                one.give_up(&format!("its store took nothing for {seconds} s, and it was given up"));
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

    /// Silence begins to count now.
    fn listen(&self) {
        *lock(&self.silent) = (self.passed_bytes(), 0);
    }

    /// One more sample: for how long nothing has moved of what it was given.
    fn silence(&self) -> Duration {
        let (is_drained, passed_bytes) = (self.writer.is_drained().unwrap_or(true), self.passed_bytes());
        let mut silent = lock(&self.silent);
        let samples = if is_drained || silent.0 != passed_bytes { 0 } else { silent.1.saturating_add(1) };
        *silent = (passed_bytes, samples);
        SAMPLE * samples
    }

    /// Readers go on without it, even while its store does not answer.
    fn give_up(&self, why: &str) {
        self.fail(Error::new(ErrorKind::Store, why.to_owned()));
        self.writer.give_up();
    }

    /// The first failure counts, and what the writer says of it more than what its caller heard.
    fn fail(&self, error: Error) {
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            *failure = Some(self.writer.failure().map_or(error, Error::from));
        }
        self.has_failed.store(true, Relaxed);
    }
}
