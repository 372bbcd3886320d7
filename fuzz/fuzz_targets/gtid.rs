//! Positions of both families: what parses has one canonical form.
#![no_main]

use holdfast_formats::{MariaDbGtidPos, MySqlGtidSet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(position) = text.parse::<MariaDbGtidPos>() {
        assert_eq!(position.to_string().parse(), Ok(position));
    }
    if let Ok(set) = text.parse::<MySqlGtidSet>() {
        assert!(set.contains_all(&set));
        assert_eq!(set.to_string().parse(), Ok(set));
    }
});
