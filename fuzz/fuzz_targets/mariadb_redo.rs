//! MariaDB's log: header, walk, relocation. Header, checkpoints and mini-transactions get valid checksums now and then,
//! to reach what lies behind them.
#![no_main]

use holdfast_formats::checksum::crc32c;
use holdfast_formats::redo::mariadb::{
    AbsolutePaths, CopiedFiles, Dropped, LinearLog, LogHeader, MtrWalker, PathRelocator,
};
use holdfast_formats::{Lsn, SpaceId};
use libfuzzer_sys::fuzz_target;

/// Makes `bytes` the start of a log, encrypted or not, as far as magic and checksums go.
fn seal_header(bytes: &mut Vec<u8>) {
    const HEADER_CRC_AT: usize = 508;
    const CHECKPOINTS_AT: [usize; 2] = [0x1000, 0x2000];
    const CHECKPOINT_CRC_AT: usize = 60;
    // The checkpoints of a short input follow its header.
    let tail = bytes.split_off(bytes.len().min(HEADER_CRC_AT));
    bytes.resize(LogHeader::PREFIX_BYTES_MIN, 0);
    for (at, part) in CHECKPOINTS_AT.into_iter().zip(tail.chunks(CHECKPOINT_CRC_AT)) {
        bytes[at..at + part.len()].copy_from_slice(part);
    }
    let is_encrypted = bytes[0] & 1 == 1;
    bytes[..4].copy_from_slice(if is_encrypted { b"\xf0\x9f\x97\x9d" } else { b"Phys" });
    for (begin, crc_at) in [(0, HEADER_CRC_AT)].into_iter().chain(CHECKPOINTS_AT.map(|at| (at, at + CHECKPOINT_CRC_AT))) {
        let crc = crc32c(&bytes[begin..crc_at]);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_be_bytes());
    }
}

fuzz_target!(|input: (u64, u64, bool, &[u8])| {
    let (at, file_bytes, seal, bytes) = input;
    let mut header = bytes.to_vec();
    if seal {
        seal_header(&mut header);
    }
    if let Ok(header) = LogHeader::parse(&header, file_bytes) {
        header.offset(Lsn(at));
        MtrWalker::new(&header).walk(&mut bytes.to_vec(), Lsn(at), None, |_, _| ());
        let _ = LinearLog::new(&header, header.checkpoint(), at, file_bytes);
    }
    let mut redo = bytes.to_vec();
    if seal {
        redo.push(1);
        redo.extend(crc32c(bytes).to_be_bytes());
    }
    let mut paths = AbsolutePaths::default();
    let mut dropped = Dropped::default();
    let walked = MtrWalker::linear(false).walk(&mut redo, Lsn(at), None, |_, op| {
        paths.observe(op);
        dropped.observe(op);
    });
    assert!(walked.bytes <= redo.len());
    assert_eq!(MtrWalker::linear(false).walk_pages(&mut redo, Lsn(at), |_, _| ()).bytes, walked.bytes);
    MtrWalker::linear(true).walk(&mut redo.clone(), Lsn(at), Some(Lsn(file_bytes)), |_, _| ());
    if let Ok(relocator) = PathRelocator::new(paths.directories()) {
        let mut copied = CopiedFiles::default();
        copied.add(b"db/t.ibd", Some(SpaceId(u32::from(seal))), true);
        let mut relocator = relocator.among(&copied, &dropped);
        let mut relocated = redo[..walked.bytes].to_vec();
        if let Ok(done) = relocator.rewrite(&mut relocated, Lsn(at)) {
            assert_eq!(done.bytes, walked.bytes);
            MtrWalker::linear(false).walk(&mut relocated, Lsn(at), None, |_, op| {
                assert!(op.paths().all(|path| !path.starts_with(b"/")));
            });
        }
    }
});
