//! The connections of a store: made when they are needed, used by several at once, replaced when they break.

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

/// How long a host that let no further connection in is not asked for another.
const REFUSED_FOR: Duration = Duration::from_secs(600);

pub(super) struct Pool {
    pub(super) place: Place,
    pub(super) options: SftpOptions,
    open: Mutex<Vec<Arc<Connection>>>,
    /// When a further connection was refused, while there were others: accounts may have few, and who knocks too often is
    /// shut out.
    refused_at: Mutex<Option<Instant>>,
    /// One is made at a time: servers refuse many who knock at once.
    making: tokio::sync::Mutex<()>,
    /// Whether there has ever been one. The first failure of all is said at once: a name may be misspelt.
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

    /// That which the fewest use.
    fn least_used(&self) -> Option<Arc<Connection>> {
        let mut open = self.open();
        open.retain(|connection| connection.is_alive());
        open.iter().min_by_key(|connection| Arc::strong_count(connection)).cloned()
    }

    /// Whether there may be more than are open.
    fn may_grow(&self) -> bool {
        let is_refused = lock(&self.refused_at).is_some_and(|at| at.elapsed() < REFUSED_FOR);
        !is_refused && self.open().len() < self.options.connections.max(1)
    }

    /// One that nobody uses; or a new one, while others share what there is; or, when there are enough, a shared one.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let least_used = self.least_used();
        let _making = match least_used {
            // Here, and in the pool.
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
                // Those that there were have broken, and may have seemed to be all there can be.
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
            // Fewer than wanted will do.
            Err(failure) => {
                let shared = self.least_used().ok_or(failure)?;
                *lock(&self.refused_at) = Some(Instant::now());
                Ok(shared)
            }
        }
    }

    /// A connection, tried for again and again unless there has never been one.
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

    /// Does what can be done twice; again on another connection if this one breaks.
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
