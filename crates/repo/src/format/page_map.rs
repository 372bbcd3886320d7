//! Page maps: leaves of 4,096 pages, full or as overlays (`docs/reference/repository.md` section 8).

use std::collections::HashMap;

use holdfast_pipe::PageHash;

use crate::format::{
    columns::{self, CHUNK_BYTES_MAX, PageEntry, get_chunk, put_chunk},
    names::ChunkRef,
    wire::{Decoder, FormatError, put_varint},
};

/// Pages that one leaf maps, at most.
pub const PAGES_PER_LEAF: u32 = 4_096;
/// Patches in an overlay, at most: with more, a full leaf costs less than reading two leaves.
pub const PATCHES_MAX: usize = 512;
/// Leaves in a chunk, at most; also bounds the slot of a leaf reference.
pub const LEAVES_PER_CHUNK_MAX: u32 = 1_024;

/// Where a leaf is, and the hash that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRef {
    /// A chunk of leaves.
    pub chunk: ChunkRef,
    /// Hash of the chunk's plain bytes.
    pub hash: PageHash,
    /// Position in the chunk.
    pub slot: u32,
}

/// Appends a list of leaf references: the chunks in order of first use, then chunk and slot of each leaf.
pub(crate) fn put_leaf_refs(out: &mut Vec<u8>, leaves: &[LeafRef]) {
    let mut numbers: HashMap<(ChunkRef, PageHash), u64> = HashMap::new();
    let mut chunks = Vec::new();
    let mut places = Vec::with_capacity(leaves.len() * 4);
    for leaf in leaves {
        let next = numbers.len() as u64;
        let number = *numbers.entry((leaf.chunk, leaf.hash)).or_insert_with(|| {
            put_chunk(&mut chunks, leaf.chunk);
            chunks.extend_from_slice(&leaf.hash.0);
            next
        });
        put_varint(&mut places, number);
        put_varint(&mut places, u64::from(leaf.slot));
    }
    put_varint(out, leaves.len() as u64);
    put_varint(out, numbers.len() as u64);
    out.extend_from_slice(&chunks);
    out.extend_from_slice(&places);
}

/// Reads a list of leaf references.
pub(crate) fn get_leaf_refs(decoder: &mut Decoder<'_>) -> Result<Vec<LeafRef>, FormatError> {
    let count = decoder.count("leaf count", CHUNK_BYTES_MAX, 2)?;
    let chunk_count = decoder.count("leaf chunk count", count, 19)?;
    let mut chunks: Vec<(ChunkRef, PageHash)> = Vec::with_capacity(chunk_count);
    for _ in 0..chunk_count {
        chunks.push((get_chunk(decoder)?, PageHash(decoder.array("leaf chunk hash")?)));
    }
    let mut leaves = Vec::with_capacity(count);
    for _ in 0..count {
        let number = decoder.varint("leaf chunk")?;
        let chunk = usize::try_from(number).ok().and_then(|number| chunks.get(number));
        let (chunk, hash) = *chunk.ok_or(FormatError::rule("leaf chunk", "is not in the list"))?;
        leaves.push(LeafRef { chunk, hash, slot: get_slot(decoder)? });
    }
    Ok(leaves)
}

fn get_slot(decoder: &mut Decoder<'_>) -> Result<u32, FormatError> {
    decoder.u32_most("leaf slot", LEAVES_PER_CHUNK_MAX - 1)
}

/// One leaf as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// Every page.
    Full(Vec<PageEntry>),
    /// The differences from a full leaf.
    Overlay(Overlay),
}

/// Sorted patches on exactly one full leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The full leaf.
    pub under: LeafRef,
    /// Number of pages that the two map together.
    pub page_count: u32,
    /// Page within the leaf and its entry, in order of pages.
    pub patches: Vec<(u32, PageEntry)>,
}

impl Leaf {
    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Full(entries) => encode_full(entries, out),
            Self::Overlay(overlay) => {
                out.push(2);
                put_chunk(out, overlay.under.chunk);
                put_varint(out, u64::from(overlay.under.slot));
                out.extend_from_slice(&overlay.under.hash.0);
                put_varint(out, u64::from(overlay.page_count));
                put_varint(out, overlay.patches.len() as u64);
                let mut next = 0;
                for (page, _) in &overlay.patches {
                    put_varint(out, u64::from(page - next));
                    next = page + 1;
                }
                let entries: Vec<_> = overlay.patches.iter().map(|(_, entry)| *entry).collect();
                columns::encode(&entries, out);
            }
        }
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(bytes);
        let leaf = match decoder.u8("leaf kind")? {
            1 => {
                let count = decoder.between("page count", 1, u64::from(PAGES_PER_LEAF))? as usize;
                Self::Full(columns::decode(&mut decoder, count)?)
            }
            2 => {
                let (chunk, slot) = (get_chunk(&mut decoder)?, get_slot(&mut decoder)?);
                let under = LeafRef { chunk, hash: PageHash(decoder.array("leaf chunk hash")?), slot };
                let page_count = decoder.between("page count", 1, u64::from(PAGES_PER_LEAF))? as u32;
                let count = decoder.count("patch count", PATCHES_MAX, 1)?;
                let mut pages = Vec::with_capacity(count);
                let mut next = 0;
                for _ in 0..count {
                    let page = next + decoder.u32_most("patch distance", PAGES_PER_LEAF)?;
                    if page >= page_count {
                        return Err(FormatError::rule("patch", "is beyond the leaf's pages"));
                    }
                    pages.push(page);
                    next = page + 1;
                }
                let entries = columns::decode(&mut decoder, count)?;
                Self::Overlay(Overlay {
                    under,
                    page_count,
                    patches: pages.into_iter().zip(entries).collect(),
                })
            }
            kind => return Err(FormatError::unknown("leaf kind", kind)),
        };
        decoder.end("leaf")?;
        Ok(leaf)
    }
}

/// Appends the stored form of a full leaf.
pub(crate) fn encode_full(entries: &[PageEntry], out: &mut Vec<u8>) {
    out.push(1);
    put_varint(out, entries.len() as u64);
    columns::encode(entries, out);
}

impl Overlay {
    /// The pages that the full leaf `under` and this overlay map together.
    pub fn apply(&self, under: &[PageEntry]) -> Result<Vec<PageEntry>, FormatError> {
        let count = self.page_count as usize;
        let mut entries: Vec<_> = under.iter().copied().map(Some).take(count).collect();
        entries.resize(count, None);
        for (page, entry) in &self.patches {
            if let Some(place) = entries.get_mut(*page as usize) {
                *place = Some(*entry);
            }
        }
        entries
            .into_iter()
            .collect::<Option<_>>()
            .ok_or(FormatError::rule("overlay", "leaves pages beyond the full leaf unpatched"))
    }
}

/// Plain bytes of a chunk of leaves that are already encoded.
#[must_use]
pub fn encode_leaf_chunk(leaves: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(leaves.iter().map(|leaf| leaf.len() + 3).sum::<usize>() + 3);
    put_varint(&mut out, leaves.len() as u64);
    for leaf in leaves {
        put_varint(&mut out, leaf.len() as u64);
    }
    for leaf in leaves {
        out.extend_from_slice(leaf);
    }
    out
}

/// The encoded leaves of a chunk of leaves.
pub fn split_leaf_chunk(plain: &[u8]) -> Result<Vec<&[u8]>, FormatError> {
    let mut decoder = Decoder::new(plain);
    let count = decoder.count("leaf count", LEAVES_PER_CHUNK_MAX as usize, 1)?;
    let mut lens = Vec::with_capacity(count);
    for _ in 0..count {
        lens.push(decoder.u32_most("leaf length", CHUNK_BYTES_MAX as u32)? as usize);
    }
    let leaves = lens.into_iter().map(|len| decoder.bytes("leaf", len)).collect::<Result<Vec<_>, _>>()?;
    decoder.end("leaves")?;
    Ok(leaves)
}

/// One encoded leaf of a chunk of leaves, found without listing them all.
pub fn leaf_of_chunk(plain: &[u8], slot: u32) -> Result<&[u8], FormatError> {
    let mut decoder = Decoder::new(plain);
    let count = decoder.count("leaf count", LEAVES_PER_CHUNK_MAX as usize, 1)?;
    let slot = slot as usize;
    if slot >= count {
        return Err(FormatError::rule("leaf slot", "is beyond the chunk's leaves"));
    }
    let (mut before, mut len) = (0, 0);
    for position in 0..count {
        let next = decoder.u32_most("leaf length", CHUNK_BYTES_MAX as u32)? as usize;
        if position < slot {
            before += next;
        } else if position == slot {
            len = next;
        }
    }
    decoder.bytes("leaf", before)?;
    decoder.bytes("leaf", len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::{
        columns::tests::any_entry,
        names::{PackId, RunNo},
    };

    fn leaf_ref() -> LeafRef {
        let chunk = ChunkRef { pack: PackId { run: RunNo(3), part: 2 }, ordinal: 9 };
        LeafRef { chunk, hash: PageHash([7; 16]), slot: 4 }
    }

    fn any_leaf() -> impl Strategy<Value = Leaf> {
        prop_oneof![
            prop::collection::vec(any_entry(), 1..300).prop_map(Leaf::Full),
            prop::collection::btree_map(0..4_000_u32, any_entry(), 0..100).prop_map(|patches| {
                Leaf::Overlay(Overlay {
                    under: leaf_ref(),
                    page_count: 4_000,
                    patches: patches.into_iter().collect(),
                })
            }),
        ]
    }

    proptest! {
        #[test]
        fn leaves_come_back(leaf in any_leaf()) {
            let mut bytes = Vec::new();
            leaf.encode(&mut bytes);
            prop_assert_eq!(Leaf::decode(&bytes), Ok(leaf));
        }

        #[test]
        fn damaged_leaves_are_errors_or_other_leaves_but_never_a_panic(
            leaf in any_leaf(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>()
        ) {
            let mut bytes = Vec::new();
            leaf.encode(&mut bytes);
            prop_assert!(Leaf::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(Leaf::decode(&bytes), Ok(leaf));
        }

        #[test]
        fn an_overlay_shows_its_patches_and_what_is_under_them(
            under in prop::collection::vec(any_entry(), 1..300),
            patches in prop::collection::btree_map(0..200_u32, any_entry(), 0..60),
            page_count in 200..300_u32,
        ) {
            let overlay = Overlay { under: leaf_ref(), page_count, patches: patches.clone().into_iter().collect() };
            let covered = (0..page_count).all(|page| (page as usize) < under.len() || patches.contains_key(&page));
            match overlay.apply(&under) {
                Ok(entries) => {
                    prop_assert!(covered);
                    prop_assert_eq!(entries.len(), page_count as usize);
                    for (page, entry) in entries.iter().enumerate() {
                        prop_assert_eq!(entry, patches.get(&(page as u32)).unwrap_or_else(|| &under[page]));
                    }
                }
                Err(_) => prop_assert!(!covered),
            }
        }

        #[test]
        fn chunks_of_leaves_come_back(leaves in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
            let plain = encode_leaf_chunk(&leaves);
            prop_assert_eq!(split_leaf_chunk(&plain).unwrap(), leaves.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for (slot, leaf) in leaves.iter().enumerate() {
                prop_assert_eq!(leaf_of_chunk(&plain, slot as u32).unwrap(), &leaf[..]);
            }
            prop_assert!(leaf_of_chunk(&plain, leaves.len() as u32).is_err());
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Leaf::decode(&bytes);
            let _ = split_leaf_chunk(&bytes);
            let _ = leaf_of_chunk(&bytes, 1);
        }
    }
}
