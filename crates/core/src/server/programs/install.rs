//! Makes a new data directory, as the server's own installation does.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use holdfast_formats::Flavor;

use super::{binary::ServerBinary, process::ServerRun};
use crate::{
    error::{Context, Error, Result},
    event::Cancel,
};

/// Makes the data directory that `run` names. `run` is given what the server is to do, and its input. MySQL
/// accepts only an empty directory. `doing` is for errors, and `harmless` tells lines of its log that are none.
///
/// Afterwards there are the accounts that an installation makes, such as root, without a password.
pub(crate) fn install(
    binary: &ServerBinary,
    run: &dyn Fn(Vec<OsString>, Vec<u8>) -> Result<ServerRun>,
    doing: &str,
    harmless: &dyn Fn(&str) -> bool,
    cancel: &Cancel,
) -> Result<()> {
    let (orders, stdin) = match binary.version.flavor {
        Flavor::MySql => (vec!["--initialize-insecure".into()], Vec::new()),
        Flavor::MariaDb => {
            let share = share_dir(binary, run, cancel)?;
            let orders: Vec<OsString> = [
                "--bootstrap",
                "--log-warnings=0",
                "--max-allowed-packet=8M",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-doublewrite=OFF",
            ]
            .map(OsString::from)
            .to_vec();
            (orders, system_tables(&share)?)
        }
    };
    let exit = run(orders, stdin)?.start()?.wait(cancel)?;
    exit.success(doing, harmless)
}

/// Where a MariaDB server keeps the descriptions of its system tables.
fn share_dir(
    binary: &ServerBinary,
    run: &dyn Fn(Vec<OsString>, Vec<u8>) -> Result<ServerRun>,
    cancel: &Cancel,
) -> Result<PathBuf> {
    const KNOWN_BY: &str = "character-sets-dir";
    let orders = vec!["--verbose".into(), "--help".into()];
    let exit = run(orders, Vec::new())?.start()?.wait(cancel)?;
    let charsets = exit.log.iter().find_map(|line| {
        let value = line.strip_prefix(KNOWN_BY)?;
        value.starts_with(char::is_whitespace).then(|| PathBuf::from(value.trim()))
    });
    let share = charsets.as_deref().and_then(Path::parent).map(Path::to_owned);
    share.ok_or_else(|| {
        Error::failed(format!("{} does not say where its system tables are described", binary.path.display()))
    })
}

/// The statements that make a MariaDB server's system tables, in the order of its own installation.
fn system_tables(share: &Path) -> Result<Vec<u8>> {
    let mut sql = b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n".to_vec();
    for part in ["system_tables", "performance_tables", "system_tables_data", "gis", "sys_schema"] {
        let names = match part {
            "gis" => vec!["maria_add_gis_sp_bootstrap.sql".to_owned()],
            _ => ["mariadb", "mysql"].map(|prefix| format!("{prefix}_{part}.sql")).to_vec(),
        };
        let found = names.iter().map(|name| share.join(name)).find(|path| path.is_file());
        let Some(path) = found else {
            return Err(Error::failed(format!("there is no {} in {}", names[0], share.display()))
                .hinted("it is a part of the server's package: install that"));
        };
        sql.extend(fs::read(&path).context(format!("read {}", path.display()))?);
        sql.push(b'\n');
    }
    Ok(sql)
}
