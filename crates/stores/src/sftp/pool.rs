//! The connections of a store: made when needed, shared by several users, replaced when they break.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use holdfast_pipe::lock::lock;

use super::{
    Place, SftpOptions,
    connection::{Connection, Failure},
};
use crate::pause::Pauses;

/// How long to make no further connection to a host that refused one.
const REFUSED_FOR: Duration = Duration::from_secs(600);

pub(super) struct Pool {
    pub(super) place: Place,
    pub(super) options: SftpOptions,
    open: Mutex<Vec<Arc<Connection>>>,
    /// When a further connection was refused while others were open: an account may be allowed only a few,
    /// and hosts shut out clients that connect too often.
    refused_at: Mutex<Option<Instant>>,
    /// Connections are made one at a time, because servers refuse many at once.
    making: tokio::sync::Mutex<()>,
    /// Whether there has ever been a connection. The very first failure is reported at once: a name may be
    /// misspelt.
    has_been: AtomicBool,
}

impl Pool {
    pub(super) fn new(place: Place, options: SftpOptions) -> Self {
        Self {
            place,
            options,
            open: Mutex::default(),
            refused_at: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            has_been: AtomicBool::new(false),
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Connection>>> {
        lock(&self.open)
    }

    /// The connection with the fewest users.
    fn least_used(&self) -> Option<Arc<Connection>> {
        let mut open = self.open();
        open.retain(|connection| connection.is_alive());
        open.iter().min_by_key(|connection| Arc::strong_count(connection)).cloned()
    }

    /// Whether a further connection may be opened.
    fn may_grow(&self) -> bool {
        let is_refused = lock(&self.refused_at).is_some_and(|at| at.elapsed() < REFUSED_FOR);
        !is_refused && self.open().len() < self.options.connections.max(1)
    }

    /// An unused connection; or a new one, while others share the open ones; or, if there are enough, a
    /// shared one.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let least_used = self.least_used();
        let _making = match least_used {
            // The count includes this reference and the pool's.
            Some(it) if Arc::strong_count(&it) <= 2 || !self.may_grow() => return Ok(it),
            Some(it) => match self.making.try_lock() {
                Ok(making) => making,
                Err(_) => return Ok(it),
            },
            None => {
                let making = self.making.lock().await;
                if let Some(it) = self.least_used() {
                    return Ok(it);
                }
                // All earlier connections have broken, and may have seemed to be all that are allowed.
                *lock(&self.refused_at) = None;
                making
            }
        };
        match Connection::open(&self.place, &self.options).await {
            Ok(made) => {
                self.has_been.store(true, Ordering::Release);
                let made = Arc::new(made);
                self.open().push(Arc::clone(&made));
                Ok(made)
            }
            // Fewer connections than wanted will do.
            Err(failure) => {
                let shared = self.least_used().ok_or(failure)?;
                *lock(&self.refused_at) = Some(Instant::now());
                Ok(shared)
            }
        }
    }

    /// A connection, retried unless there has never been one.
    pub(super) async fn connect(&self) -> Result<Arc<Connection>, Failure> {
        let mut pauses = Pauses::new(self.options.retries);
        loop {
            let failure = match self.connection().await {
                Ok(connection) => return Ok(connection),
                Err(failure) => failure,
            };
            match (&failure, pauses.next()) {
                (Failure::Lost(cause, _), Some(pause))
                    if cause.passes() && self.has_been.load(Ordering::Acquire) =>
                {
                    tokio::time::sleep(pause).await;
                }
                _ => return Err(failure),
            }
        }
    }

    /// Does something that may be done twice; repeats it on another connection if this one breaks.
    pub(super) async fn repeat<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        act: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Failure> {
        let mut pauses = Pauses::new(self.options.retries);
        loop {
            let failure = match act(self.connect().await?).await {
                Err(failure @ Failure::Lost(..)) => failure,
                done => return done,
            };
            match pauses.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(failure),
            }
        }
    }
}
