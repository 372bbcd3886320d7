//! Sources on which something was changed after the backup, and what statements and numbers of the archive then
//! mean.

use super::{
    astray::{insert, recovered, stage},
    *,
};

/// The source stops giving GTIDs after the backup: transactions of both kinds are replayed.
#[test]
fn mysql_9_7_transactions_that_have_no_gtids_any_more() {
    let (stage, dir) = stage(ServerKind::MySql97, &[]);
    insert(&stage.server, 0..2);
    stage.once();
    back_up(&stage, dir.path());
    insert(&stage.server, 2..4);
    let set = |mode: &str| stage.server.exec(format!("SET GLOBAL gtid_mode = {mode}")).unwrap();
    set("ON_PERMISSIVE");
    set("OFF_PERMISSIVE");
    insert(&stage.server, 4..6);
    // Once it is off, the server sends no transaction that has one.
    stage.once();
    set("OFF");
    stage.server.exec("SET GLOBAL enforce_gtid_consistency = OFF").unwrap();
    insert(&stage.server, 6..8);
    stage.once();
    assert_eq!(recovered(&stage, dir.path(), Until::End), (0..8).collect::<Vec<_>>());
}
