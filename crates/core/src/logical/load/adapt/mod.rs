//! Decides what is changed so that another server takes it, and names what cannot be changed.
//!
//! Rows are never changed. What is said about them is: collations, engines, options. An index is not data:
//! one that the target cannot have is left out and named. Anything that would mean something else there is
//! refused. Besides the changes that must be, there are those that the user asks for ([`Conversions`]), which
//! come first.

mod asked;
mod collations;
mod to_mariadb;
mod to_mysql;

use std::collections::BTreeSet;

use holdfast_formats::Flavor;

pub(super) use asked::Seen;
pub use asked::{Conversion, Conversions};

use super::{
    elements::{Element, ElementKind, TableSql},
    names::Renames,
    object::ObjectKind,
    plan::Program,
    target::Target,
};
use crate::{
    logical::{
        catalog::tables::{does_not_pad, is_misprinted},
        sql::{Kind, Token, quoted, tokens},
        stored::definition::{SchemaDefinition, ServerDefinition, TableDefinition},
    },
    server::ServerVersion,
};

/// MariaDB: from this series on time stamps end in 2106, and with them the rows that are not past.
const LONG_TIME_STAMPS: (u16, u16) = (11, 5);
/// MariaDB: the first series with vectors.
const VECTORS: (u16, u16) = (11, 7);
/// Modes of MariaDB that give the same words another meaning.
const MODES_OF_MEANING: [&str; 8] = [
    "ORACLE",
    "MSSQL",
    "DB2",
    "MAXDB",
    "POSTGRESQL",
    "SIMULTANEOUS_ASSIGNMENT",
    "EMPTY_STRING_IS_NULL",
    "TIME_ROUND_FRACTIONAL",
];
/// Modes that only one of the flavors knows, and that may be dropped.
const MODES_OF_MARIADB: [&str; 6] =
    ["NO_AUTO_CREATE_USER", "NO_KEY_OPTIONS", "NO_FIELD_OPTIONS", "NO_TABLE_OPTIONS", "MYSQL323", "MYSQL40"];
const MODES_OF_MYSQL: [&str; 1] = ["TIME_TRUNCATE_FRACTIONAL"];

/// Words that end a default.
const BEHIND_DEFAULT: [&str; 6] = ["ON", "AUTO_INCREMENT", "COMMENT", "CHECK", "INVISIBLE", "REF_SYSTEM_ID"];

/// How a table was adapted.
pub(super) struct Adapted {
    /// Whether text has the same order as on the source, and statements find rows by it.
    pub(super) keeps_order: bool,
    pub(super) notes: Vec<String>,
}

/// Adapts objects to one target.
pub(super) struct Adapter<'a> {
    source: Option<ServerVersion>,
    target: &'a Target,
    conversions: &'a Conversions,
}

impl<'a> Adapter<'a> {
    pub(super) fn new(
        source: Option<&ServerDefinition>,
        target: &'a Target,
        conversions: &'a Conversions,
    ) -> Self {
        let source = source.and_then(|source| {
            let version = ServerVersion::parse(&source.version)?;
            Some(ServerVersion { flavor: source.flavor, ..version })
        });
        Self { source, target, conversions }
    }

    fn changes_flavor(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.flavor != self.target.flavor)
    }

    /// Whether statements are exactly what the target itself would print.
    pub(super) fn is_same_series(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.same_series(&self.target.version))
    }

    /// Returns what follows `CREATE DATABASE name`, the database's collation, and the changes.
    pub(super) fn schema(&self, schema: &SchemaDefinition) -> (Vec<u8>, String, Vec<String>) {
        let asked = self.conversions.collation(&schema.collation, self.target);
        let all = tokens(&schema.create.0);
        if self.is_same_series() && asked.is_none() {
            let name = all.iter().position(|token| token.kind == Kind::Name);
            let options = name.map(|at| joined(&all[at + 1..])).unwrap_or_default();
            return (options, schema.collation.clone(), Vec::new());
        }
        let other = asked.or_else(|| self.default_collation(&schema.collation));
        let mut notes = Vec::new();
        notes.extend(
            other.iter().map(|other| format!("its default collation {} becomes {other}", schema.collation)),
        );
        let collation = other.unwrap_or_else(|| schema.collation.clone());
        let mut options = format!("COLLATE {collation}").into_bytes();
        let besides = besides(&all);
        if !self.changes_flavor() {
            options.extend(besides);
        } else if !besides.is_empty() {
            let words = String::from_utf8_lossy(besides.trim_ascii());
            notes.push(format!("the target has nothing like its {words}"));
        }
        (options, collation, notes)
    }

    /// Why there can be no sequences.
    pub(super) fn refuses_sequences(&self) -> Option<String> {
        (self.target.flavor == Flavor::MySql).then(|| "MySQL has no sequences".to_owned())
    }

    /// Why accounts cannot be taken over.
    pub(super) fn refuses_accounts(&self, source: Option<&ServerDefinition>) -> Option<String> {
        let flavor = source.map(|source| source.flavor).filter(|_| self.changes_flavor())?;
        Some(format!("{flavor} and {} keep passwords, roles and privileges differently", self.target.flavor))
    }

    /// Adapts a table to the target, or says why that is impossible.
    pub(super) fn table(
        &self,
        sql: &mut TableSql,
        definition: &mut TableDefinition,
    ) -> Result<Adapted, String> {
        let mut asked = Vec::new();
        let is_ordered = self.conversions.table(sql, definition, self.target, &mut asked)?;
        let mut notes = Vec::new();
        let mut keeps_order = true;
        if !self.is_same_series() {
            for element in &mut sql.elements {
                element.text = self.with_collations(&element.text, &mut notes)?;
            }
            sql.tail = self.with_collations(&sql.tail, &mut notes)?;
            keeps_order = notes.is_empty();
            self.refuse_history(definition)?;
            if self.target.flavor == Flavor::MariaDb && self.target_series() < VECTORS {
                refuse_vectors(sql)?;
            }
        }
        if self.source.as_ref().is_some_and(|source| source.flavor == Flavor::MariaDb) {
            notes.extend(misprinted_defaults(sql));
        }
        if self.changes_flavor() {
            notes.extend(computed(sql));
            match self.target.flavor {
                Flavor::MariaDb => to_mariadb::table(sql, &mut notes)?,
                Flavor::MySql => keeps_order &= to_mysql::table(sql, definition, &mut notes)?,
            }
        }
        if let Some(there) = &self.target.tablespaces {
            leave_tablespace(&mut sql.tail, there, &mut notes);
        }
        if !self.target.engines.contains(&definition.engine.to_uppercase()) {
            return Err(format!("the target has no engine {}", definition.engine));
        }
        if definition.has_history && tokens(&sql.tail).iter().any(|token| token.is_word("SYSTEM_TIME")) {
            notes.push(
                "rows of its history may be in other partitions: the server chooses as it takes them"
                    .to_owned(),
            );
        }
        keeps_order &=
            self.target.flavor != Flavor::MariaDb || !has_key_padded_only_in_the_index(sql, definition);
        notes.append(&mut asked);
        notes.sort();
        notes.dedup();
        Ok(Adapted { keeps_order: keeps_order && is_ordered, notes })
    }

    fn target_series(&self) -> (u16, u16) {
        (self.target.version.major, self.target.version.minor)
    }

    fn refuse_history(&self, definition: &TableDefinition) -> Result<(), String> {
        if !definition.has_history {
            return Ok(());
        }
        let is_long = self.source.as_ref().map(|source| (source.major, source.minor) >= LONG_TIME_STAMPS);
        if self.target.flavor == Flavor::MySql {
            return Err("MySQL has no tables with history".to_owned());
        }
        if is_long != Some(self.target_series() >= LONG_TIME_STAMPS) {
            return Err(
                "current rows end in another year on the target, so its history would differ".to_owned()
            );
        }
        Ok(())
    }

    /// The target's collation for one that it lacks; `None` if it has that one.
    fn collation(&self, name: &str) -> Option<String> {
        if self.target.collations.contains(name) || name == "binary" {
            return None;
        }
        collations::nearest(name, &self.target.collations)
    }

    /// The target's collation for a database's default, which only future tables and programs use: it may be of another
    /// character set if the target has nothing of that one (MariaDB has nothing of `gb18030`).
    fn default_collation(&self, name: &str) -> Option<String> {
        let charset = name.split_once('_').map_or(name, |(charset, _)| charset);
        match self.target.charsets.contains_key(&asked::full_name(charset)) {
            true => self.collation(name),
            false => self.target.charsets.get("utf8mb4").cloned(),
        }
    }

    /// A statement with collations that the target has.
    fn with_collations(&self, sql: &[u8], notes: &mut Vec<String>) -> Result<Vec<u8>, String> {
        let all = tokens(sql);
        let mut out = Vec::with_capacity(sql.len());
        let mut is_awaited = false;
        for token in &all {
            if is_awaited && token.kind == Kind::Word {
                is_awaited = false;
                let name = String::from_utf8_lossy(token.bytes).to_lowercase();
                match self.collation(&name) {
                    Some(other) => {
                        notes.push(format!("collation {name} becomes {other}"));
                        out.extend_from_slice(other.as_bytes());
                        continue;
                    }
                    None if name != "binary" && !self.target.collations.contains(&name) => {
                        return Err(format!("the target has nothing like the collation {name}"));
                    }
                    None => {}
                }
            } else if token.is_word("COLLATE") {
                is_awaited = true;
            }
            out.extend_from_slice(token.bytes);
        }
        Ok(out)
    }

    /// Adapts a routine, view, trigger or event to the target, and says how. Fails with why it cannot.
    pub(super) fn program(&self, program: &mut Program, kind: ObjectKind) -> Result<Vec<String>, String> {
        let mut notes = Vec::new();
        if let Some(other) = self.conversions.collation(&program.context.schema_collation, self.target) {
            notes.push(format!("it is made under the default collation {other}"));
            program.context.schema_collation = other;
        }
        if self.is_same_series() {
            return Ok(notes);
        }
        // In a text in another character set nothing can be understood.
        if std::str::from_utf8(&program.create).is_ok() {
            program.create = self.with_collations(&program.create, &mut notes)?;
        }
        let context = &mut program.context;
        let others = [self.collation(&context.collation), self.default_collation(&context.schema_collation)];
        for (collation, other) in
            [&mut context.collation, &mut context.schema_collation].into_iter().zip(others)
        {
            if !collation.is_empty()
                && let Some(other) = other
            {
                notes.push(format!("collation {collation} becomes {other}"));
                *collation = other;
            }
        }
        if self.changes_flavor() {
            if self.target.flavor == Flavor::MySql {
                to_mysql::program(program, kind)?;
            }
            let modes = program.context.sql_mode.take();
            program.context.sql_mode = modes.map(|modes| self.modes(&modes, &mut notes)).transpose()?;
        }
        notes.sort();
        notes.dedup();
        Ok(notes)
    }

    fn modes(&self, modes: &str, notes: &mut Vec<String>) -> Result<String, String> {
        let unknown = match self.target.flavor {
            Flavor::MySql => &MODES_OF_MARIADB[..],
            Flavor::MariaDb => &MODES_OF_MYSQL[..],
        };
        let mut kept = Vec::new();
        for mode in modes.split(',').filter(|mode| !mode.is_empty()) {
            if self.target.flavor == Flavor::MySql && MODES_OF_MEANING.contains(&mode) {
                return Err(format!(
                    "it is to be understood under sql_mode {mode}, which MySQL does not have"
                ));
            }
            if unknown.contains(&mode) {
                notes.push(format!("sql_mode {mode} is dropped"));
            } else {
                kept.push(mode);
            }
        }
        Ok(kept.join(","))
    }
}

/// Notes for each computed column that its values are the target's: flavors do not compute everything alike,
/// such as invalid dates.
fn computed(sql: &TableSql) -> impl Iterator<Item = String> {
    let is_computed =
        |it: &&Element| it.kind == ElementKind::Column && it.has_word("GENERATED") && !it.has_word("ROW");
    let named = |it: &Element| it.name.as_deref().map(|name| format!("column {name} is computed again"));
    sql.elements.iter().filter(is_computed).filter_map(named)
}

/// Notes for each column that its default may be another one than on the source.
fn misprinted_defaults(sql: &TableSql) -> impl Iterator<Item = String> {
    sql.elements.iter().filter(|it| it.kind == ElementKind::Column).filter_map(|it| {
        let all = tokens(&it.text);
        let at = all.iter().position(|token| token.is_word("DEFAULT"))?;
        let default = &all[at + 1..default_end(&all, at)];
        let name = it.name.as_deref().filter(|_| is_misprinted(&type_word(&it.text), default))?;
        let printed = joined(default);
        let printed = String::from_utf8_lossy(printed.trim_ascii());
        Some(format!(
            "column {name} gets the default that the source prints, {printed}, and may have another there"
        ))
    })
}

/// The end of the default that begins with the word at this place.
fn default_end(all: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0_i32;
    let end = all[at + 1..].iter().position(|token| {
        depth += i32::from(token.is_symbol(b'(')) - i32::from(token.is_symbol(b')'));
        depth == 0 && BEHIND_DEFAULT.iter().any(|word| token.is_word(word))
    });
    end.map_or(all.len(), |end| at + 1 + end)
}

fn refuse_vectors(sql: &TableSql) -> Result<(), String> {
    let has = |element: &Element| {
        element.kind == ElementKind::Vector
            || element.kind == ElementKind::Column && type_word(&element.text).eq_ignore_ascii_case("vector")
    };
    match sql.elements.iter().find(|element| has(element)) {
        Some(element) => {
            let name = element.name.as_deref().unwrap_or_default();
            Err(format!("{name} is of vectors, which the target does not support"))
        }
        None => Ok(()),
    }
}

fn joined(tokens: &[Token<'_>]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.bytes).copied().collect()
}

/// The type of a column: the word after its name.
fn type_word(text: &[u8]) -> String {
    let all = tokens(text);
    let word = all.iter().find(|token| token.kind == Kind::Word);
    word.map(|token| String::from_utf8_lossy(token.bytes).into_owned()).unwrap_or_default()
}

/// MySQL: puts a table whose tablespace the target lacks into one of its own.
fn leave_tablespace(tail: &mut Vec<u8>, there: &BTreeSet<String>, notes: &mut Vec<String>) {
    // Every server has these; the first means none that is shared.
    const EVERYWHERE: [&str; 2] = ["innodb_file_per_table", "innodb_system"];
    let all = tokens(tail);
    // /*!50100 TABLESPACE `name` */
    let named = |token: &Token<'_>| {
        let text = token.bytes.strip_prefix(b"/*!").filter(|_| token.kind == Kind::Comment)?;
        let inner = tokens(text.trim_ascii_start());
        let mut words = inner.iter().skip_while(|token| token.kind != Kind::Space);
        words.by_ref().find(|token| token.kind != Kind::Space)?.is_word("TABLESPACE").then_some(())?;
        words.find_map(Token::name)
    };
    let found = all.iter().enumerate().find_map(|(at, token)| Some((at, named(token)?)));
    let Some((at, name)) =
        found.filter(|(_, name)| !EVERYWHERE.contains(&name.as_str()) && !there.contains(name))
    else {
        return;
    };
    let kept = [joined(&all[..at]), joined(&all[at + 1..])].concat();
    *tail = kept.trim_ascii().to_vec();
    notes.push(format!("it is in a tablespace of its own: the target has no tablespace {name}"));
}

/// Removes options from the end of a statement: `NAME=value`, however the name is quoted.
fn drop_options(tail: &mut Vec<u8>, unwanted: &[&str], notes: &mut Vec<String>) {
    let all = tokens(tail);
    let mut out = Vec::with_capacity(tail.len());
    let mut at = 0;
    while at < all.len() {
        let name = match all[at].kind {
            Kind::Word => Some(String::from_utf8_lossy(all[at].bytes).to_uppercase()),
            Kind::Name => all[at].name().map(|name| name.to_uppercase()),
            _ => None,
        };
        let is_option = all.get(at + 1).is_some_and(|token| token.is_symbol(b'='));
        match name.filter(|name| is_option && unwanted.contains(&name.as_str())) {
            Some(name) => {
                notes.push(format!("the option {name} is left out"));
                at += 3;
                while all.get(at).is_some_and(|token| token.kind == Kind::Space) {
                    at += 1;
                }
            }
            None => {
                out.extend_from_slice(all[at].bytes);
                at += 1;
            }
        }
    }
    *tail = out;
}

/// Removes the name of a constraint. Returns whether it had one.
pub(super) fn drop_name(element: &mut Element) -> bool {
    let all = tokens(&element.text);
    if !all.first().is_some_and(|token| token.is_word("CONSTRAINT")) {
        return false;
    }
    let Some(name) = all.iter().position(|token| token.kind == Kind::Name) else { return false };
    element.text = joined(&all[name + 1..]).trim_ascii_start().to_vec();
    element.name = None;
    true
}

/// Makes a foreign key lead to the right table, whatever database its own table is in: servers name a
/// database only if it is another one.
pub(super) fn rename_reference(element: &mut Element, source: &str, target: &str, renames: &Renames) {
    let all = tokens(&element.text);
    let Some(word) = all.iter().position(|token| token.is_word("REFERENCES")) else { return };
    let Some(at) = all[word..].iter().position(|token| token.kind == Kind::Name).map(|at| word + at) else {
        return;
    };
    let is_qualified = all.get(at + 1).is_some_and(|token| token.is_symbol(b'.'));
    let Some(table) = all[at].name().filter(|_| !is_qualified) else { return };
    let (schema, table) = renames.table(source, &table);
    let mut text = joined(&all[..at]);
    if schema != target {
        text.extend_from_slice(format!("{}.", quoted(&schema)).as_bytes());
    }
    text.extend_from_slice(quoted(&table).as_bytes());
    text.extend_from_slice(&joined(&all[at + 1..]));
    element.text = text;
}

/// Whether the key has a `CHAR` that MariaDB's InnoDB pads in the index alone (see
/// [`crate::logical::catalog::tables`]), by the collation that the column has on the target.
fn has_key_padded_only_in_the_index(sql: &TableSql, definition: &TableDefinition) -> bool {
    let count = definition.key.as_ref().map_or(0, |key| key.directions.len());
    definition.columns.iter().take(count).any(|column| {
        let is_it = |it: &&Element| it.kind == ElementKind::Column && it.name.as_ref() == Some(&column.name);
        let element = sql.elements.iter().find(is_it);
        let collation = element.and_then(|element| {
            // A column with a character set of its own names a collation that is not that one's default.
            let is_of_table = !element.has_word("CHARACTER");
            collation_in(&element.text).or_else(|| collation_in(&sql.tail).filter(|_| is_of_table))
        });
        column.column_type.to_ascii_lowercase().starts_with("char")
            && collation.is_some_and(|collation| does_not_pad(&collation))
    })
}

/// The collation that a part of a definition names.
fn collation_in(text: &[u8]) -> Option<String> {
    let all = tokens(text);
    let word = all.iter().position(|token| token.is_word("COLLATE"))?;
    let name = all[word + 1..].iter().find(|token| token.kind == Kind::Word)?;
    Some(String::from_utf8_lossy(name.bytes).to_ascii_lowercase())
}

/// The clauses of `CREATE DATABASE` besides character set and collation: a comment (MariaDB), and whether its
/// tables are encrypted (MySQL), which they are not if it says `N`.
fn besides(create: &[Token<'_>]) -> Vec<u8> {
    let comment = create.iter().position(|token| token.is_word("COMMENT"));
    let comment = comment.into_iter().flat_map(|at| [b" ", &*joined(&create[at..])].concat());
    let is_of_encryption = |token: &&Token<'_>| {
        token.kind == Kind::Comment && token.bytes.windows(14).any(|it| it == b"ENCRYPTION='Y'")
    };
    let encryption = create.iter().filter(is_of_encryption).flat_map(|token| [b" ", token.bytes].concat());
    comment.chain(encryption).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Defaults that are expressions with bytes that were not printed as such; and no others.
    #[test]
    fn defaults_that_are_printed_otherwise() {
        let found = |column: &str| {
            let sql = format!("CREATE TABLE `t` (\n  `a` {column}\n) ENGINE=InnoDB");
            misprinted_defaults(&TableSql::parse(sql.as_bytes()).unwrap()).next()
        };
        assert_eq!(
            found("varchar(9) DEFAULT concat(_utf8mb4'xC3xA9','x') COMMENT 'x'").unwrap(),
            "column a gets the default that the source prints, concat(_utf8mb4'xC3xA9','x'), and may have another there"
        );
        assert!(found("int(11) NOT NULL DEFAULT char_length('xE9') CHECK (`a` > 1)").is_some());
        for column in [
            "text DEFAULT concat(_utf8mb4'xC3xA9','x')",
            "varchar(9) DEFAULT 'BoxED'",
            "varchar(9) DEFAULT concat('x9','x') COMMENT 'xE9'",
            "varchar(9) GENERATED ALWAYS AS (concat('xE9','x')) VIRTUAL",
            "varchar(9) DEFAULT NULL",
        ] {
            assert_eq!(found(column), None, "{column}");
        }
    }

    /// A table leaves a tablespace that the target lacks, and no other.
    #[test]
    fn tablespaces() {
        let there = BTreeSet::from(["general".to_owned()]);
        let partitions = "/*!50100 PARTITION BY HASH (`a`) PARTITIONS 2 */";
        for (tail, left) in [
            ("/*!50100 TABLESPACE `other` */ ENGINE=InnoDB".to_owned(), Some("ENGINE=InnoDB".to_owned())),
            (
                format!("/*!50100 TABLESPACE `o``1` */ ENGINE=InnoDB COMMENT='TABLESPACE' {partitions}"),
                Some(format!("ENGINE=InnoDB COMMENT='TABLESPACE' {partitions}")),
            ),
            ("/*!50100 TABLESPACE `general` */ ENGINE=InnoDB".to_owned(), None),
            ("/*!50100 TABLESPACE `innodb_system` */ ENGINE=InnoDB".to_owned(), None),
            ("/*!50100 TABLESPACE `innodb_file_per_table` */ ENGINE=InnoDB".to_owned(), None),
            (format!("ENGINE=InnoDB {partitions}"), None),
            ("ENGINE=InnoDB COMMENT='/*!50100 TABLESPACE `other` */'".to_owned(), None),
        ] {
            let (mut adapted, mut notes) = (tail.clone().into_bytes(), Vec::new());
            leave_tablespace(&mut adapted, &there, &mut notes);
            let adapted = String::from_utf8(adapted).unwrap();
            assert_eq!(notes.len(), usize::from(left.is_some()), "{tail}");
            assert_eq!(adapted, left.unwrap_or(tail));
        }
    }
}
