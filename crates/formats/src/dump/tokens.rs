//! Pieces of a statement, as far as one must understand statements to say what they do.

use std::borrow::Cow;

/// Which `sql_mode` counts for quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// `NO_BACKSLASH_ESCAPES`: a backslash is a backslash.
    pub no_backslash_escapes: bool,
    /// `ANSI_QUOTES`: double quotes are for names.
    pub ansi_quotes: bool,
}

impl Modes {
    /// As a `sql_mode` has them.
    #[must_use]
    pub fn of(sql_mode: &str) -> Modes {
        // Names of several modes at once, as they could be set by.
        const ANSI: [&str; 7] = ["ANSI_QUOTES", "ANSI", "ORACLE", "POSTGRESQL", "MSSQL", "DB2", "MAXDB"];
        let mut modes = Modes::default();
        for mode in sql_mode.split(',').map(str::trim) {
            modes.no_backslash_escapes |= mode.eq_ignore_ascii_case("NO_BACKSLASH_ESCAPES");
            modes.ansi_quotes |= ANSI.iter().any(|name| mode.eq_ignore_ascii_case(name));
        }
        modes
    }

    /// Whether a backslash within these quotes takes the next byte along.
    #[must_use]
    pub fn has_backslashes(self, quote: u8) -> bool {
        match quote {
            b'\'' => !self.no_backslash_escapes,
            b'"' => !self.no_backslash_escapes && !self.ansi_quotes,
            _ => false,
        }
    }
}

/// A piece of a statement that is neither blank nor a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A keyword, a number, or a name without quotes.
    Word(&'a [u8]),
    /// A name in quotes, with them.
    Name(&'a [u8]),
    /// A string, with its quotes.
    Text(&'a [u8]),
    /// One byte of anything else.
    Symbol(u8),
}

impl<'a> Token<'a> {
    /// Whether it is this keyword.
    #[must_use]
    pub fn is(&self, word: &str) -> bool {
        matches!(self, Token::Word(bytes) if bytes.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// What it says as a name: without quotes. `None` of symbols, strings, and what is not UTF-8.
    #[must_use]
    pub fn name(&self) -> Option<Cow<'a, str>> {
        match self {
            Token::Word(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Token::Name(bytes) => {
                let quote = char::from(*bytes.first()?);
                let inner = std::str::from_utf8(bytes.get(1..bytes.len().checked_sub(1)?)?).ok()?;
                Some(Cow::Owned(inner.replace(&format!("{quote}{quote}"), &quote.to_string())))
            }
            Token::Text(_) | Token::Symbol(_) => None,
        }
    }

    /// What a string says, as far as it is UTF-8; nothing that is escaped by letters.
    #[must_use]
    pub fn text(&self, modes: Modes) -> Option<String> {
        let Token::Text(bytes) = self else { return None };
        let quote = *bytes.first()?;
        let inner = bytes.get(1..bytes.len().checked_sub(1)?)?;
        let has_backslashes = modes.has_backslashes(quote);
        let mut said = Vec::with_capacity(inner.len());
        let mut rest = inner.iter().copied();
        while let Some(byte) = rest.next() {
            match byte {
                b'\\' if has_backslashes => said.push(rest.next()?),
                _ if byte == quote => said.push(rest.next()?),
                _ => said.push(byte),
            }
        }
        String::from_utf8(said).ok()
    }
}

/// The pieces of a statement.
pub fn tokens(statement: &[u8], modes: Modes) -> impl Iterator<Item = Token<'_>> {
    let mut rest = statement;
    std::iter::from_fn(move || {
        loop {
            let first = *rest.first()?;
            let length = match first {
                b'\'' | b'"' | b'`' => {
                    let length = quoted_length(rest, first, modes.has_backslashes(first));
                    let (bytes, after) = rest.split_at(length);
                    rest = after;
                    let is_name = first == b'`' || (first == b'"' && modes.ansi_quotes);
                    return Some(if is_name { Token::Name(bytes) } else { Token::Text(bytes) });
                }
                b'#' => line_length(rest),
                b'-' if rest.starts_with(b"--")
                    && rest
                        .get(2)
                        .is_none_or(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) =>
                {
                    line_length(rest)
                }
                b'/' if rest.starts_with(b"/*") => {
                    let end = rest.get(2..).and_then(|rest| rest.windows(2).position(|pair| pair == b"*/"));
                    end.map_or(rest.len(), |at| at + 4)
                }
                _ if first.is_ascii_whitespace() => 1,
                _ if is_word(first) => {
                    let length = rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
                    let (bytes, after) = rest.split_at(length);
                    rest = after;
                    return Some(Token::Word(bytes));
                }
                _ => {
                    rest = &rest[1..];
                    return Some(Token::Symbol(first));
                }
            };
            rest = &rest[length..];
        }
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

fn line_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len())
}

fn quoted_length(bytes: &[u8], quote: u8, has_backslashes: bool) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if has_backslashes => at += 2,
            byte if *byte == quote && bytes.get(at + 1) == Some(&quote) => at += 2,
            byte if *byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}
