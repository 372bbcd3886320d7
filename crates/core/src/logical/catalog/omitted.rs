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
        ("spatial reference system", spatial_reference_systems(session)?),
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

/// MySQL's spatial reference systems that were made by `CREATE SPATIAL REFERENCE SYSTEM`, by number. Those
/// that the server brings have the numbers of EPSG, which are reserved for it.
fn spatial_reference_systems(session: &mut Session) -> Result<Option<BTreeSet<String>>, SqlError> {
    const SYSTEMS: &str = "SELECT CAST(srs_id AS CHAR) AS n FROM information_schema.st_spatial_reference_systems \
                           WHERE srs_id > 32767 OR (srs_id <> 0 AND COALESCE(organization, '') <> 'EPSG')";
    match session.flavor() {
        Flavor::MariaDb => Ok(None),
        Flavor::MySql => names(session, SYSTEMS),
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
