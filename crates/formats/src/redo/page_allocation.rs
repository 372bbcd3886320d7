//! Pages of a tablespace that were allocated or freed, found in MySQL's redo without parsing it.
//!
//! Allocating or freeing a page of a tablespace changes its bits in the descriptor of its extent. That change
//! is logged even if what is then written to the page is not. So pages that were filled without redo since
//! some LSN are among those whose bits were written since.
//!
//! The record (MLOG_1BYTE, verified on 9.7.4): type 1 with or without the single-record bit, space id and
//! page number compressed, the offset in the page in two bytes, the byte, compressed. Descriptors are in page
//! 0 and in every n-th page after it, n being the bytes of a page in the file, from offset 150 on: 24 bytes,
//! then two bits for each page of the extent. A chance match names pages that need not be read.

use super::search::{Candidate, EncryptedBlock, Look, SINGLE_RECORD, Search, compressed};
use crate::{Lsn, PageNo, PageSize, SpaceId, be};

/// MLOG_1BYTE.
const KIND: u8 = 1;
/// Pages with descriptors are at least this many pages apart: as many as the smallest page has bytes.
const DESCRIPTORS_EVERY_MIN: u32 = 1024;
/// Where the descriptors begin in such a page.
const DESCRIPTORS_AT: u16 = 150;
/// Where the bits of the pages begin in a descriptor.
const BITS_AT: u32 = 24;
/// Each page has two bits.
const PAGES_PER_BYTE: u32 = 4;

/// A byte with the bits of four pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationByte {
    /// The tablespace.
    pub space: SpaceId,
    /// The page with the descriptors.
    pub descriptors: PageNo,
    /// The offset of the byte in that page.
    pub offset: u16,
}

impl AllocationByte {
    /// The first of the four pages that the byte describes, in a tablespace with these page sizes: in the
    /// file, and in memory. `None` if the byte describes no pages.
    pub fn first_page(&self, physical: PageSize, logical: PageSize) -> Option<PageNo> {
        let extent_pages = logical.extent_pages();
        let bits_bytes = extent_pages / PAGES_PER_BYTE;
        let descriptor_bytes = BITS_AT + bits_bytes;
        let physical_bytes = u32::try_from(physical.bytes()).ok()?;
        let at = u32::from(self.offset.checked_sub(DESCRIPTORS_AT)?);
        let (extent, within) = (at / descriptor_bytes, at % descriptor_bytes);
        let byte = within.checked_sub(BITS_AT)?;
        let is_descriptor =
            extent < physical_bytes / extent_pages && self.descriptors.0.is_multiple_of(physical_bytes);
        let page = self.descriptors.0.checked_add(extent * extent_pages + byte * PAGES_PER_BYTE)?;
        is_descriptor.then_some(PageNo(page))
    }

    /// How many pages the byte describes.
    pub const PAGES: u32 = PAGES_PER_BYTE;
}

/// Searches consecutive blocks.
#[derive(Clone, Debug)]
pub struct AllocationFinder {
    search: Search,
}

impl AllocationFinder {
    /// A finder for the blocks from `start` on.
    pub fn new(start: Lsn) -> AllocationFinder {
        AllocationFinder { search: Search::new(start, [KIND, KIND | SINGLE_RECORD, KIND]) }
    }

    /// Searches whole blocks that are full and follow those fed before; bytes after the last whole block are
    /// ignored. `on_find` gets the block in which the record begins.
    pub fn feed(
        &mut self,
        blocks: &[u8],
        on_find: impl FnMut(AllocationByte, Lsn),
    ) -> Result<(), EncryptedBlock> {
        self.search.feed(blocks, look, on_find)
    }

    /// Searches the partly filled block at the current end of the log without counting it as fed: pass it
    /// again when it has grown.
    pub fn peek(&self, block: &[u8], on_find: impl FnMut(AllocationByte, Lsn)) -> Result<(), EncryptedBlock> {
        self.search.peek(block, look, on_find)
    }
}

/// Recognises a record by the bytes after its type. The byte that is written does not matter.
fn look(Candidate { following: bytes, .. }: Candidate<'_>) -> Look<AllocationByte> {
    let page = || {
        let (space, bytes) = compressed(bytes)?;
        let (page, bytes) = compressed(bytes)?;
        Some((space, page, bytes))
    };
    Look::from(page()).and_then(|(space, page, bytes)| {
        if !page.is_multiple_of(DESCRIPTORS_EVERY_MIN) {
            return Look::Nothing;
        }
        Look::from(be::u16_at(bytes, 0)).and_then(|offset| match offset {
            DESCRIPTORS_AT.. => {
                Look::Record(AllocationByte { space: SpaceId(space), descriptors: PageNo(page), offset })
            }
            _ => Look::Nothing,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::search::tests::{blocks, compress},
        *,
    };
    use proptest::prelude::*;

    const START: Lsn = Lsn(512_000);
    const K16: PageSize = PageSize::DEFAULT_FILE;

    fn record(kind: u8, space: u32, page: u32, offset: u16) -> Vec<u8> {
        [vec![kind], compress(space), compress(page), offset.to_be_bytes().to_vec(), compress(0xFE)].concat()
    }

    fn find(blocks: &[u8]) -> Vec<(AllocationByte, Lsn)> {
        let mut found = Vec::new();
        AllocationFinder::new(START).feed(blocks, |byte, lsn| found.push((byte, lsn))).unwrap();
        found
    }

    #[test]
    fn a_record_is_found_wherever_a_block_ends_in_it() {
        for kind in [KIND, KIND | SINGLE_RECORD] {
            for at in 0..600 {
                let stream = [vec![0; at], record(kind, 70_000, 32_768, 174), vec![0; 40]].concat();
                let lsn = Lsn(START.0 + (at / 496 * 512) as u64);
                let byte =
                    AllocationByte { space: SpaceId(70_000), descriptors: PageNo(32_768), offset: 174 };
                assert_eq!(find(&blocks(&stream)), [(byte, lsn)], "at {at}");
            }
        }
    }

    #[test]
    fn bytes_tell_of_the_pages_of_their_extent() {
        let size = |log2| PageSize::from_log2(log2).unwrap();
        let byte = |descriptors, offset| AllocationByte {
            space: SpaceId(5),
            descriptors: PageNo(descriptors),
            offset,
        };
        for (physical, logical, descriptors, offset, page) in [
            (K16, K16, 0, 150 + 24, Some(0)),
            (K16, K16, 0, 150 + 39, Some(60)),
            (K16, K16, 0, 150 + 40 + 24, Some(64)),
            (K16, K16, 16_384, 150 + 2 * 40 + 25, Some(16_384 + 128 + 4)),
            // The head of a descriptor; after the last descriptor; a page without descriptors.
            (K16, K16, 0, 150 + 23, None),
            (K16, K16, 0, 150 + 256 * 40 + 24, None),
            (K16, K16, 1024, 150 + 24, None),
            (K16, K16, 0, 149, None),
            (size(12), size(12), 4096, 150 + 88 + 24, Some(4096 + 256)),
            (size(13), K16, 8192, 150 + 40 + 24, Some(8192 + 64)),
        ] {
            assert_eq!(byte(descriptors, offset).first_page(physical, logical).map(|page| page.0), page);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn nothing_is_missed(
            gaps in proptest::collection::vec(
                (proptest::collection::vec(prop_oneof![Just(KIND), any::<u8>()], 0..700), 0u32.., 0u32..1 << 20, 150u16..),
                0..8,
            ),
        ) {
            let mut stream = Vec::new();
            let mut expected = Vec::new();
            for (gap, space, every, offset) in &gaps {
                stream.extend(gap);
                let descriptors = PageNo(every * DESCRIPTORS_EVERY_MIN);
                expected.push(AllocationByte { space: SpaceId(*space), descriptors, offset: *offset });
                stream.extend(record(KIND, *space, descriptors.0, *offset));
            }
            stream.extend([0; 20]);
            let found: Vec<_> = find(&blocks(&stream)).into_iter().map(|(byte, _)| byte).collect();
            for byte in expected {
                prop_assert!(found.contains(&byte), "{:?}", byte);
            }
        }

        #[test]
        fn hostile_blocks_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..2000), start: u64) {
            let mut finder = AllocationFinder::new(Lsn(start));
            let _ = finder.feed(&bytes, |byte, _| {
                byte.first_page(K16, K16);
            });
            let _ = finder.peek(&bytes, |_, _| ());
        }
    }
}
