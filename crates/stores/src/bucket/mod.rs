//! A bucket of object storage as a store: of S3 and services that speak its protocol, or a container of Azure
//! Blob Storage.
//!
//! - **Creation is conditional**, of small objects (`PutObject`, `Put Blob`) and of those in parts
//!   (`CompleteMultipartUpload`, `Put Block List`): all requests carry `If-None-Match: *`. Before an upload
//!   in parts is completed, the name is looked up as well, for services that know the condition only for
//!   small objects.
//!   A service that refuses the condition itself (501) is for one writer: `init` finds that out, and only where it has
//!   recorded it, a name is looked up and then created without the condition.
//! - **Who created it?** Each creation writes a random *mark* into the object's metadata. If a request fails
//!   in a way that leaves open whether it was carried out, it is repeated; if the name is taken then, the
//!   mark tells by whom.
//! - **Nothing is believed unseen**: a created object is looked up before it is confirmed. Its size, and its
//!   mark if the service shows one, must be those that were sent. With S3 the bytes are protected by their
//!   SHA-256, which the signature covers and the service checks.
//! - Objects are sent in parts from memory, several at a time; nothing is staged on disk.
//! - The time of an object is the service's (`Last-Modified`), in whole seconds. For an object in parts, it
//!   may be the time when its upload began.

use std::{
    io,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_repo::store::{
    ObjectInfo, ObjectPath, RemoteCause, Store, StoreError, StoreErrorKind, Upload,
    locks::{ObjectLock, Versioned},
    writers::{ONE_WRITER, PROBES},
};
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, path::Path,
};
use rustls::crypto::ring;
use tokio::{runtime::Runtime, sync::Semaphore};

use self::{
    attempts::{Attempts, PartTimeout},
    connect::Clients,
    failure::{Failure, remote},
    locked::extensions,
    locks::{NewLocks, Way},
    upload::BucketUpload,
};
use crate::{OpenStoreError, runtime::runtime};

mod attempts;
mod azure;
mod blocks;
mod connect;
mod failure;
mod listing;
mod locked;
mod locks;
mod options;
mod past;
mod profile;
mod requests;
mod s3;
mod service;
mod stale;
mod upload;
mod versions;

pub use self::{
    options::{AzureOptions, BucketOptions},
    past::PastBucket,
    service::Service,
};
pub use crate::pause::Retries;

/// Small objects to request at the same time.
const READS_AT_ONCE: usize = 16;
/// How long to wait for a service that has never answered: its address may be wrong.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// Folder of objects that no listing shows.
const TEMPORARY: &str = ".tmp/";

/// A bucket, or the part of it below a prefix.
pub struct BucketStore {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Arc<Runtime>,
    service: Service,
    clients: Clients,
    bucket: String,
    /// Empty, or ends in `/`.
    prefix: String,
    options: BucketOptions,
    /// One permit for each part being sent.
    parts: Arc<Semaphore>,
    part_timeout: PartTimeout,
    /// Which objects are locked as they are created, once a repository has said so.
    locks: OnceLock<NewLocks>,
    /// Whether the service refuses the condition that a name is free, in a repository for one writer.
    refuses_conditions: AtomicBool,
}

impl BucketStore {
    /// Connects to a bucket that exists; `prefix` is empty or ends in `/`.
    pub fn open(
        service: Service,
        bucket: &str,
        prefix: &str,
        options: &BucketOptions,
    ) -> Result<Self, OpenStoreError> {
        let store = Self::connect(service, bucket, prefix, options)?;
        // A wrong address, wrong credentials or a missing bucket are reported here, once.
        let retries = options.retries;
        let retries = Retries { give_up_after: retries.give_up_after.min(FIRST_CONTACT), ..retries };
        store.inner.list("", retries, &mut |_| false)?;
        Ok(store)
    }

    /// Like [`BucketStore::open`], without a first request.
    fn connect(
        service: Service,
        bucket: &str,
        prefix: &str,
        options: &BucketOptions,
    ) -> Result<Self, OpenStoreError> {
        let place = format!("{}://{bucket}", service.scheme());
        let failed = |error: io::Error| StoreError::new(&place, StoreErrorKind::Io(error));
        // The cipher suites of the only TLS library. Another part of the process may have installed them already.
        let _ = ring::default_provider().install_default();
        let clients = match service {
            Service::S3 => s3::clients(bucket, options)?,
            Service::Azure => azure::clients(bucket, options)?,
        };
        let inner = Inner {
            runtime: runtime().map_err(failed)?,
            service,
            clients,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            options: options.clone(),
            parts: Arc::new(Semaphore::new(options.parts_at_once.max(1))),
            part_timeout: PartTimeout::new(options.request_timeout, options.parts_at_once),
            locks: OnceLock::new(),
            refuses_conditions: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Tells the object of one creation from those of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark(String);

impl Mark {
    fn draw() -> io::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        Ok(Self(format!("{:032x}", u128::from_le_bytes(random))))
    }

    fn attributes(&self, service: Service) -> Attributes {
        Attributes::from_iter([(Attribute::Metadata(service.mark().into()), self.0.clone())])
    }
}

/// An object as the service shows it.
struct Seen {
    info: ObjectInfo,
    mark: Option<Mark>,
}

fn info(path: &ObjectPath, meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo { path: path.clone(), size_bytes: meta.size, created_at: meta.last_modified.into() }
}

fn io_failed(path: impl std::fmt::Display) -> impl Fn(io::Error) -> StoreError {
    move |error| StoreError::new(&path, StoreErrorKind::Io(error))
}

impl Inner {
    fn place(&self) -> String {
        let prefix = self.prefix.trim_end_matches('/');
        format!("{}://{}/{prefix}", self.service.scheme(), self.bucket).trim_end_matches('/').to_owned()
    }

    fn key(&self, path: &ObjectPath) -> Result<Path, StoreError> {
        let name_of_no_object =
            |_| StoreError::new(path, StoreErrorKind::Io(io::ErrorKind::InvalidFilename.into()));
        let key = Path::parse(format!("{}{path}", self.prefix)).map_err(name_of_no_object)?;
        // Azure drops dots at the end of a part, so that two names would be one.
        if self.service == Service::Azure && key.as_ref().split('/').any(|part| part.ends_with('.')) {
            return Err(StoreError::new(path, StoreErrorKind::Io(io::ErrorKind::InvalidFilename.into())));
        }
        Ok(key)
    }

    /// The folder to list; `None` for all.
    fn folder(&self, prefix: &str) -> Result<Option<Path>, StoreError> {
        let prefix = format!("{}{prefix}", self.prefix);
        let bad = |_| StoreError::new(&prefix, StoreErrorKind::Io(io::ErrorKind::InvalidFilename.into()));
        if prefix.is_empty() { Ok(None) } else { Path::parse(&prefix).map(Some).map_err(bad) }
    }

    fn error(&self, error: &object_store::Error, path: impl std::fmt::Display) -> StoreError {
        Failure::of(error).error(error, &self.place(), path)
    }

    fn remote(
        &self,
        path: impl std::fmt::Display,
        cause: RemoteCause,
        detail: impl Into<String>,
    ) -> StoreError {
        StoreError::new(path, remote(&self.place(), cause, detail))
    }

    /// The lock that a new object gets.
    fn lock_of(&self, path: &ObjectPath) -> Option<ObjectLock> {
        self.locks.get().filter(|new| (new.lasts)(path)).map(|new| new.lock)
    }

    async fn look(&self, path: &ObjectPath) -> Result<Seen, StoreError> {
        self.look_until(path, &mut Attempts::new(self.options.retries)).await
    }

    async fn look_until(&self, path: &ObjectPath, attempts: &mut Attempts) -> Result<Seen, StoreError> {
        let found =
            self.look_for(&self.key(path)?, attempts).await.map_err(|error| self.error(&error, path))?;
        let mark = found.attributes.get(&Attribute::Metadata(self.service.mark().into()));
        let mark = mark.map(|mark| Mark(mark.to_string()));
        Ok(Seen { info: info(path, &found.meta), mark })
    }

    async fn look_for(&self, key: &Path, attempts: &mut Attempts) -> object_store::Result<GetResult> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        loop {
            match self.clients.repeating.get_opts(key, options.clone()).await {
                Err(error) if attempts.wait(Failure::of(&error)).await => {}
                found => return found,
            }
        }
    }

    /// Looks up an object just created, which must be what was sent.
    async fn confirm(
        &self,
        path: &ObjectPath,
        mark: &Mark,
        size_bytes: u64,
    ) -> Result<ObjectInfo, StoreError> {
        let seen = match self.look(path).await {
            Err(error) if error.is_not_found() => {
                let what = "it confirmed the object, but the object does not exist";
                return Err(self.remote(path, RemoteCause::Unconfirmed, what));
            }
            seen => seen?,
        };
        if seen.mark.as_ref().is_some_and(|found| found != mark) {
            return Err(StoreError::new(path, StoreErrorKind::Exists));
        }
        if seen.info.size_bytes != size_bytes {
            let what = format!("it holds {} bytes of the {size_bytes} that were sent", seen.info.size_bytes);
            return Err(self.remote(path, RemoteCause::Unconfirmed, what));
        }
        Ok(seen.info)
    }

    /// For a name that is taken: whether an earlier request of the same creation took it, whose answer was
    /// lost.
    async fn is_ours(
        &self,
        path: &ObjectPath,
        mark: &Mark,
        size_bytes: u64,
    ) -> Result<ObjectInfo, StoreError> {
        let seen = match self.look(path).await {
            // The name was taken, and its object has been deleted since.
            Err(error) if error.is_not_found() => return Err(StoreError::new(path, StoreErrorKind::Exists)),
            seen => seen?,
        };
        if seen.mark.as_ref() == Some(mark) && seen.info.size_bytes == size_bytes {
            Ok(seen.info)
        } else {
            Err(StoreError::new(path, StoreErrorKind::Exists))
        }
    }

    /// Creates an object by one request, repeated as often as necessary.
    async fn create(&self, path: &ObjectPath, bytes: Bytes) -> Result<ObjectInfo, StoreError> {
        let key = self.key(path)?;
        let mark = Mark::draw().map_err(io_failed(path))?;
        let size_bytes = bytes.len() as u64;
        let mut attempts = Attempts::new(self.options.retries);
        // Whether an earlier request may have been carried out.
        let mut is_open = false;
        let mut is_conditional = !self.refuses_conditions.load(Ordering::Relaxed);
        loop {
            // A probe shows that nothing keeps several from creating one name.
            if !is_conditional && !path.as_str().starts_with(PROBES) {
                match self.look(path).await {
                    Ok(_) => return self.is_ours(path, &mark, size_bytes).await,
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
            let options = PutOptions {
                mode: if is_conditional { PutMode::Create } else { PutMode::Overwrite },
                attributes: mark.attributes(self.service),
                extensions: extensions(self.lock_of(path)),
                ..PutOptions::default()
            };
            let payload = PutPayload::from(bytes.clone());
            let error = match self.clients.creating.put_opts(&key, payload, options).await {
                Ok(_) => {
                    let created = self.confirm(path, &mark, size_bytes).await?;
                    self.confirm_lock(path, Way::Whole).await?;
                    return Ok(created);
                }
                Err(error) => error,
            };
            let failure = Failure::of(&error);
            match failure {
                Failure::Taken => return self.is_ours(path, &mark, size_bytes).await,
                Failure::Remote(RemoteCause::Unfit) if is_conditional && self.is_for_one(path).await? => {
                    is_conditional = false;
                    continue;
                }
                Failure::Remote(cause) if cause.passes() => is_open = true,
                _ => {}
            }
            if !attempts.wait(failure).await {
                let failed = self.error(&error, path);
                return match is_open {
                    true => self.settle(path, &mark, size_bytes, (failure, failed)).await,
                    false => Err(failed),
                };
            }
        }
    }

    /// Whether a service that has refused a condition may be used without: by a probe, and in a repository for one
    /// writer, which such a probe has marked as one.
    async fn is_for_one(&self, path: &ObjectPath) -> Result<bool, StoreError> {
        if path.as_str().starts_with(PROBES) || path.as_str() == ONE_WRITER {
            return Ok(true);
        }
        let Some(marked) = ObjectPath::new(ONE_WRITER) else { return Ok(false) };
        match self.look(&marked).await {
            Ok(_) => {
                self.refuses_conditions.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Decides by what exists, after all attempts have failed.
    async fn settle(
        &self,
        path: &ObjectPath,
        mark: &Mark,
        size_bytes: u64,
        (failure, failed): (Failure, StoreError),
    ) -> Result<ObjectInfo, StoreError> {
        // A failure that passes has had its time.
        let mut attempts = match failure {
            Failure::Remote(cause) if cause.passes() => Attempts::none(),
            _ => Attempts::new(self.options.retries),
        };
        match self.look_until(path, &mut attempts).await {
            Ok(_) => self.is_ours(path, mark, size_bytes).await,
            Err(error) if error.is_not_found() => Err(failed),
            Err(error) => Err(error),
        }
    }

    /// Reads from one version, or from the current one.
    async fn read(
        &self,
        path: &ObjectPath,
        version: Option<&str>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), StoreError> {
        let end = offset.saturating_add(buffer.len() as u64);
        if offset.checked_add(buffer.len() as u64).is_none() {
            return Err(StoreError::new(path, StoreErrorKind::ShortRead { end }));
        }
        self.again(async || self.read_once(path, version, offset..end, buffer).await).await
    }

    async fn read_once(
        &self,
        path: &ObjectPath,
        version: Option<&str>,
        range: Range<u64>,
        buffer: &mut [u8],
    ) -> Result<(), StoreError> {
        let key = self.key(path)?;
        let short = || StoreError::new(path, StoreErrorKind::ShortRead { end: range.end });
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            version: version.map(str::to_owned),
            ..GetOptions::default()
        };
        let got = match self.clients.repeating.get_opts(&key, options).await {
            Ok(got) => got,
            Err(error) => {
                return Err(match Failure::of(&error) {
                    Failure::Range => short(),
                    // The library's own message when it finds less than was requested.
                    Failure::Remote(RemoteCause::Other) => match self.look(path).await {
                        Ok(seen) if seen.info.size_bytes < range.end => short(),
                        _ => self.error(&error, path),
                    },
                    _ => self.error(&error, path),
                });
            }
        };
        if got.range != range {
            return Err(short());
        }
        self.receive(path, got, buffer).await
    }

    /// Fills `buffer` with the whole answer, which must be exactly that long.
    async fn receive(&self, path: &ObjectPath, got: GetResult, buffer: &mut [u8]) -> Result<(), StoreError> {
        let mut filled = 0;
        let mut blocks = got.into_stream();
        while let Some(block) = blocks.try_next().await.map_err(|error| self.error(&error, path))? {
            let target = buffer.get_mut(filled..filled + block.len()).ok_or_else(|| {
                self.remote(path, RemoteCause::Other, "it sent more bytes than were asked for")
            })?;
            target.copy_from_slice(&block);
            filled += block.len();
        }
        if filled == buffer.len() {
            Ok(())
        } else {
            Err(self.remote(path, RemoteCause::Unreachable, "the answer was cut off"))
        }
    }

    /// Reads a whole object in one request. The bytes of an object that is too large are not received.
    async fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        self.again(async || self.read_whole_once(path, limit_bytes).await).await
    }

    async fn read_whole_once(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        let key = self.key(path)?;
        let got = self.clients.repeating.get_opts(&key, GetOptions::default()).await;
        let got = got.map_err(|error| self.error(&error, path))?;
        let size_bytes = got.meta.size;
        let Some(size) = usize::try_from(size_bytes).ok().filter(|_| size_bytes <= limit_bytes) else {
            return Err(StoreError::new(path, StoreErrorKind::TooLarge { size_bytes, limit_bytes }));
        };
        let mut bytes = vec![0; size];
        self.receive(path, got, &mut bytes).await?;
        Ok(bytes)
    }

    /// Deletes objects, a thousand per request. An object that is already gone is no failure, so the names of
    /// a failed request are sent again.
    async fn delete(&self, mut keys: Vec<Path>) -> Result<(), StoreError> {
        let mut attempts = Attempts::new(self.options.retries);
        loop {
            let mut deleted =
                self.clients.repeating.delete_stream(stream::iter(keys.clone()).map(Ok).boxed());
            let mut done = 0;
            let failed = loop {
                match deleted.next().await {
                    None => return Ok(()),
                    Some(Err(error)) if Failure::of(&error) != Failure::NotFound => break error,
                    // Results come in the order of the names sent.
                    Some(_) => done += 1,
                }
            };
            keys.drain(..done);
            if done > 0 {
                attempts = Attempts::new(self.options.retries);
            }
            if !attempts.wait(Failure::of(&failed)).await {
                let first = keys.first().map_or("", |key| key.as_ref());
                return Err(self.error(&failed, first.strip_prefix(&self.prefix).unwrap_or(first)));
            }
        }
    }
}

impl Store for BucketStore {
    fn location(&self) -> String {
        self.inner.place()
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        Ok(Box::new(BucketUpload::new(&self.inner, path)?))
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        self.inner.runtime.block_on(self.inner.create(path, Bytes::copy_from_slice(bytes)))
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        if buffer.is_empty() {
            return self.head(path).map(|_| ());
        }
        self.inner.runtime.block_on(self.inner.read(path, None, offset, buffer))
    }

    fn read_whole(&self, path: &ObjectPath, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.runtime.block_on(self.inner.read_whole(path, limit_bytes))
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        Ok(self.inner.runtime.block_on(self.inner.look(path))?.info)
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        self.inner.list(prefix, self.inner.options.retries, each)
    }

    fn reads_at_once(&self) -> usize {
        READS_AT_ONCE
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let names = self.inner.list_folders(prefix)?;
        let is_own = |name: &String| !(prefix.is_empty() && format!("{name}/") == TEMPORARY);
        Ok(names.into_iter().filter(is_own).collect())
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        let inner = &self.inner;
        let keys: Vec<Path> = paths.iter().map(|path| inner.key(path)).collect::<Result<_, _>>()?;
        inner.runtime.block_on(inner.delete(keys))
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        let inner = &self.inner;
        let name = Mark::draw().map(|mark| format!("{TEMPORARY}{}", mark.0)).map_err(io_failed(TEMPORARY))?;
        let key = Path::parse(format!("{}{name}", inner.prefix))
            .map_err(|_| StoreError::new(&name, StoreErrorKind::Io(io::ErrorKind::InvalidFilename.into())))?;
        let client = &inner.clients.repeating;
        let failed = |error| inner.error(&error, &name);
        let clock = async {
            inner.again(async || client.put(&key, PutPayload::new()).await.map_err(failed)).await?;
            let seen = inner.look_for(&key, &mut Attempts::new(inner.options.retries)).await.map_err(failed);
            // If this fails, the next sweep deletes the object.
            let _ = client.delete(&key).await;
            Ok(seen?.meta.last_modified.into())
        };
        inner.runtime.block_on(clock)
    }

    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        let now = self.now()?;
        self.inner.runtime.block_on(self.inner.sweep(now, min_age))
    }

    fn versioned(&self) -> Option<&dyn Versioned> {
        match self.inner.service {
            Service::S3 => Some(self),
            Service::Azure => None,
        }
    }
}
