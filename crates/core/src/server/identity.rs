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
        // What MariaDB says where it finds no hardware address.
        const NONE: [&str; 2] = ["", "unknown"];
        let told = |name| variable(name).filter(|value| !NONE.contains(&value.as_str()));
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

    /// Whether this is the same server, perhaps some time later. MySQL generates a UUID and keeps it. MariaDB has the
    /// uuid of Aria's logs, which every copy of the data carries along; `server_uid`, a hash of hardware address and
    /// port, which changes with a network card, and which containers on different hosts may share; its address; and
    /// its `server_id`. Of the last three, one may have changed. One without a uid has to have its address, and either
    /// of the other two.
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
        let has_same_number = self.server_id == found.server_id;
        let is_alike = match (&self.server_uid, &found.server_uid) {
            (Some(uid), Some(found)) => {
                let evidence = [uid == found, has_same_address, has_same_number];
                evidence.into_iter().filter(|is_same| *is_same).count() >= 2
            }
            _ => {
                let has_same_aria = self.aria_uuid.is_some() && self.aria_uuid == found.aria_uuid;
                has_same_address && (has_same_number || has_same_aria)
            }
        };
        !is_differing(&self.aria_uuid, &found.aria_uuid) && is_alike
    }

    /// Refuses another server than this one, on which the operation under way has begun: a name, an address or a
    /// proxy may lead to several. While a server runs, nothing of this changes, but its `server_id`, if somebody
    /// sets it.
    pub(crate) fn require_same(&self, found: &Identity) -> Result<()> {
        fn told(it: &Identity) -> (&Option<String>, &Option<String>, u32, &str, u16) {
            (&it.server_uuid, &it.server_uid, it.server_id, &it.hostname, it.port)
        }
        if told(self) == told(found) {
            return Ok(());
        }
        let (was, is) = (self.described(), found.described());
        let text = format!("this is not the server of the first connection: that was {was}, this is {is}");
        Err(Error::new(ErrorKind::Server, text)
            .hinted("connect to the server itself, at an address that leads to no other"))
    }

    /// The server, for people.
    pub(crate) fn described(&self) -> String {
        let uuids = [
            ("server_uuid", &self.server_uuid),
            ("server_uid", &self.server_uid),
            ("Aria's uuid", &self.aria_uuid),
        ];
        let uuids = uuids.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value.as_ref()?)));
        let evidence: Vec<String> =
            [format!("server_id {}", self.server_id)].into_iter().chain(uuids).collect();
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
        let renumbered = |it: Identity| Identity { server_id: 2, ..it };
        assert!(known.is_same(&renumbered(mariadb("a", Some("u"), "db1"))));
        assert!(mariadb("a", None, "db1").is_same(&renumbered(mariadb("a", None, "db1"))));
        let told = |uid, hostname| Identity { aria_uuid: None, ..mariadb("", uid, hostname) };
        let container = renumbered(told(Some("u"), "another"));
        assert!(!told(Some("u"), "one").is_same(&container), "containers share hardware addresses");
        let moved = Identity { port: 3307, ..mariadb("a", None, "db1") };
        assert!(!mariadb("a", None, "db1").is_same(&moved));
    }

    /// Connections of one operation lead to one server: whatever differs shows that one does not.
    #[test]
    fn whoever_differs_is_another() {
        let one = Identity { aria_uuid: None, ..mariadb("", Some("u"), "db1") };
        assert!(one.require_same(&one.clone()).is_ok());
        assert!(
            mariadb("a", Some("u"), "db1").require_same(&one).is_ok(),
            "a session does not tell Aria's uuid"
        );
        for other in [
            Identity { server_id: 2, ..one.clone() },
            Identity { server_uid: Some("v".to_owned()), ..one.clone() },
            Identity { hostname: "db2".to_owned(), ..one.clone() },
            Identity { port: 3307, ..one.clone() },
            mysql("a", "db1"),
        ] {
            let error = one.require_same(&other).unwrap_err();
            assert!(error.to_string().contains("not the server of the first connection"), "{error}");
        }
    }

    /// A server without a hardware address has no uid by which it would be the same as another.
    #[test]
    fn no_uid_is_no_evidence() {
        let told = |name: &str| match name {
            "server_uid" => Some("unknown".to_owned()),
            "server_id" | "port" => Some("1".to_owned()),
            _ => None,
        };
        assert_eq!(Identity::of(told).unwrap().server_uid, None);
    }
}
