//! Restores as much of a backup as is needed, has it recovered, and reads the tables; again with more, if more turns
//! out to be needed.

use std::io;

use super::{
    extraction::{Attempt, Extraction},
    reading::Reading,
    report::{ExtractReport, Taken},
    work::WorkDir,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event, Listener as _},
    points::point,
    recovery::Recovery,
    restore::{self, MissingTablespaces, ScratchRestore, Transactions},
    watch::Watch,
};

/// How many times a restore may start over because more is needed. Each time it includes everything named so
/// far.
const TRIES_MAX: u32 = 12;

impl Extraction<'_> {
    /// Retries until everything that turns out to be needed is restored.
    pub(super) fn extract(&self, work: &WorkDir, watch: &Watch<'_>, cancel: &Cancel) -> Result<Taken> {
        let mut attempt = self.first_attempt(cancel)?;
        let mut begun_again = 0;
        loop {
            match self.attempt(&mut attempt, work, begun_again, watch, cancel) {
                Err(Stopped::Failed(error)) => return Err(attempt.explain(error)),
                Ok(taken) => return Ok(taken),
                Err(Stopped::NeedsMore(why)) if begun_again < TRIES_MAX => {
                    begun_again += 1;
                    watch.event(Event::Note {
                        text: format!("{why}: the restore starts again with more of the backup"),
                    });
                }
                Err(Stopped::NeedsMore(why)) => {
                    let text = format!("{why}, even after {TRIES_MAX} new attempts with more of the backup");
                    return Err(Error::failed(text).hinted("restore the whole backup into a directory"));
                }
            }
            if let Some(why) = &attempt.whole {
                watch.event(Event::Note { text: format!("the whole backup is restored: {why}") });
            }
        }
    }

    fn attempt(
        &self,
        attempt: &mut Attempt,
        work: &WorkDir,
        begun_again: u32,
        watch: &Watch<'_>,
        cancel: &Cancel,
    ) -> Result<Taken, Stopped> {
        // A restore must not continue with files that a server has worked on.
        let data = work.new_data()?;
        let options = self.restore_options(attempt, &data);
        let mut transactions = self.origin.recovery().map(Recovery::transactions);
        let mut reading = Reading {
            extraction: self,
            attempt,
            work,
            watch,
            cancel,
            taken: None,
            more: None,
            is_filtered: false,
        };
        let base = self.origin.base();
        let transactions = transactions.as_mut().map(|it| it as &mut dyn Transactions);
        let done =
            restore::run_in_scratch(self.repo, base, &options, transactions, &mut reading, watch, cancel);
        let Reading { taken, more, is_filtered, .. } = reading;
        let scratch = match done {
            Ok(scratch) => scratch,
            Err(error) => return Err(self.stopped(error, more, is_filtered, attempt, cancel)),
        };
        let Some(read) = taken else { return Err(Error::failed("nothing was read").into()) };
        work.remove_data()?;
        let ScratchRestore { server_version, position, prepared, loaded, replayed, written, redo_bytes } =
            scratch;
        let report = ExtractReport {
            backup: self.id.clone(),
            server_version,
            position,
            backup_bytes: self.names.backup_bytes,
            restored_bytes: written.bytes,
            restored_files: written.files,
            redo_bytes,
            begun_again,
            whole: attempt.whole.clone(),
            prepared,
            loaded,
            replayed,
            tables: read.read.tables,
            rows: read.read.rows,
            row_bytes: read.read.row_bytes,
            phases: watch.phases(),
        };
        let taken = Taken {
            identity: self.identity.clone(),
            source: read.run.source.clone(),
            run: read.run.backup,
            report,
        };
        work.set_ready(&taken)?;
        point("extract.ready");
        Ok(taken)
    }

    /// Whether another attempt can do better.
    fn stopped(
        &self,
        error: Error,
        more: Option<String>,
        is_filtered: bool,
        attempt: &mut Attempt,
        cancel: &Cancel,
    ) -> Stopped {
        if cancel.is_cancelled() {
            return error.into();
        }
        if let Some(why) = more {
            return Stopped::NeedsMore(why);
        }
        if let Some(missing) = error.cause::<MissingTablespaces>()
            && attempt.whole.is_none()
            && attempt.part.add_spaces(&missing.0)
        {
            return Stopped::NeedsMore(missing.to_string());
        }
        // A server that misses a table stops; it does not continue without it. If there is no room for a
        // part, there is none for the whole.
        let may_be_of_tables = matches!(error.kind(), ErrorKind::Failed | ErrorKind::Server)
            && error.cause::<io::Error>().is_none_or(|it| it.kind() != io::ErrorKind::StorageFull);
        if is_filtered && may_be_of_tables && attempt.whole.is_none() {
            let why = format!("the server could not apply transactions to these tables only: {error}");
            attempt.whole = Some(why.clone());
            return Stopped::NeedsMore(why);
        }
        error.into()
    }
}

/// Why an attempt failed.
enum Stopped {
    Failed(Error),
    NeedsMore(String),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
