//! Where the server is, who we are, and how safe the way must be.
//!
//! Options come from the command line and from option files; [`ConnectOptions::or`] merges them. Whatever is
//! still unset is decided as the servers' own clients do: no host, or `localhost`, means the socket.

use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use super::{endpoint::Endpoint, option_file::OptionFile, secret::Secret, tunnel::Tunnel};
use crate::{
    error::{Error, ErrorKind, Result},
    server::identity::Identity,
};

const PORT_DEFAULT: u16 = 3306;
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Where packages put the server's socket.
pub(super) const SOCKETS_DEFAULT: [&str; 4] = [
    "/run/mysqld/mysqld.sock",
    "/var/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",
];

/// How much TLS to demand. A socket never uses TLS: nobody can eavesdrop there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// None.
    Disabled,
    /// If the server offers it; the certificate is not checked.
    Preferred,
    /// Always; the certificate is not checked.
    Required,
    /// Always, with a certificate signed by an authority in `ssl_ca`, which must be set.
    VerifyCa,
    /// Like `VerifyCa`, and the certificate must name the host.
    VerifyIdentity,
}

impl FromStr for SslMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<SslMode> {
        Ok(match text.to_ascii_lowercase().replace('-', "_").as_str() {
            "disabled" => SslMode::Disabled,
            "preferred" => SslMode::Preferred,
            "required" => SslMode::Required,
            "verify_ca" => SslMode::VerifyCa,
            "verify_identity" => SslMode::VerifyIdentity,
            _ => {
                return Err(Error::new(ErrorKind::Usage, format!("unknown TLS mode {text:?}"))
                    .hinted("one of disabled, preferred, required, verify_ca, verify_identity"));
            }
        })
    }
}

/// How to connect, if requested explicitly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP, also to `localhost`.
    Tcp,
    /// The Unix socket.
    Socket,
}

/// What a session is for. The server shows it in the session's connection attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Queries, and statements that hold nothing.
    Control,
    /// MariaDB: holds the backup stages.
    Stages,
    /// MySQL: holds the instance's backup lock.
    InstanceLock,
    /// MySQL: holds the redo consumer.
    RedoConsumer,
    /// Holds tables locked.
    TableLock,
    /// Holds a consistent view and reads its rows.
    Rows,
    /// Loads rows and creates what belongs to them.
    Load,
    /// Ends another session of ours.
    Kill,
    /// Samples the server's load.
    Monitor,
    /// Receives the binlog as a replica does.
    Binlog,
}

impl Purpose {
    /// The purpose as the server shows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Control => "control",
            Purpose::Stages => "stages",
            Purpose::InstanceLock => "instance-lock",
            Purpose::RedoConsumer => "redo-consumer",
            Purpose::TableLock => "table-lock",
            Purpose::Rows => "rows",
            Purpose::Load => "load",
            Purpose::Kill => "kill",
            Purpose::Monitor => "monitor",
            Purpose::Binlog => "binlog",
        }
    }
}

/// Everything that a connection needs. Unset fields get the defaults of the servers' clients.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Host name or address.
    pub host: Option<String>,
    /// TCP port.
    pub port: Option<u16>,
    /// Path of the Unix socket.
    pub socket: Option<PathBuf>,
    /// Socket or TCP, if requested explicitly.
    pub protocol: Option<Protocol>,
    /// Account; default: the name of the operating system's user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// TLS mode; default: preferred, or verify_ca if `ssl_ca` is set.
    pub ssl_mode: Option<SslMode>,
    /// Certificates of authorities, PEM.
    pub ssl_ca: Option<PathBuf>,
    /// Our certificate, PEM.
    pub ssl_cert: Option<PathBuf>,
    /// Its key, PEM.
    pub ssl_key: Option<PathBuf>,
    /// Longest wait for a connection.
    pub connect_timeout: Option<Duration>,
    /// Longest wait for the answer to an ordinary statement; those that take locks have limits of their own.
    pub answer_timeout: Option<Duration>,
    /// The run that sessions belong to, shown by the server; empty outside a run.
    pub run: String,
    /// The tunnel to connect through. Host, port and socket are then as its far end sees them.
    pub tunnel: Option<Arc<Tunnel>>,
    /// The server that every session must lead to: a name may lead to several, and what one of them locks or shows
    /// says nothing of the others.
    pub leads_to: Option<Identity>,
}

impl ConnectOptions {
    /// Reads the options that concern a connection; ignores all others.
    pub fn from_option_file(options: &OptionFile) -> Result<ConnectOptions> {
        let text = |key: &str| options.get(key).flatten().map(str::to_owned);
        let path = |key: &str| text(key).filter(|path| !path.is_empty()).map(PathBuf::from);
        let bad = |key: &str| {
            let origin = options.origin(key).unwrap_or_default();
            Error::new(ErrorKind::Usage, format!("{origin}: invalid value for {key}"))
        };
        let port = text("port").map(|port| port.parse().map_err(|_| bad("port"))).transpose()?;
        let seconds = |key| text(key).map(|text| text.parse().map_err(|_| bad(key))).transpose();
        let protocol = match text("protocol").map(|text| text.to_ascii_lowercase()).as_deref() {
            None => None,
            Some("tcp") => Some(Protocol::Tcp),
            Some("socket") => Some(Protocol::Socket),
            Some(_) => return Err(bad("protocol")),
        };
        let ssl_mode = match text("ssl-mode") {
            Some(mode) => Some(mode.parse().map_err(|_| bad("ssl-mode"))?),
            None if switch(options, "ssl") == Some(false) => Some(SslMode::Disabled),
            None if switch(options, "ssl-verify-server-cert") == Some(true) => Some(SslMode::VerifyIdentity),
            None if switch(options, "ssl") == Some(true) => Some(SslMode::Required),
            None => None,
        };
        Ok(ConnectOptions {
            host: text("host"),
            port,
            socket: path("socket"),
            protocol,
            user: text("user"),
            password: text("password").map(Secret::new),
            ssl_mode,
            ssl_ca: path("ssl-ca"),
            ssl_cert: path("ssl-cert"),
            ssl_key: path("ssl-key"),
            connect_timeout: seconds("connect-timeout")?.map(Duration::from_secs),
            answer_timeout: None,
            run: String::new(),
            tunnel: None,
            leads_to: None,
        })
    }

    /// Fills unset fields from `file`. The command line also decides the protocol: a port alone means TCP,
    /// and a socket alone means the socket, whatever the file says. With a tunnel, the file's socket and
    /// protocol are ignored: they concern this host.
    #[must_use]
    pub fn or(self, mut file: ConnectOptions) -> ConnectOptions {
        if self.tunnel.is_some() {
            (file.socket, file.protocol) = (None, None);
        }
        let protocol = match (&self.host, &self.socket, self.port) {
            _ if self.protocol.is_some() => self.protocol,
            (None, Some(_), None) => Some(Protocol::Socket),
            (None, None, Some(_)) => Some(Protocol::Tcp),
            (Some(_), _, _) => None,
            _ => file.protocol,
        };
        ConnectOptions {
            protocol,
            host: self.host.or(file.host),
            port: self.port.or(file.port),
            socket: self.socket.or(file.socket),
            user: self.user.or(file.user),
            password: self.password.or(file.password),
            ssl_mode: self.ssl_mode.or(file.ssl_mode),
            ssl_ca: self.ssl_ca.or(file.ssl_ca),
            ssl_cert: self.ssl_cert.or(file.ssl_cert),
            ssl_key: self.ssl_key.or(file.ssl_key),
            connect_timeout: self.connect_timeout.or(file.connect_timeout),
            answer_timeout: self.answer_timeout.or(file.answer_timeout),
            run: if self.run.is_empty() { file.run } else { self.run },
            tunnel: self.tunnel.or(file.tunnel),
            leads_to: self.leads_to.or(file.leads_to),
        }
    }

    /// These options, with sessions on this server only.
    pub(crate) fn leading_to(&self, identity: &Identity) -> Self {
        Self { leads_to: Some(identity.clone()), ..self.clone() }
    }

    /// Where these options connect to.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        let local = self.host.as_deref().is_none_or(|host| host.is_empty() || host == "localhost");
        let by_socket = self.protocol.map_or(local, |protocol| protocol == Protocol::Socket);
        // The path of the socket at the tunnel's far end cannot be found from here.
        let by_socket = by_socket && (self.tunnel.is_none() || self.socket.is_some());
        if by_socket {
            return Endpoint::Socket(self.socket.clone().unwrap_or_else(|| {
                let mut defaults = SOCKETS_DEFAULT.iter().map(PathBuf::from);
                defaults.find(|path| path.exists()).unwrap_or_else(|| SOCKETS_DEFAULT[0].into())
            }));
        }
        let host = self.host.clone().filter(|host| !host.is_empty());
        // Servers often listen on only one of the two addresses of `localhost`.
        let usual = if self.tunnel.is_some() { "127.0.0.1" } else { "localhost" };
        Endpoint::Tcp {
            host: host.unwrap_or_else(|| usual.to_owned()),
            port: self.port.unwrap_or(PORT_DEFAULT),
        }
    }

    /// The TLS mode in force.
    #[must_use]
    pub fn effective_ssl_mode(&self) -> SslMode {
        self.ssl_mode.unwrap_or(if self.ssl_ca.is_some() { SslMode::VerifyCa } else { SslMode::Preferred })
    }

    /// The account in force.
    pub(super) fn account(&self) -> Result<String> {
        match &self.user {
            Some(user) => Ok(user.clone()),
            None => os_user().ok_or_else(|| {
                Error::new(ErrorKind::Usage, "the operating system's user has no name to log in with")
                    .hinted("name the account with --user")
            }),
        }
    }

    /// Checks what can be checked without the server.
    pub fn validate(&self) -> Result<()> {
        if self.ssl_cert.is_some() != self.ssl_key.is_some() {
            return Err(Error::new(ErrorKind::Usage, "--ssl-cert and --ssl-key belong together"));
        }
        if self.effective_ssl_mode() == SslMode::VerifyCa && self.ssl_ca.is_none() {
            // A public authority signs for anyone: without a name to compare, its signature proves nothing.
            return Err(Error::new(
                ErrorKind::Usage,
                "--ssl-mode verify-ca needs the authority's certificate",
            )
            .hinted("name it with --ssl-ca, or compare the server's name too: --ssl-mode verify-identity"));
        }
        for file in [&self.ssl_ca, &self.ssl_cert, &self.ssl_key].into_iter().flatten() {
            std::fs::File::open(file).map_err(|error| {
                Error::new(ErrorKind::Usage, format!("cannot read {}", file.display())).caused_by(error)
            })?;
        }
        if let Some(tunnel) = &self.tunnel {
            tunnel.validate(&self.endpoint())?;
        }
        self.account().map(drop)
    }

    /// Longest wait for a connection.
    pub(crate) fn timeout(&self) -> Duration {
        self.connect_timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(CONNECT_TIMEOUT_DEFAULT)
    }
}

/// Whether an option is on or off that may be written as `key`, `key=1`, `skip-key` or `disable-key`.
fn switch(options: &OptionFile, key: &str) -> Option<bool> {
    let (skip, disable) = (format!("skip-{key}"), format!("disable-{key}"));
    let last = options.keys().filter(|k| [key, &skip, &disable].contains(k)).last()?;
    if last != key {
        return Some(false);
    }
    let value = options.get(key)?.unwrap_or("1").to_ascii_lowercase();
    Some(!matches!(value.as_str(), "0" | "off" | "false"))
}

/// The name of the effective user, as the servers' clients find it.
fn os_user() -> Option<String> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    if uid == "0" {
        return Some("root".to_owned());
    }
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find(|fields| fields.get(2) == Some(&uid.as_str())).map(|fields| fields[0].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(host: Option<&str>, port: Option<u16>, socket: Option<&str>) -> ConnectOptions {
        ConnectOptions {
            host: host.map(str::to_owned),
            port,
            socket: socket.map(PathBuf::from),
            ..ConnectOptions::default()
        }
    }

    /// Command line and option file lead to the same endpoint as with the servers' clients.
    #[test]
    fn endpoints() {
        let tcp = |host: &str, port| Endpoint::Tcp { host: host.to_owned(), port };
        let socket = |path: &str| Endpoint::Socket(path.into());
        let none = || options(None, None, None);
        let file = || options(None, Some(3307), Some("/file.sock"));
        for (line, file, endpoint) in [
            (none(), file(), socket("/file.sock")),
            (options(Some("localhost"), None, None), file(), socket("/file.sock")),
            (options(Some("127.0.0.1"), None, None), file(), tcp("127.0.0.1", 3307)),
            (options(Some("db"), Some(1), None), file(), tcp("db", 1)),
            (options(None, Some(1), None), file(), tcp("localhost", 1)),
            (options(None, None, Some("/line.sock")), options(Some("db"), None, None), socket("/line.sock")),
            (none(), options(Some("db"), None, Some("/file.sock")), tcp("db", PORT_DEFAULT)),
            (none(), ConnectOptions { protocol: Some(Protocol::Tcp), ..file() }, tcp("localhost", 3307)),
        ] {
            assert_eq!(line.clone().or(file).endpoint(), endpoint, "{line:?}");
        }
        assert!(matches!(none().endpoint(), Endpoint::Socket(_)));
    }

    /// Options of a file are understood in every spelling that MySQL's and MariaDB's clients accept.
    #[test]
    fn from_files() {
        let dir = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = dir.path().join("my.cnf");
            std::fs::write(&path, format!("[client]\n{text}")).unwrap();
            let file = OptionFile::read(&path, &super::super::CLIENT_GROUPS).unwrap();
            ConnectOptions::from_option_file(&file)
        };
        let options = read("user=u\npassword='p#w'\nport=3307\nconnect_timeout=3\nssl-ca=/ca.pem\n").unwrap();
        assert_eq!(options.user.as_deref(), Some("u"));
        assert_eq!(options.password.as_ref().map(Secret::reveal), Some("p#w"));
        assert_eq!(options.connect_timeout, Some(Duration::from_secs(3)));
        assert_eq!(options.effective_ssl_mode(), SslMode::VerifyCa);
        assert!(!format!("{options:?}").contains("p#w"));
        for (text, mode) in [
            ("", SslMode::Preferred),
            ("ssl-mode=VERIFY_IDENTITY\nskip-ssl", SslMode::VerifyIdentity),
            ("ssl\nskip_ssl", SslMode::Disabled),
            ("ssl=0", SslMode::Disabled),
            ("disable-ssl\nssl=1", SslMode::Required),
            ("ssl-verify-server-cert", SslMode::VerifyIdentity),
        ] {
            assert_eq!(read(text).unwrap().effective_ssl_mode(), mode, "{text}");
        }
        for text in ["port=x", "port=70000", "ssl-mode=maybe", "protocol=pipe", "connect-timeout=-1"] {
            let error = read(text).unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("my.cnf:2"), "{error}");
        }
    }
}
