//! A store as a client may see it: with stale listings, and a clock that differs from the others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use holdfast_repo::{
    forward_store,
    store::{ObjectInfo, ObjectPath, Store, StoreError, Upload},
};

/// The maximum deviation of a clock from the true time.
pub(crate) const SKEW_MAX: Duration = Duration::from_secs(10 * 60);

/// When objects were created, counted in calls of all clients.
#[derive(Clone, Default)]
pub(crate) struct Ticks {
    now: Arc<AtomicU64>,
    created: Arc<Mutex<HashMap<ObjectPath, u64>>>,
}

impl Ticks {
    pub(crate) fn advance(&self) {
        self.now.fetch_add(1, Ordering::SeqCst);
    }

    /// The same time base for another store.
    pub(crate) fn elsewhere(&self) -> Self {
        Self { now: Arc::clone(&self.now), created: Arc::default() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    fn create(&self, path: &ObjectPath) {
        self.created.lock().unwrap().insert(path.clone(), self.now());
    }

    fn age(&self, path: &ObjectPath) -> u64 {
        let created = self.created.lock().unwrap().get(path).copied();
        created.map_or(u64::MAX, |created| self.now() - created)
    }
}

/// A store with lag and skew.
pub(crate) struct Weather {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ticks: Ticks,
    /// Objects created within this many calls are not listed.
    pub(crate) lag: u64,
    /// Added to the true time, from which [`SKEW_MAX`] is then subtracted.
    pub(crate) skew: Duration,
}

struct Noted {
    upload: Box<dyn Upload>,
    path: ObjectPath,
    ticks: Ticks,
}

impl Upload for Noted {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.upload.write(bytes)
    }

    fn finish(self: Box<Self>) -> Result<ObjectInfo, StoreError> {
        let Self { upload, path, ticks } = *self;
        let info = upload.finish()?;
        ticks.create(&path);
        Ok(info)
    }
}

impl Store for Weather {
    forward_store!(self => self.store; location, read_exact_at, head, list_folders, delete, free_bytes);

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        let upload = self.store.put(path)?;
        Ok(Box::new(Noted { upload, path: path.clone(), ticks: self.ticks.clone() }))
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        let info = self.store.create_if_absent(path, bytes)?;
        self.ticks.create(path);
        Ok(info)
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        self.store.list(prefix, &mut |info| self.ticks.age(&info.path) < self.lag || each(info))
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        Ok(self.store.now()? + self.skew - SKEW_MAX)
    }
}
