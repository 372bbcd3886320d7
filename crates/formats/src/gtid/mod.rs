//! Positions in the stream of transactions: MariaDB's list of domains, MySQL's set of intervals.
//!
//! Both parse what a server prints, and print it in one canonical form, so that equal positions are equal
//! strings. The memory for text from outside is bounded by its length: nothing here expands an interval.

use std::{fmt, str::FromStr};

use crate::Flavor;

mod mariadb;
mod mysql;

pub use mariadb::{MariaDbGtid, MariaDbGtidPos};
pub use mysql::{Interval, MySqlGtid, MySqlGtidSet, Uuid};

/// A position, of either family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gtids {
    /// The last transaction of each domain.
    MariaDb(MariaDbGtidPos),
    /// Every transaction executed.
    MySql(MySqlGtidSet),
}

impl fmt::Display for Gtids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gtids::MariaDb(position) => position.fmt(f),
            Gtids::MySql(set) => set.fmt(f),
        }
    }
}

impl Gtids {
    /// The position before every transaction of a family.
    #[must_use]
    pub fn none(flavor: Flavor) -> Gtids {
        match flavor {
            Flavor::MariaDb => Gtids::MariaDb(MariaDbGtidPos::default()),
            Flavor::MySql => Gtids::MySql(MySqlGtidSet::default()),
        }
    }

    /// The family of the position.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        match self {
            Gtids::MariaDb(_) => Flavor::MariaDb,
            Gtids::MySql(_) => Flavor::MySql,
        }
    }

    /// Adds a transaction: the new last one of its domain, or one more of the set. A transaction of the other
    /// family changes nothing.
    pub fn add(&mut self, gtid: &Gtid) {
        match (self, gtid) {
            (Gtids::MariaDb(position), Gtid::MariaDb(gtid)) => position.advance(*gtid),
            (Gtids::MySql(set), Gtid::MySql(gtid)) => set.add(gtid),
            _ => {}
        }
    }

    /// Adds the transactions of `other` that are not at or before this position. A position of the other
    /// family changes nothing.
    pub fn add_all(&mut self, other: &Gtids) {
        match (self, other) {
            (Gtids::MariaDb(position), Gtids::MariaDb(other)) => position.add_all(other),
            (Gtids::MySql(set), Gtids::MySql(other)) => set.add_all(other),
            _ => {}
        }
    }

    /// Whether the transaction is at or before this position.
    #[must_use]
    pub fn contains(&self, gtid: &Gtid) -> bool {
        match (self, gtid) {
            (Gtids::MariaDb(position), Gtid::MariaDb(gtid)) => position.reaches(*gtid),
            (Gtids::MySql(set), Gtid::MySql(gtid)) => set.contains(gtid),
            _ => false,
        }
    }

    /// Whether every transaction of `other` is at or before this position. Always false for the other family,
    /// even if no transaction is named.
    #[must_use]
    pub fn includes(&self, other: &Gtids) -> bool {
        match (self, other) {
            (Gtids::MariaDb(position), Gtids::MariaDb(other)) => position.reaches_all(other),
            (Gtids::MySql(set), Gtids::MySql(other)) => set.contains_all(other),
            _ => false,
        }
    }

    /// Whether no transaction is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Gtids::MariaDb(position) => position.is_empty(),
            Gtids::MySql(set) => set.is_empty(),
        }
    }
}

/// The GTID of a transaction, of either family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gtid {
    /// MariaDB's.
    MariaDb(MariaDbGtid),
    /// MySQL's.
    MySql(MySqlGtid),
}

impl Gtid {
    /// The family of the transaction.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        match self {
            Gtid::MariaDb(_) => Flavor::MariaDb,
            Gtid::MySql(_) => Flavor::MySql,
        }
    }
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gtid::MariaDb(gtid) => gtid.fmt(f),
            Gtid::MySql(gtid) => gtid.fmt(f),
        }
    }
}

impl FromStr for Gtid {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<Gtid, GtidError> {
        match text.contains(':') {
            true => text.parse().map(Gtid::MySql),
            false => text.parse().map(Gtid::MariaDb),
        }
    }
}

/// Why a text is not a position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GtidError {
    /// A part does not have the expected form.
    #[error("{part:?} is not {expected}")]
    Malformed {
        /// The part.
        part: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A position has one transaction per domain and server.
    #[error("domain {domain} and server {server} are named twice")]
    Duplicate {
        /// The domain.
        domain: u32,
        /// The server.
        server: u32,
    },
}

fn malformed(part: &str, expected: &'static str) -> GtidError {
    GtidError::Malformed { part: part.to_owned(), expected }
}

/// Decimal digits only: no sign, no blanks.
fn number<N: FromStr>(text: &str) -> Option<N> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The comma-separated elements of a list. Servers print line breaks after commas; empty elements are
/// allowed.
fn elements(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn separated(
    f: &mut fmt::Formatter<'_>,
    separator: &str,
    items: impl IntoIterator<Item = impl fmt::Display>,
) -> fmt::Result {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    fn mysql(text: &str) -> Result<MySqlGtidSet, GtidError> {
        text.parse()
    }

    /// A position does not include one of the other family, not even an empty one.
    #[test]
    fn one_position_includes_another() {
        let mariadb = |text: &str| Gtids::MariaDb(text.parse().unwrap());
        let own = mariadb("0-1-5,0-2-9,7-1-3");
        for (other, included) in
            [("", true), ("0-1-9", true), ("0-3-7,7-1-3", true), ("0-1-10", false), ("8-1-1", false)]
        {
            assert_eq!(own.includes(&mariadb(other)), included, "{other}");
        }
        let set = Gtids::MySql(mysql(&format!("{A}:1-5")).unwrap());
        assert!(set.includes(&Gtids::MySql(mysql(&format!("{A}:2-5")).unwrap())));
        assert!(!set.includes(&Gtids::MySql(mysql(&format!("{A}:2-6")).unwrap())));
        assert!(!set.includes(&mariadb("")) && !mariadb("").includes(&Gtids::MySql(mysql("").unwrap())));
    }

    /// A transaction already reached changes nothing; a later one replaces its domain's.
    #[test]
    fn positions_are_joined() {
        for (own, other, joined) in [
            ("0-1-5,7-1-3", "0-2-4,7-2-8", "0-1-5,7-2-8"),
            ("", "0-1-5,0-2-9", "0-2-9"),
            ("0-1-5", "", "0-1-5"),
            ("0-1-5,0-2-9", "0-3-10,8-1-1", "0-3-10,8-1-1"),
        ] {
            let mut own = Gtids::MariaDb(own.parse().unwrap());
            own.add_all(&Gtids::MariaDb(other.parse().unwrap()));
            assert_eq!(own.to_string(), joined, "{other}");
        }
        let mut none = Gtids::none(Flavor::MySql);
        none.add_all(&Gtids::MariaDb("0-1-5".parse().unwrap()));
        assert_eq!(none, Gtids::none(Flavor::MySql));
        let set = Gtids::MySql(mysql(&format!("{A}:1-5")).unwrap());
        none.add_all(&set);
        assert_eq!(none, set);
    }

    #[test]
    fn either_family_prints_itself() {
        assert_eq!(Gtids::MariaDb("0-1-2".parse().unwrap()).to_string(), "0-1-2");
        assert_eq!(Gtids::MySql(mysql(&format!("{A}:1")).unwrap()).to_string(), format!("{A}:1"));
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in prop_oneof![".*", "[0-9a-fA-F:,_ -]{0,80}"]) {
            let _ = text.parse::<MariaDbGtidPos>();
            let _ = mysql(&text);
            let _ = mysql(&format!("{A}:{text}"));
        }
    }
}
