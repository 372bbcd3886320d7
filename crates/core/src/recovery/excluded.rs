//! What a logical backup left out because it was excluded by name, in what is replayed after the backup.
//!
//! A server that has loaded the backup has none of it. A transaction that changes it cannot be replayed there, or
//! worse, makes a part of it anew that looks like the whole.

use std::collections::BTreeSet;

use holdfast_formats::{
    binlog::{Body, Query},
    dump::{Modes, Token, tokens},
};
use holdfast_repo::format::manifest::Head;

use crate::{
    logical::excluded::{Excluded, excluded_of},
    server::TableName,
};

/// What is still left out at some place in the binlog.
#[derive(Clone, Debug)]
pub(super) struct LeftOut {
    excluded: Excluded,
    /// Tables and databases made since.
    made: BTreeSet<TableName>,
    made_schemas: BTreeSet<String>,
}

impl LeftOut {
    /// What this backup left out, if anything.
    pub(super) fn of(head: &Head) -> Option<Self> {
        excluded_of(head).map(Self::new)
    }

    fn new(excluded: Excluded) -> Self {
        Self { excluded, made: BTreeSet::new(), made_schemas: BTreeSet::new() }
    }

    /// Takes the next event. Returns what it needs of that which is left out.
    pub(super) fn next(&mut self, body: &Body<'_>) -> Option<String> {
        match body {
            Body::TableMap(map) => {
                let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                self.table(TableName { schema: name(map.schema), table: name(map.table) })
            }
            Body::Query(query) => self.statement(query),
            Body::Payload(payload) => {
                let mut needed = None;
                // What cannot be decompressed cannot be replayed either, and the server says so.
                let _unreadable = payload.for_each(&mut |inner| {
                    if let (None, Ok(body)) = (&needed, inner.body()) {
                        needed = self.next(&body);
                    }
                });
                needed
            }
            _ => None,
        }
    }

    fn table(&self, name: TableName) -> Option<String> {
        let is_missing = match self.made_schemas.contains(&name.schema) {
            true => false,
            false => self.excluded.has_table(&name) && !self.made.contains(&name),
        };
        is_missing.then(|| format!("{}.{}", name.schema, name.table))
    }

    /// Looks at the tables and databases that a statement is about.
    fn statement(&mut self, query: &Query<'_>) -> Option<String> {
        let statement: Vec<Token<'_>> = tokens(&query.statement, Modes::default()).collect();
        let verb = statement.first()?;
        let has_condition = says_exists(&query.statement);
        if verb.is("DROP") && has_condition {
            // What is not there need not be dropped.
            return None;
        }
        let is_made = verb.is("CREATE") && !has_condition;
        for (at, token) in statement.iter().enumerate() {
            let is_of_table =
                ["TABLE", "INTO", "UPDATE", "TRUNCATE", "FROM", "JOIN"].iter().any(|word| token.is(word));
            let is_of_schema = at <= 1 && (token.is("DATABASE") || token.is("SCHEMA"));
            let named = statement[at + 1..].iter();
            let named = named
                .skip_while(|word| ["IF", "NOT", "EXISTS", "IGNORE", "TABLE"].iter().any(|it| word.is(it)));
            let named: Vec<&Token<'_>> = named.take(3).collect();
            let Some(first) = named.first().and_then(|token| token.name()) else { continue };
            if is_of_schema && is_made {
                self.made_schemas.insert(first.into_owned());
                return None;
            }
            if is_of_schema && self.excluded.has_schema(&first) && !self.made_schemas.contains(&*first) {
                return Some(format!("the database {first}"));
            }
            if !is_of_table {
                continue;
            }
            let name = match (named.get(1), named.get(2).and_then(|token| token.name())) {
                (Some(Token::Symbol(b'.')), Some(table)) => {
                    TableName { schema: first.into_owned(), table: table.into_owned() }
                }
                _ => TableName {
                    schema: String::from_utf8_lossy(query.schema).into_owned(),
                    table: first.into_owned(),
                },
            };
            if is_made && token.is("TABLE") && !self.excluded.has_schema(&name.schema) {
                self.made.insert(name);
            } else if let Some(needed) = self.table(name) {
                return Some(needed);
            }
        }
        None
    }
}

/// Whether a statement begins with something like `CREATE TABLE IF NOT EXISTS`, be it in a comment that servers
/// execute.
fn says_exists(statement: &[u8]) -> bool {
    const WITHIN_BYTES: usize = 128;
    let beginning = &statement[..statement.len().min(WITHIN_BYTES)];
    beginning.windows(6).any(|word| word.eq_ignore_ascii_case(b"EXISTS"))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn what_is_left_out_is_recognized_in_statements() {
        let excluded = Excluded::for_tests(&["old"], &["shop.tmp_*"], &[("shop", "tmp_1"), ("old", "t")]);
        let left_out = LeftOut::new(excluded);
        let needs = |statements: &[&str]| {
            let mut left_out = left_out.clone();
            statements.iter().find_map(|statement| {
                let statement = Cow::Borrowed(statement.as_bytes());
                left_out.statement(&Query { schema: b"shop", statement })
            })
        };
        for fine in [
            &["BEGIN"][..],
            &["CREATE TABLE orders (tmp_1 INT)"],
            &["ALTER TABLE orders ADD tmp_1 INT"],
            // It did not exist when the backup was taken.
            &["CREATE TABLE IF NOT EXISTS tmp_2 (i INT)", "INSERT INTO tmp_2 VALUES (1)"],
            &["DROP TABLE IF EXISTS tmp_1", "CREATE TABLE `shop`.`tmp_1` (i INT)", "UPDATE tmp_1 SET i = 1"],
            &["CREATE OR REPLACE TABLE tmp_1 AS SELECT 1", "TRUNCATE TABLE shop.tmp_1"],
            &["CREATE DATABASE older"],
            &["DROP DATABASE IF EXISTS old", "CREATE DATABASE old", "CREATE TABLE old.t (i INT)"],
        ] {
            assert_eq!(needs(fine), None, "{fine:?}");
        }
        for (statement, needed) in [
            ("CREATE TABLE IF NOT EXISTS tmp_1 (i INT)", "shop.tmp_1"),
            ("CREATE TABLE /*!32312 IF NOT EXISTS*/ `tmp_1` (i INT)", "shop.tmp_1"),
            ("INSERT INTO `tmp_1` VALUES (1)", "shop.tmp_1"),
            ("insert ignore into shop . tmp_1 values (1)", "shop.tmp_1"),
            ("INSERT INTO orders SELECT * FROM tmp_1", "shop.tmp_1"),
            ("DROP TABLE shop.tmp_1", "shop.tmp_1"),
            ("/* x */ ALTER TABLE old.t ADD i INT", "old.t"),
            ("CREATE TABLE old.new (i INT)", "old.new"),
            ("TRUNCATE tmp_1", "shop.tmp_1"),
            ("CREATE DATABASE IF NOT EXISTS old", "the database old"),
            ("ALTER DATABASE `old` CHARACTER SET utf8mb4", "the database old"),
        ] {
            assert_eq!(needs(&[statement]).as_deref(), Some(needed), "{statement}");
        }
    }
}
