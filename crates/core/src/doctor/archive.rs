//! Whether a binlog archive is kept up, and has all that it should.

use std::{sync::Arc, time::Duration};

use holdfast_repo::{
    LogName, Repo,
    log::{
        history::History,
        run::{self, Standing, standing},
    },
};

use super::{finding::Finding, source::is_old};
use crate::{
    binlog::Archive,
    error::{Error, Result},
};

/// Whether an archiver is running, or was not long ago.
pub(super) fn archiver(repo: &Repo, log: &LogName, lag_max: Duration) -> Result<Finding> {
    if run::active(repo, log)?.is_some_and(|run| !run.keeps_house()) {
        return Ok(Finding::good(format!("{log}: an archiver is running")));
    }
    let history = History::salvage(repo, log, &mut |_, _| {})?;
    // A prune that files what others left archives nothing.
    let last =
        history.standing().filter(|outcome| !outcome.is_filing()).map(|outcome| outcome.taken_at()).max();
    if last.is_some_and(|at| !is_old(at, lag_max)) {
        return Ok(Finding::good(format!("{log}: the last run of the archiver ended within --max-lag")));
    }
    let since =
        last.map_or_else(|| "nothing was archived".to_owned(), |at| format!("the last run ended at {at:.0}"));
    let what = if standing(repo, log)? == Standing::Dead {
        "its archiver has died"
    } else {
        "no archiver is running"
    };
    Err(Error::failed(format!("{log}: {what}: {since}"))
        .hinted("start it again before the server purges binlogs that are not archived"))
}

/// Reports the last gap in an archive, as good if there is a backup after it, otherwise as a notice; and segments
/// that cannot be read.
pub(super) fn gaps(repo: &Arc<Repo>, log: &LogName) -> Result<Vec<Finding>> {
    if !repo.can_read() {
        return Ok(Vec::new());
    }
    let archive = Archive::open(repo, &log.source)?;
    let unreadable = archive.unreadable().iter().map(|it| {
        Finding::notice(
            format!("{log}: {}; what run #{} archived after it is not in the archive", it.problem, it.run),
            "if its archiver is at work, this passes with the run; otherwise \"holdfast repair\" gives it up",
        )
    });
    let mut found: Vec<Finding> = unreadable.collect();
    let Some(gap) = archive.stretches().iter().rev().find_map(|archived| archived.gap.as_ref()) else {
        return Ok(found);
    };
    let has_base = archive.chains()?.last().is_some_and(|chain| !chain.bases.is_empty());
    let text = format!("{log}: the archive has a gap: {}", gap.text);
    found.push(if has_base {
        Finding::good(format!("{text}; there is a backup after it"))
    } else {
        Finding::notice(
            format!("{text}; there is no backup after it: none can be recovered to a later moment"),
            "take a backup; \"holdfast binlog list\" shows what is archived",
        )
    });
    Ok(found)
}
