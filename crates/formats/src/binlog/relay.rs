//! Relay logs: what a replica's applier reads. A relay log is a binlog file whose first events are its own.
//!
//! ```text
//! magic
//! format description    the relay log's own (flag 0x40); the same as the source's but for that
//! previous GTIDs        MySQL: the relay log's own, none
//! rotate                artificial: the events that follow are of this file, from this offset on
//! format description    the source's
//! events                as in the source's file
//! ```
//!
//! Verified with MariaDB 10.11 and MySQL 9.7: both apply such files. Without the rotate, a parallel applier
//! of MariaDB 10.11.19 crashes, because it then compares file names that it does not have. MySQL 9.7.4
//! refuses a file in which a GTID comes before any previous GTIDs.

use super::{
    BinlogError, Event, EventKind, FILE_MAGIC, HEADER_BYTES,
    event::{CHECKSUM_BYTES, Checksum, Flags, FormatDescription},
};
use crate::Flavor;

/// The flag of the first events of a relay log.
const RELAY_LOG: u16 = 0x40;
const KIND_AT: usize = 4;
const FLAGS_AT: usize = 17;

/// The beginning of a relay log, up to the source's events. `format` is the format description of the
/// source's file, a whole event; `file` and `offset` name the place of the events that follow.
pub fn relay_log_head(
    flavor: Flavor,
    format: &[u8],
    file: &str,
    offset: u64,
) -> Result<Vec<u8>, BinlogError> {
    let event = Event::parse(format, Checksum::None)?;
    if event.header.kind != EventKind::FORMAT_DESCRIPTION {
        let (field, rule) = ("kind", "is not that of a format description");
        return Err(BinlogError::Field { event: event.header.kind, field, rule });
    }
    let checksum = FormatDescription::parse(event.data)?.checksum;
    let mut own = format.to_vec();
    if let Some(flags) = own.get_mut(FLAGS_AT..HEADER_BYTES) {
        flags.copy_from_slice(&RELAY_LOG.to_le_bytes());
    }
    // This event has a checksum even if others have none.
    own.truncate(own.len() - CHECKSUM_BYTES);
    close(&mut own);
    let event = |kind, flags, data: &[u8]| own_event(kind, event.header.server_id, flags, data, checksum);
    let previous = match flavor {
        Flavor::MariaDb => Vec::new(),
        // A set of no servers.
        Flavor::MySql => event(EventKind::PREVIOUS_GTIDS, RELAY_LOG, &[0; 8]),
    };
    let place = [&offset.to_le_bytes(), file.as_bytes()].concat();
    let rotate = event(EventKind::ROTATE, Flags::ARTIFICIAL, &place);
    Ok([&FILE_MAGIC[..], &own, &previous, &rotate, format].concat())
}

fn own_event(kind: EventKind, server_id: u32, flags: u16, data: &[u8], checksum: Checksum) -> Vec<u8> {
    let tail = if checksum == Checksum::Crc32 { CHECKSUM_BYTES } else { 0 };
    let len = (HEADER_BYTES + data.len() + tail) as u32;
    let mut event = vec![0; KIND_AT];
    event.push(kind.0);
    event.extend(server_id.to_le_bytes());
    event.extend(len.to_le_bytes());
    // The end position is 0: the event is in no file of the source.
    event.extend(0_u32.to_le_bytes());
    event.extend(flags.to_le_bytes());
    event.extend(data);
    if checksum == Checksum::Crc32 {
        close(&mut event);
    }
    event
}

fn close(event: &mut Vec<u8>) {
    let crc = crc32fast::hash(event);
    event.extend(crc.to_le_bytes());
}

/// An event with a statement, for a binlog whose events have this checksum. It belongs to no transaction and
/// no database, and names no settings that it is executed under.
#[must_use]
pub fn statement_event(server_id: u32, statement: &str, checksum: Checksum) -> Vec<u8> {
    // Thread, duration, length of the database's name, error, length of the settings; then the end of the
    // name.
    let data = [&[0; 4 + 4 + 1 + 2 + 2 + 1], statement.as_bytes()].concat();
    own_event(EventKind::QUERY, server_id, 0, &data, checksum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binlog::{Body, Header};

    fn format(checksum: u8) -> Vec<u8> {
        let mut event = vec![7, 0, 0, 0, EventKind::FORMAT_DESCRIPTION.0, 9, 0, 0, 0];
        let len = HEADER_BYTES + 2 + 50 + 4 + 1 + 3 + 1 + CHECKSUM_BYTES;
        event.extend((len as u32).to_le_bytes());
        event.extend([0, 1, 0, 0]);
        event.extend(Flags::IN_USE.to_le_bytes());
        event.extend(4_u16.to_le_bytes());
        event.extend([b'x'; 50]);
        event.extend([1, 0, 0, 0, HEADER_BYTES as u8, 1, 2, 3, checksum]);
        let mut closed = event.clone();
        closed[FLAGS_AT] = 0;
        close(&mut closed);
        event.extend(&closed[closed.len() - CHECKSUM_BYTES..]);
        event
    }

    /// The checksums of all events are right; the source's format description comes last and is unchanged.
    #[test]
    fn heads() {
        for (number, checksum) in [(0, Checksum::None), (1, Checksum::Crc32)] {
            for flavor in [Flavor::MariaDb, Flavor::MySql] {
                let format = format(number);
                let head = relay_log_head(flavor, &format, "binlog.000007", 1234).unwrap();
                let mut rest = head.strip_prefix(&FILE_MAGIC).unwrap();
                let mut next = || {
                    let (event, after) = rest.split_at(Header::parse(rest).unwrap().len as usize);
                    rest = after;
                    Event::parse(event, checksum).unwrap()
                };
                assert_eq!(next().header.flags, Flags(RELAY_LOG));
                if flavor == Flavor::MySql {
                    assert_eq!(next().header.kind, EventKind::PREVIOUS_GTIDS);
                }
                let rotate = next();
                assert!(rotate.header.flags.is_artificial());
                assert_eq!(rotate.header.server_id, 9);
                match rotate.body().unwrap() {
                    Body::Rotate { file, position } => {
                        assert_eq!((file, position), (&b"binlog.000007"[..], 1234));
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(rest, format);
            }
        }
        let statement = statement_event(9, "DO 1", Checksum::Crc32);
        match Event::parse(&statement, Checksum::Crc32).unwrap().body().unwrap() {
            Body::Query(query) => assert_eq!((query.schema, &*query.statement), (&b""[..], &b"DO 1"[..])),
            other => panic!("{other:?}"),
        }
        for no_format in [own_event(EventKind::ROTATE, 1, 0, &[], Checksum::None), Vec::new()] {
            assert!(relay_log_head(Flavor::MySql, &no_format, "x", 4).is_err());
        }
    }
}
