//! An object on its way into a bucket.
//!
//! Bytes are gathered into parts; a full part is sent while the next one is filled. An object that does not
//! fill one part is sent as a whole, by one request. Memory: the part being filled, and the parts being sent,
//! whose number is bounded over all uploads of a store.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use holdfast_repo::store::{ObjectInfo, ObjectPath, RemoteCause, StoreError, StoreErrorKind, Upload};
use object_store::{MultipartId, PutMultipartOptions, PutPayload, multipart::PartId, path::Path};
use tokio::task::JoinSet;

use super::{Inner, Mark, attempts::Attempts, failure::Failure, io_failed, locked::extensions, locks::Way};

/// How long aborting an upload may delay the caller.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most parts of one upload.
const PARTS_MAX: usize = 10_000;

type Sent = (usize, Result<PartId, StoreError>);

pub(super) struct BucketUpload {
    store: Arc<Inner>,
    path: ObjectPath,
    key: Path,
    mark: Mark,
    /// The part being filled.
    part: Vec<u8>,
    written_bytes: u64,
    parts: Option<Parts>,
}

/// An upload that the service knows about.
struct Parts {
    id: MultipartId,
    begun: usize,
    on_their_way: JoinSet<Sent>,
    arrived: Vec<(usize, PartId)>,
}

impl BucketUpload {
    pub(super) fn new(store: &Arc<Inner>, path: &ObjectPath) -> Result<Self, StoreError> {
        Ok(Self {
            store: Arc::clone(store),
            path: path.clone(),
            key: store.key(path)?,
            mark: Mark::draw().map_err(io_failed(path))?,
            part: Vec::new(),
            written_bytes: 0,
            parts: None,
        })
    }

    fn part_bytes(&self) -> usize {
        self.store.options.part_bytes.max(1)
    }

    async fn begin(&self) -> Result<Parts, StoreError> {
        let client = &self.store.clients.beginning;
        let options = || PutMultipartOptions {
            attributes: self.mark.attributes(self.store.service),
            extensions: extensions(self.store.lock_of(&self.path)),
            ..PutMultipartOptions::default()
        };
        // If this begins two uploads, a sweep aborts the other.
        let begin = self.store.again(async || {
            let id = client.create_multipart_opts(&self.key, options()).await;
            id.map_err(|error| self.store.error(&error, &self.path))
        });
        let id = begin.await?;
        Ok(Parts { id, begun: 0, on_their_way: JoinSet::new(), arrived: Vec::new() })
    }

    /// Sends the part that was filled, as soon as a permit is free.
    async fn send_part(&mut self) -> Result<(), StoreError> {
        if self.parts.is_none() {
            self.parts = Some(self.begin().await?);
        }
        let permit = Arc::clone(&self.store.parts).acquire_owned().await;
        let Some(parts) = &mut self.parts else { return Ok(()) };
        while let Some(sent) = parts.on_their_way.try_join_next() {
            arrive(&self.path, &mut parts.arrived, sent)?;
        }
        if parts.begun == PARTS_MAX {
            let kind = StoreErrorKind::TooLarge {
                size_bytes: self.written_bytes,
                limit_bytes: PARTS_MAX as u64 * self.store.options.part_bytes as u64,
            };
            return Err(StoreError::new(&self.path, kind));
        }
        let number = parts.begun;
        parts.begun += 1;
        let bytes = Bytes::from(mem::take(&mut self.part));
        let part = Part { path: self.path.clone(), key: self.key.clone(), id: parts.id.clone(), number };
        let store = Arc::clone(&self.store);
        let send = async move {
            let _permit = permit;
            (number, store.send(&part, bytes).await)
        };
        parts.on_their_way.spawn_on(send, self.store.runtime.handle());
        Ok(())
    }

    async fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        let part_bytes = self.part_bytes();
        while !bytes.is_empty() {
            if self.part.len() == part_bytes {
                self.send_part().await?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(part_bytes - self.part.len()));
            self.part.extend_from_slice(now);
            self.written_bytes += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    async fn complete(&mut self) -> Result<ObjectInfo, StoreError> {
        if self.parts.is_none() {
            return self.store.create(&self.path, Bytes::from(mem::take(&mut self.part))).await;
        }
        if !self.part.is_empty() {
            self.send_part().await?;
        }
        let Some(parts) = &mut self.parts else { return Err(self.incomplete()) };
        while let Some(sent) = parts.on_their_way.join_next().await {
            arrive(&self.path, &mut parts.arrived, sent)?;
        }
        parts.arrived.sort_by_key(|(number, _)| *number);
        if parts.arrived.len() != parts.begun {
            return Err(self.incomplete());
        }
        let ids: Vec<PartId> = parts.arrived.iter().map(|(_, id)| id.clone()).collect();
        let id = parts.id.clone();
        match self.store.look(&self.path).await {
            Ok(_) => return Err(StoreError::new(&self.path, StoreErrorKind::Exists)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        self.publish(&id, ids).await
    }

    /// Makes one object of the parts, however often the request has to be sent.
    async fn publish(&self, id: &MultipartId, ids: Vec<PartId>) -> Result<ObjectInfo, StoreError> {
        let (store, path, mark, size) = (&self.store, &self.path, &self.mark, self.written_bytes);
        let mut attempts = Attempts::new(store.options.retries);
        let mut is_conditional = !store.refuses_conditions.load(Ordering::Relaxed);
        loop {
            let client = if is_conditional { &store.clients.if_absent } else { &store.clients.giving_up };
            let error = match client.complete_multipart(&self.key, id, ids.clone()).await {
                Ok(_) => {
                    let created = store.confirm(path, mark, size).await?;
                    store.confirm_lock(path, Way::InParts).await?;
                    return Ok(created);
                }
                Err(error) => error,
            };
            let failure = Failure::of(&error);
            if failure == Failure::Taken {
                return store.is_ours(path, mark, size).await;
            }
            if is_conditional
                && failure == Failure::Remote(RemoteCause::Unfit)
                && store.is_for_one(path).await?
            {
                is_conditional = false;
                continue;
            }
            // This includes a conflict with an earlier request that is still being carried out.
            if !attempts.wait(failure).await {
                // The upload is gone: completed by an earlier request, or aborted by another client. Or the
                // answer makes no sense. What exists decides.
                return store.settle(path, mark, size, (failure, store.upload_failed(&error, path))).await;
            }
        }
    }

    fn incomplete(&self) -> StoreError {
        self.store.remote(&self.path, RemoteCause::Other, "a part of the object was not sent")
    }
}

fn arrive(
    path: &ObjectPath,
    arrived: &mut Vec<(usize, PartId)>,
    sent: Result<Sent, tokio::task::JoinError>,
) -> Result<(), StoreError> {
    let lost = |error: tokio::task::JoinError| io_failed(path)(std::io::Error::other(error));
    let (number, part) = sent.map_err(lost)?;
    arrived.push((number, part?));
    Ok(())
}

/// Where the bytes of a part belong.
struct Part {
    path: ObjectPath,
    key: Path,
    id: MultipartId,
    number: usize,
}

impl Inner {
    /// Sends a part, however often that takes.
    async fn send(&self, part: &Part, bytes: Bytes) -> Result<PartId, StoreError> {
        let payload = PutPayload::from(bytes);
        let mut attempts = Attempts::new(self.part_timeout.retries(self.options.retries));
        loop {
            let allowed = self.part_timeout.now();
            let begun = Instant::now();
            let send = self.clients.parts.put_part(&part.key, &part.id, part.number, payload.clone());
            let (failure, error) = match tokio::time::timeout(allowed, send).await {
                Ok(Ok(id)) => {
                    self.part_timeout.was_enough(begun.elapsed());
                    return Ok(id);
                }
                Ok(Err(error)) => (Failure::of(&error), self.upload_failed(&error, &part.path)),
                Err(_) => {
                    self.part_timeout.was_too_short(allowed);
                    let what = format!("a part was not accepted within {} s", allowed.as_secs());
                    let cause = RemoteCause::Unreachable;
                    (Failure::Remote(cause), self.remote(&part.path, cause, what))
                }
            };
            if !attempts.wait(failure).await {
                return Err(error);
            }
        }
    }

    /// An upload that is gone must not read as if the object were gone.
    fn upload_failed(&self, error: &object_store::Error, path: &ObjectPath) -> StoreError {
        match Failure::of(error) {
            Failure::NotFound => {
                let what = "the upload was aborted by another client before it was complete";
                self.remote(path, RemoteCause::Other, what)
            }
            _ => self.error(error, path),
        }
    }
}

impl Upload for BucketUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let runtime = Arc::clone(&self.store.runtime);
        runtime.block_on(self.append(bytes))
    }

    fn finish(mut self: Box<Self>) -> Result<ObjectInfo, StoreError> {
        let runtime = Arc::clone(&self.store.runtime);
        let done = runtime.block_on(self.complete())?;
        // Nothing is left to abort.
        self.parts = None;
        Ok(done)
    }
}

impl Drop for BucketUpload {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        parts.on_their_way.abort_all();
        let give_up = async {
            let client = &self.store.clients.giving_up;
            tokio::time::timeout(ABORT_TIMEOUT, client.abort_multipart(&self.key, &parts.id)).await
        };
        // The sweep handles what remains.
        let _ = self.store.runtime.block_on(give_up);
    }
}
