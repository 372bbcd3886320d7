//! Positions in the stream of transactions: MariaDB's list of domains, MySQL's set of intervals.
//!
//! Both parse what a server prints, and print it in one canonical form, so that equal positions are equal
//! strings. The memory for text from outside is bounded by its length: nothing here expands an interval.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::Flavor;

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

/// MariaDB: `domain-server-sequence`, comma separated. Usually one transaction per domain
/// (`@@gtid_slave_pos`); the binlog's state has one per domain and server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MariaDbGtidPos {
    sequences: BTreeMap<(u32, u32), u64>,
}

/// One MariaDB transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MariaDbGtid {
    /// The replication domain.
    pub domain: u32,
    /// The server that wrote it first.
    pub server: u32,
    /// Its number in the domain.
    pub sequence: u64,
}

impl fmt::Display for MariaDbGtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.domain, self.server, self.sequence)
    }
}

impl FromStr for MariaDbGtid {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<MariaDbGtid, GtidError> {
        let mut parts = text.trim().split('-');
        let mut parse = || {
            let gtid = MariaDbGtid {
                domain: number(parts.next()?)?,
                server: number(parts.next()?)?,
                sequence: number(parts.next()?)?,
            };
            parts.next().is_none().then_some(gtid)
        };
        parse().ok_or_else(|| malformed(text, "a GTID domain-server-sequence"))
    }
}

impl MariaDbGtidPos {
    /// Whether no transaction is named.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Removes everything named of a domain.
    pub fn leave_out(&mut self, domain: u32) {
        self.sequences.retain(|(of, _), _| *of != domain);
    }

    /// Makes `gtid` the only transaction named of its domain.
    pub fn advance(&mut self, gtid: MariaDbGtid) {
        self.leave_out(gtid.domain);
        self.sequences.insert((gtid.domain, gtid.server), gtid.sequence);
    }

    /// Names `gtid` of its domain and server, unless a later one of them is named.
    pub fn raise(&mut self, gtid: MariaDbGtid) {
        let last = self.sequences.entry((gtid.domain, gtid.server)).or_default();
        *last = gtid.sequence.max(*last);
    }

    /// The number of the transaction that is named of this domain and server.
    #[must_use]
    pub fn sequence_of(&self, domain: u32, server: u32) -> Option<u64> {
        self.sequences.get(&(domain, server)).copied()
    }

    /// Advances to each transaction of `other`, in their order, that is not reached by then.
    pub fn add_all(&mut self, other: &MariaDbGtidPos) {
        for gtid in other.iter() {
            if !self.reaches(gtid) {
                self.advance(gtid);
            }
        }
    }

    /// Whether this position has reached the transaction in its domain.
    #[must_use]
    pub fn reaches(&self, gtid: MariaDbGtid) -> bool {
        let mut of_domain = self.sequences.range((gtid.domain, 0)..=(gtid.domain, u32::MAX));
        of_domain.any(|(_, sequence)| *sequence >= gtid.sequence)
    }

    /// Whether this position has reached every transaction of `other`.
    #[must_use]
    pub fn reaches_all(&self, other: &MariaDbGtidPos) -> bool {
        other.iter().all(|gtid| self.reaches(gtid))
    }

    /// The transactions, by domain and server.
    pub fn iter(&self) -> impl Iterator<Item = MariaDbGtid> {
        self.sequences.iter().map(|(&(domain, server), &sequence)| MariaDbGtid { domain, server, sequence })
    }
}

impl FromStr for MariaDbGtidPos {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<MariaDbGtidPos, GtidError> {
        let mut sequences = BTreeMap::new();
        for part in elements(text) {
            let MariaDbGtid { domain, server, sequence } = part.parse()?;
            if sequences.insert((domain, server), sequence).is_some() {
                return Err(GtidError::Duplicate { domain, server });
            }
        }
        Ok(MariaDbGtidPos { sequences })
    }
}

impl fmt::Display for MariaDbGtidPos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        separated(f, ",", self.iter())
    }
}

/// A UUID, the name of a MySQL server in GTIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    const FORM: &'static str = "a UUID";
    /// Digits in each group.
    const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
}

impl FromStr for Uuid {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<Uuid, GtidError> {
        let digits: String = text.split('-').collect();
        let groups_fit = text.split('-').map(str::len).eq(Uuid::GROUPS);
        let value = u128::from_str_radix(&digits, 16).ok();
        match value.filter(|_| groups_fit && digits.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            Some(value) => Ok(Uuid(value.to_be_bytes())),
            None => Err(malformed(text, Uuid::FORM)),
        }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = u128::from_be_bytes(self.0);
        for (index, group) in Uuid::GROUPS.into_iter().enumerate() {
            if index > 0 {
                f.write_str("-")?;
            }
            let bits = group as u32 * 4;
            write!(f, "{:0group$x}", digits >> (128 - bits))?;
            digits <<= bits;
        }
        Ok(())
    }
}

/// MySQL: per server, and from 8.3 on per tag, the numbers of its transactions as intervals:
/// `uuid:1-5:7,uuid:1-3:tag:4-9`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MySqlGtidSet {
    /// The tag is empty for transactions without one. No interval list is empty.
    intervals: BTreeMap<Uuid, BTreeMap<String, Vec<Interval>>>,
}

/// One MySQL transaction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MySqlGtid {
    /// The server that executed it first.
    pub server: Uuid,
    /// Lower case; empty where there is none.
    tag: String,
    /// From 1.
    pub number: u64,
}

impl MySqlGtid {
    /// A GTID; `None` if the parts cannot be those of one.
    #[must_use]
    pub fn new(server: Uuid, tag: &str, number: u64) -> Option<MySqlGtid> {
        Interval::new(number, number)?;
        Some(MySqlGtid { server, tag: parse_tag(tag).ok()?, number })
    }

    /// The tag; empty where there is none.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

impl fmt::Display for MySqlGtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag.as_str() {
            "" => write!(f, "{}:{}", self.server, self.number),
            tag => write!(f, "{}:{tag}:{}", self.server, self.number),
        }
    }
}

impl FromStr for MySqlGtid {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<MySqlGtid, GtidError> {
        let mut parts = text.trim().split(':');
        let mut parse = || {
            let server = parts.next()?.parse().ok()?;
            let next = parts.next()?;
            let (tag, digits) = match parts.next() {
                Some(_) if next.is_empty() => return None,
                Some(digits) => (next, digits),
                None => ("", next),
            };
            let gtid = MySqlGtid::new(server, tag, number(digits)?)?;
            parts.next().is_none().then_some(gtid)
        };
        parse().ok_or_else(|| malformed(text, "a GTID server:number or server:tag:number"))
    }
}

/// Transactions `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval {
    /// At least 1.
    pub first: u64,
    /// At least `first`.
    pub last: u64,
}

impl Interval {
    /// An interval; `None` if these cannot be the ends of one.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Option<Interval> {
        (1 <= first && first <= last && last <= Interval::LAST_MAX).then_some(Interval { first, last })
    }

    const FORM: &'static str = "an interval of transaction numbers";
    /// The largest transaction number is one less than 2^63 - 1.
    const LAST_MAX: u64 = i64::MAX as u64 - 1;

    fn parse(text: &str) -> Result<Interval, GtidError> {
        let (first, last) = text.split_once('-').map_or((text, None), |(first, last)| (first, Some(last)));
        let parse = || {
            let first = number(first.trim())?;
            let last = last.map_or(Some(first), |last| number(last.trim()))?;
            Interval::new(first, last)
        };
        parse().ok_or_else(|| malformed(text, Interval::FORM))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl MySqlGtidSet {
    /// Whether no transaction is named.
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// The intervals of each server and tag, sorted and not adjacent; the tag is empty where there is none.
    pub fn iter(&self) -> impl Iterator<Item = (Uuid, &str, &[Interval])> {
        self.intervals.iter().flat_map(|(&uuid, tags)| {
            tags.iter().map(move |(tag, intervals)| (uuid, tag.as_str(), intervals.as_slice()))
        })
    }

    /// Whether every transaction of `other` is also in this set: a server at this position has everything
    /// that a server at `other` has.
    pub fn contains_all(&self, other: &MySqlGtidSet) -> bool {
        other.iter().all(|(uuid, tag, intervals)| {
            let own = self.intervals.get(&uuid).and_then(|tags| tags.get(tag)).map_or(&[][..], Vec::as_slice);
            intervals.iter().all(|inner| {
                let after = own.partition_point(|outer| outer.first <= inner.first);
                after.checked_sub(1).is_some_and(|at| own[at].last >= inner.last)
            })
        })
    }

    /// Adds transactions of a server. If the tag is not valid, adds nothing and returns false.
    pub fn insert(&mut self, server: Uuid, tag: &str, interval: Interval) -> bool {
        let Ok(tag) = parse_tag(tag) else { return false };
        let list = self.intervals.entry(server).or_default().entry(tag).or_default();
        // Intervals that touch the new one are merged with it.
        let from = list.partition_point(|other| other.last.saturating_add(1) < interval.first);
        let to = list.partition_point(|other| other.first <= interval.last.saturating_add(1));
        let joined = list[from..to.max(from)].iter().fold(interval, |joined, other| Interval {
            first: joined.first.min(other.first),
            last: joined.last.max(other.last),
        });
        list.splice(from..to.max(from), [joined]);
        true
    }

    /// Adds a transaction.
    pub fn add(&mut self, gtid: &MySqlGtid) {
        self.insert(gtid.server, &gtid.tag, Interval { first: gtid.number, last: gtid.number });
    }

    /// Adds all of another set.
    pub fn add_all(&mut self, other: &MySqlGtidSet) {
        for (server, tag, intervals) in other.iter() {
            for interval in intervals {
                self.insert(server, tag, *interval);
            }
        }
    }

    /// Whether the transaction is in the set.
    #[must_use]
    pub fn contains(&self, gtid: &MySqlGtid) -> bool {
        let list = self.intervals.get(&gtid.server).and_then(|tags| tags.get(&gtid.tag));
        list.is_some_and(|list| {
            let after = list.partition_point(|interval| interval.first <= gtid.number);
            after.checked_sub(1).is_some_and(|at| list[at].last >= gtid.number)
        })
    }

    /// Sorts every list and joins intervals that touch.
    fn normalize(mut self) -> MySqlGtidSet {
        for intervals in self.intervals.values_mut().flat_map(BTreeMap::values_mut) {
            intervals.sort_unstable();
            intervals.dedup_by(|next, previous| {
                let touches = next.first <= previous.last + 1;
                if touches {
                    previous.last = previous.last.max(next.last);
                }
                touches
            });
        }
        self
    }
}

impl FromStr for MySqlGtidSet {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<MySqlGtidSet, GtidError> {
        let mut set = MySqlGtidSet::default();
        for part in elements(text) {
            let (uuid, rest) =
                part.split_once(':').ok_or_else(|| malformed(part, "a GTID set uuid:intervals"))?;
            let tags = set.intervals.entry(uuid.trim().parse()?).or_default();
            // Tags and intervals alternate; a tag applies to the intervals after it.
            let mut tag = None;
            let mut needs_interval = true;
            for item in rest.split(':').map(str::trim) {
                if item.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
                    if needs_interval && tag.is_some() {
                        return Err(malformed(item, Interval::FORM));
                    }
                    tag = Some(parse_tag(item)?);
                    needs_interval = true;
                } else {
                    let key = tag.clone().unwrap_or_default();
                    tags.entry(key).or_default().push(Interval::parse(item)?);
                    needs_interval = false;
                }
            }
            if needs_interval {
                return Err(malformed(part, "a GTID set that ends with an interval"));
            }
        }
        Ok(set.normalize())
    }
}

/// Tags are up to 32 letters, digits and underscores, not case-sensitive, and do not begin with a digit. The
/// empty text stands for no tag.
fn parse_tag(text: &str) -> Result<String, GtidError> {
    const LENGTH_MAX: usize = 32;
    let valid = text.len() <= LENGTH_MAX
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !text.starts_with(|first: char| first.is_ascii_digit());
    if valid { Ok(text.to_ascii_lowercase()) } else { Err(malformed(text, "a GTID tag")) }
}

impl fmt::Display for MySqlGtidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (uuid, tags)) in self.intervals.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            uuid.fmt(f)?;
            for (tag, intervals) in tags {
                if !tag.is_empty() {
                    write!(f, ":{tag}")?;
                }
                f.write_str(":")?;
                separated(f, ":", intervals)?;
            }
        }
        Ok(())
    }
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
    const B: &str = "24da167a-0c0c-11e8-8442-00059a3c7b00";

    fn mysql(text: &str) -> Result<MySqlGtidSet, GtidError> {
        text.parse()
    }

    #[test]
    fn mariadb_positions() {
        let position: MariaDbGtidPos = " 10-2-7, 0-1-100 ,0-2-99".parse().unwrap();
        assert_eq!(position.to_string(), "0-1-100,0-2-99,10-2-7");
        assert_eq!(position.iter().count(), 3);
        assert!("".parse::<MariaDbGtidPos>().unwrap().is_empty());
        for bad in ["0-1", "0-1-2-3", "0-1-x", "-1-2-3", "0-1-+2", "4294967296-1-1", "0-1- 2", "x"] {
            assert!(bad.parse::<MariaDbGtidPos>().is_err(), "{bad}");
        }
        assert_eq!(
            "0-1-2,0-1-3".parse::<MariaDbGtidPos>(),
            Err(GtidError::Duplicate { domain: 0, server: 1 })
        );
    }

    #[test]
    fn mysql_sets_have_one_form() {
        for (text, canonical) in [
            ("", String::new()),
            (&*format!("{A}:5"), format!("{A}:5")),
            (&format!("{}:7:1-3:4-5,\n{B}:1-2", A.to_uppercase()), format!("{B}:1-2,{A}:1-5:7")),
            (&format!("{A}:1-5,{A}:3-9,,"), format!("{A}:1-9")),
            (&format!("{A}:Tag_1:4-9:2:other:1:tag_1:3, {A}:1-3"), format!("{A}:1-3:other:1:tag_1:2-9")),
            (&format!("{A} : 1 - 3"), format!("{A}:1-3")),
        ] {
            assert_eq!(mysql(text).unwrap().to_string(), canonical, "{text}");
            assert_eq!(mysql(&canonical).unwrap(), mysql(text).unwrap());
        }
    }

    #[test]
    fn a_tag_of_one_transaction_is_one_of_a_set_too() {
        for rest in [":5", ":tag:5", ":_1:5"] {
            let gtid: MySqlGtid = format!("{A}{rest}").parse().unwrap();
            assert!(mysql(&gtid.to_string()).unwrap().contains(&gtid), "{rest}");
        }
        for rest in [":1:5", ":1a:5", "::5", ":+5", ":tag:+5", ":tag:5:6"] {
            assert!(format!("{A}{rest}").parse::<MySqlGtid>().is_err(), "{rest}");
        }
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for rest in [
            "",
            ":",
            ":0",
            ":5-4",
            ":1-",
            ":-1",
            ":1-2-3",
            ":tag",
            ":1:tag",
            ":a:b:1",
            ":1a:1",
            ":1 2",
            ":ta-g:1",
            ":a234567890123456789012345678901234:1",
            ":9223372036854775807",
            ":99999999999999999999",
            ":+1",
        ] {
            assert!(mysql(&format!("{A}{rest}")).is_err(), "{rest}");
        }
        for uuid in [
            "",
            "3e11fa47-71ca-11e1-9e33-c80aa942956",
            "3e11fa4771ca11e19e33c80aa9429562",
            "+e11fa47-71ca-11e1-9e33-c80aa9429562",
        ] {
            assert!(mysql(&format!("{uuid}:1")).is_err(), "{uuid}");
        }
        assert!(mysql(&format!("{A}:9223372036854775806")).is_ok());
    }

    #[test]
    fn one_set_contains_another() {
        let set = mysql(&format!("{A}:1-5:9-20:t:3,{B}:1")).unwrap();
        for (inner, contained) in [
            (String::new(), true),
            (format!("{A}:2-5:10"), true),
            (format!("{A}:2-6"), false),
            (format!("{A}:6-8"), false),
            (format!("{A}:t:3,{B}:1"), true),
            (format!("{A}:t:3-4"), false),
            (format!("{A}:u:1"), false),
            (format!("{B}:1-2"), false),
        ] {
            assert_eq!(set.contains_all(&mysql(&inner).unwrap()), contained, "{inner}");
        }
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
        fn positions_survive_the_round_trip(gtids in proptest::collection::btree_map(any::<(u32, u32)>(), any::<u64>(), 0..6)) {
            let position = MariaDbGtidPos { sequences: gtids };
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }

        #[test]
        fn sets_survive_the_round_trip(parts in proptest::collection::vec(
            (any::<[u8; 16]>(), 0usize..3, proptest::collection::vec((1u64..1000, 0u64..50), 1..6)), 0..6,
        )) {
            let mut set = MySqlGtidSet::default();
            for (uuid, tag, intervals) in parts {
                let tag = ["", "a", "_b"][tag].to_owned();
                let list = set.intervals.entry(Uuid(uuid)).or_default().entry(tag).or_default();
                list.extend(intervals.into_iter().map(|(first, more)| Interval { first, last: first + more }));
            }
            let set = set.normalize();
            for (_, _, intervals) in set.iter() {
                prop_assert!(intervals.windows(2).all(|pair| pair[0].last + 1 < pair[1].first));
            }
            prop_assert!(set.contains_all(&set));
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }

        #[test]
        fn any_text_gives_an_answer(text in prop_oneof![".*", "[0-9a-fA-F:,_ -]{0,80}"]) {
            let _ = text.parse::<MariaDbGtidPos>();
            let _ = mysql(&text);
            let _ = mysql(&format!("{A}:{text}"));
        }
    }
}
