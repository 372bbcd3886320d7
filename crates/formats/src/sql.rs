//! Splits SQL text into tokens, just far enough to tell what statements do.
//!
//! Nothing here knows the grammar. The tokens of any text, joined, are the text; a token without an end
//! extends to the end of the text.

use memchr::{memchr, memchr2};

/// Words that may come between `CREATE` and the kind of object.
pub const BEFORE_KIND: [&str; 13] = [
    "OR",
    "REPLACE",
    "ALGORITHM",
    "UNDEFINED",
    "MERGE",
    "TEMPTABLE",
    "DEFINER",
    "INVOKER",
    "SQL",
    "SECURITY",
    "AGGREGATE",
    "CURRENT_USER",
    "CURRENT_ROLE",
];

/// The parts of a `sql_mode` that affect quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// `NO_BACKSLASH_ESCAPES`: a backslash is an ordinary character.
    pub no_backslash_escapes: bool,
    /// `ANSI_QUOTES`: double quotes enclose names.
    pub ansi_quotes: bool,
}

impl Modes {
    /// The modes of a `sql_mode` value.
    #[must_use]
    pub fn of(sql_mode: &str) -> Modes {
        // Besides `ANSI_QUOTES`, the names that set it together with other modes.
        const ANSI: [&str; 7] = ["ANSI_QUOTES", "ANSI", "ORACLE", "POSTGRESQL", "MSSQL", "DB2", "MAXDB"];
        let mut modes = Modes::default();
        for mode in sql_mode.split(',').map(str::trim) {
            modes.no_backslash_escapes |= mode.eq_ignore_ascii_case("NO_BACKSLASH_ESCAPES");
            modes.ansi_quotes |= ANSI.iter().any(|name| mode.eq_ignore_ascii_case(name));
        }
        modes
    }

    /// Whether a backslash within these quotes escapes the next byte.
    #[must_use]
    pub fn has_backslashes(self, quote: u8) -> bool {
        match quote {
            b'\'' => !self.no_backslash_escapes,
            b'"' => !self.no_backslash_escapes && !self.ansi_quotes,
            _ => false,
        }
    }
}

/// What counts as a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comments {
    /// Only `/* */`: servers print no others.
    InMarks,
    /// Also what people write: from `#` or `-- ` to the end of the line.
    All,
}

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// White space, as much as there is.
    Space,
    /// A comment, including those that servers execute. The end of a line is not part of it.
    Comment,
    /// A keyword, a number, or a name without quotes.
    Word,
    /// A name in quotes, including the quotes.
    Name,
    /// A string, including its quotes.
    Text,
    /// One byte of anything else.
    Symbol,
}

/// A token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Its kind.
    pub kind: Kind,
    /// All of its bytes; never empty.
    pub bytes: &'a [u8],
}

impl Token<'_> {
    /// Whether it is this keyword.
    #[must_use]
    pub fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.bytes.eq_ignore_ascii_case(word.as_bytes())
    }

    /// Whether it is this byte.
    #[must_use]
    pub fn is_symbol(&self, symbol: u8) -> bool {
        self.kind == Kind::Symbol && self.bytes == [symbol]
    }

    /// The name within backquotes; `None` for other tokens.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let inner = (self.kind == Kind::Name).then_some(self.bytes)?;
        let inner = inner.strip_prefix(b"`").and_then(|rest| rest.strip_suffix(b"`"))?;
        Some(String::from_utf8_lossy(inner).replace("``", "`"))
    }
}

/// The kind of token that begins with a byte. [`Kind::Comment`] means that a comment may begin; otherwise the
/// byte is a symbol.
static BEGINS: [Kind; 256] = {
    let mut kinds = [Kind::Symbol; 256];
    let mut byte = 0_u8;
    loop {
        kinds[byte as usize] = match byte {
            b'`' => Kind::Name,
            b'\'' | b'"' => Kind::Text,
            b'/' | b'#' | b'-' => Kind::Comment,
            b'_' | b'$' | 0x80.. => Kind::Word,
            _ if byte.is_ascii_alphanumeric() => Kind::Word,
            _ if byte.is_ascii_whitespace() => Kind::Space,
            _ => Kind::Symbol,
        };
        if byte == u8::MAX {
            break kinds;
        }
        byte += 1;
    }
};

/// The tokens of a text.
pub fn tokens(text: &[u8], modes: Modes, comments: Comments) -> impl Iterator<Item = Token<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let kind = BEGINS[usize::from(first)];
        let (kind, length) = match kind {
            Kind::Space | Kind::Word => (kind, run_length(rest, kind)),
            Kind::Name | Kind::Text => {
                let is_name = kind == Kind::Name || (first == b'"' && modes.ansi_quotes);
                let kind = if is_name { Kind::Name } else { Kind::Text };
                (kind, quoted_length(rest, first, modes.has_backslashes(first)))
            }
            Kind::Comment if rest.starts_with(b"/*") => (kind, marked_length(rest)),
            Kind::Comment if comments == Comments::All && begins_line_comment(rest) => {
                (kind, memchr(b'\n', rest).unwrap_or(rest.len()))
            }
            Kind::Comment | Kind::Symbol => (Kind::Symbol, 1),
        };
        let (bytes, after) = rest.split_at(length);
        rest = after;
        Some(Token { kind, bytes })
    })
}

/// Whether servers read `rest`, up to the end of the line, as a comment. Two dashes need a blank after them,
/// or the end.
#[must_use]
pub fn begins_line_comment(rest: &[u8]) -> bool {
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || byte.is_ascii_control();
    rest.starts_with(b"#") || rest.starts_with(b"--") && rest.get(2).is_none_or(is_blank)
}

fn run_length(bytes: &[u8], kind: Kind) -> usize {
    bytes.iter().position(|byte| BEGINS[usize::from(*byte)] != kind).unwrap_or(bytes.len())
}

/// The length of a `/* */` comment, whose two marks do not share a star.
fn marked_length(bytes: &[u8]) -> usize {
    let mut at = 2;
    while let Some(star) = bytes.get(at..).and_then(|rest| memchr(b'*', rest)) {
        at += star + 1;
        if bytes.get(at) == Some(&b'/') {
            return at + 1;
        }
    }
    bytes.len()
}

fn quoted_length(bytes: &[u8], quote: u8, has_backslashes: bool) -> usize {
    let escape = if has_backslashes { b'\\' } else { quote };
    let mut at = 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(quote, escape, rest)) {
        at += found;
        if bytes[at] == quote && bytes.get(at + 1) != Some(&quote) {
            return at + 1;
        }
        // The escape includes the next byte.
        at += 2;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEFAULT: Modes = Modes { no_backslash_escapes: false, ansi_quotes: false };

    fn kinds(text: &str, modes: Modes, comments: Comments) -> Vec<(Kind, &str)> {
        tokens(text.as_bytes(), modes, comments)
            .map(|token| (token.kind, std::str::from_utf8(token.bytes).unwrap()))
            .filter(|(kind, _)| *kind != Kind::Space)
            .collect()
    }

    /// Quotes, comments and words end where servers end them.
    #[test]
    fn pieces() {
        use Kind::{Comment, Name, Symbol, Text, Word};
        for (text, wanted) in [
            ("a$1_ä b", &[(Word, "a$1_ä"), (Word, "b")][..]),
            ("'it''s'x", &[(Text, "'it''s'"), (Word, "x")]),
            (r"'\'' ''", &[(Text, r"'\''"), (Text, "''")]),
            (r"`\`'x'", &[(Name, r"`\`"), (Text, "'x'")]),
            ("`a``b`.`c`", &[(Name, "`a``b`"), (Symbol, "."), (Name, "`c`")]),
            ("/*/ a */b/**/", &[(Comment, "/*/ a */"), (Word, "b"), (Comment, "/**/")]),
            ("/*!50000 'a*/b'", &[(Comment, "/*!50000 'a*/"), (Word, "b"), (Text, "'")]),
            ("'a -- #", &[(Text, "'a -- #")]),
            ("\"a", &[(Text, "\"a")]),
            ("/*", &[(Comment, "/*")]),
        ] {
            assert_eq!(kinds(text, DEFAULT, Comments::InMarks), wanted, "{text}");
            assert_eq!(kinds(text, DEFAULT, Comments::All), wanted, "{text}");
        }
        let text = "a--1 # '\nb --\t'\n--";
        let minus = (Symbol, "-");
        let all = [
            (Word, "a"),
            minus,
            minus,
            (Word, "1"),
            (Comment, "# '"),
            (Word, "b"),
            (Comment, "--\t'"),
            (Comment, "--"),
        ];
        assert_eq!(kinds(text, DEFAULT, Comments::All), all);
        let in_marks =
            [(Word, "a"), minus, minus, (Word, "1"), (Symbol, "#"), (Text, "'\nb --\t'"), minus, minus];
        assert_eq!(kinds(text, DEFAULT, Comments::InMarks), in_marks);
        let modes = Modes { no_backslash_escapes: true, ansi_quotes: true };
        assert_eq!(
            kinds(r#"'\'"\""#, modes, Comments::All),
            [(Text, r"'\'"), (Name, r#""\""#)],
            "a backslash is one"
        );
    }

    fn modes() -> impl Strategy<Value = Modes> {
        any::<(bool, bool)>()
            .prop_map(|(no_backslash_escapes, ansi_quotes)| Modes { no_backslash_escapes, ansi_quotes })
    }

    fn comments() -> impl Strategy<Value = Comments> {
        prop::sample::select(vec![Comments::InMarks, Comments::All])
    }

    /// Any bytes, or marks in any order.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let marks =
            vec!["/*", "*/", "/*!50000 ", "'", "\"", "`", "\\", "\n", "-- ", "--", "#", ";", "x", "ä", " "];
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            proptest::collection::vec(prop::sample::select(marks), 0..40)
                .prop_map(|marks| marks.concat().into_bytes()),
        ]
    }

    proptest! {
        /// The tokens of any text, joined, are the text; each has the right kind, and is as long as it can
        /// be.
        #[test]
        fn nothing_is_lost(text in text(), modes in modes(), comments in comments()) {
            let all: Vec<Token<'_>> = tokens(&text, modes, comments).collect();
            let together: Vec<u8> = all.iter().flat_map(|token| token.bytes).copied().collect();
            prop_assert_eq!(&together, &text);
            for token in &all {
                let first = *token.bytes.first().unwrap();
                match token.kind {
                    Kind::Space => prop_assert!(token.bytes.iter().all(u8::is_ascii_whitespace)),
                    Kind::Word => prop_assert!(
                        token.bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_$".contains(byte) || *byte >= 0x80)
                    ),
                    Kind::Name => prop_assert!(first == b'`' || first == b'"' && modes.ansi_quotes),
                    Kind::Text => prop_assert!(first == b'\'' || first == b'"' && !modes.ansi_quotes),
                    Kind::Comment => prop_assert!(
                        token.bytes.starts_with(b"/*")
                            || comments == Comments::All && begins_line_comment(token.bytes)
                    ),
                    Kind::Symbol => prop_assert!(token.bytes.len() == 1 && !b"'\"`".contains(&first)),
                }
            }
            for pair in all.windows(2) {
                let is_one = pair[0].kind == pair[1].kind && matches!(pair[0].kind, Kind::Space | Kind::Word);
                prop_assert!(!is_one, "{:?}", pair);
            }
        }

        /// A value in quotes, as servers write it, is one token, whatever surrounds it.
        #[test]
        fn quotes_hold(said in any::<Vec<u8>>(), quote in prop::sample::select(b"'\"`".to_vec()), modes in modes()) {
            let mut quoted = vec![quote];
            for byte in said {
                if byte == quote {
                    quoted.push(quote);
                } else if byte == b'\\' && modes.has_backslashes(quote) {
                    quoted.push(b'\\');
                }
                quoted.push(byte);
            }
            quoted.push(quote);
            let text = [b"x ", quoted.as_slice(), b";y"].concat();
            let all: Vec<Token<'_>> = tokens(&text, modes, Comments::All).collect();
            let bytes: Vec<&[u8]> = all.iter().map(|token| token.bytes).collect();
            prop_assert_eq!(bytes, [&b"x"[..], b" ", &quoted, b";", b"y"]);
        }
    }
}
