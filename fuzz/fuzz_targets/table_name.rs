//! File names, and back.
#![no_main]

use holdfast_formats::redo::mysql::RedoFileName;
use holdfast_formats::table_name::{TableFile, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(name) = decode(text) {
        assert_eq!(encode(&name).as_deref(), Some(text));
    }
    if let Some(file_name) = encode(text) {
        assert_eq!(decode(&file_name).as_deref(), Some(text));
    }
    TableFile::from_path(text);
    RedoFileName::parse(text);
});
