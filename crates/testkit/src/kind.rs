//! The kinds of server that tests run on, and the location of their programs.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// A series of servers, or an earlier release of one. `scripts/servers` installs each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerKind {
    /// MariaDB 10.11, from this host's packages.
    MariaDb1011,
    /// An earlier minor release of MariaDB 10.11, unpacked separately: the server without client programs.
    MariaDb1011Earlier,
    /// MariaDB 11.8, unpacked separately.
    MariaDb118,
    /// MySQL 9.7, unpacked separately.
    MySql97,
}

impl ServerKind {
    /// All series in the order in which a test matrix should run them: the fastest to start first.
    pub fn all_kinds() -> [ServerKind; 3] {
        [ServerKind::MariaDb1011, ServerKind::MariaDb118, ServerKind::MySql97]
    }

    /// The name used by `scripts/servers`.
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::MariaDb1011 => "mariadb-10.11",
            ServerKind::MariaDb1011Earlier => "mariadb-10.11-earlier",
            ServerKind::MariaDb118 => "mariadb-11.8",
            ServerKind::MySql97 => "mysql-9.7",
        }
    }

    /// Whether it is MariaDB, which has different statements, options and files.
    pub fn is_mariadb(self) -> bool {
        self != ServerKind::MySql97
    }

    /// Path of the server program.
    pub fn server_program(self) -> Result<PathBuf> {
        self.program(if self.is_mariadb() { "mariadbd" } else { "mysqld" })
    }

    /// Path of the command line client.
    pub fn client_program(self) -> Result<PathBuf> {
        self.program(if self.is_mariadb() { "mariadb" } else { "mysql" })
    }

    /// Path of any program that comes with this server.
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

/// The directory of unpacked servers: `HOLDFAST_SERVERS`, or the cache that all clones share.
pub fn servers_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("HOLDFAST_SERVERS") {
        return Ok(PathBuf::from(dir));
    }
    let home = env::var_os("HOME").context("neither HOLDFAST_SERVERS nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/holdfast/servers"))
}
