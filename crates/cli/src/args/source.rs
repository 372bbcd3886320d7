//! Which server is backed up, in the spellings of MySQL's and MariaDB's own clients.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, ValueEnum};
use holdfast_core::server::SshHost;
use serde::{Deserialize, Deserializer, de::Error as _};

/// What the help calls these options.
pub(crate) const HEADING: &str = "Source server";

/// The server and its files.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[command(next_help_heading = HEADING)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct SourceArgs {
    /// Read only this option file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_defaults", "defaults_extra_file"])]
    pub(crate) defaults_file: Option<PathBuf>,

    /// Read this option file after the global ones
    #[arg(long, value_name = "FILE", conflicts_with = "no_defaults")]
    pub(crate) defaults_extra_file: Option<PathBuf>,

    /// Also read option groups with this suffix, like [client_SUFFIX]
    #[arg(long, value_name = "SUFFIX")]
    pub(crate) defaults_group_suffix: Option<String>,

    /// Read no option files
    #[arg(long)]
    pub(crate) no_defaults: bool,

    /// Host of the server [default: localhost, over the socket]
    #[arg(short = 'h', long, value_name = "HOST")]
    pub(crate) host: Option<String>,

    /// TCP port [default: 3306]
    #[arg(short = 'P', long, value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// User on the server [default: as in the option files, else the name of the current user]
    #[arg(short = 'u', long, value_name = "USER")]
    pub(crate) user: Option<String>,

    /// Prompt for the server's password; a value is refused, since every user of this host could read it
    #[arg(short = 'p', long)]
    #[serde(skip)]
    pub(crate) password: bool,

    /// File whose first line is the server's password
    ///
    /// Without it and without -p, the option files are used, then MYSQL_PWD.
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    pub(crate) server_password_file: Option<PathBuf>,

    /// Unix socket of the server
    #[arg(short = 'S', long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Whether the connection is encrypted, and what is verified [default: preferred; with --ssl-ca
    /// verify-ca]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    pub(crate) ssl_mode: Option<SslMode>,

    /// Certificate authorities to trust, and no others (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) ssl_ca: Option<PathBuf>,

    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_key")]
    pub(crate) ssl_cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_cert")]
    pub(crate) ssl_key: Option<PathBuf>,

    /// Reach the server through this SSH host; host, port and socket are then as seen from there
    ///
    /// The configuration of the system's ssh applies: keys, agents, jump hosts, aliases (--ssh,
    /// --ssh-config); ssh never prompts. Without --host and --socket, the server is 127.0.0.1 as seen from
    /// that host. For logical backups, loads into running servers, the binlog archive and doctor; not for
    /// physical backups, which read files on this host.
    #[arg(long, value_name = "[USER@]HOST[:PORT]")]
    #[serde(deserialize_with = "ssh_host")]
    pub(crate) ssh_tunnel: Option<SshHost>,

    /// Whether ssh compresses the tunnel's data [default: as ssh is configured]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) ssh_compress: Option<bool>,

    /// Longest wait for a connection; 0 is the default [default: as in the option files, else 10]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) connect_timeout: Option<u64>,

    /// Longest wait for the answer to a statement that takes no lock: a dead connection is noticed after this
    /// time [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) answer_timeout: Option<u64>,

    /// The server's data directory, as seen on this host [default: as the server reports it]
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: Option<PathBuf>,

    /// Where a path of the server is on this host (a container's volume, for example); can be repeated
    #[arg(long, value_name = "SERVER=LOCAL")]
    pub(crate) path_map: Vec<PathPair>,
}

fn ssh_host<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SshHost>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

/// MySQL's modes of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SslMode {
    /// No encryption
    Disabled,
    /// Encryption if the server offers it
    #[value(alias = "PREFERRED")]
    Preferred,
    /// Encryption, without verifying the certificate
    Required,
    /// Encryption, and a certificate signed by an authority in --ssl-ca
    #[value(alias = "verify_ca")]
    VerifyCa,
    /// Encryption, and a certificate for this host, signed by an authority in --ssl-ca (without it: a public one)
    #[value(alias = "verify_identity")]
    VerifyIdentity,
}

/// `FROM=TO`, both absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPair {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
}

impl FromStr for PathPair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once('=')
            .filter(|(from, to)| Path::new(from).is_absolute() && Path::new(to).is_absolute())
            .map(|(from, to)| Self { from: from.into(), to: to.into() })
            .ok_or_else(|| format!("\"{text}\" does not map a path: write /from=/to, both absolute"))
    }
}

impl<'de> Deserialize<'de> for PathPair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl SourceArgs {
    /// What was typed, and for the rest what the file says. Which option files are read is one choice, taken from the
    /// file only where nothing about it was typed. What is typed decides between network and socket, as it does against
    /// option files; and where the file's server has its files says nothing of a server that was typed.
    pub(crate) fn or(self, mut file: Self) -> Self {
        let by_network = self.host.is_some() || self.port.is_some() || self.ssh_tunnel.is_some();
        if by_network {
            file.socket = None;
        } else if self.socket.is_some() {
            (file.host, file.port, file.ssh_tunnel) = (None, None, None);
        }
        if by_network || self.socket.is_some() {
            (file.datadir, file.path_map) = (None, Vec::new());
        }
        let typed_defaults = self.no_defaults
            || self.defaults_file.is_some()
            || self.defaults_extra_file.is_some()
            || self.defaults_group_suffix.is_some();
        let defaults = if typed_defaults { self.clone() } else { file.clone() };
        Self {
            defaults_file: defaults.defaults_file,
            defaults_extra_file: defaults.defaults_extra_file,
            defaults_group_suffix: defaults.defaults_group_suffix,
            no_defaults: defaults.no_defaults,
            host: self.host.or(file.host),
            port: self.port.or(file.port),
            user: self.user.or(file.user),
            password: self.password,
            server_password_file: self
                .server_password_file
                .or(file.server_password_file.filter(|_| !self.password)),
            socket: self.socket.or(file.socket),
            ssl_mode: self.ssl_mode.or(file.ssl_mode),
            ssl_ca: self.ssl_ca.or(file.ssl_ca),
            ssl_cert: self.ssl_cert.or(file.ssl_cert),
            ssl_key: self.ssl_key.or(file.ssl_key),
            ssh_tunnel: self.ssh_tunnel.or(file.ssh_tunnel),
            ssh_compress: self.ssh_compress.or(file.ssh_compress),
            connect_timeout: self.connect_timeout.or(file.connect_timeout),
            answer_timeout: self.answer_timeout.or(file.answer_timeout),
            datadir: self.datadir.or(file.datadir),
            path_map: if self.path_map.is_empty() { file.path_map } else { self.path_map },
        }
    }
}

/// Whether a password stands on the command line, as MySQL's clients allow (`-pX`, `--password=X`).
pub(crate) fn password_was_typed(typed: &[OsString]) -> bool {
    typed
        .iter()
        .take_while(|word| *word != "--")
        .filter_map(|word| word.to_str())
        .any(|word| word.starts_with("--password=") || (word.starts_with("-p") && word.len() > 2))
}
