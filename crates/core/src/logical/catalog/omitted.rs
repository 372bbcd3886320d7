//! What a server has besides databases and accounts, and what no logical backup holds. It is named, so that
//! whoever loads the backup knows what must exist before.

use std::collections::BTreeSet;

use holdfast_formats::Flavor;

use crate::server::{Session, SqlError};

/// The names of such objects, with what they are; of those that the account may know.
pub(crate) fn read(session: &mut Session) -> Result<Vec<String>, SqlError> {
    const FOREIGN_SERVERS: &str = "SELECT server_name AS n FROM mysql.servers";
    const LOADABLE_FUNCTIONS: &str = "SELECT name AS n FROM mysql.func";
    let mut omitted = Vec::new();
    for (kind, found) in [
        ("foreign server", names(session, FOREIGN_SERVERS)?),
        ("loadable function", names(session, LOADABLE_FUNCTIONS)?),
        ("general tablespace", general_tablespaces(session)?),
    ] {
        omitted.extend(found.into_iter().flatten().map(|name| format!("{kind} {name}")));
    }
    Ok(omitted)
}

/// MySQL's tablespaces that several tables may share; `None`: the account may not know them, or there is no such
/// thing.
pub(crate) fn general_tablespaces(session: &mut Session) -> Result<Option<BTreeSet<String>>, SqlError> {
    const TABLESPACES: &str = "SELECT name AS n FROM information_schema.innodb_tablespaces WHERE space_type = 'General' AND name <> 'mysql'";
    match session.flavor() {
        Flavor::MariaDb => Ok(None),
        Flavor::MySql => names(session, TABLESPACES),
    }
}

/// `None`: the account may not ask.
fn names(session: &mut Session, query: &str) -> Result<Option<BTreeSet<String>>, SqlError> {
    match session.rows(query) {
        Ok(rows) => {
            rows.iter().map(|row| row.text("n").map(str::to_owned)).collect::<Result<_, _>>().map(Some)
        }
        Err(error) if error.is_denied() => Ok(None),
        Err(error) => Err(error),
    }
}
