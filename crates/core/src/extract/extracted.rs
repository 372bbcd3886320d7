//! What becomes of extracted tables: they are loaded, or written as files.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use holdfast_repo::{Kind, LogName, Repo, RunNo, data::reader::Backup, log::history::History};

use super::{
    report::{ExtractReport, Taken},
    work::WorkDir,
};
use crate::{
    error::{Context, Result},
    event::{Cancel, Event, Listener},
    logical::{
        export::{self, ExportOptions, Exported},
        load::{self, CREATE, LoadOptions, LoadReport},
    },
};

/// Extracted tables. Dropping them removes the working directory.
pub struct Extracted {
    /// Report of the extraction.
    pub report: ExtractReport,
    /// Whether an earlier process did the extraction.
    pub is_taken_up: bool,
    work: WorkDir,
    /// Whether the load goes into a known server: then it can continue after an interruption.
    has_target: bool,
    repo: Arc<Repo>,
    log: LogName,
    run: RunNo,
}

impl Extracted {
    pub(super) fn of(work: WorkDir, taken: Taken, is_taken_up: bool, has_target: bool) -> Result<Self> {
        let repo = work.rows()?;
        let source = taken.source.parse().context("name the source")?;
        let (log, run) = (LogName { source, kind: Kind::Logical }, taken.run());
        Ok(Self { report: taken.report, is_taken_up, work, has_target, repo, log, run })
    }

    /// Loads the tables into a running server. If that fails after it has begun, the rows are kept, and the
    /// same command continues with them.
    pub fn load(self, options: &LoadOptions, listener: &dyn Listener, cancel: &Cancel) -> Result<LoadReport> {
        let begun = Begun { listener, has: AtomicBool::new(false) };
        let mut options = LoadOptions { called: Some(self.report.backup.to_string()), ..options.clone() };
        // The rows were extracted without what is excluded: there is nothing of it to be found.
        options.selection.schemas_excluded.clear();
        options.selection.tables_excluded.clear();
        if self.has_target {
            self.work.set_begun()?;
        }
        match load::run(&self.repo, &self.log, self.run, &options, &begun, cancel) {
            Ok(report) => {
                self.work.remove()?;
                Ok(report)
            }
            Err(error) if self.is_taken_up || self.has_target && begun.has.load(Ordering::SeqCst) => {
                let place = self.work.path().display().to_string();
                self.work.keep();
                Err(error.also_hinted(format_args!(
                    "the rows are kept in {place}, and the same command continues with them; to start over, \
                     remove the directory"
                )))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the tables as files.
    pub fn export(
        self,
        options: &ExportOptions,
        listener: &dyn Listener,
        cancel: &Cancel,
    ) -> Result<Exported> {
        let history = History::read(&self.repo, &self.log)?;
        let backup = Backup::open(&self.repo, &history, self.run)?;
        let exported = export::export(&backup, options, listener, cancel)?;
        drop(backup);
        self.work.remove()?;
        Ok(exported)
    }
}

/// Notices when a load begins to change the target.
struct Begun<'a> {
    listener: &'a dyn Listener,
    has: AtomicBool,
}

impl Listener for Begun<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Phase { name: CREATE }) {
            self.has.store(true, Ordering::SeqCst);
        }
        self.listener.event(event);
    }
}
