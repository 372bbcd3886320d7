//! What a server answers to queries and statements, and sends on a stream of its binlog.
#![no_main]

use holdfast_core::{binlog, server::bulk};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    bulk::fuzzing::answer(bytes);
    binlog::fuzzing::stream(bytes);
});
