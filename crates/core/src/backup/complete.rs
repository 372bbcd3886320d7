//! Phase `complete`: everything is stored and confirmed; refs, report, and last the outcome, which makes it a backup.

use holdfast_repo::{
    RunNo,
    local_maps::LocalMaps,
    manifest::{HEAD_SCHEMA, Head},
    outcome::Outcome,
    run::{Ending, Run},
    writer::{FinishedData, WriterMeters},
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    BackupOptions, BackupReport,
    report::{REPORT_SCHEMA, Watch, ms, stage_times},
};
use crate::{
    error::{Context, Error, Result},
    event::{Event, Listener},
    physical::DAMAGED_PAGES,
    points::point,
    source::Captured,
};

/// What was settled before anything was captured.
pub(super) struct Beginning {
    pub(super) base: Option<RunNo>,
    pub(super) flags: Vec<String>,
}

/// Publishes the backup.
#[allow(clippy::too_many_arguments, reason = "each is a part of the backup")]
pub(super) fn publish(
    run: &mut Run,
    Beginning { base, flags }: Beginning,
    captured: Captured,
    finished: FinishedData,
    meters: &WriterMeters,
    local: Option<&LocalMaps>,
    options: &BackupOptions,
    watch: &Watch<'_>,
) -> Result<(BackupReport, Outcome)> {
    let mut flags = flags;
    if !captured.stats.damaged_pages.is_empty() {
        flags.push(DAMAGED_PAGES.to_owned());
    }
    let finished_at = jiff::Timestamp::now();
    let started_at = finished_at - jiff::SignedDuration::try_from(watch.elapsed()).unwrap_or_default();
    let head = Head {
        schema: HEAD_SCHEMA,
        run: run.no().0,
        source: run.log().source.to_string(),
        kind: run.log().kind.to_string(),
        method: "physical".to_owned(),
        started_at,
        finished_at,
        tags: options.tags.clone(),
        server: object(&captured.facts)?,
        redo: Some(object(&captured.redo)?),
        position: Some(object(&captured.position)?),
        totals: finished.totals,
        flags,
        base: base.map(|base| base.0),
        roots: finished.roots.clone(),
        more: Map::new(),
    };
    let report = report(run, base, captured, &finished, meters, options, watch, (started_at, finished_at));
    run.write_report(&serde_json::to_vec(&report).context("describe the run")?)?;
    point("backup.report.durable");
    let head = head.encode().context("encode the manifest head")?;
    let ending = Ending::Backup { head: head.clone(), refs: finished.refs, parts: finished.parts };
    let outcome = run.finish(ending)?;
    point("backup.published");
    if let Some(local) = local {
        keep_maps(local, &outcome, &head, "page maps", watch);
    }
    Ok((report, outcome))
}

/// Keeps what the next backup builds on. This one stands whatever becomes of that.
pub(crate) fn keep_maps(
    local: &LocalMaps,
    outcome: &Outcome,
    head: &[u8],
    maps: &str,
    listener: &dyn Listener,
) {
    if let Err(error) = local.commit(outcome, head) {
        let place = local.directory().display();
        let text =
            format!("its {maps} could not be kept in {place}: {error}; the next backup may store everything");
        listener.event(Event::Warning { text });
    }
}

pub(crate) fn object(value: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(value).context("describe the backup")? {
        Value::Object(object) => Ok(object),
        other => Err(Error::failed(format!("describe the backup: {other} is no JSON object"))),
    }
}

#[allow(clippy::too_many_arguments, reason = "each is a part of the report")]
fn report(
    run: &Run,
    base: Option<RunNo>,
    captured: Captured,
    finished: &FinishedData,
    meters: &WriterMeters,
    options: &BackupOptions,
    watch: &Watch<'_>,
    (started_at, finished_at): (jiff::Timestamp, jiff::Timestamp),
) -> BackupReport {
    BackupReport {
        schema_version: REPORT_SCHEMA,
        backup: run.no().0,
        base: base.map(|base| base.0),
        source: run.log().source.to_string(),
        kind: run.log().kind.to_string(),
        holdfast_version: env!("CARGO_PKG_VERSION"),
        server_version: captured.facts.version.to_string(),
        started_at: started_at.to_string(),
        finished_at: finished_at.to_string(),
        total_ms: ms(watch.elapsed()),
        phases: watch.phases(),
        stages: stage_times(meters),
        position: captured.position,
        locks: captured.stats.locks.clone(),
        capture: captured.stats,
        totals: finished.totals,
        memory_bytes_max: crate::usage::memory_bytes_max(),
        cpu_seconds: crate::usage::cpu_time().as_secs_f64(),
        compression: options.compression.to_string(),
    }
}
