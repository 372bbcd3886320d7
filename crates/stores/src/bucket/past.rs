//! A bucket as it was: for each name, the version that was current at a time. Nothing can be changed in it.
//!
//! Names are looked up one by one, or remembered from a listing: the list of all objects is never kept in
//! memory as a whole.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use holdfast_pipe::lock::lock;
use holdfast_repo::store::{ObjectInfo, ObjectPath, RemoteCause, Store, StoreError, StoreErrorKind, Upload};
use jiff::Timestamp;

use super::{
    BucketOptions, BucketStore, Inner, READS_AT_ONCE, TEMPORARY,
    locks::{KeptVersions, keeps_versions},
    service::Service,
    versions::Versions,
};
use crate::OpenStoreError;

/// Most names to remember with their versions.
const REMEMBERED_MAX: usize = 50_000;

/// A bucket as it was at a time.
pub struct PastBucket {
    inner: Arc<Inner>,
    time: SystemTime,
    known: Mutex<HashMap<ObjectPath, Known>>,
}

#[derive(Clone)]
struct Known {
    version: String,
    info: ObjectInfo,
}

impl PastBucket {
    /// Connects to a bucket that keeps versions; `prefix` is empty or ends in `/`.
    pub fn open(
        bucket: &str,
        prefix: &str,
        options: &BucketOptions,
        time: SystemTime,
    ) -> Result<Self, OpenStoreError> {
        let inner = BucketStore::connect(Service::S3, bucket, prefix, options)?.inner;
        let answered = inner.runtime.block_on(keeps_versions(&inner)).map_err(StoreError::from)?;
        let (versions, now) = answered;
        let place = format!("s3://{bucket}");
        if versions == KeptVersions::None {
            return Err(OpenStoreError::no_versions(&place));
        }
        let it = Self { inner, time, known: Mutex::default() };
        if let Some(now) = now.filter(|now| *now + LATER < time) {
            let what = format!("{} is in the future: the clock of {place} says {}", stamp(time), stamp(now));
            return Err(OpenStoreError::BadOption(what));
        }
        Ok(it)
    }

    fn look(&self, path: &ObjectPath) -> Result<Known, StoreError> {
        let known = lock(&self.known).get(path).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let key = format!("{}{path}", self.inner.prefix);
        // In a list with this prefix, the name itself comes before all others.
        let mut versions = Versions::new(&self.inner, key.clone(), Some(self.time));
        let first = self.inner.runtime.block_on(versions.next())?;
        let current = first.filter(|named| named.key == key);
        let current = current.and_then(|named| named.current_at(self.time));
        let known = current.and_then(|version| {
            let size_bytes = version.object?.size_bytes;
            let info = ObjectInfo { path: path.clone(), size_bytes, created_at: version.at };
            Some(Known { version: version.id, info })
        });
        let known = known.ok_or_else(|| StoreError::new(path, StoreErrorKind::NotFound))?;
        self.remember(&known);
        Ok(known)
    }

    fn remember(&self, known: &Known) {
        let mut all = lock(&self.known);
        if all.len() >= REMEMBERED_MAX {
            all.clear();
        }
        all.insert(known.info.path.clone(), known.clone());
    }

    fn refused(&self, path: impl std::fmt::Display) -> StoreError {
        StoreError::new(path, StoreErrorKind::ReadOnly)
    }
}

fn stamp(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX).to_string()
}

/// How far ahead of the service's clock a time may be.
const LATER: Duration = Duration::from_secs(60);

impl Store for PastBucket {
    fn location(&self) -> String {
        format!("{} as of {}", self.inner.place(), stamp(self.time))
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        Err(self.refused(path))
    }

    fn create_if_absent(&self, path: &ObjectPath, _bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        Err(self.refused(path))
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let known = self.look(path)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let read = self.inner.read(path, Some(&known.version), offset, buffer);
        match self.inner.runtime.block_on(read) {
            // Once found, a version stays there unless somebody deletes versions.
            Err(error) if error.is_not_found() => {
                let what = "its version of that time was deleted";
                Err(self.inner.remote(path, RemoteCause::Other, what))
            }
            read => read,
        }
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        Ok(self.look(path)?.info)
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        let inner = &self.inner;
        let mut versions = Versions::new(inner, format!("{}{prefix}", inner.prefix), Some(self.time));
        // Outside the runtime between two names, because `each` may call the store.
        while let Some(named) = inner.runtime.block_on(versions.next())? {
            let Some(name) = named.key.strip_prefix(&inner.prefix) else { continue };
            let Some(path) = ObjectPath::new(name).filter(|_| !name.starts_with(TEMPORARY)) else { continue };
            let Some(version) = named.current_at(self.time) else { continue };
            let Some(object) = version.object else { continue };
            let info = ObjectInfo { path, size_bytes: object.size_bytes, created_at: version.at };
            let known = Known { version: version.id, info };
            self.remember(&known);
            if !each(known.info) {
                break;
            }
        }
        Ok(())
    }

    fn reads_at_once(&self) -> usize {
        READS_AT_ONCE
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let above = format!("{}{prefix}", self.inner.prefix);
        let ever = self.inner.runtime.block_on(self.inner.folders_ever(&above))?;
        let mut folders = Vec::new();
        for folder in ever {
            let Some(name) = folder.strip_prefix(&above).and_then(|name| name.strip_suffix('/')) else {
                continue;
            };
            if prefix.is_empty() && format!("{name}/") == TEMPORARY {
                continue;
            }
            let mut is_there = false;
            self.list(&format!("{prefix}{name}/"), &mut |_| {
                is_there = true;
                false
            })?;
            if is_there {
                folders.push(name.to_owned());
            }
        }
        Ok(folders)
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        paths.first().map_or(Ok(()), |path| Err(self.refused(path)))
    }

    /// The present of this store is that time.
    fn now(&self) -> Result<SystemTime, StoreError> {
        Ok(self.time)
    }

    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }
}
