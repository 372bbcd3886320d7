//! Checks, before anything is saved, that the account may see everything it is to save.
//!
//! The servers do not refuse to list what an account may not see: they leave it out. A backup made from such
//! a list would lack triggers, events or routines, and claim to be complete. So the privileges are read from
//! `SHOW GRANTS`, and a missing one is a failure that names the statement to execute.

use std::collections::BTreeSet;

use holdfast_formats::Flavor;

use crate::{
    error::{Error, ErrorKind, Result},
    logical::{
        selection::Selection,
        sql::{quoted, quoted_text},
    },
    server::{Session, SqlError},
};

/// Where a privilege holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    All,
    /// A `LIKE` pattern.
    Schema(String),
    Table(String, String),
}

/// The privileges that `SHOW GRANTS` lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Privileges {
    /// As written in statements.
    account: String,
    granted: Vec<(BTreeSet<String>, Scope)>,
    revoked: Vec<(BTreeSet<String>, String)>,
}

impl Privileges {
    pub(crate) fn read(session: &mut Session) -> Result<Self, SqlError> {
        let current = session.value("SELECT CURRENT_USER()")?.unwrap_or_default();
        let (user, host) = current.rsplit_once('@').unwrap_or((&current, "%"));
        let mut privileges = Self { account: account(user, host), ..Self::default() };
        for row in session.rows("SHOW GRANTS")? {
            privileges.add(row.values().first().and_then(Option::as_deref).unwrap_or_default());
        }
        Ok(privileges)
    }

    #[cfg(test)]
    pub(crate) fn of_lines(lines: &[&str]) -> Self {
        let mut privileges = Self { account: "'b'@'%'".to_owned(), ..Self::default() };
        for line in lines {
            privileges.add(line);
        }
        privileges
    }

    fn add(&mut self, line: &str) {
        let (line, is_grant) = match (line.strip_prefix("GRANT "), line.strip_prefix("REVOKE ")) {
            (Some(rest), _) => (rest, true),
            (_, Some(rest)) => (rest, false),
            _ => return,
        };
        // Roles, columns, proxies and single routines do not matter here.
        let Some((names, object)) = whole_privileges(line).filter(|(names, _)| !names.is_empty()) else {
            return;
        };
        let Some(scope) = scope(object) else { return };
        match (is_grant, scope) {
            (true, scope) => self.granted.push((names, scope)),
            (false, Scope::Schema(schema)) => self.revoked.push((names, schema)),
            (false, _) => {}
        }
    }

    fn granted(&self, privilege: &str, covers: impl Fn(&Scope) -> bool) -> bool {
        let has = |names: &BTreeSet<String>| {
            names.contains(privilege) || names.contains("ALL PRIVILEGES") || names.contains("ALL")
        };
        self.granted.iter().any(|(names, scope)| has(names) && covers(scope))
    }

    /// Whether a privilege is granted on everything.
    pub(crate) fn has(&self, privilege: &str) -> bool {
        self.granted(privilege, |scope| *scope == Scope::All)
    }

    /// Whether no table is hidden from the account.
    pub(crate) fn sees_all_tables(&self) -> bool {
        self.has("SELECT") && !self.revoked.iter().any(|(names, _)| names.contains("SELECT"))
    }

    /// The statement that grants what is missing of `privileges` on a whole schema, or on everything (`*`).
    pub(crate) fn missing(&self, privileges: &[&str], schema: &str) -> Option<String> {
        let is_missing = |privilege: &&&str| match schema {
            "*" => !self.has(privilege),
            schema => !self.has_in(privilege, schema),
        };
        let missing: Vec<&str> = privileges.iter().filter(is_missing).copied().collect();
        let place = if schema == "*" { "*.*".to_owned() } else { format!("{}.*", quoted(schema)) };
        (!missing.is_empty()).then(|| format!("GRANT {} ON {place} TO {};", missing.join(", "), self.account))
    }

    /// Whether a privilege is granted on a whole schema.
    fn has_in(&self, privilege: &str, schema: &str) -> bool {
        let is_revoked = self.revoked.iter().any(|(names, name)| names.contains(privilege) && name == schema);
        let covers = |scope: &Scope| match scope {
            Scope::All => !is_revoked,
            Scope::Schema(pattern) => is_like(pattern, schema),
            Scope::Table(..) => false,
        };
        self.granted(privilege, covers)
    }

    fn has_on(&self, privilege: &str, schema: &str, table: &str) -> bool {
        let covers = |scope: &Scope| *scope == Scope::Table(schema.to_owned(), table.to_owned());
        self.has_in(privilege, schema) || self.granted(privilege, covers)
    }

    /// Fails with the statements that grant what is missing. `tables` are the tables found; the flag marks
    /// views.
    pub(crate) fn check<'a>(
        &self,
        flavor: Flavor,
        selection: &Selection,
        schemas: &[String],
        tables: impl Iterator<Item = (&'a str, &'a str, bool)>,
    ) -> Result<()> {
        let mut missing = BTreeSet::new();
        for schema in schemas.iter().filter(|schema| selection.has_whole(schema)) {
            // Without these privileges the server does not show what there is.
            for privilege in ["SELECT", "TRIGGER", "EVENT"] {
                if !self.has_in(privilege, schema) {
                    missing.insert((privilege, self.place(selection, schema)));
                }
            }
            let sees_routines = match flavor {
                Flavor::MySql => self.has("SELECT") || self.has("SHOW_ROUTINE"),
                Flavor::MariaDb => {
                    self.has_on("SELECT", "mysql", "proc") || self.has_in("SHOW CREATE ROUTINE", schema)
                }
            };
            if !sees_routines {
                missing.insert(match flavor {
                    Flavor::MySql => ("SHOW_ROUTINE", "*.*".to_owned()),
                    Flavor::MariaDb => ("SELECT", "mysql.proc".to_owned()),
                });
            }
        }
        // Schemas that are not listed, and schemas whose tables are not.
        let is_hidden = |schema: &&String| !schemas.contains(schema) && selection.needs_all_tables(schema);
        let revoked = self.revoked.iter().filter(|(names, _)| names.contains("SELECT"));
        let hidden = revoked.map(|(_, schema)| schema).filter(is_hidden);
        let open = schemas.iter().filter(|schema| selection.needs_all_tables(schema));
        for schema in hidden.chain(open.filter(|schema| !self.has_in("SELECT", schema))) {
            missing.insert(("SELECT", self.place(selection, schema)));
        }
        let sees_schemas = self.has("SELECT") || self.has("SHOW DATABASES");
        if selection.needs_all_schemas() && !sees_schemas && !missing.contains(&("SELECT", "*.*".to_owned()))
        {
            missing.insert(("SHOW DATABASES", "*.*".to_owned()));
        }
        for (schema, table, is_view) in tables {
            let needed: &[&str] = if is_view { &["SELECT", "SHOW VIEW"] } else { &["SELECT", "TRIGGER"] };
            for privilege in needed.iter().filter(|privilege| !self.has_on(privilege, schema, table)) {
                if !missing.contains(&(*privilege, self.place(selection, schema))) {
                    let whole = selection.has_whole(schema);
                    let place = if whole {
                        self.place(selection, schema)
                    } else {
                        format!("{}.{}", quoted(schema), quoted(table))
                    };
                    missing.insert((*privilege, place));
                }
            }
        }
        if selection.has_accounts() && !self.has_in("SELECT", "mysql") {
            missing.insert(("SELECT", "mysql.*".to_owned()));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let names: BTreeSet<&str> = missing.iter().map(|(privilege, _)| *privilege).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!(
            "the account {} lacks {names}: objects that it cannot see would be missing from the backup",
            self.account
        );
        Err(Error::new(ErrorKind::Server, text).hinted(self.statements(&missing)))
    }

    /// Where best to grant a privilege that is missing in a schema. One that was revoked there must be given
    /// back there.
    fn place(&self, selection: &Selection, schema: &str) -> String {
        let is_revoked = self.revoked.iter().any(|(_, name)| name == schema);
        if selection.is_of_all() && !is_revoked { "*.*".to_owned() } else { format!("{}.*", quoted(schema)) }
    }

    fn statements(&self, missing: &BTreeSet<(&str, String)>) -> String {
        const SHOWN_MAX: usize = 5;
        let places: BTreeSet<&String> = missing.iter().map(|(_, place)| place).collect();
        let of = |place: &String| {
            let names = missing.iter().filter(|(_, at)| at == place).map(|(privilege, _)| *privilege);
            format!("GRANT {} ON {place} TO {};", names.collect::<Vec<_>>().join(", "), self.account)
        };
        let mut lines: Vec<String> = places.iter().take(SHOWN_MAX).map(|place| of(place)).collect();
        if places.len() > SHOWN_MAX {
            lines.push(format!("and the same for {} more", places.len() - SHOWN_MAX));
        }
        lines.join("\n")
    }
}

/// An account as written in statements.
pub(crate) fn account(user: &str, host: &str) -> String {
    format!("{}@{}", quoted_text(user), quoted_text(host))
}

/// Splits what follows `GRANT` or `REVOKE`: the privileges on the whole object, and the text after `ON`.
/// Privileges on single columns, ``SELECT (`a`, `b`)``, are left out. `None` if it grants roles.
fn whole_privileges(text: &str) -> Option<(BTreeSet<String>, &str)> {
    let mut names = BTreeSet::new();
    let mut add = |name: &str| {
        if !name.contains('(') {
            names.insert(name.trim().to_ascii_uppercase());
        }
    };
    let (mut begin, mut depth, mut is_quoted) = (0, 0_usize, false);
    for (at, c) in text.char_indices() {
        match c {
            '`' if depth > 0 => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '`' | '\'' => return None,
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                add(&text[begin..at]);
                begin = at + 1;
            }
            ' ' if depth == 0 && text[at..].starts_with(" ON ") => {
                add(&text[begin..at]);
                return Some((names, &text[at + " ON ".len()..]));
            }
            _ => {}
        }
    }
    None
}

/// The object of a grant: the text after ON.
fn scope(text: &str) -> Option<Scope> {
    let (schema, rest) = name(text)?;
    let (table, _) = name(rest.strip_prefix('.')?)?;
    Some(match (schema, table) {
        (None, None) => Scope::All,
        (Some(schema), None) => Scope::Schema(schema),
        (Some(schema), Some(table)) => Scope::Table(schema, table),
        (None, Some(_)) => return None,
    })
}

/// Parses a quoted name, or a star as `None`. Returns it with the rest of the text.
fn name(text: &str) -> Option<(Option<String>, &str)> {
    if let Some(rest) = text.strip_prefix('*') {
        return Some((None, rest));
    }
    let text = text.strip_prefix('`')?;
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('`')?;
        name.push_str(part);
        match after.strip_prefix('`') {
            Some(after) => {
                name.push('`');
                rest = after;
            }
            None => return Some((Some(name), after)),
        }
    }
}

/// `LIKE` in grants: `%`, `_`, and `\` before a character that stands for itself.
fn is_like(pattern: &str, name: &str) -> bool {
    fn matches(pattern: &[char], name: &[char]) -> bool {
        match pattern {
            [] => name.is_empty(),
            ['%', rest @ ..] => (0..=name.len()).any(|taken| matches(rest, &name[taken..])),
            ['\\', c, rest @ ..] => name.first() == Some(c) && matches(rest, &name[1..]),
            ['_', rest @ ..] => !name.is_empty() && matches(rest, &name[1..]),
            [c, rest @ ..] => name.first() == Some(c) && matches(rest, &name[1..]),
        }
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    matches(&pattern, &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn privileges(lines: &[&str]) -> Privileges {
        Privileges::of_lines(lines)
    }

    fn check(privileges: &Privileges, flavor: Flavor, selection: &Selection) -> Result<()> {
        let tables = [("shop", "orders", false), ("shop", "v", true)];
        let tables = tables.into_iter().filter(|(schema, table, _)| selection.has_table(schema, table));
        privileges.check(flavor, selection, &["shop".to_owned(), "mysql".to_owned()], tables)
    }

    /// A missing privilege is reported as the statement that grants it, in the right place.
    #[test]
    fn what_is_missing_is_named() {
        let all = Selection::default();
        let shop = Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() };
        let orders = Selection { tables: vec!["shop.orders".parse().unwrap()], ..Selection::default() };
        let root = privileges(&["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"]);
        for flavor in [Flavor::MariaDb, Flavor::MySql] {
            for selection in [&all, &shop, &orders] {
                check(&root, flavor, selection).unwrap();
            }
        }
        let reader = privileges(&["GRANT SELECT ON *.* TO `b`@`%`"]);
        let error = check(&reader, Flavor::MySql, &all).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT EVENT, SHOW VIEW, TRIGGER ON *.* TO 'b'@'%';"));
        let error = check(&reader, Flavor::MySql, &shop).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT EVENT, SHOW VIEW, TRIGGER ON `shop`.* TO 'b'@'%';"));
        let error = check(&reader, Flavor::MariaDb, &orders).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT TRIGGER ON `shop`.`orders` TO 'b'@'%';"));

        let of_shop = privileges(&["GRANT SELECT, SHOW VIEW, TRIGGER, EVENT ON `sh\\_p`.* TO `b`@`%`"]);
        assert!(check(&of_shop, Flavor::MariaDb, &shop).is_err(), "the underscore is meant itself");
        let of_shop = privileges(&["GRANT SELECT, SHOW VIEW, TRIGGER, EVENT ON `sh_p`.* TO `b`@`%`"]);
        let error = check(&of_shop, Flavor::MariaDb, &shop).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT SELECT ON mysql.proc TO 'b'@'%';"));
        let error = check(&of_shop, Flavor::MySql, &shop).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT SHOW_ROUTINE ON *.* TO 'b'@'%';"));

        // Objects that the server does not list would not be missed.
        let wild = Selection { schemas: vec!["sh*".parse().unwrap()], ..Selection::default() };
        let mut of_each = vec![
            "GRANT SHOW_ROUTINE ON *.* TO `b`@`%`",
            "GRANT SELECT, SHOW VIEW, TRIGGER, EVENT ON `shop`.* TO `b`@`%`",
            "GRANT SELECT ON `mysql`.* TO `b`@`%`",
        ];
        for selection in [&all, &wild] {
            let error = check(&privileges(&of_each), Flavor::MySql, selection).unwrap_err();
            assert_eq!(error.hint(), Some("GRANT SHOW DATABASES ON *.* TO 'b'@'%';"));
        }
        check(&privileges(&of_each), Flavor::MySql, &shop).unwrap();
        of_each[0] = "GRANT SHOW DATABASES, SHOW_ROUTINE ON *.* TO `b`@`%`";
        check(&privileges(&of_each), Flavor::MySql, &wild).unwrap();
        let tables = Selection { tables: vec!["shop.o*".parse().unwrap()], ..Selection::default() };
        let of_table = privileges(&["GRANT SELECT, TRIGGER ON `shop`.`orders` TO `b`@`%`"]);
        check(&of_table, Flavor::MySql, &orders).unwrap();
        let error = check(&of_table, Flavor::MySql, &tables).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT SELECT ON `shop`.* TO 'b'@'%';"));
        let hidden = privileges(&[
            "GRANT SELECT, SHOW VIEW, TRIGGER, EVENT ON *.* TO `b`@`%`",
            "REVOKE SELECT ON `crm`.* FROM `b`@`%`",
        ]);
        let error = check(&hidden, Flavor::MySql, &all).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT SELECT ON `crm`.* TO 'b'@'%';"));
        check(&hidden, Flavor::MySql, &wild).unwrap();

        let revoked = privileges(&[
            "GRANT SELECT, SHOW VIEW, TRIGGER, EVENT ON *.* TO `b`@`%`",
            "REVOKE SELECT ON `mysql`.* FROM `b`@`%`",
        ]);
        let error = check(&revoked, Flavor::MySql, &all).unwrap_err();
        assert_eq!(error.hint(), Some("GRANT SELECT ON mysql.* TO 'b'@'%';"));
    }

    /// A privilege on some columns does not hide the privileges on the whole table beside it.
    #[test]
    fn privileges_on_columns_stand_beside_others() {
        let orders = Selection { tables: vec!["shop.orders".parse().unwrap()], ..Selection::default() };
        let of = |names: &str| {
            let granted = privileges(&[&format!("GRANT {names} ON `shop`.`orders` TO `b`@`%`")]);
            check(&granted, Flavor::MySql, &orders).map_err(|error| error.hint().map(str::to_owned))
        };
        let lacks = |name: &str| Err(Some(format!("GRANT {name} ON `shop`.`orders` TO 'b'@'%';")));
        assert_eq!(of("SELECT, INSERT (`a`, `b`), TRIGGER"), Ok(()));
        assert_eq!(of("INSERT (`a`), SELECT, TRIGGER, UPDATE (`b`)"), Ok(()));
        assert_eq!(of("SELECT (`a`), TRIGGER"), lacks("SELECT"));
        assert_eq!(of("SELECT, INSERT (a, TRIGGER)"), lacks("TRIGGER"));
        // Names of columns may contain anything.
        assert_eq!(of("INSERT (`a) ON ``, x`), SELECT, TRIGGER"), Ok(()));
        assert_eq!(of("INSERT (`a), SELECT, b`), TRIGGER"), lacks("SELECT"));
    }

    #[test]
    fn odd_lines_grant_nothing() {
        for odd in [
            "",
            "GRANT",
            "GRANT SELECT ON ",
            "GRANT SELECT ON `a",
            "GRANT `r`@`%` TO `b`@`%`",
            "GRANT PROXY ON ''@'' TO x",
            "GRANT SELECT (`a`) ON `d`.`t` TO x",
            "GRANT SELECT (`a ON `d`.`t` TO x",
            "GRANT SELECT) ON `d`.`t` TO x",
            "GRANT `x ON y` TO `b`@`%`",
        ] {
            assert!(privileges(&[odd]).granted.is_empty(), "{odd}");
        }
        assert_eq!(scope("`a``b`.`c` TO x"), Some(Scope::Table("a`b".into(), "c".into())));
        assert_eq!(account("o'b\\", "%"), "'o''b\\\\'@'%'");
    }
}
