//! MySQL: looks for sessions that would block a lock before it is asked for.
//!
//! Any session may block it for a moment. Those that still do after [`LONG`] count.

use std::{
    collections::{BTreeMap, HashSet},
    thread,
    time::Duration,
};

use holdfast_formats::Flavor;

use crate::{
    logical::catalog::listing::Listed,
    server::{Row, Session, SqlError},
};

/// How long a lock may wait.
const LONG: Duration = Duration::from_millis(100);

/// Table locks of writers, which `LOCK TABLES .. READ` waits for until their transactions end. Our own lock
/// is included to show that the server records such locks.
const WRITERS: &str = "SELECT COALESCE(owner_thread_id, 0) AS o, COALESCE(owner_event_id, 0) AS e, object_instance_begin AS p, \
     object_schema AS s, object_name AS n, COALESCE(owner_thread_id = PS_CURRENT_THREAD_ID(), 0) AS own \
     FROM performance_schema.metadata_locks WHERE object_type = 'TABLE' AND lock_status = 'GRANTED' \
     AND (lock_type IN ('SHARED_WRITE', 'SHARED_WRITE_LOW_PRIO', 'SHARED_NO_READ_WRITE', 'EXCLUSIVE') \
     OR owner_thread_id = PS_CURRENT_THREAD_ID())";
/// Statements that have a table open, or write at all: `FLUSH TABLES WITH READ LOCK` waits for them.
const USERS: &str = "SELECT COALESCE(owner_thread_id, 0) AS o, COALESCE(owner_event_id, 0) AS e, object_instance_begin AS p, \
     object_schema AS s, object_name AS n, 0 AS own FROM performance_schema.table_handles \
     WHERE owner_thread_id IS NOT NULL \
     UNION ALL SELECT COALESCE(owner_thread_id, 0), COALESCE(owner_event_id, 0), object_instance_begin, NULL, NULL, 0 \
     FROM performance_schema.metadata_locks \
     WHERE object_type = 'GLOBAL' AND lock_type = 'INTENTION_EXCLUSIVE' AND lock_status = 'GRANTED'";
/// Whether the server records which tables are open.
const NOTES_USERS: &str = "SELECT \
     (SELECT COUNT(*) FROM performance_schema.setup_instruments \
     WHERE name = 'wait/lock/table/sql/handler' AND enabled = 'YES') = 1 \
     AND (SELECT COUNT(*) FROM performance_schema.setup_objects WHERE object_type = 'TABLE' \
     AND object_schema = '%' AND object_name = '%' AND enabled = 'YES') = 1";

/// The result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The server does not tell, or not this account.
    Unknown,
    Nobody,
    /// Which session, and on which table.
    Somebody(String),
}

impl Look {
    pub(crate) fn is_nobody(&self) -> bool {
        *self == Self::Nobody
    }

    pub(crate) fn is_somebody(&self) -> bool {
        matches!(self, Self::Somebody(_))
    }
}

/// The sessions that would block the locks that make a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InTheWay {
    pub(crate) of_table_locks: Look,
    pub(crate) of_read_lock: Look,
}

impl InTheWay {
    /// Looks, on MySQL; the locks that are asked for first on MariaDB wait for no session that takes long.
    pub(crate) fn look<'a>(
        session: &mut Session,
        tables: impl Iterator<Item = &'a Listed>,
    ) -> Result<Self, SqlError> {
        let unknown = Self { of_table_locks: Look::Unknown, of_read_lock: Look::Unknown };
        if session.flavor() == Flavor::MariaDb {
            return Ok(unknown);
        }
        match Self::look_twice(session, tables) {
            // The account may not look, or nothing is recorded (performance_schema=OFF).
            Err(error) if error.code().is_some() => Ok(unknown),
            looked => looked,
        }
    }

    fn look_twice<'a>(
        session: &mut Session,
        tables: impl Iterator<Item = &'a Listed>,
    ) -> Result<Self, SqlError> {
        let notes_users = session.number::<u8>(NOTES_USERS)? == 1;
        // The server may have folded the case of their names.
        let saved: HashSet<(String, String)> =
            tables.map(|table| (table.name.schema.to_lowercase(), table.name.table.to_lowercase())).collect();
        let (mut writers, notes_writers) = writers(session, &saved)?;
        let mut users = users(session)?;
        if !writers.is_empty() || !users.is_empty() {
            thread::sleep(LONG);
            let still = self::writers(session, &saved)?.0;
            writers.retain(|held, _| still.contains_key(held));
            let still = self::users(session)?;
            users.retain(|held, _| still.contains_key(held));
        }
        Ok(Self {
            of_table_locks: match notes_writers {
                true => told(session, &writers, "has written to")?,
                false => Look::Unknown,
            },
            of_read_lock: match notes_users && notes_writers {
                true => told(session, &users, "is using")?,
                false => Look::Unknown,
            },
        })
    }

    /// Names the blocking sessions, for people.
    pub(crate) fn names(&self) -> String {
        let looks = [&self.of_table_locks, &self.of_read_lock];
        let named = looks.into_iter().filter_map(|look| match look {
            Look::Somebody(who) => Some(who.as_str()),
            _ => None,
        });
        named.collect::<Vec<_>>().join(", ")
    }
}

/// One use of one table: session, statement, and the server's object for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    thread: u64,
    event: u64,
    place: u64,
}

/// Uses, each with its table.
type Uses = BTreeMap<Held, String>;

fn held(row: &Row) -> Result<Held, SqlError> {
    Ok(Held { thread: row.number("o")?, event: row.number("e")?, place: row.number("p")? })
}

/// Uses of saved tables by sessions that have written to them, and whether the server records such locks.
fn writers(session: &mut Session, saved: &HashSet<(String, String)>) -> Result<(Uses, bool), SqlError> {
    let mut found = Uses::new();
    let mut notes = false;
    for row in &session.rows(WRITERS)? {
        if row.number::<u8>("own")? == 1 {
            notes = true;
            continue;
        }
        let (schema, table) = (row.text("s")?, row.text("n")?);
        if saved.contains(&(schema.to_lowercase(), table.to_lowercase())) {
            found.insert(held(row)?, format!("{schema}.{table}"));
        }
    }
    Ok((found, notes))
}

fn users(session: &mut Session) -> Result<Uses, SqlError> {
    let mut found = Uses::new();
    for row in &session.rows(USERS)? {
        let table = match (row.text_or_null("s")?, row.text_or_null("n")?) {
            (Some(schema), Some(table)) => format!("{schema}.{table}"),
            _ => "a table".to_owned(),
        };
        found.insert(held(row)?, table);
    }
    Ok(found)
}

/// Names one of the sessions, which is enough, by its id in the process list.
fn told(session: &mut Session, uses: &Uses, what: &str) -> Result<Look, SqlError> {
    let Some((held, table)) = uses.iter().next() else { return Ok(Look::Nobody) };
    let query =
        format!("SELECT processlist_id FROM performance_schema.threads WHERE thread_id = {}", held.thread);
    let who = match session.value(&query)? {
        Some(id) => format!("session {id}"),
        None => "a thread of the server".to_owned(),
    };
    Ok(Look::Somebody(format!("{who} {what} {table}")))
}
