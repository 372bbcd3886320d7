//! An object being sent to another host.
//!
//! Blocks are sent before earlier ones are answered. They go to a temporary file, which is made durable and
//! then linked under the object's name: a link is made or not made, and never replaces anything. If the
//! server or its file system makes no links, the file is renamed; `init` finds out whether a rename there
//! replaces what exists.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use holdfast_repo::store::{
    ObjectInfo, ObjectPath, RemoteCause, StoreError, StoreErrorKind, Upload,
    layout::{TEMPORARY, split},
};
use russh_sftp::protocol::{OpenFlags, StatusCode};
use tokio::task::JoinSet;

use super::{
    Inner,
    connection::{Connection, Failure},
    files::{FILE_MODE, WINDOW_BYTES, mode},
};
use crate::pause::Pauses;

/// How often to remake a folder that vanished.
const FOLDER_ATTEMPTS: u32 = 5;
/// How often to try a link that is refused for another reason than that there are none.
const LINK_ATTEMPTS: u32 = 4;
/// How long cleaning up may delay a caller that has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// An object named at least this long after its last byte gets a new time.
const LATE: Duration = Duration::from_secs(10);

/// Whether the file system makes links, which a server that offers them does not know: not every file system
/// of a NAS does. One that makes none says so by a code of its own ([`says_no_links`]): any other refusal may pass.
#[derive(Default)]
pub(super) struct Links {
    made: AtomicBool,
    refused: AtomicBool,
}

impl Links {
    fn are_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Notes that an object was named by a link, or otherwise although the server offers links.
    fn tell(&self, by_link: bool) {
        let which = if by_link { &self.made } else { &self.refused };
        which.store(true, Ordering::Relaxed);
    }

    /// Whether a refused link may be due to the file system: no other has been made.
    fn may_be_refused(&self) -> bool {
        !self.made.load(Ordering::Relaxed)
    }
}

/// Whether a refused link means that the file system makes none, or that the server does not let anybody make one: it
/// reports the first as not permitted (`EPERM`, as Linux has it) or not supported. If the folder may not be written
/// to, the same is true of renaming.
fn says_no_links(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(StatusCode::OpUnsupported | StatusCode::PermissionDenied, _))
}

pub(super) struct SftpUpload {
    store: Arc<Inner>,
    path: ObjectPath,
    file: TemporaryFile,
}

/// A file that no listing shows.
pub(super) struct TemporaryFile {
    path: String,
    connection: Arc<Connection>,
    /// Set until the file is closed, and never used after that: the server gives the same handle to the next
    /// file, perhaps another upload's.
    handle: Option<String>,
    block: Vec<u8>,
    offset: u64,
    on_their_way: JoinSet<Result<(), Failure>>,
}

impl TemporaryFile {
    pub(super) async fn create(store: &Inner) -> Result<Self, Failure> {
        let mut attempt = 0;
        let mut pauses = Pauses::new(store.pool.options.retries);
        loop {
            let path = store
                .temporary_path()
                .map_err(|error| Failure::Lost(RemoteCause::Other, format!("no random numbers: {error}")))?;
            store.make_folders(&store.at(TEMPORARY)).await?;
            let connection = store.pool.connect().await?;
            let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUDE;
            let failure = match connection.session.open(path.as_str(), flags, mode(FILE_MODE)).await {
                Ok(opened) => {
                    return Ok(Self {
                        path,
                        connection,
                        handle: Some(opened.handle),
                        block: Vec::new(),
                        offset: 0,
                        on_their_way: JoinSet::new(),
                    });
                }
                Err(error) => connection.failure(error),
            };
            attempt += 1;
            match failure {
                Failure::NotFound if attempt < FOLDER_ATTEMPTS => store.forget_folders(),
                Failure::Lost(..) => match pauses.next() {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(failure),
                },
                failure => return Err(failure),
            }
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) async fn append(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        let block_bytes = self.connection.write_bytes;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(block_bytes - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == block_bytes {
                self.send_block().await?;
            }
        }
        Ok(())
    }

    async fn send_block(&mut self) -> Result<(), Failure> {
        if self.block.is_empty() {
            return Ok(());
        }
        let at_once = (WINDOW_BYTES / self.connection.write_bytes).max(1);
        while self.on_their_way.len() >= at_once {
            self.arrive().await?;
        }
        let block = mem::replace(&mut self.block, Vec::with_capacity(self.connection.write_bytes));
        let handle = self.handle.clone().ok_or_else(closed)?;
        let (connection, offset) = (Arc::clone(&self.connection), self.offset);
        self.offset += block.len() as u64;
        self.on_their_way.spawn(async move {
            let written = connection.session.write(handle, offset, block).await;
            written.map(drop).map_err(|error| connection.failure(error))
        });
        Ok(())
    }

    async fn arrive(&mut self) -> Result<(), Failure> {
        match self.on_their_way.join_next().await {
            None => Ok(()),
            Some(Ok(written)) => written,
            Some(Err(error)) => Err(Failure::Lost(RemoteCause::Other, error.to_string())),
        }
    }

    /// Makes everything written, durable and closed; returns the size.
    pub(super) async fn close(&mut self) -> Result<u64, Failure> {
        self.send_block().await?;
        while !self.on_their_way.is_empty() {
            self.arrive().await?;
        }
        let handle = self.handle.take().ok_or_else(closed)?;
        let it = &self.connection;
        let synced = if it.can.fsync { it.session.fsync(handle.as_str()).await.map(drop) } else { Ok(()) };
        let is_closed = it.session.close(handle).await;
        synced.map_err(|error| it.failure(error))?;
        is_closed.map_err(|error| it.failure(error))?;
        Ok(self.offset)
    }
}

impl TemporaryFile {
    /// Closes and removes the file as far as possible; the sweep handles what is left.
    pub(super) async fn discard(&mut self, store: &Inner) {
        self.on_their_way.abort_all();
        let it = &self.connection;
        let discard = async {
            if let Some(handle) = self.handle.take()
                && it.is_alive()
            {
                let _ = it.session.close(handle).await;
            }
            store.pool.remove(&self.path).await
        };
        let _ = tokio::time::timeout(PATIENCE, discard).await;
    }
}

fn closed() -> Failure {
    Failure::Lost(RemoteCause::Other, "the file was closed before it was complete".to_owned())
}

impl SftpUpload {
    pub(super) fn new(store: &Arc<Inner>, path: &ObjectPath) -> Result<Self, StoreError> {
        let created = store.runtime.block_on(TemporaryFile::create(store));
        let file = created.map_err(|failure| store.error(failure, path))?;
        Ok(Self { store: Arc::clone(store), path: path.clone(), file })
    }
}

impl Inner {
    /// Explains a failure while writing: the protocol has no status for a full disk.
    async fn write_error(&self, failure: Failure, path: &ObjectPath) -> StoreError {
        const FULL_BYTES: u64 = 1 << 20;
        if matches!(failure, Failure::Refused(..))
            && let Ok(Some(free)) = self.pool.free_bytes(&self.root).await
            && free < FULL_BYTES
        {
            return StoreError::new(path, StoreErrorKind::Io(std::io::ErrorKind::StorageFull.into()));
        }
        self.error(failure, path)
    }

    /// Creates an object from bytes in memory, on another connection if one breaks.
    pub(super) async fn create(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        let mut pauses = Pauses::new(self.pool.options.retries);
        loop {
            let written = async {
                let mut file = TemporaryFile::create(self).await?;
                let done = async {
                    file.append(bytes).await?;
                    file.close().await
                };
                match done.await {
                    Ok(size) => Ok((file, size)),
                    Err(failure) => {
                        file.discard(self).await;
                        Err(failure)
                    }
                }
            };
            let failure = match written.await {
                Ok((mut file, size)) => {
                    let published = self.publish(file.path(), path, size, Instant::now()).await;
                    file.discard(self).await;
                    return published;
                }
                Err(failure) => failure,
            };
            match (&failure, pauses.next()) {
                (Failure::Lost(cause, _), Some(pause)) if cause.passes() => tokio::time::sleep(pause).await,
                _ => return Err(self.write_error(failure, path).await),
            }
        }
    }

    /// Names a durable temporary file, durably.
    async fn publish(
        &self,
        temporary: &str,
        path: &ObjectPath,
        size_bytes: u64,
        written: Instant,
    ) -> Result<ObjectInfo, StoreError> {
        let failed = |failure: Failure| self.error(failure, path);
        let held = self.pool.look(temporary).await.map_err(failed)?;
        if held.as_ref().is_none_or(|held| held.size_bytes != size_bytes) {
            let what = format!(
                "it holds {} bytes of the {size_bytes} that were sent",
                held.map_or(0, |held| held.size_bytes)
            );
            return Err(self.remote(path, RemoteCause::Unconfirmed, what));
        }
        let (folder, _) = split(path);
        let (folder, target) = (self.at(folder), self.at(path.as_str()));
        let named = self.give_name(temporary, &target, &folder, path).await;
        let published = match named {
            Ok(()) => self.pool.sync_folder(&folder).await.map_err(failed),
            Err(error) => Err(error),
        };
        // Whatever else failed, the object may have its name.
        if published.as_ref().is_err_and(|error| !error.is_exists()) {
            self.doubt(&folder);
        }
        published?;
        if written.elapsed() >= LATE {
            self.bring_up_to_date(&target).await.map_err(failed)?;
        }
        match self.pool.look(&target).await.map_err(failed)? {
            Some(found) if found.is_file && found.size_bytes == size_bytes => Ok(super::info(path, &found)),
            _ => Err(self.remote(
                path,
                RemoteCause::Unconfirmed,
                "it confirmed the object, but the object does not exist",
            )),
        }
    }

    async fn give_name(
        &self,
        temporary: &str,
        target: &str,
        folder: &str,
        path: &ObjectPath,
    ) -> Result<(), StoreError> {
        let failed = |failure: Failure| self.error(failure, path);
        let taken = || StoreError::new(path, StoreErrorKind::Exists);
        let mut pauses = Pauses::new(self.pool.options.retries);
        let mut attempt = 0;
        let mut renames = self.links.are_refused();
        loop {
            self.make_folders(folder).await.map_err(failed)?;
            let connection = self.pool.connect().await.map_err(failed)?;
            let links = connection.can.hardlink && !renames;
            let named = if links {
                connection.session.hardlink(temporary, target).await
            } else {
                // Some servers replace an existing file, so the name is looked up first: only a race can
                // replace it then.
                if self.pool.look(target).await.map_err(failed)?.is_some() {
                    return if self.is_same(temporary, target, false).await.map_err(failed)? {
                        Ok(())
                    } else {
                        Err(taken())
                    };
                }
                connection.session.rename(temporary, target).await
            };
            let failure = match named {
                Ok(_) => {
                    if connection.can.hardlink {
                        self.links.tell(links);
                    }
                    return Ok(());
                }
                Err(error) => connection.failure(error),
            };
            attempt += 1;
            match failure {
                Failure::NotFound if attempt < FOLDER_ATTEMPTS => {
                    // The folder is gone, or an earlier attempt renamed the file and its answer was lost.
                    if !links && self.is_same(temporary, target, false).await.map_err(failed)? {
                        return Ok(());
                    }
                    self.forget_folders();
                }
                Failure::Refused(..) => {
                    return match self.pool.look(target).await.map_err(failed)? {
                        None if links && self.links.may_be_refused() && says_no_links(&failure) => {
                            renames = true;
                            continue;
                        }
                        None => match pauses.next().filter(|_| links && attempt < LINK_ATTEMPTS) {
                            Some(pause) => {
                                tokio::time::sleep(pause).await;
                                continue;
                            }
                            None => Err(failed(failure)),
                        },
                        // Taken by another client, or by an attempt of ours whose answer was lost.
                        Some(_) if self.is_same(temporary, target, links).await.map_err(failed)? => Ok(()),
                        Some(_) => Err(taken()),
                    };
                }
                Failure::Lost(..) => match pauses.next() {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(failed(failure)),
                },
                failure => return Err(failed(failure)),
            }
        }
    }

    /// Whether two names are of one file. The protocol does not show a file's identity, but a time set under
    /// one name shows under the other. A renamed file has only the new name.
    async fn is_same(&self, temporary: &str, target: &str, links: bool) -> Result<bool, Failure> {
        let Some(_) = self.pool.look(target).await? else { return Ok(false) };
        if !links {
            return Ok(self.pool.look(temporary).await?.is_none());
        }
        let (_, mtime) = self.pool.times(temporary).await?;
        let mut random = [0; 4];
        getrandom::fill(&mut random)
            .map_err(|error| Failure::Lost(RemoteCause::Other, format!("no random numbers: {error}")))?;
        // A time long past (before 2005), so that nothing else was read then.
        let mark = u32::from_le_bytes(random) >> 2;
        self.pool.set_times(temporary, mark, mtime).await?;
        Ok(self.pool.times(target).await?.0 == mark)
    }

    /// Sets the object's time to when it appeared, instead of when its last byte was written, which may be
    /// another day if we were stopped in between.
    async fn bring_up_to_date(&self, target: &str) -> Result<(), Failure> {
        let now = self.now_s().await?;
        self.pool.set_times(target, now, now).await
    }
}

impl Upload for SftpUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        store.runtime.block_on(async {
            match self.file.append(bytes).await {
                Ok(()) => Ok(()),
                Err(failure) => Err(store.write_error(failure, &self.path).await),
            }
        })
    }

    fn finish(mut self: Box<Self>) -> Result<ObjectInfo, StoreError> {
        let store = Arc::clone(&self.store);
        store.runtime.block_on(async {
            let closed = self.file.close().await;
            let written = Instant::now();
            match closed {
                Ok(size) => store.publish(self.file.path(), &self.path, size, written).await,
                Err(failure) => Err(store.write_error(failure, &self.path).await),
            }
        })
    }
}

impl Drop for SftpUpload {
    fn drop(&mut self) {
        let runtime = Arc::clone(&self.store.runtime);
        runtime.block_on(self.file.discard(&self.store));
    }
}
