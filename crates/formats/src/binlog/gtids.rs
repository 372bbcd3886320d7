//! Where transactions begin: the GTID events of both families, and their sets as events carry them.

use super::{BinlogError, EventKind, cursor::Cursor};
use crate::gtid::{Gtid, Interval, MariaDbGtid, MySqlGtid, MySqlGtidSet, Uuid};

/// The first event of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GtidEvent {
    /// Its name; none where the server gives none.
    pub gtid: Option<Gtid>,
    /// Bytes of the whole transaction with this event, where the server tells (MySQL).
    pub len: Option<u64>,
    /// When it was committed on the server that wrote this file, in microseconds since 1970 (MySQL).
    pub committed_us: Option<u64>,
    /// When, as that server was told by whom it has it from: its primary, or whoever gave it what `mysqlbinlog` writes.
    pub first_committed_us: Option<u64>,
    /// The server id of the one where it came about.
    pub origin: u32,
    /// What was committed together with others has the same (MariaDB).
    pub commit_id: Option<u64>,
    /// Whether one statement follows that is a transaction by itself, without a commit (MariaDB).
    pub is_standalone: bool,
    /// Whether it changes definitions, where the server tells (MariaDB).
    pub is_ddl: bool,
}

impl GtidEvent {
    /// Of which nothing is told.
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

    /// When it was committed, by a file of the server `server_id`: where it came about, if that was another. What was executed
    /// there as a client's statements, out of another binlog, was committed when it was.
    #[must_use]
    pub fn committed_us_in(&self, server_id: u32) -> Option<u64> {
        self.first_committed_us.filter(|_| self.origin != server_id).or(self.committed_us)
    }

    /// Behind a primary before 8.0 the time is 0.
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
    // A header has the server; the caller puts it in.
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

/// Seven bytes of microseconds; the highest bit says whether there is another.
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
    // Servers before 8.0 end somewhere here.
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

/// Fields in order of their numbers, each with its number before it; what is not set is left out.
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
                    *byte = u8::try_from(value).map_err(|_| cursor.bad("server", "is no UUID"))?;
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
            // Of later versions, of a length that is not known: what is wanted is before it.
            _ => break,
        }
    }
    event.gtid = Some(named(cursor, uuid, tag, number)?);
    Ok(event)
}

/// Signed numbers have their sign in the lowest bit.
fn signed(value: u64) -> u64 {
    value >> 1
}

fn named(cursor: Cursor<'_>, uuid: Uuid, tag: &str, number: u64) -> Result<Gtid, BinlogError> {
    let gtid = MySqlGtid::new(uuid, tag, number).ok_or_else(|| cursor.bad("GTID", "is none"))?;
    Ok(Gtid::MySql(gtid))
}

/// The set in a Previous_gtids event, and in the command that asks for a stream.
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
            let interval = interval.ok_or_else(|| cursor.bad("interval", "is none"))?;
            if !set.insert(uuid, tag, interval) {
                return Err(cursor.bad("tag", "is none"));
            }
        }
    }
    Ok(set)
}

/// The stored form of a set, as servers want it: with tags only where there are some.
#[must_use]
pub fn encode_set(set: &MySqlGtidSet) -> Vec<u8> {
    let is_tagged = set.iter().any(|(_, tag, _)| !tag.is_empty());
    let servers = set.iter().count() as u64;
    let head = if is_tagged { 1 << 56 | servers << 8 | 1 } else { servers };
    let mut out = head.to_le_bytes().to_vec();
    for (uuid, tag, intervals) in set.iter() {
        out.extend_from_slice(&uuid.0);
        if is_tagged {
            // At most 32 bytes long: one byte of the serialization library's numbers.
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

    /// What a replica has committed an hour later was committed when the primary did; of one before 8.0 nothing is known.
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
