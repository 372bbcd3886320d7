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

/// The server drops a holding session, and with it every lock, after this long without a sign of life.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often an idle holding session shows the server that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A session that holds something on the server.
///
/// While the session is idle, a thread of its own pings the server. After [`WAIT_TIMEOUT`] without a sign of
/// life the server drops the session, so a process that is frozen, killed or cut off holds nothing for
/// longer. If there is a deadline ([`limit`](Self::limit)), the same thread cuts the session when it passes.
/// After that, and after a lost connection, every statement fails. Dropping the `HeldSession` ends the
/// session.
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
    /// The start of the server that the session belongs to.
    begun: ServerStart,
}

#[derive(Default)]
struct State {
    closing: bool,
    deadline: Option<Deadline>,
    /// Why the session no longer holds anything.
    ended: Option<SqlError>,
}

/// When to cut a session, and the error for it.
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
            let error = SqlError::new(SqlCause::Protocol, "there is a proxy between Holdfast and the server")
                .doing(format!("open a session for {}", purpose.name()))
                .hinted("locks belong to one session: connect to the server itself, by its socket or its own port");
            return Err(error.into());
        }
        // If this process is frozen while an answer comes, the server waits in a write, where wait_timeout does not
        // count (60 s on both flavors, with an answer larger than the socket's buffers).
        session.exec(&format!(
            "SET SESSION wait_timeout = {0}, net_write_timeout = {0}, net_read_timeout = {0}",
            WAIT_TIMEOUT.as_secs()
        ))?;
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

    /// The server's id of this session.
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
            // Done while the session counts as busy: a server that is still executing the statement must be
            // told.
            self.shared.end(error.clone());
        }
        drop(slot);
        // What looks like a lost connection may be due to our own deadline, and a success may have come too
        // late.
        self.alive()?;
        outcome
    }

    /// Runs one statement.
    pub fn exec(&self, statement: &str) -> Result<(), SqlError> {
        self.with(|session| session.exec(statement))
    }

    /// Executes a statement that takes a lock, and cuts the session if that takes longer than `answer_max`:
    /// not every wait on a server has a limit of its own.
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

    /// Limits how long the session may hold what it holds to `held_max` from now; then it is cut, and the
    /// server lets go. An earlier deadline stays in force.
    pub fn limit(&self, held_max: Duration) {
        self.limit_until(Instant::now() + held_max, held_max);
    }

    /// Like [`limit`](Self::limit), but with an absolute deadline; `held_max` is for the message.
    pub(super) fn limit_until(&self, at: Instant, held_max: Duration) {
        let earlier = self.shared.state().deadline.as_ref().is_some_and(|deadline| deadline.at <= at);
        if !earlier {
            self.set_deadline(Deadline { at, why: expired(held_max) });
        }
    }

    /// Cuts the session unless this is called again within `silence_max`. Meant for what harms the server if
    /// nobody looks after it, even while the process is well.
    pub(super) fn attended(&self, silence_max: Duration) {
        self.set_deadline(Deadline { at: Instant::now() + silence_max, why: unattended(silence_max) });
    }

    fn set_deadline(&self, deadline: Deadline) {
        self.shared.state().deadline = Some(deadline);
        self.shared.changed.notify_all();
    }

    /// Removes the limit.
    pub fn unlimit(&self) {
        self.shared.state().deadline = None;
    }

    /// Ends the session, so that the server lets go of whatever it holds.
    pub(super) fn end(&self, why: SqlError) {
        self.shared.end(why);
    }

    /// Fails if the session no longer holds anything.
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
        // The server handles a clean close faster than it notices a lost connection.
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

    /// Body of the guard thread: pings while the session is idle, and cuts it at the deadline.
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
                // Set before the cut, so that a statement in progress fails with the reason.
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

    /// Pings the server, unless a statement is in progress: that is a sign of life itself.
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

    /// Records why the session no longer holds anything, and makes sure that it does not.
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

    /// Makes the server let go now. A server that waits for our next statement notices that the connection is
    /// closed; one that is busy with a statement does not, and must be told.
    fn cut(&self) {
        // Checked before the cut, which ends our side of a statement, but not the server's.
        let is_busy = matches!(self.session.try_lock(), Err(TryLockError::WouldBlock));
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        // If the tunnel has broken, its far end closes the connection. Not waited for: the lock's time is up.
        if is_busy && !self.options.has_lost_tunnel() {
            // On failure, the statement's own lock_wait_timeout bounds the remaining time.
            let _ = self.kill();
        }
    }

    /// Kills the session, unless the server has restarted: it would have reused the session's id.
    fn kill(&self) -> Result<()> {
        let mut killer = Session::open(&self.options, Purpose::Kill)?;
        if !self.begun.is_before(&ServerStart::read(&mut killer)?) {
            killer.kill(self.connection_id)?;
        }
        Ok(())
    }
}

fn expired(held_max: Duration) -> SqlError {
    SqlError::new(SqlCause::Expired, format!("the lock was released after {} ms", held_max.as_millis()))
        .hinted("the server did not finish within --lock-max")
}

fn unanswered(answer_max: Duration) -> SqlError {
    SqlError::new(SqlCause::Lost, format!("no answer within {} ms", answer_max.as_millis()))
        .hinted("another session blocks the lock (see SHOW PROCESSLIST), or the server is slow")
}

fn unattended(silence_max: Duration) -> SqlError {
    let text =
        format!("the redo consumer was not advanced for {} ms, and was released", silence_max.as_millis());
    SqlError::new(SqlCause::Expired, text)
        .hinted("the server, or the disk of this host, did not answer for that long")
}
