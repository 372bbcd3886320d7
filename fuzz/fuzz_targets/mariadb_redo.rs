//! MariaDB's log: header, walk, relocation. Mini-transactions get a valid checksum now and then, to reach what lies
//! behind it.
#![no_main]

use holdfast_formats::Lsn;
use holdfast_formats::checksum::crc32c;
use holdfast_formats::redo::mariadb::{AbsolutePaths, LinearLog, LogHeader, MtrWalker, PathRelocator};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, u64, bool, &[u8])| {
    let (at, file_bytes, seal, bytes) = input;
    if let Ok(header) = LogHeader::parse(bytes, file_bytes) {
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
    let walked = MtrWalker::linear(false).walk(&mut redo, Lsn(at), None, |_, op| paths.observe(op));
    assert!(walked.bytes <= redo.len());
    MtrWalker::linear(true).walk(&mut redo.clone(), Lsn(at), Some(Lsn(file_bytes)), |_, _| ());
    if let Ok(relocator) = PathRelocator::new(paths.directories()) {
        let mut relocated = redo[..walked.bytes].to_vec();
        if let Ok(done) = relocator.rewrite(&mut relocated, Lsn(at)) {
            assert_eq!(done.bytes, walked.bytes);
            MtrWalker::linear(false).walk(&mut relocated, Lsn(at), None, |_, op| {
                assert!(op.paths().all(|path| !path.starts_with(b"/")));
            });
        }
    }
});
