//! Text of statements: as we write names and values, and as servers print theirs.

use holdfast_formats::sql::{self, Comments, Modes};
pub(super) use holdfast_formats::sql::{Kind, Token};

pub(super) use crate::server::tables::quoted;

/// Quotes a text for a statement in a session without `NO_BACKSLASH_ESCAPES`.
pub(crate) fn quoted_text(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The tokens of a statement as servers print it for us: with backslashes in strings, and without comments to
/// the end of the line, except in programs.
pub(super) fn tokens(sql: &[u8]) -> Vec<Token<'_>> {
    sql::tokens(sql, Modes::default(), Comments::InMarks).collect()
}
