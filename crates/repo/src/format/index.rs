//! A part of a run's index: the rows of many packs in one object (`docs/reference/repository.md` section 7).

use crate::format::{
    pack::{ChunkRow, decode_rows, encode_rows},
    wire::{Decoder, FormatError, put_varint},
};

/// Packs in a part, at most: a bound for readers, far above what comes together in 2 GiB or 5 minutes.
pub const PACKS_PER_PART_MAX: usize = 65_536;

/// Chunks in a part, at most. Anyone with the public half of a key can seal a part, and a row takes ten times the
/// memory that it takes in the store: this bounds what a part costs its readers.
pub const ROWS_PER_PART_MAX: usize = 1 << 19;

/// One pack, as the index lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedPack {
    /// Part number of the pack.
    pub part: u32,
    /// Size of the object.
    pub size_bytes: u64,
    /// Its chunks.
    pub rows: Vec<ChunkRow>,
}

/// The stored form of packs in part order.
#[must_use]
pub fn encode(packs: &[IndexedPack]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, packs.len() as u64);
    for pack in packs {
        put_varint(&mut out, u64::from(pack.part));
        put_varint(&mut out, pack.size_bytes);
        encode_rows(&pack.rows, &mut out);
    }
    out
}

/// Reads the stored form.
pub fn decode(plain: &[u8]) -> Result<Vec<IndexedPack>, FormatError> {
    let mut decoder = Decoder::new(plain);
    let count = decoder.count("pack count", PACKS_PER_PART_MAX, 3)?;
    let mut packs: Vec<IndexedPack> = Vec::with_capacity(count);
    let mut row_count = 0;
    for _ in 0..count {
        let part = decoder.u32_most("part", 999_999)?;
        if packs.last().is_some_and(|last| last.part >= part) {
            return Err(FormatError::rule("part", "is not after the one before"));
        }
        let size_bytes = decoder.varint("object size")?;
        let rows = decode_rows(&mut decoder)?;
        row_count += rows.len();
        if row_count > ROWS_PER_PART_MAX {
            return Err(FormatError::rule("chunk count", "is more than a part may list"));
        }
        packs.push(IndexedPack { part, size_bytes, rows });
    }
    decoder.end("index")?;
    Ok(packs)
}

#[cfg(test)]
mod tests {
    use holdfast_pipe::Codec;
    use proptest::prelude::*;

    use super::*;
    use crate::format::{
        columns::CHUNKS_PER_PACK_MAX,
        pack::{ChunkKind, tests::any_row},
    };

    /// A part that would cost its readers gigabytes is refused before it does.
    #[test]
    fn a_part_with_too_many_chunks_is_refused() {
        let row = ChunkRow {
            kind: ChunkKind::Leaves,
            codec: Codec::None,
            plain_len: 0,
            sealed_len: 16,
            unit_count: 0,
            base: None,
        };
        let pack = |part| IndexedPack { part, size_bytes: 1, rows: vec![row; CHUNKS_PER_PACK_MAX as usize] };
        let most = (ROWS_PER_PART_MAX / CHUNKS_PER_PACK_MAX as usize) as u32;
        let packs: Vec<_> = (0..=most).map(pack).collect();
        assert!(decode(&encode(&packs[1..])).is_ok());
        assert!(decode(&encode(&packs)).is_err());
    }

    proptest! {
        #[test]
        fn index_parts_come_back(packs in prop::collection::btree_map(0..1_000_u32, (any::<u64>(), prop::collection::vec(any_row(), 0..9)), 0..9)) {
            let packs: Vec<_> = packs.into_iter().map(|(part, (size_bytes, rows))| IndexedPack { part, size_bytes, rows }).collect();
            let bytes = encode(&packs);
            prop_assert_eq!(decode(&bytes), Ok(packs));
            for cut in 0..bytes.len() {
                prop_assert!(decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
