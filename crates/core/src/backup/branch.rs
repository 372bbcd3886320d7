//! The run of a backup in one repository, of one or several.

use std::sync::{Arc, Mutex};

use holdfast_pipe::lock::lock;
use holdfast_repo::{
    LogName, Repo,
    outcome::CopyOf,
    run::Run,
    writer::{BackupWriter, WriterOptions},
};

use super::{
    BackupOptions, BackupReport,
    complete::{self, Beginning},
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Event, Listener},
    points::point,
    source::Captured,
    taking::Kept,
    watch::Watch,
};

/// What the repository that came first has made of the backup: the same in the others is a copy of it.
#[derive(Default)]
pub(super) struct FirstCopy(Mutex<Option<CopyOf>>);

/// A run that is being written.
pub(super) struct Branch {
    run: Run,
    beginning: Beginning,
    pub(super) writer: BackupWriter,
}

impl Branch {
    pub(super) fn begin(
        repo: &Arc<Repo>,
        log: &LogName,
        flags: Vec<String>,
        writing: WriterOptions,
        options: &BackupOptions,
        watch: &Watch<'_>,
    ) -> Result<Self> {
        let run = Run::begin(repo, log, &options.run)?;
        point("backup.run.begun");
        match Self::writing(&run, flags, writing, options, watch) {
            Ok((beginning, writer)) => Ok(Self { run, beginning, writer }),
            Err(error) => Err(abandon(run, error)),
        }
    }

    fn writing(
        run: &Run,
        flags: Vec<String>,
        writing: WriterOptions,
        options: &BackupOptions,
        watch: &Watch<'_>,
    ) -> Result<(Beginning, BackupWriter)> {
        let kept = Kept::open(run.repo(), run.log(), options)?;
        let foundation = kept.foundation(run, None, options, watch);
        let beginning = Beginning { base: foundation.base, flags, kept };
        let writer = BackupWriter::new(run, &foundation, writing)?;
        Ok((beginning, writer))
    }

    /// Stores what is missing, and publishes the backup.
    pub(super) fn complete(
        self,
        captured: Captured,
        first: &FirstCopy,
        options: &BackupOptions,
        watch: &Watch<'_>,
        cancel: &Cancel,
    ) -> Result<BackupReport> {
        let Self { mut run, beginning, writer } = self;
        let meters = Arc::clone(writer.meters());
        let complete = || -> Result<BackupReport> {
            let finished = writer.finish(&run)?;
            point("backup.data.durable");
            cancel.check()?;
            if meters.base_unreadable.units() > 0 && beginning.kept.is_in_use() {
                let text = "parts of the page maps that were kept of the last backup are lost or damaged: their pages were stored anew";
                watch.event(Event::Warning { text: text.to_owned() });
            } else if meters.base_unreadable.units() > 0 {
                let text = "parts of the base backup could not be read and were stored anew; run holdfast check --read-data";
                watch.event(Event::Warning { text: text.to_owned() });
            }
            if meters.adopted_unreadable.units() > 0 {
                let text = "parts of what an unfinished run had stored could not be read and were stored anew: is the storage sound?";
                watch.event(Event::Warning { text: text.to_owned() });
            }
            // One after the other from here on, so that each but the first knows what it is a copy of.
            let mut first = lock(&first.0);
            if let Some(origin) = &*first {
                run.set_copy_of(origin.clone());
            }
            let stored = (finished, &*meters);
            let (report, outcome) = complete::publish(&mut run, beginning, captured, stored, options, watch)?;
            first.get_or_insert_with(|| outcome.origin(run.repo(), run.log()));
            Ok(report)
        };
        let completed = complete();
        completed.map_err(|error| abandon(run, error))
    }

    /// Ends the run without effect. Returns why.
    pub(super) fn abandon(self, error: Error) -> Error {
        let Self { run, writer, .. } = self;
        // What it holds is stored first, and waits for its store: the next run can take it up.
        drop(writer);
        abandon(run, error)
    }
}

/// What another has ended may miss its base by now: that is not what went wrong.
fn abandon(run: Run, error: Error) -> Error {
    let error = run.lost().map_or(error, Error::from);
    // Frees the source for the next run at once; should it fail, the lease runs out by itself.
    drop(run.abandon(&error.to_string()));
    error
}
