//! The content of a segment of a binlog archive, which the repository keeps sealed.
#![no_main]

use holdfast_core::binlog;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| binlog::fuzzing::segment(bytes));
