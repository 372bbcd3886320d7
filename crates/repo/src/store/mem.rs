//! A store in memory, with a clock and a size that a test can set.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use holdfast_pipe::lock::lock;

use super::{ObjectInfo, ObjectPath, Store, StoreError, StoreErrorKind, Upload};

/// The clock of a [`MemStore`]: stands still until it is advanced.
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<SystemTime>>);

impl Default for ManualClock {
    /// Some day in 2026.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(UNIX_EPOCH + Duration::from_secs(1_780_000_000))))
    }
}

impl ManualClock {
    /// The time that it shows.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        *lock(&self.0)
    }

    /// Advances it.
    pub fn advance(&self, by: Duration) {
        *lock(&self.0) += by;
    }

    /// Sets it back.
    pub fn set_back(&self, by: Duration) {
        *lock(&self.0) -= by;
    }
}

struct Object {
    bytes: Arc<[u8]>,
    created_at: SystemTime,
}

#[derive(Default)]
struct Inner {
    objects: Mutex<BTreeMap<ObjectPath, Object>>,
    clock: Option<ManualClock>,
    capacity_bytes: Mutex<Option<u64>>,
}

/// Objects in a map. Clones share them.
#[derive(Clone, Default)]
pub struct MemStore {
    inner: Arc<Inner>,
}

impl MemStore {
    /// An empty store that uses the host's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that uses `clock`.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        Self { inner: Arc::new(Inner { clock: Some(clock), ..Inner::default() }) }
    }

    /// Limits the store to this many bytes; `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        *lock(&self.inner.capacity_bytes) = bytes;
    }

    /// Bytes of all objects.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        used_bytes(&self.inner.lock())
    }

    /// Damages an object as no client can: changes its bytes, keeping its time. Returns whether it exists.
    pub fn damage(&self, path: &ObjectPath, damage: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut objects = self.inner.lock();
        let Some(object) = objects.get_mut(path) else { return false };
        let mut bytes = object.bytes.to_vec();
        damage(&mut bytes);
        object.bytes = bytes.into();
        true
    }
}

fn used_bytes(objects: &BTreeMap<ObjectPath, Object>) -> u64 {
    objects.values().map(|object| object.bytes.len() as u64).sum()
}

impl Inner {
    /// Free space; `None` if there is no limit.
    fn free_bytes(&self, objects: &BTreeMap<ObjectPath, Object>) -> Option<u64> {
        let capacity = *lock(&self.capacity_bytes);
        capacity.map(|bytes| bytes.saturating_sub(used_bytes(objects)))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectPath, Object>> {
        lock(&self.objects)
    }

    fn now(&self) -> SystemTime {
        self.clock.as_ref().map_or_else(SystemTime::now, ManualClock::now)
    }

    fn create(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        let mut objects = self.lock();
        if objects.contains_key(path) {
            return Err(StoreError::new(path, StoreErrorKind::Exists));
        }
        if self.free_bytes(&objects).is_some_and(|free| free < bytes.len() as u64) {
            return Err(StoreError::new(path, StoreErrorKind::Io(io::ErrorKind::StorageFull.into())));
        }
        let object = Object { bytes: bytes.into(), created_at: self.now() };
        let info = object.info(path);
        objects.insert(path.clone(), object);
        Ok(info)
    }
}

impl Object {
    fn info(&self, path: &ObjectPath) -> ObjectInfo {
        ObjectInfo { path: path.clone(), size_bytes: self.bytes.len() as u64, created_at: self.created_at }
    }
}

struct MemUpload {
    store: Arc<Inner>,
    path: ObjectPath,
    bytes: Vec<u8>,
}

impl Upload for MemUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ObjectInfo, StoreError> {
        self.store.create(&self.path, &self.bytes)
    }
}

impl Store for MemStore {
    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        Ok(Box::new(MemUpload { store: Arc::clone(&self.inner), path: path.clone(), bytes: Vec::new() }))
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        self.inner.create(path, bytes)
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let objects = self.inner.lock();
        let object = objects.get(path).ok_or_else(|| StoreError::new(path, StoreErrorKind::NotFound))?;
        let end = offset.saturating_add(buffer.len() as u64);
        let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
        match range.and_then(|(from, to)| object.bytes.get(from..to)) {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(StoreError::new(path, StoreErrorKind::ShortRead { end })),
        }
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        let objects = self.inner.lock();
        let object = objects.get(path).ok_or_else(|| StoreError::new(path, StoreErrorKind::NotFound))?;
        Ok(object.info(path))
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        let found: Vec<ObjectInfo> = self
            .inner
            .lock()
            .iter()
            .filter(|(path, _)| path.as_str().starts_with(prefix))
            .map(|(path, object)| object.info(path))
            .collect();
        let _ = found.into_iter().all(each);
        Ok(())
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let objects = self.inner.lock();
        let mut names: Vec<String> = objects
            .keys()
            .filter_map(|path| path.as_str().strip_prefix(prefix)?.split_once('/'))
            .map(|(name, _)| name.to_owned())
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        let mut objects = self.inner.lock();
        for path in paths {
            objects.remove(path);
        }
        Ok(())
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        Ok(self.inner.now())
    }

    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(self.inner.free_bytes(&self.inner.lock()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance;

    #[test]
    fn memory_is_a_store() {
        conformance::check(|| Arc::new(MemStore::new()));
        conformance::check_large(|| Arc::new(MemStore::new()), 100_000, 1_050);
    }

    #[test]
    fn objects_carry_the_time_of_the_clock_they_appeared_under() {
        let clock = ManualClock::default();
        let store = MemStore::with_clock(clock.clone());
        let path = ObjectPath::new("a").unwrap();
        let upload = store.put(&path).unwrap();
        clock.advance(Duration::from_secs(5));
        assert_eq!(upload.finish().unwrap().created_at, clock.now());
    }
}
