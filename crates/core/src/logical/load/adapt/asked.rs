//! Makes the changes that the user asks for: engines of tables, and the character sets that text is stored
//! in.
//!
//! Rows keep their meaning. The server converts text as it takes it in, and returns it in the old character
//! set when rows are read again, so that characters which the new one lacks are noticed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use super::{
    super::{
        elements::{Element, ElementKind, TableSql},
        target::Target,
    },
    collations, drop_options, type_word,
};
use crate::{
    error::{Error, ErrorKind},
    logical::{
        catalog::tables::EngineKind,
        sql::{Kind, Token, tokens},
        stored::definition::{ColumnDefinition, Form, Rows, TableDefinition},
    },
};

/// Options that only one engine knows.
const OF_ENGINES: [&str; 12] = [
    "ROW_FORMAT",
    "KEY_BLOCK_SIZE",
    "TRANSACTIONAL",
    "PAGE_CHECKSUM",
    "PAGE_COMPRESSED",
    "PAGE_COMPRESSION_LEVEL",
    "ENCRYPTED",
    "ENCRYPTION_KEY_ID",
    "COMPRESSION",
    "ENCRYPTION",
    "TABLESPACE",
    "AUTOEXTEND_SIZE",
];
/// Character sets with every character of the others in the first plane. Characters beyond it are written in
/// hex in lists of members.
const UNICODE: [&str; 7] = ["utf8mb4", "utf8mb3", "ucs2", "utf16", "utf16le", "utf32", "gb18030"];
/// Character sets with multi-byte characters: text from another set may take more bytes in these.
const OF_MANY_BYTES: [&str; 15] = [
    "utf8mb4", "utf8mb3", "ucs2", "utf16", "utf16le", "utf32", "gb18030", "gbk", "gb2312", "big5", "sjis",
    "cp932", "ujis", "eucjpms", "euckr",
];
/// Types limited to a number of bytes, and the next larger type.
const WIDER: [(&str, &str); 3] = [("tinytext", "text"), ("text", "mediumtext"), ("mediumtext", "longtext")];

/// One name in place of another: `MyISAM=InnoDB`, `latin1=utf8mb4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The name in the backup.
    pub from: String,
    /// The name on the target.
    pub to: String,
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.from, self.to)
    }
}

impl FromStr for Conversion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_word =
            |word: &str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
        match text.split_once('=') {
            Some((from, to)) if is_word(from) && is_word(to) => {
                Ok(Self { from: from.to_owned(), to: to.to_owned() })
            }
            _ => Err(Error::new(ErrorKind::Usage, format!("{text:?} is not a conversion"))
                .hinted("write MyISAM=InnoDB, or latin1=utf8mb4")),
        }
    }
}

/// All conversions of a load.
#[derive(Clone, Debug, Default)]
pub struct Conversions {
    /// Engines of tables.
    pub engines: Vec<Conversion>,
    /// Character sets of databases, tables and columns.
    pub charsets: Vec<Conversion>,
}

/// The full name of a character set, which may have two names.
pub(super) fn full_name(charset: &str) -> String {
    match charset.to_lowercase().as_str() {
        "utf8" => "utf8mb3".to_owned(),
        other => other.to_owned(),
    }
}

impl Conversions {
    /// What conversions add to the identity of a load; nothing if none are asked for.
    pub(in super::super) fn identity(&self) -> Option<Vec<String>> {
        let all = self.engines.iter().chain(&self.charsets).map(ToString::to_string);
        (!self.engines.is_empty() || !self.charsets.is_empty()).then(|| all.collect())
    }

    /// Refuses conversions that the target cannot make.
    pub(in super::super) fn refuse_unknown(&self, target: &Target) -> Result<(), Error> {
        let refused = |what: String| Err(Error::new(ErrorKind::Usage, format!("the target has no {what}")));
        for Conversion { to, .. } in &self.engines {
            if !target.engines.contains(&to.to_uppercase()) {
                return refused(format!("engine {to} (SHOW ENGINES)"));
            }
            if EngineKind::of(to) == EngineKind::NoRows {
                return Err(Error::new(ErrorKind::Usage, format!("the engine {to} keeps no rows")));
            }
        }
        for all in [&self.engines, &self.charsets] {
            for (at, conversion) in all.iter().enumerate() {
                let of = |it: &Conversion| full_name(&it.from);
                if all[..at].iter().any(|it| of(it) == of(conversion)) {
                    let text = format!("{} is given two conversions", conversion.from);
                    return Err(Error::new(ErrorKind::Usage, text));
                }
            }
        }
        for conversion in &self.charsets {
            for charset in [&conversion.from, &conversion.to] {
                if !target.charsets.contains_key(&full_name(charset)) {
                    return refused(format!("character set {charset} (SHOW CHARACTER SET)"));
                }
            }
            if conversion.to.eq_ignore_ascii_case("binary") {
                return Err(Error::new(ErrorKind::Usage, "text does not become bytes: --charset .. =binary"));
            }
        }
        Ok(())
    }

    /// Refuses conversions that concern nothing that is loaded: a mistyped name must not become a load
    /// without it.
    pub(in super::super) fn refuse_unused(&self, seen: &Seen) -> Result<(), Error> {
        let engine = self.engines.iter().find(|it| !seen.engines.contains(&it.from.to_uppercase()));
        let charset = self.charsets.iter().find(|it| !seen.charsets.contains(&full_name(&it.from)));
        let unused = [engine.map(|it| ("engine", it)), charset.map(|it| ("charset", it))];
        match unused.into_iter().flatten().next() {
            Some((option, unused)) => Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "--{option} {unused}: the backup, as selected, has nothing that uses {}",
                    unused.from
                ),
            )),
            None => Ok(()),
        }
    }

    /// The character set that replaces another.
    fn charset(&self, charset: &str) -> Option<String> {
        let charset = full_name(charset);
        self.charsets.iter().find(|it| full_name(&it.from) == charset).map(|it| full_name(&it.to))
    }

    /// Whether the target stores the text of a column in another character set.
    pub(in super::super) fn concern(&self, column: &ColumnDefinition) -> bool {
        column.form == Form::Text && column.charset.as_deref().and_then(|it| self.charset(it)).is_some()
    }

    /// The collation that replaces another if its character set is replaced: default for default, otherwise
    /// the one that compares most alike.
    pub(super) fn collation(&self, name: &str, target: &Target) -> Option<String> {
        let (from, rest) = name.split_once('_')?;
        let to = self.charset(from)?;
        let of = |charset: &str| target.charsets.get(charset).cloned();
        let from = full_name(from);
        let full = format!("{from}_{rest}");
        if of(&from).is_some_and(|default| default == full) {
            return of(&to);
        }
        let same = format!("{to}_{rest}");
        let is_there = target.collations.contains(&same);
        if is_there { Some(same) } else { collations::nearest(&same, &target.collations) }
    }

    /// Applies the conversions to a table. Returns whether its text keeps its order.
    pub(super) fn table(
        &self,
        sql: &mut TableSql,
        definition: &mut TableDefinition,
        target: &Target,
        notes: &mut Vec<String>,
    ) -> Result<bool, String> {
        self.engine(sql, definition, notes)?;
        if self.charsets.is_empty() {
            return Ok(true);
        }
        let default = charset_of(&sql.tail);
        for element in &mut sql.elements {
            let charset = charset_of(&element.text).or_else(|| default.clone());
            let other =
                charset.filter(|_| element.kind == ElementKind::Column).and_then(|it| self.charset(&it));
            if let Some(other) = &other {
                refuse_members(element, other)?;
            }
            if other.is_some() && element.has_word("GENERATED") {
                let name = element.name.as_deref().unwrap_or_default();
                notes.push(format!("column {name} is computed again, from text in another character set"));
            }
            element.text = self.with_charsets(&element.text, target, notes)?;
        }
        sql.tail = self.with_charsets(&sql.tail, target, notes)?;
        let mut keeps_order = true;
        for column in definition.columns.iter().filter(|column| self.concern(column)) {
            keeps_order = false;
            self.widen(sql, column, notes);
        }
        Ok(keeps_order)
    }

    fn engine(
        &self,
        sql: &mut TableSql,
        definition: &mut TableDefinition,
        notes: &mut Vec<String>,
    ) -> Result<(), String> {
        let from = definition.engine.clone();
        let of_others = from.eq_ignore_ascii_case("MRG_MyISAM");
        if of_others && self.engines.iter().any(|it| it.from.eq_ignore_ascii_case("MyISAM")) {
            return Err("the tables that it merges would no longer be MyISAM".to_owned());
        }
        let Some(Conversion { to, .. }) = self.engines.iter().find(|it| it.from.eq_ignore_ascii_case(&from))
        else {
            return Ok(());
        };
        if definition.rows == Rows::None {
            return Err(format!("its rows are not in the backup, so that {from} cannot become {to}"));
        }
        let is_innodb = to.eq_ignore_ascii_case("InnoDB");
        if is_innodb && !has_leading_counter(sql) {
            return Err("its AUTO_INCREMENT column is not the first column of a key, which InnoDB requires"
                .to_owned());
        }
        sql.tail = with_engine(&sql.tail, to)?;
        drop_options(&mut sql.tail, &OF_ENGINES, notes);
        if !is_innodb {
            sql.elements.retain(|element| {
                let is_kept = element.kind != ElementKind::ForeignKey;
                if !is_kept {
                    let name = element.name.as_deref().unwrap_or_default();
                    notes.push(format!("foreign key {name} is left out: {to} has none"));
                }
                is_kept
            });
        }
        notes.push(format!("engine {from} becomes {to}"));
        definition.engine.clone_from(to);
        Ok(())
    }

    /// Replaces the character sets in a column, key or end of a statement; expressions stay.
    fn with_charsets(&self, sql: &[u8], target: &Target, notes: &mut Vec<String>) -> Result<Vec<u8>, String> {
        let all = tokens(sql);
        let named = named_charsets(&all);
        let mut out = Vec::with_capacity(sql.len());
        for (at, token) in all.iter().enumerate() {
            let name = String::from_utf8_lossy(token.bytes).to_lowercase();
            let (what, other) = match named.get(&at) {
                Some(Named::Charset) => ("character set", self.charset(&name)),
                Some(Named::Collation) => {
                    let is_concerned =
                        name.split_once('_').is_some_and(|(charset, _)| self.charset(charset).is_some());
                    let other = self.collation(&name, target);
                    if is_concerned && other.is_none() {
                        return Err(format!("the target has nothing like the collation {name} there"));
                    }
                    ("collation", other)
                }
                None => ("", None),
            };
            let Some(other) = other else {
                out.extend_from_slice(token.bytes);
                continue;
            };
            notes.push(format!("{what} {name} becomes {other}"));
            out.extend_from_slice(other.as_bytes());
            let is_last = named.range(at + 1..).next().is_none();
            let default = target.charsets.get(&other).filter(|_| what == "character set" && is_last);
            if let Some(collation) = default {
                // The collation of a character set alone may depend on an account's settings.
                out.extend_from_slice(format!(" COLLATE {collation}").as_bytes());
            }
        }
        Ok(out)
    }

    /// Gives a text column room for as many characters as it had, as servers do when they convert a table.
    fn widen(&self, sql: &mut TableSql, column: &ColumnDefinition, notes: &mut Vec<String>) {
        let Some(to) = column.charset.as_deref().and_then(|from| self.charset(from)) else { return };
        if !OF_MANY_BYTES.contains(&to.as_str()) {
            return;
        }
        let is_it = |name: &Option<String>| name.as_deref() == Some(column.name.as_str());
        let mut elements = sql.elements.iter_mut();
        let Some(element) = elements.find(|it| it.kind == ElementKind::Column && is_it(&it.name)) else {
            return;
        };
        let word = type_word(&element.text);
        let Some((_, wider)) = WIDER.iter().find(|(type_name, _)| word.eq_ignore_ascii_case(type_name))
        else {
            return;
        };
        let mut is_done = false;
        let text = tokens(&element.text).into_iter().flat_map(|token| {
            let is_type = !is_done && token.kind == Kind::Word;
            is_done |= is_type;
            if is_type { wider.as_bytes() } else { token.bytes }
        });
        let text: Vec<u8> = text.copied().collect();
        element.text = text;
        notes.push(format!(
            "column {} of {word} becomes {wider}: its characters may take more bytes",
            column.name
        ));
    }
}

/// The engines and character sets found in the loaded part of a backup.
#[derive(Default)]
pub(in super::super) struct Seen {
    engines: BTreeSet<String>,
    charsets: BTreeSet<String>,
}

impl Seen {
    pub(in super::super) fn table(&mut self, definition: &TableDefinition) {
        self.engines.insert(definition.engine.to_uppercase());
        let charsets = definition.columns.iter().filter_map(|column| column.charset.as_deref());
        self.charsets.extend(charsets.map(full_name));
    }

    pub(in super::super) fn collation(&mut self, name: &str) {
        self.charsets.extend(name.split_once('_').map(|(charset, _)| full_name(charset)));
    }
}

/// What a word of a definition names.
enum Named {
    Charset,
    Collation,
}

/// Finds where a definition names character sets and collations, except in expressions.
fn named_charsets(all: &[Token<'_>]) -> BTreeMap<usize, Named> {
    let mut found = BTreeMap::new();
    let mut depth = 0_i32;
    // The word that announces such a name.
    let mut after: Option<String> = None;
    for (at, token) in all.iter().enumerate() {
        depth += i32::from(token.is_symbol(b'(')) - i32::from(token.is_symbol(b')'));
        if token.kind == Kind::Word && depth == 0 {
            let word = String::from_utf8_lossy(token.bytes).to_uppercase();
            match after.as_deref() {
                Some("CHARSET" | "SET") => drop(found.insert(at, Named::Charset)),
                Some("COLLATE") => drop(found.insert(at, Named::Collation)),
                _ => {}
            }
            // `CHARACTER SET`, but not the type of that name.
            let is_set = word == "SET" && after.as_deref() == Some("CHARACTER");
            let is_introduced = is_set || matches!(word.as_str(), "CHARACTER" | "CHARSET" | "COLLATE");
            after = is_introduced.then_some(word);
        } else if !(token.kind == Kind::Space || token.is_symbol(b'=')) {
            after = None;
        }
    }
    found
}

/// The character set that a column, or the end of a statement, names itself, even if only by a collation.
fn charset_of(sql: &[u8]) -> Option<String> {
    let all = tokens(sql);
    let (at, named) = named_charsets(&all).into_iter().next()?;
    let name = String::from_utf8_lossy(all.get(at)?.bytes).to_lowercase();
    match named {
        Named::Charset => Some(name),
        Named::Collation => name.split_once('_').map(|(charset, _)| charset.to_owned()),
    }
}

/// Refuses members that servers would change: they do not report a character that the character set lacks,
/// and take bytes in hex for bytes of it.
fn refuse_members(column: &Element, charset: &str) -> Result<(), String> {
    if !["enum", "set"].iter().any(|word| type_word(&column.text).eq_ignore_ascii_case(word)) {
        return Ok(());
    }
    let all = tokens(&column.text);
    let members =
        all.iter().skip_while(|token| !token.is_symbol(b'(')).take_while(|token| !token.is_symbol(b')'));
    let mut values = members.filter(|token| !matches!(token.kind, Kind::Space | Kind::Symbol));
    let has_all = UNICODE.contains(&charset);
    if values.all(|token| token.kind == Kind::Text && (has_all || token.bytes.is_ascii())) {
        return Ok(());
    }
    let name = column.name.as_deref().unwrap_or_default();
    Err(format!("whether {charset} has every character of the members of its column {name} is not known"))
}

/// Whether the `AUTO_INCREMENT` column, if there is one, is the first of a key.
fn has_leading_counter(sql: &TableSql) -> bool {
    let counter = sql
        .elements
        .iter()
        .find(|element| element.kind == ElementKind::Column && element.has_word("AUTO_INCREMENT"));
    let Some(counter) = counter else { return true };
    let leads = |kind: ElementKind| kind == ElementKind::Primary || kind.is_secondary();
    sql.elements.iter().any(|element| leads(element.kind) && element.first_column() == counter.name)
}

/// The text after the columns, with another engine, which partitions name, too.
fn with_engine(tail: &[u8], engine: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(tail.len());
    let mut is_awaited = false;
    for token in tokens(tail) {
        if token.kind == Kind::Comment
            && token.bytes.to_ascii_uppercase().windows(6).any(|it| it == b"ENGINE")
        {
            return Err(format!("its partitions cannot become ones of {engine}"));
        }
        if is_awaited && token.kind == Kind::Word {
            is_awaited = false;
            out.extend_from_slice(engine.as_bytes());
            continue;
        }
        is_awaited |= token.is_word("ENGINE");
        out.extend_from_slice(token.bytes);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_words() {
        let parsed: Conversion = "latin1=utf8mb4".parse().unwrap();
        assert_eq!(parsed.to_string(), "latin1=utf8mb4");
        for wrong in ["", "latin1", "=utf8mb4", "latin1=", "a=b=c", "latin1=utf8mb4; DROP TABLE t", "a=`b`"] {
            wrong.parse::<Conversion>().unwrap_err();
        }
    }

    #[test]
    fn counters_lead_keys() {
        let sql = |keys: &str| {
            let sql = format!("CREATE TABLE `t` (`a` int, `c` int AUTO_INCREMENT, {keys}) ENGINE=MyISAM");
            TableSql::parse(sql.as_bytes()).unwrap()
        };
        assert!(has_leading_counter(&sql("PRIMARY KEY (`c`,`a`)")));
        assert!(has_leading_counter(&sql("PRIMARY KEY (`a`,`c`), KEY `k` (`c`)")));
        assert!(!has_leading_counter(&sql("PRIMARY KEY (`a`,`c`)")));
    }

    #[test]
    fn engines_of_partitions() {
        let tail = b" ENGINE=MyISAM COMMENT='ENGINE=MyISAM'\n PARTITION BY RANGE (`a`)\n\
                     (PARTITION `engine` VALUES LESS THAN (9) ENGINE = MyISAM)";
        let expected = " ENGINE=Aria COMMENT='ENGINE=MyISAM'\n PARTITION BY RANGE (`a`)\n\
                        (PARTITION `engine` VALUES LESS THAN (9) ENGINE = Aria)";
        assert_eq!(String::from_utf8(with_engine(tail, "Aria").unwrap()).unwrap(), expected);
        with_engine(
            b" ENGINE=InnoDB\n/*!50100 PARTITION BY HASH (a) (PARTITION p ENGINE = InnoDB) */",
            "Aria",
        )
        .unwrap_err();
    }
}
