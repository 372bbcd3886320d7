//! MySQL's log: file headers, blocks, cutting, and the searches for records.
#![no_main]

use holdfast_formats::{Lsn, PageSize};
use holdfast_formats::checksum::crc32c;
use holdfast_formats::redo::encryption_change::EncryptionChangeFinder;
use holdfast_formats::redo::file_delete::FileDeleteFinder;
use holdfast_formats::redo::index_load::IndexLoadFinder;
use holdfast_formats::redo::mysql::{
    BLOCK_BYTES, BlockHeader, BlockState, RedoFileBuilder, RedoFileHeader, checkpoint, classify, cut_block,
    encryption_block,
};
use holdfast_formats::redo::page_allocation::AllocationFinder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, bool, &[u8])| {
    let (lsn, seal, bytes) = input;
    let mut bytes = bytes.to_vec();
    if seal {
        for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
            let crc = crc32c(&block[..508]);
            block[508..].copy_from_slice(&crc.to_be_bytes());
        }
    }
    if let Ok(header) = RedoFileHeader::parse(&bytes) {
        header.end_lsn(lsn);
        header.offset(Lsn(lsn));
        let built = RedoFileBuilder::new(&header, Lsn(lsn), encryption_block(&bytes)).header();
        assert_eq!(checkpoint(&built).unwrap_or_default(), Lsn(lsn));
    }
    checkpoint(&bytes);
    let own = BlockHeader::parse(&bytes).and_then(|header| header.lsn());
    for at in own.into_iter().chain([Lsn(lsn)]) {
        classify(&bytes, at);
        for keep in [0, 12, 100, 500] {
            let end = Lsn(at.0.wrapping_add(keep));
            if let Ok(cut) = cut_block(&bytes, end) {
                assert!(matches!(classify(&cut, end.align_down(512)), BlockState::Partial { .. }));
            }
        }
    }
    let mut finder = IndexLoadFinder::new(Lsn(lsn), 1);
    let _ = finder.feed(&bytes, |_| ());
    let _ = finder.peek(&bytes, |_| ());
    let mut finder = FileDeleteFinder::new(Lsn(lsn));
    let _ = finder.feed(&bytes, |_| ());
    let _ = finder.peek(&bytes, |_| ());
    let mut finder = AllocationFinder::new(Lsn(lsn));
    let _ = finder.feed(&bytes, |byte, _| {
        byte.first_page(PageSize::DEFAULT_FILE, PageSize::DEFAULT_FILE);
    });
    let _ = finder.peek(&bytes, |_, _| ());
    let mut finder = EncryptionChangeFinder::new(Lsn(lsn));
    let _ = finder.feed(&bytes, |_, _| ());
    let _ = finder.peek(&bytes, |_, _| ());
});
