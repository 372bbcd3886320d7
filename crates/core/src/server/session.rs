//! Sessions: one that asks, and one that holds.
//!
//! [`Session`] runs statements one at a time under settings of its own, whatever the server's defaults are.
//! [`HeldSession`] keeps a session alive that holds a lock or a redo consumer, and lets go of it when it must.

use std::{
    fmt,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use holdfast_formats::Flavor;
use holdfast_pipe::lock::lock;
use mysql::{Conn, Value, prelude::Queryable};

use super::{
    connect::{ConnectOptions, Purpose},
    relay::Relay,
    sql_error::{SqlCause, SqlError, code},
    stale,
    version::ServerVersion,
};
use crate::error::Result;

/// After so much silence of a holding session the server drops it, and with it every lock.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a holding session that is idle shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a sign of life.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the answer to an ordinary statement, unless another is asked for: lists of a hundred thousand tables
/// take their time.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(600);
/// How much longer than a lock may wait its statement may take to answer.
const LOCK_MARGIN: Duration = Duration::from_secs(30);
/// How long a lock waits where nothing else is asked for.
const LOCK_WAIT_DEFAULT: Duration = Duration::from_secs(5);
/// How long a backup that is under way waits for a free connection.
const ROOM_WAIT: Duration = Duration::from_secs(60);

/// One row of an answer: text by column name. Columns may be named in any case.
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
            // Text protocol: every value comes as bytes.
            _ => Err(SqlError::unexpected(format_args!("column {name} is not text"))),
        };
        let values = row.unwrap_raw().into_iter().map(|value| value.unwrap_or(Value::NULL));
        let values = values.zip(columns.iter()).map(text).collect::<Result<_, _>>()?;
        Ok(Row { columns: Arc::clone(columns), values })
    }

    /// Whether there is such a column.
    #[must_use]
    pub fn has(&self, column: &str) -> bool {
        self.position(column).is_some()
    }

    /// A value that may be NULL.
    pub fn text_or_null(&self, column: &str) -> Result<Option<&str>, SqlError> {
        let position = self
            .position(column)
            .ok_or_else(|| SqlError::unexpected(format_args!("there is no column {column}")))?;
        Ok(self.values.get(position).and_then(Option::as_deref))
    }

    /// A value.
    pub fn text(&self, column: &str) -> Result<&str, SqlError> {
        self.text_or_null(column)?
            .ok_or_else(|| SqlError::unexpected(format_args!("column {column} is NULL")))
    }

    /// A number.
    pub fn number<T: std::str::FromStr>(&self, column: &str) -> Result<T, SqlError> {
        let text = self.text(column)?;
        text.parse()
            .map_err(|_| SqlError::unexpected(format_args!("column {column} is {text:?}, not a number")))
    }

    /// The values in order.
    #[must_use]
    pub fn values(&self) -> &[Option<String>] {
        &self.values
    }

    fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|name| name.eq_ignore_ascii_case(column))
    }
}

/// One row of an answer that need not be text: bytes by column name.
#[derive(Clone, Debug)]
pub struct ByteRow {
    columns: Arc<[String]>,
    values: Vec<Option<Vec<u8>>>,
}

impl ByteRow {
    /// A value that may be NULL.
    pub fn bytes_or_null(&self, column: &str) -> Result<Option<&[u8]>, SqlError> {
        let position = self.columns.iter().position(|name| name.eq_ignore_ascii_case(column));
        let position =
            position.ok_or_else(|| SqlError::unexpected(format_args!("there is no column {column}")))?;
        Ok(self.values.get(position).and_then(Option::as_deref))
    }

    /// A value that must be text.
    pub fn text(&self, column: &str) -> Result<&str, SqlError> {
        let bytes = self.bytes_or_null(column)?;
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.ok_or_else(|| SqlError::unexpected(format_args!("column {column} is no text")))
    }

    /// The values in order.
    #[must_use]
    pub fn values(&self) -> &[Option<Vec<u8>>] {
        &self.values
    }
}

/// A connection with settings of our own.
pub struct Session {
    conn: Conn,
    /// The connection's socket once more, to set its timeouts and to cut it from another thread. A Unix stream in name
    /// only: what is done with it means the same for TCP.
    socket: UnixStream,
    version: ServerVersion,
    id: u64,
    id_at_handshake: u32,
    /// Last, so that it is dropped when nobody speaks any more.
    _relay: Option<Relay>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client library's own output would show the password.
        write!(f, "Session({} of {})", self.id, self.version)
    }
}

impl Session {
    /// Connects.
    pub fn open(options: &ConnectOptions, purpose: Purpose) -> Result<Session> {
        Self::open_within(options, purpose, Duration::ZERO)
    }

    /// The same in the middle of a backup: hours of work are worth a minute's wait for a server that has no connection left.
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
        session.settle(options.answer_timeout.unwrap_or(STATEMENT_TIMEOUT))?;
        Ok(session)
    }

    /// Replaces every default of server or account that could change what our statements mean.
    fn settle(&mut self, answer_timeout: Duration) -> Result<(), SqlError> {
        let time_limit = match self.flavor() {
            Flavor::MariaDb => "max_statement_time = 0",
            Flavor::MySql => "max_execution_time = 0",
        };
        self.exec("SET NAMES utf8mb4")?;
        self.exec(&format!(
            "SET SESSION time_zone = '+00:00', sql_mode = '', autocommit = 1, completion_type = 0, sql_auto_is_null = 0, \
             sql_select_limit = 18446744073709551615, sql_big_selects = 1, {time_limit}, \
             lock_wait_timeout = {}, wait_timeout = {}, net_read_timeout = 30, net_write_timeout = 60",
            LOCK_WAIT_DEFAULT.as_secs(),
            answer_timeout.as_secs().max(1),
        ))?;
        self.set_answer_timeout(answer_timeout)
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

    /// What the server calls this session.
    #[must_use]
    pub fn connection_id(&self) -> u64 {
        self.id
    }

    /// Runs a statement whose rows, if any, do not matter.
    pub fn exec(&mut self, statement: &str) -> Result<(), SqlError> {
        self.conn.query_drop(statement).map_err(|error| SqlError::of_statement(error, statement))
    }

    /// All rows.
    pub fn rows(&mut self, query: &str) -> Result<Vec<Row>, SqlError> {
        rows(&mut self.conn, query)
    }

    /// All rows of an answer that need not be text.
    pub fn byte_rows(&mut self, query: &str) -> Result<Vec<ByteRow>, SqlError> {
        let client_error = |error| SqlError::of_statement(error, query);
        let mut result = self.conn.query_iter(query).map_err(client_error)?;
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

    /// The first row.
    pub fn row(&mut self, query: &str) -> Result<Option<Row>, SqlError> {
        Ok(self.rows(query)?.into_iter().next())
    }

    /// The first value of the first row; `None` if it is NULL or there is no row.
    pub fn value(&mut self, query: &str) -> Result<Option<String>, SqlError> {
        Ok(self.row(query)?.and_then(|row| row.values.into_iter().next().flatten()))
    }

    /// The first value of the first row, a number.
    pub fn number<T: std::str::FromStr>(&mut self, query: &str) -> Result<T, SqlError> {
        let value = self.value(query)?;
        value
            .as_deref()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| SqlError::unexpected(format_args!("{value:?} is not a number")).doing(query))
    }

    /// A system variable; `None` where the server has none of this name.
    pub fn variable(&mut self, name: &str) -> Result<Option<String>, SqlError> {
        match self.value(&format!("SELECT @@GLOBAL.{name}")) {
            Err(error) if error.code() == Some(code::UNKNOWN_SYSTEM_VARIABLE) => Ok(None),
            other => other,
        }
    }

    /// Sets how long the locks of later statements wait. Whole seconds, at least one.
    pub fn set_lock_wait(&mut self, wait: Duration) -> Result<(), SqlError> {
        let seconds = wait.as_secs().max(1);
        self.exec(&format!("SET SESSION lock_wait_timeout = {seconds}"))?;
        self.set_answer_timeout(Duration::from_secs(seconds) + LOCK_MARGIN)
    }

    pub(crate) fn set_answer_timeout(&mut self, timeout: Duration) -> Result<(), SqlError> {
        self.socket
            .set_read_timeout(Some(timeout))
            .map_err(|error| SqlError::new(SqlCause::Lost, format!("cannot set a timeout: {error}")))
    }

    /// The same, borrowed.
    pub(super) fn socket_mut(&mut self) -> &mut UnixStream {
        &mut self.socket
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self) -> Result<(), SqlError> {
        self.conn.ping().map_err(|error| SqlError::of_statement(error, "ping"))
    }

    /// Ends another session of the same account.
    pub fn kill(&mut self, connection_id: u64) -> Result<(), SqlError> {
        match self.exec(&format!("KILL CONNECTION {connection_id}")) {
            Err(error) if error.code() == Some(code::UNKNOWN_THREAD) => Ok(()),
            other => other,
        }
    }

    /// The connection's socket once more, for who speaks otherwise than in statements from here on, as long as the session
    /// lives. Between statements the connection has nothing buffered.
    pub(crate) fn socket(&self) -> Result<UnixStream, SqlError> {
        self.socket.try_clone().map_err(|error| SqlError::new(SqlCause::Lost, error.to_string()))
    }

    /// Whether something between us and the server hands our statements on over connections of its own. A lock would
    /// then belong to a session that is not ours.
    fn is_proxied(&self) -> bool {
        // The handshake has room for the lower 32 bits only.
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

#[allow(unsafe_code)]
fn socket_of(conn: &Conn) -> Result<UnixStream, SqlError> {
    // SAFETY: the descriptor belongs to `conn`, which is borrowed for as long as it is used here.
    let borrowed = unsafe { BorrowedFd::borrow_raw(conn.as_raw_fd()) };
    let owned = borrowed.try_clone_to_owned().map_err(|error| {
        SqlError::new(SqlCause::Lost, format!("cannot duplicate the connection: {error}"))
    })?;
    Ok(UnixStream::from(owned))
}

/// A session that holds something on the server.
///
/// While it is idle, a thread of its own shows the server a sign of life; after [`WAIT_TIMEOUT`] without one the server
/// drops the session, so a process that is frozen, killed or cut off holds nothing for longer. With a deadline
/// ([`limit`](Self::limit)) the same thread cuts the session when the time is over. After that, and after a lost
/// connection, every statement fails. Dropping it ends the session.
pub struct HeldSession {
    shared: Arc<Shared>,
    guard: Option<JoinHandle<()>>,
    connection_id: u64,
    purpose: Purpose,
}

struct Shared {
    session: Mutex<Option<Session>>,
    state: Mutex<State>,
    changed: Condvar,
    socket: UnixStream,
    options: ConnectOptions,
    connection_id: u64,
}

#[derive(Default)]
struct State {
    closing: bool,
    deadline: Option<Deadline>,
    /// Why the session holds nothing any more.
    ended: Option<SqlError>,
}

/// When a session is cut, and what is said then.
#[derive(Clone)]
struct Deadline {
    at: Instant,
    why: SqlError,
}

impl fmt::Debug for HeldSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldSession({} for {})", self.connection_id, self.purpose.name())
    }
}

impl HeldSession {
    /// Connects and starts the thread that keeps the session alive.
    pub fn open(options: &ConnectOptions, purpose: Purpose) -> Result<HeldSession> {
        let mut session = Session::open_patiently(options, purpose)?;
        if session.is_proxied() {
            let error = SqlError::new(SqlCause::Protocol, "a proxy stands between us and the server")
                .doing(format!("open a session for {}", purpose.name()))
                .hinted("locks belong to one session: connect to the server itself, by its socket or its own port");
            return Err(error.into());
        }
        session.exec(&format!("SET SESSION wait_timeout = {}", WAIT_TIMEOUT.as_secs()))?;
        stale::mark(&mut session, purpose)?;
        let cloned = session.socket.try_clone();
        let socket = cloned.map_err(|error| SqlError::new(SqlCause::Lost, error.to_string()))?;
        let connection_id = session.id;
        let shared = Arc::new(Shared {
            session: Mutex::new(Some(session)),
            state: Mutex::default(),
            changed: Condvar::new(),
            socket,
            options: options.clone(),
            connection_id,
        });
        let guard = thread::Builder::new()
            .name(format!("hold-{}", purpose.name()))
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.guard()
            })
            .map_err(|error| SqlError::new(SqlCause::Lost, format!("cannot start a thread: {error}")))?;
        Ok(HeldSession { shared, guard: Some(guard), connection_id, purpose })
    }

    /// What the server calls this session.
    #[must_use]
    pub fn connection_id(&self) -> u64 {
        self.connection_id
    }

    /// Runs statements on the session.
    pub fn with<T>(&self, work: impl FnOnce(&mut Session) -> Result<T, SqlError>) -> Result<T, SqlError> {
        let mut slot = lock(&self.shared.session);
        self.alive()?;
        let session = slot.as_mut().ok_or_else(|| SqlError::new(SqlCause::Lost, "the session is closed"))?;
        let outcome = work(session);
        drop(slot);
        // What looks like a lost connection may be our own deadline's doing, and success may have come too late.
        self.alive()?;
        if let Err(error) = &outcome
            && *error.cause() == SqlCause::Lost
        {
            self.shared.end(error.clone());
        }
        outcome
    }

    /// Runs one statement.
    pub fn exec(&self, statement: &str) -> Result<(), SqlError> {
        self.with(|session| session.exec(statement))
    }

    /// All rows of a query.
    pub fn rows(&self, query: &str) -> Result<Vec<Row>, SqlError> {
        self.with(|session| session.rows(query))
    }

    /// From now on the session may hold what it holds for `held_max`; then it is cut, and the server lets go. An
    /// earlier end that was set before stays.
    pub fn limit(&self, held_max: Duration) {
        self.limit_until(Instant::now() + held_max, held_max);
    }

    /// The same where the time has begun to run already; `held_max` is for the message.
    pub(super) fn limit_until(&self, at: Instant, held_max: Duration) {
        let earlier = self.shared.state().deadline.as_ref().is_some_and(|deadline| deadline.at <= at);
        if !earlier {
            self.set_deadline(Deadline { at, why: expired(held_max) });
        }
    }

    /// Whoever holds the session must say so again within `silence_max`; if not, it is cut. For what harms the server
    /// when nobody looks after it, even while the process is well.
    pub(super) fn attended(&self, silence_max: Duration) {
        self.set_deadline(Deadline { at: Instant::now() + silence_max, why: unattended(silence_max) });
    }

    fn set_deadline(&self, deadline: Deadline) {
        self.shared.state().deadline = Some(deadline);
        self.shared.changed.notify_all();
    }

    /// Takes the limit away.
    pub fn unlimit(&self) {
        self.shared.state().deadline = None;
    }

    /// Fails when the session no longer holds anything.
    pub fn alive(&self) -> Result<(), SqlError> {
        match &self.shared.state().ended {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

impl Drop for HeldSession {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.changed.notify_all();
        // Closing the session politely is quicker for the server than noticing a lost connection.
        if let Ok(mut slot) = self.shared.session.try_lock() {
            slot.take();
        }
        let _ = self.shared.socket.shutdown(std::net::Shutdown::Both);
        if let Some(guard) = self.guard.take() {
            let _ = guard.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The guarding thread: signs of life while idle, the cut at the deadline.
    fn guard(&self) {
        let mut next_beat = Instant::now() + HEARTBEAT;
        loop {
            let mut state = self.state();
            if state.closing || state.ended.is_some() {
                return;
            }
            let now = Instant::now();
            let deadline = state.deadline.as_ref().map(|deadline| deadline.at);
            if let Some(Deadline { at, why }) = state.deadline.clone()
                && now >= at
            {
                // Ended before it is cut, so that whoever is in the middle of a statement learns why it failed.
                state.ended = Some(why);
                drop(state);
                self.cut();
                return;
            }
            if now < next_beat {
                let until = deadline.map_or(next_beat, |at| at.min(next_beat));
                drop(self.changed.wait_timeout(state, until - now));
                continue;
            }
            drop(state);
            next_beat = now + HEARTBEAT;
            let patience = deadline.map_or(PING_TIMEOUT, |at| PING_TIMEOUT.min(at - now));
            if let Err(error) = self.beat(patience) {
                self.end(error);
            }
        }
    }

    /// Shows the server that we are alive, unless a statement is just doing that.
    fn beat(&self, patience: Duration) -> Result<(), SqlError> {
        let mut slot = match self.session.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let Some(session) = slot.as_mut() else { return Ok(()) };
        let usual = session.socket.read_timeout().ok().flatten().unwrap_or(STATEMENT_TIMEOUT);
        session.set_answer_timeout(patience)?;
        session.ping()?;
        session.set_answer_timeout(usual)
    }

    /// Notes why the session holds nothing any more, and makes sure that it does not.
    fn end(&self, why: SqlError) {
        let mut state = self.state();
        if state.closing || state.ended.is_some() {
            return;
        }
        let why = match &state.deadline {
            Some(deadline) if Instant::now() >= deadline.at => deadline.why.clone(),
            _ => why,
        };
        state.ended = Some(why);
        drop(state);
        self.cut();
    }

    /// Makes the server let go now. A server that waits for our next statement notices the closed connection; one that
    /// is busy with a statement does not and must be told.
    fn cut(&self) {
        // Asked before the cut, which ends our side of a statement, but not the server's.
        let is_busy = matches!(self.session.try_lock(), Err(TryLockError::WouldBlock));
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if is_busy {
            let killed =
                Session::open(&self.options, Purpose::Kill).map(|mut killer| killer.kill(self.connection_id));
            // Refused or unreachable: the statement's own lock_wait_timeout bounds what is left.
            drop(killed);
        }
    }
}

fn expired(held_max: Duration) -> SqlError {
    SqlError::new(SqlCause::Expired, format!("the lock was held for {} ms and let go", held_max.as_millis()))
        .hinted("the server was slower than --lock-max allows a lock to be held")
}

fn unattended(silence_max: Duration) -> SqlError {
    let text = format!("nobody looked after it for {} ms, and it was let go", silence_max.as_millis());
    SqlError::new(SqlCause::Expired, text)
        .hinted("the server, or the disk of this host, did not answer for so long")
}
