//! What a server answers to a login, to queries and to statements, and sends on a stream of its binlog.
#![no_main]

use holdfast_core::{
    binlog,
    server::{bulk, connection},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    connection::fuzzing::login(bytes);
    bulk::fuzzing::answer(bytes);
    binlog::fuzzing::stream(bytes);
});
