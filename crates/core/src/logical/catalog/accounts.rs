//! Reads accounts and roles with their grants.

use std::collections::BTreeSet;

use holdfast_formats::Flavor;

use super::privileges::account;
use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        sql::quoted_text,
        stored::definition::{AccountDefinition, Definition, Sql},
    },
    server::{Session, SqlError},
};

/// Accounts that a server makes for itself.
const INTERNAL: [&str; 4] = ["mysql.sys", "mysql.session", "mysql.infoschema", "mariadb.sys"];
/// MariaDB's role for everybody, which always exists.
pub(crate) const PUBLIC: &str = "PUBLIC";

fn query(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::MariaDb => {
            "SELECT user AS u, host AS h, is_role AS r, NULL AS p FROM mysql.user ORDER BY 1, 2"
        }
        // No statement shows the second password.
        Flavor::MySql => {
            "SELECT user AS u, host AS h, 'N' AS r, \
             HEX(JSON_UNQUOTE(JSON_EXTRACT(user_attributes, '$.additional_password'))) AS p \
             FROM mysql.user ORDER BY 1, 2"
        }
    }
}

/// All existing accounts and roles, as written in statements.
pub(crate) fn names(session: &mut Session) -> Result<BTreeSet<String>, SqlError> {
    let rows = session.byte_rows(query(session.flavor()))?;
    rows.iter().map(|row| Ok(written(row.text("u")?, row.text("h")?, row.text("r")? == "Y"))).collect()
}

/// An account as written in statements.
fn written(user: &str, host: &str, is_role: bool) -> String {
    match (is_role, user) {
        (true, PUBLIC) => PUBLIC.to_owned(),
        (true, role) => quoted_text(role),
        (false, user) => account(user, host),
    }
}

/// Reads all accounts except the server's own.
pub(crate) fn accounts(session: &mut Session) -> Result<Vec<Definition>> {
    let rows = session.byte_rows(query(session.flavor())).map_err(denied)?;
    let mut definitions = Vec::new();
    for row in &rows {
        let (user, host, is_role) = (row.text("u")?, row.text("h")?, row.text("r")? == "Y");
        if INTERNAL.contains(&user) {
            continue;
        }
        let second = row.bytes_or_null("p")?.map(|hex| String::from_utf8_lossy(hex).into_owned());
        let second_password = second.filter(|hex| !hex.is_empty());
        let account = definition(session, user, host, is_role)?;
        definitions.push(Definition::Account(AccountDefinition { second_password, ..account }));
    }
    Ok(definitions)
}

fn definition(session: &mut Session, user: &str, host: &str, is_role: bool) -> Result<AccountDefinition> {
    let name = written(user, host, is_role);
    let (mut create, mut alter) = (None, None);
    let mut options = Vec::new();
    if is_role {
        options.extend(role_admin(session, user)?);
    } else {
        let mut lines = statements(session, &format!("SHOW CREATE USER {name}"))?.into_iter();
        (create, alter) = (lines.next(), lines.next());
        if lines.next().is_some() {
            return Err(Error::failed(format!("the server needs more than two statements to make {name}")));
        }
    }
    let grants = statements(session, &format!("SHOW GRANTS FOR {name}"))?;
    Ok(AccountDefinition { account: name, is_role, create, alter, options, grants, second_password: None })
}

/// The clause that names who may grant a role to others, which its creation must contain.
fn role_admin(session: &mut Session, role: &str) -> Result<Option<Sql>> {
    let query = format!(
        "SELECT user AS u, host AS h FROM mysql.roles_mapping \
         WHERE role = {} AND admin_option = 'Y' ORDER BY host DESC, user LIMIT 1",
        quoted_text(role)
    );
    let rows = session.byte_rows(&query).map_err(denied)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (user, host) = (row.text("u")?, row.text("h")?);
    // A role that may grant a role has no host; it may not exist yet when this one is created.
    Ok((!host.is_empty()).then(|| Sql(format!("WITH ADMIN {}", account(user, host)).into_bytes())))
}

fn statements(session: &mut Session, query: &str) -> Result<Vec<Sql>> {
    let mut statements = Vec::new();
    for row in session.byte_rows(query).map_err(denied)? {
        let statement = row.values().first().cloned().flatten();
        let statement = statement.ok_or_else(|| SqlError::unexpected("NULL").doing(query))?;
        statements.push(Sql(statement));
    }
    Ok(statements)
}

fn denied(error: SqlError) -> Error {
    if !error.is_denied() {
        return error.into();
    }
    Error::new(ErrorKind::Server, error.to_string())
        .hinted("GRANT SELECT ON mysql.* TO the backup's account; or leave accounts out: --without-accounts")
}
