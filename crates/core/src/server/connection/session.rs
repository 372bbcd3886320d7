//! A session: executes statements one at a time, with its own settings whatever the server's defaults are.

use std::{
    collections::HashMap,
    fmt,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};

use holdfast_formats::Flavor;
use mysql::{Conn, Value, prelude::Queryable};

use super::{
    code,
    options::{ConnectOptions, Purpose},
    relay::Relay,
    sql_error::{SqlCause, SqlError, shown},
};
use crate::{
    error::Result,
    server::{ServerVersion, identity::Identity},
};

/// Longest wait for the answer to an ordinary statement, unless another limit is set. Listing a hundred
/// thousand tables takes time.
pub(in crate::server) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(600);
/// How much longer than the wait for a lock an answer may take: several locks are taken in turn, and tables
/// are written out.
pub(in crate::server) const ANSWER_MARGIN: Duration = Duration::from_secs(30);
/// How long to wait for a lock, unless another limit is set.
const LOCK_WAIT_DEFAULT: Duration = Duration::from_secs(5);
/// MariaDB: errors for a server without a query cache, and for one where it is off for good.
const NO_QUERY_CACHE: [u16; 2] = [code::UNKNOWN_SYSTEM_VARIABLE, 1651];
/// How long a backup in progress waits for a free connection.
const ROOM_WAIT: Duration = Duration::from_secs(60);

/// One row of an answer: text by column name. Column names are case-insensitive.
#[derive(Clone, Debug)]
pub struct Row {
    columns: Arc<[String]>,
    values: Vec<Option<String>>,
}

impl Row {
    fn read(row: mysql::Row, columns: &Arc<[String]>) -> Result<Row, SqlError> {
        let text = |(value, name): (Value, &String)| match value {
            Value::NULL => Ok(None),
            Value::Bytes(bytes) => String::from_utf8(bytes)
                .map(Some)
                .map_err(|_| SqlError::unexpected(format_args!("column {name} is not UTF-8"))),
            // In the text protocol, every value arrives as bytes.
            _ => Err(SqlError::unexpected(format_args!("column {name} is not text"))),
        };
        let values = row.unwrap_raw().into_iter().map(|value| value.unwrap_or(Value::NULL));
        let values = values.zip(columns.iter()).map(text).collect::<Result<_, _>>()?;
        Ok(Row { columns: Arc::clone(columns), values })
    }

    /// Whether the row has this column.
    #[must_use]
    pub fn has(&self, column: &str) -> bool {
        self.position(column).is_some()
    }

    /// The text of a column that may be NULL.
    pub fn text_or_null(&self, column: &str) -> Result<Option<&str>, SqlError> {
        let position = self
            .position(column)
            .ok_or_else(|| SqlError::unexpected(format_args!("there is no column {column}")))?;
        Ok(self.values.get(position).and_then(Option::as_deref))
    }

    /// The text of a column that must not be NULL.
    pub fn text(&self, column: &str) -> Result<&str, SqlError> {
        self.text_or_null(column)?
            .ok_or_else(|| SqlError::unexpected(format_args!("column {column} is NULL")))
    }

    /// A column parsed as a number.
    pub fn number<T: std::str::FromStr>(&self, column: &str) -> Result<T, SqlError> {
        let text = self.text(column)?;
        text.parse()
            .map_err(|_| SqlError::unexpected(format_args!("column {column} is {text:?}, not a number")))
    }

    /// The values in column order.
    #[must_use]
    pub fn values(&self) -> &[Option<String>] {
        &self.values
    }

    fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|name| name.eq_ignore_ascii_case(column))
    }
}

/// One row of an answer that may not be text: bytes by column name.
#[derive(Clone, Debug)]
pub struct ByteRow {
    columns: Arc<[String]>,
    values: Vec<Option<Vec<u8>>>,
}

impl ByteRow {
    /// The bytes of a column that may be NULL.
    pub fn bytes_or_null(&self, column: &str) -> Result<Option<&[u8]>, SqlError> {
        let position = self.columns.iter().position(|name| name.eq_ignore_ascii_case(column));
        let position =
            position.ok_or_else(|| SqlError::unexpected(format_args!("there is no column {column}")))?;
        Ok(self.values.get(position).and_then(Option::as_deref))
    }

    /// A column that must be text.
    pub fn text(&self, column: &str) -> Result<&str, SqlError> {
        let bytes = self.bytes_or_null(column)?;
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.ok_or_else(|| SqlError::unexpected(format_args!("column {column} is no text")))
    }

    /// The values in column order.
    #[must_use]
    pub fn values(&self) -> &[Option<Vec<u8>>] {
        &self.values
    }
}

/// A connection with settings of our own.
pub struct Session {
    conn: Conn,
    /// A duplicate of the connection's socket, to set its timeouts and to cut it from another thread. A Unix
    /// stream in name only: all operations used here work the same way on TCP.
    socket: UnixStream,
    version: ServerVersion,
    id: u64,
    id_at_handshake: u32,
    /// Last, so that it is dropped after the connection is no longer in use.
    _relay: Option<Relay>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client library's own `Debug` would show the password.
        write!(f, "Session({} of {})", self.id, self.version)
    }
}

impl Session {
    /// Connects.
    pub fn open(options: &ConnectOptions, purpose: Purpose) -> Result<Session> {
        Self::open_within(options, purpose, Duration::ZERO)
    }

    /// Like [`open`](Self::open), in the middle of a backup: hours of work are worth a minute's wait for a
    /// server that has no free connection.
    pub fn open_patiently(options: &ConnectOptions, purpose: Purpose) -> Result<Session> {
        Self::open_within(options, purpose, ROOM_WAIT)
    }

    fn open_within(options: &ConnectOptions, purpose: Purpose, room_wait: Duration) -> Result<Session> {
        let (mut conn, relay) = options.connect(purpose, room_wait)?;
        let socket = socket_of(&conn)?;
        let id_at_handshake = conn.connection_id();
        let rows = rows(&mut conn, "SELECT @@version AS version, CONNECTION_ID() AS id")?;
        let row = rows.first().ok_or_else(|| SqlError::unexpected("no row"))?;
        let text = row.text("version")?;
        let version = ServerVersion::parse(text)
            .ok_or_else(|| SqlError::unexpected(format_args!("its version is {text:?}")))?;
        let id = row.number("id")?;
        let mut session = Session { conn, socket, version, id, id_at_handshake, _relay: relay };
        session.configure(options.answer_timeout.unwrap_or(STATEMENT_TIMEOUT))?;
        if let Some(wanted) = &options.leads_to {
            wanted.require_same(&session.identity()?)?;
        }
        Ok(session)
    }

    /// Overrides every default of the server or account that could change the meaning of our statements.
    fn configure(&mut self, answer_timeout: Duration) -> Result<(), SqlError> {
        let own = match self.flavor() {
            // As many warnings as there can be: none may hide behind others.
            Flavor::MariaDb => "max_statement_time = 0, max_error_count = 65535",
            Flavor::MySql => "max_execution_time = 0",
        };
        self.exec("SET NAMES utf8mb4")?;
        self.exec(&format!(
            "SET SESSION time_zone = '+00:00', sql_mode = '', autocommit = 1, completion_type = 0, sql_auto_is_null = 0, \
             sql_select_limit = 18446744073709551615, sql_big_selects = 1, lc_messages = 'en_US', {own}, \
             lock_wait_timeout = {}, wait_timeout = {}, net_read_timeout = 30, net_write_timeout = 60",
            LOCK_WAIT_DEFAULT.as_secs(),
            answer_timeout.as_secs().max(1),
        ))?;
        // A dirty read would show what is not committed, such as a replica's place.
        self.exec("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")?;
        if self.flavor() == Flavor::MariaDb {
            self.without_query_cache()?;
        }
        self.set_answer_timeout(answer_timeout)
    }

    /// MariaDB: a query cache makes a transaction's view as soon as it asks whether a result may be kept, even if
    /// no row is read, and answers from memory without touching the tables.
    fn without_query_cache(&mut self) -> Result<(), SqlError> {
        match self.exec("SET SESSION query_cache_type = OFF") {
            // There is none, or it is off for all.
            Err(error) if error.code().is_some_and(|code| NO_QUERY_CACHE.contains(&code)) => Ok(()),
            set => set,
        }
    }

    /// The server's version.
    #[must_use]
    pub fn version(&self) -> &ServerVersion {
        &self.version
    }

    /// MySQL or MariaDB.
    #[must_use]
    pub fn flavor(&self) -> Flavor {
        self.version.flavor
    }

    /// The server's id of this session.
    #[must_use]
    pub fn connection_id(&self) -> u64 {
        self.id
    }

    /// Executes a statement whose rows, if any, do not matter. They are read to their end, since an error may
    /// follow them.
    pub fn exec(&mut self, statement: &str) -> Result<(), SqlError> {
        let client_error = |error| SqlError::of_statement(error, statement);
        let mut result = self.conn.query_iter(statement).map_err(client_error)?;
        while let Some(rows) = result.iter() {
            for row in rows {
                row.map_err(client_error)?;
            }
        }
        Ok(())
    }

    /// All rows of a query.
    pub fn rows(&mut self, query: &str) -> Result<Vec<Row>, SqlError> {
        let rows = rows(&mut self.conn, query)?;
        self.refuse_unlocked(query)?;
        Ok(rows)
    }

    /// All rows of an answer that may not be text.
    pub fn byte_rows(&mut self, query: &str) -> Result<Vec<ByteRow>, SqlError> {
        let rows = byte_rows(&mut self.conn, query)?;
        self.refuse_unlocked(query)?;
        Ok(rows)
    }

    /// Fails if the answer to a query about definitions lacks one. MariaDB opens tables to answer, and of a
    /// table that it cannot lock in time it shows NULLs or nothing, with no more than a warning (verified on
    /// 10.11.19). MySQL answers from its dictionary; its warning of a lock concerns what we do not ask for.
    fn refuse_unlocked(&mut self, query: &str) -> Result<(), SqlError> {
        let may_lack = self.flavor() == Flavor::MariaDb && query.contains("information_schema");
        if !may_lack || self.conn.warnings() == 0 {
            return Ok(());
        }
        for row in rows(&mut self.conn, "SHOW WARNINGS")? {
            let code: u16 = row.number("Code")?;
            if matches!(code, code::LOCK_WAIT_TIMEOUT | code::LOCK_DEADLOCK) {
                let message = format!("{} (warning {code})", row.text("Message")?);
                return Err(SqlError::new(SqlCause::Refused(code), message).doing(shown(query)));
            }
        }
        Ok(())
    }

    /// The first row of a query.
    pub fn row(&mut self, query: &str) -> Result<Option<Row>, SqlError> {
        Ok(self.rows(query)?.into_iter().next())
    }

    /// The first value of the first row; `None` if it is NULL or there is no row.
    pub fn value(&mut self, query: &str) -> Result<Option<String>, SqlError> {
        Ok(self.row(query)?.and_then(|row| row.values.into_iter().next().flatten()))
    }

    /// The first value of the first row, parsed as a number.
    pub fn number<T: std::str::FromStr>(&mut self, query: &str) -> Result<T, SqlError> {
        let value = self.value(query)?;
        value
            .as_deref()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| SqlError::unexpected(format_args!("{value:?} is not a number")).doing(query))
    }

    /// A system variable; `None` if the server has none of this name.
    pub fn variable(&mut self, name: &str) -> Result<Option<String>, SqlError> {
        match self.value(&format!("SELECT @@GLOBAL.{name}")) {
            Err(error) if error.code() == Some(code::UNKNOWN_SYSTEM_VARIABLE) => Ok(None),
            other => other,
        }
    }

    /// The server that this session is on.
    pub(crate) fn identity(&mut self) -> Result<Identity> {
        let names = Identity::VARIABLES.map(|name| format!("'{name}'")).join(", ");
        let rows = self.rows(&format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))?;
        let mut told = HashMap::new();
        for row in rows {
            told.insert(row.text("Variable_name")?.to_owned(), row.text("Value")?.to_owned());
        }
        Identity::of(|name| told.get(name).cloned())
    }

    /// Sets how long later statements wait for their locks. Whole seconds, at least one.
    pub fn set_lock_wait(&mut self, wait: Duration) -> Result<(), SqlError> {
        let seconds = wait.as_secs().max(1);
        self.exec(&format!("SET SESSION lock_wait_timeout = {seconds}"))?;
        let usual = self.socket.read_timeout().ok().flatten().unwrap_or(STATEMENT_TIMEOUT);
        self.set_answer_timeout(usual.max(Duration::from_secs(seconds) + ANSWER_MARGIN))
    }

    pub(crate) fn set_answer_timeout(&mut self, timeout: Duration) -> Result<(), SqlError> {
        self.socket
            .set_read_timeout(Some(timeout))
            .map_err(|error| SqlError::new(SqlCause::Lost, format!("cannot set a timeout: {error}")))
    }

    /// The connection's socket, borrowed; see [`socket`](Self::socket).
    pub(in crate::server) fn socket_mut(&mut self) -> &mut UnixStream {
        &mut self.socket
    }

    /// Checks that the server still answers.
    pub fn ping(&mut self) -> Result<(), SqlError> {
        self.conn.ping().map_err(|error| SqlError::of_statement(error, "ping"))
    }

    /// Ends another session of the same account.
    pub fn kill(&mut self, connection_id: u64) -> Result<(), SqlError> {
        self.unless_gone(&format!("KILL CONNECTION {connection_id}"))
    }

    /// Ends what another session of the same account is doing, and leaves it connected.
    pub(crate) fn kill_query(&mut self, connection_id: u64) -> Result<(), SqlError> {
        self.unless_gone(&format!("KILL QUERY {connection_id}"))
    }

    /// Executes a statement about another session, which may have ended.
    fn unless_gone(&mut self, statement: &str) -> Result<(), SqlError> {
        match self.exec(statement) {
            Err(error) if error.code() == Some(code::UNKNOWN_THREAD) => Ok(()),
            other => other,
        }
    }

    /// A duplicate of the connection's socket, for callers that from here on use it for other things than
    /// statements, as long as the session lives. Between statements, the connection has nothing buffered.
    pub(crate) fn socket(&self) -> Result<UnixStream, SqlError> {
        self.socket.try_clone().map_err(|error| SqlError::new(SqlCause::Lost, error.to_string()))
    }

    /// Whether something between us and the server forwards our statements over its own connections. A lock
    /// would then belong to a session that is not ours.
    pub(in crate::server) fn is_proxied(&self) -> bool {
        // The handshake holds only the lower 32 bits.
        self.id & u64::from(u32::MAX) != u64::from(self.id_at_handshake)
    }
}

fn rows(conn: &mut Conn, query: &str) -> Result<Vec<Row>, SqlError> {
    let client_error = |error| SqlError::of_statement(error, query);
    let mut result = conn.query_iter(query).map_err(client_error)?;
    let names = |set: &mysql::ResultSet<'_, '_, '_, '_, mysql::Text>| -> Arc<[String]> {
        set.columns().as_ref().iter().map(|column| column.name_str().into_owned()).collect()
    };
    let mut rows = Vec::new();
    if let Some(set) = result.iter() {
        let columns = names(&set);
        for row in set {
            rows.push(Row::read(row.map_err(client_error)?, &columns).map_err(|error| error.doing(query))?);
        }
    }
    Ok(rows)
}

fn byte_rows(conn: &mut Conn, query: &str) -> Result<Vec<ByteRow>, SqlError> {
    let client_error = |error| SqlError::of_statement(error, query);
    let mut result = conn.query_iter(query).map_err(client_error)?;
    let mut rows = Vec::new();
    let Some(set) = result.iter() else { return Ok(rows) };
    let columns: Arc<[String]> =
        set.columns().as_ref().iter().map(|column| column.name_str().into_owned()).collect();
    for row in set {
        let values = row.map_err(client_error)?.unwrap_raw().into_iter().map(|value| match value {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        });
        rows.push(ByteRow { columns: Arc::clone(&columns), values: values.collect() });
    }
    Ok(rows)
}

#[allow(unsafe_code)]
fn socket_of(conn: &Conn) -> Result<UnixStream, SqlError> {
    // SAFETY: the descriptor belongs to `conn`, which is borrowed for as long as it is used here.
    let borrowed = unsafe { BorrowedFd::borrow_raw(conn.as_raw_fd()) };
    let owned = borrowed.try_clone_to_owned().map_err(|error| {
        SqlError::new(SqlCause::Lost, format!("cannot duplicate the connection: {error}"))
    })?;
    Ok(UnixStream::from(owned))
}
