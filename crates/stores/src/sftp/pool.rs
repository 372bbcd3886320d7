//! The connections of a store: made when they are needed, used by several at once, replaced when they break.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use holdfast_pipe::lock::lock;

use super::{
    Place, SftpOptions,
    connection::{Connection, Failure},
};
use crate::pause::Pauses;

pub(super) struct Pool {
    pub(super) place: Place,
    pub(super) options: SftpOptions,
    open: Mutex<Vec<Arc<Connection>>>,
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
            making: tokio::sync::Mutex::default(),
            has_been: AtomicBool::new(false),
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Connection>>> {
        lock(&self.open)
    }

    /// One that nobody uses, or else, when there are enough, that which the fewest use.
    fn find(&self) -> Option<Arc<Connection>> {
        let mut open = self.open();
        open.retain(|connection| connection.is_alive());
        let least = open.iter().min_by_key(|connection| Arc::strong_count(connection))?;
        let is_free = Arc::strong_count(least) == 1;
        (is_free || open.len() >= self.options.connections.max(1)).then(|| Arc::clone(least))
    }

    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = self.find() {
            return Ok(connection);
        }
        let _making = self.making.lock().await;
        if let Some(connection) = self.find() {
            return Ok(connection);
        }
        let made = Connection::open(&self.place, &self.options).await;
        match made {
            Ok(made) => {
                self.has_been.store(true, Ordering::Release);
                let made = Arc::new(made);
                self.open().push(Arc::clone(&made));
                Ok(made)
            }
            // Fewer than wanted will do.
            Err(failure) => {
                let open = self.open();
                open.iter().min_by_key(|connection| Arc::strong_count(connection)).cloned().ok_or(failure)
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
