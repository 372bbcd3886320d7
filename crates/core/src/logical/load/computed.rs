//! Finds the stored values that a server computes from time stamps by the zone of a session.
//!
//! A `TIMESTAMP` is a moment; the day it falls on differs from zone to zone. Sessions of a load are in UTC.
//! If the source's were not, computed columns that are stored or indexed, and indexes on expressions, get
//! other values than they had, and reading the rows does not show it.

use std::collections::{BTreeMap, BTreeSet};

use super::elements::{Element, ElementKind, TableSql};
use crate::logical::sql::{Kind, Token, tokens};

/// The parts of a table that are stored and depend on the zone: columns, and indexes on expressions, by name.
pub(super) fn by_zone(sql: &TableSql) -> Vec<String> {
    let all: Vec<(&Element, Vec<Token<'_>>)> =
        sql.elements.iter().map(|element| (element, meaning(&element.text))).collect();
    let columns = || all.iter().filter(|(element, _)| element.kind == ElementKind::Column);
    let is_stamp = |tokens: &[Token<'_>]| tokens.get(1).is_some_and(|token| token.is_word("TIMESTAMP"));
    let stamps: BTreeSet<String> =
        columns().filter(|(_, tokens)| is_stamp(tokens)).filter_map(|(element, _)| folded(element)).collect();
    let mut expressions: BTreeMap<String, &[Token<'_>]> = BTreeMap::new();
    for (element, tokens) in columns() {
        expressions.extend(folded(element).zip(expression(tokens)));
    }
    // A computed column may depend on others. One that is a time stamp is made a moment by the zone.
    let mut going: BTreeSet<String> =
        stamps.iter().filter(|name| expressions.contains_key(*name)).cloned().collect();
    while let Some(name) = expressions
        .iter()
        .find(|(name, tokens)| !going.contains(*name) && goes_by_zone(tokens, &stamps, &going))
        .map(|(name, _)| name.clone())
    {
        going.insert(name);
    }
    let is_index = |kind: ElementKind| kind.is_secondary() || kind == ElementKind::Primary;
    let is_indexed = |name: &str| {
        let mut indexes = all.iter().filter(|(element, _)| is_index(element.kind));
        indexes.any(|(_, tokens)| tokens.iter().any(|token| is_name(token, name)))
    };
    let is_kept = |name: &String| {
        let words = ["STORED", "PERSISTENT"];
        expressions[name].iter().any(|token| words.iter().any(|word| token.is_word(word))) || is_indexed(name)
    };
    let kept = columns()
        .filter(|(element, _)| folded(element).is_some_and(|name| going.contains(&name) && is_kept(&name)));
    let mut kept: Vec<String> =
        kept.filter_map(|(element, _)| Some(format!("column {}", element.name.as_ref()?))).collect();
    for (element, tokens) in all.iter().filter(|(element, _)| is_index(element.kind)) {
        let mut depth = 0;
        // The columns of an index are in one pair of parentheses, expressions in two.
        let inner: Vec<Token<'_>> = tokens
            .iter()
            .filter(|token| {
                depth += i32::from(token.is_symbol(b'(')) - i32::from(token.is_symbol(b')'));
                depth > 1
            })
            .copied()
            .collect();
        if goes_by_zone(&inner, &stamps, &going) {
            kept.push(format!("index {}", element.name.as_deref().unwrap_or("PRIMARY")));
        }
    }
    kept
}

/// Whether a table has computed columns.
pub(super) fn is_any(sql: &TableSql) -> bool {
    let columns = sql.elements.iter().filter(|element| element.kind == ElementKind::Column);
    columns.into_iter().any(|element| expression(&meaning(&element.text)).is_some())
}

fn meaning(text: &[u8]) -> Vec<Token<'_>> {
    tokens(text).into_iter().filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment)).collect()
}

fn folded(element: &Element) -> Option<String> {
    element.name.as_ref().map(|name| name.to_lowercase())
}

fn is_name(token: &Token<'_>, name: &str) -> bool {
    token.name().is_some_and(|found| found.to_lowercase() == name)
}

/// The expression of a computed column, and everything that follows it.
fn expression<'a, 'b>(tokens: &'a [Token<'b>]) -> Option<&'a [Token<'b>]> {
    let at = tokens.iter().position(|token| token.is_word("AS"))?;
    tokens.get(at + 1).filter(|token| token.is_symbol(b'(')).map(|_| &tokens[at + 1..])
}

fn goes_by_zone(tokens: &[Token<'_>], stamps: &BTreeSet<String>, going: &BTreeSet<String>) -> bool {
    let is_stamp = |token: &Token<'_>| token.name().is_some_and(|name| stamps.contains(&name.to_lowercase()));
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token.is_word("UNIX_TIMESTAMP") {
            // For a moment, it is the same in all zones.
            match &tokens[at + 1..] {
                [open, of, close, ..] if open.is_symbol(b'(') && is_stamp(of) && close.is_symbol(b')') => {
                    at += 4;
                    continue;
                }
                _ => return true,
            }
        }
        let is_going = token.name().is_some_and(|name| going.contains(&name.to_lowercase()));
        if is_stamp(token) || is_going || token.is_word("FROM_UNIXTIME") {
            return true;
        }
        at += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_time_stamps_goes_by_the_zone() {
        let kept = |elements: &str| {
            let sql = format!("CREATE TABLE `t` (\n  {elements}\n) ENGINE=InnoDB");
            by_zone(&TableSql::parse(sql.as_bytes()).unwrap())
        };
        let at = "`at` timestamp NULL DEFAULT NULL, `d` datetime DEFAULT NULL";
        let day = "`day` date GENERATED ALWAYS AS (cast(`At` as date))";
        assert_eq!(kept(&format!("{at}, {day} STORED")), ["column day"]);
        assert_eq!(kept(&format!("{at}, {day} VIRTUAL")), [""; 0], "computed anew by each who reads it");
        assert_eq!(kept(&format!("{at}, {day} VIRTUAL, KEY `k` (`d`,`day`)")), ["column day"]);
        let next = "`next` date GENERATED ALWAYS AS (`day` + interval 1 day) STORED";
        assert_eq!(kept(&format!("{at}, {next}, {day} VIRTUAL")), ["column next"]);
        let stamp = "`made` timestamp GENERATED ALWAYS AS (`d` + interval 1 day) STORED";
        assert_eq!(kept(&format!("{at}, {stamp}")), ["column made"]);
        for (expression, goes) in [
            ("unix_timestamp(`at`)", false),
            ("unix_timestamp(`d`)", true),
            ("unix_timestamp(`at`) + hour(`at`)", true),
            ("from_unixtime(1)", true),
            ("cast(`d` as date)", false),
            ("concat('`at`', \"at\")", false),
        ] {
            let column = format!("`c` int GENERATED ALWAYS AS ({expression}) STORED");
            assert_eq!(!kept(&format!("{at}, {column}")).is_empty(), goes, "{expression}");
        }
        assert_eq!(kept(&format!("{at}, KEY `f` ((cast(`at` as date))), KEY `g` (`at`)")), ["index f"]);
        assert_eq!(
            kept(
                "`s` timestamp(6) GENERATED ALWAYS AS ROW START, `e` timestamp(6) GENERATED ALWAYS AS ROW END"
            ),
            [""; 0]
        );
    }
}
