//! Everything that a server's files can be: pages of every format, locations, names, and broken files
//! (`docs/evidence/testing.md`).
//!
//! Each test starts a server with the options in question, writes while a full and an incremental backup are
//! taken, restores both, lets the server check all tables, and compares them with the source.
//! `HOLDFAST_FORMATS=long` tests every combination.

use holdfast_testkit::{
    data::{names, pages},
    load::PageLoad,
    tables::check_tables,
};

use super::*;

mod broken;
mod legacy;
mod many;
mod matrix;
mod named;
mod places;
mod read_only;
mod shapes;

/// Whether every combination was requested.
fn long() -> bool {
    std::env::var("HOLDFAST_FORMATS").is_ok_and(|value| value == "long")
}

/// The longest time that a load may take for a few transactions.
const LOAD_MAX: Duration = Duration::from_secs(600);

impl Stage {
    /// Takes two backups while `load` writes, then stops it and proves both.
    fn back_up_twice(&self, load: PageLoad) -> [BackupReport; 2] {
        const BETWEEN: u64 = 30;
        load.pass(BETWEEN, LOAD_MAX).unwrap();
        let first = self.back_up();
        load.pass(BETWEEN, LOAD_MAX).unwrap();
        let second = self.back_up();
        load.stop().unwrap();
        assert_eq!(second.run.base, Some(first.run.backup));
        assert!(
            second.run.totals.bytes_reused > 0,
            "nothing was taken from the first: {:?}",
            second.run.totals
        );
        self.prove_tables(&second);
        self.prove_tables(&first);
        [first, second]
    }

    /// Like [`Stage::prove`], for any tables.
    fn prove_tables(&self, backup: &BackupReport) {
        let restored = self.restore_recovered(backup);
        self.catch_up(backup, &restored);
    }
}
