//! Writes accounts and grants as the statements that make them.
//!
//! An account that exists already keeps its password: whoever loads a script uses one.

use crate::logical::{
    catalog::{accounts::PUBLIC, privileges},
    sql::{Kind, Token, quoted_text, tokens},
    stored::definition::AccountDefinition,
};

/// The statements that make accounts, each with its account's name. Default roles come before the accounts
/// that have them.
pub(crate) fn creations(accounts: &[AccountDefinition]) -> Vec<(String, Vec<u8>)> {
    let mut statements = Vec::new();
    let mut left: Vec<&AccountDefinition> = accounts.iter().filter(|account| !account.is_role).collect();
    while !left.is_empty() {
        let is_ready = |account: &&AccountDefinition| {
            let roles = default_roles(account);
            !left.iter().any(|other| other.account != account.account && roles.contains(&other.account))
        };
        let (ready, rest): (Vec<_>, Vec<_>) = left.iter().copied().partition(is_ready);
        // Roles that have each other by default: in the given order.
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

/// The statements that give an account just made its two passwords, also if repeated; `None` if it has only
/// one. Fails if its statement has no password in hex digits.
pub(crate) fn second_password(account: &AccountDefinition) -> Result<Option<[String; 2]>, &'static str> {
    let Some(second) = &account.second_password else { return Ok(None) };
    let is_hex = |text: &[u8]| {
        !text.is_empty() && text.len().is_multiple_of(2) && text.iter().all(u8::is_ascii_hexdigit)
    };
    let create = account.create.as_ref().map_or(&[][..], |create| &create.0);
    let all = meaning(create);
    let at = all.iter().position(|token| token.is_word("IDENTIFIED"));
    let [with, plugin, word, first, ..] = at.map_or(&[][..], |at| &all[at + 1..]) else {
        return Err("it has no password");
    };
    let digits = first.bytes.strip_prefix(b"0x").filter(|digits| is_hex(digits));
    let plugin = std::str::from_utf8(plugin.bytes).ok().filter(|_| plugin.kind == Kind::Text);
    let (Some(digits), Some(plugin)) = (digits, plugin) else {
        return Err("its first password is not shown in hex digits");
    };
    if !with.is_word("WITH") || !word.is_word("AS") || !is_hex(second.as_bytes()) {
        return Err("its passwords are not understood");
    }
    let expires = all.windows(3).any(|words| {
        words[0].is_word("PASSWORD")
            && words[1].is_word("EXPIRE")
            && !["DEFAULT", "NEVER", "INTERVAL"].iter().any(|word| words[2].is_word(word))
    });
    let begin = format!("ALTER USER {} IDENTIFIED WITH {plugin} AS 0x", account.account);
    // Setting a password ends its expiry.
    let end = if expires { " PASSWORD EXPIRE" } else { "" };
    let digits = String::from_utf8_lossy(digits);
    Ok(Some([format!("{begin}{second}"), format!("{begin}{digits} RETAIN CURRENT PASSWORD{end}")]))
}

/// An SQL expression that is true if there is no such account.
pub(crate) fn is_missing(account: &AccountDefinition) -> String {
    let quoted = |column: &str| {
        format!("CONCAT('''', REPLACE(REPLACE({column}, '\\\\', '\\\\\\\\'), '''', ''''''), '''')")
    };
    let (user, host) = (quoted("user"), quoted("host"));
    format!(
        "NOT EXISTS (SELECT 1 FROM mysql.user WHERE CONCAT({user}, '@', {host}) = {})",
        quoted_text(&account.account)
    )
}

/// The statements that grant what accounts may do, and their roles.
pub(crate) fn grants(accounts: &[AccountDefinition]) -> Vec<Vec<u8>> {
    let grants = accounts.iter().flat_map(|account| &account.grants);
    grants.map(|grant| without_password(&grant.0)).collect()
}

/// Splits a grant of several privileges into one for each; empty if there is nothing to split.
pub(crate) fn each_privilege(grant: &[u8]) -> Vec<Vec<u8>> {
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

/// The roles that an account has by default, as written in statements.
fn default_roles(account: &AccountDefinition) -> Vec<String> {
    let create = account.create.as_ref().map_or(&[][..], |create| &create.0);
    let all = meaning(create);
    let at = all.windows(2).position(|words| words[0].is_word("DEFAULT") && words[1].is_word("ROLE"));
    let roles = at.map_or(&[][..], |at| &all[at + 2..]).split(|token| token.is_symbol(b','));
    let named = |role: &[Token<'_>]| match role {
        [user, at, host, ..] if at.is_symbol(b'@') => Some(privileges::account(&user.name()?, &host.name()?)),
        _ => None,
    };
    roles.map_while(named).collect()
}

/// Removes the password that MariaDB puts into an account's first grant. The account's creation has it, too.
fn without_password(grant: &[u8]) -> Vec<u8> {
    let all = tokens(grant);
    let Some(at) = all.iter().position(|token| token.is_word("IDENTIFIED")) else { return grant.to_vec() };
    let mut kept: Vec<u8> = all[..at].iter().flat_map(|token| token.bytes).copied().collect();
    kept.truncate(kept.trim_ascii_end().len());
    let after: Vec<&Token<'_>> = all[at..].iter().filter(|token| token.kind != Kind::Space).collect();
    if after.windows(2).any(|words| words[0].is_word("GRANT") && words[1].is_word("OPTION")) {
        kept.extend_from_slice(b" WITH GRANT OPTION");
    }
    kept
}

fn meaning(sql: &[u8]) -> Vec<Token<'_>> {
    tokens(sql).into_iter().filter(|token| token.kind != Kind::Space).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logical::stored::definition::Sql;

    fn account(name: &str, create: &str) -> AccountDefinition {
        AccountDefinition {
            account: privileges::account(name, "%"),
            is_role: false,
            create: Some(Sql(create.as_bytes().to_vec())),
            alter: None,
            options: Vec::new(),
            grants: Vec::new(),
            second_password: None,
        }
    }

    /// Both passwords are set again, and an expired one stays expired; if they are not understood, none is
    /// set.
    #[test]
    fn two_passwords() {
        let create =
            "CREATE USER `a`@`%` IDENTIFIED WITH 'p' AS 0x4E45 REQUIRE NONE PASSWORD EXPIRE ACCOUNT UNLOCK";
        let with = |create: &str, second: &str| AccountDefinition {
            second_password: Some(second.to_owned()),
            ..account("a", create)
        };
        let statements = second_password(&with(create, "4F4C")).unwrap().unwrap();
        assert_eq!(
            statements,
            [
                "ALTER USER 'a'@'%' IDENTIFIED WITH 'p' AS 0x4F4C",
                "ALTER USER 'a'@'%' IDENTIFIED WITH 'p' AS 0x4E45 RETAIN CURRENT PASSWORD PASSWORD EXPIRE",
            ]
        );
        let [_, last] =
            second_password(&with(&create.replace(" EXPIRE", " EXPIRE DEFAULT"), "4F4C")).unwrap().unwrap();
        assert!(last.ends_with(" RETAIN CURRENT PASSWORD"), "{last}");
        assert!(second_password(&account("a", create)).unwrap().is_none());
        for (create, second) in
            [(create, "4"), (create, "x'"), (create, ""), ("CREATE USER `a`@`%` ACCOUNT LOCK", "4F")]
        {
            assert!(second_password(&with(create, second)).is_err(), "{create} {second}");
        }
    }

    /// A role comes before the accounts that have it by default.
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
        let accounts = [
            account(
                "a",
                "CREATE USER `a`@`%` IDENTIFIED WITH 'x' DEFAULT ROLE `q`@`%`,`r'q`@`%` REQUIRE NONE",
            ),
            account("b DEFAULT ROLE `a`@`%` ", "CREATE USER `b DEFAULT ROLE ``a``@``%`` `@`%`"),
            account("r'q", "CREATE USER `r'q`@`%`"),
        ];
        let statements = creations(&accounts);
        let names: Vec<&str> = statements.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["'b DEFAULT ROLE `a`@`%` '@'%'", "'r''q'@'%'", "'a'@'%'"]);
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
        let named = b"GRANT USAGE ON *.* TO `x IDENTIFIED y`@`GRANT OPTION`";
        for more in [&b""[..], b" IDENTIFIED BY PASSWORD '*0' REQUIRE SSL"] {
            assert_eq!(without_password(&[&named[..], more].concat()), named);
        }
        assert_eq!(without_password(b"GRANT `r` TO `u`@`h`"), b"GRANT `r` TO `u`@`h`");
    }
}
