//! Leaves passwords out of statements that are shown: those of a binlog have them as they were typed on MariaDB, and
//! as hashes on MySQL.
//!
//! A statement is not parsed. What is told by the words before a string is left out, and rather too much than too
//! little: strings after a word that ends in `PASSWORD` or `AUTHENTICATION_STRING`, all in a `SET PASSWORD`, and after
//! `IDENTIFIED` those that follow `BY`, `AS`, `USING` or `REPLACE`; in all strings, the password of a URL.

/// What stands for a password.
const HIDDEN: &str = "'***'";
/// Where the message of a server's applier quotes a statement.
const QUOTED: [&str; 2] = ["Query: '", "near '"];

/// A piece of a statement. All pieces joined are the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// Letters, digits, `_`, `@` and what else identifiers have.
    Word(&'a str),
    /// With its quotes; the end may be cut off.
    Text(&'a str),
    /// In backticks.
    Name(&'a str),
    /// White space, a comment, or the mark around code that only some servers execute.
    Blank(&'a str),
    Sign(&'a str),
}

/// A statement without the passwords in it.
pub(crate) fn without_passwords(statement: &str) -> String {
    let mut shown = String::with_capacity(statement.len());
    let mut before = Before::default();
    for piece in Pieces(statement) {
        match piece {
            Piece::Word(word) => {
                let upper = word.to_uppercase();
                // A string's character set.
                let is_introducer = upper.starts_with('_') || upper == "N" || upper == "X";
                match upper.starts_with("0X") && before.tell_a_password() {
                    true => shown.push_str(HIDDEN),
                    false => shown.push_str(word),
                }
                if !is_introducer {
                    before.add_word(upper);
                }
            }
            Piece::Text(_) if before.tell_a_password() => shown.push_str(HIDDEN),
            Piece::Text(text) => {
                shown.push_str(&without_url_password(text));
                before.last.clear();
            }
            Piece::Name(name) => {
                shown.push_str(name);
                before.add_word(name.trim_matches('`').to_uppercase());
            }
            Piece::Sign(sign) => {
                shown.push_str(sign);
                before.is_assigned = sign == "=";
                if !matches!(sign, "(" | "=" | ":") {
                    before.last.clear();
                }
            }
            Piece::Blank(blank) => shown.push_str(blank),
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

/// Cuts a statement into pieces.
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let rest = self.0;
        let first = rest.chars().next()?;
        let end_of = |mark: &str| rest.find(mark).map_or(rest.len(), |at| at + mark.len());
        let end_while = |is_in: fn(char) -> bool| rest.find(|c| !is_in(c)).unwrap_or(rest.len());
        let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$');
        let (end, piece): (usize, fn(&'a str) -> Piece<'a>) = match first {
            '\'' | '"' => (quoted_len(rest, first), Piece::Text),
            '`' => (quoted_len(rest, first), Piece::Name),
            c if c.is_whitespace() => (end_while(char::is_whitespace), Piece::Blank),
            // Code that only some servers execute: `/*!50706 ... */`, `/*M!100100 ... */`.
            _ if rest.starts_with("/*!") || rest.starts_with("/*M!") => {
                let mark = rest.find('!').map_or(rest.len(), |at| at + 1);
                let digits = rest[mark..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - mark);
                (mark + digits, Piece::Blank)
            }
            _ if rest.starts_with("*/") => (2, Piece::Blank),
            _ if rest.starts_with("/*") => (end_of("*/"), Piece::Blank),
            '#' => (end_of("\n"), Piece::Blank),
            _ if rest.starts_with("-- ") => (end_of("\n"), Piece::Blank),
            c if is_of_word(c) => (end_while(is_of_word), Piece::Word),
            c => (c.len_utf8(), Piece::Sign),
        };
        let (piece_text, rest) = rest.split_at(end);
        self.0 = rest;
        Some(piece(piece_text))
    }
}

/// How long a string in quotes is, or all of what is left if it does not end.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == '\\' && quote != '`' {
            chars.next();
        } else if c == quote && chars.next_if(|(_, next)| *next == quote).is_none() {
            return at + c.len_utf8();
        }
    }
    text.len()
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
