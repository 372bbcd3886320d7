//! Checks, before anything else runs, that the account has every right that a backup will need.
//!
//! Rights that can be tried harmlessly are tried, because only the server knows what roles and old privilege
//! names add up to. The rest is read from `SHOW GRANTS`: above all `SELECT ON *.*`, without which the server
//! silently hides tables. A hidden table would be copied without its lock.

use std::collections::BTreeSet;

use holdfast_formats::Flavor;

use crate::{
    error::{Error, ErrorKind, Result},
    server::{Session, SqlError},
};

/// A privilege that a hot physical backup needs, on `*.*`.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// The privilege, as `GRANT` spells it.
    pub privilege: &'static str,
    /// Other names that `SHOW GRANTS` may use for it.
    aliases: &'static [&'static str],
    /// What a backup needs it for.
    pub purpose: &'static str,
    /// A harmless statement that needs the privilege. Any refusal other than a missing privilege counts as
    /// success.
    attempt: Option<&'static str>,
}

const RELOAD: Requirement = Requirement {
    privilege: "RELOAD",
    aliases: &[],
    purpose: "to flush logs and tables, and on MariaDB to hold the backup stages",
    attempt: Some("FLUSH LOCAL ENGINE LOGS"),
};
const SELECT: Requirement =
    Requirement { privilege: "SELECT", aliases: &[], purpose: "to see every table", attempt: None };
const LOCK_TABLES: Requirement = Requirement {
    privilege: "LOCK TABLES",
    aliases: &[],
    purpose: "to hold tables that are not InnoDB's while they are copied",
    attempt: None,
};

const MARIADB: &[Requirement] = &[
    RELOAD,
    Requirement {
        privilege: "PROCESS",
        aliases: &[],
        purpose: "to list tablespaces",
        // Not the list of tablespaces itself: a server whose InnoDB is read-only crashes when it is queried
        // (verified on 10.11.19), and such a server is refused only later.
        attempt: Some("SELECT 1 FROM information_schema.innodb_cmp LIMIT 1"),
    },
    SELECT,
    LOCK_TABLES,
    Requirement {
        privilege: "BINLOG MONITOR",
        aliases: &["REPLICATION CLIENT"],
        purpose: "to read the binlog position",
        attempt: Some("SHOW MASTER STATUS"),
    },
    Requirement {
        privilege: "SLAVE MONITOR",
        aliases: &["REPLICA MONITOR"],
        purpose: "to read the position as a replica",
        attempt: Some("SHOW ALL SLAVES STATUS"),
    },
];

const MYSQL: &[Requirement] = &[
    Requirement {
        privilege: "BACKUP_ADMIN",
        aliases: &[],
        purpose: "to lock the instance, to keep redo, and to read positions",
        // A no-op outside a lock.
        attempt: Some("UNLOCK INSTANCE"),
    },
    RELOAD,
    Requirement {
        privilege: "PROCESS",
        aliases: &[],
        purpose: "to list tablespaces",
        attempt: Some("SELECT 1 FROM information_schema.innodb_tablespaces LIMIT 1"),
    },
    Requirement {
        privilege: "REPLICATION CLIENT",
        aliases: &[],
        purpose: "to read the position as a replica",
        attempt: Some("SHOW REPLICA STATUS"),
    },
    SELECT,
    LOCK_TABLES,
];

/// The privileges that a hot physical backup needs on this flavor.
#[must_use]
pub fn required(flavor: Flavor) -> &'static [Requirement] {
    match flavor {
        Flavor::MariaDb => MARIADB,
        Flavor::MySql => MYSQL,
    }
}

/// Fails, with the statement to execute, when the account lacks a privilege that a hot physical backup needs.
/// Must run before anything else queries the server.
pub fn check_grants(session: &mut Session) -> Result<()> {
    check(session, required(session.flavor()))
}

/// Fails, with the statement to execute, when the account lacks a privilege that archiving the binlog needs.
pub fn check_binlog_grants(session: &mut Session) -> Result<()> {
    const STREAM: Requirement = Requirement {
        privilege: "REPLICATION SLAVE",
        aliases: &["REPLICATION REPLICA"],
        purpose: "to receive the binlog",
        attempt: None,
    };
    check(
        session,
        match session.flavor() {
            Flavor::MariaDb => &[
                STREAM,
                Requirement {
                    privilege: "BINLOG MONITOR",
                    aliases: &["REPLICATION CLIENT"],
                    purpose: "to list the binlog files",
                    attempt: Some("SHOW BINARY LOGS"),
                },
            ],
            Flavor::MySql => &[
                STREAM,
                Requirement {
                    privilege: "REPLICATION CLIENT",
                    aliases: &[],
                    purpose: "to list the binlog files",
                    attempt: Some("SHOW BINARY LOGS"),
                },
            ],
        },
    )
}

fn check(session: &mut Session, required: &[Requirement]) -> Result<()> {
    let account = account(session)?;
    let grants = Grants::read(session)?;
    let mut missing = Vec::new();
    for requirement in required {
        let has = match requirement.attempt {
            Some(statement) => !is_denied(session, statement)?,
            None => grants.has(requirement),
        };
        if !has {
            missing.push(requirement);
        }
    }
    if !missing.is_empty() {
        let named: Vec<String> =
            missing.iter().map(|missing| format!("{} ({})", missing.privilege, missing.purpose)).collect();
        let list: Vec<&str> = missing.iter().map(|missing| missing.privilege).collect();
        let mut hint = format!("GRANT {} ON *.* TO {account};", list.join(", "));
        if grants.has_inactive_roles {
            hint.push_str("\nRoles count only while they are active: see SET DEFAULT ROLE.");
        }
        return Err(Error::new(
            ErrorKind::Server,
            format!("the account {account} lacks {}", named.join(", ")),
        )
        .hinted(hint));
    }
    for requirement in required {
        if let Some(schema) = grants.revoked_in(requirement) {
            let privilege = requirement.privilege;
            let message = format!("{privilege} is revoked from the account {account} in {schema}");
            return Err(Error::new(ErrorKind::Server, message)
                .hinted(format!("GRANT {privilege} ON {schema}.* TO {account};")));
        }
    }
    Ok(())
}

fn is_denied(session: &mut Session, statement: &str) -> Result<bool, SqlError> {
    match session.rows(statement) {
        Ok(_) => Ok(false),
        Err(error) if error.is_denied() => Ok(true),
        Err(error) if error.code().is_some() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The account as statements name it. Not always the name we logged in with: the server picks the best match.
fn account(session: &mut Session) -> Result<String, SqlError> {
    let account = session.value("SELECT CURRENT_USER()")?.unwrap_or_default();
    let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    Ok(format!("{}@{}", quoted(user), quoted(host)))
}

/// What `SHOW GRANTS` lists, including the privileges of the session's active roles.
#[derive(Debug, Default, PartialEq, Eq)]
struct Grants {
    /// Privileges on `*.*`, upper case.
    global: BTreeSet<String>,
    has_all: bool,
    /// MySQL's partial revokes: privilege and quoted schema.
    revoked: Vec<(String, String)>,
    has_inactive_roles: bool,
}

impl Grants {
    fn read(session: &mut Session) -> Result<Grants, SqlError> {
        let mut grants = Grants::default();
        let mut has_roles = false;
        for row in session.rows("SHOW GRANTS")? {
            let line = row.values().first().and_then(Option::as_deref).unwrap_or_default();
            has_roles |= grants.add(line);
        }
        let role = session.value("SELECT CURRENT_ROLE()")?;
        grants.has_inactive_roles = has_roles && role.is_none_or(|role| role.eq_ignore_ascii_case("NONE"));
        Ok(grants)
    }

    /// Adds one line. Returns whether it grants a role.
    fn add(&mut self, line: &str) -> bool {
        let (rest, is_grant) = match (line.strip_prefix("GRANT "), line.strip_prefix("REVOKE ")) {
            (Some(rest), _) => (rest, true),
            (_, Some(rest)) => (rest, false),
            _ => return false,
        };
        // A list of privileges contains no quoted names, unless it is a list of roles or names columns.
        let Some((privileges, rest)) = rest.split_once(" ON ") else { return is_grant };
        if privileges.contains(['`', '(']) {
            return false;
        }
        let privileges = privileges.split(',').map(|privilege| privilege.trim().to_ascii_uppercase());
        if is_grant {
            if rest.starts_with("*.* ") {
                self.global.extend(privileges);
                self.has_all |= self.global.contains("ALL PRIVILEGES") || self.global.contains("ALL");
            }
        } else if let Some((schema, _)) = rest.split_once(".* FROM ") {
            self.revoked.extend(privileges.map(|privilege| (privilege, schema.to_owned())));
        }
        false
    }

    fn has(&self, requirement: &Requirement) -> bool {
        let names = || requirement.aliases.iter().chain([&requirement.privilege]);
        self.has_all || names().any(|name| self.global.contains(*name))
    }

    fn revoked_in(&self, requirement: &Requirement) -> Option<&str> {
        let is_it = |revoked: &&(String, String)| revoked.0 == requirement.privilege;
        self.revoked.iter().find(is_it).map(|(_, schema)| schema.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block in README.md that people copy grants exactly the privileges that are required.
    #[test]
    fn the_documented_grants_are_these() {
        let readme = include_str!("../../../../../README.md");
        for (flavor, title) in [(Flavor::MariaDb, "-- MariaDB\n"), (Flavor::MySql, "-- MySQL\n")] {
            let (_, block) = readme.split_once(title).unwrap();
            let grant = block.lines().find(|line| line.starts_with("GRANT ")).unwrap();
            let wanted: BTreeSet<String> =
                required(flavor).iter().map(|requirement| requirement.privilege.to_owned()).collect();
            assert_eq!(parse(&[grant]).global, wanted, "{title}");
        }
    }

    fn parse(lines: &[&str]) -> Grants {
        let mut grants = Grants::default();
        for line in lines {
            grants.add(line);
        }
        grants
    }

    /// Lines of both flavors are understood, and only global grants count.
    #[test]
    fn lines() {
        let mysql = parse(&[
            "GRANT SELECT, RELOAD, LOCK TABLES ON *.* TO `b`@`localhost` WITH GRANT OPTION",
            "GRANT BACKUP_ADMIN,CLONE_ADMIN ON *.* TO `b`@`localhost`",
            "GRANT PROCESS ON `d`.* TO `b`@`localhost`",
            "GRANT SELECT (`a`, `x ON *.* y`), INSERT ON `d`.`t` TO `b`@`localhost`",
            "REVOKE SELECT, INSERT ON `d``1`.* FROM `b`@`localhost`",
        ]);
        assert_eq!(
            mysql.global.iter().map(String::as_str).collect::<Vec<_>>(),
            ["BACKUP_ADMIN", "CLONE_ADMIN", "LOCK TABLES", "RELOAD", "SELECT"]
        );
        assert_eq!(mysql.revoked_in(&SELECT), Some("`d``1`"));
        assert_eq!(mysql.revoked_in(&RELOAD), None);
        assert!(!mysql.has_all);
        let root = parse(&[
            "GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` IDENTIFIED BY PASSWORD '*0' WITH GRANT OPTION",
        ]);
        assert!(MARIADB.iter().all(|requirement| root.has(requirement)));
        assert!(parse(&["GRANT REPLICATION CLIENT ON *.* TO `x`@`%`"]).has(&MARIADB[4]));
        let mut roles = Grants::default();
        assert!(roles.add("GRANT `r`@`%`,`s`@`%` TO `b`@`localhost`"));
        assert_eq!(roles, Grants::default());
        for odd in ["", "GRANT", "GRANT ON *.* ", "SET DEFAULT ROLE `r` FOR `b`@`localhost`", "REVOKE X ON"] {
            assert!(!parse(&[odd]).has(&SELECT), "{odd}");
        }
    }
}
