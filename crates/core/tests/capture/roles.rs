//! Servers with a part to play.

use std::time::Instant;

use holdfast_core::ErrorKind;
use mysql::prelude::Queryable;
use rustix::process::Signal;

use super::*;

/// A primary whose commits wait for a replica, and that replica.
fn semi_synchronous(kind: ServerKind) -> (Server, Server) {
    let with = |options: &[&str]| options.iter().copied().fold(ServerOptions::default(), ServerOptions::arg);
    // Longer than anybody would wait.
    let (primary, replica) = if kind.is_mariadb() {
        (
            with(&["--rpl-semi-sync-master-enabled=ON", "--rpl-semi-sync-master-timeout=3600000"]),
            with(&["--rpl-semi-sync-slave-enabled=ON"]),
        )
    } else {
        (
            with(&[
                "--plugin-load-add=semisync_source.so",
                "--rpl-semi-sync-source-enabled=ON",
                "--rpl-semi-sync-source-timeout=3600000",
            ]),
            with(&["--plugin-load-add=semisync_replica.so", "--rpl-semi-sync-replica-enabled=ON"]),
        )
    };
    let primary = Server::start(kind, primary).unwrap();
    let replica = Server::start(kind, replica).unwrap();
    let begin = Position::File { name: "binlog.000001".to_owned(), offset: 4 };
    // Without a replica no commit would ever return.
    let waits =
        if kind.is_mariadb() { "rpl_semi_sync_master_enabled" } else { "rpl_semi_sync_source_enabled" };
    primary.exec(format!("SET GLOBAL {waits} = OFF")).unwrap();
    shop::load(&primary, shop::ShopOptions { size_mib: 2, ..shop::ShopOptions::default() }).unwrap();
    if kind.is_mariadb() {
        replica::follow(&primary, &replica, &begin).unwrap();
    } else {
        replica::follow(&primary, &replica, &Position::Held).unwrap();
    }
    replica::wait(&primary, &replica, Duration::from_secs(300)).unwrap();
    primary.exec(format!("SET GLOBAL {waits} = ON")).unwrap();
    (primary, replica)
}

/// Lets a server go on, also when the test fails: threads wait for it.
struct Awake<'a>(&'a Server);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::CONT);
    }
}

/// Whether definitions can be changed; nothing of it is logged, so it waits for no replica.
fn is_free(server: &Server) -> bool {
    let mut conn = server.conn().unwrap();
    let mut run = |statement: &str| conn.query_drop(statement);
    run("SET SESSION sql_log_bin = 0, lock_wait_timeout = 2").unwrap();
    run("CREATE TABLE shop.free (i INT)").and_then(|()| run("DROP TABLE shop.free")).is_ok()
}

/// The only replica of a primary that waits for it stalls, so no commit returns: a backup ends in time, with success or
/// an error that says what was in its way, and holds nothing afterwards. When the replica is back, a backup succeeds.
fn a_stalled_replica_stalls_no_backup(kind: ServerKind) {
    let (primary, replica) = semi_synchronous(kind);
    let load = WriteLoad::start(&primary, 2, 61).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let attempt = || {
        let sink = DirectorySink::new(dir.path().join("staging"));
        let capture = CaptureOptions {
            lock_wait: Duration::from_secs(1),
            lock_tries: 2,
            ..capture_options(&primary, dir.path())
        };
        capture_with(&primary, &sink, &Told, capture)
    };
    let _awake = Awake(&replica);
    replica.signal(Signal::STOP).unwrap();
    sleep(Duration::from_secs(1));
    let begun = Instant::now();
    let result = attempt();
    println!("{kind}: {:?} after {:?}", result.as_ref().err().map(ToString::to_string), begun.elapsed());
    if let Err(error) = &result {
        assert_eq!(error.kind(), ErrorKind::Server);
        assert!(
            error.to_string().contains("was not granted in time")
                || error.to_string().contains("was not answered in time"),
            "{error}"
        );
    }
    // A second try included; far less than the server's own patience.
    assert!(begun.elapsed() < Duration::from_secs(120));
    assert!(is_free(&primary));
    replica.signal(Signal::CONT).unwrap();
    attempt().unwrap();
    assert!(load.stop().unwrap().committed > 0);
}

#[test]
fn mariadb_a_stalled_semi_synchronous_replica_stalls_no_backup() {
    a_stalled_replica_stalls_no_backup(ServerKind::MariaDb1011);
}

#[test]
fn mysql_a_stalled_semi_synchronous_replica_stalls_no_backup() {
    a_stalled_replica_stalls_no_backup(ServerKind::MySql97);
}
