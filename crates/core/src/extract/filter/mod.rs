//! Decides whether transactions can be replayed on some tables only, and still leave these exactly as they
//! were.
//!
//! Row events name their table, so the server's applier skips those of other tables, and nothing is lost. A
//! statement that changes rows may read and write anything, through views, triggers and functions, so a
//! single such statement means that the whole backup is replayed. A statement that changes definitions is
//! harmless if it contains the name of no wanted table, and exact if it has a plain form that can concern
//! only one wanted table. Any other, such as a rename into the selection or out of it, requires all tables
//! too.
//!
//! The text is what is judged: names are looked for in all of it, as whole words and in any case, comments
//! and strings included. So whatever is hidden from a parser is not hidden from us; at worst, more is
//! replayed than necessary.

use holdfast_formats::binlog::{Body, Event as BinlogEvent, EventKind, Query};

use self::statement::{Named, Words, has_rows, only_table, words};
pub(super) use self::unnamed::Unnamed;
use crate::server::{TableName, without_passwords};

mod statement;
mod unnamed;

/// Longer statements are not judged to their end: their reader may have truncated them.
const STATEMENT_BYTES_MAX: usize = 32 << 10;
/// Length to which a message shortens a statement.
const SHOWN_CHARS: usize = 80;

/// Judges transactions, event by event.
pub(super) struct Filter {
    tables: Vec<TableName>,
    /// Whether tables that nobody has named may come into the selection.
    is_open: bool,
    /// Why the transactions cannot be replayed on these tables only.
    refused: Option<String>,
}

impl Filter {
    /// Creates a filter for these tables. `is_open`: the selection has wildcards.
    pub(super) fn new(tables: Vec<TableName>, is_open: bool) -> Self {
        // A statement can spell such names in several ways, and a server option cannot name them at all.
        let odd = tables.iter().find(|it| !is_plain(&it.schema) || !is_plain(&it.table));
        let refused = odd.map(|name| {
            format!("the name of {name} has characters other than letters, digits and underscores")
        });
        Self { tables, is_open, refused }
    }

    /// Why the transactions cannot be replayed on these tables only, if so.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Judges an event.
    pub(super) fn event(&mut self, event: &BinlogEvent<'_>) {
        if self.refused.is_some() {
            return;
        }
        self.refused = match event.body() {
            Err(error) => Some(format!("an event cannot be read: {error}")),
            Ok(body) => self.judge(event.header.kind, &body),
        };
    }

    fn judge(&mut self, kind: EventKind, body: &Body<'_>) -> Option<String> {
        match body {
            Body::Query(query) if kind == EventKind::EXECUTE_LOAD_QUERY => {
                Some(format!("a file is loaded by a statement: {}", shown(&query.statement)))
            }
            Body::Query(query) => self.statement(query),
            Body::Payload(payload) => {
                let read = payload.for_each(&mut |event| self.event(event));
                match read {
                    Err(error) => Some(format!("a compressed transaction cannot be read: {error}")),
                    Ok(()) => self.refused.take(),
                }
            }
            Body::XaPrepare => Some("there are XA transactions".to_owned()),
            Body::Incident { .. } => Some("the binlog has an incident".to_owned()),
            Body::FormatDescription(_)
            | Body::Rotate { .. }
            | Body::PreviousGtids(_)
            | Body::GtidList(_)
            | Body::BinlogCheckpoint { .. }
            | Body::Gtid(_)
            | Body::Xid
            | Body::TableMap(_)
            | Body::Rows(_)
            | Body::RowsStatement(_)
            | Body::Heartbeat
            | Body::Stop
            | Body::StartEncryption => None,
            // Values for the statement that follows, which is judged.
            Body::Other if [EventKind::INTVAR, EventKind::RAND, EventKind::USER_VAR].contains(&kind) => None,
            Body::Other => Some(format!("an event of kind {} is not known", kind.0)),
        }
    }

    fn statement(&self, query: &Query<'_>) -> Option<String> {
        let text = &*query.statement;
        let why = |what: &str| Some(format!("{what}: {}", shown(text)));
        if query.begins_transaction() && !text.starts_with(b"XA") || query.ends_transaction() {
            return None;
        }
        if text.len() > STATEMENT_BYTES_MAX {
            return why("a statement is very long");
        }
        // A leading comment does not tell what the statement does.
        let Some(mut after) = Words::of(text) else {
            return why("a statement is not in UTF-8");
        };
        after.skip_comment();
        if !after.rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return why("the kind of a statement is not clear from its beginning");
        }
        let kind = words(after.rest.as_bytes());
        let words = words(text);
        let word = |at: usize| kind.get(at).map_or("", |word| &**word);
        let is_of_table = || ["TABLE", "TABLES"].iter().any(|it| *it == word(1) || *it == word(2));
        match word(0) {
            "SAVEPOINT" | "ROLLBACK" | "RELEASE" => return None,
            // The rows may come from a function that changes other tables.
            "CREATE" if kind.iter().skip(1).take(4).any(|it| &**it == "TABLE") && has_rows(text) => {
                return why("a statement, not rows, fills a table");
            }
            // Whatever these name, they change no row.
            "GRANT" | "REVOKE" | "FLUSH" => return None,
            "SET" if ["PASSWORD", "DEFAULT"].contains(&word(1)) => return None,
            "CREATE" | "ALTER" | "DROP" | "RENAME" | "TRUNCATE" => {}
            "OPTIMIZE" | "ANALYZE" | "REPAIR" if is_of_table() => {}
            _ => return why("a statement, not rows, changes data"),
        }
        let names = |name: &str| words.iter().any(|word| word.eq_ignore_ascii_case(name));
        let is_of_database = kind.iter().take(5).any(|it| ["DATABASE", "SCHEMA"].contains(&&**it));
        if is_of_database && self.tables.iter().any(|it| names(&it.schema)) {
            return why("a database of a wanted table is changed");
        }
        // By table name alone, whatever schema is in use: the statement may name another schema, or a table
        // in one.
        let concerns = |it: &&TableName| names(&it.table);
        let concerned: Vec<&TableName> = self.tables.iter().filter(concerns).collect();
        let makes_names = ["CREATE", "RENAME"].contains(&word(0))
            || words.iter().any(|word| ["RENAME", "CONVERT"].contains(&&**word));
        if concerned.is_empty() {
            return match self.is_open && makes_names {
                true => why("a statement may add a table to the selection"),
                false => None,
            };
        }
        match only_table(text, &words).is_some_and(|named| self.has(query, &named)) {
            true => None,
            false => why("a statement names a wanted table"),
        }
    }

    /// Whether the table that a statement names is a wanted one.
    fn has(&self, query: &Query<'_>, (schema, table): &Named) -> bool {
        let in_use = std::str::from_utf8(query.schema).unwrap_or_default();
        let schema = schema.as_deref().unwrap_or(in_use);
        self.tables.iter().any(|it| it.schema == schema && it.table == *table)
    }
}

/// Whether there is only one way to spell a name in a statement.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The beginning of a statement.
fn shown(statement: &[u8]) -> String {
    let text = without_passwords(&String::from_utf8_lossy(statement));
    let shown: String =
        text.chars().take(SHOWN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(statement: &str, is_open: bool) -> Option<String> {
        let table =
            |schema: &str, table: &str| TableName { schema: schema.to_owned(), table: table.to_owned() };
        let filter = Filter::new(vec![table("shop", "orders"), table("shop", "customers")], is_open);
        assert_eq!(filter.refused(), None);
        filter.statement(&Query { schema: b"shop", statement: statement.as_bytes().into() })
    }

    /// Statements that concern no wanted table, or only one.
    #[test]
    fn exact() {
        for statement in [
            "BEGIN",
            "COMMIT",
            "SAVEPOINT `a`",
            "CREATE TABLE orders_old (id INT)",
            "CREATE TABLE a (id INT COMMENT 'with a table') COMMENT 'the table of a select'",
            "ALTER TABLE orders COMMENT = 'the table'",
            "DROP TABLE IF EXISTS a, b",
            "RENAME TABLE a TO b",
            "CREATE DATABASE archive",
            "CREATE TABLE a (id INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (5))",
            "OPTIMIZE TABLE a",
            "GRANT SELECT ON shop.* TO x@y",
            "SET PASSWORD FOR 'orders'@'%'='*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29'",
            "SET DEFAULT ROLE orders FOR 'x'@'%'",
            "ALTER TABLE orders ADD COLUMN x INT, ADD INDEX (x)",
            "alter table `shop`.`orders` engine=innodb",
            "/* why */ TRUNCATE TABLE orders",
            "DROP TABLE `orders` /* generated by server */",
            "DROP TABLE IF EXISTS shop.orders",
            "CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'x')",
            "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4, MODIFY v TEXT COMMENT 'it''s, so'",
            "ALTER TABLE orders REORGANIZE PARTITION p INTO (PARTITION a VALUES LESS THAN (5), PARTITION b VALUES IN (6))",
            "ALTER TABLE orders DROP PARTITION p",
            "OPTIMIZE TABLE orders",
            "GRANT SELECT ON shop.orders TO x@y",
            "CREATE UNIQUE INDEX i ON orders (x, y)",
            "DROP INDEX `i` ON shop.orders",
        ] {
            assert_eq!(judged(statement, false), None, "{statement}");
        }
    }

    /// Statements that may concern a wanted table and others too.
    #[test]
    fn not_exact() {
        for statement in [
            "INSERT INTO a VALUES (1)",
            "/* CREATE */ INSERT INTO a VALUES (1)",
            "-- DROP\nUPDATE a SET x = f()",
            "/*!50000 UPDATE */ a SET x = f()",
            "ANALYZE UPDATE a SET x = f()",
            "CREATE TABLE a AS SELECT f()",
            "CREATE OR REPLACE TABLE a VALUES (f())",
            "UPDATE orders SET x = 1",
            "SELECT f()",
            "XA START 'x'",
            "RENAME TABLE orders TO archive.orders",
            "RENAME TABLE a TO orders",
            "ALTER TABLE a RENAME TO Orders",
            "ALTER TABLE orders RENAME TO o2",
            "DROP TABLE a, orders",
            "DROP TABLE `orders`,`a`",
            "DROP DATABASE shop",
            "DROP SCHEMA `SHOP`",
            "DROP /* all */ DATABASE shop",
            "CREATE TABLE orders LIKE a",
            "CREATE TABLE orders AS SELECT * FROM a",
            "CREATE TABLE x (a INT REFERENCES customers (id))",
            "ALTER TABLE orders ADD FOREIGN KEY (x) REFERENCES a (x)",
            "ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE a",
            "ALTER TABLE orders CONVERT PARTITION p TO TABLE orders_p",
            "ALTER TABLE orders CONVERT TABLE orders_p TO PARTITION p VALUES LESS THAN (5)",
            "ALTER TABLE orders ADD x INT, CONVERT PARTITION p TO TABLE orders_p",
            "ALTER TABLE orders FETCH x",
            "ALTER TABLE orders ADD x INT /*!50000 , FETCH x */",
            "ALTER TABLE orders ADD x INT DEFAULT NEXTVAL(s)",
            "ALTER TABLE orders ADD x VARCHAR(9) DEFAULT 'a\\', FETCH x -- '",
            "CREATE TABLE orders TABLE a",
            "CREATE TABLE orders AS TABLE a",
            "CREATE TABLE b AS TABLE a",
            "OPTIMIZE TABLE orders, a",
            "CREATE INDEX i ON a (orders)",
            "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.x = 1",
            "CREATE VIEW v AS SELECT * FROM orders",
            "DROP TABLE other.orders",
            "ALTER TABLE other.a COMMENT 'orders'",
            "DROP TABLE /*!50000 orders, */ a",
            "",
        ] {
            assert!(judged(statement, false).is_some(), "{statement}");
        }
    }

    /// If the selection has wildcards, a new name may belong to it.
    #[test]
    fn open_selections() {
        for (statement, is_exact) in [
            ("CREATE TABLE x (id INT)", false),
            ("RENAME TABLE x TO y", false),
            ("ALTER TABLE x RENAME y", false),
            ("ALTER TABLE x ADD COLUMN z INT", true),
            ("ALTER TABLE x CONVERT PARTITION p TO TABLE y", false),
            ("DROP TABLE x", true),
        ] {
            assert_eq!(judged(statement, true).is_none(), is_exact, "{statement}");
        }
        let name = TableName { schema: "shop".to_owned(), table: "größe".to_owned() };
        assert!(Filter::new(vec![name], false).refused().is_some());
    }

    /// No message has a password, nor its hash.
    #[test]
    fn no_secrets() {
        for (statement, told) in [
            (
                "CREATE USER orders@y IDENTIFIED BY PASSWORD '*94BDC'",
                "CREATE USER orders@y IDENTIFIED BY PASSWORD '***'",
            ),
            ("alter user orders@y identified by 'secret'", "alter user orders@y identified by '***'"),
            (
                "CREATE SERVER orders OPTIONS (PASSWORD 'secret')",
                "CREATE SERVER orders OPTIONS (PASSWORD '***')",
            ),
        ] {
            let told = format!("a statement names a wanted table: {told}");
            assert_eq!(judged(statement, false), Some(told), "{statement}");
        }
    }
}
