//! The parts of an archive, as heads, segments and tails describe them in JSON
//! (`docs/reference/repository.md` sections 6a and 9).

use holdfast_formats::{
    Flavor, Gtid, Gtids,
    binlog::{GtidEvent, Open, Tracker},
    gtid::{MariaDbGtid, MariaDbGtidPos},
};
use holdfast_repo::format::hex::from_hex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    error::{Context, Error, ErrorKind, Result},
    head::object,
    server::{ServerFacts, ServerVersion, facts::Identity},
};

/// A server, as far as its binlogs are concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinlogServer {
    /// Version and flavor.
    pub version: ServerVersion,
    /// MySQL's `server_uuid`, MariaDB's `server_uid` where it has one.
    pub uuid: Option<String>,
    /// `server_id`.
    pub server_id: u32,
    /// `hostname`.
    pub hostname: String,
    /// `port`.
    pub port: u16,
}

impl BinlogServer {
    /// MySQL or MariaDB.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.version.flavor
    }

    /// The server that a backup was taken from.
    pub(super) fn of_facts(facts: &ServerFacts) -> Self {
        Self::of(facts.version.clone(), &facts.identity)
    }

    pub(super) fn of(version: ServerVersion, identity: &Identity) -> Self {
        Self {
            version,
            uuid: identity.server_uuid.clone().or_else(|| identity.server_uid.clone()),
            server_id: identity.server_id,
            hostname: identity.hostname.clone(),
            port: identity.port,
        }
    }

    /// Whether both are the same server, whatever its version.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.flavor() == other.flavor()
            && match (&self.uuid, &other.uuid) {
                // MariaDB's is made of the port and the host's hardware address, which containers of one
                // image share; servers that replicate from each other have different server ids.
                (Some(uuid), Some(others)) => {
                    uuid == others && (self.flavor() == Flavor::MySql || self.server_id == other.server_id)
                }
                _ => {
                    (&self.hostname, self.port, self.server_id)
                        == (&other.hostname, other.port, other.server_id)
                }
            }
    }
}

/// A place in a server's binlog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// File name without directory.
    pub file: String,
    /// Offset in bytes.
    pub position: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.position)
    }
}

/// What is missing before a stretch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// For programs.
    pub kind: GapKind,
    /// In words.
    pub text: String,
}

/// Why something is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapKind {
    /// The server purged events before they were archived.
    Purged,
    /// The server's binlogs were reset.
    Reset,
    /// The server lost the end of its binlog, which the archive has.
    Diverged,
    /// Another server, with no way to tell where the archive continues on it.
    OtherServer,
    /// The server itself reports that something is missing in its binlog.
    Incident,
    /// Archived events are no longer in the repository.
    NotStored,
}

/// Contiguous events of one server's binlog file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Its number in its run.
    pub number: u32,
    /// The run that has recorded it, if one that began after later runs had ended has taken it over: it comes
    /// before what these have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_run: Option<u64>,
    /// The server that the events came from.
    pub server: BinlogServer,
    /// The file, without directory.
    pub file: String,
    /// Where it begins; 4 is the beginning of the file.
    pub begin: u64,
    /// Where it ends.
    pub end: u64,
    /// Bytes of its events.
    pub bytes: u64,
    /// The file's first event, hex.
    pub format: String,
    /// Where the archive ended when this began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Place>,
    /// What is missing before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
    /// Settings by which its server left something out of it, with their values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves_out: Option<String>,
    /// Whether the file ends here.
    #[serde(default)]
    pub is_complete: bool,
    /// Transactions that end in it.
    pub transactions: u64,
    /// When the first of them was committed, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_at: Option<u64>,
    /// When the last of them was committed, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_at: Option<u64>,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_gtid: Option<String>,
    /// The last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_gtid: Option<String>,
    /// GTIDs of the transactions before it, where the server assigns them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtids_before: Option<String>,
    /// GTIDs of the transactions before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtids_after: Option<String>,
}

impl Stretch {
    /// Where it begins.
    #[must_use]
    pub fn begins_at(&self) -> Place {
        Place { file: self.file.clone(), position: self.begin }
    }

    /// Where it ends.
    #[must_use]
    pub fn ends_at(&self) -> Place {
        Place { file: self.file.clone(), position: self.end }
    }

    /// The time until which it has everything that was committed, in microseconds since 1970; `None` if it
    /// has no transaction. MariaDB's binlog has whole seconds, and that of the last transaction may not be
    /// over where the stretch ends.
    pub(crate) fn complete_until_us(&self) -> Option<u64> {
        match self.server.flavor() {
            Flavor::MariaDb => self.last_at.map(|at| at.saturating_sub(1_000_000)),
            Flavor::MySql => self.last_at,
        }
    }

    /// The file's first event.
    pub(crate) fn format_bytes(&self) -> Result<Vec<u8>> {
        let bad = "understand the archive: a format event is not hex";
        from_hex(&self.format).ok_or_else(|| Error::damaged(bad))
    }

    /// Its item in a run's backup.
    pub(super) fn item_path(&self) -> String {
        format!("{:06}/{}", self.number, self.file)
    }
}

/// Where the archive ends. Every role can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    /// The server.
    pub server: BinlogServer,
    /// The end of the last event.
    #[serde(flatten)]
    pub place: Place,
    /// The last event: a server that has it at this place is the one that was archived.
    pub last: LastEvent,
    /// The file's first event, hex.
    pub format: String,
    /// GTIDs of all transactions so far, where the server assigns them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtids: Option<String>,
    /// The last transaction of each server in each domain that is archived or was before the archive's beginning
    /// (MariaDB). `gtids` has one of each domain, whose number need not be the highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logged: Option<String>,
    /// What is missing after it: the next stretch says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
    /// Whether its run has transactions without a GTID.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_nameless: bool,
    /// When the last transaction was committed, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_at: Option<u64>,
    /// The last transaction, as another server must have it (MariaDB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transaction: Option<LastTransaction>,
    /// The transaction in the middle of which the archive ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenTransaction>,
}

/// A transaction, identified by what is the same on all servers that have it. MariaDB's GTID alone does not
/// suffice: a server that takes the place of one that was lost continues counting from what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastTransaction {
    /// Its GTID.
    pub gtid: String,
    /// The GTID before it in its domain.
    #[serde(rename = "behind", default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// When its first statement began, in seconds since 1970.
    /// On a replica, the commit time and the bytes differ.
    pub begun_s: u32,
}

/// A transaction whose end is not archived yet: what its further events have to be recognized by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenTransaction {
    /// Its GTID, where the server assigns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtid: Option<String>,
    /// When it was committed, in microseconds since 1970 (MySQL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed_us: Option<u64>,
    /// When it was committed on the server where it originated, and the id of that server (MySQL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_committed_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<u32>,
    /// Bytes of the whole transaction (MySQL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Bytes so far.
    pub bytes: u64,
    /// Whether a commit ends it.
    pub has_begun: bool,
    /// When its first statement began, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_s: Option<u32>,
}

impl OpenTransaction {
    pub(super) fn of(tracker: &Tracker, begun_s: Option<u32>) -> Option<Self> {
        let Open { gtid, bytes, has_begun } = tracker.state()?;
        Some(Self {
            begun_s,
            gtid: gtid.gtid.as_ref().map(ToString::to_string),
            committed_us: gtid.committed_us,
            first_committed_us: gtid.first_committed_us,
            origin: gtid.first_committed_us.map(|_| gtid.origin),
            length: gtid.len,
            bytes: *bytes,
            has_begun: *has_begun,
        })
    }

    pub(super) fn tracker(&self) -> Result<Tracker> {
        let gtid = self.gtid.as_deref().map(str::parse::<Gtid>).transpose();
        let gtid = gtid.context_kind(ErrorKind::Damaged, "understand where the archive ends")?;
        let gtid = GtidEvent {
            gtid,
            len: self.length,
            committed_us: self.committed_us,
            first_committed_us: self.first_committed_us,
            origin: self.origin.unwrap_or_default(),
            ..GtidEvent::NOTHING
        };
        Ok(Tracker::inside(Open { gtid, bytes: self.bytes, has_begun: self.has_begun }))
    }
}

/// An event by which a binlog is recognized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastEvent {
    /// Where it begins.
    pub begin: u64,
    /// BLAKE3 of its bytes, hex.
    pub hash: String,
    /// The next file, if the event names one, or is the last before a shutdown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_file: Option<String>,
}

impl Tail {
    pub(super) fn from_map(map: &Map<String, Value>) -> Result<Self> {
        Self::deserialize(Value::Object(map.clone()))
            .context_kind(ErrorKind::Damaged, "understand where the archive ends")
    }

    pub(super) fn to_map(&self) -> Result<Map<String, Value>> {
        object(self)
    }

    /// GTIDs of all transactions so far.
    pub(super) fn gtids(&self) -> Result<Option<Gtids>> {
        self.gtids.as_deref().map(|text| parse_gtids(self.server.flavor(), text)).transpose()
    }

    /// What [`logged`](Self::logged) says; `None` if that is not known.
    pub(super) fn logged(&self) -> Result<Option<Logged>> {
        let read = |text: &str| text.parse().map(Logged);
        let logged = self.logged.as_deref().map(read).transpose();
        logged.context_kind(ErrorKind::Damaged, "understand where the archive ends")
    }
}

/// The last transaction of each MariaDB server in each domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Logged(pub(super) MariaDbGtidPos);

impl Logged {
    /// Whether it has this transaction, or a later one of the same server and domain.
    pub(super) fn has(&self, gtid: &MariaDbGtid) -> bool {
        self.0.sequence_of(gtid.domain, gtid.server).is_some_and(|last| last >= gtid.sequence)
    }

    /// Whether it has any transaction of this server in this domain.
    pub(super) fn knows(&self, domain: u32, server: u32) -> bool {
        self.0.sequence_of(domain, server).is_some()
    }

    pub(super) fn has_domain(&self, domain: u32) -> bool {
        self.0.iter().any(|gtid| gtid.domain == domain)
    }

    pub(super) fn add(&mut self, gtid: MariaDbGtid) {
        self.0.raise(gtid);
    }
}

/// Parses a position as a server of this flavor writes it.
pub(super) fn parse_gtids(flavor: Flavor, text: &str) -> Result<Gtids> {
    let parsed = match flavor {
        Flavor::MariaDb => text.parse().map(Gtids::MariaDb),
        Flavor::MySql => text.parse().map(Gtids::MySql),
    };
    parsed.context_kind(ErrorKind::Usage, "read a position")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hardware addresses may occur twice; MySQL's UUID does not, whatever the server id is.
    #[test]
    fn the_same_server() {
        let server = |version: &str, server_id: u32| BinlogServer {
            version: ServerVersion::parse(version).unwrap(),
            uuid: Some("u".to_owned()),
            server_id,
            hostname: format!("h{server_id}"),
            port: 1,
        };
        let (mariadb, mysql) = ("10.11.19-MariaDB-log", "9.7.4");
        assert!(server(mariadb, 1).is_same(&server(mariadb, 1)));
        assert!(!server(mariadb, 1).is_same(&server(mariadb, 2)));
        assert!(server(mysql, 1).is_same(&server(mysql, 2)));
        assert!(!server(mysql, 1).is_same(&server(mariadb, 1)));
    }
}
