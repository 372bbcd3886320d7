//! Recovery to random moments after faults in every part: the short form of `make pitr`.

use std::{path::PathBuf, time::Duration};

use holdfast_testkit::{ServerKind, pitr};

/// Recovers to one moment of each kind.
#[allow(clippy::print_stdout, reason = "what was done, where it fails")]
fn moments_are_recovered_exactly(kind: ServerKind, seed: u64) {
    let options = pitr::Options {
        kind,
        targets: 4,
        seed,
        disorder: Duration::from_secs(6),
        program: PathBuf::from(env!("CARGO_BIN_EXE_holdfast")),
    };
    pitr::prove(&options, &mut |line| println!("{line}")).unwrap();
}

#[test]
fn mariadb_10_11_is_recovered_to_the_transaction() {
    moments_are_recovered_exactly(ServerKind::MariaDb1011, 41);
}

#[test]
fn mysql_9_7_is_recovered_to_the_transaction() {
    moments_are_recovered_exactly(ServerKind::MySql97, 42);
}
