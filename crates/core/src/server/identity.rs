//! Whether two servers are the same, by what they say of themselves.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// What distinguishes one server from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// MySQL's `server_uuid`.
    pub server_uuid: Option<String>,
    /// MariaDB's `server_uid`, a hash of its hardware address and port.
    pub server_uid: Option<String>,
    /// MariaDB's uuid in `aria_log_control`. It exists in that file only, so a server does not tell it.
    pub aria_uuid: Option<String>,
    /// `server_id`.
    pub server_id: u32,
    /// `hostname`.
    pub hostname: String,
    /// `port`.
    pub port: u16,
    /// `socket`.
    pub socket: PathBuf,
}

impl Identity {
    /// The server variables that tell it.
    pub(crate) const VARIABLES: [&str; 6] =
        ["server_uuid", "server_uid", "server_id", "hostname", "port", "socket"];

    /// The identity that these variables tell.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Identity> {
        let told = |name| variable(name).filter(|value| !value.is_empty());
        let odd = |name: &str| Error::new(ErrorKind::Server, format!("the server's {name} is no number"));
        Ok(Identity {
            server_uuid: told("server_uuid"),
            server_uid: told("server_uid"),
            aria_uuid: None,
            server_id: variable("server_id")
                .and_then(|id| id.parse().ok())
                .ok_or_else(|| odd("server_id"))?,
            hostname: variable("hostname").unwrap_or_default(),
            port: variable("port").and_then(|port| port.parse().ok()).ok_or_else(|| odd("port"))?,
            socket: variable("socket").unwrap_or_default().into(),
        })
    }

    /// MySQL generates a UUID and keeps it. MariaDB has two halves of an identity: the uuid of Aria's logs, which
    /// every copy of the data carries along, and `server_uid`, a hash of hardware address and port, which changes
    /// with a network card, and which containers on different hosts may share.
    #[must_use]
    pub fn is_same(&self, found: &Identity) -> bool {
        if self.server_uuid.is_some() || found.server_uuid.is_some() {
            return self.server_uuid == found.server_uuid;
        }
        let is_differing = |known: &Option<String>, found: &Option<String>| match (known, found) {
            (Some(known), Some(found)) => known != found,
            _ => false,
        };
        let has_same_address = (&self.hostname, self.port) == (&found.hostname, found.port);
        let has_same_uid = self.server_uid.is_some() && self.server_uid == found.server_uid;
        !is_differing(&self.aria_uuid, &found.aria_uuid) && (has_same_address || has_same_uid)
    }

    /// Refuses a server that has replaced this one since: a name, an address or a proxy may lead elsewhere by now.
    pub(crate) fn require_same(&self, found: &Identity) -> Result<()> {
        if self.is_same(found) {
            return Ok(());
        }
        let (was, is) = (self.described(), found.described());
        let text = format!("this is not the server that the backup began with: that was {was}, this is {is}");
        Err(Error::new(ErrorKind::Server, text)
            .hinted("connect to the server itself, at an address that nothing else takes over"))
    }

    /// The server, for people.
    pub(crate) fn described(&self) -> String {
        let evidence = [
            ("server_uuid", &self.server_uuid),
            ("server_uid", &self.server_uid),
            ("Aria's uuid", &self.aria_uuid),
        ];
        let evidence: Vec<String> = evidence
            .into_iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name} {value}")))
            .collect();
        format!("{}:{} ({})", self.hostname, self.port, evidence.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mysql(uuid: &str, hostname: &str) -> Identity {
        Identity {
            server_uuid: Some(uuid.to_owned()),
            server_uid: None,
            aria_uuid: None,
            server_id: 1,
            hostname: hostname.to_owned(),
            port: 3306,
            socket: "/run/s".into(),
        }
    }

    fn mariadb(aria: &str, uid: Option<&str>, hostname: &str) -> Identity {
        Identity {
            server_uuid: None,
            server_uid: uid.map(str::to_owned),
            aria_uuid: Some(aria.to_owned()),
            ..mysql("", hostname)
        }
    }

    /// A server that moves or gets another network card keeps its identity; a copy of it is another server,
    /// and so is a namesake.
    #[test]
    fn who_is_who() {
        assert!(mysql("a", "old").is_same(&mysql("a", "new")));
        assert!(!mysql("a", "db1").is_same(&mysql("b", "db1")));
        assert!(!mysql("a", "db1").is_same(&mariadb("a", None, "db1")));

        let known = mariadb("a", Some("u"), "db1");
        assert!(known.is_same(&mariadb("a", Some("u"), "renamed")));
        assert!(known.is_same(&mariadb("a", Some("new card"), "db1")));
        assert!(!known.is_same(&mariadb("a", Some("copied"), "db2")));
        assert!(!known.is_same(&mariadb("b", Some("u"), "db1")), "containers share hardware addresses");
        assert!(!mariadb("a", None, "db1").is_same(&mariadb("a", None, "db2")));
        let moved = Identity { port: 3307, ..mariadb("a", None, "db1") };
        assert!(!mariadb("a", None, "db1").is_same(&moved));
    }
}
