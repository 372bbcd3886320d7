//! Chunks of rows, and leaves of them: what decodes is spelled in the one way.
#![no_main]

use holdfast_repo::format::rows::{
    Piece, RowChunk, begin_piece, begin_rows, decode_leaf, encode_leaf, put_entry, put_row, totals_of,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    match RowChunk::parse(bytes) {
        Ok(RowChunk::Whole(rows)) => {
            begin_rows(&mut again);
            rows.for_each(|row| put_row(&mut again, row));
            assert_eq!(again, bytes);
        }
        Ok(RowChunk::Piece(piece, part)) => {
            assert!(matches!(piece, Piece::First | Piece::Middle | Piece::Last));
            begin_piece(&mut again, piece);
            again.extend_from_slice(part);
            assert_eq!(again, bytes);
        }
        Err(_) => {}
    }
    if let Ok(entries) = decode_leaf(bytes) {
        let mut encoded = Vec::new();
        entries.iter().for_each(|entry| put_entry(&mut encoded, entry));
        assert_eq!(encode_leaf(entries.len(), &encoded), bytes);
        let _ = totals_of(&entries);
    }
});
