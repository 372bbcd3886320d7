//! Whether a server is a member of a cluster or group in which several servers write.

use holdfast_formats::Flavor;

use crate::server::{Session, SqlError};

/// Whether the server is a node of a Galera cluster (MariaDB).
pub(super) fn is_galera_node(session: &mut Session) -> Result<bool, SqlError> {
    if session.variable("wsrep_on")?.is_some_and(|value| value == "1") {
        return Ok(true);
    }
    // After SET GLOBAL wsrep_on=OFF a node is still in its cluster, and applies what other nodes commit.
    match session.row("SHOW GLOBAL STATUS LIKE 'wsrep_connected'")? {
        Some(row) => Ok(row.text("Value")?.eq_ignore_ascii_case("ON")),
        None => Ok(false),
    }
}

/// Whether the server is an active member of a replication group (MySQL). `false` if the account may not
/// look.
pub(super) fn is_group_member(session: &mut Session) -> Result<bool, SqlError> {
    let members = "SELECT 1 FROM performance_schema.replication_group_members \
                   WHERE member_id = @@server_uuid AND member_state <> 'OFFLINE'";
    match session.row(members) {
        Err(error) if error.is_denied() => Ok(false),
        found => Ok(found?.is_some()),
    }
}

/// Whether the server is a Galera node or a member of a replication group.
pub(crate) fn is_one_of_several(session: &mut Session) -> Result<bool, SqlError> {
    match session.flavor() {
        Flavor::MariaDb => is_galera_node(session),
        Flavor::MySql => is_group_member(session),
    }
}
