//! Adapts tables and programs of MariaDB for MySQL.

use super::{
    super::{
        elements::{Element, ElementKind, TableSql},
        object::ObjectKind,
        plan::Program,
    },
    default_end, drop_options, joined, type_word,
};
use crate::logical::{
    sql::{Kind, Token, tokens},
    stored::definition::TableDefinition,
};

/// Options that MySQL does not know.
const UNKNOWN: [&str; 8] = [
    "PAGE_CHECKSUM",
    "TRANSACTIONAL",
    "PAGE_COMPRESSED",
    "PAGE_COMPRESSION_LEVEL",
    "ENCRYPTED",
    "ENCRYPTION_KEY_ID",
    "IETF_QUOTES",
    "SEQUENCE",
];
/// Types of MariaDB, and MySQL's types for the same text.
const TYPES: [(&str, &str); 3] = [
    ("uuid", "char(36) CHARACTER SET ascii COLLATE ascii_bin"),
    ("inet6", "varchar(39) CHARACTER SET ascii COLLATE ascii_bin"),
    ("inet4", "varchar(15) CHARACTER SET ascii COLLATE ascii_bin"),
];
/// Types whose defaults MySQL takes only as expressions.
const LONG_TYPES: [&str; 10] = [
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "tinyblob",
    "blob",
    "mediumblob",
    "longblob",
    "json",
    "geometry",
];

const SHAPES: [&str; 9] = [
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
    "geomcollection",
];

/// Adapts a table. Returns whether its keys keep their order.
pub(super) fn table(
    sql: &mut TableSql,
    definition: &mut TableDefinition,
    notes: &mut Vec<String>,
) -> Result<bool, String> {
    if sql.has(ElementKind::Period) {
        return Err("MySQL has no periods".to_owned());
    }
    let mut keeps_order = true;
    let mut kept = Vec::with_capacity(sql.elements.len());
    for mut element in std::mem::take(&mut sql.elements) {
        let name = element.name.clone().unwrap_or_default();
        match element.kind {
            ElementKind::Vector => {
                notes.push(format!("index {name} is left out: MySQL has none of vectors"));
                continue;
            }
            ElementKind::Unique if element.has_word("HASH") && element.has_word("USING") => {
                notes.push(format!("index {name} is left out: MySQL has none of such length"));
                continue;
            }
            ElementKind::Column => keeps_order &= column(&mut element, notes)?,
            kind if kind.is_secondary() => {
                let all = tokens(&element.text);
                let words = all
                    .iter()
                    .map(|token| if token.is_word("IGNORED") { &b"INVISIBLE"[..] } else { token.bytes });
                element.text = words.collect::<Vec<_>>().concat();
            }
            _ => {}
        }
        kept.push(element);
    }
    sql.elements = kept;
    tail(sql, definition, notes)?;
    refuse_shapes(sql, &definition.engine)?;
    if !definition.engine.eq_ignore_ascii_case("InnoDB") {
        drop_virtual_indexes(sql, &definition.engine, notes);
        drop_descending(sql, &definition.engine, notes);
    }
    Ok(keeps_order)
}

fn refuse_shapes(sql: &TableSql, engine: &str) -> Result<(), String> {
    let is_of_memory = engine.eq_ignore_ascii_case("MEMORY");
    if !is_of_memory && !tokens(&sql.tail).iter().any(|token| token.is_word("PARTITION")) {
        return Ok(());
    }
    let is_shape = |it: &&Element| SHAPES.contains(&type_word(&it.text).to_lowercase().as_str());
    let Some(column) = sql.elements.iter().find(|it| it.kind == ElementKind::Column && is_shape(it)) else {
        return Ok(());
    };
    let name = column.name.as_deref().unwrap_or_default();
    let what = if is_of_memory { "the engine MEMORY" } else { "tables in partitions" };
    Err(format!("MySQL has no shapes in {what}: column {name}"))
}

/// Removes `DESC` from keys: only InnoDB has descending ones.
fn drop_descending(sql: &mut TableSql, engine: &str, notes: &mut Vec<String>) {
    for key in &mut sql.elements {
        let is_key = key.kind == ElementKind::Primary || key.kind.is_secondary();
        if !is_key || !key.has_word("DESC") {
            continue;
        }
        let all = tokens(&key.text);
        let kept = all.iter().filter(|token| !token.is_word("DESC"));
        key.text = kept.flat_map(|token| token.bytes).copied().collect();
        let name = key.name.as_deref().unwrap_or("PRIMARY");
        notes.push(format!("index {name} no longer descends: MySQL's {engine} has none that do"));
    }
}

/// Leaves out indexes on virtual columns, which only InnoDB has.
fn drop_virtual_indexes(sql: &mut TableSql, engine: &str, notes: &mut Vec<String>) {
    let is_virtual = |it: &&Element| it.kind == ElementKind::Column && it.has_word("VIRTUAL");
    let columns: Vec<String> =
        sql.elements.iter().filter(is_virtual).filter_map(|column| column.name.clone()).collect();
    sql.elements.retain(|index| {
        let all = tokens(&index.text);
        let parts = all.iter().skip_while(|token| !token.is_symbol(b'('));
        let has_virtual =
            index.kind.is_secondary() && parts.filter_map(Token::name).any(|name| columns.contains(&name));
        if has_virtual {
            let name = index.name.clone().unwrap_or_default();
            notes.push(format!("index {name} is left out: MySQL has none on virtual columns of {engine}"));
        }
        !has_virtual
    });
}

fn tail(sql: &mut TableSql, definition: &mut TableDefinition, notes: &mut Vec<String>) -> Result<(), String> {
    let all = tokens(&sql.tail);
    if all.iter().any(|token| token.is_word("SYSTEM_TIME")) {
        return Err("MySQL has no partitions of history".to_owned());
    }
    if is_default_partition(&all) {
        return Err("MySQL has no DEFAULT partition for lists".to_owned());
    }
    let is_aria = definition.engine.eq_ignore_ascii_case("Aria");
    let words = all
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .map(|token| if is_aria && token.is_word("Aria") { &b"InnoDB"[..] } else { token.bytes });
    sql.tail = words.collect::<Vec<_>>().concat();
    let mut unknown = UNKNOWN.to_vec();
    if is_aria {
        notes.push("engine Aria becomes InnoDB".to_owned());
        definition.engine = "InnoDB".to_owned();
        unknown.push("ROW_FORMAT");
    }
    drop_options(&mut sql.tail, &unknown, notes);
    Ok(())
}

/// Whether there is a partition for all other values: ``PARTITION `name` DEFAULT``.
fn is_default_partition(tail: &[Token<'_>]) -> bool {
    let meant: Vec<&Token<'_>> = tail.iter().filter(|token| token.kind != Kind::Space).collect();
    meant
        .windows(3)
        .any(|it| it[0].is_word("PARTITION") && it[1].name().is_some() && it[2].is_word("DEFAULT"))
}

/// Adapts a column. Returns whether its values keep their order.
fn column(element: &mut Element, notes: &mut Vec<String>) -> Result<bool, String> {
    let name = element.name.clone().unwrap_or_default();
    if element.has_word("nextval") {
        return Err(format!("column {name} draws from a sequence, which MySQL does not have"));
    }
    let word = type_word(&element.text).to_lowercase();
    let other = TYPES.iter().find(|(theirs, _)| *theirs == word).map(|(_, ours)| *ours);
    let all = tokens(&element.text);
    let mut out: Vec<Vec<u8>> = Vec::with_capacity(all.len());
    let mut is_type_done = false;
    let mut at = 0;
    while at < all.len() {
        let token = &all[at];
        if token.kind == Kind::Comment {
            notes.push(format!("column {name} loses {}", String::from_utf8_lossy(token.bytes)));
        } else if token.kind == Kind::Word && !is_type_done {
            is_type_done = true;
            out.push(other.map_or_else(|| token.bytes.to_vec(), |other| other.as_bytes().to_vec()));
        } else if token.is_word("DEFAULT") {
            out.push(b"DEFAULT ".to_vec());
            let end = default_end(&all, at);
            out.push(default(&all[at + 1..end], &word));
            if end < all.len() {
                out.push(b" ".to_vec());
            }
            at = end;
            continue;
        } else {
            out.push(token.bytes.to_vec());
        }
        at += 1;
    }
    element.text = out.concat();
    if let Some(other) = other {
        notes.push(format!("column {name} of {word} becomes {other}"));
    }
    Ok(other.is_none())
}

/// A default as MySQL takes it: in parentheses unless it is a literal, or the current time of a type that has
/// one.
fn default(tokens: &[Token<'_>], column_type: &str) -> Vec<u8> {
    let text = joined(tokens).trim_ascii().to_vec();
    let meant: Vec<&Token<'_>> = tokens.iter().filter(|token| token.kind != Kind::Space).collect();
    let is_long = LONG_TYPES.contains(&column_type);
    let is_plain = match meant.as_slice() {
        [only] if only.is_word("NULL") => true,
        [first, ..] if first.is_symbol(b'(') => true,
        [first, ..] if first.is_word("current_timestamp") => ["datetime", "timestamp"].contains(&column_type),
        _ if is_long => false,
        [only] => only.kind == Kind::Text || only.bytes.first().is_some_and(u8::is_ascii_digit),
        // Signs, points, `b'0'`, `_utf8mb4'x'`.
        [first, .., last] => {
            let is_number = meant.iter().all(|token| {
                token.is_symbol(b'-') || token.is_symbol(b'.') || token.bytes[0].is_ascii_digit()
            });
            is_number || first.kind == Kind::Word && last.kind == Kind::Text && meant.len() == 2
        }
        [] => true,
    };
    if is_plain { text } else { [b"(", text.as_slice(), b")"].concat() }
}

/// Says why MySQL cannot have a program.
pub(super) fn program(program: &Program, kind: ObjectKind) -> Result<(), String> {
    if program.word.starts_with("PACKAGE") {
        return Err("MySQL has no packages".to_owned());
    }
    let is_aggregate = kind == ObjectKind::Routine
        && tokens(&program.create)
            .iter()
            .take_while(|token| !token.is_symbol(b'('))
            .any(|it| it.is_word("AGGREGATE"));
    if is_aggregate { Err("MySQL has no stored aggregate functions".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_in_partitions_are_refused() {
        let create = b"CREATE TABLE `t` (\n  `a` int(11) NOT NULL,\n  `@p` polygon DEFAULT NULL,\n  PRIMARY KEY (`a`)\n) \
            ENGINE=InnoDB DEFAULT CHARSET=utf8mb4\n PARTITION BY RANGE (`a`)\n(PARTITION `p` VALUES LESS THAN MAXVALUE ENGINE = InnoDB)";
        let mut sql = TableSql::parse(create).unwrap();
        refuse_shapes(&sql, "InnoDB").unwrap_err();
        sql.tail.truncate(20);
        refuse_shapes(&sql, "InnoDB").unwrap();
        refuse_shapes(&sql, "MEMORY").unwrap_err();
    }

    #[test]
    fn columns() {
        for (theirs, ours) in [
            ("`a` int(11) DEFAULT (1 + 2)", "`a` int(11) DEFAULT (1 + 2)"),
            ("`a` char(36) DEFAULT uuid() COMMENT 'x'", "`a` char(36) DEFAULT (uuid()) COMMENT 'x'"),
            ("`a` int(11) NOT NULL DEFAULT -5", "`a` int(11) NOT NULL DEFAULT -5"),
            ("`a` text DEFAULT 'x'", "`a` text DEFAULT ('x')"),
            ("`a` text DEFAULT NULL", "`a` text DEFAULT NULL"),
            ("`a` bit(1) DEFAULT b'0'", "`a` bit(1) DEFAULT b'0'"),
            (
                "`t` timestamp NOT NULL DEFAULT current_timestamp() ON UPDATE current_timestamp()",
                "`t` timestamp NOT NULL DEFAULT current_timestamp() ON UPDATE current_timestamp()",
            ),
            (
                "`d` date NOT NULL DEFAULT current_timestamp() COMMENT 'x'",
                "`d` date NOT NULL DEFAULT (current_timestamp()) COMMENT 'x'",
            ),
            ("`u` uuid NOT NULL", "`u` char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"),
            ("`v` varchar(9) /*M!100301 COMPRESSED*/ DEFAULT NULL", "`v` varchar(9)  DEFAULT NULL"),
        ] {
            let mut element = Element {
                kind: ElementKind::Column,
                name: Some("a".into()),
                text: theirs.as_bytes().to_vec(),
            };
            column(&mut element, &mut Vec::new()).unwrap();
            assert_eq!(String::from_utf8(element.text).unwrap(), ours);
        }
    }
}
