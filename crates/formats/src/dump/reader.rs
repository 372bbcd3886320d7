//! Splits a dump into statements, one after the other, as its server's client would send them.
//!
//! Comments that servers execute (`/*!50003 ..*/`, MariaDB's `/*M!..*/`) are resolved here as the server with
//! the version in [`Grammar`] would: the part that it would execute is in the statement without the marks,
//! and the rest is removed. So a check of a statement sees what the server will see. Other comments within
//! statements stay, because stored programs keep theirs.
//!
//! Invariants: memory is bounded by the longest statement allowed; a statement that is returned was ended by
//! its delimiter; each byte of the input is examined a bounded number of times.

use std::io::{self, Read};

use thiserror::Error;

use crate::{
    Flavor,
    sql::{Modes, begins_line_comment},
};

/// Bytes to read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// This many bytes decide what begins at a position.
const LOOK_BYTES: usize = 64;
/// Most bytes kept of a comment.
const COMMENT_BYTES_MAX: usize = 64 << 10;
/// Longest delimiter.
const DELIMITER_BYTES_MAX: usize = 32;
/// Longest line with a `DELIMITER` command.
const COMMAND_BYTES_MAX: usize = 256;
/// Version marks that MariaDB does not execute: they are MySQL's, and may mean something else.
const MYSQL_ONLY: std::ops::RangeInclusive<u32> = 50_700..=99_999;

/// Why a dump cannot be read.
#[derive(Debug, Error)]
pub enum DumpError {
    /// The input cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The dump ends within something.
    #[error("it ends within {what} that begins in line {line}")]
    Unended {
        /// What it ends within.
        what: &'static str,
        /// The line where that begins.
        line: u64,
    },
    /// A statement is too long.
    #[error("the statement that begins in line {line} is longer than {bytes_max} bytes")]
    TooLong {
        /// The line where the statement begins.
        line: u64,
        /// The bound.
        bytes_max: usize,
    },
    /// `DELIMITER` without a delimiter, or with an unusable one.
    #[error("line {line} has a DELIMITER command without a usable delimiter")]
    Delimiter {
        /// The line of the command.
        line: u64,
    },
}

/// How a server reads a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grammar {
    /// MySQL or MariaDB.
    pub flavor: Flavor,
    /// Its version as in comments: 10.11.19 is 101119, 9.7.4 is 90704.
    pub version: u32,
}

/// What ends a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The delimiter, as for the servers' clients.
    Delimiter,
    /// A semicolon at the end of a line, as for `myloader`.
    Line,
}

/// A piece of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A statement, without its delimiter.
    Statement {
        /// The text to execute.
        text: &'a [u8],
        /// The line where it begins.
        line: u64,
    },
    /// A comment between statements, with its marks; the end of a very long one is cut off.
    Comment {
        /// Its text.
        text: &'a [u8],
        /// The line where it begins.
        line: u64,
    },
}

/// Reads a dump.
pub struct DumpReader<R> {
    input: R,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    is_at_end: bool,
    line: u64,
    grammar: Grammar,
    modes: Modes,
    ending: Ending,
    delimiter: Vec<u8>,
    /// Bytes at which something other than plain text may begin.
    is_special: [bool; 256],
    bytes_max: usize,
    out: Vec<u8>,
    /// Whether the position is within a comment that is executed.
    is_executed: bool,
    /// The line where the current piece begins.
    begin_line: u64,
}

impl<R: Read> DumpReader<R> {
    /// A reader at the beginning of a dump. Statements may have up to `bytes_max` bytes.
    pub fn new(input: R, grammar: Grammar, ending: Ending, bytes_max: usize) -> Self {
        let mut reader = Self {
            input,
            buffer: vec![0; BUFFER_BYTES],
            at: 0,
            end: 0,
            is_at_end: false,
            line: 1,
            grammar,
            modes: Modes::default(),
            ending,
            delimiter: Vec::new(),
            is_special: [false; 256],
            bytes_max,
            out: Vec::new(),
            is_executed: false,
            begin_line: 1,
        };
        reader.set_delimiter(b";");
        reader
    }

    /// Sets what quotes mean from the next statement on.
    pub fn set_modes(&mut self, modes: Modes) {
        self.modes = modes;
    }

    fn set_delimiter(&mut self, delimiter: &[u8]) {
        self.is_special = [false; 256];
        let begin = delimiter.first().copied().unwrap_or(b';');
        for byte in [b'\'', b'"', b'`', b'#', b'-', b'/', b'*', begin] {
            self.is_special[usize::from(byte)] = true;
        }
        self.delimiter = delimiter.to_vec();
    }

    /// The next piece; `None` at the end, after the last delimiter.
    #[allow(clippy::should_implement_trait, reason = "a piece lives until the next")]
    pub fn next(&mut self) -> Result<Option<Piece<'_>>, DumpError> {
        self.out.clear();
        self.is_executed = false;
        loop {
            let is_between = self.is_between();
            if is_between {
                self.skip_blank()?;
                self.begin_line = self.line;
            }
            self.look()?;
            let rest = self.rest();
            let Some(first) = rest.first().copied() else {
                let line = self.begin_line;
                return if is_between {
                    Ok(None)
                } else {
                    Err(DumpError::Unended { what: "a statement", line })
                };
            };
            if is_between && self.take_delimiter_command()? {
                continue;
            }
            if !self.is_executed && self.is_at_delimiter() {
                self.skip(if self.ending == Ending::Line { 1 } else { self.delimiter.len() });
                let length = self.out.trim_ascii_end().len();
                self.out.truncate(length);
                if self.out.is_empty() {
                    continue;
                }
                let text = self.out.trim_ascii_start();
                return Ok(Some(Piece::Statement { text, line: self.begin_line }));
            }
            let rest = self.rest();
            match first {
                b'\'' | b'"' | b'`' => self.copy_quoted(first)?,
                b'#' => {
                    if self.line_comment(is_between)? {
                        return Ok(Some(self.comment()));
                    }
                }
                b'-' if is_line_comment(rest, is_between) => {
                    if self.line_comment(is_between)? {
                        return Ok(Some(self.comment()));
                    }
                }
                b'/' if rest.starts_with(b"/*") => {
                    if self.block_comment(is_between)? {
                        return Ok(Some(self.comment()));
                    }
                }
                b'*' if self.is_executed && rest.starts_with(b"*/") => {
                    self.skip(2);
                    self.is_executed = false;
                    self.separate();
                }
                _ => {
                    let special = |byte: &u8| self.is_special[usize::from(*byte)];
                    let length = rest[1..].iter().position(special).map_or(rest.len(), |at| at + 1);
                    self.copy(length)?;
                }
            }
        }
    }

    /// Whether the position is between statements: nothing of the next one has been read.
    fn is_between(&self) -> bool {
        self.out.is_empty() && !self.is_executed
    }

    fn comment(&self) -> Piece<'_> {
        Piece::Comment { text: &self.out, line: self.begin_line }
    }

    /// The bytes read and not yet used.
    fn rest(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Makes sure that [`LOOK_BYTES`] are buffered, or all bytes that are left.
    fn look(&mut self) -> io::Result<()> {
        if self.end - self.at >= LOOK_BYTES || self.is_at_end {
            return Ok(());
        }
        self.buffer.copy_within(self.at..self.end, 0);
        self.end -= self.at;
        self.at = 0;
        while self.end < LOOK_BYTES && !self.is_at_end {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.is_at_end = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Skips bytes.
    fn skip(&mut self, count: usize) {
        let bytes = &self.buffer[self.at..self.at + count];
        self.line += lines(bytes);
        self.at += count;
    }

    /// Copies bytes into the statement.
    fn copy(&mut self, count: usize) -> Result<(), DumpError> {
        if self.out.len() + count > self.bytes_max {
            return Err(DumpError::TooLong { line: self.begin_line, bytes_max: self.bytes_max });
        }
        let bytes = &self.buffer[self.at..self.at + count];
        self.line += lines(bytes);
        self.out.extend_from_slice(bytes);
        self.at += count;
        Ok(())
    }

    /// Copies bytes into a comment, up to its limit.
    fn keep(&mut self, count: usize) {
        let room = COMMENT_BYTES_MAX.saturating_sub(self.out.len()).min(count);
        self.out.extend_from_slice(&self.buffer[self.at..self.at + room]);
        self.skip(count);
    }

    fn skip_blank(&mut self) -> io::Result<()> {
        loop {
            self.look()?;
            let blank = self.rest().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            if blank == 0 {
                return Ok(());
            }
            self.skip(blank);
        }
    }

    /// Keeps apart what a mark separated.
    fn separate(&mut self) {
        if self.out.last().is_some_and(|byte| !byte.is_ascii_whitespace()) {
            self.out.push(b' ');
        }
    }

    fn is_at_delimiter(&self) -> bool {
        let rest = self.rest();
        match self.ending {
            Ending::Delimiter => rest.starts_with(&self.delimiter),
            Ending::Line => rest
                .strip_prefix(b";")
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"\n") || rest.starts_with(b"\r\n")),
        }
    }

    /// Takes a `DELIMITER x` command, which is for the client.
    fn take_delimiter_command(&mut self) -> Result<bool, DumpError> {
        const COMMAND: &[u8] = b"delimiter";
        let rest = self.rest();
        let is_command = rest.get(..COMMAND.len()).is_some_and(|word| word.eq_ignore_ascii_case(COMMAND))
            && rest.get(COMMAND.len()).is_some_and(|byte| matches!(byte, b' ' | b'\t'));
        if !is_command {
            return Ok(false);
        }
        let line = self.line;
        self.skip(COMMAND.len());
        let mut command = Vec::new();
        loop {
            self.look()?;
            match self.rest().first() {
                None | Some(b'\n') => break,
                Some(byte) => command.push(*byte),
            }
            if command.len() > COMMAND_BYTES_MAX {
                return Err(DumpError::Delimiter { line });
            }
            self.skip(1);
        }
        let mut words = command.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let delimiter = words.next().unwrap_or_default();
        let is_strange = |byte: &u8| matches!(byte, b'\\' | b'\'' | b'"' | b'`');
        if delimiter.is_empty() || delimiter.len() > DELIMITER_BYTES_MAX || delimiter.iter().any(is_strange) {
            return Err(DumpError::Delimiter { line });
        }
        let delimiter = delimiter.to_vec();
        self.set_delimiter(&delimiter);
        self.ending = Ending::Delimiter;
        Ok(true)
    }

    /// Copies a string or name in quotes.
    fn copy_quoted(&mut self, quote: u8) -> Result<(), DumpError> {
        let line = self.line;
        let has_backslashes = self.modes.has_backslashes(quote);
        let ends = |byte: &u8| *byte == quote || (has_backslashes && *byte == b'\\');
        self.copy(1)?;
        loop {
            self.look()?;
            let rest = self.rest();
            if rest.is_empty() {
                return Err(DumpError::Unended { what: "a quoted value or name", line });
            }
            match rest.iter().position(ends) {
                None => {
                    let length = rest.len();
                    self.copy(length)?;
                }
                Some(0) => {
                    let next = rest.get(1).copied();
                    if rest[0] == b'\\' {
                        let length = rest.len().min(2);
                        self.copy(length)?;
                    } else if next == Some(quote) {
                        self.copy(2)?;
                    } else {
                        return self.copy(1);
                    }
                }
                Some(length) => self.copy(length)?,
            }
        }
    }

    /// Reads a comment up to the end of the line; returns whether it is a piece of its own.
    fn line_comment(&mut self, is_between: bool) -> Result<bool, DumpError> {
        loop {
            self.look()?;
            let rest = self.rest();
            let end = rest.iter().position(|byte| *byte == b'\n');
            let length = end.unwrap_or(rest.len());
            if is_between {
                self.keep(length);
            } else {
                self.copy(length)?;
            }
            if end.is_some() || self.rest().is_empty() && self.is_at_end {
                return Ok(is_between);
            }
        }
    }

    /// Reads a `/* */` comment; returns whether it is a piece of its own.
    fn block_comment(&mut self, is_between: bool) -> Result<bool, DumpError> {
        let line = self.line;
        match self.executed_from() {
            Executed::No => {
                // The two marks may not share the star.
                if is_between {
                    self.keep(2);
                } else {
                    self.copy(2)?;
                }
                loop {
                    let (length, is_end) = self.comment_end(line)?;
                    if is_between {
                        self.keep(length);
                    } else {
                        self.copy(length)?;
                    }
                    if is_end {
                        return Ok(is_between);
                    }
                }
            }
            Executed::From(mark_bytes) => {
                self.skip(mark_bytes);
                self.is_executed = true;
                self.separate();
            }
            Executed::Never => {
                self.skip(2);
                self.skip_unexecuted(line)?;
                self.separate();
            }
        }
        Ok(false)
    }

    /// Whether the comment that begins here is executed.
    fn executed_from(&self) -> Executed {
        let rest = self.rest();
        let is_own = self.grammar.flavor == Flavor::MariaDb && rest.starts_with(b"/*M!");
        if !is_own && !rest.starts_with(b"/*!") {
            return Executed::No;
        }
        let mark_bytes = if is_own { 4 } else { 3 };
        let digits = rest[mark_bytes..].iter().take(6).take_while(|byte| byte.is_ascii_digit()).count();
        if digits < 5 {
            return Executed::From(mark_bytes);
        }
        let number = &rest[mark_bytes..mark_bytes + digits];
        let version = number.iter().fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
        let is_foreign = self.grammar.flavor == Flavor::MariaDb && !is_own && MYSQL_ONLY.contains(&version);
        if version <= self.grammar.version && !is_foreign {
            Executed::From(mark_bytes + digits)
        } else {
            Executed::Never
        }
    }

    /// The bytes up to and including the end of a comment, as far as they are buffered, and whether the end
    /// is among them.
    fn comment_end(&mut self, line: u64) -> Result<(usize, bool), DumpError> {
        self.look()?;
        let rest = self.rest();
        if let Some(at) = rest.windows(2).position(|pair| pair == b"*/") {
            return Ok((at + 2, true));
        }
        if self.is_at_end {
            return Err(DumpError::Unended { what: "a comment", line });
        }
        // The last byte may be the first of the end mark.
        Ok((rest.len() - 1, false))
    }

    /// Skips a comment that is not executed, including comments within it, one level deep, as servers do.
    fn skip_unexecuted(&mut self, line: u64) -> Result<(), DumpError> {
        let mut is_within = false;
        loop {
            self.look()?;
            let rest = self.rest();
            let is_mark = |pair: &[u8]| pair == b"*/" || (!is_within && pair == b"/*");
            match rest.windows(2).position(is_mark) {
                Some(at) => {
                    let is_end = rest[at] == b'*';
                    self.skip(at + 2);
                    match (is_end, is_within) {
                        (true, false) => return Ok(()),
                        (true, true) => is_within = false,
                        (false, _) => is_within = true,
                    }
                }
                None if self.is_at_end => return Err(DumpError::Unended { what: "a comment", line }),
                None => {
                    let length = rest.len() - 1;
                    self.skip(length);
                }
            }
        }
    }
}

/// Whether a comment's content is executed.
enum Executed {
    /// An ordinary comment.
    No,
    /// Executed; the marks take this many bytes.
    From(usize),
    /// Another server would execute it.
    Never,
}

/// Servers require a blank after two dashes; their clients do not where a statement could begin.
fn is_line_comment(rest: &[u8], is_between: bool) -> bool {
    begins_line_comment(rest) || is_between && rest.starts_with(b"--")
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARIADB: Grammar = Grammar { flavor: Flavor::MariaDb, version: 101_119 };
    const MYSQL: Grammar = Grammar { flavor: Flavor::MySql, version: 90_704 };

    /// Returns its bytes one at a time, so that everything is cut everywhere.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(1).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn read(text: &[u8], grammar: Grammar, ending: Ending) -> Result<Vec<(bool, String, u64)>, String> {
        let read = |input: &mut dyn Read| {
            let mut reader = DumpReader::new(input, grammar, ending, 1 << 20);
            let mut pieces = Vec::new();
            while let Some(piece) = reader.next().map_err(|error| error.to_string())? {
                let (is_statement, text, line) = match piece {
                    Piece::Statement { text, line } => (true, text, line),
                    Piece::Comment { text, line } => (false, text, line),
                };
                pieces.push((is_statement, String::from_utf8_lossy(text).into_owned(), line));
            }
            Ok(pieces)
        };
        let pieces = read(&mut &text[..]);
        assert_eq!(pieces, read(&mut Slow(text)));
        pieces
    }

    fn statements(text: &str, grammar: Grammar) -> Vec<String> {
        let pieces = read(text.as_bytes(), grammar, Ending::Delimiter).unwrap();
        pieces.into_iter().filter(|it| it.0).map(|it| it.1).collect()
    }

    /// Delimiters end statements, except within quotes and comments.
    #[test]
    fn statements_are_parted() {
        for (text, wanted) in [
            ("a; b ;\n;;c;", &["a", "b", "c"][..]),
            ("SELECT ';', \";\", `;`;", &["SELECT ';', \";\", `;`"]),
            (r"'\';' ; 'a''; b';", &[r"'\';'", "'a''; b'"]),
            ("`\\`; x;", &["`\\`", "x"]),
            ("a -- ; '\n; b # ; '\n; c /* ; ' */;", &["a -- ; '", "b # ; '", "c /* ; ' */"]),
            ("SELECT 5--1; -- no\nx;", &["SELECT 5--1", "x"]),
            (
                "DELIMITER ;;\na; b;;\ndelimiter //\nc ; /* // */ d //\nDELIMITER ;\ne;",
                &["a; b", "c ; /* // */ d", "e"],
            ),
            ("DELIMITER $$\nx$y $$\n", &["x$y"]),
            ("x/**/; y;", &["x/**/", "y"]),
        ] {
            assert_eq!(statements(text, MYSQL), wanted, "{text}");
        }
    }

    /// A statement contains what a server would execute of a comment, and nothing else of it.
    #[test]
    fn comments_are_executed_as_servers_do() {
        for (text, mariadb, mysql) in [
            ("/*!40101 SET x */;", Some("SET x"), Some("SET x")),
            (
                "/*!50003 CREATE*/ /*!50017 DEFINER=a*/ /*!50003 TRIGGER t; */;",
                Some("CREATE   DEFINER=a   TRIGGER t;"),
                Some("CREATE   DEFINER=a   TRIGGER t;"),
            ),
            ("a/*!80016 b*/c;", Some("a c"), Some("a  b c")),
            ("a /*!100100 b*/ c;", Some("a  b  c"), Some("a  c")),
            ("a /*M!100100 b*/ c;", Some("a  b  c"), Some("a /*M!100100 b*/ c")),
            ("/*!999999 SHUTDOWN */;", None, None),
            ("/*!999999 x */ SHUTDOWN;", Some("SHUTDOWN"), Some("SHUTDOWN")),
            ("/*! x*/;", Some("x"), Some("x")),
            ("/*!40101 a /* b */ c */;", Some("a /* b */ c"), Some("a /* b */ c")),
            ("/*!999999 a /* b */ c */ d;", Some("d"), Some("d")),
            ("/*!40101 '*/' */;", Some("'*/'"), Some("'*/'")),
        ] {
            let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            for (grammar, wanted) in [(MARIADB, mariadb), (MYSQL, mysql)] {
                let found: Vec<String> = statements(text, grammar).iter().map(|it| squeeze(it)).collect();
                let wanted: Vec<String> = wanted.iter().map(|it| squeeze(it)).collect();
                assert_eq!(found, wanted, "{text} {grammar:?}");
            }
        }
    }

    /// Comments between statements are returned, with the lines where they begin.
    #[test]
    fn comments_are_told() {
        let text = b"/*M!999999\\- enable the sandbox mode */ \n-- MariaDB dump\n\n/* SET x; */\na\nb;\n#c";
        let pieces = read(text, MARIADB, Ending::Delimiter).unwrap();
        let wanted =
            [(false, "-- MariaDB dump", 2), (false, "/* SET x; */", 4), (true, "a\nb", 5), (false, "#c", 7)];
        assert_eq!(pieces, wanted.map(|(is, text, line)| (is, text.to_owned(), line)));
    }

    /// In mydumper's files, statements end with the line, and semicolons within lines do not end them.
    #[test]
    fn lines_end_statements() {
        let text = b"/*!40101 SET NAMES binary*/;\nCREATE p BEGIN a; b; \n END;\nINSERT 'x;\ny'\n;\r\nz;";
        let pieces = read(text, MARIADB, Ending::Line).unwrap();
        let found: Vec<&str> = pieces.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(found, ["SET NAMES binary", "CREATE p BEGIN a; b; \n END", "INSERT 'x;\ny'", "z"]);
    }

    /// Truncated input is not taken for complete; a statement that is too long is named.
    #[test]
    fn what_does_not_end() {
        for (text, what) in [
            ("a;\nb", "a statement that begins in line 2"),
            ("a;\n'b;", "a quoted value or name that begins in line 2"),
            ("/* b;", "a comment that begins in line 1"),
            ("/*!40101 b;", "a statement that begins in line 1"),
            ("/*!999999 b;", "a comment that begins in line 1"),
            ("\n\nDELIMITER  \n", "line 3 has a DELIMITER command"),
        ] {
            let error = read(text.as_bytes(), MYSQL, Ending::Delimiter).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
        let mut reader = DumpReader::new(&b"a;\nbcdefgh;"[..], MYSQL, Ending::Delimiter, 5);
        reader.next().unwrap();
        assert!(matches!(reader.next(), Err(DumpError::TooLong { line: 2, bytes_max: 5 })));
    }

    /// Quote modes apply from the next statement on.
    #[test]
    fn modes_of_quotes() {
        let text = b"SET x; 'a\\'; b; \"c\\\";";
        let mut reader = DumpReader::new(&text[..], MYSQL, Ending::Delimiter, 100);
        reader.next().unwrap();
        reader.set_modes(Modes { no_backslash_escapes: true, ansi_quotes: true });
        let mut found = Vec::new();
        while let Some(Piece::Statement { text, .. }) = reader.next().unwrap() {
            found.push(String::from_utf8_lossy(text).into_owned());
        }
        assert_eq!(found, ["'a\\'", "b", "\"c\\\""]);
    }

    proptest! {
        /// Any bytes are read to an end, wherever they are cut; and values written as dumps write them come
        /// back whole.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), is_line in any::<bool>()) {
            let ending = if is_line { Ending::Line } else { Ending::Delimiter };
            for grammar in [MARIADB, MYSQL] {
                drop(read(&bytes, grammar, ending));
            }
        }

        #[test]
        fn marks_in_any_order(words in proptest::collection::vec(
            prop::sample::select(vec!["/*", "*/", "/*!40101 ", "/*!999999 ", "/*M!", "'", "\"", "`", "\\", ";", "\n", "-- ", "#", "DELIMITER ", "x", " "]), 0..40
        )) {
            let text = words.concat();
            for grammar in [MARIADB, MYSQL] {
                drop(read(text.as_bytes(), grammar, Ending::Delimiter));
                drop(read(text.as_bytes(), grammar, Ending::Line));
            }
        }

        #[test]
        fn values_come_back(values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8)) {
            let mut text = Vec::new();
            let mut wanted = Vec::new();
            for value in &values {
                let mut statement = b"INSERT INTO t VALUES ('".to_vec();
                for byte in value {
                    match byte {
                        0 => statement.extend(b"\\0"),
                        b'\n' => statement.extend(b"\\n"),
                        b'\'' | b'"' | b'\\' => statement.extend([b'\\', *byte]),
                        _ => statement.push(*byte),
                    }
                }
                statement.extend(b"')");
                text.extend_from_slice(&statement);
                text.extend(b";\n");
                wanted.push(statement);
            }
            let mut reader = DumpReader::new(&text[..], MYSQL, Ending::Delimiter, 1 << 20);
            for wanted in wanted {
                let piece = reader.next().unwrap();
                let is_it = matches!(piece, Some(Piece::Statement { text, .. }) if text == wanted);
                prop_assert!(is_it);
            }
            prop_assert!(reader.next().unwrap().is_none());
        }
    }
}
