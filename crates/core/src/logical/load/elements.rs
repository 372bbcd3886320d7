//! Splits `CREATE TABLE` into its elements, as far as a load must understand what servers print.
//!
//! What is put together again unchanged has the same bytes, and what is not understood stays where it is.

use crate::logical::sql::{Kind, Token, tokens};

/// The kind of an element of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementKind {
    Column,
    Primary,
    Unique,
    Index,
    Fulltext,
    Spatial,
    Vector,
    ForeignKey,
    Check,
    Period,
}

impl ElementKind {
    /// An index that is not the primary key.
    pub(super) fn is_secondary(self) -> bool {
        matches!(self, Self::Unique | Self::Index | Self::Fulltext | Self::Spatial | Self::Vector)
    }
}

/// A column, key or constraint of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) kind: ElementKind,
    /// The name of the column, index or constraint; a primary key has none.
    pub(super) name: Option<String>,
    pub(super) text: Vec<u8>,
}

impl Element {
    fn parse(text: &[u8]) -> Element {
        let all = tokens(text);
        let mut words = all.iter().filter(|token| !matches!(token.kind, Kind::Space | Kind::Comment));
        let first = words.next();
        let is = |word: &str| first.is_some_and(|token| token.is_word(word));
        let (kind, name) = if first.is_some_and(|token| token.kind == Kind::Name) {
            (ElementKind::Column, first.and_then(Token::name))
        } else if is("PRIMARY") {
            (ElementKind::Primary, None)
        } else if is("UNIQUE") {
            (ElementKind::Unique, words.find_map(Token::name))
        } else if is("FULLTEXT") {
            (ElementKind::Fulltext, words.find_map(Token::name))
        } else if is("SPATIAL") {
            (ElementKind::Spatial, words.find_map(Token::name))
        } else if is("VECTOR") {
            (ElementKind::Vector, words.find_map(Token::name))
        } else if is("PERIOD") {
            (ElementKind::Period, words.find_map(Token::name))
        } else if is("CONSTRAINT") || is("FOREIGN") || is("CHECK") {
            let is_foreign = all.iter().any(|token| token.is_word("FOREIGN"));
            let name = if is("CONSTRAINT") { words.next().and_then(Token::name) } else { None };
            (if is_foreign { ElementKind::ForeignKey } else { ElementKind::Check }, name)
        } else {
            (ElementKind::Index, words.find_map(Token::name))
        };
        Element { kind, name, text: text.to_vec() }
    }

    /// The first column of an index, if it is a column and not an expression.
    pub(super) fn first_column(&self) -> Option<String> {
        let all = tokens(&self.text);
        let open = all.iter().position(|token| token.is_symbol(b'('))?;
        all.get(open + 1).and_then(Token::name)
    }

    /// Whether it contains this word.
    pub(super) fn has_word(&self, word: &str) -> bool {
        tokens(&self.text).iter().any(|token| token.is_word(word))
    }
}

/// `CREATE TABLE` as `SHOW` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableSql {
    pub(super) elements: Vec<Element>,
    /// What follows the closing parenthesis: options and partitions.
    pub(super) tail: Vec<u8>,
}

impl TableSql {
    /// Splits a statement; `None` if it is not of this form.
    pub(super) fn parse(sql: &[u8]) -> Option<TableSql> {
        let all = tokens(sql);
        let open = all.iter().position(|token| token.is_symbol(b'('))?;
        let is_create = all.first().is_some_and(|token| token.is_word("CREATE"));
        if !is_create || !all[..open].iter().any(|token| token.is_word("TABLE")) {
            return None;
        }
        let mut elements = Vec::new();
        let (mut depth, mut text) = (1, Vec::new());
        let mut end = |text: &mut Vec<u8>| {
            let element = std::mem::take(text);
            elements.push(Element::parse(element.trim_ascii()));
        };
        for (position, token) in all.iter().enumerate().skip(open + 1) {
            if token.is_symbol(b'(') {
                depth += 1;
            } else if token.is_symbol(b')') {
                depth -= 1;
                if depth == 0 {
                    end(&mut text);
                    let tail = all[position + 1..].iter().flat_map(|token| token.bytes).copied().collect();
                    return Some(TableSql { elements, tail });
                }
            } else if token.is_symbol(b',') && depth == 1 {
                end(&mut text);
                continue;
            }
            text.extend_from_slice(token.bytes);
        }
        None
    }

    /// The statement that creates a table of this name with the elements that are `wanted`.
    pub(super) fn create(&self, name: &str, wanted: impl Fn(&Element) -> bool) -> Vec<u8> {
        let mut sql = format!("CREATE TABLE {name} (\n  ").into_bytes();
        let texts: Vec<&[u8]> = self
            .elements
            .iter()
            .filter(|element| wanted(element))
            .map(|element| element.text.as_slice())
            .collect();
        sql.extend_from_slice(&texts.join(&b",\n  "[..]));
        sql.extend_from_slice(b"\n)");
        sql.extend_from_slice(&self.tail);
        sql
    }

    /// Whether it has an element of this kind.
    pub(super) fn has(&self, kind: ElementKind) -> bool {
        self.elements.iter().any(|element| element.kind == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever names, strings and comments contain, elements end where they should, and come back unchanged.
    #[test]
    fn elements() {
        let sql = b"CREATE TABLE `a``, (b` (\n  `x,` int(11) NOT NULL DEFAULT (1 + (2)) COMMENT 'it''s ), \\' (',\n  \
            `v` enum('a,b',')') /*!80023 INVISIBLE */,\n  PRIMARY KEY (`x,`),\n  UNIQUE KEY `u` (`v`(3) DESC,`x,`),\n  \
            KEY `f` ((`x,` + 1)),\n  CONSTRAINT `c` FOREIGN KEY (`v`) REFERENCES `p` (`id`),\n  \
            CONSTRAINT `positive` CHECK (`x,` > 0)\n) ENGINE=InnoDB COMMENT='(x'";
        let table = TableSql::parse(sql).unwrap();
        let found: Vec<_> = table.elements.iter().map(|it| (it.kind, it.name.as_deref())).collect();
        assert_eq!(
            found,
            [
                (ElementKind::Column, Some("x,")),
                (ElementKind::Column, Some("v")),
                (ElementKind::Primary, None),
                (ElementKind::Unique, Some("u")),
                (ElementKind::Index, Some("f")),
                (ElementKind::ForeignKey, Some("c")),
                (ElementKind::Check, Some("positive")),
            ]
        );
        assert_eq!(table.create("`a``, (b`", |_| true), sql);
        assert_eq!(table.elements[3].first_column().as_deref(), Some("v"));
        assert_eq!(table.elements[4].first_column(), None);
        for cut in 0..sql.len() - 30 {
            let _ = TableSql::parse(&sql[..cut]);
        }
    }
}
