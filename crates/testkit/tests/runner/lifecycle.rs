//! A server keeps committed data however it ends, and its identity across starts.

use anyhow::Result;
use holdfast_testkit::{Server, ServerKind, ServerOptions};

fn committed_rows_outlive_every_end(kind: ServerKind) -> Result<()> {
    let mut server = Server::start(kind, ServerOptions::default())?;
    server.exec("CREATE DATABASE d")?;
    server.exec("CREATE TABLE d.t (id INT PRIMARY KEY)")?;
    server.exec("INSERT INTO d.t VALUES (1)")?;
    let port = server.port();
    server.restart()?;
    server.exec("INSERT INTO d.t VALUES (2)")?;
    server.kill9()?;
    assert!(server.pid().is_err(), "a killed server has no pid");
    server.run()?;
    assert_eq!(server.port(), port);
    assert_eq!(server.query::<u32>("SELECT id FROM d.t ORDER BY id")?, [1, 2]);
    let binlogs: i64 = server.value("SELECT @@log_bin AND @@sync_binlog AND @@binlog_format = 'ROW'")?;
    assert_eq!(binlogs, 1);
    server.stop()
}

#[test]
fn committed_rows_outlive_every_end_mariadb_10_11() -> Result<()> {
    committed_rows_outlive_every_end(ServerKind::MariaDb1011)
}

#[test]
fn committed_rows_outlive_every_end_mariadb_11_8() -> Result<()> {
    committed_rows_outlive_every_end(ServerKind::MariaDb118)
}

#[test]
fn committed_rows_outlive_every_end_mysql_9_7() -> Result<()> {
    committed_rows_outlive_every_end(ServerKind::MySql97)
}

/// Options that shape a data directory take effect in it.
#[test]
fn a_server_can_have_another_page_size() -> Result<()> {
    for kind in ServerKind::all_kinds() {
        let server = Server::start(kind, ServerOptions::default().init_arg("--innodb-page-size=8k"))?;
        assert_eq!(server.value::<u32>("SELECT @@innodb_page_size")?, 8192);
    }
    Ok(())
}

/// The error contains the log of a server that fails to start.
#[test]
fn a_failed_start_shows_the_log() {
    let options = ServerOptions::default().arg("--no-such-option");
    let error = Server::start(ServerKind::MariaDb1011, options).expect_err("started with an unknown option");
    assert!(error.to_string().contains("no-such-option"), "{error:#}");
}
