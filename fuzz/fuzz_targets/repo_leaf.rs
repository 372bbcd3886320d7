//! Leaves and chunks of leaves: what decodes is spelled in the one way.
#![no_main]

use holdfast_repo::format::page_map::{Leaf, leaf_of_chunk, split_leaf_chunk};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(leaf) = Leaf::decode(bytes) {
        let mut again = Vec::new();
        leaf.encode(&mut again);
        assert_eq!(again, bytes);
        if let Leaf::Overlay(overlay) = leaf {
            let _ = overlay.apply(&[]);
        }
    }
    if let Ok(leaves) = split_leaf_chunk(bytes) {
        for (slot, leaf) in (0..).zip(leaves) {
            assert_eq!(leaf_of_chunk(bytes, slot), Ok(leaf));
        }
    }
});
