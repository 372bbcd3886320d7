//! The oracle works: a replica that starts at the right position ends up equal, and one
//! that does not is detected.

use std::time::Duration;

use anyhow::Result;
use holdfast_testkit::checksum::{checksums, differences};
use holdfast_testkit::data::{misc, shop};
use holdfast_testkit::load::{DdlStorm, Prober, WriteLoad, writes};
use holdfast_testkit::replica::{self, CATCH_UP_MAX, Position};
use holdfast_testkit::server::copy_datadir;
use holdfast_testkit::{Server, ServerKind, ServerOptions, assert_equal_checksums};

fn a_replica_ends_equal_after_every_kind_of_change(kind: ServerKind) -> Result<()> {
    let mut source = Server::start(kind, ServerOptions::default())?;
    source.stop()?;
    let copy = source.home().join("copy");
    copy_datadir(source.datadir(), &copy)?;
    source.run()?;

    let rows = shop::load(&source, shop::ShopOptions::default())?;
    assert_eq!(source.value::<u64>("SELECT COUNT(*) FROM shop.orders")?, rows.orders);
    misc::create(&source, misc::MiscOptions { outside: false, ..Default::default() })?;
    let writes = WriteLoad::start(&source, 2, 7)?;
    let storm = DdlStorm::start(&source, 2, 7)?;
    let prober = Prober::of_commits(&source)?;
    std::thread::sleep(Duration::from_secs(2));
    let (writes, storm, commits) = (writes.stop()?, storm.stop()?, prober.stop()?);
    assert!(writes.committed > 0 && writes.plain > 0 && commits.max() > Duration::ZERO, "{writes:?}");
    assert!(storm.done > 2 * storm.refused.values().sum::<u64>(), "mostly refused: {storm:?}");
    assert!(writes::check_ledger(&source)? > 0);

    let target = Server::attach(kind, &copy, ServerOptions::default())?;
    if kind.is_mariadb() {
        // Plugins are not replicated.
        target.exec("INSTALL SONAME 'ha_archive'")?;
    }
    replica::catch_up(&source, &target, &Position::Held, CATCH_UP_MAX)?;
    assert_equal_checksums(&source, &target)?;
    assert_eq!(writes::check_ledger(&source)?, writes::check_ledger(&target)?);

    // With one row less, the oracle must detect the difference.
    replica::detach(&target)?;
    target.exec_all(["SET sql_log_bin = 0", "DELETE FROM shop.customers WHERE id = 1"])?;
    assert_eq!(differences(&checksums(&source)?, &checksums(&target)?).len(), 1);
    Ok(())
}

#[test]
fn a_replica_ends_equal_after_every_kind_of_change_mariadb_10_11() -> Result<()> {
    a_replica_ends_equal_after_every_kind_of_change(ServerKind::MariaDb1011)
}

#[test]
fn a_replica_ends_equal_after_every_kind_of_change_mariadb_11_8() -> Result<()> {
    a_replica_ends_equal_after_every_kind_of_change(ServerKind::MariaDb118)
}

#[test]
fn a_replica_ends_equal_after_every_kind_of_change_mysql_9_7() -> Result<()> {
    a_replica_ends_equal_after_every_kind_of_change(ServerKind::MySql97)
}

/// Every engine, format and placement of the data set exists on every kind, and survives a restart.
#[test]
fn everything_misc_outlives_the_server() -> Result<()> {
    for kind in ServerKind::all_kinds() {
        let mut server = Server::start(kind, ServerOptions::default())?;
        misc::create(&server, misc::MiscOptions::default())?;
        assert!(std::fs::read_dir(server.outside())?.next().is_some(), "nothing outside the data directory");
        let before = checksums(&server)?;
        server.kill9()?;
        server.run()?;
        assert_eq!(differences(&before, &checksums(&server)?), Vec::<String>::new(), "{kind}");
    }
    Ok(())
}

/// A recorded position that does not match the data must be detected.
#[test]
fn a_wrong_position_does_not_pass() -> Result<()> {
    for kind in ServerKind::all_kinds() {
        let mut source = Server::start(kind, ServerOptions::default())?;
        source.exec_all([
            "CREATE DATABASE d",
            "CREATE TABLE d.t (id INT PRIMARY KEY)",
            "INSERT INTO d.t VALUES (1)",
        ])?;
        let position = if kind.is_mariadb() { "SELECT @@gtid_binlog_pos" } else { "SELECT @@gtid_executed" };
        let too_early = Position::Gtid(source.value(position)?);
        source.exec("INSERT INTO d.t VALUES (2)")?;
        source.stop()?;
        let copy = source.home().join("copy");
        copy_datadir(source.datadir(), &copy)?;
        // Remove the copy's own binlog, which would reject the position by itself.
        for name in ["binlog.index", "binlog.state"] {
            std::fs::remove_file(copy.join(name)).ok();
        }
        source.run()?;
        let target = Server::attach(kind, &copy, ServerOptions::default())?;
        let error = replica::catch_up(&source, &target, &too_early, CATCH_UP_MAX).expect_err("caught up");
        let error = format!("{error:#}");
        let cause = if kind.is_mariadb() { "Duplicate entry" } else { "recorded was" };
        assert!(error.contains(cause), "{kind}: {error}");
    }
    Ok(())
}
