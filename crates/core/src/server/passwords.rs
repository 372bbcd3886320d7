//! Leaves passwords out of statements that are shown: those of a binlog have them as they were typed on MariaDB, and
//! as hashes on MySQL.
//!
//! A statement is not parsed. What is told by the words before a string is left out, and rather too much than too
//! little: strings after a word that ends in `PASSWORD` or `AUTHENTICATION_STRING`, all in a `SET PASSWORD`, and after
//! `IDENTIFIED` those that follow `BY`, `AS`, `USING` or `REPLACE`; in all strings, the password of a URL.

use holdfast_formats::sql::{Comments, Kind, Modes, tokens};

/// What stands for a password.
const HIDDEN: &str = "'***'";
/// Where the message of a server's applier quotes a statement.
const QUOTED: [&str; 2] = ["Query: '", "near '"];

/// A statement without the passwords in it.
pub(crate) fn without_passwords(statement: &str) -> String {
    let mut shown = String::with_capacity(statement.len());
    let mut before = Before::default();
    for (kind, text) in Pieces(statement) {
        match kind {
            Kind::Word => {
                let upper = text.to_uppercase();
                // A string's character set.
                let is_introducer = upper.starts_with('_') || upper == "N" || upper == "X";
                match upper.starts_with("0X") && before.tell_a_password() {
                    true => shown.push_str(HIDDEN),
                    false => shown.push_str(text),
                }
                if !is_introducer {
                    before.add_word(upper);
                }
            }
            Kind::Text if before.tell_a_password() => shown.push_str(HIDDEN),
            Kind::Text => {
                shown.push_str(&without_url_password(text));
                before.last.clear();
            }
            Kind::Name => {
                shown.push_str(text);
                before.add_word(text.trim_matches('`').to_uppercase());
            }
            Kind::Symbol => {
                shown.push_str(text);
                before.is_assigned = text == "=";
                if !matches!(text, "(" | "=" | ":") {
                    before.last.clear();
                }
            }
            Kind::Space | Kind::Comment => shown.push_str(text),
        }
    }
    shown
}

/// A message of a server's applier without the passwords of the statements that it quotes.
pub(crate) fn quoted_without_passwords(message: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(message.len()), message);
    let end_of_mark = |text: &str| QUOTED.iter().filter_map(|mark| Some(text.find(mark)? + mark.len())).min();
    while let Some(end) = end_of_mark(rest) {
        let (piece, after) = rest.split_at(end);
        shown.push_str(&without_passwords(piece));
        rest = after;
    }
    shown + &without_passwords(rest)
}

/// What comes before a string, in capitals.
#[derive(Default)]
struct Before {
    /// The first two words of the statement.
    first: Vec<String>,
    /// The word right before, if at most brackets and the like are in between.
    last: String,
    is_identified: bool,
    /// Whether `=` is right before.
    is_assigned: bool,
}

impl Before {
    fn add_word(&mut self, word: String) {
        self.is_identified |= word == "IDENTIFIED";
        self.is_assigned = false;
        if self.first.len() < 2 {
            self.first.push(word.clone());
        }
        self.last = word;
    }

    fn tell_a_password(&self) -> bool {
        let is_word = self.last.ends_with("PASSWORD") || self.last.ends_with("AUTHENTICATION_STRING");
        let is_of_account = self.is_identified && ["BY", "AS", "USING", "REPLACE"].contains(&&*self.last);
        is_word || is_of_account || self.is_assigned && self.first == ["SET", "PASSWORD"]
    }
}

/// `scheme://user:password@host` without the password.
fn without_url_password(text: &str) -> String {
    let hidden = || {
        let begin = text.find("://")? + 3;
        let end = begin + text[begin..].find('/').unwrap_or(text.len() - begin);
        let at = begin + text[begin..end].rfind('@')?;
        let colon = begin + text[begin..at].find(':')?;
        Some(format!("{}:***{}", &text[..colon], &text[at..]))
    };
    hidden().unwrap_or_else(|| text.to_owned())
}

/// The tokens of a statement, all of which joined are the statement. Of a comment that some servers execute
/// (`/*!50706 ... */`, `/*M!100100 ... */`), only the marks are none.
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = (Kind, &'a str);

    fn next(&mut self) -> Option<(Kind, &'a str)> {
        let (kind, len) = match mark_len(self.0) {
            Some(len) => (Kind::Space, len),
            None => {
                let token = tokens(self.0.as_bytes(), Modes::default(), Comments::All).next()?;
                (token.kind, token.bytes.len())
            }
        };
        // Tokens end where characters do.
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some((kind, text))
    }
}

/// How long the mark is that begins or ends code which only some servers execute, if there is one.
fn mark_len(text: &str) -> Option<usize> {
    if text.starts_with("*/") {
        return Some(2);
    }
    let code = text.strip_prefix("/*!").or_else(|| text.strip_prefix("/*M!"))?;
    Some(text.len() - code.trim_start_matches(|c: char| c.is_ascii_digit()).len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a password is written, it is not shown; other strings are.
    #[test]
    fn statements_with_passwords() {
        for (statement, shown) in [
            ("CREATE USER a@'h' IDENTIFIED BY 'p\\'x'", "CREATE USER a@'h' IDENTIFIED BY '***'"),
            (
                "GRANT ALL ON *.* TO a identified by PASSWORD '*94BD'",
                "GRANT ALL ON *.* TO a identified by PASSWORD '***'",
            ),
            (
                "ALTER USER a IDENTIFIED VIA ed25519 USING PASSWORD(/* x */ \"p\"\"q\") OR mysql_native_password AS 'h'",
                "ALTER USER a IDENTIFIED VIA ed25519 USING PASSWORD(/* x */ '***') OR mysql_native_password AS '***'",
            ),
            (
                "CREATE USER a IDENTIFIED WITH 'caching_sha2_password' AS '$A$005$'",
                "CREATE USER a IDENTIFIED WITH 'caching_sha2_password' AS '***'",
            ),
            (
                "ALTER USER USER() IDENTIFIED BY 'new' REPLACE 'old'",
                "ALTER USER USER() IDENTIFIED BY '***' REPLACE '***'",
            ),
            ("SET PASSWORD FOR 'a'@'h' = 'p'", "SET PASSWORD FOR 'a'@'h' = '***'"),
            ("SET PASSWORD FOR a@h = PASSWORD('p')", "SET PASSWORD FOR a@h = PASSWORD('***')"),
            ("SET PASSWORD = _utf8mb4'p'", "SET PASSWORD = _utf8mb4'***'"),
            (
                "CHANGE MASTER TO MASTER_HOST='h', MASTER_PASSWORD = 'p', MASTER_PORT=1",
                "CHANGE MASTER TO MASTER_HOST='h', MASTER_PASSWORD = '***', MASTER_PORT=1",
            ),
            (
                "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD='p'",
                "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD='***'",
            ),
            (
                "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (USER 'u', PASSWORD 'p', HOST 'h')",
                "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (USER 'u', PASSWORD '***', HOST 'h')",
            ),
            (
                "CREATE TABLE t (i INT) ENGINE=FEDERATED CONNECTION='mysql://u:p@h:3306/d/t'",
                "CREATE TABLE t (i INT) ENGINE=FEDERATED CONNECTION='mysql://u:***@h:3306/d/t'",
            ),
            (
                "UPDATE mysql.user SET `authentication_string` = 'h' WHERE user = 'a'",
                "UPDATE mysql.user SET `authentication_string` = '***' WHERE user = 'a'",
            ),
            ("CREATE USER a /*!50706 IDENTIFIED BY */ 0x70", "CREATE USER a /*!50706 IDENTIFIED BY */ '***'"),
            ("CREATE USER a IDENTIFIED BY 'cut o", "CREATE USER a IDENTIFIED BY '***'"),
            (
                "LOAD DATA INFILE 'f' INTO TABLE t FIELDS TERMINATED BY ','",
                "LOAD DATA INFILE 'f' INTO TABLE t FIELDS TERMINATED BY ','",
            ),
            (
                "INSERT INTO t VALUES ('IDENTIFIED BY', 'x') -- it's",
                "INSERT INTO t VALUES ('IDENTIFIED BY', 'x') -- it's",
            ),
        ] {
            assert_eq!(without_passwords(statement), shown);
        }
    }

    #[test]
    fn messages_that_quote_a_statement() {
        let message = "Error 'Plugin 'x' is not loaded' on query. Default database: ''. Query: 'CREATE USER a \
                       IDENTIFIED BY 'secret''";
        let shown = quoted_without_passwords(message);
        assert!(shown.contains("Plugin 'x' is not loaded") && shown.contains("CREATE USER a"), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(quoted_without_passwords("Error: it's off"), "Error: it's off");
    }
}
