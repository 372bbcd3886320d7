//! What a logical backup left out because it was excluded by name, in what is replayed after the backup.
//!
//! A server that has loaded the backup has none of it. A transaction that changes it cannot be replayed there, or
//! worse, makes a part of it anew that looks like the whole: that must not happen. Statements that merely fail there
//! are found as far as their beginning tells.

use std::{
    borrow::{Borrow, Cow},
    collections::BTreeSet,
    fmt,
};

use holdfast_formats::{
    binlog::{Body, Query},
    dump::{Modes, Token, tokens},
    sql,
};
use holdfast_repo::format::manifest::Head;

use crate::{
    logical::excluded::{Excluded, excluded_of},
    server::TableName,
};

/// How many tokens of a statement are looked at: what it is about comes before its values.
const TOKENS_MAX: usize = 2_000;
/// Words that end a list of tables, or join another table to it, and are no name for one.
const AFTER_TABLES: [&str; 10] =
    ["SET", "WHERE", "JOIN", "LEFT", "RIGHT", "INNER", "CROSS", "NATURAL", "STRAIGHT_JOIN", "USING"];

/// What is still left out at some place in the binlog.
#[derive(Clone, Debug)]
pub(super) struct ExcludedTables {
    excluded: Excluded,
    /// Tables of which the server has had nothing since, or only what was made since: what follows is about that.
    since: BTreeSet<TableName>,
    /// Databases of which the server has had nothing since, or only what was made since.
    schemas_since: BTreeSet<String>,
}

impl fmt::Display for ExcludedTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.excluded.fmt(f)
    }
}

impl ExcludedTables {
    /// What this backup left out, if anything.
    pub(super) fn of(head: &Head) -> Option<Self> {
        excluded_of(head).map(Self::new)
    }

    fn new(excluded: Excluded) -> Self {
        Self { excluded, since: BTreeSet::new(), schemas_since: BTreeSet::new() }
    }

    /// Takes the next event. Returns what it needs of that which is left out.
    pub(super) fn next(&mut self, body: &Body<'_>) -> Option<String> {
        match body {
            Body::TableMap(map) => {
                let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                self.table(&TableName { schema: name(map.schema), table: name(map.table) })
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

    fn table(&self, name: &TableName) -> Option<String> {
        let is_missing = !self.schemas_since.contains(&name.schema)
            && self.excluded.has_table(name)
            && !self.since.contains(name);
        is_missing.then(|| format!("{}.{}", name.schema, name.table))
    }

    fn schema(&self, name: &str) -> Option<String> {
        let is_missing = self.excluded.has_schema(name) && !self.schemas_since.contains(name);
        is_missing.then(|| format!("the database {name}"))
    }

    /// Looks at what a statement is about.
    fn statement(&mut self, query: &Query<'_>) -> Option<String> {
        let schema = String::from_utf8_lossy(query.schema);
        let mut words = Words::of(&query.statement, &schema, self.excluded.folds_names);
        let verb = words.next()?;
        let is = |word: &str| verb.is(word);
        if is("CREATE") {
            self.create(&mut words)
        } else if is("DROP") {
            self.drop(&mut words)
        } else if is("RENAME") {
            words.skip(&["TABLE", "TABLES"]);
            let has_condition = words.skip(&["IF", "EXISTS"]);
            self.rename(&mut words, has_condition)
        } else if is("ALTER") {
            words.skip(&["ONLINE", "OFFLINE", "IGNORE"]);
            match words.next()? {
                word if word.is("TABLE") => {
                    words.skip(&["IF", "EXISTS"]);
                    self.any(words.table())
                }
                word if word.is("DATABASE") || word.is("SCHEMA") => {
                    words.name().and_then(|name| self.schema(&name))
                }
                _ => None,
            }
        } else if is("TRUNCATE") {
            words.skip(&["TABLE"]);
            self.any(words.table())
        } else if is("INSERT") || is("REPLACE") {
            words.skip(&["LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO"]);
            let into = words.table();
            self.any(into).or_else(|| self.sources(&mut words))
        } else if is("UPDATE") {
            words.skip(&["LOW_PRIORITY", "IGNORE"]);
            let tables = words.tables();
            self.any(tables).or_else(|| self.sources(&mut words))
        } else if is("DELETE") || is("WITH") {
            self.sources(&mut words)
        } else if is("LOAD") {
            while let Some(word) = words.next() {
                if word.is("INTO") {
                    words.skip(&["TABLE"]);
                    return self.any(words.table());
                }
            }
            None
        } else {
            None
        }
    }

    /// A table or database that is made without a condition did not exist before: what follows is about the new one.
    fn create(&mut self, words: &mut Words<'_>) -> Option<String> {
        words.skip(&["OR", "REPLACE"]);
        let is_temporary = words.says("TEMPORARY");
        let kind = words.next()?;
        let has_condition = words.says("EXISTS") | words.skip(&["IF", "NOT", "EXISTS"]);
        if is_temporary {
            // Nobody else's.
            return None;
        }
        if kind.is("DATABASE") || kind.is("SCHEMA") {
            let name = words.name()?;
            if has_condition {
                return self.schema(&name);
            }
            self.schemas_since.insert(name);
            return None;
        }
        if kind.is("TABLE") {
            let name = words.table()?;
            if has_condition
                || !self.schemas_since.contains(&name.schema) && self.excluded.has_schema(&name.schema)
            {
                return self.table(&name).or_else(|| self.sources(words));
            }
            self.since.insert(name);
            return self.sources(words);
        }
        // Programs are made without what they will use.
        let is_of_table =
            ["INDEX", "UNIQUE", "FULLTEXT", "SPATIAL", "TRIGGER"].iter().any(|word| kind.is(word));
        while is_of_table && let Some(word) = words.next() {
            if word.is("ON") {
                return self.any(words.table());
            }
        }
        None
    }

    /// What is gone from the original as well is left out no longer.
    fn drop(&mut self, words: &mut Words<'_>) -> Option<String> {
        let is_temporary = words.says("TEMPORARY");
        let kind = words.next()?;
        let has_condition = words.says("EXISTS") | words.skip(&["IF", "EXISTS"]);
        if is_temporary {
            return None;
        }
        if kind.is("DATABASE") || kind.is("SCHEMA") {
            let name = words.name()?;
            let needed = if has_condition { None } else { self.schema(&name) };
            self.schemas_since.insert(name);
            return needed;
        }
        if kind.is("TABLE") || kind.is("TABLES") {
            let names = words.tables();
            let needed = if has_condition { None } else { self.any(names.iter()) };
            self.since.extend(names);
            return needed;
        }
        while kind.is("INDEX")
            && let Some(word) = words.next()
        {
            if word.is("ON") {
                return self.any(words.table());
            }
        }
        None
    }

    fn rename(&mut self, words: &mut Words<'_>, has_condition: bool) -> Option<String> {
        while let Some(from) = words.table() {
            // With a condition the server would do nothing and say nothing.
            let needed = self.table(&from);
            if needed.is_some() {
                return needed;
            }
            while words.next_if(|token| !token.is("TO")) {}
            words.skip(&["TO"]);
            let to = words.table();
            // What there was none of is not renamed.
            self.since.extend(to.filter(|_| !has_condition));
            if !words.symbol(b',') {
                break;
            }
        }
        None
    }

    /// The tables that a statement reads.
    fn sources(&self, words: &mut Words<'_>) -> Option<String> {
        while let Some(word) = words.next() {
            if word.is("FROM") || word.is("JOIN") {
                let needed = self.any(words.tables());
                if needed.is_some() {
                    return needed;
                }
            } else if word.is("VALUES") || word.is("VALUE") {
                return None;
            }
        }
        None
    }

    fn any<N: Borrow<TableName>>(&self, names: impl IntoIterator<Item = N>) -> Option<String> {
        names.into_iter().find_map(|name| self.table(name.borrow()))
    }
}

/// The beginning of a statement.
struct Words<'a> {
    /// What comes next.
    rest: &'a [u8],
    /// How many more tokens are looked at.
    left: usize,
    schema: &'a str,
    folds_names: bool,
}

impl<'a> Words<'a> {
    fn of(statement: &'a [u8], schema: &'a str, folds_names: bool) -> Self {
        Self { rest: statement, left: TOKENS_MAX, schema, folds_names }
    }

    /// The next token, and what comes after it.
    fn peek(&self) -> Option<(Token<'a>, &'a [u8])> {
        let mut rest = if self.left > 0 { self.rest } else { &[] };
        for raw in sql::tokens(rest, Modes::default(), sql::Comments::All) {
            let (own, after) = rest.split_at(raw.bytes.len());
            if let Some(token) = tokens(own, Modes::default()).next() {
                return Some((token, after));
            }
            rest = after;
        }
        None
    }

    fn next(&mut self) -> Option<Token<'a>> {
        let (token, after) = self.peek()?;
        self.left -= 1;
        self.rest = after;
        Some(token)
    }

    /// Takes the next token if it is the right one.
    fn next_if(&mut self, is_it: impl Fn(&Token<'a>) -> bool) -> bool {
        let is_next = self.peek().is_some_and(|(token, _)| is_it(&token));
        if is_next {
            self.next();
        }
        is_next
    }

    /// Whether this word comes before the next name, be it in a comment that servers execute.
    fn says(&self, word: &str) -> bool {
        const WITHIN_BYTES: usize = 1_000;
        let rest = &self.rest[..self.rest.len().min(WITHIN_BYTES)];
        // The name comes before the first parenthesis, and is none of these words without quotes.
        let before = rest.split(|byte| matches!(byte, b'(' | b'`' | b'"')).next().unwrap_or_default();
        before.windows(word.len()).any(|bytes| bytes.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Passes over any of these words; whether there was one.
    fn skip(&mut self, words: &[&str]) -> bool {
        let mut has_any = false;
        while self.next_if(|token| words.iter().any(|word| token.is(word))) {
            has_any = true;
        }
        has_any
    }

    fn symbol(&mut self, symbol: u8) -> bool {
        self.next_if(|token| *token == Token::Symbol(symbol))
    }

    fn name(&mut self) -> Option<String> {
        let (token, _) = self.peek()?;
        // A string has no place there: with `ANSI_QUOTES`, it is a name.
        let name = token.name().map(Cow::into_owned).or_else(|| token.text(Modes::default()))?;
        self.next();
        Some(if self.folds_names { name.to_lowercase() } else { name })
    }

    /// The name of a table, if one comes next.
    fn table(&mut self) -> Option<TableName> {
        let first = self.name()?;
        if !self.symbol(b'.') {
            return Some(TableName { schema: self.schema.to_owned(), table: first });
        }
        Some(TableName { schema: first, table: self.name()? })
    }

    /// The names of a list of tables, with what they are called in the statement.
    fn tables(&mut self) -> Vec<TableName> {
        let mut names = Vec::new();
        while let Some(name) = self.table() {
            names.push(name);
            self.skip(&["AS"]);
            self.next_if(|token| {
                matches!(token, Token::Word(_) | Token::Name(_))
                    && !AFTER_TABLES.iter().any(|word| token.is(word))
            });
            if !self.symbol(b',') {
                break;
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the server takes names as lower case, tables are stored and listed so.
    #[test]
    fn names_in_other_letters() {
        for folds_names in [false, true] {
            let mut excluded = Excluded::for_tests(&[], &["shop.sessions"], &[("shop", "sessions")]);
            excluded.folds_names = folds_names;
            let mut left_out = ExcludedTables::new(excluded);
            let statement = Cow::Borrowed(&b"CREATE TABLE IF NOT EXISTS Sessions (i INT)"[..]);
            let needed = left_out.statement(&Query { schema: b"shop", statement });
            assert_eq!(needed.is_some(), folds_names, "{needed:?}");
        }
    }

    #[test]
    fn what_is_left_out_is_recognized_in_statements() {
        let existed = [("shop", "tmp_1"), ("shop", "sessions"), ("old", "t")];
        let excluded = Excluded::for_tests(&["old*"], &["shop.tmp_*", "shop.sessions"], &existed);
        let left_out = ExcludedTables::new(excluded);
        let needs = |statements: &[&str]| {
            let mut left_out = left_out.clone();
            statements.iter().find_map(|statement| {
                let statement = Cow::Borrowed(statement.as_bytes());
                left_out.statement(&Query { schema: b"shop", statement })
            })
        };
        for fine in [
            &["BEGIN"][..],
            &["CREATE TABLE orders (tmp_1 INT, sessions INT)"],
            &["ALTER TABLE orders ADD tmp_1 INT"],
            &["INSERT INTO orders (sessions) VALUES (1) ON DUPLICATE KEY UPDATE sessions = 2"],
            &["INSERT INTO orders VALUES (1), ('FROM tmp_1')"],
            // It did not exist when the backup was taken.
            &["CREATE TABLE IF NOT EXISTS tmp_2 (i INT)", "INSERT INTO tmp_2 VALUES (1)"],
            &["DROP TABLE IF EXISTS tmp_1", "CREATE TABLE `shop`.`tmp_1` (i INT)", "UPDATE tmp_1 SET i = 1"],
            &[
                "DROP TABLE IF EXISTS tmp_1",
                "CREATE TABLE IF NOT EXISTS tmp_1 (i INT)",
                "UPDATE tmp_1 SET i = 1",
            ],
            &["DROP TABLE IF EXISTS a, tmp_1", "RENAME TABLE tmp_3 TO tmp_1", "DELETE FROM tmp_1"],
            &["CREATE OR REPLACE TABLE tmp_1 AS SELECT 1", "TRUNCATE TABLE shop.tmp_1"],
            &["CREATE DATABASE older"],
            &["CREATE DATABASE IF NOT EXISTS old_2", "CREATE TABLE old_2.t (i INT)"],
            &["DROP DATABASE IF EXISTS old", "CREATE DATABASE old", "CREATE TABLE old.t (i INT)"],
            &["CREATE PROCEDURE p() BEGIN CREATE TABLE tmp_1 (i INT); INSERT INTO tmp_1 VALUES (1); END"],
            &["RENAME TABLE IF EXISTS kept TO other"],
            &["ANALYZE TABLE tmp_1", "OPTIMIZE TABLE tmp_1", "FLUSH TABLES tmp_1"],
        ] {
            assert_eq!(needs(fine), None, "{fine:?}");
        }
        let long = format!("/*{}*/ CREATE TABLE IF NOT EXISTS sessions (i INT)", "traceparent ".repeat(30));
        for (statements, needed) in [
            (&[&*long][..], "shop.sessions"),
            (&["CREATE TABLE IF NOT EXISTS tmp_1 (i INT)"], "shop.tmp_1"),
            (&["CREATE TABLE /*!32312 IF NOT EXISTS*/ `tmp_1` (i INT)"], "shop.tmp_1"),
            (&["CREATE TEMPORARY TABLE tmp_1 (i INT)", "UPDATE tmp_1 SET i = 1"], "shop.tmp_1"),
            (&["CREATE PROCEDURE p() CREATE TABLE tmp_1 (i INT)", "UPDATE tmp_1 SET i = 1"], "shop.tmp_1"),
            (&["INSERT INTO `tmp_1` VALUES (1)"], "shop.tmp_1"),
            (&["REPLACE tmp_1 VALUES (1)"], "shop.tmp_1"),
            (&["insert ignore into shop . tmp_1 values (1)"], "shop.tmp_1"),
            (&["INSERT INTO orders SELECT * FROM orders o, tmp_1 x"], "shop.tmp_1"),
            (&["UPDATE orders AS o, tmp_1 SET o.i = 1"], "shop.tmp_1"),
            (&["UPDATE LOW_PRIORITY tmp_1 SET i = 1"], "shop.tmp_1"),
            (&["DELETE o FROM orders o LEFT JOIN tmp_1 t ON t.i = o.i"], "shop.tmp_1"),
            (&["DROP TABLE shop.orders, shop.tmp_1"], "shop.tmp_1"),
            (&["RENAME TABLE a TO b, tmp_1 TO c"], "shop.tmp_1"),
            (&["RENAME TABLE IF EXISTS tmp_1 TO kept"], "shop.tmp_1"),
            (&["RENAME TABLE a WAIT 5 TO b, tmp_1 TO c"], "shop.tmp_1"),
            (&["RENAME TABLE IF EXISTS absent TO tmp_1", "UPDATE tmp_1 SET i = 1"], "shop.tmp_1"),
            (
                &[
                    "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `tmp_1`",
                    "CREATE TABLE IF NOT EXISTS tmp_1 (i INT)",
                ],
                "shop.tmp_1",
            ),
            (&["CREATE /*! TEMPORARY */ TABLE tmp_1 (i INT)", "UPDATE tmp_1 SET i = 1"], "shop.tmp_1"),
            (&["CREATE TABLE /* (see `x`) */ IF NOT EXISTS tmp_1 (i INT)"], "shop.tmp_1"),
            (&["CREATE TABLE IF NOT EXISTS \"tmp_1\" (i INT)"], "shop.tmp_1"),
            (&["CREATE UNIQUE INDEX i ON tmp_1 (i)"], "shop.tmp_1"),
            (&["/* x */ ALTER TABLE old.t ADD i INT"], "old.t"),
            (&["CREATE TABLE old.new (i INT)"], "old.new"),
            (&["TRUNCATE tmp_1"], "shop.tmp_1"),
            (&["LOAD DATA LOCAL INFILE 'x' IGNORE INTO TABLE tmp_1"], "shop.tmp_1"),
            (&["CREATE DATABASE IF NOT EXISTS old"], "the database old"),
            (&["ALTER DATABASE `old` CHARACTER SET utf8mb4"], "the database old"),
        ] {
            assert_eq!(needs(statements).as_deref(), Some(needed), "{statements:?}");
        }
    }
}
