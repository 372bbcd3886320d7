//! Page 0.
#![no_main]

use holdfast_formats::{Flavor, Geometry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|page0: &[u8]| {
    for flavor in [Flavor::MariaDb, Flavor::MySql] {
        if let Ok(Some(geometry)) = Geometry::parse(flavor, page0) {
            assert!(geometry.page_size() <= geometry.logical_page_size());
            geometry.encrypted(page0);
        }
    }
});
