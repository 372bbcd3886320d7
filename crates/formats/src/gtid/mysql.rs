//! MySQL: transactions are numbered by the server that executed them first, and a set may have holes.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{GtidError, elements, malformed, number, separated};

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const B: &str = "24da167a-0c0c-11e8-8442-00059a3c7b00";

    fn mysql(text: &str) -> Result<MySqlGtidSet, GtidError> {
        text.parse()
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

    proptest! {
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
    }
}
