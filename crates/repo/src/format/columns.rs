//! Page entries, and the columns in which lists of them are stored
//! (`docs/reference/repository.md` section 8).
//!
//! The columns are canonical: each list of entries has exactly one encoding, so equal maps are equal bytes.

use std::collections::HashMap;

use holdfast_pipe::PageHash;

use crate::format::{
    names::{ChunkRef, PackId, RunNo},
    wire::{Decoder, FormatError, put_varint},
};

/// Chunks in a pack, at most.
pub const CHUNKS_PER_PACK_MAX: u32 = 4_096;
/// Plain bytes in a chunk, at most.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Pages in a chunk, at most: 1 MiB of the smallest.
pub const PAGES_PER_CHUNK_MAX: u32 = 1_024;

const RUN_MAX: u64 = 9_999_999_999;
pub(crate) const PART_MAX: u32 = 999_999;
const PACKS_PER_LIST_MAX: usize = 65_535;

/// Where one page of a file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEntry {
    /// All bytes are 0.
    Zero,
    /// The source had no block here; reads as zeros.
    Hole,
    /// Stored in a chunk.
    Stored(StoredPage),
}

/// A page in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoredPage {
    /// Hash of its bytes, which is compared with the next backup and with what a restore has read.
    pub hash: PageHash,
    /// The chunk.
    pub chunk: ChunkRef,
    /// Position in the chunk, in pages.
    pub slot: u32,
}

impl PageEntry {
    /// The stored page, if it is one.
    #[must_use]
    pub fn stored(&self) -> Option<&StoredPage> {
        match self {
            Self::Stored(page) => Some(page),
            Self::Zero | Self::Hole => None,
        }
    }
}

pub(crate) fn put_pack(out: &mut Vec<u8>, pack: PackId) {
    put_varint(out, pack.run.0);
    put_varint(out, u64::from(pack.part));
}

pub(crate) fn get_pack(decoder: &mut Decoder<'_>) -> Result<PackId, FormatError> {
    let run = RunNo(decoder.between("run", 1, RUN_MAX)?);
    Ok(PackId { run, part: decoder.u32_most("part", PART_MAX)? })
}

pub(crate) fn put_chunk(out: &mut Vec<u8>, chunk: ChunkRef) {
    put_pack(out, chunk.pack);
    put_varint(out, u64::from(chunk.ordinal));
}

pub(crate) fn get_chunk(decoder: &mut Decoder<'_>) -> Result<ChunkRef, FormatError> {
    let pack = get_pack(decoder)?;
    Ok(ChunkRef { pack, ordinal: decoder.u32_most("ordinal", CHUNKS_PER_PACK_MAX - 1)? })
}

/// Appends the columns of `entries`, at most 4,096.
pub fn encode(entries: &[PageEntry], out: &mut Vec<u8>) {
    let mut numbers: HashMap<PackId, u64> = HashMap::new();
    let mut packs = Vec::new();
    let mut states = Vec::with_capacity(entries.len() * 2);
    let mut last = None;
    for entry in entries {
        let state = match entry {
            PageEntry::Zero => 0,
            PageEntry::Hole => 1,
            PageEntry::Stored(page) => match last {
                Some((pack, number)) if pack == page.chunk.pack => number,
                _ => {
                    let pack = page.chunk.pack;
                    let number = *numbers.entry(pack).or_insert_with(|| {
                        packs.push(pack);
                        packs.len() as u64 + 1
                    });
                    last = Some((pack, number));
                    number
                }
            },
        };
        put_varint(&mut states, state);
    }
    put_varint(out, packs.len() as u64);
    for pack in packs {
        put_pack(out, pack);
    }
    out.extend_from_slice(&states);
    let stored = || entries.iter().filter_map(PageEntry::stored);
    for page in stored() {
        put_varint(out, u64::from(page.chunk.ordinal));
    }
    for page in stored() {
        put_varint(out, u64::from(page.slot));
    }
    for page in stored() {
        out.extend_from_slice(&page.hash.0);
    }
}

/// Reads the columns of `count` entries; the caller has bounded `count`.
pub fn decode(decoder: &mut Decoder<'_>, count: usize) -> Result<Vec<PageEntry>, FormatError> {
    let pack_count = decoder.count("pack count", PACKS_PER_LIST_MAX.min(count), 2)?;
    let mut packs = Vec::with_capacity(pack_count);
    for _ in 0..pack_count {
        packs.push(get_pack(decoder)?);
    }
    let distinct: std::collections::HashSet<_> = packs.iter().collect();
    if distinct.len() != packs.len() {
        return Err(FormatError::rule("packs", "one is named twice"));
    }
    if count > decoder.left() {
        return Err(FormatError::rule("states", "end too early"));
    }
    let mut entries = Vec::with_capacity(count);
    let mut seen = 0;
    for _ in 0..count {
        entries.push(match decoder.varint("state")? {
            0 => PageEntry::Zero,
            1 => PageEntry::Hole,
            state => {
                let number = usize::try_from(state - 2).unwrap_or(usize::MAX);
                if number > seen {
                    return Err(FormatError::rule("state", "packs are not in order of first use"));
                }
                seen = seen.max(number + 1);
                let pack = *packs
                    .get(number)
                    .ok_or(FormatError::rule("state", "names a pack that is not listed"))?;
                let chunk = ChunkRef { pack, ordinal: 0 };
                PageEntry::Stored(StoredPage { hash: PageHash([0; 16]), chunk, slot: 0 })
            }
        });
    }
    if seen != packs.len() {
        return Err(FormatError::rule("packs", "one is not used"));
    }
    for page in stored_mut(&mut entries) {
        page.chunk.ordinal = decoder.u32_most("ordinal", CHUNKS_PER_PACK_MAX - 1)?;
    }
    for page in stored_mut(&mut entries) {
        page.slot = decoder.u32_most("slot", PAGES_PER_CHUNK_MAX - 1)?;
    }
    for page in stored_mut(&mut entries) {
        page.hash = PageHash(decoder.array("hash")?);
    }
    Ok(entries)
}

fn stored_mut(entries: &mut [PageEntry]) -> impl Iterator<Item = &mut StoredPage> {
    entries.iter_mut().filter_map(|entry| match entry {
        PageEntry::Stored(page) => Some(page),
        PageEntry::Zero | PageEntry::Hole => None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_entry() -> impl Strategy<Value = PageEntry> {
        prop_oneof![
            1 => Just(PageEntry::Zero),
            1 => Just(PageEntry::Hole),
            6 => (any::<[u8; 16]>(), 1..4_u64, 0..3_u32, 0..CHUNKS_PER_PACK_MAX, 0..PAGES_PER_CHUNK_MAX)
                .prop_map(|(hash, run, part, ordinal, slot)| PageEntry::Stored(StoredPage {
                    hash: PageHash(hash),
                    chunk: ChunkRef { pack: PackId { run: RunNo(run), part }, ordinal },
                    slot,
                })),
        ]
    }

    proptest! {
        #[test]
        fn entries_come_back(entries in prop::collection::vec(any_entry(), 0..200)) {
            let mut bytes = Vec::new();
            encode(&entries, &mut bytes);
            let mut decoder = Decoder::new(&bytes);
            prop_assert_eq!(decode(&mut decoder, entries.len()), Ok(entries));
            prop_assert_eq!(decoder.end("columns"), Ok(()));
        }

        #[test]
        fn what_decodes_is_spelled_in_the_one_way(bytes in prop::collection::vec(0..6_u8, 0..60), count in 0..6_usize) {
            let mut decoder = Decoder::new(&bytes);
            if let Ok(entries) = decode(&mut decoder, count) {
                let mut again = Vec::new();
                encode(&entries, &mut again);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - decoder.left()]);
            }
        }
    }
}
