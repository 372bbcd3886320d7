//! An account's privileges determine how the view is established; objects that it cannot see fail the backup.

use holdfast_core::{logical::Method, server::Secret};

use super::*;

fn stage(kind: ServerKind) -> Stage {
    let stage = Stage::new(kind);
    stage
        .source
        .exec_all([
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY)",
            "INSERT INTO shop.t VALUES (1), (2)",
            "CREATE TABLE shop.m (id INT PRIMARY KEY) ENGINE = MyISAM",
            "INSERT INTO shop.m VALUES (1)",
            "CREATE VIEW shop.v AS SELECT * FROM shop.t",
            "CREATE PROCEDURE shop.p () SELECT 1",
            "CREATE TRIGGER shop.g BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.id = NEW.id",
            "CREATE USER 'dump'@'localhost' IDENTIFIED BY 'd'",
        ])
        .unwrap();
    stage
}

fn options(stage: &Stage) -> BackupOptions {
    let mut options = stage.options();
    options.connect.user = Some("dump".to_owned());
    options.connect.password = Some(Secret::new("d".to_owned()));
    options
}

/// The errors name the minimal privileges one by one; with these, a backup is as complete as root's.
#[test]
fn errors_name_the_grants_that_are_missing() {
    for kind in ServerKind::all_kinds() {
        let stage = stage(kind);
        let selection = Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() };
        let mut granted = Vec::new();
        stage.source.exec("GRANT SELECT ON shop.* TO 'dump'@'localhost'").unwrap();
        let report = loop {
            let error = match stage.back_up(&options(&stage), &selection) {
                Ok(report) => break report,
                Err(error) => error,
            };
            let hint = error.hint().unwrap_or_default().to_owned();
            assert!(hint.contains("GRANT ") && granted.len() < 5, "{error:?}");
            for statement in hint.lines().filter(|line| line.starts_with("GRANT ")) {
                stage.source.exec(statement.trim_end_matches(';')).unwrap();
                granted.push(statement.to_owned());
            }
        };
        println!("{kind}: {granted:?} {:?}", report.view);
        assert!(!granted.is_empty());
        let script = String::from_utf8(stage.script(report.run.backup, None)).unwrap();
        for object in ["TABLE `t`", "PROCEDURE `p`", "TRIGGER", "VIEW `v`"] {
            assert!(script.contains(object), "{object}: {script}");
        }
        // Tables that could not be locked are reported.
        assert_eq!(report.view.inconsistent, ["shop.m"]);
        let expected = if kind.is_mariadb() { Method::BinlogPosition } else { Method::OneReader };
        assert_eq!(report.view.method, expected);

        stage.source.exec("GRANT LOCK TABLES ON shop.* TO 'dump'@'localhost'").unwrap();
        let report = stage.back_up(&options(&stage), &selection).unwrap();
        assert_eq!((report.view.method, report.view.inconsistent.len()), (Method::TableLocks, 0));

        stage.source.exec("GRANT RELOAD, LOCK TABLES ON *.* TO 'dump'@'localhost'").unwrap();
        let report = stage.back_up(&options(&stage), &selection).unwrap();
        let expected = if kind.is_mariadb() { Method::BackupStages } else { Method::TableLocks };
        assert_eq!(report.view.method, expected);
    }
}

/// The grants in the documentation suffice for everything: the best view, with its position, and no table
/// outside of the view.
#[test]
fn the_grants_of_the_documentation() {
    const PAGE: &str = include_str!("../../../../docs/guide/logical-backup.md");
    for kind in ServerKind::all_kinds() {
        let stage = stage(kind);
        let flavor = if kind.is_mariadb() { "-- MariaDB\n" } else { "-- MySQL\n" };
        let (_, grants) = PAGE.split_once(flavor).unwrap();
        let grant = grants.lines().find(|line| line.starts_with("GRANT ")).unwrap();
        stage.source.exec(grant.trim_end_matches(';')).unwrap();
        let report = stage.back_up(&options(&stage), &Selection::default()).unwrap();
        let expected = if kind.is_mariadb() { Method::BackupStages } else { Method::TableLocks };
        assert_eq!((report.view.method, &report.view.inconsistent[..]), (expected, &[][..]), "{kind}");
        let position = report.position.expect("a position");
        assert!(position.binlog.is_some(), "{kind}: {position:?}");
        let script = String::from_utf8(stage.script(report.run.backup, None)).unwrap();
        for object in ["TABLE `t`", "TABLE `m`", "PROCEDURE `p`", "TRIGGER", "VIEW `v`", "dump"] {
            assert!(script.contains(object), "{kind}: {object}: {script}");
        }
    }
}

/// A database for which the account has no privileges is not in the server's list: a backup of
/// everything, or with wildcards, fails until the account can see that it exists, and then because
/// the account cannot read it.
#[test]
fn databases_that_are_not_listed() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let stage = stage(kind);
        stage
            .source
            .exec_all([
                "GRANT SELECT, SHOW VIEW, TRIGGER, EVENT ON shop.* TO 'dump'@'localhost'",
                "GRANT SELECT ON mysql.* TO 'dump'@'localhost'",
                "CREATE DATABASE shop_crm",
                "CREATE TABLE shop_crm.t (id INT PRIMARY KEY)",
            ])
            .unwrap();
        if !kind.is_mariadb() {
            stage.source.exec("GRANT SHOW_ROUTINE ON *.* TO 'dump'@'localhost'").unwrap();
        }
        let wild = Selection { schemas: vec!["shop*".parse().unwrap()], ..Selection::default() };
        let hint = |selection: &Selection| {
            let error = stage.back_up(&options(&stage), selection).unwrap_err();
            error.hint().unwrap_or_default().to_owned()
        };
        for selection in [&wild, &Selection::default()] {
            assert_eq!(hint(selection), "GRANT SHOW DATABASES ON *.* TO 'dump'@'localhost';");
        }
        stage.source.exec("GRANT SHOW DATABASES ON *.* TO 'dump'@'localhost'").unwrap();
        assert!(hint(&wild).contains("ON `shop_crm`.* TO"), "{}", hint(&wild));
        assert!(hint(&Selection::default()).contains("ON *.* TO"));
        stage
            .source
            .exec("GRANT SELECT, SHOW VIEW, TRIGGER, EVENT ON shop_crm.* TO 'dump'@'localhost'")
            .unwrap();
        let report = stage.back_up(&options(&stage), &wild).unwrap();
        assert_eq!(report.read.tables, 3);
    }
}

/// Rows read by TLS are the same: a backup by TLS after one by socket stores nothing new.
#[test]
fn rows_by_tls_are_the_same() {
    let stage = stage(ServerKind::MySql97);
    let by_socket = stage.back_up(&stage.options(), &Selection::default()).unwrap();
    let mut by_tls = stage.options();
    by_tls.connect.socket = None;
    by_tls.connect.host = Some("127.0.0.1".to_owned());
    by_tls.connect.port = Some(stage.source.port());
    by_tls.connect.ssl_mode = Some(holdfast_core::server::SslMode::Required);
    let by_tls = stage.back_up(&by_tls, &Selection::default()).unwrap();
    assert_eq!(by_socket.read.rows, by_tls.read.rows);
    assert_eq!(by_tls.run.totals.bytes_new, 0, "{:?}", by_tls.run.totals);
    assert_eq!(stage.script(by_socket.run.backup, None), stage.script(by_tls.run.backup, None));
}
