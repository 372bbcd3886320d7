//! Changes of a tablespace's encryption in MySQL's redo, found without parsing it.
//!
//! `ALTER TABLESPACE .. ENCRYPTION` rewrites all pages of a tablespace in place, and the redo says only that
//! each was touched. A copy with pages from before and after the change can be recovered only with the key of
//! its encrypted pages, and that key is erased when the tablespace is decrypted. So a copy that was *started*
//! before such a change must be made again. The flags of the tablespace do not show the change: they may have
//! been changed back.
//!
//! The record (MLOG_WRITE_STRING, verified on 9.7.4): type 30 with or without the single-record bit, the
//! space id compressed, page number 0, the offset in two bytes, the length in two bytes, and the bytes
//! written: the wrapped key at the beginning of an encryption, or zeros at the end of a decryption. Nothing
//! else writes this many bytes to page 0; a chance match costs an extra copy.

use super::search::{Candidate, EncryptedBlock, Look, SINGLE_RECORD, Search, on_first_page};
use crate::{Lsn, SpaceId, be};

const KIND: u8 = 30;
/// Magic, number of the master key, the server's uuid, key and initialisation vector, checksum.
const KEY_BYTES: u16 = 3 + 4 + 36 + 64 + 4;

/// Searches consecutive blocks.
#[derive(Clone, Debug)]
pub struct EncryptionChangeFinder {
    search: Search,
}

impl EncryptionChangeFinder {
    /// A finder for the blocks from `start` on.
    pub fn new(start: Lsn) -> EncryptionChangeFinder {
        EncryptionChangeFinder { search: Search::new(start, [KIND, KIND | SINGLE_RECORD, KIND]) }
    }

    /// Searches whole blocks that are full and follow those fed before; bytes after the last whole block are
    /// ignored. `on_find` gets the block in which the record begins. The caller checks whether the tablespace
    /// exists.
    pub fn feed(&mut self, blocks: &[u8], on_find: impl FnMut(SpaceId, Lsn)) -> Result<(), EncryptedBlock> {
        self.search.feed(blocks, look, on_find)
    }

    /// Searches the partly filled block at the current end of the log without counting it as fed: pass it
    /// again when it has grown.
    pub fn peek(&self, block: &[u8], on_find: impl FnMut(SpaceId, Lsn)) -> Result<(), EncryptedBlock> {
        self.search.peek(block, look, on_find)
    }
}

/// Recognises a record by the bytes after its type.
fn look(Candidate { following: bytes, .. }: Candidate<'_>) -> Look<SpaceId> {
    on_first_page(bytes).and_then(|(space, rest)| {
        Look::from(be::u16_at(rest, 2)).and_then(|written_bytes| match written_bytes {
            KEY_BYTES => Look::Record(space),
            _ => Look::Nothing,
        })
    })
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

    fn record(kind: u8, space: u32) -> Vec<u8> {
        let head = [0, 0x28, 0x96, 0, KEY_BYTES as u8];
        [&[kind][..], &compress(space), &head, &[0; KEY_BYTES as usize]].concat()
    }

    fn find(blocks: &[u8]) -> Vec<(SpaceId, Lsn)> {
        let mut found = Vec::new();
        EncryptionChangeFinder::new(START).feed(blocks, |space, lsn| found.push((space, lsn))).unwrap();
        found
    }

    /// As 9.7.4 wrote them for `ALTER TABLESPACE g ENCRYPTION = 'Y'`, for `'N'`, and for the tablespace
    /// `mysql`.
    #[test]
    fn records_of_a_server() {
        let on = b"\x1e\x08\x00\x28\x96\x00\x6flCC\x00\x00\x00\x0171f7ec7f-";
        let off = b"\x1e\x04\x00\x28\x96\x00\x6f\x00\x00\x00\x00";
        let dictionary = b"\x1e\xfb\xfe\x00\x28\x96\x00\x6flCC\x00";
        assert_eq!(find(&blocks(on)), [(SpaceId(8), START)]);
        assert_eq!(find(&blocks(off)), [(SpaceId(4), START)]);
        assert_eq!(find(&blocks(dictionary)), [(SpaceId(0xFFFF_FFFE), START)]);
    }

    #[test]
    fn a_record_is_found_wherever_a_block_ends_in_it() {
        let record = record(KIND, 70_000);
        for at in 0..600 {
            let stream = [vec![0; at], record.clone(), vec![0; 40]].concat();
            let lsn = Lsn(START.0 + (at / 496 * 512) as u64);
            assert_eq!(find(&blocks(&stream)), [(SpaceId(70_000), lsn)], "at {at}");
        }
    }

    #[test]
    fn a_record_in_a_growing_block_is_seen_early_and_again() {
        let mut block = blocks(&[vec![1; 470], record(KIND | SINGLE_RECORD, 3)].concat());
        block.truncate(BLOCK_BYTES);
        let mut finder = EncryptionChangeFinder::new(START);
        for (used, finds) in [(12 + 470 + 6_u16, 0), (12 + 470 + 7, 1), (12, 0), (0, 0)] {
            block[4..6].copy_from_slice(&used.to_be_bytes());
            let mut seen = 0;
            finder.peek(&block, |_, _| seen += 1).unwrap();
            assert_eq!(seen, finds, "{used} bytes used");
        }
        block[4..6].copy_from_slice(&512_u16.to_be_bytes());
        let mut seen = 0;
        finder.feed(&block, |_, _| seen += 1).unwrap();
        assert_eq!(seen, 1);
    }

    #[test]
    fn other_writes_are_passed_over() {
        let real = record(KIND, 3);
        for (what, record) in [
            ("another kind", record(31, 3)),
            ("another page", [&[KIND, 3, 1], &real[3..]].concat()),
            ("another length", [&real[..5], &[0, 110], &real[7..]].concat()),
        ] {
            assert_eq!(find(&blocks(&[record, vec![0; 20]].concat())), [], "{what}");
        }
    }

    #[test]
    fn encrypted_blocks_are_refused() {
        let mut bytes = blocks(&[0; 1000]);
        bytes[512 + 4] |= 0x80;
        let result = EncryptionChangeFinder::new(START).feed(&bytes, |_, _| ());
        assert_eq!(result, Err(EncryptedBlock { lsn: Lsn(START.0 + 512) }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn hostile_blocks_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..2000), start: u64) {
            let mut finder = EncryptionChangeFinder::new(Lsn(start));
            let _ = finder.feed(&bytes, |_, _| ());
            let _ = finder.peek(&bytes, |_, _| ());
        }
    }
}
