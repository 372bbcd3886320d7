//! Phase `complete`: everything is stored and confirmed; report, head, and last the outcome, which makes it a backup.

use holdfast_repo::{
    RunNo,
    outcome::Outcome,
    run::Run,
    writer::{FinishedData, WriterMeters},
};
use serde_json::Map;

use super::{BackupOptions, BackupReport};
use crate::{
    error::Result,
    head::object,
    physical::DAMAGED_PAGES,
    points::point,
    source::Captured,
    taking::{HeadFields, Kept, Publication},
    watch::Watch,
};

/// What was settled before anything was captured.
pub(super) struct Beginning {
    pub(super) base: Option<RunNo>,
    pub(super) flags: Vec<String>,
    pub(super) kept: Kept,
}

/// Publishes the backup.
pub(super) fn publish(
    run: &mut Run,
    Beginning { base, mut flags, kept }: Beginning,
    captured: Captured,
    (finished, meters): (FinishedData, &WriterMeters),
    options: &BackupOptions,
    watch: &Watch<'_>,
) -> Result<(BackupReport, Outcome)> {
    if !captured.stats.damaged_pages.is_empty() {
        flags.push(DAMAGED_PAGES.to_owned());
    }
    let said = HeadFields {
        server: object(&captured.facts)?,
        redo: Some(object(&captured.redo)?),
        position: Some(object(&captured.position)?),
        flags,
        more: Map::new(),
    };
    let publication = Publication::new(run, base, finished, options, watch);
    let report = BackupReport {
        run: publication.run_report(&captured.facts.version, meters),
        position: captured.position,
        locks: captured.stats.locks.clone(),
        capture: captured.stats,
    };
    publication.write_report(&report)?;
    point("backup.report.durable");
    let outcome = publication.publish(said, &kept)?;
    point("backup.published");
    Ok((report, outcome))
}
