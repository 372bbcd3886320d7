//! The names of objects on the target.

use std::{fmt, str::FromStr};

use crate::{
    error::{Error, ErrorKind},
    logical::sql::{quoted, tokens},
};

/// A database or a table under another name: `shop=shop_copy`, `shop.orders=shop.orders_old`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rename {
    /// A database with everything in it.
    Schema {
        /// Its name in the backup.
        from: String,
        /// Its name on the target.
        to: String,
    },
    /// A table.
    Table {
        /// Database and table in the backup.
        from: (String, String),
        /// Database and table on the target.
        to: (String, String),
    },
}

impl fmt::Display for Rename {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schema { from, to } => write!(f, "{from}={to}"),
            Self::Table { from, to } => write!(f, "{}.{}={}.{}", from.0, from.1, to.0, to.1),
        }
    }
}

impl FromStr for Rename {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::new(ErrorKind::Usage, format!("{text:?} is not a rename"))
                .hinted("write shop=shop_copy, or shop.orders=shop.orders_old")
        };
        let (from, to) = text.split_once('=').ok_or_else(wrong)?;
        let pair = |name: &str| name.split_once('.').map(|(one, two)| (one.to_owned(), two.to_owned()));
        let is_whole = |(one, two): &(String, String)| !one.is_empty() && !two.is_empty();
        match (pair(from), pair(to)) {
            (Some(from), Some(to)) if is_whole(&from) && is_whole(&to) => Ok(Self::Table { from, to }),
            (None, None) if !from.is_empty() && !to.is_empty() => {
                Ok(Self::Schema { from: from.to_owned(), to: to.to_owned() })
            }
            _ => Err(wrong()),
        }
    }
}

/// All renames of a load.
#[derive(Clone, Debug, Default)]
pub struct Renames(pub Vec<Rename>);

impl Renames {
    /// Whether everything keeps its name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The target's name for a database.
    pub(super) fn schema<'a>(&'a self, schema: &'a str) -> &'a str {
        let renamed = self.0.iter().find_map(|rename| match rename {
            Rename::Schema { from, to } if from == schema => Some(to.as_str()),
            _ => None,
        });
        renamed.unwrap_or(schema)
    }

    /// Whether exactly this table gets another name.
    pub(super) fn has_table(&self, schema: &str, table: &str) -> bool {
        self.0
            .iter()
            .any(|rename| matches!(rename, Rename::Table { from, .. } if from.0 == schema && from.1 == table))
    }

    /// The name of a table, sequence or view on the target.
    pub(crate) fn table(&self, schema: &str, table: &str) -> (String, String) {
        let renamed = self.0.iter().find_map(|rename| match rename {
            Rename::Table { from, to } if from.0 == schema && from.1 == table => Some(to.clone()),
            _ => None,
        });
        renamed.unwrap_or_else(|| (self.schema(schema).to_owned(), table.to_owned()))
    }

    /// A statement in which every name that servers print with its database is the target's.
    pub(super) fn in_statement(&self, sql: &[u8]) -> Vec<u8> {
        if self.is_empty() {
            return sql.to_vec();
        }
        let all = tokens(sql);
        let mut out = Vec::with_capacity(sql.len());
        let mut at = 0;
        while at < all.len() {
            let pair = match &all[at..] {
                [schema, point, table, ..] if point.is_symbol(b'.') => schema.name().zip(table.name()),
                _ => None,
            };
            // `table`.`column` looks the same: only names of renamed databases are taken for databases.
            match pair {
                Some((schema, table)) if self.concerns(&schema) => {
                    let (schema, table) = self.table(&schema, &table);
                    out.extend_from_slice(format!("{}.{}", quoted(&schema), quoted(&table)).as_bytes());
                    at += 3;
                }
                _ => {
                    out.extend_from_slice(all[at].bytes);
                    at += 1;
                }
            }
        }
        out
    }

    /// Whether something in this database gets another name.
    pub(super) fn concerns(&self, schema: &str) -> bool {
        self.0.iter().any(|rename| match rename {
            Rename::Schema { from, .. } => from == schema,
            Rename::Table { from, .. } => from.0 == schema,
        })
    }

    /// Whether a text that its author wrote may refer to something that gets another name: the old name
    /// occurs in it as a word, anywhere. Comments and strings are no exception: some are executed, and where
    /// they end depends on settings and versions. Names that are put together at run time are not found.
    pub(super) fn may_be_meant_in(&self, sql: &[u8]) -> bool {
        let sql = without_definer(sql);
        self.0.iter().any(|rename| match rename {
            Rename::Schema { from, .. } => occurs(from, sql),
            Rename::Table { from, .. } => occurs(&from.0, sql) || occurs(&from.1, sql),
        })
    }
}

/// The text after `CREATE DEFINER=..`: accounts are often named like their databases.
fn without_definer(sql: &[u8]) -> &[u8] {
    let all = tokens(sql);
    match all.as_slice() {
        [create, space, definer, is, user, at, host, ..]
            if create.is_word("CREATE")
                && space.bytes == b" "
                && definer.is_word("DEFINER")
                && is.is_symbol(b'=')
                && user.name().is_some()
                && at.is_symbol(b'@')
                && host.name().is_some() =>
        {
            let header: usize = all[..7].iter().map(|token| token.bytes.len()).sum();
            &sql[header..]
        }
        _ => sql,
    }
}

/// Whether a name may occur in a text. A false alarm is better than a miss.
fn occurs(name: &str, sql: &[u8]) -> bool {
    if !name.is_ascii() {
        // Its bytes depend on the author's character set.
        return !sql.is_ascii();
    }
    let is_at = |name: &[u8]| {
        sql.windows(name.len().max(1)).enumerate().any(|(at, window)| {
            let before = at.checked_sub(1).map_or(b' ', |at| sql[at]);
            // In strings, `\n` ends the word before; in comments that are executed, the digits of a version
            // do.
            let is_escaped = at.checked_sub(2).is_some_and(|at| sql[at] == b'\\');
            let begins = is_escaped || !(before.is_ascii_alphabetic() || matches!(before, b'_' | b'$'));
            let after = sql.get(at + name.len()).copied().unwrap_or(b' ');
            let ends = !(after.is_ascii_alphanumeric() || matches!(after, b'_' | b'$'));
            window.eq_ignore_ascii_case(name) && begins && ends
        })
    };
    is_at(name.as_bytes())
        || [('`', "``"), ('"', "\"\""), ('\'', "\'\'"), ('\\', "\\\\")]
            .iter()
            .any(|(quote, doubled)| name.contains(*quote) && is_at(name.replace(*quote, doubled).as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames() {
        let renames = Renames(vec!["shop=copy".parse().unwrap(), "a.t=b.u".parse().unwrap()]);
        assert_eq!(renames.schema("shop"), "copy");
        assert_eq!(renames.table("a", "t"), ("b".to_owned(), "u".to_owned()));
        assert_eq!(renames.table("a", "x"), ("a".to_owned(), "x".to_owned()));
        let view = b"CREATE VIEW `shop`.`v` AS select `shop`.`t`.`id` AS `id`,'`shop`.`t`' from (`shop`.`t` join `a`.`t`)";
        let expected =
            b"CREATE VIEW `copy`.`v` AS select `copy`.`t`.`id` AS `id`,'`shop`.`t`' from (`copy`.`t` join `b`.`u`)";
        assert_eq!(renames.in_statement(view), expected);
        assert!(renames.may_be_meant_in(b"SELECT * FROM Shop . t"));
        for meant in [
            &b"BEGIN -- don't keep old ones\n DELETE FROM shop.log; END"[..],
            b"BEGIN # don't\n DELETE FROM `Shop`.log; END",
            b"EXECUTE IMMEDIATE 'DELETE FROM shop.log'",
            b"EXECUTE IMMEDIATE 'DELETE FROM\\nshop.log'",
            b"SELECT REPLACE(x, '\\', '/'), 'a' FROM shop.t",
            b"SELECT * FROM /*!50000shop.t */",
            b"SELECT shop, 'b' FROM x",
            b"DELETE FROM t",
        ] {
            assert!(renames.may_be_meant_in(meant), "{}", String::from_utf8_lossy(meant));
        }
        assert!(!renames.may_be_meant_in(b"SELECT shops, workshop, shop_2, tt FROM orders"));
        let by_its_account = b"CREATE DEFINER=`shop`@`%` PROCEDURE `p`() SELECT 1";
        assert!(!renames.may_be_meant_in(by_its_account));
        let large = Renames(vec!["gr\u{f6}\u{df}e=x".parse().unwrap()]);
        assert!(large.may_be_meant_in(b"SELECT * FROM gr\xF6\xDFe.t") && !large.may_be_meant_in(b"SELECT 1"));
        for odd in ["shop", "a.b=c", "=x", "a.=b.c"] {
            assert!(odd.parse::<Rename>().is_err(), "{odd}");
        }
    }
}
