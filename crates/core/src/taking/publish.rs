//! The end of a run whose data are stored and confirmed: report, head, and last the outcome, which makes it a
//! backup.

use holdfast_repo::{
    RunNo,
    data::writer::{FinishedData, WriterMeters},
    format::manifest::{HEAD_SCHEMA, Head},
    log::{
        outcome::Outcome,
        run::{Ending, Run, stored_outcome},
    },
};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{BackupOptions, REPORT_SCHEMA, RunReport, kept::Kept, report::stage_times};
use crate::{
    error::{Context, Result},
    points::point,
    server::ServerVersion,
    watch::{Watch, ms},
};

/// A backup that is complete except for its publication.
pub(crate) struct Publication<'a> {
    run: &'a mut Run,
    base: Option<RunNo>,
    finished: FinishedData,
    options: &'a BackupOptions,
    watch: &'a Watch<'a>,
    started_at: Timestamp,
    finished_at: Timestamp,
}

/// The fields of a head that are specific to the server.
pub(crate) struct HeadFields {
    pub(crate) server: Map<String, Value>,
    pub(crate) redo: Option<Map<String, Value>>,
    pub(crate) position: Option<Map<String, Value>>,
    pub(crate) flags: Vec<String>,
    /// Further fields.
    pub(crate) more: Map<String, Value>,
}

impl<'a> Publication<'a> {
    pub(crate) fn new(
        run: &'a mut Run,
        base: Option<RunNo>,
        finished: FinishedData,
        options: &'a BackupOptions,
        watch: &'a Watch<'a>,
    ) -> Self {
        let finished_at = Timestamp::now();
        let started_at = finished_at - SignedDuration::try_from(watch.elapsed()).unwrap_or_default();
        Self { run, base, finished, options, watch, started_at, finished_at }
    }

    /// The part of the report that all kinds have in common.
    pub(crate) fn run_report(&self, server: &ServerVersion, meters: &WriterMeters) -> RunReport {
        RunReport {
            schema_version: REPORT_SCHEMA,
            backup: self.run.no().0,
            base: self.base.map(|base| base.0),
            source: self.run.log().source.to_string(),
            kind: self.run.log().kind.to_string(),
            holdfast_version: env!("CARGO_PKG_VERSION"),
            server_version: server.to_string(),
            started_at: self.started_at.to_string(),
            finished_at: self.finished_at.to_string(),
            total_ms: ms(self.watch.elapsed()),
            phases: self.watch.phases(),
            stages: stage_times(meters),
            totals: self.finished.totals,
            memory_bytes_max: crate::usage::memory_bytes_max(),
            cpu_seconds: crate::usage::cpu_time().as_secs_f64(),
            compression: self.options.writer.compression.to_string(),
        }
    }

    pub(crate) fn write_report(&mut self, report: &impl Serialize) -> Result<()> {
        self.run.write_report(&serde_json::to_vec(report).context("describe the run")?)?;
        point("backup.report.durable");
        Ok(())
    }

    /// Makes it a backup, and keeps what the next one builds on, also where only that cannot be told.
    pub(crate) fn publish(self, fields: HeadFields, kept: &Kept) -> Result<Outcome> {
        let Self { run, base, finished, options, watch, started_at, finished_at } = self;
        let head = Head {
            schema: HEAD_SCHEMA,
            run: run.no().0,
            source: run.log().source.to_string(),
            kind: run.log().kind.to_string(),
            method: run.log().kind.to_string(),
            started_at,
            finished_at,
            tags: options.tags.clone(),
            server: fields.server,
            redo: fields.redo,
            position: fields.position,
            totals: finished.totals,
            flags: fields.flags,
            base: base.map(|base| base.0),
            roots: finished.roots,
            more: fields.more,
        };
        let head = head.encode().context("encode the manifest head")?;
        let ending = Ending::Backup { head: head.clone(), refs: finished.refs, parts: finished.parts };
        let ended = run.finish(ending);
        if let Some(outcome) = stored_outcome(&ended) {
            kept.keep(outcome, &head, watch);
        }
        let outcome = ended?;
        point("backup.published");
        Ok(outcome)
    }
}
