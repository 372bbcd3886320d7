//! Work on restored files while only our own servers find them: what a caller does then, and what it gets.

use super::{
    Loaded, Prepared, Replayed, Transactions, Written,
    own_server::PrivateFiles,
    replay,
    serve::{self, Serving},
};
use crate::{
    error::Result,
    event::Cancel,
    position::Position,
    server::{ConnectOptions, TableName},
    watch::Watch,
};

/// What a caller does with the restored files.
pub(crate) trait RecoveryHooks {
    /// Called when the files are recovered and nothing is replayed yet. Returns the tables to which
    /// transactions are to be applied; `None`: to all.
    fn on_recovered(&mut self, connect: &ConnectOptions) -> Result<Option<Vec<TableName>>>;

    /// Called when the files are at the requested moment.
    fn on_arrived(&mut self, connect: &ConnectOptions) -> Result<()>;
}

/// The result of [`super::run_in_scratch`].
pub(crate) struct ScratchRestore {
    pub(crate) server_version: String,
    pub(crate) position: Position,
    pub(crate) prepared: Option<Prepared>,
    pub(crate) loaded: Option<Loaded>,
    pub(crate) replayed: Option<Replayed>,
    pub(crate) written: Written,
    pub(crate) redo_bytes: u64,
}

/// Calls a hook on the recovered files, has the server replay the transactions, if any are given, and calls
/// the other.
pub(super) fn run(
    files: &PrivateFiles<'_>,
    transactions: Option<&mut dyn Transactions>,
    hooks: &mut dyn RecoveryHooks,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<Option<Replayed>> {
    let mut replayed = None;
    if let Some(transactions) = transactions {
        let mut only = None;
        serve::run(files, Serving::answers(files.options), cancel, &mut |connect| {
            only = hooks.on_recovered(connect)?;
            Ok(())
        })?;
        watch.phase("replay");
        replayed = Some(replay::run(files, transactions, only.as_deref(), watch, cancel)?);
    }
    serve::run(files, Serving::answers(files.options), cancel, &mut |connect| hooks.on_arrived(connect))?;
    Ok(replayed)
}
