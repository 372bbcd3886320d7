//! The name of a source to which the user gives none: the same for all kinds, so that a recovery finds the
//! archive that belongs to a backup.

use holdfast_repo::SourceName;

use crate::error::{Context, Result};

/// `host:port`, without the characters that a name cannot contain.
pub(crate) fn of_server(hostname: &str, port: u16) -> Result<SourceName> {
    let good = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let host: String = hostname.chars().filter(good).collect();
    let host = host.trim_start_matches('.');
    let name = format!("{}:{port}", if host.is_empty() { "server" } else { host });
    name.parse().context("make a name for this source").map_err(|error| error.hinted("give one with --name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_a_name() {
        let name = |host: &str| of_server(host, 3306).unwrap().to_string();
        assert_eq!(name("db1.example"), "db1.example:3306");
        assert_eq!(name(".hidden"), "hidden:3306");
        assert_eq!(name("a b/c"), "abc:3306");
        assert_eq!(name("…"), "server:3306");
    }
}
