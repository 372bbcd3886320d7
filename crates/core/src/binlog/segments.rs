//! What is durable before a run ends: batches of events, stored in order by a separate thread. If this host's
//! disk counts as durable, the thread stores them there, and another thread sends them on.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use holdfast_pipe::lock::lock;
use holdfast_repo::{
    LogName, Repo, RepoError, RunNo,
    log::{
        run::Run,
        segment::{SealedSegment, SegmentWriter, is_ended, store_sealed},
    },
};

use super::{backoff::Backoff, batch::Batch, spool::Spool, stretch::Tail};
use crate::error::{Error, ErrorKind, Result};

/// What the storing thread reports.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Longest time from the first event of a batch until it was durable.
    pub(super) lag_max: Duration,
    /// Sum of these times over all stored segments.
    pub(super) lag_sum: Duration,
    /// Segments stored.
    pub(super) stored: u64,
    /// How long it took to seal and store the last one.
    pub(super) takes: Duration,
    /// Where the last one ends.
    pub(super) tail: Option<Tail>,
    /// Whether the repository has taken one of them.
    pub(super) has_stored: bool,
    /// Why the repository takes nothing at the moment.
    pub(super) failing: Option<String>,
    /// Why the spool takes nothing at the moment.
    pub(super) spool_failing: Option<String>,
    /// Why nothing will be stored any more.
    pub(super) failed: Option<Error>,
}

struct Job {
    tail: Tail,
    batch: Batch,
}

/// Stores the segments of one run.
pub(super) struct Segments {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    sender: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    /// Batches that are handed over and not stored yet.
    pending: AtomicUsize,
    is_given_up: AtomicBool,
    is_ousted: AtomicBool,
}

impl Segments {
    /// Starts storing the segments of a run that has begun. With a spool, what is in it is durable.
    pub(super) fn start(run: &Run, spool: Option<&Arc<Spool>>) -> Result<Self> {
        let (jobs, received) = bounded(1);
        let shared = Arc::<Shared>::default();
        let writer = run.segment_writer();
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
            thread.map_err(|error| Error::failed(format!("start a thread: {error}")))
        };
        let mut sender = None;
        let near = match spool {
            None => None,
            Some(spool) => {
                let (kept, to_send) = unbounded();
                let work = SpoolSender {
                    spool: Arc::clone(spool),
                    repo: Arc::clone(run.repo()),
                    log: run.log().clone(),
                    run: run.no(),
                    shared: Arc::clone(&shared),
                };
                sender = Some(spawn("send segments", Box::new(move || work.send_all(&to_send)))?);
                Some(Near { spool: Arc::clone(spool), run: run.no(), kept })
            }
        };
        let thread = spawn("segments", {
            let shared = Arc::clone(&shared);
            Box::new(move || store_all(writer, near, &received, &shared))
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), sender, shared })
    }

    /// Hands the batch over if it is due or full and the thread is free.
    pub(super) fn offer(
        &self,
        batch: &mut Batch,
        tail: impl FnOnce() -> Option<Tail>,
        age: Duration,
    ) -> Result<()> {
        let is_due = batch.ack.is_some() || self.due_in(batch, age).is_some_and(|due| due.is_zero());
        if is_due || batch.is_full() {
            self.hand_over(batch, tail)?;
        }
        Ok(())
    }

    /// Hands the batch over if the thread is free. Returns whether everything received so far is stored, and
    /// acknowledged if a server waits for that.
    pub(super) fn hand_over(&self, batch: &mut Batch, tail: impl FnOnce() -> Option<Tail>) -> Result<bool> {
        self.check()?;
        if batch.bytes() == 0 {
            let is_all_stored = self.shared.pending.load(Ordering::Acquire) == 0;
            // The event was stored before: it is the one that the archive ended with.
            if is_all_stored && let Some(ack) = batch.ack.take() {
                ack.to.acknowledge(&ack.place);
            }
            return Ok(is_all_stored);
        }
        if let Some(jobs) = self.jobs.as_ref().filter(|jobs| !jobs.is_full())
            && let Some(tail) = tail()
        {
            batch.close_events();
            self.shared.pending.fetch_add(1, Ordering::AcqRel);
            // If the thread has ended, `check` says why.
            let _ended = jobs.send(Job { tail, batch: std::mem::take(batch) });
        }
        Ok(false)
    }

    /// How long until the batch is due: early enough to be stored in time even if that takes twice as long as
    /// the last time, and a bit more.
    pub(super) fn due_in(&self, batch: &Batch, age: Duration) -> Option<Duration> {
        let takes = self.with_progress(|progress| progress.takes);
        let reserve = takes.saturating_mul(2).saturating_add(age / 8).min(age / 2);
        batch.began.map(|began| (age - reserve).saturating_sub(began.elapsed()))
    }

    /// Fails if nothing will be stored any more.
    pub(super) fn check(&self) -> Result<()> {
        match &lock(&self.shared.progress).failed {
            Some(error) => Err(error.again()),
            None => Ok(()),
        }
    }

    pub(super) fn with_progress<T>(&self, look: impl FnOnce(&mut Progress) -> T) -> T {
        look(&mut lock(&self.shared.progress))
    }

    /// Whether another process has taken the run's place.
    pub(super) fn is_ousted(&self) -> bool {
        self.shared.is_ousted.load(Ordering::Acquire)
    }

    /// Stores what is left, if the store takes it now.
    pub(super) fn end(&mut self) {
        self.shared.is_given_up.store(true, Ordering::Release);
        self.jobs = None;
        for thread in self.thread.take().into_iter().chain(self.sender.take()) {
            let _panicked = thread.join();
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.end();
    }
}

fn store_all(mut writer: SegmentWriter, near: Option<Near>, jobs: &Receiver<Job>, shared: &Shared) {
    for Job { tail, batch } in jobs {
        let begin = Instant::now();
        let stored =
            tail.to_map().and_then(|map| Ok(writer.seal(map, &batch.done)?)).and_then(|sealed| match &near {
                Some(near) => near.keep(&sealed, shared),
                None => store(&writer, &sealed, batch.ack.is_some(), shared),
            });
        if let Err(error) = stored {
            lock(&shared.progress).failed = Some(error);
            return;
        }
        let mut progress = lock(&shared.progress);
        let lag = batch.began.map_or(Duration::ZERO, |began| began.elapsed());
        progress.takes = begin.elapsed();
        progress.lag_max = progress.lag_max.max(lag);
        progress.lag_sum += lag;
        progress.stored += 1;
        progress.tail = Some(tail);
        drop(progress);
        if let Some(ack) = &batch.ack {
            ack.to.acknowledge(&ack.place);
        }
        shared.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Retries until it is stored: what the server sent must not be lost because a store was away for a while.
fn store(writer: &SegmentWriter, sealed: &SealedSegment, is_awaited: bool, shared: &Shared) -> Result<()> {
    try_until_done(|| writer.store(sealed), shared)?;
    // A process that takes the run's place lists its segments after writing an outcome for it: while there is
    // none, this segment is among them.
    if is_awaited { require_own(|| writer.is_ended(), shared) } else { Ok(()) }
}

/// Fails if another process has ended the run.
fn require_own(is_ended: impl Fn() -> Result<bool, RepoError>, shared: &Shared) -> Result<()> {
    match try_until_done(is_ended, shared)? {
        false => Ok(()),
        true => {
            shared.is_ousted.store(true, Ordering::Release);
            Err(ousted())
        }
    }
}

/// Repeats a request to the repository until it is answered.
fn try_until_done<T>(ask: impl Fn() -> Result<T, RepoError>, shared: &Shared) -> Result<T> {
    let mut backoff = Backoff::of_store();
    loop {
        match ask() {
            Ok(answer) => {
                let mut progress = lock(&shared.progress);
                (progress.failing, progress.has_stored) = (None, true);
                return Ok(answer);
            }
            Err(error) if error.is_exists() => {
                shared.is_ousted.store(true, Ordering::Release);
                return Err(ousted());
            }
            Err(error @ RepoError::Store(_)) if !shared.is_given_up.load(Ordering::Acquire) => {
                lock(&shared.progress).failing = Some(error.to_string());
                thread::sleep(backoff.next());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Stores segments on this host.
struct Near {
    spool: Arc<Spool>,
    run: RunNo,
    kept: Sender<u32>,
}

impl Near {
    /// Retries until it is durable: somebody may make room.
    fn keep(&self, sealed: &SealedSegment, shared: &Shared) -> Result<()> {
        let mut backoff = Backoff::of_store();
        loop {
            let why = match self.spool.has_room() {
                true => match self.spool.keep(self.run, sealed) {
                    Ok(()) => break,
                    Err(error) => error.to_string(),
                },
                false => {
                    "its size limit is reached by segments that are not yet in the repository".to_owned()
                }
            };
            if shared.is_given_up.load(Ordering::Acquire) {
                return Err(Error::failed(format!("spool in {}: {why}", self.spool.dir().display())));
            }
            lock(&shared.progress).spool_failing = Some(why);
            thread::sleep(backoff.next());
        }
        lock(&shared.progress).spool_failing = None;
        // If the sender has ended, the next run sends what is kept.
        let _ended = self.kept.send(sealed.part());
        Ok(())
    }
}

/// Sends on what is in the spool, in order.
struct SpoolSender {
    spool: Arc<Spool>,
    repo: Arc<Repo>,
    log: LogName,
    run: RunNo,
    shared: Arc<Shared>,
}

impl SpoolSender {
    fn send_all(&self, parts: &Receiver<u32>) {
        for part in parts {
            // The run can end without them; the next run sends what is left.
            if self.shared.is_given_up.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = self.send(part) {
                lock(&self.shared.progress).failed = Some(error);
                return;
            }
        }
    }

    fn send(&self, part: u32) -> Result<()> {
        let object = self.spool.whole(&self.repo, self.run, part).ok_or_else(|| {
            let dir = self.spool.dir().display();
            Error::failed(format!("segment {part} of this run is damaged or gone in {dir}"))
        })?;
        try_until_done(|| store_sealed(&self.repo, &self.log, self.run, part, &object), &self.shared)?;
        require_own(|| is_ended(&self.repo, &self.log, self.run), &self.shared)?;
        self.spool.remove(self.run, part)
    }
}

/// The error of a run whose place another process has taken.
pub(super) fn ousted() -> Error {
    Error::new(ErrorKind::Active, "another process has taken this run's place").hinted(
        "this process was frozen, or cut off from the repository, for longer than its lease: run it again",
    )
}
