//! Databases with the shapes of well-known samples: a film rental shop, and a company's employees.
//! A few ten thousand rows each.

use holdfast_core::logical::load::Adaptation;

use super::{
    random::{across, rows},
    *,
};

/// The least number of rows in both.
const ROWS_MIN: u64 = 90_000;

fn round_trip(kind: ServerKind, other: ServerKind) {
    let stage = Stage::new(kind);
    load_file(&stage.source, "shape-rental.sql");
    load_file(&stage.source, "shape-personnel.sql");
    let report = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    assert!(report.read.rows >= ROWS_MIN, "{}", report.read.rows);
    let backup = report.run.backup;

    let target = start(kind);
    let report = load(&stage, backup, &options(&target)).unwrap();
    let is_account = |it: &Adaptation| it.object.starts_with("account 'root'@");
    assert!(report.plan.adapted.iter().all(is_account), "{:?}", report.plan.adapted);
    rows::assert_equal(&stage.source, &target, &str::to_owned);
    assert_same_objects(&stage.source, &target);
    // Stored programs still work.
    for query in [
        "SELECT SUM(rental.owed(member_no, '2024-01-01')) FROM rental.member WHERE member_no < 50",
        "SELECT SUM(CRC32(cast_of)) FROM rental.casts",
        "SELECT COUNT(*) + SUM(total) FROM rental.members_who_left, rental.takings",
        "SELECT SUM(CRC32(personnel.unit_of(worker_no))) FROM personnel.leads",
        "SELECT SUM(amount) FROM personnel.wage_now",
        "SELECT COUNT(*) FROM rental.film WHERE MATCH (title, about) AGAINST ('lantern')",
    ] {
        let of = |server: &Server| server.query::<Option<String>>(query).unwrap();
        assert_eq!(of(&stage.source), of(&target), "{query}");
        assert!(of(&target)[0].is_some(), "{query}");
    }

    rows::wipe(&target);
    crate::logical::load(&target, &stage.script(backup, None));
    rows::assert_equal(&stage.source, &target, &str::to_owned);
    assert_same_objects(&stage.source, &target);
    drop(target);

    across::check(&stage, backup, &start(other), 0);
}

#[test]
fn shapes_of_mariadb_10_11() {
    round_trip(ServerKind::MariaDb1011, ServerKind::MariaDb118);
}

#[test]
fn shapes_of_mariadb_11_8() {
    round_trip(ServerKind::MariaDb118, ServerKind::MySql97);
}

#[test]
fn shapes_of_mysql_9_7() {
    round_trip(ServerKind::MySql97, ServerKind::MariaDb1011);
}
