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
    let is_account = |it: &&Adaptation| it.object.starts_with("account 'root'@");
    let adapted: Vec<&Adaptation> = report.plan.adapted.iter().filter(|it| !is_account(it)).collect();
    match adapted.as_slice() {
        [] => assert!(!kind.is_mariadb()),
        [history] => {
            assert!(kind.is_mariadb() && history.object == "table torture.versioned_parts", "{history:?}");
            assert!(history.what.contains("in other partitions"), "{history:?}");
        }
        several => panic!("{several:?}"),
    }
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

/// MariaDB: an account that administers none of the source's roles loads them, gives them to those who do, and
/// keeps none. A view whose owner gets its rights with the load is made.
#[test]
fn another_account_loads_roles_and_views() {
    let stage = Stage::new(ServerKind::MariaDb1011);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY)",
            "INSERT INTO shop.t VALUES (1), (2)",
            "CREATE USER chief@localhost, clerk@localhost",
            "CREATE ROLE reader WITH ADMIN chief@localhost",
            "CREATE ROLE writer WITH ADMIN chief@localhost",
            "GRANT SELECT ON shop.* TO reader",
        ])
        .unwrap();
    let as_chief = stage.source.opts().user(Some("chief")).pass(None::<String>);
    let mut chief = mysql::Conn::new(as_chief).unwrap();
    for statement in ["GRANT reader TO writer", "GRANT writer TO clerk@localhost"] {
        mysql::prelude::Queryable::query_drop(&mut chief, statement).unwrap();
    }
    stage
        .source
        .exec_all([
            "CREATE FUNCTION shop.f() RETURNS INT DETERMINISTIC RETURN 3",
            "GRANT SELECT, EXECUTE ON shop.* TO chief@localhost",
            "CREATE DEFINER = chief@localhost VIEW shop.v AS SELECT id, shop.f() AS f FROM shop.t",
            "CREATE DEFINER = chief@localhost VIEW shop.w AS SELECT f FROM shop.v",
        ])
        .unwrap();
    let backup = stage.back_up(&stage.options(), &Selection::default()).unwrap().run.backup;
    let target = start(ServerKind::MariaDb1011);
    target
        .exec_all([
            "CREATE USER loader@localhost IDENTIFIED BY 'l'",
            "GRANT ALL ON *.* TO loader@localhost WITH GRANT OPTION",
            "GRANT PROXY ON ''@'%' TO loader@localhost WITH GRANT OPTION",
        ])
        .unwrap();
    let mut chosen = options(&target);
    chosen.connect.user = Some("loader".to_owned());
    chosen.connect.password = Some(holdfast_core::server::Secret::new("l".to_owned()));
    let report = load(&stage, backup, &chosen).unwrap();
    assert_eq!(report.plan.left_out, []);
    let roles =
        "SELECT CONCAT(user, '@', host, ' ', role, ' ', admin_option) FROM mysql.roles_mapping ORDER BY 1";
    let of = |server: &Server| server.query::<String>(roles).unwrap();
    assert_eq!(of(&target), of(&stage.source));
    assert_eq!(target.query::<i32>("SELECT f FROM shop.w").unwrap(), [3, 3]);
    assert_clean(&target);
}
