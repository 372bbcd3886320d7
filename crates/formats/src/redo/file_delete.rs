//! Deletions of tablespace files in MySQL's redo, found without parsing it.
//!
//! Recovery ignores all redo of a tablespace whose deletion is in the redo, also what comes after the
//! deletion. That is right for a dropped table. But `ALTER TABLE .. DISCARD TABLESPACE` logs a deletion too,
//! and IMPORT brings the same id back without logging it: a recovery that starts before the DISCARD cannot
//! rely on the redo of that tablespace.
//!
//! The record (MLOG_FILE_DELETE, verified on 9.7.4): type 35 with or without the single-record bit, the space
//! id compressed, page number 0, the length of the path in two bytes, and the path with a NUL at its end. Any
//! byte may begin one; the path, which ends in `.ibd`, tells real records from chance matches. Records
//! continue across blocks.
//!
//! The end of a longer space id may look like a type and a shorter id: `A3 A3 17` are the type and id 8983, and
//! `A3 17` the type and id 23. MLOG_FILE_RENAME (34) begins the same way. What may be such an end is
//! [doubtful](FileDelete::or_of): its path may be another tablespace's. (A server that had reached id 8983
//! named 23 and 39 that way, and a backup took both for imported.)

use super::search::{Candidate, EncryptedBlock, Look, SINGLE_RECORD, Search, compressed, on_first_page};
use crate::{Lsn, SpaceId, be};

const KIND: u8 = 35;
const RENAME: u8 = 34;
const SUFFIX: &[u8] = b".ibd\0";
/// No path of the server is longer.
const PATH_BYTES_MAX: usize = 4000;
/// A compressed space id has five bytes at most, and the last of them begins no record with a space id.
const LOOK_BACK_BYTES: usize = 4;

/// A deletion of a tablespace's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDelete {
    /// The tablespace.
    pub space: SpaceId,
    /// The file's path as the server has it, without the NUL.
    pub path: Vec<u8>,
    /// The other tablespaces that the record may be about, to which the path would belong: it may be the end of a
    /// longer record.
    pub or_of: Vec<SpaceId>,
}

/// Searches consecutive blocks.
#[derive(Clone, Debug)]
pub struct FileDeleteFinder {
    search: Search,
}

impl FileDeleteFinder {
    /// A finder for the blocks from `start` on.
    pub fn new(start: Lsn) -> FileDeleteFinder {
        let search = Search::new(start, [KIND, KIND | SINGLE_RECORD, KIND]);
        FileDeleteFinder { search: search.looking_back(LOOK_BACK_BYTES) }
    }

    /// Searches whole blocks that are full and follow those fed before; bytes after the last whole block are
    /// ignored. The caller checks whether a tablespace found exists.
    pub fn feed(&mut self, blocks: &[u8], mut on_find: impl FnMut(FileDelete)) -> Result<(), EncryptedBlock> {
        self.search.feed(blocks, look, |found, _| on_find(found))
    }

    /// Searches the partly filled block at the current end of the log without counting it as fed: pass it
    /// again when it has grown.
    pub fn peek(&self, block: &[u8], mut on_find: impl FnMut(FileDelete)) -> Result<(), EncryptedBlock> {
        self.search.peek(block, look, |found, _| on_find(found))
    }
}

fn look(candidate: Candidate<'_>) -> Look<FileDelete> {
    on_first_page(candidate.following).and_then(|(space, rest)| {
        let path_bytes = Look::from(be::u16_at(rest, 0).map(usize::from));
        path_bytes.and_then(|path_bytes| of_a_table(rest.get(2..).unwrap_or_default(), path_bytes)).and_then(
            |path| {
                let or_of = longer_ids(candidate);
                Look::Record(FileDelete { space, path: path.to_vec(), or_of })
            },
        )
    })
}

/// The space ids of longer records about a file that may begin before this one, so that this one would be the end of
/// the id.
fn longer_ids(Candidate { kind, following, preceding }: Candidate<'_>) -> Vec<SpaceId> {
    let is_kind = |byte: &u8| matches!(byte & !SINGLE_RECORD, KIND | RENAME);
    let own_id_bytes = compressed(following).map_or(0, |(_, rest)| following.len() - rest.len());
    let own = [&[kind], following.get(..own_id_bytes).unwrap_or_default()].concat();
    let id = |bytes: &[u8]| compressed(bytes).filter(|(_, rest)| rest.is_empty()).map(|(id, _)| SpaceId(id));
    preceding
        .iter()
        .enumerate()
        .filter(|(_, byte)| is_kind(byte))
        .filter_map(|(at, _)| id(&[preceding.get(at + 1..).unwrap_or_default(), &own].concat()))
        .collect()
}

/// The path of a table's file that is `path_bytes` long with its NUL, if `path` begins with one.
fn of_a_table(path: &[u8], path_bytes: usize) -> Look<&[u8]> {
    if path_bytes <= SUFFIX.len() || path_bytes > PATH_BYTES_MAX {
        return Look::Nothing;
    }
    let text = path.get(..path.len().min(path_bytes - 1)).unwrap_or_default();
    // Bytes that cannot become a path are rejected at once. So an incomplete candidate never hides a whole
    // record: the zeros in that record would have ended the candidate's path.
    if text.contains(&0) {
        return Look::Nothing;
    }
    match path.get(..path_bytes) {
        None => Look::Incomplete,
        Some(path) if path.ends_with(SUFFIX) => Look::Record(text),
        Some(_) => Look::Nothing,
    }
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

    fn record(kind: u8, space: u32, path: &str) -> Vec<u8> {
        let path_bytes = path.len() as u16 + 1;
        [vec![kind], compress(space), vec![0], path_bytes.to_be_bytes().to_vec(), path.into(), vec![0]]
            .concat()
    }

    fn find(blocks: &[u8]) -> Vec<SpaceId> {
        let mut found = Vec::new();
        FileDeleteFinder::new(START).feed(blocks, |deleted| found.push(deleted.space)).unwrap();
        found
    }

    /// The space and whether it is doubtful, of all that is found.
    fn doubts(blocks: &[u8]) -> Vec<(u32, bool)> {
        let mut found = Vec::new();
        let note = |deleted: FileDelete| found.push((deleted.space.0, !deleted.or_of.is_empty()));
        FileDeleteFinder::new(START).feed(blocks, note).unwrap();
        found
    }

    /// As 9.7.4 wrote them for a table with id 8983 that was renamed, and dropped: neither deletes 23.
    #[test]
    fn the_end_of_a_longer_id_is_doubtful() {
        let renamed = b"\x9F\xA2\xA3\x17\x00\x00\x17./ddl/t0_436169063.ibd\0\x00\x22./ddl/#sql-ib1-2.ibd\0";
        let dropped = b"\x03\x1F\xA3\xA3\x17\x00\x00\x17./ddl/t0_436169063.ibd\0\x08";
        let certain = b"\x03\x1F\xA3\x17\x00\x00\x17./ddl/t0_436169063.ibd\0\x08";
        for at in 0..600 {
            let found = |bytes: &[u8]| doubts(&blocks(&[&vec![1; at], bytes, &[0; 40]].concat()));
            assert_eq!(found(renamed), [(23, true)], "at {at}");
            assert_eq!(found(dropped), [(8983, false), (23, true)], "at {at}");
            assert_eq!(found(certain), [(23, false)], "at {at}");
        }
        let mut or_of = Vec::new();
        let blocks_of_a_drop = blocks(&[&dropped[..], &[0; 40]].concat());
        FileDeleteFinder::new(START).feed(&blocks_of_a_drop, |deleted| or_of.extend(deleted.or_of)).unwrap();
        assert_eq!(or_of, [SpaceId(8983)]);
        let mut paths = Vec::new();
        let blocks = blocks(&[&certain[..], &[0; 40]].concat());
        FileDeleteFinder::new(START).feed(&blocks, |deleted| paths.push(deleted.path)).unwrap();
        assert_eq!(paths, [b"./ddl/t0_436169063.ibd"]);
    }

    /// Ids of every length that end in what looks like a type and an id.
    #[test]
    fn every_length_of_an_id_can_end_in_one() {
        for (space, ends) in [
            (0x2317, vec![0x17]),
            (0x4_A317, vec![0x17]),
            (0x23_2317, vec![0x17]),
            (0xA3_8123, vec![0x123]),
            (0x1000_2317, vec![0x17]),
            (0x7777, vec![]),
        ] {
            let found =
                doubts(&blocks(&[vec![1; 20], record(KIND, space, "./db/t.ibd"), vec![0; 40]].concat()));
            let all: Vec<_> = ends.into_iter().map(|end| (end, true)).collect();
            assert_eq!(found, [vec![(space, false)], all].concat(), "{space:#x}");
        }
    }

    /// As 9.7.4 wrote it for `ALTER TABLE y.t DISCARD TABLESPACE`.
    #[test]
    fn a_record_of_a_server() {
        let bytes = b"\xA3\x06\x00\x00\x0A./y/t.ibd\0";
        assert_eq!(record(0xA3, 6, "./y/t.ibd"), bytes);
        assert_eq!(find(&blocks(bytes)), [SpaceId(6)]);
    }

    #[test]
    fn a_record_is_found_wherever_blocks_end_in_it() {
        for path in ["./db/t.ibd".to_owned(), format!("/{}/t#p#p0.ibd", "x".repeat(1200))] {
            let record = record(KIND, 70_000, &path);
            for at in 0..600 {
                let stream = [vec![0; at], record.clone(), vec![0; 40]].concat();
                assert_eq!(find(&blocks(&stream)), [SpaceId(70_000)], "at {at}");
            }
        }
    }

    #[test]
    fn a_record_in_the_last_bytes_of_a_growing_block_is_seen_early_and_again() {
        let record = record(0xA3, 3, "./db/t.ibd");
        let mut block = blocks(&[vec![1; 470], record.clone()].concat());
        block.truncate(512);
        let used = (12 + 470 + record.len()) as u16;
        let mut finder = FileDeleteFinder::new(START);
        for (used, finds) in [(used - 1, 0), (used, 1), (12, 0), (0, 0), (u16::MAX >> 1, 1)] {
            block[4..6].copy_from_slice(&used.to_be_bytes());
            let mut seen = 0;
            finder.peek(&block, |_| seen += 1).unwrap();
            assert_eq!(seen, finds, "{used} bytes used");
        }
        let mut seen = 0;
        finder.feed(&block, |_| seen += 1).unwrap();
        assert_eq!(seen, 1);
        finder.peek(&blocks(&[0; 10]), |deleted| panic!("{deleted:?} is not in the next block")).unwrap();
    }

    /// Bytes that merely look like the beginning of a record do not hide a record after them until more redo
    /// is written.
    #[test]
    fn a_record_behind_what_may_become_one_is_seen() {
        let may_become_one = [&[KIND, 9, 0, 0x0F, 0x00][..], b"./x"].concat();
        let found = find(&blocks(&[may_become_one, record(KIND, 3, "./db/t.ibd")].concat()));
        assert_eq!(found, [SpaceId(3)]);
    }

    #[test]
    fn what_is_no_deletion_of_a_table_is_passed_over() {
        let real = record(KIND, 3, "./db/t.ibd");
        for (what, record) in [
            ("another kind", record(34, 3, "./db/t.ibd")),
            ("another file", record(KIND, 3, "./undo_001")),
            ("no name", record(KIND, 3, ".ibd")),
            ("too long", record(KIND, 3, &format!("./{}/t.ibd", "x".repeat(PATH_BYTES_MAX)))),
            ("a NUL too early", record(KIND, 3, "./d\0/t.ibd")),
            ("another page", [&[KIND, 3, 1], &real[3..]].concat()),
        ] {
            assert_eq!(find(&blocks(&[record, vec![0; 20]].concat())), [], "{what}");
        }
    }

    #[test]
    fn encrypted_blocks_are_refused() {
        let mut bytes = blocks(&[0; 1000]);
        bytes[512 + 4] |= 0x80;
        let result = FileDeleteFinder::new(START).feed(&bytes, |_| ());
        assert_eq!(result, Err(EncryptedBlock { lsn: Lsn(START.0 + 512) }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// All real records are found, in pieces of any size, among bytes that look like their beginning.
        #[test]
        fn nothing_is_missed(
            gaps in proptest::collection::vec((proptest::collection::vec(prop_oneof![Just(KIND), Just(0), any::<u8>()], 0..700), 0u32.., "[a-z/]{1,600}"), 0..8),
            piece in 1usize..5,
        ) {
            let mut stream = Vec::new();
            for (gap, space, path) in &gaps {
                stream.extend(gap);
                stream.extend(record(KIND, *space, &format!("{path}.ibd")));
            }
            stream.extend([0; 20]);
            let mut found = Vec::new();
            let mut finder = FileDeleteFinder::new(START);
            for blocks in blocks(&stream).chunks(piece * BLOCK_BYTES) {
                finder.feed(blocks, |deleted| found.push(deleted.space)).unwrap();
            }
            for (_, space, _) in gaps {
                prop_assert!(found.contains(&SpaceId(space)), "{} of {:?}", space, found);
            }
        }

        #[test]
        fn hostile_blocks_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..2000), start: u64) {
            let mut finder = FileDeleteFinder::new(Lsn(start));
            let _ = finder.feed(&bytes, |_| ());
            let _ = finder.peek(&bytes, |_| ());
        }
    }
}
