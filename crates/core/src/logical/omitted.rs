//! What a server has besides databases and accounts, and what no logical backup holds. It is named, so that
//! whoever loads the backup knows what must exist before.

use holdfast_formats::Flavor;

use crate::server::{Session, SqlError};

/// The names of such objects, with what they are; of those that the account may know.
pub(super) fn read(session: &mut Session) -> Result<Vec<String>, SqlError> {
    const FOREIGN_SERVERS: &str = "SELECT server_name AS n FROM mysql.servers ORDER BY 1";
    const LOADABLE_FUNCTIONS: &str = "SELECT name AS n FROM mysql.func ORDER BY 1";
    const TABLESPACES: &str = "SELECT name AS n FROM information_schema.innodb_tablespaces WHERE space_type = 'General' AND name <> 'mysql' ORDER BY 1";
    let mut queries = vec![("foreign server", FOREIGN_SERVERS), ("loadable function", LOADABLE_FUNCTIONS)];
    if session.flavor() == Flavor::MySql {
        queries.push(("general tablespace", TABLESPACES));
    }
    let mut omitted = Vec::new();
    for (kind, query) in queries {
        match session.rows(query) {
            Ok(rows) => {
                for row in rows {
                    omitted.push(format!("{kind} {}", row.text("n")?));
                }
            }
            Err(error) if error.is_denied() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(omitted)
}
