//! Extracts tables from a physical backup, or from a moment after any backup: into a running server, or into
//! files.
//!
//! [`run`] is the outline: choose → restore a part → have a server of our own recover it → replay, if a
//! moment is requested → read the tables into a temporary repository. From there on it is a logical backup
//! like any other, and [`load`](crate::logical::load) and [`export`](crate::logical::export) do with it what
//! they do with those: adapt, rename, defer indexes, verify, continue after an interruption.
//!
//! Invariants:
//! - The result is what a restore of the whole backup, to the same moment, would hold. Where a part cannot
//!   guarantee that, the whole backup is restored and replayed, and the report says why ([`filter`]).
//! - No server other than ours is ever started on the restored files, and none of ours outlives us.
//! - Nothing is left behind, except rows that a load has begun with ([`work`]).

mod attempt;
mod extracted;
mod extraction;
mod filter;
mod names;
mod reading;
mod report;
mod tables;
mod target;
mod work;

use std::{path::Path, sync::Arc};

use holdfast_repo::Repo;

pub use extracted::Extracted;
pub use extraction::{ExtractOptions, Origin, WORK_PLACE};
pub use report::{ExtractPlan, ExtractReport, FoundTable};
pub use target::{Target, look_at_target};

use extraction::Extraction;
use work::WorkDir;

use crate::{
    data_directory::refuse_inside,
    error::Result,
    event::{Cancel, Event, Listener},
    logical::load::Unfinished,
    points::point,
    real_path::real_path,
    restore,
    watch::Watch,
};

/// Says what an extraction would do, and refuses what it would refuse. Changes nothing.
pub fn plan(
    repo: &Arc<Repo>,
    origin: Origin<'_>,
    options: &ExtractOptions,
    cancel: &Cancel,
) -> Result<ExtractPlan> {
    refuse_inside(&real_path(&options.work_place)?)?;
    let extraction = Extraction::look(repo, origin, options, cancel)?;
    let mut attempt = extraction.first_attempt(cancel)?;
    let place = existing(&options.work_place).join("holdfast-extract");
    let (log, run) = origin.base();
    let restored = extraction.restore_options(&mut attempt, &place);
    let restore = restore::plan(repo, log, run, &restored, cancel)?;
    let replay = origin.recovery().map(|recovery| recovery.count(cancel)).transpose()?;
    Ok(ExtractPlan {
        restore,
        replay,
        tables: extraction.names.shown(),
        backup_bytes: extraction.names.backup_bytes,
        whole: attempt.whole,
    })
}

/// Extracts tables, or reuses what an interrupted load had extracted.
pub fn run(
    repo: &Arc<Repo>,
    origin: Origin<'_>,
    options: &ExtractOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Extracted> {
    let watch = Watch::new(listener);
    watch.phase("choose");
    refuse_inside(&real_path(&options.work_place)?)?;
    let extraction = Extraction::look(repo, origin, options, cancel).map_err(|error| error.at(repo))?;
    let unfinished = options.target.as_ref().and_then(|target| target.unfinished.as_ref());
    let wanted = unfinished.map(Unfinished::repository);
    let (work, taken) = WorkDir::take(&options.work_place, &extraction.identity, wanted)?;
    point("extract.begun");
    let has_target = options.target.is_some();
    if let Some(taken) = taken {
        watch.event(Event::Note {
            text: format!("the rows that an interrupted run left in {} are reused", work.path().display()),
        });
        return Extracted::of(work, taken, true, has_target);
    }
    if let Some(unfinished) = unfinished {
        // Checked before hours of work.
        return Err(unfinished.refusal().also_hinted(format_args!(
            "if that load is of tables from a physical backup, their rows are in the --work-dir of that \
             command, not in {}",
            options.work_place.display()
        )));
    }
    let taken = extraction.extract(&work, &watch, cancel)?;
    Extracted::of(work, taken, false, has_target)
}

/// The longest part of a path that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}
