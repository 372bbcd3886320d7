//! The kinds of server that the tests run on, and where their programs are.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// One line of servers. `scripts/servers` installs each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerKind {
    /// MariaDB 10.11: this host's own packages.
    MariaDb1011,
    /// MariaDB 11.8, unpacked beside them.
    MariaDb118,
    /// MySQL 9.7, unpacked beside them.
    MySql97,
}

impl ServerKind {
    /// Every kind, in the order in which a matrix of tests should run them: the quickest to start first.
    pub fn all_kinds() -> [ServerKind; 3] {
        [ServerKind::MariaDb1011, ServerKind::MariaDb118, ServerKind::MySql97]
    }

    /// The name that `scripts/servers` knows.
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::MariaDb1011 => "mariadb-10.11",
            ServerKind::MariaDb118 => "mariadb-11.8",
            ServerKind::MySql97 => "mysql-9.7",
        }
    }

    /// Whether it is MariaDB, which differs in statements, options and files.
    pub fn is_mariadb(self) -> bool {
        self != ServerKind::MySql97
    }

    /// The server program.
    pub fn server_program(self) -> Result<PathBuf> {
        self.program(if self.is_mariadb() { "mariadbd" } else { "mysqld" })
    }

    /// The command line client.
    pub fn client_program(self) -> Result<PathBuf> {
        self.program(if self.is_mariadb() { "mariadb" } else { "mysql" })
    }

    /// Any program that comes with this server.
    pub fn program(self, name: &str) -> Result<PathBuf> {
        let candidates = match self {
            ServerKind::MariaDb1011 => {
                ["/usr/sbin", "/usr/bin"].map(|dir| Path::new(dir).join(name)).to_vec()
            }
            _ => {
                let root = servers_dir()?.join(self.name());
                vec![root.join("bin").join(name), root.join("root/usr/bin").join(name)]
            }
        };
        match candidates.iter().find(|path| path.is_file()) {
            Some(path) => Ok(path.clone()),
            None => {
                bail!("{self} is not installed: no {}\nhint: run `make servers`.", candidates[0].display())
            }
        }
    }

    /// The installed version, for example `9.7.4`.
    pub fn version(self) -> Result<String> {
        let program = self.server_program()?;
        let output = Command::new(&program).args(["--no-defaults", "--version"]).output();
        let text = String::from_utf8_lossy(&output.with_context(|| program.display().to_string())?.stdout)
            .into_owned();
        let version = text.split(" Ver ").nth(1).and_then(|rest| rest.split([' ', '-']).next());
        Ok(version.with_context(|| format!("no version in {text:?}"))?.to_owned())
    }
}

impl FromStr for ServerKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = ServerKind::all_kinds();
        known
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("unknown server; known are {}", known.map(ServerKind::name).join(", ")))
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where unpacked servers are: `HOLDFAST_SERVERS`, or the cache that all clones share.
pub fn servers_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("HOLDFAST_SERVERS") {
        return Ok(PathBuf::from(dir));
    }
    let home = env::var_os("HOME").context("neither HOLDFAST_SERVERS nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/holdfast/servers"))
}
