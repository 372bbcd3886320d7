//! Decides which statements of a dump are executed: only the kinds that dumps consist of. A dump is someone
//! else's text; whatever is not known here is refused by name.
//!
//! Settings that the dump has made in its session count ([`super::settings`]). Pure: a dump can be judged
//! without a server.

use std::{borrow::Cow, collections::BTreeSet};

use holdfast_formats::{
    dump::{Modes, Token, about::Place, tokens},
    sql::BEFORE_KIND,
};

use super::{
    settings::{ROCKSDB, Settings, holds},
    verdict::{Refusal, Verdict},
};
use crate::logical::{
    script::{PREPARE_SET, TIME_STAMPS_AS_BEFORE, TIME_STAMPS_AS_SAID},
    selection::is_like_own_schema,
};

/// How many tokens of a statement to look at to tell what it is.
const HEAD_TOKENS: usize = 96;
/// Kinds of objects that dumps create and drop.
const KINDS: [&str; 10] = [
    "TABLE",
    "VIEW",
    "TRIGGER",
    "PROCEDURE",
    "FUNCTION",
    "EVENT",
    "SEQUENCE",
    "PACKAGE",
    "DATABASE",
    "SCHEMA",
];

/// Which tables a dump has the rows of.
#[derive(Debug, Default)]
pub(super) struct RowsSaid {
    /// Database and table, if it has their rows, or says that they come here.
    pub(super) tables: BTreeSet<(String, String)>,
    /// Whether it says where the rows of a table come, even if the table has none.
    pub(super) are_announced: bool,
}

/// Judges the statements of a dump, one after the other.
pub(super) struct Judge {
    settings: Settings,
    /// The database in use.
    database: Option<String>,
    /// Whether any table has time stamps.
    has_timestamps: bool,
    /// Databases in the order in which they were made.
    pub(super) made: Vec<String>,
    /// Number of statements that make something, or put rows into it.
    pub(super) makers: u64,
    /// What the dump says of the rows of its tables.
    pub(super) rows: RowsSaid,
    /// Whether the statement that was judged last makes an event.
    pub(super) is_event: bool,
}

impl Judge {
    /// Begins a dump. The user may have given a character set or time zone that its text does not.
    pub(super) fn new(charset_given: bool, zone_given: bool) -> Judge {
        Judge {
            settings: Settings::new(charset_given, zone_given),
            database: None,
            has_timestamps: false,
            made: Vec::new(),
            makers: 0,
            rows: RowsSaid::default(),
            is_event: false,
        }
    }

    /// Reads a comment: `Dumping data for table` comes before the rows of a table, even if it has none.
    pub(super) fn hear(&mut self, comment: &[u8]) {
        const BEFORE_ROWS: &[u8] = b"-- Dumping data for table ";
        let Some(rest) = comment.strip_prefix(BEFORE_ROWS) else { return };
        let name = tokens(rest, Modes::default()).next();
        self.rows.are_announced = true;
        self.note_rows(name.as_slice());
    }

    /// Notes that the dump has the rows of the table named here, or says that it has them.
    fn note_rows(&mut self, name: &[Token<'_>]) {
        let part = |at: usize| name.get(at).and_then(Token::name).map(Cow::into_owned);
        let table = match name.get(1) {
            Some(Token::Symbol(b'.')) => part(0).zip(part(2)),
            _ => self.database.clone().zip(part(0)),
        };
        if let Some(table) = table.filter(|table| !self.rows.tables.contains(table)) {
            self.rows.tables.insert(table);
        }
    }

    /// Begins another session, in this database.
    pub(super) fn begin(&mut self, database: Option<String>) {
        self.settings.begin();
        self.database = database;
    }

    /// What quotes mean in the next statement.
    pub(super) fn modes(&self) -> Modes {
        self.settings.modes()
    }

    /// Decides what to do with this statement.
    pub(super) fn judge(&mut self, statement: &[u8]) -> Result<Verdict, Refusal> {
        let modes = self.modes();
        let head: Vec<Token<'_>> = tokens(statement, modes).take(HEAD_TOKENS).collect();
        self.is_event = false;
        let verdict = self.judge_kind(statement, &head)?;
        let is_executed = !matches!(verdict, Verdict::Place(_) | Verdict::Skip | Verdict::LeaveOut(_));
        if is_executed && !self.settings.has_charset && !statement.is_ascii() {
            return Err(Refusal::hinted(
                "the dump does not say in which character set it is written",
                "dumps say so by SET NAMES, unless they are made with --skip-set-charset or --compact: name it, as in --charset utf8mb4",
            ));
        }
        Ok(verdict)
    }

    fn judge_kind(&mut self, statement: &[u8], head: &[Token<'_>]) -> Result<Verdict, Refusal> {
        let Some(Token::Word(first)) = head.first() else {
            return Err(Refusal::new("it does not begin like a statement of a dump"));
        };
        let first = String::from_utf8_lossy(first).to_ascii_uppercase();
        let second = |word: &str| head.get(1).is_some_and(|token| token.is(word));
        match first.as_str() {
            "INSERT" | "REPLACE" => self.insert(statement),
            // Our own scripts let the client choose it. There is none here.
            "SET" if statement == TIME_STAMPS_AS_SAID.as_bytes() => {
                Ok(Verdict::Instead(b"SET SESSION explicit_defaults_for_timestamp = 1".to_vec()))
            }
            "SET" if statement == TIME_STAMPS_AS_BEFORE.as_bytes() => Ok(Verdict::Skip),
            "PREPARE" if statement == PREPARE_SET.as_bytes() => Ok(Verdict::Skip),
            "SET" => self.settings.set(statement),
            "USE" => {
                let name = head.get(1).and_then(Token::name).ok_or_else(|| Refusal::unclear("USE"))?;
                let is_own = is_like_own_schema(&name);
                self.database = Some(name.into_owned());
                // Nothing is executed there.
                Ok(if is_own { Verdict::Skip } else { Verdict::Execute })
            }
            "CREATE" => self.create(statement, head),
            "DROP" => self.drop(head),
            "ALTER" => self.alter(statement, head),
            "LOAD" => self.load(statement, head),
            // There are no other sessions; and locks keep tables from the sequences that they draw from.
            "LOCK" | "UNLOCK" if second("TABLES") || second("TABLE") => {
                if first == "LOCK" {
                    self.rows.are_announced = true;
                    self.note_rows(&head[2..]);
                }
                Ok(Verdict::Skip)
            }
            "BEGIN" | "COMMIT" if head.len() <= 2 => Ok(Verdict::Execute),
            "START" if second("TRANSACTION") => Ok(Verdict::Execute),
            "START" | "STOP" if ["SLAVE", "REPLICA", "ALL"].iter().any(|word| second(word)) => {
                Ok(Verdict::Skip)
            }
            "CHANGE" if second("MASTER") || second("REPLICATION") => {
                Ok(Verdict::Place(Place::of_statement(statement)))
            }
            "DO" if is_setval(head) || is_opening(head) => Ok(Verdict::Execute),
            "SELECT" if is_setval(head) => {
                let rest = statement.get(first.len()..).unwrap_or_default();
                Ok(Verdict::Instead([b"DO", rest].concat()))
            }
            "SELECT" | "PREPARE" if holds(statement, ROCKSDB) => Ok(Verdict::Skip),
            // Nothing was prepared.
            "EXECUTE" | "DEALLOCATE" => Ok(Verdict::Skip),
            "FLUSH" if second("PRIVILEGES") || second("TABLES") => Ok(Verdict::Skip),
            "ANALYZE" => Ok(Verdict::Skip),
            "GRANT" | "REVOKE" | "RENAME" if first != "RENAME" || second("USER") => {
                Ok(Verdict::LeaveOut("accounts and grants"))
            }
            "DELETE" | "TRUNCATE" | "UPDATE" if self.is_in_own() => Ok(own()),
            _ => Err(Refusal::new(format!("{first} is not a statement that dumps use"))),
        }
    }

    /// Whether the database in use is the server's own.
    fn is_in_own(&self) -> bool {
        self.database.as_deref().is_some_and(is_like_own_schema)
    }

    /// Whether the object named here is the server's own; an error if no name is there.
    fn is_own(&self, name: &[Token<'_>]) -> Result<bool, Refusal> {
        let part = |at: usize| name.get(at).and_then(Token::name);
        let first = part(0).ok_or_else(|| Refusal::new("it names nothing"))?;
        if name.get(1) == Some(&Token::Symbol(b'.')) {
            return Ok(is_like_own_schema(&first));
        }
        if self.database.is_none() {
            return Err(Refusal::hinted(
                "the dump names no database",
                "say which one it is of: --database NAME; mysqldump writes it down with --databases",
            ));
        }
        Ok(self.is_in_own())
    }

    /// Refuses rows as long as nothing says what their time stamps mean.
    fn require_zone(&self, hint: &'static str) -> Result<(), Refusal> {
        if self.has_timestamps && !self.settings.has_zone {
            let why = "the dump does not say in which time zone its time stamps are";
            return Err(Refusal::hinted(why, hint));
        }
        Ok(())
    }

    fn insert(&mut self, statement: &[u8]) -> Result<Verdict, Refusal> {
        const BEFORE: [&str; 5] = ["LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO"];
        let modes = self.modes();
        let mut all =
            tokens(statement, modes).skip(1).skip_while(|token| BEFORE.iter().any(|word| token.is(word)));
        let mut name = vec![all.next().ok_or_else(|| Refusal::unclear("INSERT"))?];
        let mut next = all.next();
        if next == Some(Token::Symbol(b'.')) {
            name.push(Token::Symbol(b'.'));
            name.extend(all.next());
            next = all.next();
        }
        if next == Some(Token::Symbol(b'(')) {
            // Names of columns.
            next = all.by_ref().skip_while(|token| *token != Token::Symbol(b')')).nth(1);
        }
        if !next.is_some_and(|token| token.is("VALUES") || token.is("VALUE")) {
            return Err(Refusal::new("an INSERT without VALUES, which dumps do not have"));
        }
        if self.is_own(&name)? {
            return Ok(own());
        }
        self.require_zone(
            "dumps say so by SET TIME_ZONE, unless they are made with --skip-tz-utc: name the zone of the session that dumped, as in --time-zone +02:00",
        )?;
        self.makers += 1;
        self.note_rows(&name);
        Ok(Verdict::Execute)
    }

    fn create(&mut self, statement: &[u8], head: &[Token<'_>]) -> Result<Verdict, Refusal> {
        const INDEX: [&str; 4] = ["INDEX", "UNIQUE", "FULLTEXT", "SPATIAL"];
        let mut at = 1;
        let mut definer = None;
        let kind = loop {
            let Some(token) = head.get(at) else { return Err(Refusal::unclear("CREATE")) };
            let is_assigned = head.get(at + 1) == Some(&Token::Symbol(b'='));
            if token.is("DEFINER") && is_assigned {
                let (account, length) =
                    account(&head[at + 2..]).ok_or_else(|| Refusal::unclear("DEFINER"))?;
                definer = account;
                at += 2 + length;
            } else if let Some(kind) = KINDS.iter().find(|kind| token.is(kind)) {
                break *kind;
            } else if token.is("USER") || token.is("ROLE") {
                return Ok(Verdict::LeaveOut("accounts and grants"));
            } else if INDEX.iter().any(|word| token.is(word)) && !self.is_in_own() && at == 1 {
                return Ok(Verdict::Execute);
            } else if BEFORE_KIND.iter().any(|word| token.is(word)) || *token == Token::Symbol(b'=') {
                at += 1;
            } else {
                let what = token.name().unwrap_or_default();
                return Err(Refusal::new(format!("CREATE {what} is not a statement that dumps use")));
            }
        };
        let mut rest = &head[at + 1..];
        if kind == "PACKAGE" && rest.first().is_some_and(|token| token.is("BODY")) {
            rest = &rest[1..];
        }
        let rest = after(rest, &["IF", "NOT", "EXISTS"]);
        if matches!(kind, "DATABASE" | "SCHEMA") {
            let verdict = of_database(rest, "CREATE DATABASE")?;
            if let Verdict::WithDatabase(name) = &verdict {
                self.made.push(name.clone());
                self.makers += 1;
            }
            return Ok(verdict);
        }
        if self.is_own(rest)? {
            return Ok(own());
        }
        self.is_event = kind == "EVENT";
        match kind {
            "TABLE" => self.look_at_table(statement)?,
            "FUNCTION" if self.has_word(statement, "SONAME") => {
                return Err(Refusal::new("it loads a library: such functions are not part of a dump"));
            }
            _ => {}
        }
        self.makers += 1;
        Ok(match definer {
            Some((name, host)) => Verdict::WithDefiner(name, host),
            None => Verdict::Execute,
        })
    }

    /// Refuses tables that are stored elsewhere.
    fn look_at_table(&mut self, statement: &[u8]) -> Result<(), Refusal> {
        let mut before_directory = false;
        for token in tokens(statement, self.modes()) {
            if before_directory && token.is("DIRECTORY") {
                return Err(Refusal::hinted(
                    "the table lies in a directory of its own (DATA DIRECTORY), which is not made here",
                    "take that clause out of the dump",
                ));
            }
            before_directory = token.is("DATA") || token.is("INDEX");
            self.has_timestamps |= token.is("TIMESTAMP");
        }
        Ok(())
    }

    fn has_word(&self, statement: &[u8], word: &str) -> bool {
        tokens(statement, self.modes()).any(|token| token.is(word))
    }

    fn drop(&self, head: &[Token<'_>]) -> Result<Verdict, Refusal> {
        let Some(kind) = head.get(1).and_then(Token::name) else { return Err(Refusal::unclear("DROP")) };
        let kind = kind.to_ascii_uppercase();
        if matches!(kind.as_str(), "USER" | "ROLE") {
            return Ok(Verdict::LeaveOut("accounts and grants"));
        }
        if !KINDS.contains(&kind.as_str()) {
            return Err(Refusal::new(format!("DROP {kind} is not a statement that dumps use")));
        }
        let rest = after(&head[2..], &["BODY", "IF", "EXISTS"]);
        if matches!(kind.as_str(), "DATABASE" | "SCHEMA") {
            return of_database(rest, "DROP DATABASE");
        }
        Ok(if self.is_own(rest)? { own() } else { Verdict::Execute })
    }

    fn alter(&mut self, statement: &[u8], head: &[Token<'_>]) -> Result<Verdict, Refusal> {
        match head.get(1) {
            Some(token) if token.is("TABLE") => {
                if self.is_own(after(&head[2..], &["IF", "EXISTS"]))? {
                    return Ok(own());
                }
                let has = |word: &str| self.has_word(statement, word);
                if (has("IMPORT") || has("DISCARD")) && has("TABLESPACE") {
                    return Err(Refusal::new("a dump has no tablespaces to import"));
                }
                self.look_at_table(statement)?;
                Ok(Verdict::Execute)
            }
            Some(token) if token.is("DATABASE") || token.is("SCHEMA") => {
                let named = head.get(2).and_then(Token::name).filter(|name| {
                    let is_option = ["CHARACTER", "CHARSET", "COLLATE", "DEFAULT"];
                    !matches!(head[2], Token::Word(_))
                        || !is_option.iter().any(|it| name.eq_ignore_ascii_case(it))
                });
                let is_own = named.map_or_else(|| self.is_in_own(), |name| is_like_own_schema(&name));
                Ok(if is_own { own() } else { Verdict::Execute })
            }
            Some(token) if token.is("USER") => Ok(Verdict::LeaveOut("accounts and grants")),
            other => {
                let what = other.and_then(Token::name).unwrap_or_default().to_ascii_uppercase();
                Err(Refusal::new(format!("ALTER {what} is not a statement that dumps use")))
            }
        }
    }

    /// `LOAD DATA LOCAL INFILE`, as mydumper writes it.
    fn load(&mut self, statement: &[u8], head: &[Token<'_>]) -> Result<Verdict, Refusal> {
        let place = head.iter().position(|token| token.is("INFILE"));
        let Some(place) = place.filter(|place| {
            head.get(1).is_some_and(|it| it.is("DATA")) && head[..*place].iter().any(|it| it.is("LOCAL"))
        }) else {
            return Err(Refusal::new("of LOAD, dumps use only LOAD DATA LOCAL INFILE"));
        };
        let file = head
            .get(place + 1)
            .and_then(|token| token.text(self.modes()))
            .ok_or_else(|| Refusal::unclear("LOAD DATA"))?;
        let table =
            head.iter().position(|token| token.is("TABLE")).ok_or_else(|| Refusal::unclear("LOAD DATA"))?;
        if self.is_own(&head[table + 1..])? {
            return Ok(own());
        }
        self.require_zone("name the zone of the session that dumped, as in --time-zone +02:00")?;
        if std::str::from_utf8(statement).is_err() {
            return Err(Refusal::new("a LOAD DATA that is not UTF-8"));
        }
        self.makers += 1;
        self.note_rows(&head[table + 1..]);
        Ok(Verdict::Load(file))
    }
}

fn own() -> Verdict {
    Verdict::LeaveOut("the server's own databases")
}

/// The verdict on making or dropping the database named here.
fn of_database(name: &[Token<'_>], what: &str) -> Result<Verdict, Refusal> {
    let name = name.first().and_then(Token::name).ok_or_else(|| Refusal::unclear(what))?;
    Ok(if is_like_own_schema(&name) { own() } else { Verdict::WithDatabase(name.into_owned()) })
}

/// The tokens after a run of these words.
fn after<'t, 'a>(tokens: &'t [Token<'a>], words: &[&str]) -> &'t [Token<'a>] {
    let is_one = |token: &&Token<'_>| words.iter().any(|word| token.is(word));
    &tokens[tokens.iter().take_while(is_one).count()..]
}

/// `DO SETVAL(name, number, number)`, the state of a sequence.
fn is_setval(head: &[Token<'_>]) -> bool {
    let Some(rest) = head.get(1..).filter(|rest| rest.first().is_some_and(|token| token.is("SETVAL"))) else {
        return false;
    };
    let is_number = |token: &Token<'_>| {
        matches!(token, Token::Symbol(b'-' | b',' | b')'))
            || matches!(token, Token::Word(word) if word.iter().all(u8::is_ascii_digit))
    };
    let is_name = |token: &Token<'_>| matches!(token, Token::Name(_) | Token::Word(_) | Token::Symbol(b'.'));
    let Some(comma) = rest.iter().position(|token| *token == Token::Symbol(b',')) else { return false };
    rest.get(1) == Some(&Token::Symbol(b'('))
        && comma >= 3
        && rest[2..comma].iter().all(is_name)
        && rest[comma..].iter().all(is_number)
        && rest.last() == Some(&Token::Symbol(b')'))
}

/// `DO (SELECT 1 FROM name LIMIT 0)`, which opens a table.
fn is_opening(head: &[Token<'_>]) -> bool {
    let Some([open, select, one, from, name @ .., limit, zero, close]) = head.get(1..) else { return false };
    let is_word = |token: &Token<'_>, word: &str| matches!(token, Token::Word(it) if *it == word.as_bytes());
    *open == Token::Symbol(b'(')
        && select.is("SELECT")
        && is_word(one, "1")
        && from.is("FROM")
        && matches!(name, [Token::Name(_)])
        && limit.is("LIMIT")
        && is_word(zero, "0")
        && *close == Token::Symbol(b')')
}

/// An account, and how many tokens it takes. The account is `None` for whoever executes the statement.
#[allow(clippy::type_complexity, reason = "name and host, if it is an account, and the length")]
fn account(tokens: &[Token<'_>]) -> Option<(Option<(String, Option<String>)>, usize)> {
    let part = |token: &Token<'_>| token.name().map(Into::into).or_else(|| token.text(Modes::default()));
    let first = tokens.first()?;
    if first.is("CURRENT_USER") || first.is("CURRENT_ROLE") {
        let has_parentheses = tokens.get(1) == Some(&Token::Symbol(b'('));
        return Some((None, if has_parentheses { 3 } else { 1 }));
    }
    let name: String = part(first)?;
    if tokens.get(1) == Some(&Token::Symbol(b'@')) {
        let host: String = part(tokens.get(2)?)?;
        return Some((Some((name, Some(host))), 3));
    }
    Some((Some((name, None)), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(statements: &[&str]) -> Result<Verdict, Refusal> {
        let mut judge = Judge::new(true, true);
        judge.begin(Some("shop".to_owned()));
        let mut last = Ok(Verdict::Skip);
        for statement in statements {
            last = judge.judge(statement.as_bytes());
        }
        last
    }

    /// Statements that dumps consist of.
    #[test]
    fn statements_of_dumps() {
        for statement in [
            "SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO'",
            "SET @saved_cs_client = @@character_set_client, character_set_client = @saved_cs_client",
            "SET character_set_client = utf8mb4",
            "SET NAMES utf8mb4",
            "SET TIME_ZONE='+00:00'",
            "SET @OLD_NOTE_VERBOSITY=@@NOTE_VERBOSITY, NOTE_VERBOSITY=0",
            "CREATE TABLE `t` (`id` int)",
            "CREATE ALGORITHM=UNDEFINED  SQL SECURITY DEFINER VIEW `v` AS select 1",
            "INSERT INTO `t` (`a`,`b`) VALUES (1,'x'),(2,'y')",
            "REPLACE INTO t VALUES (1)",
            "ALTER TABLE `t` DISABLE KEYS",
            "ALTER DATABASE `shop` CHARACTER SET latin1 COLLATE latin1_german1_ci",
            "DROP TABLE IF EXISTS `t`",
            "DO SETVAL(`counted`, 150, 0)",
            "DO (SELECT 1 FROM `t` LIMIT 0)",
            "COMMIT",
        ] {
            assert_eq!(judged(&[statement]), Ok(Verdict::Execute), "{statement}");
        }
        for statement in [
            "CREATE DATABASE  IF NOT EXISTS  `shop`  DEFAULT CHARACTER SET latin1",
            "DROP DATABASE IF EXISTS `shop`",
        ] {
            assert_eq!(judged(&[statement]), Ok(Verdict::WithDatabase("shop".to_owned())), "{statement}");
        }
        let definer = Verdict::WithDefiner("root".to_owned(), Some("%".to_owned()));
        for statement in [
            "CREATE DEFINER=`root`@`%` PROCEDURE `p`() BEGIN SELECT 1; END",
            "CREATE   DEFINER='root'@'%'   TRIGGER t BEFORE INSERT ON u FOR EACH ROW SET @a = 1",
            "CREATE DEFINER=`root`@`%` PACKAGE BODY employee AS BEGIN END",
            "CREATE OR REPLACE DEFINER = root@`%` AGGREGATE FUNCTION f(x INT) RETURNS INT RETURN 1",
        ] {
            assert_eq!(judged(&[statement]), Ok(definer.clone()), "{statement}");
        }
        assert_eq!(
            judged(&["SELECT SETVAL(`c`, -1, 0)"]),
            Ok(Verdict::Instead(b"DO SETVAL(`c`, -1, 0)".to_vec()))
        );
        assert!(matches!(judged(&[TIME_STAMPS_AS_SAID]), Ok(Verdict::Instead(_))));
        let load = "LOAD DATA LOCAL INFILE 'shop.t.00000.dat' REPLACE INTO TABLE `t` FIELDS TERMINATED BY '\\t' (`a`)";
        assert_eq!(judged(&[load]), Ok(Verdict::Load("shop.t.00000.dat".to_owned())));
    }

    /// Statements that dumps have, and that do not concern the private server.
    #[test]
    fn statements_that_are_not_executed() {
        for statement in [
            "SET @@SESSION.SQL_LOG_BIN= 0",
            "SET GLOBAL INNODB_STATS_AUTO_RECALC=OFF",
            "SET GLOBAL INNODB_STATS_AUTO_RECALC=@OLD_INNODB_STATS_AUTO_RECALC",
            "LOCK TABLES `t` WRITE",
            "UNLOCK TABLES",
            "FLUSH PRIVILEGES",
            "ANALYZE TABLE `t` UPDATE HISTOGRAM ON `c` WITH 10 BUCKETS",
            "STOP SLAVE",
            "SELECT COUNT(*) INTO @rocksdb_has_p_s_session_variables FROM INFORMATION_SCHEMA.TABLES",
            "PREPARE s FROM @rocksdb_get_is_supported",
            "SET @rocksdb_enable_bulk_load = IF (@rocksdb_is_supported, 'SET SESSION rocksdb_bulk_load = 1', 'x')",
            "EXECUTE s",
            PREPARE_SET,
            TIME_STAMPS_AS_BEFORE,
        ] {
            assert_eq!(judged(&[statement]), Ok(Verdict::Skip), "{statement}");
        }
        for statement in [
            "CHANGE MASTER TO MASTER_LOG_FILE='b.1', MASTER_LOG_POS=4",
            "SET @@GLOBAL.GTID_PURGED= '+' 'a:1'",
            "SET GLOBAL gtid_slave_pos='0-1-2'",
        ] {
            assert!(
                matches!(judged(&[statement]), Ok(Verdict::Place(place)) if !place.is_empty()),
                "{statement}"
            );
        }
        for statements in [
            &["CREATE USER x"][..],
            &["GRANT ALL ON *.* TO x"],
            &["SET PASSWORD FOR x = 'y'"],
            &["USE mysql", "INSERT INTO user VALUES (1)"],
            &["INSERT INTO `mysql`.`user` VALUES (1)"],
            &["CREATE TABLE MYSQL.x (a INT)"],
            &["DROP DATABASE sys"],
        ] {
            assert!(matches!(judged(statements), Ok(Verdict::LeaveOut(_))), "{statements:?}");
        }
    }

    /// Statements that reach beyond the dump, hide something, or are not known.
    #[test]
    fn statements_that_are_refused() {
        for statement in [
            "SHUTDOWN",
            "INSTALL PLUGIN x SONAME 'x.so'",
            "SELECT 1 INTO OUTFILE '/tmp/x'",
            "SELECT SETVAL(c, (SELECT 1), 0)",
            "DO SLEEP(1000)",
            "DO SETVAL(c, 1, 0), SLEEP(9)",
            "DO (SELECT 1 FROM `t` LIMIT 0), SLEEP(9)",
            "DO (SELECT 1 FROM `t` LIMIT 1)",
            "DO (SELECT 1 FROM `mysql`.`user` LIMIT 0)",
            "CALL p()",
            "LOAD DATA INFILE '/etc/passwd' INTO TABLE t",
            "CREATE FUNCTION f RETURNS STRING SONAME 'x.so'",
            "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'x')",
            "CREATE TABLE t (a INT) DATA DIRECTORY='/var/lib/mysql'",
            "CREATE TEMPORARY TABLE t (a INT)",
            "ALTER TABLE t IMPORT TABLESPACE",
            "INSERT INTO t SELECT LOAD_FILE('/etc/passwd')",
            "SET GLOBAL general_log = 1",
            "SET PERSIST max_connections = 1",
            "SET @@GLOBAL.x = 1",
            "SET SESSION max_error_count = 0",
            "SET @x = (SELECT 1)",
            "SET @x = LOAD_FILE('x')",
            "SET sql_mode = @never",
            "SET sql_mode = 1048576",
            "SET sql_mode = '0x100000'",
            "SET character_set_client = 28",
            "SET character_set_client = @never",
            "SET STATEMENT sql_mode = '' FOR SHUTDOWN",
            "SET NAMES gbk",
            "SET character_set_client = 'sjis'",
            "BINLOG 'x'",
            "RESET MASTER",
            "PREPARE s FROM 'SHUTDOWN'",
            "KILL 1",
            "",
            "'x'",
        ] {
            assert!(judged(&[statement]).is_err(), "{statement}");
        }
    }

    /// The meaning of values must be given, by the dump or by the user.
    #[test]
    fn meanings_that_are_not_said() {
        let mut judge = Judge::new(false, false);
        let mut judged = |statement: &str| judge.judge(statement.as_bytes());
        let error = judged("CREATE TABLE t (a INT)").unwrap_err();
        assert!(error.why.contains("no database"));
        judged("USE `shop`").unwrap();
        judged("CREATE TABLE t (a TIMESTAMP)").unwrap();
        assert!(judged("INSERT INTO t VALUES ('2026-01-01')").unwrap_err().why.contains("time zone"));
        judged("SET @OLD_TIME_ZONE=@@TIME_ZONE").unwrap();
        judged("SET TIME_ZONE='+00:00'").unwrap();
        judged("INSERT INTO t VALUES ('2026-01-01')").unwrap();
        assert!(judged("INSERT INTO t VALUES ('ä')").unwrap_err().why.contains("character set"));
        judged("SET @OLD_CLIENT=@@CHARACTER_SET_CLIENT").unwrap();
        judged("SET NAMES utf8mb4").unwrap();
        judged("INSERT INTO t VALUES ('ä')").unwrap();
        judged("SET TIME_ZONE=@OLD_TIME_ZONE").unwrap();
        judged("INSERT INTO t VALUES ('2026-01-01')").unwrap_err();
        // What follows in the file is another dump.
        judged("SET CHARACTER_SET_CLIENT=@OLD_CLIENT").unwrap();
        judged("CREATE TABLE t (a VARCHAR(9) COMMENT 'ä')").unwrap_err();
    }

    /// What a dump sets takes no memory that it chooses.
    #[test]
    fn variables_are_bounded() {
        let mut judge = Judge::new(true, true);
        let long = format!("SET @long = '{}'", "x".repeat(1 << 20));
        judge.judge(b"SET @long = 'ANSI_QUOTES'").unwrap();
        judge.judge(long.as_bytes()).unwrap();
        assert!(judge.judge(b"SET sql_mode = @long").unwrap_err().why.contains("never set"));
        let mut set = |name: &str| judge.judge(format!("SET @{name} = 'x'").as_bytes());
        set(&"n".repeat(1 << 20)).unwrap_err();
        let count = (0..10_000).take_while(|number| set(&format!("v{number}")).is_ok()).count();
        assert!((100..10_000).contains(&count), "{count}");
        // Whoever is there can still change.
        set("v1").unwrap();
    }

    /// The mode that a program was made under counts for its own text, and for that alone.
    #[test]
    fn modes_come_and_go() {
        let mut judge = Judge::new(true, true);
        judge.begin(Some("shop".to_owned()));
        judge.judge(b"SET @saved_sql_mode = @@sql_mode").unwrap();
        judge.judge(b"SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'").unwrap();
        assert!(judge.modes().ansi_quotes && judge.modes().no_backslash_escapes);
        let create = br#"CREATE DEFINER="root"@"localhost" FUNCTION "f"() RETURNS INT RETURN '\'"#;
        assert!(matches!(judge.judge(create), Ok(Verdict::WithDefiner(name, _)) if name == "root"));
        judge.judge(b"SET sql_mode = @saved_sql_mode").unwrap();
        assert_eq!(judge.modes(), Modes::default());
    }
}
