//! Connects to a server: to its socket, by TCP with or without TLS, or through a tunnel. A failure says what is
//! wrong and what to do about it.

use std::{
    collections::HashMap,
    io,
    net::{TcpStream, ToSocketAddrs},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use mysql::{Conn, DriverError, OptsBuilder};

use super::{
    code,
    endpoint::Endpoint,
    options::{ConnectOptions, Purpose, SOCKETS_DEFAULT, SslMode},
    relay::{self, Plain, Relay, Security},
    secret::Secret,
    sql_error::{SqlCause, SqlError},
    tls,
};
use crate::error::{Error, ErrorKind, Result};

/// Largest packet in either direction; the server's own limit may be lower.
const PACKET_SIZE_MAX: usize = 64 << 20;
/// How often to retry a server that has no free connection.
const ROOM_POLL: Duration = Duration::from_millis(100);
/// How many times to retry a connection because its tunnel broke while it was being made.
const TUNNELS_MAX: u32 = 2;

impl ConnectOptions {
    /// Makes a raw connection, whose reads and writes fail after [`timeout`](Self::timeout). Waits up to
    /// `room_wait` for a server that has no free connection. A relay must live as long as the connection.
    pub(super) fn connect(&self, purpose: Purpose, room_wait: Duration) -> Result<(Conn, Option<Relay>)> {
        self.validate()?;
        let user = self.account()?;
        let endpoint = self.endpoint();
        let until = Instant::now() + room_wait;
        let mut tunnels_left = TUNNELS_MAX;
        let mut was_denied = false;
        loop {
            match self.try_to_connect(&endpoint, &user, purpose) {
                // MariaDB's ed25519 signs 32 random bytes. The library takes a zero at their end for a string
                // terminator (mysql_common 0.37.3), so that one correct login in 256 is refused.
                Err(mysql::Error::MySqlError(error))
                    if error.code == code::ACCESS_DENIED && self.password.is_some() && !was_denied =>
                {
                    was_denied = true;
                }
                // The tunnel broke during the attempt: the next attempt makes a new one.
                Err(error)
                    if !matches!(error, mysql::Error::MySqlError(_))
                        && tunnels_left > 0
                        && self.has_broken_tunnel() =>
                {
                    tunnels_left -= 1;
                }
                Err(mysql::Error::MySqlError(error))
                    if error.code == code::TOO_MANY_CONNECTIONS && Instant::now() < until =>
                {
                    std::thread::sleep(ROOM_POLL);
                }
                outcome => return outcome.map_err(|error| self.explain(error, &endpoint, &user)),
            }
        }
    }

    fn try_to_connect(
        &self,
        endpoint: &Endpoint,
        user: &str,
        purpose: Purpose,
    ) -> mysql::Result<(Conn, Option<Relay>)> {
        let directly = || Ok((Conn::new(self.builder(endpoint, user, purpose))?, None));
        let mode = self.effective_ssl_mode();
        let security = match (endpoint, &self.tunnel, mode) {
            (Endpoint::Socket(_), None, _) | (_, None, SslMode::Disabled) => return directly(),
            (Endpoint::Socket(_), Some(_), _) => Security::Plain(Plain::Private),
            (Endpoint::Tcp { host, .. }, Some(_), SslMode::Disabled) => Security::Plain(behind_tunnel(host)),
            (Endpoint::Tcp { host, .. }, Some(_), SslMode::Preferred) => {
                Security::TlsIfOffered { or: behind_tunnel(host) }
            }
            (_, None, SslMode::Preferred) => Security::TlsIfOffered { or: Plain::Refused },
            _ => Security::Tls,
        };
        match self.connect_by_relay(endpoint, user, purpose, security) {
            // The library itself knows how to keep a password safe on an unencrypted connection.
            Err(mysql::Error::DriverError(DriverError::TlsNotSupported))
                if security == (Security::TlsIfOffered { or: Plain::Refused }) =>
            {
                directly()
            }
            other => other,
        }
    }

    fn connect_by_relay(
        &self,
        endpoint: &Endpoint,
        user: &str,
        purpose: Purpose,
        security: Security,
    ) -> mysql::Result<(Conn, Option<Relay>)> {
        let tls = match endpoint {
            Endpoint::Tcp { host, .. } if !matches!(security, Security::Plain(_)) => {
                Some(tls::client(self, host)?)
            }
            _ => None,
        };
        let server = match (&self.tunnel, endpoint) {
            (Some(tunnel), _) => tunnel.connect(endpoint, self.timeout()).map_err(io::Error::other)?,
            (None, Endpoint::Tcp { host, port }) => connect_tcp(host, *port, self.timeout())?,
            (None, Endpoint::Socket(path)) => UnixStream::connect(path)?,
        };
        let mut relay = Relay::start(server, security, tls, self.timeout())?;
        let way = Endpoint::Socket(relay.path());
        let conn = relay.connected(Conn::new(self.builder(&way, user, purpose)))?;
        Ok((conn, Some(relay)))
    }

    fn builder(&self, endpoint: &Endpoint, user: &str, purpose: Purpose) -> OptsBuilder {
        // If nothing answers, the kernel drops the connection about as soon as the server does.
        const PROBE_AFTER_MS: u32 = 10_000;
        const PROBE_INTERVAL_S: u32 = 5;
        const PROBES: u32 = 2;
        let attributes: HashMap<&str, &str> = HashMap::from([
            ("program_name", super::PROGRAM_NAME),
            (super::RUN_ATTRIBUTE, self.run.as_str()),
            (super::PURPOSE_ATTRIBUTE, purpose.name()),
        ]);
        let builder = OptsBuilder::new()
            .user(Some(user))
            .pass(self.password.as_ref().map(Secret::reveal))
            .prefer_socket(false)
            .max_allowed_packet(Some(PACKET_SIZE_MAX))
            .stmt_cache_size(0)
            .tcp_connect_timeout(Some(self.timeout()))
            .read_timeout(Some(self.timeout()))
            .write_timeout(Some(self.timeout()))
            .tcp_keepalive_time_ms(Some(PROBE_AFTER_MS))
            .tcp_keepalive_probe_interval_secs(Some(PROBE_INTERVAL_S))
            .tcp_keepalive_probe_count(Some(PROBES))
            .connect_attrs(Some(attributes));
        match endpoint {
            Endpoint::Socket(path) => builder.socket(Some(path.display().to_string())),
            Endpoint::Tcp { host, port } => builder.ip_or_hostname(Some(host.as_str())).tcp_port(*port),
        }
    }

    /// Whether the tunnel has broken, so that a failed operation may succeed over a new one.
    pub(crate) fn has_broken_tunnel(&self) -> bool {
        self.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_broken())
    }

    /// Whether it is known by now that the tunnel has broken.
    pub(crate) fn has_lost_tunnel(&self) -> bool {
        self.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_known_to_be_broken())
    }

    /// Whether an operation failed because a tunnel broke, even if another session has made a new one since.
    pub(crate) fn is_loss_of_tunnel(&self, error: &Error) -> bool {
        let is_lost = || error.cause::<SqlError>().is_some_and(|error| *error.cause() == SqlCause::Lost);
        self.tunnel.is_some() && (self.has_broken_tunnel() || is_lost())
    }

    /// Adds the reason to a lost connection's error, if a tunnel broke.
    pub(crate) fn explain_loss(&self, error: Error) -> Error {
        let words = match (error.kind(), &self.tunnel) {
            (ErrorKind::Server, Some(tunnel)) => tunnel.last_words(),
            _ => None,
        };
        match words {
            Some(words) if !error.to_string().contains(&words) => error.caused_by(words),
            _ => error,
        }
    }

    /// Turns a failure to connect into an error whose message and hint help to fix it.
    fn explain(&self, error: mysql::Error, endpoint: &Endpoint, user: &str) -> Error {
        use mysql::Error as E;
        let doing = match &self.tunnel {
            Some(tunnel) => format!("connect to {endpoint} {tunnel} as {user}"),
            None => format!("connect to {endpoint} as {user}"),
        };
        let lost = |message: String| SqlError::new(SqlCause::Lost, message);
        let error = match error {
            E::DriverError(DriverError::CouldNotConnect(Some((_, why, kind)))) => {
                let error = lost(why);
                match (endpoint, kind) {
                    (Endpoint::Socket(path), std::io::ErrorKind::NotFound) => {
                        lost("there is no such socket".to_owned()).hinted(socket_hint(path))
                    }
                    (Endpoint::Socket(_), std::io::ErrorKind::PermissionDenied) => error.hinted(
                        "the socket's directory is closed to this user: run as a user who may enter it",
                    ),
                    (Endpoint::Tcp { host, port }, _)
                        if (host.as_str(), *port).to_socket_addrs().is_err() =>
                    {
                        error.hinted("this host cannot resolve the host name: check --host")
                    }
                    (Endpoint::Socket(_), std::io::ErrorKind::ConnectionRefused) => error.hinted(
                        "no server listens on this socket: has it ended, or is it the socket of another?",
                    ),
                    (_, std::io::ErrorKind::ConnectionRefused) => error.hinted(
                        "nothing listens at this address: check --host and --port, and that the server is \
                         running",
                    ),
                    _ => error,
                }
            }
            E::IoError(error) if error.get_ref().is_some_and(|inner| inner.is::<SqlError>()) => {
                match error.into_inner().and_then(|inner| inner.downcast::<SqlError>().ok()) {
                    Some(error) => *error,
                    None => lost("no tunnel".to_owned()),
                }
            }
            E::IoError(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                SqlError::new(SqlCause::Protocol, error.to_string())
                    .hinted("let the server offer TLS, and use --ssl-mode=required")
            }
            E::DriverError(DriverError::ConnectTimeout) => {
                lost(format!("no answer within {} s", self.timeout().as_secs()))
                    .hinted("check the address and the firewall; --connect-timeout sets the limit")
            }
            E::DriverError(DriverError::TlsNotSupported) => {
                SqlError::new(SqlCause::Protocol, "the server offers no TLS").hinted(
                    "configure a certificate on the server, connect through its socket, or lower --ssl-mode",
                )
            }
            E::DriverError(DriverError::UnknownAuthPlugin(plugin)) => SqlError::new(
                SqlCause::Protocol,
                format!("the account uses the authentication method {plugin}, which is not supported"),
            )
            .hinted(
                "supported methods: caching_sha2_password, mysql_native_password, ed25519, and unix_socket \
                 over the socket",
            ),
            other => SqlError::from_client(other),
        };
        let words = match (error.cause(), &self.tunnel) {
            (SqlCause::Lost, Some(tunnel)) => tunnel.words(),
            _ => None,
        };
        let is_said = |words: &String| error.to_string().contains(words.as_str());
        let words = words.filter(|words| !is_said(words));
        let error = match words {
            Some(words) => error.because(words),
            None => error,
        };
        error.doing(doing).into()
    }
}

/// How safe the path from a tunnel's far end to a server is without TLS.
fn behind_tunnel(host: &str) -> Plain {
    let address = host.parse::<std::net::IpAddr>();
    match address.map_or(host == "localhost", |address| address.is_loopback()) {
        true => Plain::Private,
        false => Plain::Open,
    }
}

/// Connects by TCP. Returns the socket under the type that its users expect.
fn connect_tcp(host: &str, port: u16, timeout: Duration) -> mysql::Result<UnixStream> {
    let failed = |error: &io::Error| match error.kind() {
        io::ErrorKind::TimedOut => DriverError::ConnectTimeout,
        kind => DriverError::CouldNotConnect(Some((format!("{host}:{port}"), error.to_string(), kind))),
    };
    let addresses = (host, port).to_socket_addrs().map_err(|error| failed(&error))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                relay::keep_alive(&stream)?;
                return Ok(UnixStream::from(OwnedFd::from(stream)));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(&last).into())
}

fn socket_hint(missing: &Path) -> String {
    let other = SOCKETS_DEFAULT.iter().map(Path::new).find(|path| *path != missing && path.exists());
    match other {
        Some(path) => {
            format!("is the server running? there is another socket at {}: try --socket", path.display())
        }
        None => "is the server running? its `SELECT @@socket` says where the socket is: --socket".to_owned(),
    }
}
