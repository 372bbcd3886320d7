//! Directories and trailers of packs: chunks never lie outside their pack.
#![no_main]

use holdfast_repo::format::pack::{Directory, PackRows, TRAILER_BYTES, Trailer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &[u8])| {
    let (size_bytes, bytes) = input;
    if let Ok(directory) = Directory::decode(bytes) {
        assert_eq!(directory.chunks().map(|(_, hashes)| hashes.len()).sum::<usize>(), directory.hashes.len());
        if let Ok(rows) = PackRows::new(size_bytes, directory.rows) {
            for ordinal in 0..rows.rows().len() as u32 {
                let (row, offset) = rows.chunk(ordinal).expect("a chunk of the pack");
                assert!(offset + u64::from(row.sealed_len) <= size_bytes);
            }
        }
    }
    if let Some(trailer) = bytes.first_chunk::<TRAILER_BYTES>()
        && let Ok(trailer) = Trailer::decode(trailer, size_bytes)
    {
        assert!(trailer.offset + u64::from(trailer.sealed_len) <= size_bytes);
    }
});
