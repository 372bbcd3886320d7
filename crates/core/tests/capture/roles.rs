//! Servers with special roles.

use std::time::Instant;

use holdfast_core::{
    ErrorKind,
    server::{ConnectOptions, LockPolicy, facts::grants},
};
use holdfast_formats::Flavor;
use holdfast_testkit::port::free_port;
use mysql::{Conn, prelude::Queryable};
use rustix::process::Signal;

use super::*;
use crate::server::FREE_MAX;

/// A primary whose commits wait for a replica, and that replica.
fn semi_synchronous(kind: ServerKind) -> (Server, Server) {
    let with = |options: &[&str]| options.iter().copied().fold(ServerOptions::default(), ServerOptions::arg);
    // Longer than any test waits.
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
    // Without a replica, no commit would ever return.
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

/// Lets a server continue even when the test fails, since threads wait for it.
struct Awake<'a>(&'a Server);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::CONT);
    }
}

/// Whether DDL is possible; the statements are not logged, so they do not wait for a replica.
fn is_free(server: &Server) -> bool {
    let mut conn = server.conn().unwrap();
    let mut run = |statement: &str| conn.query_drop(statement);
    run("SET SESSION sql_log_bin = 0, lock_wait_timeout = 2").unwrap();
    run("CREATE TABLE IF NOT EXISTS shop.free (i INT)")
        .and_then(|()| run("DROP TABLE IF EXISTS shop.free"))
        .is_ok()
}

/// The only replica of a primary that waits for it stalls, so no commit returns: a backup ends in time, with
/// success or with an error that names the obstacle, and holds nothing afterwards.
/// When the replica is back, a backup succeeds.
fn a_stalled_replica_stalls_no_backup(kind: ServerKind) {
    let (primary, replica) = semi_synchronous(kind);
    let load = WriteLoad::start(&primary, 2, 61).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let attempt = || {
        let sink = DirectorySink::new(dir.path().join("staging"));
        let capture = CaptureOptions {
            locks: LockPolicy {
                wait_max: Duration::from_secs(1),
                tries: 2,
                patience: Duration::ZERO,
                ..capture_options(&primary, dir.path()).locks
            },
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
                || error.to_string().contains("was not answered in time")
                || error.to_string().contains("the lock was released after"),
            "{error}"
        );
    }
    // This includes a second try, and is far less than the server's own timeout.
    assert!(begun.elapsed() < Duration::from_secs(120));
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < FREE_MAX, "{what}");
            sleep(Duration::from_millis(20));
        }
    };
    wait_for("it is locked", &|| is_free(&primary));
    replica.signal(Signal::CONT).unwrap();
    let before = load.committed();
    wait_for("commits stay away", &|| load.committed() > before);
    capture(&primary, &DirectorySink::new(dir.path().join("staging")), dir.path());
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

/// Takes every connection that the server has for accounts without special privileges.
fn take_all_connections(server: &Server) -> Vec<Conn> {
    let mut taken = Vec::new();
    // The server counts a refused or closed connection for a moment longer.
    let mut refusals = 0;
    while refusals < 20 {
        match Conn::new(server.opts().user(Some("hog"))) {
            Ok(conn) => {
                taken.push(conn);
                refusals = 0;
            }
            Err(_) => {
                refusals += 1;
                sleep(Duration::from_millis(50));
            }
        }
        assert!(taken.len() < 100);
    }
    taken
}

/// A backup of a server without free connections is refused at the start, with working advice; a backup
/// already in progress waits for a connection.
#[test]
fn connections_that_run_out_are_waited_for() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let own_port = free_port().unwrap();
        let own = match kind.is_mariadb() {
            true => vec![format!("--extra-port={own_port}"), "--extra-max-connections=20".to_owned()],
            false => vec![format!("--admin-port={own_port}"), "--admin-address=127.0.0.1".to_owned()],
        };
        let own =
            own.into_iter().fold(ServerOptions::default().arg("--max-connections=12"), ServerOptions::arg);
        let source = Server::start(kind, own).unwrap();
        shop::load(&source, shop::ShopOptions { size_mib: 2, ..shop::ShopOptions::default() }).unwrap();
        let flavor = if kind.is_mariadb() { Flavor::MariaDb } else { Flavor::MySql };
        let privileges: Vec<_> = grants::required(flavor).iter().map(|needed| needed.privilege).collect();
        let aside = if kind.is_mariadb() { "USAGE" } else { "SERVICE_CONNECTION_ADMIN" };
        source
            .exec_all([
                "CREATE USER hog@localhost".to_owned(),
                "CREATE USER backup@'127.0.0.1'".to_owned(),
                "CREATE USER backup@localhost".to_owned(),
                format!("GRANT {} ON *.* TO backup@'127.0.0.1'", privileges.join(", ")),
                format!("GRANT {} ON *.* TO backup@localhost", privileges.join(", ")),
                format!("GRANT {aside} ON *.* TO backup@'127.0.0.1'"),
            ])
            .unwrap();
        let connect = ConnectOptions { user: Some("backup".to_owned()), ..options(&source) };

        let taken = Mutex::new(Vec::new());
        let begun = Mutex::new(None);
        std::thread::scope(|scope| {
            let take = races::AtPhase {
                phase: "stop",
                action: || {
                    *taken.lock().unwrap() = take_all_connections(&source);
                    *begun.lock().unwrap() = Some(Instant::now());
                    scope.spawn(|| {
                        sleep(Duration::from_secs(2));
                        taken.lock().unwrap().clear();
                    });
                },
            };
            let dir = tempfile::tempdir().unwrap();
            let sink = DirectorySink::new(dir.path().join("staging"));
            capture_by(&source, connect.clone(), &sink, &take, capture_options(&source, dir.path())).unwrap();
        });
        let waited = begun.into_inner().unwrap().unwrap().elapsed();
        assert!(
            kind.is_mariadb() || waited >= Duration::from_secs(2),
            "it had its connections before: {waited:?}"
        );

        let _taken = take_all_connections(&source);
        let error = Session::open(&connect, Purpose::Control).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Server);
        assert!(error.hint().unwrap().contains(if kind.is_mariadb() { "extra_port" } else { "admin_port" }));
        let aside = ConnectOptions {
            host: Some("127.0.0.1".to_owned()),
            port: Some(own_port),
            socket: None,
            ..connect
        };
        let dir = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(dir.path().join("staging"));
        capture_by(&source, aside, &sink, &Told, capture_options(&source, dir.path())).unwrap();
    }
}
