//! A wrapper that bounds how many calls a store gets at once, and how fast bytes move.

use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use holdfast_pipe::{lock::lock, throttle::Throttle};
use holdfast_repo::store::{ObjectInfo, ObjectPath, Store, StoreError, Upload, locks::Versioned};

/// How much of a network, or of the disks behind it, a store may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Calls at once; the others wait. Parts of one upload are bounded where they are made.
    pub calls: Option<usize>,
    /// Bytes a second to the store.
    pub upload_bytes_per_s: Option<u64>,
    /// Bytes a second from the store.
    pub download_bytes_per_s: Option<u64>,
}

/// `store` within `limits`; the store itself if there are none.
#[must_use]
pub fn limited(store: Arc<dyn Store>, limits: Limits) -> Arc<dyn Store> {
    if limits == Limits::default() {
        return store;
    }
    let gate = Gate {
        free: Mutex::new(limits.calls.map_or(usize::MAX, |calls| calls.max(1))),
        changed: Condvar::new(),
    };
    Arc::new(LimitedStore {
        store,
        gate,
        upload: Arc::new(Throttle::new(limits.upload_bytes_per_s)),
        download: Throttle::new(limits.download_bytes_per_s),
    })
}

struct Gate {
    free: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    fn pass<T>(&self, call: impl FnOnce() -> T) -> T {
        struct Leave<'a>(&'a Gate);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                *lock(&self.0.free) += 1;
                self.0.changed.notify_one();
            }
        }
        let mut free = lock(&self.free);
        while *free == 0 {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        drop(free);
        let _leave = Leave(self);
        call()
    }
}

struct LimitedStore {
    store: Arc<dyn Store>,
    gate: Gate,
    upload: Arc<Throttle>,
    download: Throttle,
}

struct LimitedUpload {
    upload: Box<dyn Upload>,
    throttle: Arc<Throttle>,
}

/// Larger grants would pass as bursts.
const GRANT_BYTES: usize = 64 << 10;

impl Upload for LimitedUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        for block in bytes.chunks(GRANT_BYTES) {
            self.throttle.take(block.len() as u64, || false);
            self.upload.write(block)?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ObjectInfo, StoreError> {
        self.upload.finish()
    }
}

impl Store for LimitedStore {
    fn location(&self) -> String {
        self.store.location()
    }

    fn local_root(&self) -> Option<&Path> {
        self.store.local_root()
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        let upload = self.gate.pass(|| self.store.put(path))?;
        Ok(Box::new(LimitedUpload { upload, throttle: Arc::clone(&self.upload) }))
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        self.upload.take(bytes.len() as u64, || false);
        self.gate.pass(|| self.store.create_if_absent(path, bytes))
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        self.download.take(buffer.len() as u64, || false);
        self.gate.pass(|| self.store.read_exact_at(path, offset, buffer))
    }

    fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.gate.pass(|| self.store.read_whole(path, limit_bytes))?;
        self.download.take(bytes.len() as u64, || false);
        Ok(bytes)
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        self.gate.pass(|| self.store.head(path))
    }

    /// Passes no gate, because `each` may call the store itself.
    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        self.store.list(prefix, each)
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.gate.pass(|| self.store.list_folders(prefix))
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        self.gate.pass(|| self.store.delete(paths))
    }

    fn reads_at_once(&self) -> usize {
        self.store.reads_at_once()
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        self.gate.pass(|| self.store.now())
    }

    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.gate.pass(|| self.store.free_bytes())
    }

    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        self.gate.pass(|| self.store.sweep_uploads(min_age))
    }

    /// Bounds its own requests.
    fn versioned(&self) -> Option<&dyn Versioned> {
        self.store.versioned()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Instant,
    };

    use holdfast_repo::store::{
        conformance,
        faulty::{FaultyStore, Op},
        mem::MemStore,
    };

    use super::*;

    #[test]
    fn a_limited_store_is_a_store() {
        let limits =
            Limits { calls: Some(2), upload_bytes_per_s: Some(1 << 30), download_bytes_per_s: Some(1 << 30) };
        conformance::check(|| limited(Arc::new(MemStore::new()), limits));
    }

    #[test]
    fn no_more_calls_than_allowed_are_under_way() {
        static AT_ONCE: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        // Called before each call, within it.
        let slow = FaultyStore::new(Arc::new(MemStore::new()), |call| {
            if call.op == Op::Now {
                MOST.fetch_max(AT_ONCE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                AT_ONCE.fetch_sub(1, Ordering::SeqCst);
            }
            None
        });
        let store = limited(Arc::new(slow), Limits { calls: Some(3), ..Limits::default() });
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| store.now().unwrap());
            }
        });
        assert!(MOST.load(Ordering::SeqCst) <= 3);
    }

    #[test]
    fn bytes_move_no_faster_than_allowed() {
        let limits = Limits { upload_bytes_per_s: Some(10_000_000), ..Limits::default() };
        let directory = tempfile::tempdir().unwrap();
        let options = crate::StoreOptions { limits, ..crate::StoreOptions::default() };
        let location = directory.path().join("repo");
        // A directory may be on a disk of another host.
        let of_a_directory = crate::create_store(location.to_str().unwrap(), &options).unwrap();
        for store in [limited(Arc::new(MemStore::new()), limits), of_a_directory] {
            let begun = Instant::now();
            let mut upload = store.put(&ObjectPath::new("a").unwrap()).unwrap();
            for _ in 0..4 {
                upload.write(&[0; 1_000_000]).unwrap();
            }
            upload.finish().unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
        }
    }
}
