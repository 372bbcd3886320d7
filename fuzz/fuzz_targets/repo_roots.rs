//! Roots of the item table, and the head that leads to them.
#![no_main]

use holdfast_repo::format::{item::decode_roots, manifest::Head};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = decode_roots(bytes);
    if let Ok(head) = Head::decode(bytes) {
        let again = head.encode().expect("a head that was read can be written");
        assert_eq!(Head::decode(&again).expect("and read again"), head);
    }
});
