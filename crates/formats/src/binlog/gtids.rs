//! Where transactions begin: the GTID events of both families, and GTID sets as events carry them.

use super::{BinlogError, EventKind, cursor::Cursor};
use crate::gtid::{Gtid, Interval, MariaDbGtid, MySqlGtid, MySqlGtidSet, Uuid};

/// The first event of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GtidEvent {
    /// Its GTID; none if the server gives none.
    pub gtid: Option<Gtid>,
    /// Bytes of the whole transaction, including this event, if the server tells (MySQL).
    pub len: Option<u64>,
    /// When it was committed on the server that wrote this file, in microseconds since 1970 (MySQL).
    pub committed_us: Option<u64>,
    /// The commit time that this server got with the transaction: from its primary, or from a client that
    /// runs the output of `mysqlbinlog`.
    pub first_committed_us: Option<u64>,
    /// The id of the server where the transaction originated.
    pub origin: u32,
    /// Transactions that were committed together have the same number (MariaDB).
    pub commit_id: Option<u64>,
    /// Whether a single statement follows that is a transaction by itself, without a commit (MariaDB).
    pub is_standalone: bool,
    /// Whether it changes definitions, if the server tells (MariaDB).
    pub is_ddl: bool,
}

impl GtidEvent {
    /// An event without any information.
    pub const NOTHING: Self = Self {
        gtid: None,
        len: None,
        committed_us: None,
        first_committed_us: None,
        origin: 0,
        commit_id: None,
        is_standalone: false,
        is_ddl: false,
    };

    /// When the transaction was committed, according to a file of the server `server_id`: on its original
    /// server, if that is another. A transaction that a client executed on `server_id` from another binlog
    /// was committed when it was executed.
    #[must_use]
    pub fn committed_us_in(&self, server_id: u32) -> Option<u64> {
        self.first_committed_us.filter(|_| self.origin != server_id).or(self.committed_us)
    }

    /// Sets the original commit time, which is 0 if the primary is older than 8.0.
    fn committed_first(&mut self, at_us: u64) {
        self.first_committed_us = Some(at_us).filter(|at_us| *at_us > 0);
    }

    pub(super) fn parse(kind: EventKind, data: &[u8]) -> Result<Self, BinlogError> {
        let cursor = Cursor::new(kind, data);
        match kind {
            EventKind::MARIADB_GTID => mariadb(cursor),
            EventKind::GTID_TAGGED => tagged(cursor),
            _ => untagged(kind, cursor),
        }
    }
}

fn mariadb(mut cursor: Cursor<'_>) -> Result<GtidEvent, BinlogError> {
    const STANDALONE: u8 = 1;
    const GROUP_COMMIT_ID: u8 = 2;
    const DDL: u8 = 32;
    // The header has the server; the caller fills it in.
    let sequence = cursor.u64("sequence number")?;
    let domain = cursor.u32("domain")?;
    let flags = cursor.u8("flags")?;
    let commit_id = match flags & GROUP_COMMIT_ID {
        0 => None,
        _ => Some(cursor.u64("commit id")?),
    };
    Ok(GtidEvent {
        gtid: Some(Gtid::MariaDb(MariaDbGtid { domain, server: 0, sequence })),
        commit_id,
        is_standalone: flags & STANDALONE != 0,
        is_ddl: flags & DDL != 0,
        ..GtidEvent::NOTHING
    })
}

/// The time has seven bytes of microseconds; the highest bit says whether another time follows.
const ORIGINAL_FOLLOWS: u64 = 1 << 55;

fn untagged(kind: EventKind, mut cursor: Cursor<'_>) -> Result<GtidEvent, BinlogError> {
    const LOGICAL_CLOCK: u8 = 2;
    cursor.u8("flags")?;
    let uuid = Uuid(cursor.array("server")?);
    let number = cursor.u64("number")?;
    let gtid = match kind {
        EventKind::GTID => Some(named(cursor, uuid, "", number)?),
        _ => None,
    };
    let mut event = GtidEvent { gtid, ..GtidEvent::NOTHING };
    // Events of servers before 8.0 end somewhere here.
    if cursor.is_empty() || cursor.u8("clock")? != LOGICAL_CLOCK {
        return Ok(event);
    }
    cursor.bytes("logical clock", 16)?;
    if cursor.is_empty() {
        return Ok(event);
    }
    let committed = cursor.uint("commit time", 7)?;
    event.committed_us = Some(committed & !ORIGINAL_FOLLOWS);
    if committed & ORIGINAL_FOLLOWS != 0 {
        event.committed_first(cursor.uint("original commit time", 7)?);
    }
    event.len = Some(cursor.packed("transaction length")?).filter(|len| *len > 0);
    Ok(event)
}

/// Fields in order of their numbers, each preceded by its number; fields that are not set are left out.
fn tagged(mut cursor: Cursor<'_>) -> Result<GtidEvent, BinlogError> {
    cursor.varint("serialization version")?;
    cursor.varint("message size")?;
    cursor.varint("last field")?;
    let mut event = GtidEvent::NOTHING;
    let (mut uuid, mut number, mut tag) = (Uuid([0; 16]), 0, "");
    let mut last = None;
    while !cursor.is_empty() {
        let field = cursor.varint("field number")?;
        if last.is_some_and(|last| field <= last) {
            return Err(cursor.bad("field number", "is not after the one before"));
        }
        last = Some(field);
        match field {
            0 => drop(cursor.varint("flags")?),
            1 => {
                for byte in &mut uuid.0 {
                    let value = cursor.varint("server")?;
                    *byte = u8::try_from(value).map_err(|_| cursor.bad("server", "is not a UUID"))?;
                }
            }
            2 => number = signed(cursor.varint("number")?),
            3 => {
                let len = cursor.varint("tag length")?;
                let text = cursor.bytes("tag", usize::try_from(len).unwrap_or(usize::MAX))?;
                tag = std::str::from_utf8(text).map_err(|_| cursor.bad("tag", "is not text"))?;
            }
            6 => event.committed_us = Some(cursor.varint("commit time")?),
            7 => event.committed_first(cursor.varint("original commit time")?),
            8 => event.len = Some(cursor.varint("transaction length")?).filter(|len| *len > 0),
            4 | 5 | 9..=11 => drop(cursor.varint("a field")?),
            // A field of a later version, whose length is not known: the fields wanted here come before it.
            _ => break,
        }
    }
    event.gtid = Some(named(cursor, uuid, tag, number)?);
    Ok(event)
}

/// Signed numbers have their sign in the lowest bit, which is dropped.
fn signed(value: u64) -> u64 {
    value >> 1
}

fn named(cursor: Cursor<'_>, uuid: Uuid, tag: &str, number: u64) -> Result<Gtid, BinlogError> {
    let gtid = MySqlGtid::new(uuid, tag, number).ok_or_else(|| cursor.bad("GTID", "is not valid"))?;
    Ok(Gtid::MySql(gtid))
}

/// The set in a Previous_gtids event, and in the command that requests a stream.
pub(super) fn decode_set(kind: EventKind, data: &[u8]) -> Result<MySqlGtidSet, BinlogError> {
    const TAGGED: u64 = 1;
    let mut cursor = Cursor::new(kind, data);
    let head = cursor.u64("number of servers")?;
    let is_tagged = head >> 56 == TAGGED;
    let servers = if is_tagged { head >> 8 & ((1 << 48) - 1) } else { head & ((1 << 56) - 1) };
    let mut set = MySqlGtidSet::default();
    for _ in 0..servers {
        let uuid = Uuid(cursor.array("server")?);
        let tag = match is_tagged {
            true => {
                let len = cursor.varint("tag length")?;
                cursor.bytes("tag", usize::try_from(len).unwrap_or(usize::MAX))?
            }
            false => &[],
        };
        let tag = std::str::from_utf8(tag).map_err(|_| cursor.bad("tag", "is not text"))?;
        for _ in 0..cursor.u64("number of intervals")? {
            let first = cursor.u64("interval")?;
            let last = cursor.u64("interval")?.checked_sub(1);
            let interval = last.and_then(|last| Interval::new(first, last));
            let interval = interval.ok_or_else(|| cursor.bad("interval", "is not valid"))?;
            if !set.insert(uuid, tag, interval) {
                return Err(cursor.bad("tag", "is not valid"));
            }
        }
    }
    Ok(set)
}

/// The stored form of a set, as servers expect it: with tags only if there are any.
#[must_use]
pub fn encode_set(set: &MySqlGtidSet) -> Vec<u8> {
    let is_tagged = set.iter().any(|(_, tag, _)| !tag.is_empty());
    let servers = set.iter().count() as u64;
    let head = if is_tagged { 1 << 56 | servers << 8 | 1 } else { servers };
    let mut out = head.to_le_bytes().to_vec();
    for (uuid, tag, intervals) in set.iter() {
        out.extend_from_slice(&uuid.0);
        if is_tagged {
            // A tag has at most 32 bytes: one byte for its length in the serialization library's form.
            out.push((tag.len() as u8) << 1);
            out.extend_from_slice(tag.as_bytes());
        }
        out.extend_from_slice(&(intervals.len() as u64).to_le_bytes());
        for interval in intervals {
            out.extend_from_slice(&interval.first.to_le_bytes());
            out.extend_from_slice(&(interval.last + 1).to_le_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction that a replica commits an hour later counts as committed when the primary committed it;
    /// of a primary before 8.0 nothing is known.
    #[test]
    fn transactions_were_committed_where_they_came_about() {
        const HOUR_US: u64 = 3_600_000_000;
        let at = 1_763_000_000_000_000_u64;
        let seven = |value: u64| value.to_le_bytes()[..7].to_vec();
        let event = |times: Vec<u8>| {
            let clock = [&[2][..], &[0; 16]].concat();
            let data = [&[1][..], &[7; 16], &9_u64.to_le_bytes(), &clock, &times, &[100]].concat();
            GtidEvent::parse(EventKind::GTID, &data).unwrap()
        };
        for (times, committed_us) in [
            (seven(at), at),
            ([seven((at + HOUR_US) | ORIGINAL_FOLLOWS), seven(at)].concat(), at),
            ([seven(at | ORIGINAL_FOLLOWS), seven(0)].concat(), at),
        ] {
            let event = GtidEvent { origin: 1, ..event(times) };
            assert_eq!((event.committed_us_in(2), event.len), (Some(committed_us), Some(100)));
            assert_eq!(event.committed_us_in(1), event.committed_us);
        }
    }
}
