//! Measures how fast MySQL's redo is searched for the records that make a copy void:
//! `redo_search_speed [MIB]`. The redo is made up: random bytes, in which every value is equally frequent,
//! and text, like most rows.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::time::Instant;

use holdfast_formats::{
    Lsn,
    redo::{
        encryption_change::EncryptionChangeFinder, file_delete::FileDeleteFinder,
        index_load::IndexLoadFinder, page_allocation::AllocationFinder,
    },
};

const BLOCK_BYTES: usize = 512;

fn blocks(mib: usize, byte: impl Fn(u64) -> u8) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = vec![0; mib << 20];
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        for place in &mut *block {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *place = byte(state);
        }
        block[..4].copy_from_slice(&[0; 4]);
        block[4..6].copy_from_slice(&512_u16.to_be_bytes());
    }
    bytes
}

fn main() {
    let mib: usize = std::env::args().nth(1).map_or(256, |mib| mib.parse().unwrap());
    let random = blocks(mib, |state| (state >> 32) as u8);
    let text = blocks(mib, |state| b"0123456789abcdef"[(state >> 60) as usize]);
    for (what, bytes) in [("random", &random), ("text", &text)] {
        let began = Instant::now();
        let mut found = 0;
        let mut loads = IndexLoadFinder::new(Lsn(512), 1 << 20);
        let mut deletions = FileDeleteFinder::new(Lsn(512));
        let mut changes = EncryptionChangeFinder::new(Lsn(512));
        let mut allocations = AllocationFinder::new(Lsn(512));
        for piece in bytes.chunks(1 << 20) {
            loads.feed(piece, |_| found += 1).unwrap();
            deletions.feed(piece, |_| found += 1).unwrap();
            changes.feed(piece, |_, _| found += 1).unwrap();
            allocations.feed(piece, |_, _| found += 1).unwrap();
        }
        let seconds = began.elapsed().as_secs_f64();
        println!("{what}: {:.0} MiB/s, {found} found", mib as f64 / seconds);
    }
}
