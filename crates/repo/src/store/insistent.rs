//! A store in which an object that cannot be read is a failure of the store: nothing may be given up because of it. One
//! that is listed but not delivered is made such an object by [`Listed`](super::listed::Listed).

use std::{io, path::Path, sync::Arc, time::Duration};

use super::{ObjectInfo, ObjectPath, Store, StoreError, StoreErrorKind, locks};
use crate::forward_store;

/// Such a store, over another.
pub(crate) struct Insistent(pub(crate) Arc<dyn Store>);

fn insist(error: StoreError) -> StoreError {
    match error.kind {
        StoreErrorKind::Unreadable { why, .. } => {
            let text = format!("exists, but cannot be read ({why}), so that it may not be lost");
            StoreError { kind: StoreErrorKind::Io(io::Error::other(text)), path: error.path }
        }
        kind => StoreError { kind, ..error },
    }
}

impl Store for Insistent {
    forward_store!(self => self.0; location, put, create_if_absent, list, list_folders, delete, now, free_bytes);

    fn local_root(&self) -> Option<&Path> {
        self.0.local_root()
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        self.0.read_exact_at(path, offset, buffer).map_err(insist)
    }

    fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        self.0.read_whole(path, limit_bytes).map_err(insist)
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        self.0.head(path).map_err(insist)
    }

    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        self.0.sweep_uploads(min_age)
    }

    fn reads_at_once(&self) -> usize {
        self.0.reads_at_once()
    }

    fn versioned(&self) -> Option<&dyn locks::Versioned> {
        self.0.versioned()
    }
}
