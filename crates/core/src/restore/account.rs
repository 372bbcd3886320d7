//! Our account on a server that runs on restored files: made when it starts, and dropped when it ends.

use std::io::Write;

use holdfast_repo::format::item::ItemPath;

use super::{layout::own_path, own_server::Ground, target::io_failed};
use crate::{
    error::Result,
    server::{Session, programs::OwnAccount},
};

/// What creates the account.
const INIT_FILE: &str = "#holdfast-init.sql";
/// No binlog has our statements, whatever the server is told.
const UNLOGGED: &str = "SET SESSION sql_log_bin = 0";

/// Puts what makes the account where a server that is started on the target finds it.
pub(super) fn write_creation(account: &OwnAccount, ground: &Ground<'_>) -> Result<ItemPath> {
    let tree = ground.tree();
    let init = own_path(INIT_FILE)?;
    let statements = format!("{UNLOGGED};\n{}", account.creation());
    let write = || {
        tree.create_file(&init, 0o600)?.write_all(statements.as_bytes())?;
        ground.plan.owner.map_or(Ok(()), |owner| tree.give(&init, owner))
    };
    write().map_err(|error| io_failed("write", tree.path_of(&init), error))?;
    Ok(init)
}

/// Leaves no trace of the account, and has the server end.
pub(super) fn end(account: &OwnAccount, mut session: Session) -> Result<()> {
    session.exec(UNLOGGED)?;
    session.exec(&format!("DROP USER {}", account.quoted()))?;
    session.exec("SHUTDOWN")?;
    Ok(())
}
