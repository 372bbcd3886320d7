//! Restores into a directory that only our own servers find, for a caller that works on the files there.

use std::sync::Arc;

use holdfast_repo::{Kind, LogName, Repo, RunNo};

use super::{
    RestoreOptions, Transactions, continuing,
    hooks::{self, RecoveryHooks, ScratchRestore},
    look,
    own_server::PrivateFiles,
    prepare, rebuild, write,
};
use crate::{
    error::{Error, Result},
    event::{Cancel, Listener},
    watch::Watch,
};

/// Restores a backup, or a part of it, for the hooks. No other server ever starts on the target, and removing
/// it is up to the caller.
pub(crate) fn run_in_scratch(
    repo: &Arc<Repo>,
    (log, which): (&LogName, RunNo),
    options: &RestoreOptions,
    transactions: Option<&mut dyn Transactions>,
    hooks: &mut dyn RecoveryHooks,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<ScratchRestore> {
    let watch = Watch::new(listener);
    if log.kind == Kind::Logical {
        return rebuild::run_in_scratch(repo, (log, which), options, transactions, hooks, &watch, cancel);
    }
    let (opened, plan) = look(repo, (log, which), options, transactions.is_some(), &watch, cancel)?;
    let Some(binary) = &plan.binary else {
        return Err(Error::failed("no server program is to recover the files"));
    };
    let (_claim, roots, written) = write(&opened, &plan, options, &watch, listener, cancel)?;
    watch.phase("prepare");
    let files = PrivateFiles::enter(&opened, &plan, &roots, binary, options)?;
    let prepared = prepare::run(&files, (&opened, &plan, &roots), listener, cancel)?;
    let replayed = hooks::run(&files, transactions, hooks, &watch, cancel)?;
    Ok(ScratchRestore {
        server_version: opened.server.version.to_string(),
        position: continuing::position_after(&opened.position, replayed.as_ref()),
        prepared: Some(prepared),
        loaded: None,
        replayed,
        written,
        redo_bytes: plan.shown.redo_bytes,
    })
}
