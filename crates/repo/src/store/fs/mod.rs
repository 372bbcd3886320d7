//! A directory as a store.
//!
//! - An object is written under `.tmp/`, made durable, and only then given its name, without replacing
//!   (`renameat2` with `RENAME_NOREPLACE`, or `link` where the file system lacks it);
//!   then the folder is made durable.
//! - The time of an object is its `ctime`, the moment when it got its name. `mtime` would be that of the last
//!   write: if the process was frozen between the two, the object would appear with an age.
//! - If making the folder durable fails, the object has its name, and might lose it in a crash:
//!   from then on [`head`](Store::head) returns it only once the folder is durable after all.
//! - Folders that a deletion leaves empty are removed, unless the store
//!   [keeps](FsStore::create_keeping_folders) them; an upload that loses its folder that way makes it again.
//! - Below the root no link is followed, whatever is made, read or deleted ([`folder`]).
//! - What root makes in a directory of another user is given to that user: otherwise one
//!   `sudo holdfast prune` would keep them from reading their own repository.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use holdfast_pipe::lock::lock;
use rustix::{
    fs::{Advice, Gid, Uid, fadvise, statvfs},
    io::Errno,
    process::geteuid,
};

use self::{
    append::Appender,
    folder::{Entry, Folder},
};
use super::{
    ObjectInfo, ObjectPath, Store, StoreError, StoreErrorKind, Upload,
    landmark::{Landmark, is_gone},
    layout::{TEMPORARY, is_temporary_name, may_hold_objects, split, temporary_name},
};

mod append;
mod folder;

/// How often to make a vanished folder again before giving up.
const FOLDER_ATTEMPTS: u32 = 5;

/// A directory whose files are the objects.
pub struct FsStore {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    /// The owner of what is made, if it is not the user who makes it.
    owner: Option<(Uid, Gid)>,
    landmark: Landmark,
    /// Whether folders that a deletion leaves empty stay.
    keeps_folders: bool,
    /// Folders known to exist durably.
    durable_folders: Mutex<HashSet<PathBuf>>,
    /// Folders in which an object may have got its name without the folder having become durable.
    doubtful_folders: Mutex<HashSet<PathBuf>>,
    /// Makes the names in a folder durable.
    sync_folder: Box<SyncFolder>,
}

type SyncFolder = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

impl FsStore {
    /// Opens a directory that exists.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::over(root.into(), false, Box::new(sync_folder))
    }

    /// With `sync_folder`, which makes folders durable.
    fn over(root: PathBuf, keeps_folders: bool, sync_folder: Box<SyncFolder>) -> Result<Self, StoreError> {
        let owner = match fs::metadata(&root) {
            Ok(metadata) if metadata.is_dir() => other_owner(&metadata),
            Ok(_) => return Err(io_error(&root, io::Error::from(io::ErrorKind::NotADirectory))),
            Err(error) => return Err(io_error(&root, error)),
        };
        let (durable_folders, doubtful_folders) = (Mutex::default(), Mutex::default());
        let landmark = Landmark::default();
        let inner =
            Inner { root, owner, landmark, keeps_folders, durable_folders, doubtful_folders, sync_folder };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens a directory. Makes it first, durably, if need be.
    pub fn create(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::created(root.into(), false)
    }

    /// As [`create`](Self::create); folders stay when they become empty. For objects that come and go in the
    /// same folders, which would have to be made durable again and again.
    pub fn create_keeping_folders(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::created(root.into(), true)
    }

    fn created(root: PathBuf, keeps_folders: bool) -> Result<Self, StoreError> {
        create_root(&root, &sync_folder).map_err(|e| io_error(&root, e))?;
        Self::over(root, keeps_folders, Box::new(sync_folder))
    }
}

/// The owner to whom root gives what it makes in this directory.
fn other_owner(root: &fs::Metadata) -> Option<(Uid, Gid)> {
    (geteuid().is_root() && root.uid() != 0).then(|| (Uid::from_raw(root.uid()), Gid::from_raw(root.gid())))
}

/// Makes a directory and its missing parents, durably.
fn create_root(root: &Path, sync_folder: &SyncFolder) -> io::Result<()> {
    if root.is_dir() {
        return Ok(());
    }
    let parent = match root.parent().ok_or(io::ErrorKind::NotFound)? {
        parent if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent,
    };
    create_root(parent, sync_folder)?;
    DirBuilder::new().mode(0o700).create(root)?;
    // A directory that exists is taken for durable.
    sync_folder(parent).inspect_err(|_| drop(fs::remove_dir(root)))
}

fn io_error(path: &Path, error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => StoreErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => StoreErrorKind::Exists,
        _ => StoreErrorKind::Io(error),
    };
    StoreError::new(path.display(), kind)
}

/// Whether the medium could not read what it has stored, or the file system found it damaged.
fn is_of_the_medium(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::IO | Errno::UCLEAN | Errno::BADMSG))
}

fn object_error(path: &ObjectPath) -> impl Fn(io::Error) -> StoreError + '_ {
    move |error| StoreError::new(path, io_error(Path::new(""), error).kind)
}

fn appeared_at(metadata: &fs::Metadata) -> SystemTime {
    let nanos = u32::try_from(metadata.ctime_nsec()).unwrap_or(0);
    match u64::try_from(metadata.ctime()) {
        Ok(secs) => UNIX_EPOCH + Duration::new(secs, nanos),
        Err(_) => UNIX_EPOCH,
    }
}

fn info(path: &ObjectPath, metadata: &fs::Metadata) -> ObjectInfo {
    ObjectInfo { path: path.clone(), size_bytes: metadata.len(), created_at: appeared_at(metadata) }
}

fn no_folder(folder: &Path) -> io::Error {
    let what = format!("{} is a link or a file, and should be a folder", folder.display());
    io::Error::new(io::ErrorKind::NotADirectory, what)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A file that no listing shows, in the folder that it was made in, wherever that is by now.
struct Temporary {
    folder: Folder,
    name: String,
}

impl Inner {
    fn file(&self, path: &ObjectPath) -> PathBuf {
        self.root.join(path.as_str())
    }

    /// Calls `act` with the folder and the name of an object that should exist.
    fn in_folder<T>(
        &self,
        path: &ObjectPath,
        act: impl FnOnce(&Folder, &str) -> io::Result<T>,
    ) -> io::Result<T> {
        let (folder, name) = split(path);
        let folder = Folder::find(&self.root, folder)?.ok_or(io::ErrorKind::NotFound)?;
        act(&folder, name)
    }

    fn folders(&self) -> std::sync::MutexGuard<'_, HashSet<PathBuf>> {
        lock(&self.durable_folders)
    }

    /// Makes `folder`, which is below the root, and all its parents, durably.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        if self.folders().contains(folder) {
            return Ok(());
        }
        if folder != self.root
            && let Some(parent) = folder.parent()
        {
            self.make_folder(parent)?;
            let above = self.opened(parent)?;
            let name =
                folder.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
            match above.make_folder(name) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    self.folders().remove(parent);
                    return Err(error);
                }
                Err(_) if above.metadata(name).is_ok_and(|metadata| !metadata.is_dir()) => {
                    return Err(no_folder(folder));
                }
                made => {
                    if let (Ok(()), Some((user, group))) = (made, self.owner) {
                        above.give_folder(name, user, group);
                    }
                    // Another process may have made it and not yet made it durable.
                    (self.sync_folder)(parent)?;
                }
            }
        }
        self.folders().insert(folder.to_owned());
        Ok(())
    }

    /// Opens a folder at or below the root, which was made before.
    fn opened(&self, folder: &Path) -> io::Result<Folder> {
        let below = folder.strip_prefix(&self.root).ok().and_then(Path::to_str);
        let opened = Folder::open(&self.root, below.ok_or(io::ErrorKind::InvalidInput)?);
        opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotADirectory => no_folder(folder),
            _ => error,
        })
    }

    /// Fails if another directory is in the place of the root: the one beneath a mount
    /// point whose file system is gone.
    fn require_landmark(&self) -> io::Result<()> {
        match self.landmark.get() {
            Some(landmark) if fs::symlink_metadata(self.file(&landmark)).is_err() => {
                Err(io::Error::other(is_gone(&landmark, self.root.display())))
            }
            _ => Ok(()),
        }
    }

    /// The error of looking at an object or reading it.
    fn read_error(&self, path: &ObjectPath, error: io::Error) -> StoreError {
        match is_of_the_medium(&error) && self.can_read_landmark() {
            true => StoreError::new(
                path,
                StoreErrorKind::Unreadable { why: error.to_string(), is_archived: false },
            ),
            false => object_error(path)(error),
        }
    }

    /// Whether something else in the repository can be read: it is not all of the file system that fails.
    fn can_read_landmark(&self) -> bool {
        let Some(landmark) = self.landmark.get() else { return false };
        let read = self.in_folder(&landmark, Folder::file).and_then(|file| {
            // From the medium, not from memory.
            fadvise(&file, 0, None, Advice::DontNeed)?;
            file.read_at(&mut [0], 0)
        });
        read.is_ok()
    }

    /// Makes an empty file that no listing shows.
    fn temporary(&self, is_small: bool) -> io::Result<(Temporary, Appender)> {
        self.require_landmark()?;
        let folder = self.root.join(TEMPORARY);
        for attempt in 1.. {
            let name = temporary_name()?;
            let made = self.make_folder(&folder).and_then(|()| {
                let folder = self.opened(&folder)?;
                let file = Appender::create(&folder, &name, is_small)?;
                Ok((folder, file))
            });
            match made {
                Ok((folder, file)) => {
                    if let Some((user, group)) = self.owner {
                        file.give_to(user, group);
                    }
                    return Ok((Temporary { folder, name }, file));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < FOLDER_ATTEMPTS => {
                    self.folders().remove(&folder);
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Gives a durable temporary file its name, durably.
    fn publish(&self, temporary: &Temporary, path: &ObjectPath) -> io::Result<()> {
        let target = self.file(path);
        let folder = target.parent().unwrap_or(&self.root);
        let named = self.give_name(temporary, split(path).1, folder);
        let published = named.and_then(|()| (self.sync_folder)(folder));
        // Whatever else failed, the object may have its name.
        if published.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
            self.doubtful().insert(folder.to_owned());
        }
        published
    }

    fn give_name(&self, temporary: &Temporary, name: &str, folder: &Path) -> io::Result<()> {
        for attempt in 1.. {
            let named = self.make_folder(folder).and_then(|()| {
                temporary.folder.rename_no_replace(&temporary.name, &self.opened(folder)?, name)
            });
            match named {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < FOLDER_ATTEMPTS => {
                    self.forget_folder(folder);
                }
                done => return done,
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn doubtful(&self) -> std::sync::MutexGuard<'_, HashSet<PathBuf>> {
        lock(&self.doubtful_folders)
    }

    /// Makes sure that objects with names in the folder of `file` keep them.
    fn confirm(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().unwrap_or(&self.root);
        // Held throughout, so that a doubt that arises meanwhile is not taken for this one.
        let mut doubtful = self.doubtful();
        if doubtful.contains(folder) {
            (self.sync_folder)(folder)?;
            doubtful.remove(folder);
        }
        Ok(())
    }

    fn forget_folder(&self, folder: &Path) {
        self.folders().retain(|known| !folder.starts_with(known) || *known == self.root);
    }

    /// Removes `folder` and its parents, as far as they are empty.
    fn remove_empty(&self, mut folder: &str) {
        while !folder.is_empty() {
            let (above, name) = folder.rsplit_once('/').unwrap_or(("", folder));
            let removed = Folder::open(&self.root, above).and_then(|above| above.remove_folder(name));
            if removed.is_err() {
                return;
            }
            self.folders().remove(&self.root.join(folder));
            folder = above;
        }
    }

    /// Calls `each` for the objects whose names begin with `prefix`, until it returns `false`.
    fn walk(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<bool, StoreError> {
        let failed = |error| io_error(&self.root.join(prefix), error);
        let Some(folder) = Folder::find(&self.root, prefix).map_err(failed)? else { return Ok(true) };
        for entry in folder.entries().map_err(failed)? {
            let name = format!("{prefix}{}", entry.name);
            if !entry.is_file {
                if may_hold_objects(prefix, &entry.name) && !self.walk(&(name + "/"), each)? {
                    return Ok(false);
                }
                continue;
            }
            let Some(path) = ObjectPath::new(name) else { continue };
            match folder.metadata(&entry.name) {
                Ok(metadata) if metadata.is_file() && !each(info(&path, &metadata)) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(object_error(&path)(error)),
            }
        }
        Ok(true)
    }

    /// The names of the folders below `prefix` that hold objects.
    fn folders_with_objects(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let Some(folder) = Folder::find(&self.root, prefix)? else { return Ok(names) };
        for Entry { name, is_file } in folder.entries()? {
            if !is_file
                && may_hold_objects(prefix, &name)
                && self.holds_objects(&format!("{prefix}{name}/"))?
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Whether any object is below `prefix`.
    fn holds_objects(&self, prefix: &str) -> io::Result<bool> {
        let Some(folder) = Folder::find(&self.root, prefix)? else { return Ok(false) };
        for entry in folder.entries()? {
            let holds = match entry.is_file {
                true => ObjectPath::new(format!("{prefix}{}", entry.name)).is_some(),
                false => {
                    may_hold_objects(prefix, &entry.name)
                        && self.holds_objects(&format!("{prefix}{}/", entry.name))?
                }
            };
            if holds {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

struct FsUpload {
    store: Arc<Inner>,
    path: ObjectPath,
    temporary: Temporary,
    file: Option<Appender>,
}

impl FsUpload {
    fn new(store: &Arc<Inner>, path: &ObjectPath, is_small: bool) -> Result<Self, StoreError> {
        let (temporary, file) = store.temporary(is_small).map_err(object_error(path))?;
        Ok(Self { store: Arc::clone(store), path: path.clone(), temporary, file: Some(file) })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().ok_or(io::ErrorKind::NotFound)?.append(bytes)
    }

    fn complete(&mut self) -> io::Result<fs::Metadata> {
        let file = self.file.take().ok_or(io::ErrorKind::NotFound)?.finish()?;
        self.store.publish(&self.temporary, &self.path)?;
        file.metadata()
    }
}

impl Upload for FsUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.append(bytes).map_err(object_error(&self.path))
    }

    fn finish(mut self: Box<Self>) -> Result<ObjectInfo, StoreError> {
        let metadata = self.complete().map_err(object_error(&self.path))?;
        Ok(info(&self.path, &metadata))
    }
}

impl Drop for FsUpload {
    fn drop(&mut self) {
        // Gone already if it got its name; what a crash leaves is swept later.
        let _ = self.temporary.folder.remove_file(&self.temporary.name);
    }
}

impl Store for FsStore {
    fn location(&self) -> String {
        self.inner.root.display().to_string()
    }

    fn local_root(&self) -> Option<&Path> {
        Some(&self.inner.root)
    }

    fn put(&self, path: &ObjectPath) -> Result<Box<dyn Upload>, StoreError> {
        Ok(Box::new(FsUpload::new(&self.inner, path, false)?))
    }

    fn create_if_absent(&self, path: &ObjectPath, bytes: &[u8]) -> Result<ObjectInfo, StoreError> {
        let mut upload = Box::new(FsUpload::new(&self.inner, path, true)?);
        upload.write(bytes)?;
        upload.finish()
    }

    fn read_exact_at(&self, path: &ObjectPath, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let read =
            self.inner.in_folder(path, Folder::file).and_then(|file| file.read_exact_at(buffer, offset));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let end = offset.saturating_add(buffer.len() as u64);
                StoreError::new(path, StoreErrorKind::ShortRead { end })
            }
            _ => self.inner.read_error(path, error),
        })
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        let metadata = self.inner.in_folder(path, Folder::metadata);
        let metadata = metadata.map_err(|error| self.inner.read_error(path, error))?;
        if metadata.is_file() {
            self.inner.confirm(&self.inner.file(path)).map_err(object_error(path))?;
            self.inner.landmark.saw(path);
            Ok(info(path, &metadata))
        } else {
            Err(StoreError::new(path, StoreErrorKind::NotFound))
        }
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        self.inner.walk(prefix, each).map(|_| ())
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let listed = self.inner.folders_with_objects(prefix);
        listed.map_err(|error| io_error(&self.inner.root.join(prefix), error))
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        self.inner.landmark.forget(paths);
        for path in paths {
            let (folder, name) = split(path);
            let found = Folder::find(&self.inner.root, folder).map_err(object_error(path))?;
            if let Some(found) = found {
                found.remove_file(name).map_err(object_error(path))?;
                drop(found);
                if !self.inner.keeps_folders {
                    self.inner.remove_empty(folder);
                }
            }
        }
        Ok(())
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        let read = || -> io::Result<SystemTime> {
            let (temporary, file) = self.inner.temporary(true)?;
            let now = appeared_at(&file.metadata()?);
            temporary.folder.remove_file(&temporary.name)?;
            Ok(now)
        };
        read().map_err(|e| io_error(&self.inner.root, e))
    }

    fn free_bytes(&self) -> Result<Option<u64>, StoreError> {
        let space = statvfs(&self.inner.root).map_err(|e| io_error(&self.inner.root, e.into()))?;
        Ok(Some(space.f_bavail.saturating_mul(space.f_frsize)))
    }

    fn sweep_uploads(&self, min_age: Duration) -> Result<(), StoreError> {
        let now = self.now()?;
        let sweep = || -> io::Result<()> {
            let Some(folder) = Folder::find(&self.inner.root, TEMPORARY)? else { return Ok(()) };
            for Entry { name, is_file } in folder.entries()? {
                if !is_file || !is_temporary_name(&name) {
                    continue;
                }
                let is_old = match folder.metadata(&name) {
                    Ok(metadata) => {
                        now.duration_since(appeared_at(&metadata)).is_ok_and(|age| age >= min_age)
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                    Err(error) => return Err(error),
                };
                if is_old {
                    folder.remove_file(&name)?;
                }
            }
            Ok(())
        };
        sweep().map_err(|e| io_error(&self.inner.root.join(TEMPORARY), e))
    }
}

#[cfg(test)]
mod tests;
