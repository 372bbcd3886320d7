//! Our account on a server that runs on restored files: made when it starts, and dropped when it ends.

use std::io::Write;

use holdfast_formats::Flavor;
use holdfast_repo::format::item::ItemPath;

use super::PrivateFiles;
use crate::restore::target::{io_failed, names::own_path};
use crate::{
    error::Result,
    server::{Session, programs::OwnAccount},
};

/// The file that creates the account. Not the file of [`crate::restore::prepare`].
const INIT_FILE: &str = "#holdfast-account.sql";
/// Keeps our statements out of any binlog, whatever the server's options are.
const UNLOGGED: &str = "SET SESSION sql_log_bin = 0";

/// Writes what creates the account where a server that is started on the target finds it. `as_root`: with all
/// that accounts of an installation may do.
pub(crate) fn write_creation(
    account: &OwnAccount,
    files: &PrivateFiles<'_>,
    as_root: bool,
) -> Result<ItemPath> {
    let tree = files.tree;
    let init = own_path(INIT_FILE)?;
    let proxy = match files.server.flavor() {
        _ if !as_root => String::new(),
        // Whoever executes this file may not grant it (verified on 10.11 and 11.8).
        Flavor::MariaDb => format!(
            "INSERT INTO mysql.proxies_priv (Host, User, With_grant) VALUES ('localhost', '{}', 1);\n\
             FLUSH PRIVILEGES;\n",
            account.name()
        ),
        Flavor::MySql => format!("GRANT PROXY ON ''@'' TO {} WITH GRANT OPTION;\n", account.quoted()),
    };
    let statements = format!("{UNLOGGED};\n{}{proxy}", account.creation());
    let write = || {
        tree.create_file(&init, 0o600)?.write_all(statements.as_bytes())?;
        files.owner.map_or(Ok(()), |owner| tree.give(&init, owner))
    };
    write().map_err(|error| io_failed("write", tree.path_of(&init), error))?;
    Ok(init)
}

/// Removes all traces of the account, and shuts the server down.
pub(crate) fn end(account: &OwnAccount, mut session: Session) -> Result<()> {
    session.exec(UNLOGGED)?;
    session.exec(&format!("DROP USER {}", account.quoted()))?;
    session.exec("SHUTDOWN")?;
    Ok(())
}
