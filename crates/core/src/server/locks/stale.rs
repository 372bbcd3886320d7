//! Sessions of earlier runs that still exist on the server.
//!
//! A killed run leaves nothing for longer than [`WAIT_TIMEOUT`](super::WAIT_TIMEOUT). So a session found here
//! belongs either to a run that is alive, or to one that has just died. Both deserve a warning before locks
//! are taken.
//!
//! A server with performance schema shows the connection attributes of every session. MariaDB runs without it
//! by default, so there each session that holds something also takes a user-level lock, and anyone may query
//! the holder of that lock.

use holdfast_formats::Flavor;

use crate::{
    event::{Event, Listener},
    server::{
        Purpose, Row, Session, SqlError,
        connection::{PROGRAM_NAME, PURPOSE_ATTRIBUTE, RUN_ATTRIBUTE},
    },
};

/// A session of ours that does not belong to the current run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherSession {
    /// The server's id of it.
    pub connection_id: u64,
    /// Its account.
    pub user: String,
    /// The host that it connects from.
    pub host: String,
    /// How long it has been in its present state.
    pub seconds: u64,
    /// The run it belongs to, if the server reports it.
    pub run: Option<String>,
    /// What it is for, if the server reports it.
    pub purpose: Option<String>,
    /// What it is executing.
    pub statement: Option<String>,
}

impl std::fmt::Display for OtherSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {} of {}@{}", self.connection_id, self.user, self.host)?;
        if let Some(purpose) = &self.purpose {
            write!(f, " for {purpose}")?;
        }
        if let Some(run) = &self.run {
            write!(f, " of run {run}")?;
        }
        write!(f, ", {} s", self.seconds)
    }
}

/// Warns about sessions of ours that do not belong to `run`.
pub(crate) fn warn_of_others(
    session: &mut Session,
    run: &str,
    listener: &dyn Listener,
) -> Result<(), SqlError> {
    for other in other_sessions(session, run)? {
        let text = format!("{other} is still open: another run is active, or one has just died");
        listener.event(Event::Warning { text });
    }
    Ok(())
}

/// Finds sessions of ours that do not belong to `run`. If the server shows no connection attributes, finds
/// only sessions that hold something, which are the ones that matter.
pub fn other_sessions(session: &mut Session, run: &str) -> Result<Vec<OtherSession>, SqlError> {
    match by_attributes(session, run) {
        Ok(Some(found)) => return Ok(found),
        Ok(None) => {}
        Err(error) if error.code().is_some() => {}
        Err(error) => return Err(error),
    }
    let mut found = Vec::new();
    // Only MariaDB has these marked; a MySQL server without attributes is not backed up physically.
    for purpose in [Purpose::Stages, Purpose::TableLock] {
        found.extend(by_marker(session, purpose)?);
    }
    Ok(found)
}

/// Takes the user-level lock that shows that this session holds something, for servers that may not show
/// attributes.
pub(super) fn mark(session: &mut Session, purpose: Purpose) -> Result<(), SqlError> {
    if session.flavor() != Flavor::MariaDb {
        return Ok(());
    }
    match session.exec(&format!("DO GET_LOCK('{}', 0)", marker(purpose))) {
        // If the server cannot do this, stale sessions stay unseen; nothing worse.
        Err(error) if error.code().is_some() => Ok(()),
        other => other,
    }
}

fn marker(purpose: Purpose) -> String {
    format!("{PROGRAM_NAME}.{}", purpose.name())
}

fn by_marker(session: &mut Session, purpose: Purpose) -> Result<Option<OtherSession>, SqlError> {
    let query = format!(
        "SELECT id, user, host, time, info, NULL AS run, '{}' AS purpose FROM information_schema.processlist \
         WHERE id = IS_USED_LOCK('{}')",
        purpose.name(),
        marker(purpose)
    );
    session.row(&query)?.as_ref().map(other).transpose()
}

/// `None` if the server keeps no attributes: then not even our own are listed.
fn by_attributes(session: &mut Session, run: &str) -> Result<Option<Vec<OtherSession>>, SqlError> {
    let own = session.connection_id();
    let attribute = |name: &str| {
        format!(
            "(SELECT MAX(a.attr_value) FROM performance_schema.session_connect_attrs a \
             WHERE a.processlist_id = p.id AND a.attr_name = '{name}')"
        )
    };
    let query = format!(
        "SELECT p.id, p.user, p.host, p.time, p.info, {} AS run, {} AS purpose FROM information_schema.processlist p \
         WHERE p.id IN (SELECT processlist_id FROM performance_schema.session_connect_attrs \
         WHERE attr_name = 'program_name' AND attr_value = '{PROGRAM_NAME}') ORDER BY p.id",
        attribute(RUN_ATTRIBUTE),
        attribute(PURPOSE_ATTRIBUTE),
    );
    let mut found = Vec::new();
    let mut sees_itself = false;
    for row in session.rows(&query)? {
        let other = other(&row)?;
        let of_this_run = !run.is_empty() && other.run.as_deref() == Some(run);
        if other.connection_id == own {
            sees_itself = true;
        } else if !of_this_run {
            found.push(other);
        }
    }
    // An archiver is always there, and holds nothing.
    let is_of_archiver = |other: &OtherSession| other.purpose.as_deref() == Some(Purpose::Binlog.name());
    let archivers: Vec<_> = found.iter().filter(|it| is_of_archiver(it)).map(|it| it.run.clone()).collect();
    found.retain(|other| !is_of_archiver(other) && (other.run.is_none() || !archivers.contains(&other.run)));
    Ok(sees_itself.then_some(found))
}

fn other(row: &Row) -> Result<OtherSession, SqlError> {
    let text = |column| Ok::<_, SqlError>(row.text_or_null(column)?.map(str::to_owned));
    let user = row.text_or_null("user")?.unwrap_or_default().to_owned();
    let host = row.text_or_null("host")?.unwrap_or_default().to_owned();
    // Negative while a session is being set up.
    let seconds = row.number::<i64>("time").ok().and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
    Ok(OtherSession {
        connection_id: row.number("id")?,
        user,
        host,
        seconds,
        run: text("run")?.filter(|run| !run.is_empty()),
        purpose: text("purpose")?,
        statement: text("info")?,
    })
}
