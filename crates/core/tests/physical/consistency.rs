//! Full and incremental backups under writes and DDL, on every kind of server.

use super::*;

/// Two backups of a busy server, the second on top of the first; both restore to exactly their position.
fn full_and_incremental(kind: ServerKind, seed: u64) {
    let stage = Stage::new(kind, 40);
    let [full, second] = stage.two_backups(seed);
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
