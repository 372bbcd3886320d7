//! The SQL side against each kind of server.

mod connect;
mod facts;
mod grants;
mod held;
mod process;
mod status;
mod tunnel;

use holdfast_core::server::{ConnectOptions, Purpose, Secret, Session};
use holdfast_testkit::{Server, ServerKind, ServerOptions};

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

/// `root` by socket.
pub(crate) fn options(server: &Server) -> ConnectOptions {
    ConnectOptions {
        socket: Some(server.socket().to_owned()),
        user: Some("root".to_owned()),
        run: "test-1".to_owned(),
        ..ConnectOptions::default()
    }
}

/// `root` by TCP.
fn tcp(server: &Server) -> ConnectOptions {
    ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        port: Some(server.port()),
        socket: None,
        ..options(server)
    }
}

/// Another account by socket.
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
