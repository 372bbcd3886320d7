//! Operations on files and folders of the other host, each of which may be done twice.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::{StreamExt, stream};
use russh_sftp::{
    client::error::Error as SftpError,
    protocol::{FileAttributes, OpenFlags, StatusCode},
};

use super::{
    connection::{Connection, Failure},
    pool::Pool,
};

/// Bytes to request, or to send, before the first answer must have come.
pub(super) const WINDOW_BYTES: usize = 4 << 20;
/// Permissions that let only the owner read.
pub(super) const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// A file or folder, as the server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) is_file: bool,
    pub(super) is_folder: bool,
    pub(super) size_bytes: u64,
    pub(super) changed_at: SystemTime,
}

impl From<&FileAttributes> for Found {
    fn from(attributes: &FileAttributes) -> Self {
        let kind = attributes.file_type();
        Self {
            is_file: kind.is_file(),
            is_folder: kind.is_dir(),
            size_bytes: attributes.size.unwrap_or(0),
            changed_at: UNIX_EPOCH + Duration::from_secs(u64::from(attributes.mtime.unwrap_or(0))),
        }
    }
}

pub(super) fn mode(permissions: u32) -> FileAttributes {
    FileAttributes { permissions: Some(permissions), ..FileAttributes::empty() }
}

fn is_end(error: &SftpError) -> bool {
    matches!(error, SftpError::Status(status) if status.status_code == StatusCode::Eof)
}

/// Turns "not found" into `None`.
fn found<T>(result: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(Failure::NotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}

impl Pool {
    /// What has this name, without following a link.
    pub(super) async fn look(&self, path: &str) -> Result<Option<Found>, Failure> {
        let look = |it: Arc<Connection>| async move {
            let attributes = it.session.lstat(path).await.map_err(|error| it.failure(error))?;
            Ok(Found::from(&attributes.attrs))
        };
        found(self.repeat(look).await)
    }

    /// What has this name, following links.
    pub(super) async fn look_through(&self, path: &str) -> Result<Option<Found>, Failure> {
        let look = |it: Arc<Connection>| async move {
            let attributes = it.session.stat(path).await.map_err(|error| it.failure(error))?;
            Ok(Found::from(&attributes.attrs))
        };
        found(self.repeat(look).await)
    }

    /// The names in a folder, unsorted; `None` if there is none.
    pub(super) async fn entries(&self, folder: &str) -> Result<Option<Vec<(String, Found)>>, Failure> {
        let read = |it: Arc<Connection>| async move {
            let opened = it.session.opendir(folder).await.map_err(|error| it.failure(error))?;
            let mut entries = Vec::new();
            let ended = loop {
                match it.session.readdir(opened.handle.as_str()).await {
                    Ok(page) => entries.extend(
                        page.files
                            .into_iter()
                            .filter(|file| !matches!(file.filename.as_str(), "." | ".."))
                            .map(|file| (file.filename, Found::from(&file.attrs))),
                    ),
                    Err(error) if is_end(&error) => break Ok(entries),
                    Err(error) => break Err(it.failure(error)),
                }
            };
            let closed = it.session.close(opened.handle).await;
            let entries = ended?;
            closed.map_err(|error| it.failure(error))?;
            Ok(entries)
        };
        found(self.repeat(read).await)
    }

    /// Fills `buffer` from `offset`; `false` if the file ends before.
    pub(super) async fn read(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<bool, Failure> {
        let len = buffer.len();
        let read = |it: Arc<Connection>| async move {
            let handle = open(&it, path).await?;
            let blocks = read_blocks(&it, &handle, offset, len).await;
            close(it, handle);
            blocks
        };
        let Some(blocks) = self.repeat(read).await? else { return Ok(false) };
        for (target, block) in buffer.chunks_mut(blocks.size_bytes).zip(blocks.bytes) {
            let Some(block) = block.get(..target.len()) else { return Ok(false) };
            target.copy_from_slice(block);
        }
        Ok(true)
    }

    /// Reads a whole file, if it is not too large. A file of one block takes two round trips.
    pub(super) async fn read_whole(&self, path: &str, limit_bytes: u64) -> Result<Whole, Failure> {
        let read = |it: Arc<Connection>| async move {
            let handle = open(&it, path).await?;
            let whole = read_whole(&it, &handle, limit_bytes).await;
            close(it, handle);
            whole
        };
        self.repeat(read).await
    }

    /// Removes a file; a file that is already gone counts as removed.
    pub(super) async fn remove(&self, path: &str) -> Result<(), Failure> {
        let remove = |it: Arc<Connection>| async move {
            it.session.remove(path).await.map(drop).map_err(|error| it.failure(error))
        };
        found(self.repeat(remove).await).map(drop)
    }

    /// Removes a folder if it is empty.
    pub(super) async fn remove_folder(&self, path: &str) -> Result<(), Failure> {
        let remove = |it: Arc<Connection>| async move {
            it.session.rmdir(path).await.map(drop).map_err(|error| it.failure(error))
        };
        self.repeat(remove).await
    }

    /// Makes a folder whose parent exists, unless the folder exists.
    pub(super) async fn make_folder(&self, path: &str) -> Result<(), Failure> {
        let make = |it: Arc<Connection>| async move {
            let made = it.session.mkdir(path, mode(FOLDER_MODE)).await;
            made.map(drop).map_err(|error| it.failure(error))
        };
        match self.repeat(make).await {
            // The protocol has no status for "exists already".
            Err(failure @ Failure::Refused(..)) => match self.look_through(path).await? {
                Some(found) if found.is_folder => Ok(()),
                _ => Err(failure),
            },
            done => done,
        }
    }

    /// Makes the names in a folder durable, if the server can: a folder can be opened for reading like a
    /// file.
    pub(super) async fn sync_folder(&self, path: &str) -> Result<(), Failure> {
        let sync = |it: Arc<Connection>| async move {
            if !it.can.fsync {
                return Ok(());
            }
            let opened = match it.session.open(path, OpenFlags::READ, FileAttributes::empty()).await {
                Ok(opened) => opened,
                Err(error) => match it.failure(error) {
                    // This server does not open folders, so its host has to be trusted with them.
                    Failure::Refused(..) => return Ok(()),
                    failure => return Err(failure),
                },
            };
            let synced = it.session.fsync(opened.handle.as_str()).await;
            let closed = it.session.close(opened.handle).await;
            synced.map_err(|error| it.failure(error))?;
            closed.map(drop).map_err(|error| it.failure(error))
        };
        self.repeat(sync).await
    }

    /// Sets the times of a file.
    pub(super) async fn set_times(&self, path: &str, atime: u32, mtime: u32) -> Result<(), Failure> {
        let set = |it: Arc<Connection>| async move {
            let times = FileAttributes { atime: Some(atime), mtime: Some(mtime), ..FileAttributes::empty() };
            it.session.setstat(path, times).await.map(drop).map_err(|error| it.failure(error))
        };
        self.repeat(set).await
    }

    /// The times of a file: of its last access and its last change.
    pub(super) async fn times(&self, path: &str) -> Result<(u32, u32), Failure> {
        let look = |it: Arc<Connection>| async move {
            let attributes = it.session.lstat(path).await.map_err(|error| it.failure(error))?.attrs;
            Ok((attributes.atime.unwrap_or(0), attributes.mtime.unwrap_or(0)))
        };
        self.repeat(look).await
    }

    /// Bytes that can still be written; `None` if the server does not say.
    pub(super) async fn free_bytes(&self, path: &str) -> Result<Option<u64>, Failure> {
        let ask = |it: Arc<Connection>| async move {
            if !it.can.statvfs {
                return Ok(None);
            }
            let space = it.session.statvfs(path).await.map_err(|error| it.failure(error))?;
            Ok(Some(space.blocks_avail.saturating_mul(space.fragment_size)))
        };
        self.repeat(ask).await
    }
}

async fn open(it: &Connection, path: &str) -> Result<String, Failure> {
    let opened = it.session.open(path, OpenFlags::READ, FileAttributes::empty()).await;
    Ok(opened.map_err(|error| it.failure(error))?.handle)
}

/// Closes a file that was read. Nobody waits for it, and a failure means nothing.
fn close(it: Arc<Connection>, handle: String) {
    tokio::spawn(async move {
        if let Err(error) = it.session.close(handle).await {
            it.failure(error);
        }
    });
}

/// The outcome of reading a whole file.
pub(super) enum Whole {
    Bytes(Vec<u8>),
    /// The file has this many bytes.
    TooLarge(u64),
    /// The file ended before this many bytes, its size.
    Short(u64),
}

async fn read_whole(it: &Connection, handle: &str, limit_bytes: u64) -> Result<Whole, Failure> {
    let first = usize::try_from(limit_bytes).unwrap_or(usize::MAX).min(it.read_bytes);
    let asked = u32::try_from(first).unwrap_or(u32::MAX);
    let (found, begin) = tokio::join!(it.session.fstat(handle), it.session.read(handle, 0, asked));
    let size_bytes = found.map_err(|error| it.failure(error))?.attrs.size.unwrap_or(0);
    let Some(size) = usize::try_from(size_bytes).ok().filter(|_| size_bytes <= limit_bytes) else {
        return Ok(Whole::TooLarge(size_bytes));
    };
    let mut bytes = match begin {
        Ok(begin) => begin.data,
        Err(error) if is_end(&error) => Vec::new(),
        Err(error) => return Err(it.failure(error)),
    };
    bytes.truncate(size);
    let Some(rest) = read_blocks(it, handle, bytes.len() as u64, size - bytes.len()).await? else {
        return Ok(Whole::Short(size_bytes));
    };
    bytes.reserve_exact(size - bytes.len());
    bytes.extend(rest.bytes.into_iter().flatten());
    Ok(Whole::Bytes(bytes))
}

struct Blocks {
    size_bytes: usize,
    bytes: Vec<Vec<u8>>,
}

/// All blocks of a range, requested at once as far as the window allows; `None` if the file ends before.
async fn read_blocks(
    it: &Connection,
    handle: &str,
    offset: u64,
    len: usize,
) -> Result<Option<Blocks>, Failure> {
    let size_bytes = it.read_bytes;
    let at_once = (WINDOW_BYTES / size_bytes).max(1);
    let starts = (0..len).step_by(size_bytes);
    let mut answers = stream::iter(starts)
        .map(|start| read_block(it, handle, offset + start as u64, size_bytes.min(len - start)))
        .buffered(at_once);
    let mut bytes = Vec::with_capacity(len.div_ceil(size_bytes));
    while let Some(block) = answers.next().await {
        match block? {
            Some(block) => bytes.push(block),
            None => return Ok(None),
        }
    }
    drop(answers);
    Ok(Some(Blocks { size_bytes, bytes }))
}

/// One block; a server may return less at once than was requested.
async fn read_block(
    it: &Connection,
    handle: &str,
    offset: u64,
    len: usize,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut block: Vec<u8> = Vec::new();
    while block.len() < len {
        let wanted = u32::try_from(len - block.len()).unwrap_or(u32::MAX);
        match it.session.read(handle, offset + block.len() as u64, wanted).await {
            Ok(answer) if answer.data.is_empty() => return Ok(None),
            Ok(answer) if block.is_empty() => block = answer.data,
            Ok(answer) => block.extend_from_slice(&answer.data),
            Err(error) if is_end(&error) => return Ok(None),
            Err(error) => return Err(it.failure(error)),
        }
    }
    block.truncate(len);
    Ok(Some(block))
}
