//! A name that leads to several servers: sessions of a load that end up on another one than the first.

use super::*;
use crate::server::{ACCOUNT, each_led_astray};

/// Whichever connection of a load ends up on another server: a load that succeeds has put everything on the first one,
/// and nothing is ever put on the other.
fn another_server_answers(kind: ServerKind) {
    let statements: Vec<String> = (0..6)
        .flat_map(|table| {
            let rows: Vec<String> = (0..200).map(|row| format!("({row}, {table})")).collect();
            [
                format!("CREATE TABLE shop.t{table} (id INT PRIMARY KEY, v INT, KEY (v))"),
                format!("INSERT INTO shop.t{table} VALUES {}", rows.join(", ")),
            ]
        })
        .collect();
    let mut all = vec!["CREATE DATABASE shop"];
    all.extend(statements.iter().map(String::as_str));
    all.push("CREATE VIEW shop.v AS SELECT * FROM shop.t1");
    let (stage, backup) = backed_up(kind, &all);
    let (target, other) = (start(kind), start(kind));
    for server in [&target, &other] {
        server.exec_all(ACCOUNT).unwrap();
    }
    let refused = each_led_astray(&target, &other, |_, connect| {
        let options = LoadOptions {
            parallel: 2,
            overwrite: true,
            selection: Selection { schemas: vec!["shop".parse().unwrap()], ..Selection::default() },
            ..LoadOptions::new(connect)
        };
        load(&stage, backup, &options)?;
        assert_same_rows(&stage.source, &target);
        Ok(())
    });
    // The control session, the one that holds the load's lock, and those that load and read again.
    assert!(refused >= 4, "{refused}");
    let schemas: Vec<String> =
        other.query("SHOW DATABASES WHERE `Database` LIKE 'holdfast%' OR `Database` = 'shop'").unwrap();
    assert!(schemas.is_empty(), "{schemas:?}");
}

#[test]
fn mariadb_10_11_another_server_answers() {
    another_server_answers(ServerKind::MariaDb1011);
}

#[test]
fn mysql_9_7_another_server_answers() {
    another_server_answers(ServerKind::MySql97);
}
