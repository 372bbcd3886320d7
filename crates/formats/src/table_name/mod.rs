//! Table names in file names.
//!
//! A server stores a name as letters, digits and `_`; every other character of the basic plane is `@` and
//! four hex digits, or `@` and two characters for the letters of some scripts. Names that some systems
//! reserve for devices (`con`, `lpt1`) end in `@@@`. `#` never stands for itself, so it can separate the name
//! of a partition, and begin the names of temporary files. Verified on MariaDB 10.11.19; partitions are
//! lower-case (`#p#`) in MySQL 8 and later.

mod letters;

use std::borrow::Cow;
use std::fmt;

/// Names of devices, which the server avoids as file names on every system.
const RESERVED: [&str; 4] = ["con", "prn", "aux", "nul"];
const RESERVED_NUMBERED: [&str; 2] = ["com", "lpt"];
const RESERVED_SUFFIX: &str = "@@@";

/// The name that `file_name` (one component, without extension or partition) stands for. `None` if the server
/// would not have written it so.
pub fn decode(file_name: &str) -> Option<String> {
    let body = file_name.strip_suffix(RESERVED_SUFFIX).unwrap_or(file_name);
    let mut name = String::with_capacity(body.len());
    let mut rest = body.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (character, after) = match first {
            b'@' => escaped(after)?,
            plain => (char::from(plain), after),
        };
        name.push(character);
        rest = after;
    }
    // Accepts only the spelling that `encode` gives: one spelling for each name, hence no two files for one
    // name.
    (encode(&name)? == file_name).then_some(name)
}

/// How the server writes `name` as one component of a path. `None` if it has characters that names cannot
/// have: those outside of the basic plane.
pub fn encode(name: &str) -> Option<String> {
    let mut file_name = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '0'..='9' | 'A'..='Z' | 'a'..='z' | '_' => file_name.push(character),
            other => {
                file_name.push('@');
                match letters::code(other) {
                    Some(code) => file_name.push_str(code),
                    None => file_name.push_str(&format!("{:04x}", u16::try_from(u32::from(other)).ok()?)),
                }
            }
        }
    }
    if is_reserved(name) {
        file_name.push_str(RESERVED_SUFFIX);
    }
    Some(file_name)
}

/// The name for people: decoded, or as it is if it cannot be decoded.
pub fn display_name(file_name: &str) -> Cow<'_, str> {
    decode(file_name).map_or(Cow::Borrowed(file_name), Cow::Owned)
}

/// Decodes what follows an `@`: the character, and the bytes after it.
fn escaped(bytes: &[u8]) -> Option<(char, &[u8])> {
    if let Some((code, rest)) = bytes.split_at_checked(2)
        && let Some(letter) = letters::letter(code)
    {
        return Some((letter, rest));
    }
    let (digits, rest) = bytes.split_at_checked(4)?;
    let code = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some((char::from_u32(code)?, rest))
}

fn is_reserved(name: &str) -> bool {
    let with_number = |device: &&str| {
        name.split_at_checked(device.len()).is_some_and(|(head, number)| {
            head.eq_ignore_ascii_case(device) && matches!(number.as_bytes(), [b'1'..=b'9'])
        })
    };
    RESERVED.iter().any(|device| name.eq_ignore_ascii_case(device))
        || RESERVED_NUMBERED.iter().any(with_number)
}

/// The table that a file belongs to, by its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableFile {
    /// The database.
    pub database: String,
    /// The table; for a temporary file of the server its own name (`#sql-alter-136c-10c`).
    pub table: String,
    /// The partition, and the subpartition if there are any.
    pub partition: Option<Partition>,
    /// The number of the index whose rows these are, as written: MariaDB keeps a vector index in a table of its
    /// own, in files `t#i#01.ibd` beside those of `t` (verified on 11.8.9).
    pub index: Option<String>,
    /// The part after the first dot of the file's name: `ibd`.
    pub extension: String,
}

/// A part of a partitioned table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The partition's name.
    pub name: String,
    /// The subpartition's name.
    pub subpartition: Option<String>,
}

impl TableFile {
    /// From the last two components of a path, `./db/t@002d1#P#p0.ibd`. `None` if there is no directory that
    /// could be a database, as for `ibdata1`. Every path with one gives an answer: parts that cannot be
    /// decoded stay as they are.
    pub fn from_path(path: &str) -> Option<TableFile> {
        let (directory, file) = path.rsplit_once('/')?;
        let database = directory.rsplit('/').next()?;
        if matches!(database, "" | "." | "..") || file.is_empty() {
            return None;
        }
        let (stem, extension) = file.split_once('.').unwrap_or((file, ""));
        let (stem, index) = split_index(stem);
        let (table, partition) = split_partition(stem);
        Some(TableFile {
            database: display_name(database).into_owned(),
            table: display_name(table).into_owned(),
            partition,
            index,
            extension: extension.to_owned(),
        })
    }

    /// Whether the server made the file for a statement that is running, or that was interrupted.
    pub fn is_temporary(&self) -> bool {
        self.table.starts_with("#sql")
    }
}

/// Whether a table is the server's own, for the full-text indexes of a table whose id is in its name:
/// `FTS_<table>_DELETED`, `FTS_<table>_<index>_INDEX_1`, in lower case in MySQL 8 and later, with ids of 16 digits. An
/// id is never given again. The server removes such tables with their table, and when it recovers those of an index
/// that was being added, also if the ALTER has no other file (verified on MariaDB 10.11.19).
pub fn is_of_fulltext_index(table: &str) -> bool {
    const OF_TABLE: [&str; 5] =
        ["deleted", "deleted_cache", "being_deleted", "being_deleted_cache", "config"];
    let name = table.to_ascii_lowercase();
    let Some(rest) = name.strip_prefix("fts_").and_then(after_id) else { return false };
    let of_index =
        |rest: &str| matches!(rest.strip_prefix("index_"), Some("1" | "2" | "3" | "4" | "5" | "6"));
    OF_TABLE.contains(&rest) || after_id(rest).is_some_and(of_index)
}

/// What follows an InnoDB id of 16 digits, in lower case, and `_`.
fn after_id(text: &str) -> Option<&str> {
    let (digits, rest) = text.split_at_checked(16)?;
    let is_id = digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    rest.strip_prefix('_').filter(|_| is_id)
}

impl fmt::Display for TableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.table)?;
        match &self.partition {
            None => {}
            Some(Partition { name, subpartition: None }) => write!(f, " partition {name}")?,
            Some(Partition { name, subpartition: Some(sub) }) => {
                write!(f, " partition {name} subpartition {sub}")?;
            }
        }
        self.index.iter().try_for_each(|index| write!(f, " index {index}"))
    }
}

/// `t#P#p0#SP#s0` is subpartition s0 of partition p0 of t.
fn split_partition(stem: &str) -> (&str, Option<Partition>) {
    let Some((table, rest)) = split_at_marker(stem, "#p#") else { return (stem, None) };
    let (name, subpartition) = match split_at_marker(rest, "#sp#") {
        Some((name, subpartition)) => (name, Some(display_name(subpartition).into_owned())),
        None => (rest, None),
    };
    (table, Some(Partition { name: display_name(name).into_owned(), subpartition }))
}

/// `t#i#01` is index 01 of t.
fn split_index(stem: &str) -> (&str, Option<String>) {
    match split_at_marker(stem, "#i#") {
        Some((table, index)) if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => {
            (table, Some(index.to_owned()))
        }
        _ => (stem, None),
    }
}

/// Splits at the first `marker`, in lower or upper case, that is not at the very start.
fn split_at_marker<'a>(text: &'a str, marker: &str) -> Option<(&'a str, &'a str)> {
    let at = (1..text.len()).find(|&at| {
        text.get(at..at + marker.len()).is_some_and(|found| found.eq_ignore_ascii_case(marker))
    })?;
    Some((&text[..at], &text[at + marker.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_as_a_server_wrote_them() {
        for (name, file_name) in [
            ("t-1", "t@002d1"),
            ("é#a-ü", "@0p@0023a@002d@1o"),
            ("p é", "p@0020@0p"),
            ("con", "con@@@"),
            ("Aux", "Aux@@@"),
            ("com1", "com1@@@"),
            ("com0", "com0"),
            ("conx", "conx"),
            ("clock$", "clock@0024"),
            ("Ā", "@1S"),
            ("名前", "@540d@524d"),
        ] {
            assert_eq!(encode(name).as_deref(), Some(file_name));
            assert_eq!(decode(file_name).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_no_server_wrote_stays_raw() {
        for raw in
            ["#sql-ib12", "a b", "@", "@00", "@d800", "@0041", "@002D", "con", "x@@@", "é", "a@002", "@zz"]
        {
            assert_eq!(decode(raw), None, "{raw}");
            assert_eq!(display_name(raw), raw);
        }
        assert_eq!(encode("😀"), None);
    }

    #[test]
    fn every_letter_has_its_own_code() {
        let coded = (0x80..=0xFFFF).filter_map(char::from_u32).filter(|&c| letters::code(c).is_some());
        let mut count = 0;
        for letter in coded {
            assert_eq!(letters::letter(letters::code(letter).unwrap().as_bytes()), Some(letter));
            count += 1;
        }
        assert_eq!(count, 1510);
    }

    fn shown(path: &str) -> Option<String> {
        TableFile::from_path(path).map(|file| file.to_string())
    }

    #[test]
    fn paths_name_tables() {
        for (path, name) in [
            ("./db/t@002d1.ibd", "db.t-1"),
            ("/abs/dir/a@002db/t.ibd", "a-b.t"),
            ("db/nul@@@#P#p0.ibd", "db.nul partition p0"),
            ("./n/sp#P#p0#SP#p0sp1.ibd", "n.sp partition p0 subpartition p0sp1"),
            ("./n/t@0020p#p#p@002d1.ibd", "n.t p partition p-1"),
            ("./n/t#p#p1#sp#s2.ibd", "n.t partition p1 subpartition s2"),
            ("./n/v@002d1#i#01.ibd", "n.v-1 index 01"),
            ("./n/#sql-alter-4-8#i#01.ibd", "n.#sql-alter-4-8 index 01"),
            ("./n/v#i#.ibd", "n.v#i#"),
            ("./n/#sql-alter-136c-10c.ibd", "n.#sql-alter-136c-10c"),
            ("./n/odd name.frm", "n.odd name"),
            ("./n/db.opt", "n.db"),
            ("./n/noextension", "n.noextension"),
        ] {
            assert_eq!(shown(path).as_deref(), Some(name));
        }
        for path in ["ibdata1", "./ibdata1", "/ibdata1", "../x.ibd", "db/", ""] {
            assert_eq!(shown(path), None, "{path}");
        }
        assert!(TableFile::from_path("./n/#sql-ib5.ibd").unwrap().is_temporary());
        assert!(!TableFile::from_path("./n/t.ibd").unwrap().is_temporary());
    }

    #[test]
    fn tables_of_fulltext_indexes() {
        for (table, expected) in [
            ("FTS_0000000000000021_CONFIG", true),
            ("FTS_00000000000000af_BEING_DELETED_CACHE", true),
            ("FTS_0000000000000021_0000000000000030_INDEX_6", true),
            ("fts_0000000000000021_0000000000000030_index_6", true),
            ("fts_00000000000000af_being_deleted", true),
            ("FTS_0000000000000021_0000000000000030_INDEX_7", false),
            ("FTS_0000000000000021_INDEX_1", false),
            ("FTS_000000000000021_CONFIG", false),
            ("FTS_mine", false),
            ("t", false),
        ] {
            assert_eq!(is_of_fulltext_index(table), expected, "{table}");
        }
    }

    proptest! {
        #[test]
        fn names_survive_the_round_trip(name in "[\\x01-\\x{D7FF}\\x{E000}-\\x{FFFF}]{0,20}") {
            let file_name = encode(&name).unwrap();
            prop_assert!(file_name.is_ascii() && !file_name.contains(['/', '#', '.']));
            prop_assert_eq!(decode(&file_name), Some(name));
        }

        #[test]
        fn any_text_gives_an_answer(text in prop_oneof![".*", "[@#./pPsS0-9a-f]{0,30}"]) {
            if let Some(name) = decode(&text) {
                prop_assert_eq!(encode(&name), Some(text.clone()));
            }
            TableFile::from_path(&text);
        }
    }
}
