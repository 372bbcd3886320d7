//! A session that holds a lock or a redo consumer: it is kept alive, and lets go when it must.

use std::{
    fmt,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;

use super::stale;
use crate::{
    error::Result,
    server::{
        ConnectOptions, Purpose, Row, Session, SqlCause, SqlError, connection::STATEMENT_TIMEOUT,
        status::ServerStart,
    },
};

/// After so much silence of a holding session the server drops it, and with it every lock.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a holding session that is idle shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a sign of life.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// When the server was started that has the session.
    begun: ServerStart,
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
        let begun = ServerStart::read(&mut session)?;
        let socket = session.socket()?;
        let connection_id = session.connection_id();
        let shared = Arc::new(Shared {
            session: Mutex::new(Some(session)),
            state: Mutex::default(),
            changed: Condvar::new(),
            socket,
            options: options.clone(),
            connection_id,
            begun,
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
        if let Err(error) = &outcome
            && *error.cause() == SqlCause::Lost
        {
            // While the session counts as busy: a server that is still at the statement must be told.
            self.shared.end(error.clone());
        }
        drop(slot);
        // What looks like a lost connection may be our own deadline's doing, and success may have come too late.
        self.alive()?;
        outcome
    }

    /// Runs one statement.
    pub fn exec(&self, statement: &str) -> Result<(), SqlError> {
        self.with(|session| session.exec(statement))
    }

    /// Runs a statement that takes a lock, or else cuts the session after `answer_max`: not every wait of a server has a
    /// limit of its own.
    pub(super) fn exec_within(&self, statement: &str, answer_max: Duration) -> Result<(), SqlError> {
        let at = Instant::now() + answer_max;
        let before = self.shared.state().deadline.clone();
        if before.as_ref().is_none_or(|before| at < before.at) {
            self.set_deadline(Deadline { at, why: unanswered(answer_max).doing(statement) });
        }
        let answer = self.exec(statement);
        self.shared.state().deadline = before;
        answer
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
        let usual = session.socket_mut().read_timeout().ok().flatten().unwrap_or(STATEMENT_TIMEOUT);
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
        // Where the way to it has broken, the far end of that way hangs up.
        if is_busy && !self.options.has_broken_tunnel() {
            // Refused or unreachable: the statement's own lock_wait_timeout bounds what is left.
            let _ = self.kill();
        }
    }

    /// A server that was started anew gives numbers of sessions again.
    fn kill(&self) -> Result<()> {
        let mut killer = Session::open(&self.options, Purpose::Kill)?;
        if !self.begun.is_before(&ServerStart::read(&mut killer)?) {
            killer.kill(self.connection_id)?;
        }
        Ok(())
    }
}

fn expired(held_max: Duration) -> SqlError {
    SqlError::new(SqlCause::Expired, format!("the lock was held for {} ms and let go", held_max.as_millis()))
        .hinted("the server was slower than --lock-max allows a lock to be held")
}

fn unanswered(answer_max: Duration) -> SqlError {
    SqlError::new(SqlCause::Lost, format!("no answer within {} ms", answer_max.as_millis()))
        .hinted("somebody is in the way of the lock, see SHOW PROCESSLIST, or the server is slow")
}

fn unattended(silence_max: Duration) -> SqlError {
    let text = format!("nobody looked after it for {} ms, and it was let go", silence_max.as_millis());
    SqlError::new(SqlCause::Expired, text)
        .hinted("the server, or the disk of this host, did not answer for so long")
}
