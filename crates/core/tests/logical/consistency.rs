//! One view for all connections, at the position that is recorded, while others write.

use std::{thread::sleep, time::Duration};

use holdfast_testkit::{
    data::shop,
    load::{WriteLoad, writes::check_ledger},
    replica::{self, CATCH_UP_MAX, Position},
};

use super::*;

/// What is loaded, made a replica at the recorded position, becomes equal to its source: neither one transaction more nor
/// less is in the backup, in tables with and without transactions.
fn at_its_position(kind: ServerKind, seed: u64) {
    let stage = Stage::new(kind);
    shop::load(&stage.source, shop::ShopOptions { size_mib: 12, ..shop::ShopOptions::default() }).unwrap();
    let load = WriteLoad::start(&stage.source, 2, seed).unwrap();
    sleep(Duration::from_secs(1));
    let options =
        BackupOptions { parallel: 4, lock_max: Duration::from_secs(20), lock_tries: 10, ..stage.options() };
    let report = stage.back_up(&options, &Selection::default()).unwrap();
    sleep(Duration::from_millis(500));
    let writes = load.stop().unwrap();
    println!(
        "{kind} seed {seed}: {} transactions, {:?} {:#?}",
        writes.committed, report.position, report.locks
    );
    assert!(writes.committed > 50, "there was no load to speak of");

    let target = stage.loaded(report.run.backup);
    assert!(check_ledger(&target).unwrap() > 0);
    let gtid = report.position.and_then(|position| position.gtid).unwrap();
    let position = if kind.is_mariadb() {
        Position::Gtid(gtid)
    } else {
        target
            .exec_all([
                "RESET BINARY LOGS AND GTIDS".to_owned(),
                format!("SET GLOBAL gtid_purged = '{gtid}'"),
            ])
            .unwrap();
        Position::Held
    };
    replica::catch_up(&stage.source, &target, &position, CATCH_UP_MAX).unwrap();
    assert_same_rows(&stage.source, &target);
}

#[test]
fn a_backup_of_mariadb_10_11_is_at_its_position() {
    at_its_position(ServerKind::MariaDb1011, 11);
}

#[test]
fn a_backup_of_mariadb_11_8_is_at_its_position() {
    at_its_position(ServerKind::MariaDb118, 12);
}

#[test]
fn a_backup_of_mysql_9_7_is_at_its_position() {
    at_its_position(ServerKind::MySql97, 13);
}
