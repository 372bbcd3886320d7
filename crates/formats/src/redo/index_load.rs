//! Index loads, and pages of new indexes, found in MySQL's redo without parsing it.
//!
//! A sorted index build writes its pages without redo and then logs one MLOG_INDEX_LOAD; changes after it are
//! logged again. So a copy of the tablespace that was *started* before this record cannot be recovered and
//! must be made again. Verified on MySQL 9.7.4: every build during which the table can be written, and every
//! rebuild, logs the record, alone in its mini-transaction. A build that locks the table does not
//! (`LOCK=SHARED`, indexes on expressions, and indexes built together with a full-text or spatial one).
//!
//! A build without the record still shows in pages made for an index: at least its root, later any page that
//! a full one was split into. Making a page logs the index id that it gets, at offset 66: an MLOG_8BYTES
//! record or, for pages that are stored compressed, an MLOG_ZIP_WRITE_HEADER (type 50: space, page, one byte
//! each for offset and length, the bytes). Such a mini-transaction has several records, so the single-record
//! bit is never set.
//!
//! An MLOG_INDEX_LOAD is the byte 0xBD (type 61 and the single-record bit), the compressed space id, the
//! compressed page number of the index root, and the index id, 8 bytes. Every 0xBD is tried, wherever it is,
//! so nothing is missed; a chance match costs an extra copy at most. Records continue across blocks.
//!
//! The index id tells real records from chance matches: no id is above the counter of ids, which is in the
//! dictionary header, page 7 of the system tablespace. Each time an index of a permanent table takes an id,
//! the counter's new value is logged: an MLOG_8BYTES record (type 8, with or without the single-record bit)
//! for space 0, page 7, offset 54, the value as a compressed high half and four bytes. (Temporary tables move
//! the counter without redo; the next logged value includes the ids they took.) Lists of existing indexes
//! give no such bound: they lack the ids of temporary tables, of failed builds and of dropped indexes.

use super::search::{Candidate, EncryptedBlock, Look, SINGLE_RECORD, Search, compressed};
use crate::{Lsn, PageNo, SpaceId, be};

const KIND: u8 = 0xBD;
/// The counter of index ids: space, page and offset.
const COUNTER: (u32, u32, u16) = (0, 7, 54);
/// Offset of the index id in a page of an index.
const INDEX_ID_OFFSET: u8 = 66;
/// MLOG_8BYTES.
const WRITE_8_BYTES: u8 = 8;
/// MLOG_ZIP_WRITE_HEADER.
const WRITE_ZIP_HEADER: u8 = 50;
/// Pages before this one belong to the tablespace itself, in every kind of tablespace.
const FIRST_ROOT_PAGE: u32 = 3;

/// A record that looks like an index load. The caller checks whether the tablespace exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLoad {
    /// The tablespace whose earlier copies are void.
    pub space: SpaceId,
    /// The root of the index.
    pub root: PageNo,
    /// The index.
    pub index_id: u64,
    /// Start of the block in which the record begins: the record is not before it.
    pub lsn: Lsn,
}

/// A page made for an index that is newer than the search, or what looks like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewIndexPage {
    /// Its tablespace.
    pub space: SpaceId,
    /// The index.
    pub index_id: u64,
    /// Start of the block in which the record begins: the record is not before it.
    pub lsn: Lsn,
}

/// A change that the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// The pages of the index are in no redo.
    Load(IndexLoad),
    /// Other pages of the index may be in no redo.
    NewPage(NewIndexPage),
}

/// Searches consecutive blocks.
#[derive(Clone, Debug)]
pub struct IndexLoadFinder {
    ids: Ids,
    search: Search,
    /// For pages that are stored compressed.
    zipped: Search,
}

#[derive(Clone, Copy, Debug)]
struct Ids {
    /// The highest id when the search began.
    old: u64,
    /// The highest id known so far.
    highest: u64,
}

impl IndexLoadFinder {
    /// A finder for the blocks from `start` on, when no index had an id above `highest_index_id`.
    pub fn new(start: Lsn, highest_index_id: u64) -> IndexLoadFinder {
        let kinds = [KIND, WRITE_8_BYTES, WRITE_8_BYTES | SINGLE_RECORD];
        IndexLoadFinder {
            ids: Ids { old: highest_index_id, highest: highest_index_id },
            search: Search::new(start, kinds),
            zipped: Search::new(start, [WRITE_ZIP_HEADER; 3]),
        }
    }

    /// The block that [`IndexLoadFinder::feed`] expects next.
    pub fn next_lsn(&self) -> Lsn {
        self.search.next_lsn()
    }

    /// Searches whole blocks that are full and follow those fed before; bytes after the last whole block are
    /// ignored.
    pub fn feed(
        &mut self,
        blocks: &[u8],
        mut on_find: impl FnMut(IndexChange),
    ) -> Result<(), EncryptedBlock> {
        self.search.feed(blocks, look, bounded(&mut self.ids, &mut on_find))?;
        // `ids` now includes the ids that the counter reaches in these blocks.
        self.zipped.feed(
            blocks,
            |candidate| zipped(candidate.following),
            bounded(&mut self.ids, &mut on_find),
        )
    }

    /// Searches the partly filled block at the current end of the log without counting it as fed: pass it
    /// again when it has grown.
    pub fn peek(&self, block: &[u8], mut on_find: impl FnMut(IndexChange)) -> Result<(), EncryptedBlock> {
        let mut ids = self.ids;
        self.search.peek(block, look, bounded(&mut ids, &mut on_find))?;
        self.zipped.peek(block, |candidate| zipped(candidate.following), bounded(&mut ids, &mut on_find))
    }
}

/// Passes on the records that can be real, and follows the counter of ids: no index has an id above it.
fn bounded(ids: &mut Ids, on_find: &mut impl FnMut(IndexChange)) -> impl FnMut(Found, Lsn) {
    move |found, lsn| match found {
        Found::Counter(id) => ids.highest = id.max(ids.highest),
        Found::Load { space, root, index_id } => {
            if (1..=ids.highest).contains(&index_id) && root.0 >= FIRST_ROOT_PAGE {
                on_find(IndexChange::Load(IndexLoad { space, root, index_id, lsn }));
            }
        }
        Found::Page { space, index_id } => {
            if ids.old < index_id && index_id <= ids.highest {
                on_find(IndexChange::NewPage(NewIndexPage { space, index_id, lsn }));
            }
        }
    }
}

enum Found {
    Load {
        space: SpaceId,
        root: PageNo,
        index_id: u64,
    },
    /// An index id is written to a page.
    Page {
        space: SpaceId,
        index_id: u64,
    },
    /// The counter of index ids has this value from now on.
    Counter(u64),
}

/// Recognises a record by its type and the bytes after it.
fn look(Candidate { kind, following: bytes, .. }: Candidate<'_>) -> Look<Found> {
    match kind {
        KIND => load(bytes).into(),
        _ => written(bytes),
    }
}

fn load(bytes: &[u8]) -> Option<Found> {
    let (space, bytes) = compressed(bytes)?;
    let (root, bytes) = compressed(bytes)?;
    Some(Found::Load { space: SpaceId(space), root: PageNo(root), index_id: be::u64_at(bytes, 0)? })
}

/// A write of eight bytes: to the counter of index ids, or of an index id to a page.
fn written(bytes: &[u8]) -> Look<Found> {
    let place = || {
        let (space, page, bytes) = page(bytes)?;
        Some((space, page, be::u16_at(bytes, 0)?, bytes.get(2..)?))
    };
    Look::from(place()).and_then(|(space, page, offset, bytes)| {
        let value = || {
            let (high, low) = compressed(bytes)?;
            Some(u64::from(high) << 32 | u64::from(be::u32_at(low, 0)?))
        };
        if (space, page, offset) == COUNTER {
            Look::from(value().map(Found::Counter))
        } else if page >= FIRST_ROOT_PAGE && offset == u16::from(INDEX_ID_OFFSET) {
            Look::from(value().map(|index_id| Found::Page { space: SpaceId(space), index_id }))
        } else {
            Look::Nothing
        }
    })
}

/// A write of an index id to a page that is stored compressed.
fn zipped(bytes: &[u8]) -> Look<Found> {
    const ID_BYTES: u8 = 8;
    let place = || {
        let (space, page, bytes) = page(bytes)?;
        Some((space, page, [*bytes.first()?, *bytes.get(1)?], bytes.get(2..)?))
    };
    Look::from(place()).and_then(|(space, page, head, bytes)| {
        if page < FIRST_ROOT_PAGE || head != [INDEX_ID_OFFSET, ID_BYTES] {
            return Look::Nothing;
        }
        Look::from(be::u64_at(bytes, 0).map(|index_id| Found::Page { space: SpaceId(space), index_id }))
    })
}

/// The tablespace and page of a record, and the bytes after them.
fn page(bytes: &[u8]) -> Option<(u32, u32, &[u8])> {
    let (space, bytes) = compressed(bytes)?;
    let (page, bytes) = compressed(bytes)?;
    Some((space, page, bytes))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            mysql::BLOCK_BYTES,
            search::tests::{blocks, compress},
        },
        *,
    };
    use proptest::prelude::*;

    const START: Lsn = Lsn(512_000);
    const HIGHEST: u64 = (1 << 24) - 1;

    fn record(space: u32, root: u32, index_id: u64) -> Vec<u8> {
        [vec![KIND], compress(space), compress(root), index_id.to_be_bytes().to_vec()].concat()
    }

    fn find(blocks: &[u8]) -> Vec<IndexLoad> {
        let mut found = Vec::new();
        IndexLoadFinder::new(START, HIGHEST).feed(blocks, |it| found.extend(load_of(it))).unwrap();
        found
    }

    fn load_of(change: IndexChange) -> Option<IndexLoad> {
        match change {
            IndexChange::Load(load) => Some(load),
            IndexChange::NewPage(_) => None,
        }
    }

    #[test]
    fn a_record_is_found_wherever_a_block_ends_in_it() {
        let record = record(70_000, 300, 5_000_000);
        for at in 0..600 {
            let stream = [vec![0; at], record.clone(), vec![0; 40]].concat();
            let lsn = Lsn(START.0 + (at / 496 * 512) as u64);
            let expected = IndexLoad { space: SpaceId(70_000), root: PageNo(300), index_id: 5_000_000, lsn };
            assert_eq!(find(&blocks(&stream)), [expected], "at {at}");
        }
    }

    #[test]
    fn a_record_in_the_last_bytes_of_a_growing_block_is_seen_early_and_again() {
        let record = record(3, 4, 77);
        let mut block = blocks(&[vec![1; 480], record.clone()].concat());
        block.truncate(512);
        let used = (12 + 480 + record.len()) as u16;
        let mut finder = IndexLoadFinder::new(START, HIGHEST);
        for (used, finds) in [(used - 1, 0), (used, 1), (12, 0), (0, 0), (u16::MAX >> 1, 1)] {
            block[4..6].copy_from_slice(&used.to_be_bytes());
            let mut seen = 0;
            finder.peek(&block, |_| seen += 1).unwrap();
            assert_eq!(seen, finds, "{used} bytes used");
        }
        let mut seen = 0;
        finder.feed(&block, |_| seen += 1).unwrap();
        assert_eq!((seen, finder.next_lsn()), (1, Lsn(START.0 + 512)));
        finder.peek(&blocks(&[0; 10]), |load| panic!("{load:?} is not in the next block")).unwrap();
    }

    #[test]
    fn implausible_records_are_passed_over() {
        for (space, root, index_id, plausible) in [
            (3, 4, 0, false),
            (3, 4, 1, true),
            (3, 4, (1 << 24) - 1, true),
            (3, 4, 1 << 24, false),
            (3, FIRST_ROOT_PAGE - 1, 7, false),
            (u32::MAX - 1, 4, 7, true),
        ] {
            let found = find(&blocks(&[record(space, root, index_id), vec![0; 20]].concat()));
            assert_eq!(!found.is_empty(), plausible, "{space} {root} {index_id}");
        }
    }

    /// A higher id is accepted once the counter has reached it, wherever a block ends in the record of the
    /// counter.
    #[test]
    fn the_counter_of_ids_raises_the_bound() {
        let load = record(7, 4, (5 << 32) + 100);
        for kind in [WRITE_8_BYTES, WRITE_8_BYTES | SINGLE_RECORD] {
            for at in 470..510 {
                for (value, found) in [((5_u64 << 32) + 100, 1), ((5 << 32) + 99, 0)] {
                    let count = [
                        vec![kind, 0, 7, 0, 54],
                        compress((value >> 32) as u32),
                        (value as u32).to_be_bytes().to_vec(),
                    ];
                    let stream = [vec![1; at], count.concat(), load.clone(), vec![0; 40]].concat();
                    assert_eq!(find(&blocks(&stream)).len(), found, "{kind:#x} {value} at {at}");
                }
            }
        }
        let other_page = [vec![WRITE_8_BYTES, 0, 8, 0, 54, 5, 0, 0, 0, 200], load, vec![0; 40]].concat();
        assert!(find(&blocks(&other_page)).is_empty());
    }

    /// Pages of indexes newer than the search are found, in both forms, wherever a block ends. Those of older
    /// indexes, and of ids that no index has taken, are not.
    #[test]
    fn pages_of_new_indexes_are_found() {
        let count = |value: u64| {
            [
                vec![WRITE_8_BYTES, 0, 7, 0, 54],
                compress((value >> 32) as u32),
                (value as u32).to_be_bytes().to_vec(),
            ]
            .concat()
        };
        let id = HIGHEST + 5;
        let plain = |id: u64| {
            let value = [compress((id >> 32) as u32), (id as u32).to_be_bytes().to_vec()].concat();
            [vec![WRITE_8_BYTES], compress(70_000), compress(300), vec![0, 66], value].concat()
        };
        let zipped = |id: u64| {
            let place = [compress(70_000), compress(300)].concat();
            [vec![WRITE_ZIP_HEADER], place, vec![66, 8], id.to_be_bytes().to_vec()].concat()
        };
        for (at, record) in (440..500).flat_map(|at| [(at, plain(id)), (at, zipped(id))]) {
            let stream = [count(id), vec![1; at], record, vec![0; 40]].concat();
            let lsn = Lsn(START.0 + ((count(id).len() + at) / 496 * 512) as u64);
            let mut found = Vec::new();
            IndexLoadFinder::new(START, HIGHEST).feed(&blocks(&stream), |it| found.push(it)).unwrap();
            let page = NewIndexPage { space: SpaceId(70_000), index_id: id, lsn };
            assert_eq!(found, [IndexChange::NewPage(page)], "at {at}");
        }
        for (reached, id) in [(id, HIGHEST), (id - 1, id)] {
            let stream = [count(reached), plain(id), zipped(id), vec![0; 40]].concat();
            let none = |it: IndexChange| panic!("{it:?}");
            IndexLoadFinder::new(START, HIGHEST).feed(&blocks(&stream), none).unwrap();
        }
    }

    #[test]
    fn encrypted_blocks_are_refused() {
        let mut bytes = blocks(&[0; 1000]);
        bytes[512 + 4] |= 0x80;
        let result = IndexLoadFinder::new(START, HIGHEST).feed(&bytes, |_| ());
        assert_eq!(result, Err(EncryptedBlock { lsn: Lsn(START.0 + 512) }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// All real records are found, in pieces of any size, among bytes that look like their beginning.
        #[test]
        fn nothing_is_missed(
            gaps in proptest::collection::vec((proptest::collection::vec(prop_oneof![Just(KIND), any::<u8>()], 0..700), 0u32.., FIRST_ROOT_PAGE..1 << 24, 1u64..1 << 24), 0..8),
            piece in 1usize..5,
        ) {
            let mut stream = Vec::new();
            let mut expected = Vec::new();
            for (gap, space, root, index_id) in &gaps {
                stream.extend(gap);
                let lsn = Lsn(START.0 + (stream.len() / 496 * 512) as u64);
                expected.push(IndexLoad { space: SpaceId(*space), root: PageNo(*root), index_id: *index_id, lsn });
                stream.extend(record(*space, *root, *index_id));
            }
            stream.extend([0; 20]);
            let mut found = Vec::new();
            let mut finder = IndexLoadFinder::new(START, HIGHEST);
            for blocks in blocks(&stream).chunks(piece * BLOCK_BYTES) {
                finder.feed(blocks, |it| found.extend(load_of(it))).unwrap();
            }
            for load in expected {
                prop_assert!(found.contains(&load), "{:?} of {:?}", load, found);
            }
        }

        #[test]
        fn hostile_blocks_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..2000), start: u64) {
            let mut finder = IndexLoadFinder::new(Lsn(start), HIGHEST);
            let _ = finder.feed(&bytes, |_| ());
            let _ = finder.peek(&bytes, |_| ());
        }
    }
}
