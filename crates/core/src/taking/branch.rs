//! A backup's run in one repository, out of one or several.

use std::{
    sync::{Arc, Mutex},
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

/// The backup's origin in the repository that finished first: in the other repositories, the backup is a copy
/// of it.
#[derive(Default)]
pub(super) struct FirstCopy(Mutex<Option<CopyOf>>);

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
            // From here on one branch at a time, so that each but the first knows what it is a copy of.
            let mut first = lock(&first.0);
            if let Some(origin) = &*first {
                run.set_copy_of(origin.clone());
            }
            let publication = Publication::new(&mut run, base, finished, options, watch);
            let stored = Stored { flags, meters: &meters, kept: &kept };
            let (report, outcome) = publish(publication, stored)?;
            first.get_or_insert_with(|| outcome.origin(run.repo(), run.log()));
            Ok(report)
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
