//! Full and incremental backups under writes and DDL, on every kind of server.

use std::thread::sleep;

use super::*;

/// Two backups of a busy server, the second on top of the first; both restore to exactly their position.
fn full_and_incremental(kind: ServerKind, seed: u64) {
    let stage = Stage::new(kind, 40);
    let load = WriteLoad::start(&stage.source, 2, seed).unwrap();
    let storm = DdlStorm::start(&stage.source, 2, seed).unwrap();
    sleep(Duration::from_secs(2));
    let full = stage.back_up();
    sleep(Duration::from_secs(2));
    let second = stage.back_up();
    let ddl = storm.stop().unwrap();
    let writes = load.stop().unwrap();
    println!("{kind} seed {seed}: {} transactions, {} DDL statements", writes.committed, ddl.done);
    assert!(writes.committed > 50 && ddl.done > 5, "there was no load to speak of");
    assert_eq!(second.base, Some(full.backup));
    assert!(second.totals.bytes_reused > 0, "nothing was taken from the first backup: {:?}", second.totals);
    stage.prove(&second);
    stage.prove(&full);
}

#[test]
fn mariadb_10_11_restores_to_the_recorded_position_under_writes_and_ddl() {
    full_and_incremental(ServerKind::MariaDb1011, 1);
}

#[test]
fn mariadb_11_8_restores_to_the_recorded_position_under_writes_and_ddl() {
    full_and_incremental(ServerKind::MariaDb118, 2);
}

#[test]
fn mysql_9_7_restores_to_the_recorded_position_under_writes_and_ddl() {
    full_and_incremental(ServerKind::MySql97, 3);
}
