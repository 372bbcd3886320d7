//! What a statement says, as far as that can be told without a parser.

use std::borrow::Cow;

/// A table that a statement names, with its schema if that is written.
pub(super) type Named = (Option<String>, String);

/// The only table that the statement can concern, if it has a form that says so. `words` are all in it.
pub(super) fn only_table(text: &[u8], words: &[Cow<'_, str>]) -> Option<Named> {
    const OTHERS: [&str; 19] = [
        "RENAME",
        "EXCHANGE",
        "REFERENCES",
        "LIKE",
        "SELECT",
        "UNION",
        "TRIGGER",
        "VIEW",
        "PROCEDURE",
        "FUNCTION",
        "EVENT",
        "DIRECTORY",
        "TABLESPACE",
        "TEMPORARY",
        // Sequences: the default of a new column may come from one.
        "NEXT",
        "NEXTVAL",
        "PREVIOUS",
        "LASTVAL",
        "SETVAL",
    ];
    if words.iter().any(|word| OTHERS.contains(&&**word)) {
        return None;
    }
    // A second `TABLE` names the source of rows, or the destination of a partition.
    if times_table(text) > 1 {
        return None;
    }
    // Comments can contain executed text, and strings can contain what looks like a name.
    let mut rest = Words::of(text)?;
    rest.skip_comment();
    let kind = rest.next();
    match kind.as_deref() {
        Some("ALTER") => {
            rest.skip(&["ONLINE", "IGNORE"]);
            rest.require(&["TABLE"])?;
            rest.skip_all(&["IF", "EXISTS"]);
            rest.name().filter(|_| are_of_the_table(rest.rest))
        }
        Some("OPTIMIZE" | "ANALYZE") => {
            rest.skip(&["NO_WRITE_TO_BINLOG", "LOCAL"]);
            rest.require(&["TABLE", "TABLES"])?;
            rest.name().filter(|_| rest.is_at_end())
        }
        Some("TRUNCATE") => {
            rest.skip(&["TABLE"]);
            rest.name().filter(|_| rest.is_at_end())
        }
        Some("DROP") => {
            rest.skip(&["ONLINE", "OFFLINE"]);
            if rest.skip(&["INDEX"]) {
                return rest.table_of_index();
            }
            rest.require(&["TABLE"])?;
            rest.skip_all(&["IF", "EXISTS"]);
            rest.name().filter(|_| rest.is_at_end())
        }
        Some("CREATE") => {
            rest.skip_all(&["OR", "REPLACE"]);
            rest.skip(&["ONLINE", "OFFLINE"]);
            rest.skip(&["UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"]);
            if rest.skip(&["INDEX"]) {
                return rest.table_of_index();
            }
            rest.require(&["TABLE"])?;
            rest.skip_all(&["IF", "NOT", "EXISTS"]);
            rest.name()
        }
        _ => None,
    }
}

/// What an `ALTER TABLE` may do without involving another table.
const OF_THE_TABLE: [&str; 40] = [
    "ADD",
    "ALGORITHM",
    "ALTER",
    "ANALYZE",
    "AUTO_INCREMENT",
    "AVG_ROW_LENGTH",
    "CHANGE",
    "CHARACTER",
    "CHARSET",
    "CHECK",
    "CHECKSUM",
    "COALESCE",
    "COLLATE",
    "COMMENT",
    "COMPRESSION",
    "CONVERT",
    "DEFAULT",
    "DELAY_KEY_WRITE",
    "DISABLE",
    "DROP",
    "ENABLE",
    "ENCRYPTED",
    "ENCRYPTION",
    "ENGINE",
    "FORCE",
    "KEY_BLOCK_SIZE",
    "LOCK",
    "MAX_ROWS",
    "MIN_ROWS",
    "MODIFY",
    "OPTIMIZE",
    "ORDER",
    "PARTITION",
    "REBUILD",
    "REMOVE",
    "REORGANIZE",
    "ROW_FORMAT",
    "STATS_PERSISTENT",
    "STATS_AUTO_RECALC",
    "TRUNCATE",
];

/// Whether everything after the name in an `ALTER TABLE` concerns that table only.
fn are_of_the_table(text: &str) -> bool {
    let Some(clauses) = clauses(text) else { return false };
    clauses.iter().all(|clause| {
        let mut rest = Words { rest: clause.trim_start() };
        match rest.next().as_deref() {
            Some("CONVERT") => rest.skip(&["TO"]),
            Some(first) => OF_THE_TABLE.contains(&first),
            None => false,
        }
    })
}

/// The parts between commas, outside of parentheses and quotes. `None` if there is a comment or a backslash,
/// whose meaning depends on the session, or if a quote or parenthesis is not closed.
fn clauses(text: &str) -> Option<Vec<&str>> {
    let text = text.trim_end_matches([';', ' ', '\n', '\0']);
    let (mut clauses, mut begin, mut depth, mut quote) = (Vec::new(), 0, 0_usize, None);
    let mut last = ' ';
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (_, '\\') => return None,
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"' | '`') => quote = Some(c),
            (None, '#') => return None,
            (None, '*') if last == '/' => return None,
            (None, '-') if last == '-' => return None,
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.checked_sub(1)?,
            (None, ',') if depth == 0 => {
                clauses.push(&text[begin..at]);
                begin = at + 1;
            }
            (None, _) => {}
        }
        last = c;
    }
    clauses.push(&text[begin..]);
    (quote.is_none() && depth == 0).then_some(clauses)
}

/// Whether a statement that creates a table also fills it.
pub(super) fn has_rows(text: &[u8]) -> bool {
    let text = unquoted(text);
    let words = words(&text);
    let is_of_partition = |at: usize| words.get(at + 1).is_some_and(|it| ["LESS", "IN"].contains(&&**it));
    words.iter().enumerate().any(|(at, word)| match &**word {
        "SELECT" | "WITH" => true,
        // `CREATE TABLE a TABLE b`
        "TABLE" => words[..at].contains(word),
        "VALUES" => !is_of_partition(at),
        _ => false,
    })
}

fn times_table(text: &[u8]) -> usize {
    words(&unquoted(text)).iter().filter(|word| &***word == "TABLE").count()
}

/// A statement without its strings; unchanged if it is not certain what its strings are.
fn unquoted(text: &[u8]) -> Cow<'_, [u8]> {
    let is_unsure = |pair: &[u8]| [&b"/*"[..], b"--"].contains(&pair);
    if text.iter().any(|byte| b"\\#".contains(byte)) || text.windows(2).any(is_unsure) {
        return Cow::Borrowed(text);
    }
    let mut quote = None;
    let is_outside = |byte: &u8| match quote {
        Some(open) if open == *byte => {
            quote = None;
            true
        }
        Some(_) => false,
        None => {
            quote = Some(*byte).filter(|byte| b"'\"`".contains(byte));
            true
        }
    };
    let outside = text.iter().copied().filter(is_outside).collect();
    if quote.is_none() { Cow::Owned(outside) } else { Cow::Borrowed(text) }
}

/// The words of a statement, in upper case: runs of characters that an unquoted name can contain.
pub(super) fn words(text: &[u8]) -> Vec<Cow<'_, str>> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    text.split(|byte| !is_part(byte))
        .filter(|word| !word.is_empty())
        .map(|word| Cow::Owned(String::from_utf8_lossy(word).to_ascii_uppercase()))
        .collect()
}

/// A statement, consumed word by word from its beginning.
pub(super) struct Words<'a> {
    pub(super) rest: &'a str,
}

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a [u8]) -> Option<Self> {
        Some(Self { rest: std::str::from_utf8(text).ok()?.trim_start() })
    }

    /// Skips leading comments that are not executed.
    pub(super) fn skip_comment(&mut self) {
        while let Some(comment) = self.rest.strip_prefix("/*") {
            let is_executed = comment.starts_with('!') || comment.starts_with("M!");
            let Some((_, after)) = comment.split_once("*/").filter(|_| !is_executed) else { return };
            self.rest = after.trim_start();
        }
    }

    fn word(&self) -> &'a str {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.rest.find(|c: char| !is_part(c)).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    fn pass(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }

    fn next(&mut self) -> Option<String> {
        let word = self.word();
        self.pass(word.len());
        (!word.is_empty()).then(|| word.to_ascii_uppercase())
    }

    /// Skips the next word if it is one of these.
    fn skip(&mut self, any: &[&str]) -> bool {
        let word = self.word();
        let is_one = any.iter().any(|it| it.eq_ignore_ascii_case(word));
        if is_one {
            self.pass(word.len());
        }
        is_one
    }

    fn require(&mut self, any: &[&str]) -> Option<()> {
        self.skip(any).then_some(())
    }

    fn skip_all(&mut self, words: &[&str]) {
        for word in words {
            self.skip(&[word]);
        }
    }

    /// A name, plain or in backticks, with its schema if that is written.
    fn name(&mut self) -> Option<Named> {
        let first = self.part()?;
        match self.rest.strip_prefix('.') {
            Some(rest) => {
                self.rest = rest.trim_start();
                Some((Some(first), self.part()?))
            }
            None => Some((None, first)),
        }
    }

    fn part(&mut self) -> Option<String> {
        if let Some(quoted) = self.rest.strip_prefix('`') {
            let (name, _) = quoted.split_once('`')?;
            self.pass(name.len() + 2);
            // A backtick within a name is doubled: such a name is not one of ours.
            return (!self.rest.starts_with('`')).then(|| name.to_owned());
        }
        let word = self.word();
        self.pass(word.len());
        (!word.is_empty()).then(|| word.to_owned())
    }

    /// Parses what follows `INDEX`, `name ON table`, and returns the table.
    fn table_of_index(&mut self) -> Option<Named> {
        self.skip_all(&["IF", "NOT", "EXISTS"]);
        self.part()?;
        if self.skip(&["USING", "TYPE"]) {
            self.next()?;
        }
        self.require(&["ON"])?;
        self.name()
    }

    /// Whether only text follows that servers add themselves.
    fn is_at_end(&self) -> bool {
        let mut rest = Words { rest: self.rest };
        rest.skip(&["RESTRICT", "CASCADE"]);
        rest.skip_comment();
        rest.rest.trim_end_matches([';', ' ', '\n', '\0']).is_empty()
    }
}
