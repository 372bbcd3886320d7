//! Accounts and grants as the statements that make them.
//!
//! An account that is there already keeps its password: whoever loads a script is one of them.

use crate::logical::{accounts::PUBLIC, definition::AccountDefinition};

/// Makes accounts: those that others have as a role by default come before them.
pub(in crate::logical) fn creations(accounts: &[AccountDefinition]) -> Vec<Vec<u8>> {
    let mut statements = Vec::new();
    let mut left: Vec<&AccountDefinition> = accounts.iter().filter(|account| !account.is_role).collect();
    while !left.is_empty() {
        let is_ready = |account: &&AccountDefinition| {
            let roles = default_roles(account);
            !left
                .iter()
                .any(|other| other.account != account.account && contains(roles, &backquoted(&other.account)))
        };
        let (ready, rest): (Vec<_>, Vec<_>) = left.iter().copied().partition(is_ready);
        // Roles that have each other by default: as they come.
        let ready = if ready.is_empty() { rest.clone() } else { ready };
        for account in &ready {
            let Some(create) = &account.create else { continue };
            let rest = create.0.strip_prefix(b"CREATE USER ").unwrap_or(&create.0);
            statements.push([b"CREATE USER IF NOT EXISTS ", rest].concat());
        }
        left.retain(|account| !ready.iter().any(|done| done.account == account.account));
    }
    for role in accounts.iter().filter(|account| account.is_role && account.account != PUBLIC) {
        let mut statement = format!("CREATE ROLE IF NOT EXISTS {}", role.account).into_bytes();
        for option in &role.options {
            statement.push(b' ');
            statement.extend_from_slice(&option.0);
        }
        statements.push(statement);
    }
    statements
}

/// What accounts may do, and which roles they have.
pub(in crate::logical) fn grants(accounts: &[AccountDefinition]) -> Vec<Vec<u8>> {
    let grants = accounts.iter().flat_map(|account| &account.grants);
    grants.map(|grant| without_password(&grant.0)).collect()
}

/// What stands behind `DEFAULT ROLE`.
fn default_roles(account: &AccountDefinition) -> &[u8] {
    const WORDS: &[u8] = b" DEFAULT ROLE ";
    let create = account.create.as_ref().map_or(&[][..], |create| &create.0);
    let at = create.windows(WORDS.len()).position(|window| window == WORDS);
    at.map_or(&[], |at| &create[at..])
}

/// `'user'@'host'` as the server shows it in a statement.
fn backquoted(account: &str) -> String {
    account.replace('\'', "`")
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}

/// MariaDB puts the password of an account into its first grant. It stands in its creation, too.
fn without_password(grant: &[u8]) -> Vec<u8> {
    const PASSWORD: &[u8] = b" IDENTIFIED ";
    const OPTION: &[u8] = b"GRANT OPTION";
    let Some(at) = grant.windows(PASSWORD.len()).position(|window| window == PASSWORD) else {
        return grant.to_vec();
    };
    let mut kept = grant[..at].to_vec();
    if grant[at..].windows(OPTION.len()).any(|window| window == OPTION) {
        kept.extend_from_slice(b" WITH GRANT OPTION");
    }
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::logical::definition::Sql;

    fn account(name: &str, create: &str) -> AccountDefinition {
        AccountDefinition {
            account: format!("'{name}'@'%'"),
            is_role: false,
            create: Some(Sql(create.as_bytes().to_vec())),
            options: Vec::new(),
            grants: Vec::new(),
        }
    }

    /// A role is there before whoever has it by default.
    #[test]
    fn order() {
        let accounts = [
            account("a", "CREATE USER `a`@`%` IDENTIFIED WITH 'x' DEFAULT ROLE `r`@`%` REQUIRE NONE"),
            account("b", "CREATE USER `b`@`%`"),
            account("r", "CREATE USER `r`@`%`"),
        ];
        let statements = creations(&accounts);
        let text = String::from_utf8(statements.join(&b'\n')).unwrap();
        let at = |name: &str| text.find(&format!("EXISTS `{name}`")).unwrap();
        assert!(at("r") < at("a") && statements.len() == 3, "{text}");
    }

    #[test]
    fn passwords_stay_what_they_are() {
        let grant = b"GRANT ALL PRIVILEGES ON *.* TO `r`@`h` IDENTIFIED BY PASSWORD '*0' WITH GRANT OPTION";
        assert_eq!(without_password(grant), b"GRANT ALL PRIVILEGES ON *.* TO `r`@`h` WITH GRANT OPTION");
        assert_eq!(without_password(b"GRANT `r` TO `u`@`h`"), b"GRANT `r` TO `u`@`h`");
    }
}
