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

use super::search::{EncryptedBlock, Look, SINGLE_RECORD, Search, on_first_page};
use crate::{Lsn, SpaceId, be};

const KIND: u8 = 35;
const SUFFIX: &[u8] = b".ibd\0";
/// No path of the server is longer.
const PATH_BYTES_MAX: usize = 4000;

/// Searches consecutive blocks.
#[derive(Clone, Debug)]
pub struct FileDeleteFinder {
    search: Search,
}

impl FileDeleteFinder {
    /// A finder for the blocks from `start` on.
    pub fn new(start: Lsn) -> FileDeleteFinder {
        FileDeleteFinder { search: Search::new(start, [KIND, KIND | SINGLE_RECORD, KIND]) }
    }

    /// Searches whole blocks that are full and follow those fed before; bytes after the last whole block are
    /// ignored. The caller checks whether a tablespace found exists.
    pub fn feed(&mut self, blocks: &[u8], mut on_find: impl FnMut(SpaceId)) -> Result<(), EncryptedBlock> {
        self.search.feed(blocks, look, |space, _| on_find(space))
    }

    /// Searches the partly filled block at the current end of the log without counting it as fed: pass it
    /// again when it has grown.
    pub fn peek(&self, block: &[u8], mut on_find: impl FnMut(SpaceId)) -> Result<(), EncryptedBlock> {
        self.search.peek(block, look, |space, _| on_find(space))
    }
}

/// Recognises a record by the bytes after its type.
fn look(_: u8, bytes: &[u8]) -> Look<SpaceId> {
    on_first_page(bytes).and_then(|(space, rest)| {
        let path_bytes = Look::from(be::u16_at(rest, 0).map(usize::from));
        path_bytes
            .and_then(|path_bytes| of_a_table(rest.get(2..).unwrap_or_default(), path_bytes))
            .and_then(|()| Look::Record(space))
    })
}

/// Whether `path` begins with the path of a table's file that is `path_bytes` long.
fn of_a_table(path: &[u8], path_bytes: usize) -> Look<()> {
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
        Some(path) if path.ends_with(SUFFIX) => Look::Record(()),
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
        FileDeleteFinder::new(START).feed(blocks, |space| found.push(space)).unwrap();
        found
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
        finder.peek(&blocks(&[0; 10]), |space| panic!("{space:?} is not in the next block")).unwrap();
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
                finder.feed(blocks, |space| found.push(space)).unwrap();
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
