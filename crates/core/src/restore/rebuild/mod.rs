//! Restores a logical backup into a data directory: a server of our own makes a new one, loads the rows, and
//! replays what followed the backup.
//!
//! [`run`] is the outline: plan → install → load → replay → place → complete. Invariants, besides those of
//! [`super`]:
//!
//! - Everything is made in a directory below the target in which no other server looks for data, and is moved
//!   to its place when it is at the requested moment.
//! - The rows are read again and equal the backup before anything is replayed. Nothing has to be adapted,
//!   since the server is of the source's series; nothing is left out unless the user says so.
//! - A restore that was interrupted begins again, since nothing tells how much of a server's files is
//!   durable.

mod backup;
mod load;
mod place;
mod plan;
mod zones;

use std::sync::Arc;

use holdfast_repo::{LogName, Repo, RunNo};

use self::{backup::LogicalBackup, plan::Plan};
use super::{
    Loaded, RestorePlan, RestoreReport, Transactions, continuing, finish,
    hooks::{self, RecoveryHooks, ScratchRestore},
    options::RestoreOptions,
    own_server::{PrivateFiles, is_of_absent_plugin},
    plan::refuse_repository,
    replay,
    target::{
        DIRECTORY_MODE, Tree,
        claim::Claim,
        io_failed,
        marker::Marker,
        names::{PRIVATE, own_path, private_of},
    },
    warnings::warn_of_root,
};
use crate::{
    error::{Error, ErrorKind, Result},
    event::Cancel,
    points::point,
    server::programs::install,
    watch::Watch,
};

/// What [`run`] would do. Changes nothing; fails where `run` would refuse.
pub(super) fn plan(
    repo: &Arc<Repo>,
    (log, which): (&LogName, RunNo),
    options: &RestoreOptions,
) -> Result<RestorePlan> {
    let backup = LogicalBackup::open(repo, log, which)?;
    let plan = plan::make(&backup, options)?;
    finish::check(&plan.shown, &plan.survey)?;
    Ok(plan.shown)
}

/// Restores the backup, and has the server replay the transactions that followed it, if any are given.
pub(super) fn run(
    repo: &Arc<Repo>,
    base: (&LogName, RunNo),
    options: &RestoreOptions,
    mut transactions: Option<&mut dyn Transactions>,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<RestoreReport> {
    let (backup, plan) = look(repo, base, options, transactions.is_some(), watch)?;
    if let Some(report) = finish::run(&plan.shown, &plan.survey, options, transactions.as_deref_mut())? {
        return Ok(report);
    }
    let (mut claim, target, new_dir) = claim(&backup, &plan, options)?;
    let files = plan.files(&backup, &new_dir, options);
    let loaded = make(&files, &target, repo, base, watch, cancel)?;
    let mut replayed = None;
    if let Some(transactions) = transactions {
        watch.phase("replay");
        replayed = Some(replay::run(&files, transactions, None, watch, cancel)?);
    }

    watch.phase("complete");
    let written = place::make_durable(&new_dir)?;
    let position = continuing::position_after(&backup.position, replayed.as_ref());
    let position = Some(position).filter(|_| backup.knows_position);
    let mut report = RestoreReport {
        loaded: Some(loaded),
        replayed,
        written,
        phases: watch.phases(),
        ..RestoreReport::of(&plan.shown, position, true)
    };
    let unnamed = plan.held.iter().map(private_of).collect::<Result<Vec<_>>>()?;
    claim.record(&report, &unnamed, &plan.held)?;
    place::run(&target, &plan)?;
    claim.write_report(&report, plan.owner)?;
    target.sync_dir(None).map_err(|error| io_failed("write", target.path(), error))?;
    point("restore.report.written");
    claim.release()?;
    report.phases = watch.phases();
    Ok(report)
}

/// Makes the server as [`run`] does, and calls hooks while it runs. No other server ever starts on the target, and
/// removing it is up to the caller.
pub(super) fn run_in_scratch(
    repo: &Arc<Repo>,
    base: (&LogName, RunNo),
    options: &RestoreOptions,
    transactions: Option<&mut dyn Transactions>,
    hooks: &mut dyn RecoveryHooks,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<ScratchRestore> {
    let (backup, plan) = look(repo, base, options, transactions.is_some(), watch)?;
    let (_claim, target, new_dir) = claim(&backup, &plan, options)?;
    let files = plan.files(&backup, &new_dir, options);
    let loaded = make(&files, &target, repo, base, watch, cancel)?;
    let replayed = hooks::run(&files, transactions, hooks, watch, cancel)?;
    Ok(ScratchRestore {
        server_version: backup.server.version.to_string(),
        position: continuing::position_after(&backup.position, replayed.as_ref()),
        prepared: None,
        loaded: Some(loaded),
        replayed,
        written: place::measure(&new_dir)?,
        redo_bytes: 0,
    })
}

/// Makes a new data directory, and loads the rows into it.
fn make(
    files: &PrivateFiles<'_>,
    target: &Tree,
    repo: &Arc<Repo>,
    base: (&LogName, RunNo),
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<Loaded> {
    watch.phase("install");
    let making = |orders, stdin| files.installation(target, orders, stdin);
    let doing = "make a new data directory";
    install(files.binary, &making, doing, &is_of_absent_plugin, cancel)?;
    point("rebuild.installed");
    watch.phase("load");
    let loaded = load::run(files, repo, base, watch, cancel)?;
    point("rebuild.loaded");
    Ok(loaded)
}

/// Plans, and refuses what will be refused.
fn look(
    repo: &Arc<Repo>,
    (log, which): (&LogName, RunNo),
    options: &RestoreOptions,
    is_replayed: bool,
    watch: &Watch<'_>,
) -> Result<(LogicalBackup, Plan)> {
    watch.phase("plan");
    refuse_repository(repo, options)?;
    let backup = LogicalBackup::open(repo, log, which)?;
    if is_replayed {
        replay::check_zone(&backup.server, options)?;
        if !backup.knows_position {
            let text = format!("it is unknown where {} is in the binlog of its server", backup.id);
            return Err(Error::new(ErrorKind::Usage, text));
        }
    }
    let plan = plan::make(&backup, options)?;
    finish::check(&plan.shown, &plan.survey)?;
    warn_of_root(plan.owner, options, watch);
    point("rebuild.planned");
    Ok((backup, plan))
}

/// Claims the target, removes what an interrupted restore left, and makes the directory that everything is
/// made in.
fn claim(backup: &LogicalBackup, plan: &Plan, options: &RestoreOptions) -> Result<(Claim, Tree, Tree)> {
    let marker = Marker::new(backup.id.clone(), Vec::new());
    let mut claim = Claim::take(&options.target_dir, marker, &plan.survey, &plan.held)?;
    let target = Tree::open(&options.target_dir);
    let target = target.map_err(|error| io_failed("open", &options.target_dir, error))?;
    claim.set_aside(&plan.held, &plan.redo, Vec::new())?;
    place::clear(&target, plan)?;
    let directory = own_path(PRIVATE)?;
    let make = || {
        target.create_dir(&directory, DIRECTORY_MODE)?;
        // Opened while nobody else can put a link there.
        let new_dir = Tree::open(&target.path_of(&directory))?;
        if let Some(owner) = plan.owner {
            target.give_root(owner)?;
            new_dir.give_root(owner)?;
        }
        Ok(new_dir)
    };
    let new_dir = make().map_err(|error| io_failed("make", target.path_of(&directory), error))?;
    point("rebuild.claimed");
    Ok((claim, target, new_dir))
}
