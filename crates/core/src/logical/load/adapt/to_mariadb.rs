//! Adapts tables of MySQL for MariaDB.

use super::{
    super::elements::{Element, ElementKind, TableSql},
    drop_options, type_word,
};
use crate::logical::sql::{Kind, tokens};

/// Options that MariaDB does not know.
const UNKNOWN: [&str; 7] = [
    "COMPRESSION",
    "ENCRYPTION",
    "AUTOEXTEND_SIZE",
    "SECONDARY_ENGINE",
    "ENGINE_ATTRIBUTE",
    "SECONDARY_ENGINE_ATTRIBUTE",
    "TABLESPACE",
];

pub(super) fn table(sql: &mut TableSql, notes: &mut Vec<String>) -> Result<(), String> {
    for element in &mut sql.elements {
        element.text = without_introducers(&element.text)
            .map_err(|text| format!("MariaDB takes {text} in an expression for something else"))?;
    }
    sql.elements.retain_mut(|element| {
        let name = element.name.clone().unwrap_or_default();
        let comments = comments(element);
        let has = |words: &str| comments.iter().any(|comment| comment.contains(words));
        match element.kind {
            kind if kind.is_secondary() && has_expression(element) => {
                notes.push(format!("index {name} is left out: MariaDB has none on expressions"));
                return false;
            }
            ElementKind::Check if has("NOT ENFORCED") => {
                notes.push(format!("constraint {name} is left out: MariaDB would enforce it"));
                return false;
            }
            ElementKind::Column if type_word(&element.text).eq_ignore_ascii_case("json") => {
                notes.push(format!("column {name} of JSON becomes LONGTEXT with a check"));
            }
            _ => {}
        }
        let is_filled =
            element.kind == ElementKind::Column && ["NOT", "UPDATE"].iter().all(|it| element.has_word(it));
        if is_filled && !element.has_word("DEFAULT") {
            notes.push(format!(
                "column {name} gets a default of zeros: MariaDB gives one to what changes with every update"
            ));
        }
        if has("SRID") {
            notes.push(format!("column {name} takes any spatial reference system"));
        }
        let word = match element.kind {
            ElementKind::Column => "INVISIBLE",
            _ => "IGNORED",
        };
        let all = tokens(&element.text);
        let text: Vec<u8> = all
            .iter()
            .flat_map(|token| match token.kind {
                Kind::Comment if is_of_mysql(token.bytes) => {
                    let is_invisible = String::from_utf8_lossy(token.bytes).contains("INVISIBLE");
                    if is_invisible { word.as_bytes() } else { &[][..] }
                }
                // The same type, by the name that both know.
                Kind::Word if token.is_word("geomcollection") => b"geometrycollection",
                _ => token.bytes,
            })
            .copied()
            .collect();
        element.text = text.trim_ascii_end().to_vec();
        true
    });
    let all = tokens(&sql.tail);
    let kept = all.iter().filter(|token| !(token.kind == Kind::Comment && is_of_mysql(token.bytes)));
    let mut tail: Vec<u8> = kept.flat_map(|token| token.bytes).copied().collect();
    drop_options(&mut tail, &UNKNOWN, notes);
    sql.tail = tail;
    Ok(())
}

/// Removes the character sets of texts that have quotes, backslashes or letters beyond ASCII. MariaDB keeps
/// the expressions of a table as text, and escapes such a text wrongly if its character set is given: the
/// quote not at all, the letter as hex digits without their backslash (seen on 10.11 and 11.8). Statements of
/// a load are in `utf8mb4`, which need not be given then; a text in another character set is the error.
fn without_introducers(sql: &[u8]) -> Result<Vec<u8>, String> {
    let all = tokens(sql);
    let mut out = Vec::with_capacity(sql.len());
    for (at, token) in all.iter().enumerate() {
        let text = all.get(at + 1).filter(|next| next.kind == Kind::Text);
        let is_introducer = token.kind == Kind::Word && token.bytes.starts_with(b"_");
        if let Some(text) = text.filter(|_| is_introducer) {
            let inner = text.bytes.get(1..text.bytes.len() - 1).unwrap_or_default();
            if inner.iter().any(|byte| b"'\\".contains(byte) || !byte.is_ascii()) {
                if !token.is_word("_utf8mb4") {
                    let bytes = [token.bytes, text.bytes].concat();
                    return Err(String::from_utf8_lossy(&bytes).into_owned());
                }
                continue;
            }
        }
        out.extend_from_slice(token.bytes);
    }
    Ok(out)
}

/// Whether MariaDB would ignore a comment: one that MySQL executes from 5.7 on.
fn is_of_mysql(comment: &[u8]) -> bool {
    let digits = comment.strip_prefix(b"/*!").unwrap_or_default();
    let digits: String =
        digits.iter().take_while(|byte| byte.is_ascii_digit()).map(|byte| *byte as char).collect();
    digits.parse::<u32>().is_ok_and(|version| version >= 50_700)
}

fn comments(element: &Element) -> Vec<String> {
    let all = tokens(&element.text);
    let comments = all.iter().filter(|token| token.kind == Kind::Comment && is_of_mysql(token.bytes));
    comments.map(|token| String::from_utf8_lossy(token.bytes).into_owned()).collect()
}

/// Whether a part of an index is in parentheses of its own. Parentheses after a name give the length of a
/// prefix.
fn has_expression(element: &Element) -> bool {
    let all = tokens(&element.text);
    let all: Vec<_> = all.iter().filter(|token| token.kind != Kind::Space).collect();
    all.windows(2).any(|pair| pair[1].is_symbol(b'(') && (pair[0].is_symbol(b'(') || pair[0].is_symbol(b',')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introducers() {
        for (theirs, ours) in [
            ("`a` text DEFAULT (_utf8mb4'it\\'s')", "`a` text DEFAULT ('it\\'s')"),
            ("`_utf8mb4` text DEFAULT (_utf8mb4'x')", "`_utf8mb4` text DEFAULT (_utf8mb4'x')"),
            ("`a` text COMMENT '_utf8mb4\\'x\\''", "`a` text COMMENT '_utf8mb4\\'x\\''"),
            ("CHECK ((`a` like _utf8mb4'x\\\\_%'))", "CHECK ((`a` like 'x\\\\_%'))"),
            (
                "`a` text DEFAULT (concat(_utf8mb4'é',_utf8mb4'e'))",
                "`a` text DEFAULT (concat('é',_utf8mb4'e'))",
            ),
        ] {
            let found = without_introducers(theirs.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), ours);
        }
        without_introducers(b"`a` int AS (char_length(_latin1'\\\\'))").unwrap_err();
    }
}
