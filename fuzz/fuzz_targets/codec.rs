//! Decompression: never more than was said, and what was compressed comes back.
#![no_main]

use holdfast_pipe::codec::{Codec, Compression, Compressor, compress_patch, decompress, decompress_patch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u32, &[u8])| {
    let (number, plain_len, bytes) = input;
    let plain_len = plain_len as usize % (1 << 20);
    let mut plain = Vec::new();
    if let Ok(codec) = Codec::try_from(number % 6)
        && decompress(codec, bytes, plain_len, &mut plain).is_ok()
    {
        assert_eq!(plain.len(), plain_len);
    }
    let all = [Compression::None, Compression::Lz4, Compression::Zstd { level: 1 }, Compression::Gzip { level: 1 }];
    let compression = all[usize::from(number) % all.len()];
    let mut stored = Vec::new();
    let mut compressor = Compressor::new(compression).expect("a compressor");
    let codec = compressor.compress(bytes, &mut stored).expect("compressed");
    decompress(codec, &stored, bytes.len(), &mut plain).expect("decompressed");
    assert_eq!(plain, bytes);
    // Hostile bytes on any prefix; and a patch of one half on the other.
    let (prefix, rest) = bytes.split_at(bytes.len() / 2);
    if decompress_patch(prefix, rest, plain_len, &mut plain).is_ok() {
        assert_eq!(plain.len(), plain_len);
    }
    compress_patch(prefix, rest, &mut stored).expect("compressed");
    decompress_patch(prefix, &stored, rest.len(), &mut plain).expect("decompressed");
    assert_eq!(plain, rest);
});
