//! Records about keys (words for signers, removals, rotations and what is sealed in them), signed by an operator.
#![no_main]

use std::sync::OnceLock;

use holdfast_repo::fuzzing::{RecordPiece, Records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    static RECORDS: OnceLock<Records> = OnceLock::new();
    let records = RECORDS.get_or_init(|| Records::new().expect("a repository with two keys"));
    let (piece, bytes) = input;
    let piece = RecordPiece::ALL[usize::from(piece) % RecordPiece::ALL.len()];
    let _ = records.read_with(piece, bytes);
});
