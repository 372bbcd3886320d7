//! Everything comes back, under its own name or another one; existing objects are kept.

use holdfast_core::logical::load::Adaptation;

use super::*;

/// Rows, history, definitions, stored programs, accounts: all of them are preserved.
fn round_trip(kind: ServerKind) {
    let (stage, backup) = saved(kind);
    let target = start(kind);
    let chosen = LoadOptions { leave_out: true, ..options(&target) };
    let report = load(&stage, backup, &chosen).unwrap();
    // The only view that was unusable on the source as well.
    let left_out: Vec<_> = report.plan.left_out.iter().map(|it| it.object.as_str()).collect();
    assert_eq!(left_out, ["view torture.broken"]);
    let is_account = |it: &Adaptation| it.object.starts_with("account 'root'@");
    assert!(report.plan.adapted.iter().all(is_account), "{:?}", report.plan.adapted);
    assert!(report.by_parameters);
    assert!(report.tables_verified > 30);
    assert_same_rows(&stage.source, &target);
    assert_same_objects(&stage.source, &target);
    if kind.is_mariadb() {
        assert_eq!(histories(&stage.source), histories(&target));
    }
    assert_clean(&target);
    let passwords = "SELECT CONCAT(user, '@', host), HEX(authentication_string) FROM mysql.user WHERE host <> '' ORDER BY 1";
    let of = |server: &Server| server.query::<(String, String)>(passwords).unwrap();
    assert_eq!(of(&stage.source), of(&target));

    // A second load would conflict with the first, and reports that before it touches anything.
    let error = load(&stage, backup, &chosen).unwrap_err();
    assert!(error.to_string().contains("torture.by_key"), "{error}");
    assert_clean(&target);
    target.exec("DELETE FROM torture.key_text").unwrap();
    load(&stage, backup, &LoadOptions { overwrite: true, ..chosen }).unwrap();
    assert_same_rows(&stage.source, &target);
    assert_same_objects(&stage.source, &target);
}

#[test]
fn everything_is_loaded_into_mariadb_10_11() {
    round_trip(ServerKind::MariaDb1011);
}

#[test]
fn everything_is_loaded_into_mariadb_11_8() {
    round_trip(ServerKind::MariaDb118);
}

#[test]
fn everything_is_loaded_into_mysql_9_7() {
    round_trip(ServerKind::MySql97);
}
