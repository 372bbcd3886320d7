//! Restores a backup into a data directory that a server can be started on.
//!
//! [`run`] is the outline for a physical one, whose phases are folders: [`plan`](mod@plan) → [`assemble`] →
//! [`place`] → [`prepare`] → [`replay`] → complete ([`report`], [`continuing`]). A logical one has no files;
//! [`rebuild`] makes them. All of them write through [`target`], and run servers as [`own_server`] does.
//! Invariants:
//!
//! - Nothing outside the target and the places that the user's mappings name is ever written, and nothing
//!   restored leads outside: no path of the manifest, no link in the target, not the redo, and no file that
//!   the source kept elsewhere ([`target`], [`plan::layout`], [`redo`]).
//! - A directory with anything in it is touched only if it holds an interrupted restore of the same backup,
//!   or on request, and never while a server runs on it ([`target::survey`]).
//! - No server starts on a half-restored directory, whenever the restore stops: until the recovery has been
//!   judged, the files without which no server starts have other names, and something else is in their places
//!   ([`target::claim`], [`place`]). Only the recovering server is told these names ([`prepare`]).
//! - A restore that stopped anywhere can be run again, and completes what is there. Once a server can be
//!   started on it, that means the report only ([`finish`]).
//! - Every page is verified by its hash, and recovery by where it ends ([`prepare`]).

mod assemble;
mod backup_id;
mod buffer_pool;
mod continuing;
mod done;
mod finish;
mod hooks;
mod keyring;
mod opened;
mod options;
mod own_server;
mod part;
mod place;
mod plan;
mod planned;
mod prepare;
mod rebuild;
mod redo;
mod replay;
mod report;
mod roots;
mod scratch;
mod serve;
mod server_options;
mod target;
#[cfg(test)]
mod tests;
mod warnings;

use std::sync::Arc;

use holdfast_repo::{Kind, LogName, Repo, RunNo};

use self::{
    opened::Opened,
    own_server::PrivateFiles,
    plan::{MappedFile, Plan, refuse_repository},
    roots::Roots,
    target::{claim::Claim, marker::Marker},
    warnings::warn,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Listener},
    points::point,
    watch::Watch,
};

pub use backup_id::BackupId;
pub use done::{LeftOut, Loaded, Prepared, Reached, Replayed, Written};
pub(crate) use hooks::{RecoveryHooks, ScratchRestore};
pub use options::RestoreOptions;
pub use part::TablePart;
pub(crate) use part::{MissingTablespaces, Named, named};
pub use planned::{
    ExternalFile, PlannedOwner, PlannedPath, PlannedPrepare, PlannedRoom, PlannedRows, RestoreMode,
    RestorePlan,
};
pub use replay::{Piece, Transactions};
pub use report::{RESTORE_SCHEMA, RestoreReport};
pub(crate) use scratch::run_in_scratch;

/// What [`run`] would do. Changes nothing; fails where `run` would refuse.
pub fn plan(
    repo: &Arc<Repo>,
    log: &LogName,
    which: RunNo,
    options: &RestoreOptions,
    cancel: &Cancel,
) -> Result<RestorePlan> {
    refuse_repository(repo, options)?;
    if log.kind == Kind::Logical {
        return rebuild::plan(repo, (log, which), options);
    }
    let opened = Opened::open(repo, log, which)?;
    let plan = plan::make(repo, &opened, options, cancel)?;
    finish::check(&plan.shown, &plan.survey)?;
    Ok(plan.shown)
}

/// Restores a backup.
pub fn run(
    repo: &Arc<Repo>,
    log: &LogName,
    which: RunNo,
    options: &RestoreOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<RestoreReport> {
    run_and_replay(repo, log, which, options, None, listener, cancel)
}

/// Restores a backup, and has the server replay the transactions that followed it.
pub fn run_and_replay(
    repo: &Arc<Repo>,
    log: &LogName,
    which: RunNo,
    options: &RestoreOptions,
    mut transactions: Option<&mut dyn Transactions>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<RestoreReport> {
    if transactions.is_some() && !options.prepare {
        let message = "transactions are replayed by a server that has recovered the files";
        return Err(Error::new(ErrorKind::Usage, message).hinted("leave out --no-prepare"));
    }
    let watch = Watch::new(listener);
    if log.kind == Kind::Logical {
        return rebuild::run(repo, (log, which), options, transactions, &watch, cancel);
    }
    let (opened, plan) = look(repo, (log, which), options, transactions.is_some(), &watch, cancel)?;
    warn(&opened, &plan, options, listener);
    point("restore.planned");
    if let Some(report) = finish::run(&plan.shown, &plan.survey, options, transactions.as_deref_mut())? {
        return Ok(report);
    }
    let (mut claim, roots, written) = write(&opened, &plan, options, &watch, listener, cancel)?;

    let (mut prepared, mut replayed) = (None, None);
    if let Some(binary) = &plan.binary {
        watch.phase("prepare");
        let files = PrivateFiles::enter(&opened, &plan, &roots, binary, options)?;
        point("restore.private.entered");
        prepared = Some(prepare::run(&files, (&opened, &plan, &roots), listener, cancel)?);
        if let Some(transactions) = transactions {
            watch.phase("replay");
            replayed = Some(replay::run(&files, transactions, None, listener, cancel)?);
        }
        files.leave()?;
        roots.sync_contents()?;
    }
    point("restore.prepared");
    let position = continuing::position_after(&opened.position, replayed.as_ref());
    let knows_gtids = prepared.is_some();

    watch.phase("complete");
    if prepared.is_some() {
        place::pointers::write(&plan, &roots, place::pointers::When::AfterRecovery)?;
        place::give_new(&plan, &roots)?;
    }
    let mut report = RestoreReport {
        prepared,
        replayed,
        written,
        phases: watch.phases(),
        ..RestoreReport::of(&plan.shown, Some(position), knows_gtids)
    };
    roots.sync_names()?;
    claim.record(&report, &plan.unnamed()?, &plan.held)?;
    point("restore.recorded");
    place::give_names(&plan, &roots)?;
    claim.write_report(&report, plan.owner)?;
    roots.sync_names()?;
    point("restore.report.written");
    claim.release()?;
    report.phases = watch.phases();
    Ok(report)
}

/// Opens the backup, plans, and refuses what will be refused. Changes nothing.
fn look(
    repo: &Arc<Repo>,
    (log, which): (&LogName, RunNo),
    options: &RestoreOptions,
    is_replayed: bool,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<(Opened, Plan)> {
    watch.phase("plan");
    refuse_repository(repo, options)?;
    let opened = Opened::open(repo, log, which)?;
    if is_replayed {
        replay::check_zone(&opened.server, options)?;
    }
    let plan = plan::make(repo, &opened, options, cancel)?;
    finish::check(&plan.shown, &plan.survey)?;
    Ok((opened, plan))
}

/// Writes all files, under names with which no server starts.
fn write(
    opened: &Opened,
    plan: &Plan,
    options: &RestoreOptions,
    watch: &Watch<'_>,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<(Claim, Roots, Written)> {
    watch.phase("assemble");
    let marker = Marker::new(opened.id.clone(), plan.made.clone());
    let mut claim = Claim::take(&options.target_dir, marker, &plan.survey, &plan.held)?;
    point("restore.claimed");
    if let Err(error) = plan.mapped.iter().try_for_each(MappedFile::check) {
        claim.take_back(&plan.survey)?;
        return Err(error);
    }
    let roots = Roots::open(plan, options)?;
    let mapped = plan.mapped.iter().map(|file| file.path.clone()).collect();
    claim.set_aside(&plan.held, &plan.redo.path, mapped)?;
    point("restore.set.aside");
    let written = assemble::run(opened, plan, &roots, options, listener, cancel)?;
    point("restore.assembled");

    watch.phase("place");
    cancel.check()?;
    place::make_durable(opened, plan, &roots, options)?;
    Ok((claim, roots, written))
}
