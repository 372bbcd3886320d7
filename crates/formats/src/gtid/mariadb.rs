//! MariaDB: transactions are numbered by domain.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{GtidError, elements, malformed, number, separated};

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        #[test]
        fn positions_survive_the_round_trip(gtids in proptest::collection::btree_map(any::<(u32, u32)>(), any::<u64>(), 0..6)) {
            let position = MariaDbGtidPos { sequences: gtids };
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }
    }
}
