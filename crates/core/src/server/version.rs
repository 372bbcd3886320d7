//! The version that a server reports.
//!
//! A version does not decide what a server can do: that is probed. It is recorded with a backup. A prepare
//! compares release series, because crash redo is not upgraded. Behavior that was seen on one series only is
//! relied on there alone.

use std::fmt;

use holdfast_formats::Flavor;
use serde::{Deserialize, Serialize};

/// A server's version: `10.11.19-MariaDB-0+deb12u1`, `9.7.4-2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerVersion {
    /// MySQL or MariaDB.
    #[serde(with = "flavor_name")]
    pub flavor: Flavor,
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number.
    pub patch: u16,
    /// The whole text.
    pub text: String,
}

/// The series of the servers that the tests start.
const TESTED: [(Flavor, u16, u16); 3] =
    [(Flavor::MariaDb, 10, 11), (Flavor::MariaDb, 11, 8), (Flavor::MySql, 9, 7)];

impl ServerVersion {
    /// Parses the result of `SELECT @@version`. `None` if it does not begin with three numbers.
    #[must_use]
    pub fn parse(text: &str) -> Option<ServerVersion> {
        // MariaDB once prefixed its handshake version with 5.5.5, for old replicas.
        let numbers = text.strip_prefix("5.5.5-").unwrap_or(text);
        let mut parts = numbers.splitn(3, '.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        let rest = parts.next()?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let patch = rest[..digits].parse().ok()?;
        let flavor = if text.contains("MariaDB") { Flavor::MariaDb } else { Flavor::MySql };
        Some(ServerVersion { flavor, major, minor, patch, text: text.to_owned() })
    }

    /// Parses what a server program prints for `--version`:
    /// `mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)`.
    #[must_use]
    pub fn parse_program_output(line: &str) -> Option<ServerVersion> {
        let (_, rest) = line.split_once(" Ver ")?;
        Self::parse(rest.split_whitespace().next()?)
    }

    /// Whether both belong to one release series, and so share a redo format.
    #[must_use]
    pub fn same_series(&self, other: &ServerVersion) -> bool {
        (self.flavor, self.major, self.minor) == (other.flavor, other.major, other.minor)
    }

    /// The release series: `10.11`.
    #[must_use]
    pub fn series(&self) -> String {
        format!("{}.{}", self.major, self.minor)
    }

    /// Whether servers of this series run in our tests. Others are probed, and backed up if nothing speaks
    /// against it.
    #[must_use]
    pub fn is_tested(&self) -> bool {
        TESTED.contains(&(self.flavor, self.major, self.minor))
    }

    /// Whether our knowledge of MySQL's redo and of its `log_status` was verified on this series.
    ///
    /// `log_status` on 9.7.4 waits until everything in the binlog is committed: under load, behind a silent
    /// semi-synchronous replica, with `binlog_order_commits` and without (verified). In some versions of 8.0,
    /// its binlog position can be ahead of its GTIDs and LSN (MySQL bugs 102175 and 112331).
    #[must_use]
    pub fn is_verified_mysql(&self) -> bool {
        (self.flavor, self.major, self.minor) == (Flavor::MySql, 9, 7)
    }

    /// The three numbers; they order the releases of one flavor.
    #[must_use]
    pub fn number(&self) -> (u16, u16, u16) {
        (self.major, self.minor, self.patch)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}.{}.{}", self.flavor, self.major, self.minor, self.patch)
    }
}

/// Flavors as a manifest stores them: `mariadb`, `mysql`.
pub(crate) mod flavor_name {
    use holdfast_formats::Flavor;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(flavor: &Flavor, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match flavor {
            Flavor::MariaDb => "mariadb",
            Flavor::MySql => "mysql",
        })
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Flavor, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "mariadb" => Ok(Flavor::MariaDb),
            "mysql" => Ok(Flavor::MySql),
            other => Err(D::Error::custom(format!("unknown flavor {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_that_no_test_starts_are_known_as_such() {
        let is_tested = |text: &str| ServerVersion::parse(text).unwrap().is_tested();
        for text in ["10.11.2-MariaDB", "11.8.9-MariaDB-log", "9.7.4-2"] {
            assert!(is_tested(text), "{text}");
        }
        for text in ["10.6.12-MariaDB", "11.4.5-MariaDB", "12.0.2-MariaDB", "8.4.7", "8.0.36-28", "9.6.0"] {
            assert!(!is_tested(text), "{text}");
        }
    }

    /// Versions of every vendor are parsed, from SQL and from a program's output.
    #[test]
    fn versions() {
        for (text, flavor, number) in [
            ("10.11.19-MariaDB-0+deb12u1-log", Flavor::MariaDb, (10, 11, 19)),
            ("11.8.6-MariaDB", Flavor::MariaDb, (11, 8, 6)),
            ("5.5.5-10.6.12-MariaDB", Flavor::MariaDb, (10, 6, 12)),
            ("9.7.4-2", Flavor::MySql, (9, 7, 4)),
            ("8.0.36-28", Flavor::MySql, (8, 0, 36)),
            ("8.4.0", Flavor::MySql, (8, 4, 0)),
        ] {
            let version = ServerVersion::parse(text).unwrap();
            assert_eq!((version.flavor, version.number()), (flavor, number), "{text}");
        }
        for (line, shown) in [
            (
                "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)",
                "MariaDB 10.11.19",
            ),
            ("/usr/sbin/mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))", "MySQL 9.7.4"),
        ] {
            assert_eq!(ServerVersion::parse_program_output(line).unwrap().to_string(), shown);
        }
        for text in ["", "10", "10.11", "10.11.x", "a.b.c", "99999.1.1"] {
            assert_eq!(ServerVersion::parse(text), None, "{text}");
        }
    }

    /// A version survives the round trip through a manifest.
    #[test]
    fn stored() {
        let version = ServerVersion::parse("11.8.6-MariaDB").unwrap();
        let json = serde_json::to_string(&version).unwrap();
        assert!(json.contains(r#""flavor":"mariadb""#), "{json}");
        assert_eq!(serde_json::from_str::<ServerVersion>(&json).unwrap(), version);
    }
}
