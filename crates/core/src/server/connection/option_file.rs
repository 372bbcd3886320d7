//! Option files, read as the servers' own tools do.
//!
//! The caller names the files; this module never looks into a home directory. Later files and later lines
//! win. Option names are compared with dashes instead of underscores, and without a `loose-` prefix.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::secret::Secret;

/// The groups that apply to our client.
pub const CLIENT_GROUPS: [&str; 4] = ["client", "client-server", "client-mariadb", "holdfast"];

/// Deepest chain of `!include`s, as in the servers' tools.
const INCLUDE_DEPTH_MAX: usize = 10;
/// Longest option file read.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// Why an option file cannot be used.
#[derive(Debug, Error)]
pub enum OptionFileError {
    /// A file or directory that must be there cannot be read.
    #[error("cannot read option file {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A line cannot be parsed.
    #[error("{path}:{line}: {problem}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// One option as found in a file.
#[derive(Clone, Debug)]
struct Entry {
    key: String,
    value: Option<Secret>,
    origin: String,
}

/// The options of some groups, from one or more files.
#[derive(Clone, Debug, Default)]
pub struct OptionFile {
    entries: Vec<Entry>,
    ignored: Vec<PathBuf>,
}

impl OptionFile {
    /// Reads the system's default files, which may be missing, in this order.
    pub fn read_defaults<P: AsRef<Path>>(
        paths: &[P],
        groups: &[&str],
    ) -> Result<OptionFile, OptionFileError> {
        let mut reader = Reader { groups, found: OptionFile::default() };
        for path in paths {
            reader.file(path.as_ref(), Missing::Accepted, 0)?;
        }
        Ok(reader.found)
    }

    /// Reads one file, which must exist: `--defaults-file`.
    pub fn read(path: &Path, groups: &[&str]) -> Result<OptionFile, OptionFileError> {
        let mut reader = Reader { groups, found: OptionFile::default() };
        reader.file(path, Missing::Refused, 0)?;
        Ok(reader.found)
    }

    /// Adds the options of `later`, which take precedence: `--defaults-extra-file`.
    pub fn append(&mut self, later: OptionFile) {
        self.entries.extend(later.entries);
        self.ignored.extend(later.ignored);
    }

    /// The last value of `key` (spelled with dashes). `Some(None)` is an option without a value, such as
    /// `ssl`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Option<&str>> {
        self.last(key).map(|entry| entry.value.as_ref().map(Secret::reveal))
    }

    /// Where the last value of `key` was found, as `file:line`.
    #[must_use]
    pub fn origin(&self, key: &str) -> Option<&str> {
        self.last(key).map(|entry| entry.origin.as_str())
    }

    /// The keys in the order in which they were found.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Files that were skipped because anyone may write to them. The servers' tools skip them too.
    #[must_use]
    pub fn ignored(&self) -> &[PathBuf] {
        &self.ignored
    }

    fn last(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().rev().find(|entry| entry.key == key)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Accepted,
    Refused,
}

struct Reader<'a> {
    groups: &'a [&'a str],
    found: OptionFile,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, missing: Missing, depth: usize) -> Result<(), OptionFileError> {
        let read_error = |error| OptionFileError::Read { path: path.to_owned(), error };
        let meta = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && missing == Missing::Accepted => {
                return Ok(());
            }
            other => other.map_err(read_error)?,
        };
        const OTHERS_MAY_WRITE: u32 = 0o002;
        if meta.is_file() && meta.mode() & OTHERS_MAY_WRITE != 0 {
            self.found.ignored.push(path.to_owned());
            return Ok(());
        }
        // Other than a regular file (a pipe from a command, say), the size may not be known in advance.
        let mut bytes = Vec::new();
        let opened = fs::File::open(path).map_err(read_error)?;
        opened.take(FILE_SIZE_MAX + 1).read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 > FILE_SIZE_MAX {
            return Err(read_error(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB")));
        }
        self.text(path, &bytes, depth)
    }

    fn text(&mut self, path: &Path, bytes: &[u8], depth: usize) -> Result<(), OptionFileError> {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        let mut group = Group::None;
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let syntax =
                |problem| OptionFileError::Syntax { path: path.to_owned(), line: index + 1, problem };
            let line = std::str::from_utf8(line).map_err(|_| syntax("not UTF-8"))?.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(directive) = line.strip_prefix('!') {
                self.directive(path, directive, depth, &syntax)?;
            } else if let Some(header) = line.strip_prefix('[') {
                let (name, _) =
                    header.split_once(']').ok_or_else(|| syntax("group without a closing bracket"))?;
                group = if self.groups.contains(&name.trim()) { Group::Ours } else { Group::Other };
            } else if group == Group::None {
                return Err(syntax("option before the first group"));
            } else if group == Group::Ours {
                let (key, value) = option(line);
                if key.is_empty() {
                    return Err(syntax("value without an option"));
                }
                let origin = format!("{}:{}", path.display(), index + 1);
                self.found.entries.push(Entry { key, value, origin });
            }
        }
        Ok(())
    }

    fn directive(
        &mut self,
        path: &Path,
        directive: &str,
        depth: usize,
        syntax: &dyn Fn(&'static str) -> OptionFileError,
    ) -> Result<(), OptionFileError> {
        let (word, argument) = directive.split_once(char::is_whitespace).unwrap_or((directive, ""));
        let argument = argument.trim();
        if argument.is_empty() || !matches!(word, "include" | "includedir") {
            return Err(syntax("expected !include FILE or !includedir DIRECTORY"));
        }
        if depth == INCLUDE_DEPTH_MAX {
            return Err(syntax("too many levels of !include"));
        }
        // The servers' tools resolve it from the working directory; people mean it relative to this file.
        let target = path.parent().unwrap_or(Path::new("")).join(argument);
        if word == "include" {
            return self.file(&target, Missing::Accepted, depth + 1);
        }
        let read_error = |error| OptionFileError::Read { path: target.clone(), error };
        let mut files = Vec::new();
        for entry in fs::read_dir(&target).map_err(read_error)? {
            let file = entry.map_err(read_error)?.path();
            if file.extension().is_some_and(|extension| extension == "cnf") {
                files.push(file);
            }
        }
        files.sort();
        files.iter().try_for_each(|file| self.file(file, Missing::Accepted, depth + 1))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    None,
    Ours,
    Other,
}

/// Splits `key = value # comment`.
fn option(line: &str) -> (String, Option<Secret>) {
    let line = without_comment(line);
    let (key, value) = match line.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (line, None),
    };
    let key = key.trim().replace('_', "-");
    let key = key.strip_prefix("loose-").map_or_else(|| key.clone(), str::to_owned);
    (key, value.map(|value| Secret::new(unescaped(unquoted(value.trim())))))
}

/// Cuts at the first `#` that is neither quoted nor escaped.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut escaped = false;
    for (index, c) in line.char_indices() {
        match c {
            '\'' | '"' if !escaped && quote == Some(c) => quote = None,
            '\'' | '"' if !escaped && quote.is_none() => quote = Some(c),
            '#' if !escaped && quote.is_none() => return &line[..index],
            _ => {}
        }
        escaped = quote.is_some() && c == '\\' && !escaped;
    }
    line
}

fn unquoted(value: &str) -> &str {
    for quote in ['\'', '"'] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

/// Resolves the escapes that the servers' tools know; any other backslash is an ordinary character.
fn unescaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('r') => text.push('\r'),
            Some('b') => text.push('\u{8}'),
            Some('s') => text.push(' '),
            Some(c @ ('"' | '\'' | '\\')) => text.push(c),
            Some(other) => text.extend(['\\', other]),
            None => text.push('\\'),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parse(text: &str) -> Result<OptionFile, OptionFileError> {
        let mut reader = Reader { groups: &CLIENT_GROUPS, found: OptionFile::default() };
        reader.text(Path::new("my.cnf"), text.as_bytes(), 0)?;
        Ok(reader.found)
    }

    /// A file without an end is not read forever.
    #[test]
    fn a_device_is_no_option_file() {
        let error = OptionFile::read(Path::new("/dev/zero"), &CLIENT_GROUPS).unwrap_err();
        assert!(std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("1 MiB")));
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_an_answer(lines in proptest::collection::vec("(\\[client\\]|[a-z_-]{0,9} ?=? ?.{0,20}|.{0,30})", 0..20)) {
            let text = lines.join("\n").replace('!', "");
            if let Ok(options) = parse(&text) {
                let _: Vec<_> = options.keys().map(|key| options.get(key)).collect();
            }
        }
    }

    /// Every spelling of one option that the tools accept gives the same key and value.
    #[test]
    fn spellings() {
        for (line, value) in [
            ("ssl_ca=/a/b", Some("/a/b")),
            ("  ssl-ca  =  /a/b  # why", Some("/a/b")),
            ("loose_ssl_ca = \"/a/b\"", Some("/a/b")),
            ("ssl-ca='/a # b'", Some("/a # b")),
            ("ssl-ca=\"a\\\"#b\" # c", Some("a\"#b")),
            ("ssl-ca=a\\sb\\t\\n\\r\\b\\\\c\\xd\\", Some("a b\t\n\r\u{8}\\c\\xd\\")),
            ("ssl-ca=", Some("")),
            ("ssl-ca", None),
            ("ssl-ca=a=b;c", Some("a=b;c")),
            ("ssl-ca=\"", Some("\"")),
        ] {
            let options = parse(&format!("[client]\n{line}\r\n")).unwrap();
            assert_eq!(options.get("ssl-ca"), Some(value), "{line}");
        }
    }

    /// Only our groups count, the last value wins and knows its origin, and values stay out of `Debug`.
    #[test]
    fn groups_and_order() {
        let options = parse(
            "\u{feff}# head\n; head\n[mysqld]\nuser=mysql\n[client]\nuser=one\npassword=hunter2\n\
             [client-mariadb]\nuser = two\n[mysql]\nuser=three\n",
        )
        .unwrap();
        assert_eq!(options.get("user"), Some(Some("two")));
        assert_eq!(options.origin("user"), Some("my.cnf:9"));
        assert_eq!(options.keys().collect::<Vec<_>>(), ["user", "password", "user"]);
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    /// A bad line is reported by file and line.
    #[test]
    fn bad_lines() {
        for (text, message) in [
            ("user=x", "my.cnf:1: option before the first group"),
            ("\n[client", "my.cnf:2: group without a closing bracket"),
            ("[client]\n= x", "my.cnf:2: value without an option"),
            ("!inclde x", "my.cnf:1: expected !include FILE or !includedir DIRECTORY"),
            ("!include", "my.cnf:1: expected !include FILE or !includedir DIRECTORY"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), message);
        }
        let mut reader = Reader { groups: &CLIENT_GROUPS, found: OptionFile::default() };
        let error = reader.text(Path::new("my.cnf"), b"[client]\nuser=\xff", 0).unwrap_err();
        assert_eq!(error.to_string(), "my.cnf:2: not UTF-8");
    }

    /// Includes are followed in order, a circular include ends, and a world-writable file is skipped.
    #[test]
    fn includes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        write("my.cnf", "[client]\nuser=a\nhost=h\n!includedir conf.d\n!include nowhere.cnf\nport=1\n");
        write("conf.d/2.cnf", "[client]\nuser=c\n");
        write("conf.d/1.cnf", "[client]\nuser=b\nsocket=s\n");
        write("conf.d/3.cnf", "[client]\nuser=evil\n");
        write("conf.d/note.txt", "no option file");
        fs::set_permissions(dir.path().join("conf.d/3.cnf"), PermissionsExt::from_mode(0o666)).unwrap();
        let options = OptionFile::read(&dir.path().join("my.cnf"), &CLIENT_GROUPS).unwrap();
        assert_eq!(options.get("user"), Some(Some("c")));
        assert_eq!(options.get("socket"), Some(Some("s")));
        assert_eq!(options.get("port"), Some(Some("1")), "the group goes on after an include");
        assert_eq!(options.ignored(), [dir.path().join("conf.d/3.cnf")]);

        write("circle.cnf", "!include circle.cnf\n");
        let error = OptionFile::read(&dir.path().join("circle.cnf"), &CLIENT_GROUPS).unwrap_err();
        assert!(error.to_string().ends_with("circle.cnf:1: too many levels of !include"), "{error}");
        assert!(OptionFile::read(&dir.path().join("none.cnf"), &CLIENT_GROUPS).is_err());
        let none = OptionFile::read_defaults(&[dir.path().join("none.cnf")], &CLIENT_GROUPS).unwrap();
        assert_eq!(none.keys().count(), 0);
    }

    proptest::proptest! {
        /// Any bytes yield options or an error.
        #[test]
        fn total(bytes: Vec<u8>) {
            let mut reader = Reader { groups: &CLIENT_GROUPS, found: OptionFile::default() };
            let _ = reader.text(Path::new("my.cnf"), &bytes, INCLUDE_DEPTH_MAX);
        }
    }
}
