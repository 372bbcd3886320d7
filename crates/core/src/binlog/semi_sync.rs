//! What a source of semi-synchronous replication promises. The server decides whether a commit waits for the
//! archive, by settings that the archive cannot change, and it stops waiting without notice.

use std::collections::BTreeMap;

use crate::{
    error::{Error, ErrorKind, Result},
    server::{Session, SqlError},
};

/// A source with a shorter timeout gives up when a host is restarted, or a store is away.
const TIMEOUT_MIN_MS: u64 = 3_600_000;

/// A source as it is now. MySQL's newer plugin, its older one,
/// and MariaDB use different names for the same things.
#[derive(Debug)]
pub(super) struct Source {
    /// `None` if the server knows nothing of semi-synchronous replication.
    settings: Option<Settings>,
    /// Whether commits wait at the moment.
    is_waiting: bool,
    /// Connected replicas that acknowledge.
    clients: u64,
    /// Commits since the server started that returned without an acknowledgement.
    pub(super) unacknowledged: u64,
    /// Those that returned with one.
    acknowledged: u64,
    /// Those that wait for one.
    waiting: u64,
}

/// How many commits had waited at a moment when the server did not answer about its binlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waits(u64, u64);

#[derive(Debug)]
struct Settings {
    prefix: &'static str,
    is_enabled: bool,
    timeout_ms: u64,
    /// How many replicas a commit waits for.
    replicas: u64,
    waits_without_replica: bool,
}

impl Source {
    pub(super) fn read(session: &mut Session) -> Result<Self, SqlError> {
        let mut status = BTreeMap::new();
        for row in session.rows("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%'")? {
            status.insert(row.text("Variable_name")?.to_lowercase(), row.text("Value")?.to_owned());
        }
        let value = |what: &str| {
            let names = ["source", "master"].map(|role| format!("rpl_semi_sync_{role}_{what}"));
            names.iter().find_map(|name| status.get(name)).cloned().unwrap_or_default()
        };
        Ok(Self {
            settings: Settings::read(session)?,
            is_waiting: is_on(&value("status")),
            clients: value("clients").parse().unwrap_or_default(),
            unacknowledged: value("no_tx").parse().unwrap_or_default(),
            acknowledged: value("yes_tx").parse().unwrap_or_default(),
            waiting: value("wait_sessions").parse().unwrap_or_default(),
        })
    }

    /// Commits that wait to be acknowledged.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// How many commits have waited by now.
    pub(super) fn waits(&self) -> Waits {
        Waits(self.acknowledged, self.unacknowledged)
    }

    /// Whether commits wait and none has returned since `then`: a question that was not answered then is not
    /// answered now, and asking again would leave another session hanging in the server.
    pub(super) fn stands_since(&self, then: Option<Waits>) -> bool {
        self.waiting > 0 && then == Some(self.waits())
    }

    /// Explains why the server did not say which files it has, if commits wait.
    pub(super) fn explain_silence(&self, error: Error) -> Error {
        let Some(settings) = self.settings.as_ref().filter(|_| self.waiting > 0) else { return error };
        let text = "the server does not list its binlog files while commits wait for an acknowledgement; \
                    without the list, it is unknown where the archive continues";
        Error::new(ErrorKind::Server, text).caused_by(error).hinted(format!(
            "SET GLOBAL {}_enabled = OFF lets them continue without one; set it to ON again when the \
             archiver is connected, or has archived --once without --semi-sync",
            settings.prefix
        ))
    }

    /// Refuses a server whose commits wait for nobody.
    pub(super) fn require_enabled(&self) -> Result<()> {
        let text = match &self.settings {
            Some(settings) if settings.is_enabled => return Ok(()),
            Some(Settings { prefix, .. }) => {
                format!("the server's commits wait for no acknowledgement: {prefix}_enabled is off")
            }
            None => {
                "the server's commits wait for no acknowledgement: it has no plugin for semi-synchronous \
                     replication"
                    .to_owned()
            }
        };
        Err(Error::new(ErrorKind::Usage, text).hinted(
            "enable semi-synchronous replication on it as a source (docs/guide/connections.md), or leave out --semi-sync",
        ))
    }

    /// Why commits can return although the archive does not have them. What depends on connected replicas is
    /// checked only while the archive `streams`.
    pub(super) fn doubts(&self, streams: bool) -> Vec<String> {
        let Some(settings) = self.settings.as_ref().filter(|settings| settings.is_enabled) else {
            return vec![
                "semi-synchronous replication is off on the server: no commit waits for the archive"
                    .to_owned(),
            ];
        };
        let Settings { prefix, timeout_ms, replicas, .. } = settings;
        let mut doubts = Vec::new();
        if *timeout_ms < TIMEOUT_MIN_MS {
            doubts.push(format!(
                "commits return without being archived once one has waited for {timeout_ms} ms ({prefix}_timeout)"
            ));
        }
        if !settings.waits_without_replica {
            doubts.push(
                "commits return without being archived while no archiver is connected: the server does not wait \
                 without a replica"
                    .to_owned(),
            );
        }
        if streams && self.clients > *replicas {
            doubts.push(format!(
                "commits may return without being archived: {} replicas acknowledge, this archiver is one of them, and a \
                 commit waits for {replicas}",
                self.clients
            ));
        }
        if streams && !self.is_waiting {
            doubts.push(
                "commits return without being archived at the moment: the server has given up waiting"
                    .to_owned(),
            );
        }
        doubts
    }
}

impl Settings {
    fn read(session: &mut Session) -> Result<Option<Self>, SqlError> {
        for (prefix, replica) in [("rpl_semi_sync_source", "replica"), ("rpl_semi_sync_master", "slave")] {
            let mut value = |name: &str| session.variable(&format!("{prefix}_{name}"));
            let Some(is_enabled) = value("enabled")? else { continue };
            let number = |value: Option<String>| value.and_then(|value| value.parse().ok());
            return Ok(Some(Self {
                prefix,
                is_enabled: is_on(&is_enabled),
                timeout_ms: number(value("timeout")?).unwrap_or_default(),
                // MariaDB has no such setting, and waits for one replica.
                replicas: number(value(&format!("wait_for_{replica}_count"))?).unwrap_or(1),
                waits_without_replica: value(&format!("wait_no_{replica}"))?
                    .is_none_or(|value| is_on(&value)),
            }));
        }
        Ok(None)
    }
}

fn is_on(value: &str) -> bool {
    matches!(value, "1" | "ON")
}
