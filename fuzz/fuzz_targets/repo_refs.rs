//! Refs of backups and of prunes: what decodes is spelled in one way.
#![no_main]

use holdfast_repo::{
    RunNo,
    format::refs::{BackupRefs, PruneRefs},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &[u8])| {
    let (run, bytes) = input;
    if let Ok(refs) = BackupRefs::decode(RunNo(run), bytes) {
        assert_eq!(refs.encode(), bytes);
    }
    if let Ok(refs) = PruneRefs::decode(RunNo(run), bytes) {
        assert_eq!(refs.encode(), bytes);
        assert!(refs.moves.iter().all(|moved| moved.from.pack.run < moved.to.pack.run));
    }
});
