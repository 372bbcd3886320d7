//! Accounts and grants as the statements that make them.
//!
//! An account that is there already keeps its password: whoever loads a script is one of them.

use crate::logical::{
    accounts::PUBLIC,
    definition::AccountDefinition,
    load::tokens::{Token, tokens},
};

/// Makes accounts, each with its name: those that others have as a role by default come before them.
pub(in crate::logical) fn creations(accounts: &[AccountDefinition]) -> Vec<(String, Vec<u8>)> {
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
            statements.push((account.account.clone(), [b"CREATE USER IF NOT EXISTS ", rest].concat()));
        }
        left.retain(|account| !ready.iter().any(|done| done.account == account.account));
    }
    for role in accounts.iter().filter(|account| account.is_role && account.account != PUBLIC) {
        let mut statement = format!("CREATE ROLE IF NOT EXISTS {}", role.account).into_bytes();
        for option in &role.options {
            statement.push(b' ');
            statement.extend_from_slice(&option.0);
        }
        statements.push((role.account.clone(), statement));
    }
    statements
}

/// What accounts may do, and which roles they have.
pub(in crate::logical) fn grants(accounts: &[AccountDefinition]) -> Vec<Vec<u8>> {
    let grants = accounts.iter().flat_map(|account| &account.grants);
    grants.map(|grant| without_password(&grant.0)).collect()
}

/// A grant of several privileges as one for each; nothing where there is nothing to take apart.
pub(in crate::logical) fn each_privilege(grant: &[u8]) -> Vec<Vec<u8>> {
    let all = tokens(grant);
    let is_of_all = |token: &Token<'_>, depth: i32, word: &str| depth == 0 && token.is_word(word);
    let (mut depth, mut privileges, mut on) = (0, vec![Vec::new()], None);
    for (at, token) in all.iter().enumerate().skip(1) {
        depth += i32::from(token.is_symbol(b'(')) - i32::from(token.is_symbol(b')'));
        if is_of_all(token, depth, "ON") {
            on = Some(at);
            break;
        }
        match privileges.last_mut() {
            Some(privilege) if !(depth == 0 && token.is_symbol(b',')) => {
                privilege.extend_from_slice(token.bytes)
            }
            _ => privileges.push(Vec::new()),
        }
    }
    let Some(on) = on.filter(|_| all[0].is_word("GRANT") && privileges.len() > 1) else { return Vec::new() };
    let rest: Vec<u8> = all[on..].iter().flat_map(|token| token.bytes).copied().collect();
    let one = |privilege: &Vec<u8>| [b"GRANT ", privilege.trim_ascii(), b" ", &rest].concat();
    privileges.iter().map(one).collect()
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
        let names: Vec<&str> = statements.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["'b'@'%'", "'r'@'%'", "'a'@'%'"]);
        let statements: Vec<Vec<u8>> = statements.into_iter().map(|(_, statement)| statement).collect();
        let text = String::from_utf8(statements.join(&b'\n')).unwrap();
        let at = |name: &str| text.find(&format!("EXISTS `{name}`")).unwrap();
        assert!(at("r") < at("a") && statements.len() == 3, "{text}");
    }

    #[test]
    fn privileges_are_taken_apart() {
        let each = |grant: &str| -> Vec<String> {
            let each = each_privilege(grant.as_bytes()).into_iter();
            each.map(|grant| String::from_utf8(grant).unwrap()).collect()
        };
        assert_eq!(
            each("GRANT SELECT (`a`, `b`), UPDATE (`on`) ON `d`.`t` TO `u`@`h` WITH GRANT OPTION"),
            [
                "GRANT SELECT (`a`, `b`) ON `d`.`t` TO `u`@`h` WITH GRANT OPTION",
                "GRANT UPDATE (`on`) ON `d`.`t` TO `u`@`h` WITH GRANT OPTION"
            ]
        );
        assert_eq!(each("GRANT A,B ON *.* TO `u`@`h`").len(), 2);
        for whole in
            ["GRANT SELECT ON *.* TO `u`@`h`", "GRANT `r`,`s` TO `u`@`h`", "SET DEFAULT ROLE `a`, `b`", ""]
        {
            assert_eq!(each(whole), [""; 0]);
        }
    }

    #[test]
    fn passwords_stay_what_they_are() {
        let grant = b"GRANT ALL PRIVILEGES ON *.* TO `r`@`h` IDENTIFIED BY PASSWORD '*0' WITH GRANT OPTION";
        assert_eq!(without_password(grant), b"GRANT ALL PRIVILEGES ON *.* TO `r`@`h` WITH GRANT OPTION");
        assert_eq!(without_password(b"GRANT `r` TO `u`@`h`"), b"GRANT `r` TO `u`@`h`");
    }
}
