//! Connections of every kind, and every failure that a user can meet.

use std::{net::TcpListener, time::Duration};

use holdfast_core::{
    ErrorKind,
    server::{ConnectOptions, Purpose, Secret, Session, SslMode},
};
use holdfast_testkit::{Server, ServerKind, ServerOptions, tls};

use super::{as_user, on_each, options, tcp};

fn refusal(options: &ConnectOptions) -> (String, String) {
    let error = Session::open(options, Purpose::Control).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server, "{error}");
    (error.to_string(), error.hint().unwrap_or_default().to_owned())
}

/// A session can be opened by socket and by TCP, with our own settings whatever the server's are.
#[test]
fn by_socket_and_tcp() {
    on_each(|server| {
        let id_limit = "SET GLOBAL sql_select_limit = 1, GLOBAL time_zone = '+05:00', GLOBAL autocommit = 0";
        server.exec(id_limit).unwrap();
        for options in [options(server), tcp(server)] {
            let mut session = Session::open(&options, Purpose::Control).unwrap();
            assert_eq!(session.version().number(), number(server.kind()));
            assert_eq!(
                session.value("SELECT TIMEDIFF(NOW(), UTC_TIMESTAMP())").unwrap().unwrap(),
                "00:00:00"
            );
            assert_eq!(session.number::<u8>("SELECT @@autocommit").unwrap(), 1);
            assert!(session.rows("SELECT 1 FROM information_schema.tables").unwrap().len() > 1);
            assert_eq!(session.value("SELECT 'Zoë ☃'").unwrap().unwrap(), "Zoë ☃");
            assert_eq!(session.value("SELECT NULL").unwrap(), None);
            assert_eq!(session.variable("no_such_variable").unwrap(), None);
            assert!(
                session.exec("SELEC 1").unwrap_err().to_string().starts_with("SELEC 1: You have an error")
            );
            session.ping().unwrap();
        }
    });
}

fn number(kind: ServerKind) -> (u16, u16, u16) {
    let version = kind.version().unwrap();
    let parts: Vec<u16> = version.split('.').map(|part| part.parse().unwrap()).collect();
    (parts[0], parts[1], parts[2])
}

/// Every failure is distinguished, says what to do, and never shows the password.
#[test]
fn failures_say_what_to_do() {
    on_each(|server| {
        server.exec("CREATE USER backup@localhost IDENTIFIED BY 'secret-1'").unwrap();
        Session::open(&as_user(server, "backup", "secret-1"), Purpose::Control).unwrap();
        let (message, hint) = refusal(&as_user(server, "backup", "secret-2"));
        assert!(message.contains("Access denied for user 'backup'@'localhost'"), "{message}");
        assert!(!message.contains("secret") && hint.contains("--user"), "{hint}");

        let elsewhere = options(server);
        let missing = server.home().join("none.sock");
        let (message, hint) = refusal(&ConnectOptions { socket: Some(missing.clone()), ..elsewhere });
        assert!(
            message.contains(missing.to_str().unwrap()) && message.contains("no such socket"),
            "{message}"
        );
        assert!(hint.contains("--socket"), "{hint}");

        server.exec("SET GLOBAL max_connections = 10").unwrap();
        let mut held = Vec::new();
        let error = loop {
            match Session::open(&as_user(server, "backup", "secret-1"), Purpose::Control) {
                Ok(session) => held.push(session),
                Err(error) => break error,
            }
            assert!(held.len() <= 10);
        };
        assert!(error.hint().unwrap().contains("max_connections"), "{error:?}");
    });
    let unknown = ConnectOptions {
        host: Some("no-such-host.invalid".to_owned()),
        user: Some("u".to_owned()),
        ..ConnectOptions::default()
    };
    assert!(refusal(&unknown).1.contains("--host"), "{:?}", refusal(&unknown));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = ConnectOptions { host: Some("127.0.0.1".to_owned()), port: Some(closed), ..unknown.clone() };
    assert!(refusal(&nobody).1.contains("nothing listens"), "{:?}", refusal(&nobody));
    // Accepts connections and never responds.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = ConnectOptions {
        host: Some("127.0.0.1".to_owned()),
        port: Some(mute.local_addr().unwrap().port()),
        connect_timeout: Some(Duration::from_millis(300)),
        ..unknown
    };
    assert!(refusal(&silent).0.contains("did not answer in time"), "{:?}", refusal(&silent));
}

/// TLS is used if it is offered and requested, and an unknown authority is rejected if it is verified.
#[test]
fn tls() {
    on_each(|server| {
        let offered = offers_tls(server);
        let cipher = |mode| -> Result<String, String> {
            let options = ConnectOptions { ssl_mode: Some(mode), ..tcp(server) };
            let mut session =
                Session::open(&options, Purpose::Control).map_err(|error| format!("{error:?}"))?;
            let row = session.row("SHOW SESSION STATUS LIKE 'Ssl_cipher'").unwrap().unwrap();
            Ok(row.text("Value").unwrap().to_owned())
        };
        assert_eq!(cipher(SslMode::Disabled).unwrap(), "");
        assert_eq!(cipher(SslMode::Preferred).unwrap() != "", offered);
        match cipher(SslMode::Required) {
            Ok(cipher) => assert!(offered && !cipher.is_empty()),
            Err(error) => assert!(!offered && error.contains("offers no TLS"), "{error}"),
        }
        let error = cipher(SslMode::VerifyCa).unwrap_err();
        assert!(error.contains("--ssl-ca") && error.contains("Usage"), "{error}");
        let error = cipher(SslMode::VerifyIdentity).unwrap_err();
        assert!(error.contains(if offered { "--ssl-ca" } else { "offers no TLS" }), "{error}");
        if offered && server.kind() == ServerKind::MySql97 {
            let checked = ConnectOptions {
                ssl_ca: Some(server.datadir().join("ca.pem")),
                ssl_cert: Some(server.datadir().join("client-cert.pem")),
                ssl_key: Some(server.datadir().join("client-key.pem")),
                ..tcp(server)
            };
            server.exec("CREATE USER x509@'127.0.0.1' IDENTIFIED BY 'x' REQUIRE X509").unwrap();
            let by_certificate = ConnectOptions {
                user: Some("x509".to_owned()),
                password: Some(Secret::new("x".to_owned())),
                ..checked.clone()
            };
            Session::open(&by_certificate, Purpose::Control).unwrap();
            let other_host = ConnectOptions { ssl_mode: Some(SslMode::VerifyIdentity), ..checked };
            refusal(&other_host);
        }
    });
}

/// A server that accepts only TLS, on TCP, with a certificate of a private authority: connections work with
/// every TLS mode except disabled, and verification accepts only the right authority and name.
#[test]
fn tls_only() {
    for kind in [ServerKind::MariaDb1011, ServerKind::MySql97] {
        let options = tls::server_options()
            .into_iter()
            .chain(
                ["--require-secure-transport=ON", "--skip-name-resolve", "--bind-address=0.0.0.0"]
                    .map(str::to_owned),
            )
            .fold(ServerOptions::default(), ServerOptions::arg);
        let server = Server::start(kind, options).unwrap();
        server
            .exec_all([
                "CREATE USER b@'127.0.0._' IDENTIFIED BY 'pw'",
                "GRANT SELECT ON *.* TO b@'127.0.0._'",
            ])
            .unwrap();
        let by = |mode, ca: &str, host: &str| ConnectOptions {
            user: Some("b".to_owned()),
            password: Some(Secret::new("pw".to_owned())),
            host: Some(host.to_owned()),
            ssl_mode: Some(mode),
            ssl_ca: (!ca.is_empty()).then(|| tls::file(ca)),
            ..tcp(&server)
        };
        for (mode, ca, host, is_good) in [
            (SslMode::Disabled, "", "127.0.0.1", false),
            (SslMode::Preferred, "", "127.0.0.1", true),
            (SslMode::Required, "", "127.0.0.1", true),
            (SslMode::VerifyIdentity, "", "127.0.0.1", false),
            (SslMode::VerifyCa, "other-ca.pem", "127.0.0.1", false),
            (SslMode::VerifyIdentity, "other-ca.pem", "127.0.0.1", false),
            (SslMode::VerifyCa, "ca.pem", "127.0.0.1", true),
            (SslMode::VerifyCa, "ca.pem", "127.0.0.2", true),
            (SslMode::VerifyIdentity, "ca.pem", "127.0.0.1", true),
            (SslMode::VerifyIdentity, "ca.pem", "127.0.0.2", false),
        ] {
            let options = by(mode, ca, host);
            let opened = Session::open(&options, Purpose::Control);
            assert_eq!(opened.is_ok(), is_good, "{kind} {mode:?} {ca} {host}: {:?}", opened.err());
            if !is_good {
                let (message, hint) = refusal(&options);
                assert!(hint.contains("--ssl-") || message.contains("TLS"), "{message}: {hint}");
            }
        }
    }
}

fn offers_tls(server: &Server) -> bool {
    match server.kind() {
        ServerKind::MySql97 => true,
        _ => server.value::<String>("SELECT @@have_ssl").unwrap() == "YES",
    }
}

/// Accounts log in by every method that the servers offer by default.
#[test]
fn authentication_methods() {
    on_each(|server| {
        let mut accounts: Vec<(ConnectOptions, &str)> = Vec::new();
        if server.kind() == ServerKind::MySql97 {
            server.exec("CREATE USER sha2 IDENTIFIED WITH caching_sha2_password BY 'geheim'").unwrap();
            for mode in [SslMode::Disabled, SslMode::Preferred] {
                // The first login needs the whole password, later ones are answered from the server's cache.
                server.exec("FLUSH PRIVILEGES").unwrap();
                let account =
                    ConnectOptions { user: Some("sha2".into()), ssl_mode: Some(mode), ..tcp(server) };
                let account = ConnectOptions { password: Some(Secret::new("geheim".to_owned())), ..account };
                accounts.extend([(account.clone(), "sha2 first"), (account, "sha2 again")]);
            }
            server.exec("INSTALL PLUGIN auth_socket SONAME 'auth_socket.so'").unwrap();
            server.exec("ALTER USER root@localhost IDENTIFIED WITH auth_socket").unwrap();
            accounts.push((options(server), "auth_socket"));
        } else {
            server
                .exec("CREATE USER native IDENTIFIED VIA mysql_native_password USING PASSWORD('geheim')")
                .unwrap();
            accounts.push((as_user(server, "native", "geheim"), "native"));
            server.exec("INSTALL SONAME 'auth_ed25519'").unwrap();
            server.exec("CREATE USER ed IDENTIFIED VIA ed25519 USING PASSWORD('geheim')").unwrap();
            accounts.push((as_user(server, "ed", "geheim"), "ed25519"));
            server.exec("ALTER USER root@localhost IDENTIFIED VIA unix_socket").unwrap();
            accounts.push((options(server), "unix_socket"));
        }
        for (account, what) in accounts {
            let opened = Session::open(&account, Purpose::Control);
            assert!(opened.is_ok(), "{} {what}: {:?}", server.kind(), opened.err());
        }
    });
}
