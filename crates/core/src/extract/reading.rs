//! What is done on the servers that run on the restored files.

use std::collections::BTreeSet;

use holdfast_repo::SourceName;

use super::{
    extraction::{Attempt, Extraction},
    tables::{bound_by_keys, selected},
    work::WorkDir,
};
use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    logical,
    points::point,
    restore::RecoveryHooks,
    server::{ConnectOptions, Purpose, Session, TableName},
    taking::BackupOptions,
    watch::Watch,
};

/// What to do on the servers that run on the restored files.
pub(super) struct Reading<'a, 'b> {
    pub(super) extraction: &'a Extraction<'b>,
    pub(super) attempt: &'a mut Attempt,
    pub(super) work: &'a WorkDir,
    pub(super) watch: &'a Watch<'a>,
    pub(super) cancel: &'a Cancel,
    pub(super) taken: Option<logical::LogicalReport>,
    /// Why to start over.
    pub(super) more: Option<String>,
    /// Whether transactions are being applied to some tables only.
    pub(super) is_filtered: bool,
}

impl RecoveryHooks for Reading<'_, '_> {
    fn on_recovered(&mut self, connect: &ConnectOptions) -> Result<Option<Vec<TableName>>> {
        let mut session = Session::open(connect, Purpose::Control)?;
        let there = BTreeSet::from_iter(selected(&mut session, &self.extraction.options.selection)?);
        let mut wanted = BTreeSet::from_iter(self.extraction.wanted_tables());
        wanted.extend(there.iter().cloned());
        let bound = bound_by_keys(&mut session, self.extraction.facts.flavor(), &wanted)?;
        let tables: Vec<TableName> = wanted.union(&bound).cloned().collect();
        let missing = self.extraction.names.without_files().filter(|it| !there.contains(it));
        let why = self.extraction.look_ahead(missing, tables.clone(), self.cancel)?;
        if self.attempt.whole.is_some() {
            return Ok(None);
        }
        if let Some(why) = why {
            self.more = Some(why.clone());
            self.attempt.whole = Some(why);
            return Err(Error::failed("the restore is to be begun again"));
        }
        if self.attempt.part.add_tables(bound.into_iter().map(|it| (it.schema, it.table))) {
            self.more = Some("foreign keys bind the tables to others".to_owned());
            return Err(Error::failed("the restore is to be begun again"));
        }
        self.is_filtered = true;
        Ok(Some(tables))
    }

    fn on_arrived(&mut self, connect: &ConnectOptions) -> Result<()> {
        // The transactions were applied: a failure from here on would also occur with all tables.
        self.is_filtered = false;
        self.watch.phase("read");
        let repo = self.work.new_rows()?;
        let source: SourceName = self.extraction.id.source.parse().context("name the source")?;
        let restore = &self.extraction.options.restore;
        let options = BackupOptions {
            name: Some(source),
            memory_bytes: usize::try_from(restore.memory_bytes).unwrap_or(usize::MAX),
            spool_dir: Some(self.work.path().to_owned()),
            ..BackupOptions::new(connect.clone()).of_private()
        };
        let inner = Inner { watch: self.watch };
        let selection = &self.extraction.options.selection;
        let report = logical::run(&repo, &options, selection, &inner, self.cancel);
        let report = report.map_err(|error| match (error.kind(), self.extraction.names.unknown()) {
            (ErrorKind::Usage, Some(unknown)) => unknown,
            (ErrorKind::Server, _) if self.attempt.whole.is_none() => {
                let more = "views and MERGE tables need the tables that they read: name those, too";
                error.context("read the tables").also_hinted(more)
            }
            _ => error.context("read the tables"),
        })?;
        point("extract.read");
        self.taken = Some(report);
        Ok(())
    }
}

/// Forwards progress and warnings of the reading, but not its phases: here it is one phase.
struct Inner<'a> {
    watch: &'a Watch<'a>,
}

impl Listener for Inner<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Progress { .. } | Event::Warning { .. }) {
            self.watch.event(event);
        }
    }
}
