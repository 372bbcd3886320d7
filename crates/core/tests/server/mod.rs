//! The SQL side, tested with each kind of server.

mod connect;
mod facts;
mod file_names;
mod grants;
mod held;
mod members;
mod process;
mod status;
mod tunnel;

use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use holdfast_core::{
    backup::BackupOptions,
    server::{ConnectOptions, LockPolicy, Purpose, Secret, Session},
};
use holdfast_testkit::{Server, ServerKind, ServerOptions, port::free_port};

/// Lock time limit for tests that do not test limits: many tests at once make reads and flushes slow.
pub(crate) const LOCK_MAX: Duration = Duration::from_secs(30);
/// A released server is free by then, however busy the machine is; a lock that was not released never ends.
pub(crate) const FREE_MAX: Duration = Duration::from_secs(120);

/// Runs a test on every kind of server.
fn on_each(test: impl Fn(&Server)) {
    for kind in ServerKind::all_kinds() {
        let server = start(kind);
        test(&server);
    }
}

fn start(kind: ServerKind) -> Server {
    Server::start(kind, ServerOptions::default()).unwrap()
}

/// The only member of a replication group.
pub(crate) fn group_of_one() -> Server {
    let server = start(ServerKind::MySql97);
    let port = free_port().unwrap();
    server
        .exec_all([
            "INSTALL PLUGIN group_replication SONAME 'group_replication.so'".to_owned(),
            "SET GLOBAL group_replication_group_name = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa'".to_owned(),
            format!("SET GLOBAL group_replication_local_address = '127.0.0.1:{port}'"),
            "SET GLOBAL group_replication_bootstrap_group = ON".to_owned(),
            "START GROUP_REPLICATION".to_owned(),
        ])
        .unwrap();
    server
}

/// The port of an address whose connections each lead to the port that `to` says when they are made.
pub(crate) fn relay(to: impl Fn() -> u16 + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to()))) else { return };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    let _gone = std::io::copy(&mut from, &mut to);
                    let _gone = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    port
}

/// An address whose connection with this number, counted from 1, leads to `other`; and how many there were.
fn astray(server: &Server, other: &Server, number: usize) -> (u16, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let (usual, elsewhere, counted) = (server.port(), other.port(), Arc::clone(&made));
    let to = move || match counted.fetch_add(1, Ordering::SeqCst) + 1 == number {
        true => elsewhere,
        false => usual,
    };
    (relay(to), made)
}

/// Options for [`ACCOUNT`] at a port of this host.
pub(crate) fn at_port(port: u16) -> ConnectOptions {
    ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        port: Some(port),
        user: Some("backup".to_owned()),
        password: Some(Secret::new("b".to_owned())),
        ..ConnectOptions::default()
    }
}

/// An account that both servers of [`each_led_astray`] need.
pub(crate) const ACCOUNT: [&str; 2] =
    ["CREATE USER backup@'127.0.0.1' IDENTIFIED BY 'b'", "GRANT ALL ON *.* TO backup@'127.0.0.1'"];

/// Leads each connection but the first of an operation in turn to `other`, until there is none more. An operation that
/// fails must say why. Returns how many did.
pub(crate) fn each_led_astray(
    server: &Server,
    other: &Server,
    mut run: impl FnMut(usize, ConnectOptions) -> Result<(), holdfast_core::Error>,
) -> u32 {
    let mut refused = 0;
    for number in 2.. {
        let (port, made) = astray(server, other, number);
        if let Err(error) = run(number, at_port(port)) {
            let text = error.to_string();
            assert!(text.contains("this is not the server"), "connection {number}: {text}");
            refused += 1;
        }
        if made.load(Ordering::SeqCst) < number {
            println!("{}: of {} connections {refused} were refused elsewhere", server.kind(), number - 1);
            break;
        }
    }
    refused
}

/// Connects as `root` by socket.
pub(crate) fn options(server: &Server) -> ConnectOptions {
    ConnectOptions {
        socket: Some(server.socket().to_owned()),
        user: Some("root".to_owned()),
        run: "test-1".to_owned(),
        ..ConnectOptions::default()
    }
}

/// Options of a backup in a test that does not test lock limits.
pub(crate) fn backup_options(connect: ConnectOptions) -> BackupOptions {
    BackupOptions {
        locks: LockPolicy {
            held_max: LOCK_MAX,
            ddl_held_max: 4 * LOCK_MAX,
            wait_max: Duration::from_secs(10),
            ..LockPolicy::default()
        },
        ..BackupOptions::new(connect)
    }
}

/// Waits until a statement with this beginning sleeps; returns the id of its connection.
pub(crate) fn sleeper(server: &Server, statement: &str) -> u64 {
    let query = format!(
        "SELECT id FROM information_schema.processlist WHERE state = 'User sleep' AND info LIKE '{statement}%'"
    );
    let begin = Instant::now();
    loop {
        if let Some(id) = server.query(&query).unwrap().pop() {
            return id;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{statement} does not sleep");
        sleep(Duration::from_millis(20));
    }
}

/// Connects as `root` by TCP.
pub(crate) fn tcp(server: &Server) -> ConnectOptions {
    ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        port: Some(server.port()),
        socket: None,
        ..options(server)
    }
}

/// Connects as another account by socket.
fn as_user(server: &Server, user: &str, password: &str) -> ConnectOptions {
    ConnectOptions {
        user: Some(user.to_owned()),
        password: Some(Secret::new(password.to_owned())),
        ..options(server)
    }
}

fn session(server: &Server) -> Session {
    Session::open(&options(server), Purpose::Control).unwrap()
}
