//! Binlog events one after another, and what is compressed in them: whatever comes, transactions begin before
//! they end, and sets of transactions come back as they were.
#![no_main]

use holdfast_formats::binlog::{Body, Checksum, Event, HEADER_BYTES, Header, Part, Tracker, encode_set};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    let mut tracker = Tracker::default();
    let mut is_inside = false;
    while let Ok(header) = Header::parse(rest) {
        let len = (header.len as usize).clamp(HEADER_BYTES, rest.len());
        let (bytes, after) = rest.split_at(len);
        rest = after;
        // With and without checksums, which random bytes seldom have.
        for checksum in [Checksum::Crc32, Checksum::None] {
            let Ok(event) = Event::parse(bytes, checksum) else { continue };
            let Ok(body) = event.body() else { continue };
            if let Body::PreviousGtids(set) = &body {
                assert!(set.contains_all(set));
                assert_eq!(set.to_string().parse(), Ok(set.clone()));
                assert!(encode_set(set).len() <= bytes.len() + 8 || set.iter().count() > 0);
            }
            if let Body::Payload(payload) = &body {
                let _ = payload.for_each(&mut |inner| drop(inner.body()));
            }
            match tracker.next(&event, &body) {
                Ok(Part::First) => is_inside = true,
                Ok(Part::Inside) => assert!(is_inside),
                Ok(Part::Last) => {
                    assert!(is_inside);
                    is_inside = false;
                }
                Ok(Part::Outside) => is_inside = false,
                Err(_) => is_inside = tracker.is_inside(),
            }
            break;
        }
    }
});
