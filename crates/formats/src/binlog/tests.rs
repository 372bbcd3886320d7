use proptest::prelude::*;

use super::*;
use crate::gtid::{Interval, MySqlGtidSet, Uuid};

/// An event with a checksum.
fn event(kind: EventKind, data: &[u8]) -> Vec<u8> {
    let len = (HEADER_BYTES + data.len() + 4) as u32;
    let mut bytes = 1_700_000_000_u32.to_le_bytes().to_vec();
    bytes.push(kind.0);
    for field in [7, len, 1_000] {
        bytes.extend_from_slice(&u32::to_le_bytes(field));
    }
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(data);
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// A single flipped bit is found anywhere.
#[test]
fn checksums_find_every_flipped_bit() {
    let good = event(EventKind::XID, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(Event::parse(&good, Checksum::Crc32).unwrap().body(), Ok(Body::Xid));
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Event::parse(&bad, Checksum::Crc32).is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(Event::parse(&good[..len], Checksum::Crc32).is_err(), "{len}");
    }
}

/// Each event is as long as its header says, and bytes that are cut off are not lost.
#[test]
fn events_are_split() {
    let (first, second) = (event(EventKind::XID, &[0; 8]), event(EventKind::STOP, &[]));
    let both = [&first[..], &second].concat();
    assert_eq!(split_events(&both).collect::<Vec<_>>(), [Ok(&first[..]), Ok(&second[..])]);
    for cut in 1..second.len() {
        let parts: Vec<_> = split_events(&both[..both.len() - cut]).collect();
        assert_eq!(parts, [Ok(&first[..]), Err(&second[..second.len() - cut])], "{cut}");
    }
    let mut short = first.clone();
    short[9..13].fill(0);
    assert_eq!(
        split_events(&short).next(),
        Some(Ok(&short[..HEADER_BYTES])),
        "no event is shorter than a header"
    );
    assert_eq!(split_events(&[]).next(), None);
}

/// The first event of a file has the same checksum while the file is being written and after it is closed.
#[test]
fn files_in_use() {
    let mut data = 4_u16.to_le_bytes().to_vec();
    data.extend_from_slice(b"10.11.6-MariaDB-log");
    data.resize(2 + 50 + 4, 0);
    data.push(19);
    data.extend_from_slice(&[0; 170]);
    data.push(1);
    let mut bytes = event(EventKind::FORMAT_DESCRIPTION, &data);
    for flags in [0, Flags::IN_USE as u8] {
        bytes[17] = flags;
        let parsed = Event::parse(&bytes, Checksum::None).unwrap();
        let Ok(Body::FormatDescription(format)) = parsed.body() else { panic!("{parsed:?}") };
        assert_eq!(Checksum::of_format(&bytes), Some(format.checksum));
        assert_eq!(
            (format.server_version.as_str(), format.checksum),
            ("10.11.6-MariaDB-log", Checksum::Crc32)
        );
    }
}

proptest! {
    /// Any bytes give an answer.
    #[test]
    fn any_bytes(kind in any::<u8>(), data in proptest::collection::vec(any::<u8>(), 0..300)) {
        let bytes = event(EventKind(kind), &data);
        let mut tracker = Tracker::default();
        for checksum in [Checksum::None, Checksum::Crc32] {
            let Ok(event) = Event::parse(&bytes, checksum) else { continue };
            let Ok(body) = event.body() else { continue };
            if let Body::Payload(payload) = &body {
                let _ = payload.for_each(&mut |inner| drop(inner.body()));
            }
            let _ = tracker.next(&event, &body);
        }
        let _ = Header::parse(&data);
    }

    /// Sets are read back from the form that servers expect, with and without tags.
    #[test]
    fn sets(parts in proptest::collection::vec(
        (any::<[u8; 16]>(), 0usize..3, proptest::collection::vec((1_u64..1000, 0_u64..50), 1..6)), 0..6,
    ), tagged in any::<bool>()) {
        let mut set = MySqlGtidSet::default();
        let mut text = Vec::new();
        for (uuid, tag, intervals) in parts {
            let tag = if tagged { ["", "a", "_b"][tag] } else { "" };
            for (first, more) in intervals {
                let interval = Interval::new(first, first + more).unwrap();
                prop_assert!(set.insert(Uuid(uuid), tag, interval));
                let tag = if tag.is_empty() { String::new() } else { format!("{tag}:") };
                text.push(format!("{}:{tag}{interval}", Uuid(uuid)));
            }
        }
        // Intervals added one by one give the same set as all at once.
        prop_assert_eq!(&text.join(",").parse::<MySqlGtidSet>().unwrap(), &set);
        let bytes = event(EventKind::PREVIOUS_GTIDS, &encode_set(&set));
        let parsed = Event::parse(&bytes, Checksum::Crc32).unwrap();
        prop_assert_eq!(parsed.body(), Ok(Body::PreviousGtids(set)));
    }
}
