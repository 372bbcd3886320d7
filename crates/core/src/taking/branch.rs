//! A backup's run in one repository, out of one or several.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;
use holdfast_repo::{
    LogName, Repo, RunNo,
    data::writer::{BackupWriter, WriterMeters, WriterOptions},
    log::{
        outcome::{CopyOf, Outcome},
        run::{self, ActiveRun, BeginError, Run},
    },
};

use super::{Destinations, Kept, Publication};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    points::point,
};

/// How long a backup waits for housekeeping runs, in all repositories together: most take seconds, and having
/// a backup matters more than being on time.
pub(super) const HOUSEKEEPING_MAX: Duration = Duration::from_secs(600);
/// How often it retries meanwhile.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// How long a backup that is complete but for its publication waits for that in another repository, to become a copy
/// of it.
const ORIGIN_WAIT_MAX: Duration = Duration::from_secs(60);

/// The backup's origin in the repository that finished first: in the other repositories, the backup is a copy
/// of it. One publishes at a time, unless the store of another does not answer: then the backup is no copy, but it is
/// there.
pub(super) struct FirstCopy {
    state: Mutex<FirstState>,
    is_over: Condvar,
    wait_max: Duration,
}

#[derive(Default)]
struct FirstState {
    origin: Option<CopyOf>,
    publishing: usize,
}

impl Default for FirstCopy {
    fn default() -> Self {
        Self { state: Mutex::default(), is_over: Condvar::new(), wait_max: ORIGIN_WAIT_MAX }
    }
}

impl FirstCopy {
    /// Waits for its turn, and has the backup published with what it is a copy of, if that is known by then. `publish`
    /// also returns what others are a copy of.
    fn publish<R>(&self, publish: impl FnOnce(Option<CopyOf>) -> Result<(R, CopyOf)>) -> Result<R> {
        let origin = {
            let is_busy = |state: &mut FirstState| state.publishing > 0 && state.origin.is_none();
            let waited = self.is_over.wait_timeout_while(lock(&self.state), self.wait_max, is_busy);
            let (mut state, _): (MutexGuard<'_, FirstState>, _) =
                waited.unwrap_or_else(PoisonError::into_inner);
            state.publishing += 1;
            state.origin.clone()
        };
        let published = publish(origin);
        let mut state = lock(&self.state);
        state.publishing -= 1;
        let result = published.map(|(result, origin)| {
            state.origin.get_or_insert(origin);
            result
        });
        drop(state);
        self.is_over.notify_all();
        result
    }
}

/// A run that is being written.
pub(super) struct Branch {
    run: Run,
    base: Option<RunNo>,
    flags: Vec<String>,
    kept: Kept,
    pub(super) writer: BackupWriter,
}

/// What a backup is in one repository only, besides what all its copies share.
pub(crate) struct Stored<'a> {
    pub(crate) flags: Vec<String>,
    pub(crate) meters: &'a WriterMeters,
    pub(crate) kept: &'a Kept,
}

impl Branch {
    pub(super) fn begin(
        destinations: &Destinations<'_>,
        repo: &Arc<Repo>,
        flags: Vec<String>,
        writing: WriterOptions,
        wait_until: Instant,
    ) -> Result<Self> {
        let mut run = begin_run(destinations, repo, wait_until)?;
        point("backup.run.begun");
        if destinations.is_imported {
            run.set_imported();
        }
        run.set_part(destinations.part);
        match Self::writing(destinations, &run, writing) {
            Ok((base, kept, writer)) => Ok(Self { run, base, flags, kept, writer }),
            Err(error) => Err(abandon(run, error)),
        }
    }

    fn writing(
        destinations: &Destinations<'_>,
        run: &Run,
        writing: WriterOptions,
    ) -> Result<(Option<RunNo>, Kept, BackupWriter)> {
        let kept = Kept::open(run.repo(), run.log(), destinations.options)?;
        let foundation = kept.foundation(run, destinations.part, destinations.options, destinations.watch);
        let writer = BackupWriter::new(run, &foundation, writing)?;
        Ok((foundation.base, kept, writer))
    }

    /// Stores what is still missing, and has the backup published.
    pub(super) fn complete<R>(
        self,
        destinations: &Destinations<'_>,
        first: &FirstCopy,
        publish: impl FnOnce(Publication<'_>, Stored<'_>) -> Result<(R, Outcome)>,
    ) -> Result<R> {
        let Self { mut run, base, flags, kept, writer } = self;
        let (options, watch) = (destinations.options, destinations.watch);
        let meters = Arc::clone(writer.meters());
        let complete = || -> Result<R> {
            let finished = writer.finish(&run)?;
            point("backup.data.durable");
            destinations.cancel.check()?;
            for text in unreadable(&meters, &kept) {
                watch.event(Event::Warning { text: text.to_owned() });
            }
            // Each but the first should know what it is a copy of.
            first.publish(|origin| {
                if let Some(origin) = origin {
                    run.set_copy_of(origin);
                }
                let publication = Publication::new(&mut run, base, finished, options, watch);
                let stored = Stored { flags, meters: &meters, kept: &kept };
                let (report, outcome) = publish(publication, stored)?;
                Ok((report, outcome.origin(run.repo(), run.log())))
            })
        };
        let completed = complete();
        completed.map_err(|error| abandon(run, error))
    }

    /// Ends the run without effect. Returns the reason.
    pub(super) fn abandon(self, error: Error) -> Error {
        let Self { run, writer, .. } = self;
        // Stores what the writer still holds, and waits for the store, so that the next run can reuse it.
        drop(writer);
        abandon(run, error)
    }
}

/// Warnings about stored data that the writer wanted to build on, and could not read.
fn unreadable(meters: &WriterMeters, kept: &Kept) -> Vec<&'static str> {
    const KEPT: &str = "parts of the page maps kept from the last backup are lost or damaged: the pages they \
                        describe were stored again";
    const BASE: &str = "parts of the base backup are lost or damaged and were stored again; \"holdfast \
                        check\" says which backups are affected";
    const ADOPTED: &str = "parts of what an unfinished run had stored could not be read and were stored \
                           again: check the storage for errors";
    let base = (meters.base_unreadable.units() > 0).then_some(if kept.is_in_use() { KEPT } else { BASE });
    let adopted = (meters.adopted_unreadable.units() > 0).then_some(ADOPTED);
    base.into_iter().chain(adopted).collect()
}

/// Begins the run, after any housekeeping run. Otherwise a prune in the same minute would prevent the backup,
/// and it would be missing.
fn begin_run(destinations: &Destinations<'_>, repo: &Arc<Repo>, wait_until: Instant) -> Result<Run> {
    loop {
        match Run::begin(repo, destinations.log, &destinations.options.run) {
            Err(BeginError::Active(active)) if active.keeps_house() && Instant::now() < wait_until => {
                outwait(
                    *active,
                    repo,
                    destinations.log,
                    wait_until,
                    destinations.watch,
                    destinations.cancel,
                )?;
            }
            begun => return Ok(begun?),
        }
    }
}

/// Waits for a housekeeping run, as a backup would, before a step that must not last: a hook may have stopped
/// something that others wait for.
pub fn await_housekeeping(
    repo: &Arc<Repo>,
    log: &LogName,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<()> {
    let active = run::active(repo, log)?.filter(ActiveRun::keeps_house);
    active.map_or(Ok(()), |active| {
        outwait(active, repo, log, Instant::now() + HOUSEKEEPING_MAX, listener, cancel)
    })
}

fn outwait(
    active: ActiveRun,
    repo: &Arc<Repo>,
    log: &LogName,
    until: Instant,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<()> {
    listener.event(Event::Note { text: format!("waiting: {active}") });
    let mut active = Some(active);
    while active.is_some_and(|active| active.keeps_house()) && Instant::now() < until {
        cancel.check()?;
        thread::sleep(TRY_EVERY);
        active = run::active(repo, log)?;
    }
    Ok(())
}

/// If another run has ended this one, the base may be gone by now, but that is not what went wrong.
fn abandon(run: Run, error: Error) -> Error {
    let error = run.lost().map_or(error, Error::from);
    // Frees the source for the next run at once. If this fails, the lease expires by itself.
    drop(run.abandon(&error.to_string()));
    error
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use holdfast_repo::{format::hex::Hex, keys::RepositoryId};
    use jiff::Timestamp;

    use super::*;

    fn origin(run: u64) -> CopyOf {
        let (repository, outcome) = (RepositoryId(Hex([1; 16])), Hex([2; 32]));
        let (source, at) = ("db1".to_owned(), Timestamp::UNIX_EPOCH);
        CopyOf { repository, source, run, outcome, at, filing: false }
    }

    fn told(first: &FirstCopy, run: u64) -> Option<u64> {
        first.publish(|known| Ok((known.map(|known| known.run), origin(run)))).unwrap()
    }

    /// Each waits until the first has published, or failed to, and is a copy of it.
    #[test]
    fn all_but_the_first_are_copies_of_it() {
        let first = FirstCopy { wait_max: Duration::from_secs(600), ..FirstCopy::default() };
        first.publish(|_| -> Result<((), CopyOf)> { Err(Error::failed("gone")) }).unwrap_err();
        thread::scope(|scope| {
            let (begun, is_begun) = mpsc::channel();
            let first = &first;
            let publishing = scope.spawn(move || {
                first.publish(|known| {
                    begun.send(()).unwrap();
                    thread::sleep(Duration::from_millis(200));
                    Ok((known.map(|known| known.run), origin(7)))
                })
            });
            is_begun.recv().unwrap();
            assert_eq!(told(first, 8), Some(7));
            assert_eq!(publishing.join().unwrap().unwrap(), None);
        });
        assert_eq!(told(&first, 9), Some(7));
    }

    /// A store that does not answer keeps no other repository from having the backup.
    #[test]
    fn a_publication_that_hangs_holds_up_no_other_for_long() {
        let first = FirstCopy { wait_max: Duration::from_millis(50), ..FirstCopy::default() };
        thread::scope(|scope| {
            let (begun, is_begun) = mpsc::channel();
            let (release, is_released) = mpsc::channel::<()>();
            let first = &first;
            scope.spawn(move || {
                first.publish(|_| {
                    begun.send(()).unwrap();
                    let _dropped = is_released.recv();
                    Ok(((), origin(7)))
                })
            });
            is_begun.recv().unwrap();
            assert_eq!(told(first, 8), None);
            assert_eq!(told(first, 9), Some(8));
            drop(release);
        });
        assert_eq!(told(&first, 10), Some(8));
    }
}
