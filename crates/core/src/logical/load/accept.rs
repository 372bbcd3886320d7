//! Checks what the statements of a backup say. A repository is not trusted: whoever can write to it must not
//! be able to execute anything else with the account that loads.
//!
//! Statements that are not understood are not accepted. Sessions take one statement at a time (see
//! `Link::settle`), so it is enough that a statement begins with what it is to make.

use holdfast_formats::sql::{self, BEFORE_KIND, Comments, Modes};

use super::{elements::TableSql, plan::Adaptation};
use crate::logical::{
    catalog::{privileges, tables::EngineKind},
    sql::{Kind, Token, tokens},
    stored::{
        contents::Contents,
        definition::{AccountDefinition, Context, Rows, TableDefinition},
    },
};

/// MariaDB 11.8 prints it between `TIMESTAMP` and the text of a literal that is compared with a time stamp.
const ZONE_OF_LITERAL: &[u8] = b"/*WITH LOCAL TIME ZONE*/";
pub(super) const STRANGE: &str = "its definition contains something that is not allowed";

/// Takes out objects whose definitions say something they must not, and names them.
pub(super) fn sift(contents: &mut Contents) -> Vec<Adaptation> {
    let mut strange = Vec::new();
    let mut is_good = |is_good: bool, object: String| {
        if !is_good {
            strange.push(Adaptation { object, what: STRANGE.to_owned() });
        }
        is_good
    };
    contents.schemas.retain(|it| is_good(is_plain(&it.collation), format!("database {}", it.schema)));
    contents.sequences.retain(|it| {
        let is_number = |text: &String| text.bytes().all(|c| c.is_ascii_digit() || c == b'-');
        let is_so = makes(&it.create.0, "SEQUENCE", &it.schema, &it.name) && it.state.iter().all(is_number);
        is_good(is_so, format!("sequence {}.{}", it.schema, it.name))
    });
    contents.routines.retain(|it| {
        let is_known = ["PROCEDURE", "FUNCTION", "PACKAGE", "PACKAGE BODY"].contains(&it.kind.as_str());
        let is_so =
            is_known && makes(&it.create.0, &it.kind, &it.schema, &it.name) && is_settled(&it.context);
        is_good(is_so, format!("{} {}.{}", it.kind.to_lowercase(), it.schema, it.name))
    });
    contents.views.retain(|it| {
        let is_so = makes(&it.create.0, "VIEW", &it.schema, &it.name) && is_settled(&it.context);
        // Views that could not be used are named as such.
        is_good(is_so || it.columns.is_empty(), format!("view {}.{}", it.schema, it.name))
    });
    contents.triggers.retain(|it| {
        let is_so = makes(&it.create.0, "TRIGGER", &it.schema, &it.name) && is_settled(&it.context);
        is_good(is_so, format!("trigger {}.{}", it.schema, it.name))
    });
    contents.events.retain(|it| {
        let is_so = makes(&it.create.0, "EVENT", &it.schema, &it.name) && is_settled(&it.context);
        is_good(is_so, format!("event {}.{}", it.schema, it.name))
    });
    contents.accounts.retain(|it| is_good(is_account(it), format!("account {}", it.account)));
    strange
}

/// Whether a table's statement, and the parts of its definition that go into other statements, are as they
/// should be.
pub(super) fn is_table(it: &TableDefinition) -> bool {
    let is_literal = |text: &str| {
        text.starts_with('_') && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"_ '".contains(&c))
    };
    makes(&it.create.0, "TABLE", &it.schema, &it.name)
        && is_of_engine(&it.create.0, &it.engine)
        && (it.rows == Rows::None || EngineKind::of(&it.engine) != EngineKind::NoRows)
        && it.columns.iter().all(|column| column.charset.as_deref().is_none_or(is_plain))
        && it.defaults.iter().all(|(_, literal)| is_literal(literal))
}

/// Whether the text after a table's columns names its engine and no other, and fills the table with nothing:
/// rows go where the engine puts them, which may be another server or any file.
fn is_of_engine(sql: &[u8], engine: &str) -> bool {
    let sql = executed(sql);
    // Servers print only comments that they execute, and one that names the type of a literal. Text that is a
    // comment to them and a string to us hides something.
    let mut comments = sql::tokens(&sql, Modes::default(), Comments::All);
    if comments.any(|token| token.kind == Kind::Comment && token.bytes != ZONE_OF_LITERAL) {
        return false;
    }
    let Some(table) = TableSql::parse(&sql) else { return false };
    let all: Vec<Token<'_>> = tokens(&table.tail).into_iter().filter(|it| it.kind != Kind::Space).collect();
    let mut is_said = false;
    for (at, token) in all.iter().enumerate() {
        if ["SELECT", "TABLE", "LIKE"].iter().any(|word| token.is_word(word)) {
            return false;
        }
        if token.is_word("ENGINE") {
            let mut said = all[at + 1..].iter().skip_while(|token| token.is_symbol(b'='));
            if !said.next().is_some_and(|token| token.is_word(engine)) {
                return false;
            }
            is_said = true;
        }
    }
    is_said
}

/// A text with the comments that servers execute turned into plain text.
pub(super) fn executed(sql: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(sql.len());
    for token in tokens(sql) {
        let inner = token.bytes.strip_prefix(b"/*!").or_else(|| token.bytes.strip_prefix(b"/*M!"));
        match inner.filter(|_| token.kind == Kind::Comment) {
            Some(inner) => {
                let inner = inner.strip_suffix(b"*/").unwrap_or(inner);
                let digits = inner.iter().take_while(|byte| byte.is_ascii_digit()).count();
                out.push(b' ');
                out.extend_from_slice(&inner[digits..]);
                out.push(b' ');
            }
            None => out.extend_from_slice(token.bytes),
        }
    }
    out
}

fn is_account(it: &AccountDefinition) -> bool {
    let begins = |sql: &[u8], words: &[&str]| {
        let all = tokens(sql);
        let mut all = all.iter().filter(|token| token.kind != Kind::Space);
        words.iter().all(|word| all.next().is_some_and(|token| token.is_word(word)))
    };
    it.create.as_ref().is_none_or(|create| begins(&create.0, &["CREATE", "USER"]))
        && it.alter.as_ref().is_none_or(|alter| is_expiry(&alter.0, &it.account))
        && it.options.iter().all(|option| begins(&option.0, &["WITH", "ADMIN"]))
        && it.grants.iter().all(|grant| {
            let known = [&["GRANT"][..], &["REVOKE"], &["SET", "DEFAULT", "ROLE"]];
            known.iter().any(|words| begins(&grant.0, words))
        })
}

/// Whether a statement sets when the password of this account expires, and nothing else.
fn is_expiry(sql: &[u8], account: &str) -> bool {
    let all = tokens(sql);
    let all: Vec<_> = all.into_iter().filter(|token| token.kind != Kind::Space).collect();
    let [alter, user, name, at, host, password, expire, when @ ..] = all.as_slice() else { return false };
    let is_word = |token: &Token<'_>, words: &[&str]| words.iter().any(|word| token.is_word(word));
    let named = name.name().zip(host.name()).map(|(name, host)| privileges::account(&name, &host));
    let is_number = |token: &Token<'_>| token.bytes.iter().all(u8::is_ascii_digit);
    is_word(alter, &["ALTER"])
        && is_word(user, &["USER"])
        && at.is_symbol(b'@')
        && named.is_some_and(|named| named == account)
        && is_word(password, &["PASSWORD"])
        && is_word(expire, &["EXPIRE"])
        && when.iter().all(|token| is_number(token) || is_word(token, &["NEVER", "INTERVAL", "DAY"]))
}

fn is_settled(context: &Context) -> bool {
    is_plain(&context.charset)
        && is_plain(&context.collation)
        && (context.schema_collation.is_empty() || is_plain(&context.schema_collation))
}

/// Whether a word can be the name of a character set or collation.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
}

/// Whether a statement makes something of this kind and name, in this database or the current one.
fn makes(sql: &[u8], kind: &str, schema: &str, name: &str) -> bool {
    let all = tokens(sql);
    let is_executed = |token: &Token<'_>| {
        token.kind == Kind::Comment && (token.bytes.starts_with(b"/*!") || token.bytes.starts_with(b"/*M!"))
    };
    let meaning: Vec<&Token<'_>> = all
        .iter()
        .filter(|token| is_executed(token) || !matches!(token.kind, Kind::Space | Kind::Comment))
        .collect();
    let mut rest = meaning.as_slice();
    if !take_word(&mut rest, "CREATE") {
        return false;
    }
    let (first_word, second_word) = kind.split_once(' ').unwrap_or((kind, ""));
    while !take_word(&mut rest, first_word) {
        let Some((token, after)) = rest.split_first() else { return false };
        let may_be = match token.kind {
            Kind::Word => BEFORE_KIND.iter().any(|word| token.is_word(word)),
            Kind::Name | Kind::Text => true,
            Kind::Symbol => token.is_symbol(b'=') || token.is_symbol(b'@'),
            Kind::Space | Kind::Comment => false,
        };
        if !may_be {
            return false;
        }
        rest = after;
    }
    if !second_word.is_empty() && !take_word(&mut rest, second_word) {
        return false;
    }
    if take_word(&mut rest, "IF") && !(take_word(&mut rest, "NOT") && take_word(&mut rest, "EXISTS")) {
        return false;
    }
    let named = match rest {
        [database, point, named, after @ ..] if point.is_symbol(b'.') => {
            rest = after;
            if !is_called(database, schema) {
                return false;
            }
            named
        }
        [named, after @ ..] => {
            rest = after;
            named
        }
        [] => return false,
    };
    // A function without parameters in parentheses is one of a library.
    let has_parameters = !matches!(kind, "PROCEDURE" | "FUNCTION" | "TABLE")
        || rest.first().is_some_and(|token| token.is_symbol(b'('));
    is_called(named, name) && has_parameters
}

fn take_word(rest: &mut &[&Token<'_>], word: &str) -> bool {
    match rest.split_first() {
        Some((first, after)) if first.is_word(word) => {
            *rest = after;
            true
        }
        _ => false,
    }
}

/// Whether a token spells a name, with quotes or without. Bytes in another character set than ours are not
/// compared.
fn is_called(token: &Token<'_>, name: &str) -> bool {
    let written = match token.kind {
        Kind::Name => token.name(),
        Kind::Word => Some(String::from_utf8_lossy(token.bytes).into_owned()),
        Kind::Text => {
            let inner = token.bytes.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
            inner.map(|inner| String::from_utf8_lossy(inner).replace("\"\"", "\""))
        }
        Kind::Space | Kind::Comment | Kind::Symbol => None,
    };
    written.is_some_and(|written| {
        written.eq_ignore_ascii_case(name) || !token.bytes.is_ascii() || !name.is_ascii()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table has the engine that its definition names, wherever that is said.
    #[test]
    fn engines() {
        for (tail, is_good) in [
            ("ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='ENGINE=CONNECT'", true),
            (
                "ENGINE=InnoDB\n/*!50100 PARTITION BY RANGE (`a`)\n(PARTITION p VALUES LESS THAN (1) ENGINE = InnoDB) */",
                true,
            ),
            ("/*!50100 TABLESPACE `t` */ ENGINE=innodb", true),
            ("ENGINE=InnoDB /* WITH LOCAL TIME ZONE */", false),
            ("ENGINE=CONNECT FILE_NAME='/tmp/x'", false),
            ("ENGINE=InnoDB ENGINE=CONNECT", false),
            ("ENGINE=InnoDB /*!50000 ENGINE CONNECT */", false),
            ("ENGINE=InnoDB /*M!100000 ENGINE='CONNECT'*/", false),
            ("ENGINE=InnoDB /*!50000 /*!50000 ENGINE=CONNECT */ */", false),
            ("ENGINE=InnoDB #'\n ENGINE=CONNECT #'", false),
            ("ENGINE=InnoDB -- '\n ENGINE=CONNECT -- '", false),
            ("ENGINE=InnoDB --\x01'\n ENGINE=CONNECT --\x01'", false),
            ("ENGINE=InnoDB AS SELECT * FROM mysql.user", false),
            ("DEFAULT CHARSET=utf8mb4", false),
        ] {
            let sql = format!("CREATE TABLE `x` (\n  `a` int(11)\n) {tail}");
            assert_eq!(is_of_engine(sql.as_bytes(), "InnoDB"), is_good, "{tail}");
        }
        let check = "CHECK (`a` > TIMESTAMP/*WITH LOCAL TIME ZONE*/'2020-01-01 12:00:00')";
        let sql = format!("CREATE TABLE `x` (\n  `a` timestamp NOT NULL,\n  {check}\n) ENGINE=InnoDB");
        assert!(is_of_engine(sql.as_bytes(), "InnoDB"));
    }

    /// What follows the making of an account changes nothing but when its password expires.
    #[test]
    fn expiry() {
        for (sql, is_good) in [
            ("ALTER USER `a'b`@`%` PASSWORD EXPIRE INTERVAL 30 DAY", true),
            ("ALTER USER `a'b`@`%` PASSWORD EXPIRE NEVER", true),
            ("ALTER USER `root`@`%` PASSWORD EXPIRE NEVER", false),
            ("ALTER USER `a'b`@`%` IDENTIFIED BY ''", false),
            ("ALTER USER `a'b`@`%` PASSWORD EXPIRE NEVER, `root`@`%`", false),
            ("ALTER USER `a'b`@`%`", false),
            ("DROP USER `a'b`@`%` PASSWORD EXPIRE NEVER", false),
        ] {
            assert_eq!(is_expiry(sql.as_bytes(), "'a''b'@'%'"), is_good, "{sql}");
        }
    }

    /// Statements as servers print them, and nothing else.
    #[test]
    fn statements() {
        for (sql, kind) in [
            ("CREATE TABLE `x` (\n  `a` int)", "TABLE"),
            ("CREATE DEFINER=`root`@`localhost` PROCEDURE `x`() SELECT 1", "PROCEDURE"),
            ("CREATE DEFINER=\"root\"@\"%\" PACKAGE BODY \"x\" AS", "PACKAGE BODY"),
            ("CREATE DEFINER=`r`@`%` AGGREGATE FUNCTION `x`(a INT) RETURNS INT", "FUNCTION"),
            (
                "CREATE ALGORITHM=UNDEFINED DEFINER=`r`@`%` SQL SECURITY DEFINER VIEW `s`.`x` AS select 1",
                "VIEW",
            ),
            ("CREATE DEFINER=`r`@`%` TRIGGER s.x BEFORE INSERT ON t FOR EACH ROW SET @a = 1", "TRIGGER"),
            ("CREATE DEFINER=`r`@`%` EVENT IF NOT EXISTS `x` ON SCHEDULE EVERY 1 DAY DO SELECT 1", "EVENT"),
            ("CREATE SEQUENCE `s`.`x` start with 1", "SEQUENCE"),
        ] {
            assert!(makes(sql.as_bytes(), kind, "s", "x"), "{sql}");
            assert!(!makes(sql.as_bytes(), kind, "s", "y"), "{sql}");
            assert!(!makes(sql.as_bytes(), "USER", "s", "x"), "{sql}");
        }
        for (sql, kind) in [
            ("DROP DATABASE x", "TABLE"),
            ("CREATE VIEW `mysql`.`x` AS SELECT 1", "VIEW"),
            ("CREATE USER x EVENT x", "EVENT"),
            ("CREATE /*!50000 USER u -- */ EVENT x", "EVENT"),
            ("CREATE FUNCTION x RETURNS STRING SONAME 'x.so'", "FUNCTION"),
            ("CREATE PROCEDURE", "PROCEDURE"),
            ("", "PROCEDURE"),
        ] {
            assert!(!makes(sql.as_bytes(), kind, "s", "x"), "{sql}");
        }
        assert!(is_plain("utf8mb4_0900_ai_ci") && !is_plain("x; DROP") && !is_plain(""));
    }
}
