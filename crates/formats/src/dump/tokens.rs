//! The meaningful tokens of a statement.

use std::borrow::Cow;

use crate::sql::{self, Comments, Kind, Modes};

/// A token of a statement that is neither blank nor a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A keyword, a number, or a name without quotes.
    Word(&'a [u8]),
    /// A name in quotes, including the quotes.
    Name(&'a [u8]),
    /// A string, including its quotes.
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

    /// The name without quotes. `None` for symbols, strings, and bytes that are not UTF-8.
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

    /// The value of a string; `None` if it is not UTF-8. Letters after a backslash stand for themselves.
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

/// The tokens of a statement, without blanks and comments.
pub fn tokens(statement: &[u8], modes: Modes) -> impl Iterator<Item = Token<'_>> {
    sql::tokens(statement, modes, Comments::All).filter_map(|sql::Token { kind, bytes }| match kind {
        Kind::Space | Kind::Comment => None,
        Kind::Word => Some(Token::Word(bytes)),
        Kind::Name => Some(Token::Name(bytes)),
        Kind::Text => Some(Token::Text(bytes)),
        Kind::Symbol => bytes.first().map(|byte| Token::Symbol(*byte)),
    })
}
