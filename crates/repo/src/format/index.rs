//! A part of a run's index: the rows of many packs in one object (`docs/reference/repository.md` section 7).

use crate::format::{
    pack::{ChunkRow, decode_rows, encode_rows},
    wire::{Decoder, FormatError, put_varint},
};

/// Packs in a part, at most: a bound for readers, far above what comes together in 2 GiB or 5 minutes.
pub const PACKS_PER_PART_MAX: usize = 65_536;

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
    for _ in 0..count {
        let part = decoder.u32_most("part", 999_999)?;
        if packs.last().is_some_and(|last| last.part >= part) {
            return Err(FormatError::rule("part", "is not after the one before"));
        }
        let size_bytes = decoder.varint("object size")?;
        packs.push(IndexedPack { part, size_bytes, rows: decode_rows(&mut decoder)? });
    }
    decoder.end("index")?;
    Ok(packs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::pack::tests::any_row;

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
