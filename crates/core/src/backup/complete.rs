//! Phase `complete`: everything is stored and confirmed; writes report, head, and last the outcome, which
//! makes it a backup.

use std::collections::BTreeSet;

use holdfast_repo::{format::manifest::DAMAGED_PAGES, log::outcome::Outcome};
use serde_json::{Map, Value};

use super::BackupReport;
use crate::{
    error::Result,
    head::{COMPRESSED_WITH, object},
    source::Captured,
    taking::{HeadFields, Publication, Stored},
};

/// Publishes the backup.
pub(super) fn publish(
    mut publication: Publication<'_>,
    Stored { mut flags, meters, kept }: Stored<'_>,
    captured: Captured,
) -> Result<(BackupReport, Outcome)> {
    if !captured.stats.damaged_pages.is_empty() {
        flags.push(DAMAGED_PAGES.to_owned());
    }
    let said = HeadFields {
        server: object(&captured.facts)?,
        redo: Some(object(&captured.redo)?),
        position: Some(object(&captured.position)?),
        flags,
        more: compression(&captured.stats.compressed_with),
    };
    let report = BackupReport {
        run: publication.run_report(&captured.facts.version, meters),
        position: captured.position,
        locks: captured.stats.locks.clone(),
        capture: captured.stats,
    };
    publication.write_report(&report)?;
    let outcome = publication.publish(said, kept)?;
    Ok((report, outcome))
}

/// The field that names algorithms, if there are any.
fn compression(algorithms: &BTreeSet<&'static str>) -> Map<String, Value> {
    let named: Vec<Value> = algorithms.iter().map(|name| Value::from(*name)).collect();
    let field = (!named.is_empty()).then(|| (COMPRESSED_WITH.to_owned(), Value::Array(named)));
    field.into_iter().collect()
}
