//! A directory of another host as a store, through SFTP over the user's own `ssh`.
//!
//! - **`ssh` itself connects**, with its configuration, keys, agents, jump hosts and known hosts. Without a
//!   terminal it never asks (`BatchMode`).
//! - An object is written under `.tmp/`, made durable (`fsync@openssh.com`), and then named by a hard link
//!   (`hardlink@openssh.com`), which fails if the name is taken; the folder is made durable as well. Servers
//!   without these extensions are used with those that they have; `docs/guide/stores.md` describes what they
//!   lack.
//! - If the answer to the link is lost, the link is tried again. If the name is taken then, setting a time
//!   under one name and looking for it under the other tells whether it is ours.
//! - The time of an object is `mtime`, the only one the protocol has, in whole seconds.
//! - Requests are sent before earlier ones are answered, and many objects are read at once, so that distance
//!   costs little.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::{StreamExt, stream};
use holdfast_pipe::lock::lock;
use holdfast_repo::store::{
    ObjectInfo, ObjectPath, RemoteCause, RemoteError, Store, StoreError, StoreErrorKind, Upload,
    landmark::{Landmark, is_gone},
    layout::{TEMPORARY, is_temporary_name, may_hold_objects, split, temporary_name},
};
use russh_sftp::protocol::StatusCode;
use tokio::runtime::Runtime;

use self::{
    connection::Failure,
    files::{Found, Whole},
    pool::Pool,
    upload::{Links, SftpUpload, TemporaryFile},
};
use crate::{Missing, pause::Retries, runtime::runtime};

mod connection;
mod files;
mod place;
mod pool;
mod upload;

pub use self::place::Place;

/// Small objects to request at the same time.
const READS_AT_ONCE: usize = 16;
/// Deletions to send at once.
const DELETIONS_AT_ONCE: usize = 16;

/// How another host is reached.
#[derive(Clone, Debug)]
pub struct SftpOptions {
    /// The `ssh` program.
    pub ssh: PathBuf,
    /// Its configuration file, instead of the usual ones.
    pub config_file: Option<PathBuf>,
    /// Whether it may ask the user: there is a terminal, and somebody at it.
    pub may_ask: bool,
    /// Most connections at once.
    pub connections: usize,
    /// How often a connection is made again.
    pub retries: Retries,
    /// Longest time until an answer: by then, busy disks and slow lines must have taken what was sent. `ssh`
    /// notices a dead line much earlier.
    pub request_timeout: Duration,
}

impl Default for SftpOptions {
    fn default() -> Self {
        Self {
            ssh: "ssh".into(),
            config_file: None,
            may_ask: false,
            connections: 4,
            retries: Retries::default(),
            request_timeout: Duration::from_secs(300),
        }
    }
}

/// A directory of another host whose files are the objects.
pub struct SftpStore {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Arc<Runtime>,
    pool: Pool,
    root: String,
    /// Folders known to exist durably.
    folders: Mutex<HashSet<String>>,
    links: Links,
    /// Folders in which an object may have been named without that being durable yet.
    doubtful: Mutex<HashMap<String, u64>>,
    /// Tells each doubt from all others.
    doubts: AtomicU64,
    landmark: Landmark,
}

impl SftpStore {
    /// Connects to a directory.
    pub(crate) fn open(place: Place, options: &SftpOptions, missing: Missing) -> Result<Self, StoreError> {
        let location = place.to_string();
        let runtime = runtime().map_err(|error| StoreError::new(&location, StoreErrorKind::Io(error)))?;
        // The server begins in the home directory, so `~/` is left out.
        let root = place.directory.strip_prefix("~/").unwrap_or(&place.directory).to_owned();
        let inner = Inner {
            runtime,
            pool: Pool::new(place, options.clone()),
            root,
            folders: Mutex::default(),
            links: Links::default(),
            doubtful: Mutex::default(),
            doubts: AtomicU64::default(),
            landmark: Landmark::default(),
        };
        let runtime = Arc::clone(&inner.runtime);
        runtime.block_on(inner.reach(missing))?;
        Ok(Self { inner: Arc::new(inner) })
    }
}

fn info(path: &ObjectPath, found: &Found) -> ObjectInfo {
    ObjectInfo { path: path.clone(), size_bytes: found.size_bytes, created_at: found.changed_at }
}

impl Inner {
    /// Checks that the root exists, or makes it.
    async fn reach(&self, missing: Missing) -> Result<(), StoreError> {
        let failed = |failure: Failure| self.error(failure, "");
        let found = self.pool.look_through(&self.root).await.map_err(failed)?;
        match found {
            Some(found) if found.is_folder => Ok(()),
            None if missing == Missing::IsMade => self.make_root().await.map_err(failed),
            _ => Err(self.remote("", RemoteCause::NoPlace, "the directory does not exist")),
        }
    }

    async fn make_root(&self) -> Result<(), Failure> {
        let ends =
            self.root.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0).chain([self.root.len()]);
        let mut above = if self.root.starts_with('/') { "/" } else { "." };
        for end in ends {
            let folder = &self.root[..end];
            if self.pool.look_through(folder).await?.is_none() {
                self.pool.make_folder(folder).await?;
                self.pool.sync_folder(above).await?;
            }
            above = folder;
        }
        Ok(())
    }

    /// The path of an object or folder; the root for an empty name.
    fn at(&self, name: &str) -> String {
        let name = name.trim_end_matches('/');
        if name.is_empty() { self.root.clone() } else { format!("{}/{name}", self.root) }
    }

    fn temporary_path(&self) -> io::Result<String> {
        Ok(format!("{}/{TEMPORARY}/{}", self.root, temporary_name()?))
    }

    fn known(&self) -> MutexGuard<'_, HashSet<String>> {
        lock(&self.folders)
    }

    fn forget_folders(&self) {
        self.known().clear();
    }

    fn doubt(&self, folder: &str) {
        let doubt = self.doubts.fetch_add(1, Ordering::Relaxed);
        lock(&self.doubtful).insert(folder.to_owned(), doubt);
    }

    /// Fails if another directory is in the root's place, such as the one beneath a mount point whose file
    /// system is gone.
    async fn require_landmark(&self) -> Result<(), Failure> {
        match self.landmark.get() {
            Some(landmark) if self.pool.look_through(&self.at(landmark.as_str())).await?.is_none() => {
                Err(Failure::Lost(RemoteCause::NoPlace, is_gone(&landmark, &self.root)))
            }
            _ => Ok(()),
        }
    }

    /// Makes a folder below the root, and all folders above it, durably.
    async fn make_folders(&self, folder: &str) -> Result<(), Failure> {
        if folder == self.root || self.known().contains(folder) {
            return Ok(());
        }
        self.require_landmark().await?;
        let mut above = self.root.as_str();
        let starts = self.root.len() + 1;
        let ends = folder[starts..].match_indices('/').map(|(at, _)| starts + at).chain([folder.len()]);
        for end in ends {
            let it = &folder[..end];
            if !self.known().contains(it) {
                self.pool.make_folder(it).await?;
                self.pool.sync_folder(above).await?;
                self.known().insert(it.to_owned());
            }
            above = it;
        }
        Ok(())
    }

    /// Makes sure that the names in this folder are durable.
    async fn confirm(&self, folder: &str) -> Result<(), Failure> {
        // Doubtful until it is durable, also for others that ask meanwhile; who doubts it in between does so for good.
        let doubt = lock(&self.doubtful).get(folder).copied();
        if let Some(doubt) = doubt {
            self.pool.sync_folder(folder).await?;
            let mut doubtful = lock(&self.doubtful);
            if doubtful.get(folder) == Some(&doubt) {
                doubtful.remove(folder);
            }
        }
        Ok(())
    }

    fn error(&self, failure: Failure, path: impl std::fmt::Display) -> StoreError {
        let (cause, detail) = match failure {
            Failure::NotFound => return StoreError::new(path, StoreErrorKind::NotFound),
            Failure::Refused(StatusCode::PermissionDenied, words) => (RemoteCause::Denied, words),
            Failure::Refused(StatusCode::OpUnsupported, words) => (RemoteCause::Unfit, words),
            Failure::Refused(_, words) => (RemoteCause::Other, format!("it answered \"{words}\"")),
            Failure::Lost(cause, words) => (cause, words),
        };
        self.remote(path, cause, detail)
    }

    /// The error of reading an object. The protocol has no status for what a disk cannot read: it is a failure while
    /// other objects can be read.
    fn read_error(&self, failure: Failure, path: &ObjectPath) -> StoreError {
        match failure {
            Failure::Refused(StatusCode::Failure, why) if self.can_read_landmark() => {
                StoreError::new(path, StoreErrorKind::Unreadable { why, is_archived: false })
            }
            failure => self.error(failure, path),
        }
    }

    fn can_read_landmark(&self) -> bool {
        let Some(landmark) = self.landmark.get() else { return false };
        let file = self.at(landmark.as_str());
        self.runtime.block_on(self.pool.read(&file, 0, &mut [0])).is_ok_and(|is_there| is_there)
    }

    fn remote(
        &self,
        path: impl std::fmt::Display,
        cause: RemoteCause,
        detail: impl Into<String>,
    ) -> StoreError {
        let error = RemoteError { place: self.pool.place.to_string(), cause, detail: detail.into() };
        StoreError::new(path, StoreErrorKind::Remote(error))
    }

    /// The other host's clock, in seconds.
    async fn now_s(&self) -> Result<u32, Failure> {
        let mut file = TemporaryFile::create(self).await?;
        // Written to, so that a server that sets times lazily has to set one.
        let written = async {
            file.append(b"now").await?;
            file.close().await
        };
        let read = match written.await {
            Ok(_) => self.pool.times(file.path()).await,
            Err(failure) => Err(failure),
        };
        file.discard(self).await;
        read.map(|(_, mtime)| mtime)
    }

    /// The entries of a folder, in the order of the object names that begin with them.
    fn entries(&self, prefix: &str) -> Result<Vec<(String, Found)>, StoreError> {
        let entries = self.runtime.block_on(self.pool.entries(&self.at(prefix)));
        let mut entries = entries.map_err(|failure| self.error(failure, prefix))?.unwrap_or_default();
        entries.retain(|(name, found)| found.is_file || (found.is_folder && may_hold_objects(prefix, name)));
        let key =
            |(name, found): &(String, Found)| if found.is_folder { format!("{name}/") } else { name.clone() };
        entries.sort_by_cached_key(key);
        Ok(entries)
    }

    fn walk(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<bool, StoreError> {
        for (name, found) in self.entries(prefix)? {
            let name = format!("{prefix}{name}");
            if found.is_folder {
                if !self.walk(&(name + "/"), each)? {
                    return Ok(false);
                }
            } else if let Some(path) = ObjectPath::new(name)
                && !each(info(&path, &found))
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn holds_objects(&self, prefix: &str) -> Result<bool, StoreError> {
        let mut holds = false;
        self.walk(prefix, &mut |_| {
            holds = true;
            false
        })?;
        Ok(holds)
    }

    /// Removes the folder of a deleted object, and those above it, as long as they are empty.
    async fn remove_empty(&self, mut folder: &str) {
        while !folder.is_empty() {
            if self.pool.remove_folder(&self.at(folder)).await.is_err() {
                return;
            }
            self.known().remove(&self.at(folder));
            folder = folder.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
}

impl Store for SftpStore {
    fn location(&self) -> String {
        self.inner.pool.place.to_string()
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        Ok(Box::new(SftpUpload::new(&self.inner, path)?))
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        self.inner.runtime.block_on(self.inner.create(path, bytes))
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        if buffer.is_empty() {
            return self.head(path).map(|_| ());
        }
        let end = offset.saturating_add(buffer.len() as u64);
        let short = || StoreError::new(path, StoreErrorKind::ShortRead { end });
        // No file is longer, and servers count with signed numbers.
        if end > i64::MAX as u64 {
            return Err(short());
        }
        let inner = &self.inner;
        let file = inner.at(path.as_str());
        match inner.runtime.block_on(inner.pool.read(&file, offset, buffer)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(short()),
            Err(failure) => Err(inner.read_error(failure, path)),
        }
    }

    fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        let inner = &self.inner;
        let file = inner.at(path.as_str());
        match inner.runtime.block_on(inner.pool.read_whole(&file, limit_bytes)) {
            Ok(Whole::Bytes(bytes)) => {
                inner.landmark.saw(path);
                Ok(bytes)
            }
            Ok(Whole::TooLarge(size_bytes)) => {
                Err(StoreError::new(path, StoreErrorKind::TooLarge { size_bytes, limit_bytes }))
            }
            Ok(Whole::Short(end)) => Err(StoreError::new(path, StoreErrorKind::ShortRead { end })),
            Err(failure) => Err(inner.read_error(failure, path)),
        }
    }

    fn reads_at_once(&self) -> usize {
        READS_AT_ONCE
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        let inner = &self.inner;
        let found = inner.runtime.block_on(async {
            let found = inner.pool.look(&inner.at(path.as_str())).await?;
            inner.confirm(&inner.at(split(path).0)).await?;
            Ok(found)
        });
        match found.map_err(|failure| inner.error(failure, path))? {
            Some(found) if found.is_file => {
                inner.landmark.saw(path);
                Ok(info(path, &found))
            }
            _ => Err(StoreError::new(path, StoreErrorKind::NotFound)),
        }
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        self.inner.walk(prefix, each).map(|_| ())
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        for (name, found) in self.inner.entries(prefix)? {
            if found.is_folder && self.inner.holds_objects(&format!("{prefix}{name}/"))? {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        let inner = &self.inner;
        inner.landmark.forget(paths);
        inner.runtime.block_on(async {
            let mut deleted = stream::iter(paths)
                .map(|path| async move {
                    let removed = inner.pool.remove(&inner.at(path.as_str())).await;
                    removed.map_err(|failure| inner.error(failure, path))
                })
                .buffer_unordered(DELETIONS_AT_ONCE);
            while let Some(result) = deleted.next().await {
                result?;
            }
            drop(deleted);
            let folders: HashSet<&str> = paths.iter().map(|path| split(path).0).collect();
            for folder in folders {
                inner.remove_empty(folder).await;
            }
            Ok(())
        })
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        let now = self.inner.runtime.block_on(self.inner.now_s());
        let now = now.map_err(|failure| self.inner.error(failure, TEMPORARY))?;
        Ok(UNIX_EPOCH + Duration::from_secs(u64::from(now)))
    }

    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        let inner = &self.inner;
        let free = inner.runtime.block_on(inner.pool.free_bytes(&inner.root));
        free.map_err(|failure| inner.error(failure, ""))
    }

    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        let now = self.now()?;
        let inner = &self.inner;
        inner
            .runtime
            .block_on(async {
                let Some(entries) = inner.pool.entries(&inner.at(TEMPORARY)).await? else { return Ok(()) };
                for (name, found) in entries {
                    let age = now.duration_since(found.changed_at).unwrap_or_default();
                    if found.is_file && is_temporary_name(&name) && age >= min_age {
                        inner.pool.remove(&inner.at(&format!("{TEMPORARY}/{name}"))).await?;
                    }
                }
                Ok(())
            })
            .map_err(|failure| inner.error(failure, TEMPORARY))
    }
}
