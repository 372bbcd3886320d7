//! Index parts.
#![no_main]

use holdfast_repo::format::index;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(packs) = index::decode(bytes) {
        assert_eq!(index::decode(&index::encode(&packs)), Ok(packs));
    }
});
