//! A store in which an object that is listed, but not delivered, cannot be read: it is not missing. A store that has
//! lost a disk, or a proxy before it, may answer so.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_pipe::lock::lock;

use super::{ObjectInfo, ObjectPath, Store, StoreError, StoreErrorKind, layout::split, locks};
use crate::forward_store;

const NOT_DELIVERED: &str = "the store lists it, but does not deliver it";
/// So many objects that are listed but not delivered are listed again, each for itself: it may have been deleted
/// just now. A store that has more of them has not just lost them to a prune.
const LISTED_AGAIN_MAX: u64 = 100;

/// Such a store, over another. Not for long: it remembers which names there were.
pub(crate) struct Listed {
    store: Arc<dyn Store>,
    /// The names in each folder in which something was not found, when that happened first.
    names: Mutex<HashMap<String, HashSet<String>>>,
    listed_again: AtomicU64,
}

impl Listed {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, names: Mutex::default(), listed_again: AtomicU64::new(0) }
    }

    fn delivered<T>(&self, path: &ObjectPath, read: Result<T, StoreError>) -> Result<T, StoreError> {
        match read {
            Err(error) if error.is_not_found() && self.is_listed(path)? => {
                let why = NOT_DELIVERED.to_owned();
                Err(StoreError { kind: StoreErrorKind::Unreadable { why, is_archived: false }, ..error })
            }
            read => read,
        }
    }

    fn is_listed(&self, path: &ObjectPath) -> Result<bool, StoreError> {
        let folder = match split(path).0 {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let mut known = lock(&self.names);
        match known.get(&folder) {
            Some(names) => {
                if !names.contains(path.as_str()) {
                    return Ok(false);
                }
            }
            None => {
                let mut names = HashSet::new();
                self.store.list(&folder, &mut |info| names.insert(info.path.as_str().to_owned()))?;
                let is_listed = names.contains(path.as_str());
                known.insert(folder, names);
                return Ok(is_listed);
            }
        }
        drop(known);
        if self.listed_again.fetch_add(1, Ordering::Relaxed) >= LISTED_AGAIN_MAX {
            return Ok(true);
        }
        let mut is_listed = false;
        self.store.list(&folder, &mut |info| {
            is_listed = info.path == *path;
            info.path < *path
        })?;
        Ok(is_listed)
    }
}

impl Store for Listed {
    forward_store!(self => self.store; location, put, create_if_absent, list, list_folders, delete, now, free_bytes);

    fn local_root(&self) -> Option<&Path> {
        self.store.local_root()
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        self.delivered(path, self.store.read_exact_at(path, offset, buffer))
    }

    fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        self.delivered(path, self.store.read_whole(path, limit_bytes))
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        self.delivered(path, self.store.head(path))
    }

    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        self.store.sweep_uploads(min_age)
    }

    fn reads_at_once(&self) -> usize {
        self.store.reads_at_once()
    }

    fn versioned(&self) -> Option<&dyn locks::Versioned> {
        self.store.versioned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        conformance,
        faulty::{Fault, FaultyStore, Op},
        mem::MemStore,
    };

    #[test]
    fn where_everything_is_delivered_it_is_a_store() {
        conformance::check(|| Arc::new(Listed::new(Arc::new(MemStore::new()))));
    }

    #[test]
    fn what_is_listed_is_not_missing_until_it_is_gone() {
        let memory = MemStore::new();
        let path = |name: &str| ObjectPath::new(name).unwrap();
        for name in ["a/1", "a/2", "a/2/3", "b"] {
            memory.create_if_absent(&path(name), b"x").unwrap();
        }
        let deaf = FaultyStore::new(Arc::new(memory.clone()), |call| {
            matches!(call.op, Op::Read | Op::Head).then_some(Fault::NotFound)
        });
        let store = Listed::new(Arc::new(deaf));
        for name in ["a/2", "a/1", "b", "a/2/3"] {
            let read = store.read_exact_at(&path(name), 0, &mut [0]).unwrap_err();
            assert!(read.is_unreadable() && store.head(&path(name)).unwrap_err().is_unreadable(), "{name}");
            assert!(read.to_string().contains(NOT_DELIVERED), "{read}");
        }
        assert!(store.head(&path("a/3")).unwrap_err().is_not_found());
        assert!(store.head(&path("c/3")).unwrap_err().is_not_found());
        memory.delete(&[path("a/2")]).unwrap();
        assert!(store.head(&path("a/2")).unwrap_err().is_not_found());
    }
}
