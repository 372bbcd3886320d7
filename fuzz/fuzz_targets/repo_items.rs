//! The item table.
#![no_main]

use holdfast_repo::format::item::{Item, decode_items};
use holdfast_repo::format::wire::Decoder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(items) = decode_items(bytes) else { return };
    for item in items {
        let path = item.path.as_bytes();
        assert!(!path.starts_with(b"/") && !path.split(|byte| *byte == b'/').any(|part| part == b".."));
        let mut again = Vec::new();
        item.encode(&mut again);
        assert_eq!(Item::decode(&mut Decoder::new(&again)), Ok(item));
    }
});
