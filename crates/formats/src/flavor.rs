//! The two server families whose layouts differ.

use std::fmt;

/// The family a server belongs to. Asked once, when connecting; layouts branch on it here and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// MariaDB, 10.8 and later.
    MariaDb,
    /// MySQL and Percona Server.
    MySql,
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavor::MariaDb => "MariaDB",
            Flavor::MySql => "MySQL",
        })
    }
}
