//! A directory as a store.
//!
//! - An object is written under `.tmp/`, made durable, and only then given its name, without replacing (`renameat2`
//!   with `RENAME_NOREPLACE`, or `link` where the file system lacks it); then the folder is made durable.
//! - The time of an object is its `ctime`, the moment at which it got its name. `mtime` would be the moment of the last
//!   write: of a process that was frozen between the two, the object would appear with an age.
//! - Where that last step fails the object has its name, and might lose it in a crash: from then on whoever asks for it
//!   hears of it only once the folder is durable after all.
//! - Folders that deletion leaves empty are removed; an upload that loses its folder so makes it again.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};

use self::append::Appender;
use super::{ObjectInfo, ObjectPath, Store, StoreError, StoreErrorKind, Upload};

mod append;

const TEMPORARY: &str = ".tmp";
/// A file system's own folder, where the store is the root of one.
const LOST_AND_FOUND: &str = "lost+found";
/// How often a vanished folder is made again before giving up.
const FOLDER_ATTEMPTS: u32 = 5;

/// A directory whose files are the objects.
pub struct FsStore {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    /// Folders known to exist durably.
    durable_folders: Mutex<HashSet<PathBuf>>,
    /// Folders in which an object may have got its name without their having become durable.
    doubtful_folders: Mutex<HashSet<PathBuf>>,
    /// Makes the names in a folder durable.
    sync_folder: Box<SyncFolder>,
}

type SyncFolder = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

impl FsStore {
    /// Opens a directory that exists.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        match fs::metadata(&root) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(io_error(&root, io::Error::from(io::ErrorKind::NotADirectory))),
            Err(error) => return Err(io_error(&root, error)),
        }
        Ok(Self::over(root, Box::new(sync_folder)))
    }

    fn over(root: PathBuf, sync_folder: Box<SyncFolder>) -> Self {
        let (durable_folders, doubtful_folders) = (Mutex::default(), Mutex::default());
        Self { inner: Arc::new(Inner { root, durable_folders, doubtful_folders, sync_folder }) }
    }

    /// Opens a directory, and makes it first if need be.
    pub fn create(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(|e| io_error(&root, e))?;
        Self::open(root)
    }
}

fn io_error(path: &Path, error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => StoreErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => StoreErrorKind::Exists,
        _ => StoreErrorKind::Io(error),
    };
    StoreError::new(path.display(), kind)
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

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Gives `from` the name `to` unless it is taken.
fn rename_no_replace(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Whether any object is below `folder`.
fn holds_objects(folder: &Path) -> io::Result<bool> {
    for entry in read_folder(folder)? {
        if entry.is_file || holds_objects(&folder.join(&entry.name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

struct Entry {
    name: String,
    is_file: bool,
}

impl Entry {
    /// Folders sort where the names below them do.
    fn sort_key(&self) -> impl Iterator<Item = u8> + '_ {
        self.name.bytes().chain((!self.is_file).then_some(b'/'))
    }
}

/// Files and folders in the order of the names of objects; links and other strangers are not seen. A folder that does
/// not exist is empty.
fn read_folder(folder: &Path) -> io::Result<Vec<Entry>> {
    let reader = match fs::read_dir(folder) {
        Ok(reader) => reader,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut entries = Vec::new();
    for entry in reader {
        let entry = entry?;
        let file_type = match entry.file_type() {
            Ok(file_type) => file_type,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let Ok(name) = entry.file_name().into_string() else { continue };
        if file_type.is_file() || file_type.is_dir() {
            entries.push(Entry { name, is_file: file_type.is_file() });
        }
    }
    entries.sort_by(|a, b| a.sort_key().cmp(b.sort_key()));
    Ok(entries)
}

impl Inner {
    fn file(&self, path: &ObjectPath) -> PathBuf {
        self.root.join(path.as_str())
    }

    fn folders(&self) -> std::sync::MutexGuard<'_, HashSet<PathBuf>> {
        self.durable_folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `folder`, below the root, and everything on the way to it, durably.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        if self.folders().contains(folder) {
            return Ok(());
        }
        if folder != self.root
            && let Some(parent) = folder.parent()
        {
            self.make_folder(parent)?;
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    self.folders().remove(parent);
                    return Err(error);
                }
                // Another process may have made it and not yet made it durable.
                _ => (self.sync_folder)(parent)?,
            }
        }
        self.folders().insert(folder.to_owned());
        Ok(())
    }

    /// An empty file that no listing shows.
    fn temporary(&self, is_small: bool) -> io::Result<(PathBuf, Appender)> {
        let folder = self.root.join(TEMPORARY);
        for attempt in 1.. {
            self.make_folder(&folder)?;
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            let path = folder.join(format!("{:032x}", u128::from_le_bytes(random)));
            match Appender::create(&path, is_small) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < FOLDER_ATTEMPTS => {
                    self.folders().remove(&folder);
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Gives a durable temporary file its name, durably.
    fn publish(&self, temporary: &Path, path: &ObjectPath) -> io::Result<()> {
        let target = self.file(path);
        let folder = target.parent().unwrap_or(&self.root);
        let named = self.give_name(temporary, &target, folder);
        let published = named.and_then(|()| (self.sync_folder)(folder));
        // Whatever else failed, the object may have its name.
        if published.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
            self.doubtful().insert(folder.to_owned());
        }
        published
    }

    fn give_name(&self, temporary: &Path, target: &Path, folder: &Path) -> io::Result<()> {
        for attempt in 1.. {
            self.make_folder(folder)?;
            match rename_no_replace(temporary, target) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < FOLDER_ATTEMPTS => {
                    self.forget_folder(folder);
                }
                done => return done,
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn doubtful(&self) -> std::sync::MutexGuard<'_, HashSet<PathBuf>> {
        self.doubtful_folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that what has a name in the folder of `file` keeps it.
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

    /// Removes `folder` and those above it as far as they are empty.
    fn remove_empty(&self, mut folder: &Path) {
        while folder != self.root && fs::remove_dir(folder).is_ok() {
            self.folders().remove(folder);
            let Some(parent) = folder.parent() else { return };
            folder = parent;
        }
    }

    fn walk(
        &self,
        folder: &Path,
        prefix: &str,
        each: &mut dyn FnMut(ObjectInfo) -> bool,
    ) -> Result<bool, StoreError> {
        for entry in read_folder(folder).map_err(|e| io_error(folder, e))? {
            let name = format!("{prefix}{}", entry.name);
            if !entry.is_file {
                if !is_own_folder(prefix, &entry.name)
                    && !self.walk(&folder.join(&entry.name), &(name + "/"), each)?
                {
                    return Ok(false);
                }
                continue;
            }
            let Some(path) = ObjectPath::new(name) else { continue };
            match fs::symlink_metadata(self.file(&path)) {
                Ok(metadata) if !each(info(&path, &metadata)) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(object_error(&path)(error)),
            }
        }
        Ok(true)
    }
}

/// Folders at the root that hold no objects.
fn is_own_folder(prefix: &str, name: &str) -> bool {
    prefix.is_empty() && matches!(name, TEMPORARY | LOST_AND_FOUND)
}

struct FsUpload {
    store: Arc<Inner>,
    path: ObjectPath,
    temporary: PathBuf,
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
        let _ = fs::remove_file(&self.temporary);
    }
}

impl Store for FsStore {
    fn location(&self) -> String {
        self.inner.root.display().to_string()
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
        let file = File::open(self.inner.file(path)).map_err(object_error(path))?;
        file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let end = offset.saturating_add(buffer.len() as u64);
                StoreError::new(path, StoreErrorKind::ShortRead { end })
            }
            _ => object_error(path)(error),
        })
    }

    fn head(&self, path: &ObjectPath) -> Result<ObjectInfo, StoreError> {
        let file = self.inner.file(path);
        let metadata = fs::symlink_metadata(&file).map_err(object_error(path))?;
        if metadata.is_file() {
            self.inner.confirm(&file).map_err(object_error(path))?;
            Ok(info(path, &metadata))
        } else {
            Err(StoreError::new(path, StoreErrorKind::NotFound))
        }
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(ObjectInfo) -> bool) -> Result<(), StoreError> {
        self.inner.walk(&self.inner.root.join(prefix), prefix, each).map(|_| ())
    }

    fn list_folders(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let folder = self.inner.root.join(prefix);
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in read_folder(&folder)? {
                if !entry.is_file
                    && !is_own_folder(prefix, &entry.name)
                    && holds_objects(&folder.join(&entry.name))?
                {
                    names.push(entry.name);
                }
            }
            Ok(names)
        };
        list().map_err(|e| io_error(&folder, e))
    }

    fn delete(&self, paths: &[ObjectPath]) -> Result<(), StoreError> {
        for path in paths {
            let file = self.inner.file(path);
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(object_error(path)(error));
                }
                _ => {}
            }
            if let Some(folder) = file.parent() {
                self.inner.remove_empty(folder);
            }
        }
        Ok(())
    }

    fn now(&self) -> Result<SystemTime, StoreError> {
        let read = || -> io::Result<SystemTime> {
            let (path, file) = self.inner.temporary(true)?;
            let now = appeared_at(&file.metadata()?);
            fs::remove_file(path)?;
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
        let folder = self.inner.root.join(TEMPORARY);
        let sweep = || -> io::Result<()> {
            for entry in read_folder(&folder)?.into_iter().filter(|entry| entry.is_file) {
                let path = folder.join(entry.name);
                let old = |metadata: &fs::Metadata| {
                    now.duration_since(appeared_at(metadata)).is_ok_and(|age| age >= min_age)
                };
                match fs::metadata(&path) {
                    Ok(metadata) if old(&metadata) => fs::remove_file(&path).or_else(ignore_missing)?,
                    Ok(_) => {}
                    Err(error) => ignore_missing(error)?,
                }
            }
            Ok(())
        };
        sweep().map_err(|e| io_error(&folder, e))
    }
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::PermissionsExt,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use crate::{
        keys::Protection,
        names::{Kind, LogName},
        repo::Repo,
        run::{Ending, Run, RunOptions},
        store::conformance,
    };

    fn path(name: &str) -> ObjectPath {
        ObjectPath::new(name).unwrap()
    }

    #[test]
    fn a_directory_is_a_store() {
        let folder = tempfile::tempdir().unwrap();
        let mut count = 0;
        conformance::check(|| {
            count += 1;
            Arc::new(FsStore::create(folder.path().join(count.to_string())).unwrap())
        });
    }

    #[test]
    fn only_the_owner_can_read_objects() {
        let folder = tempfile::tempdir().unwrap();
        let store = FsStore::create(folder.path().join("repo")).unwrap();
        store.create_if_absent(&path("a/b"), b"x").unwrap();
        let mode = |name| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("repo"), 0o700);
        assert_eq!(mode("repo/a"), 0o700);
        assert_eq!(mode("repo/a/b"), 0o600);
    }

    #[test]
    fn a_large_object_arrives_whole() {
        let folder = tempfile::tempdir().unwrap();
        let store = FsStore::create(folder.path()).unwrap();
        let mut upload = store.put(&path("packs/1")).unwrap();
        let block: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 251) as u8).collect();
        for _ in 0..20 {
            upload.write(&block).unwrap();
        }
        assert_eq!(upload.finish().unwrap().size_bytes, 20 * block.len() as u64);
        let mut again = vec![0; block.len()];
        for i in 0..20 {
            store.read_exact_at(&path("packs/1"), i * block.len() as u64, &mut again).unwrap();
            assert!(again == block, "block {i}");
        }
    }

    #[test]
    fn what_interrupted_uploads_left_is_swept_by_age() {
        let folder = tempfile::tempdir().unwrap();
        let store = FsStore::create(folder.path()).unwrap();
        let upload = store.put(&path("a")).unwrap();
        std::mem::forget(upload);
        let left = || fs::read_dir(folder.path().join(TEMPORARY)).unwrap().count();
        store.sweep_uploads(Duration::from_secs(3600)).unwrap();
        assert_eq!(left(), 1);
        store.sweep_uploads(Duration::ZERO).unwrap();
        assert_eq!(left(), 0);
    }

    #[test]
    fn an_upload_survives_the_removal_of_its_empty_folder() {
        let folder = tempfile::tempdir().unwrap();
        let store = FsStore::create(folder.path()).unwrap();
        store.create_if_absent(&path("a/b/c"), b"x").unwrap();
        let upload = store.put(&path("a/b/d")).unwrap();
        store.delete(&[path("a/b/c")]).unwrap();
        assert!(!folder.path().join("a").exists());
        // Another process, which does not tell us.
        store.inner.make_folder(&folder.path().join("a/b")).unwrap();
        fs::remove_dir(folder.path().join("a/b")).unwrap();
        fs::remove_dir(folder.path().join("a")).unwrap();
        upload.finish().unwrap();
        assert_eq!(store.head(&path("a/b/d")).unwrap().size_bytes, 0);
    }

    /// As a store, and as a run that looks what became of its outcome.
    #[test]
    fn what_was_published_without_becoming_durable_is_not_taken_for_done() {
        let folder = tempfile::tempdir().unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let failing = Arc::clone(&fails);
        let sync = move |folder: &Path| match failing.load(Ordering::SeqCst) && folder.ends_with("outcomes") {
            true => Err(io::Error::other("injected fault")),
            false => sync_folder(folder),
        };
        let store = Arc::new(FsStore::over(folder.path().to_owned(), Box::new(sync)));
        let repo = Arc::new(Repo::init(Arc::<FsStore>::clone(&store), &Protection::None).unwrap());
        let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
        let options = RunOptions { renew_every: None, ..RunOptions::of_this_process() };
        let mut run = Run::begin(&repo, &log, &options).unwrap();
        let end = |run: &mut Run| run.finish(Ending::Expire { dropped: Vec::new() });
        let outcome = log.outcome(run.no());

        fails.store(true, Ordering::SeqCst);
        end(&mut run).unwrap_err();
        assert!(folder.path().join(outcome.as_str()).exists());
        assert!(!store.head(&outcome).unwrap_err().is_not_found());
        // Trying again finds what the first attempt has left, and knows no more of it.
        end(&mut run).unwrap_err();

        fails.store(false, Ordering::SeqCst);
        end(&mut run).unwrap();
        store.head(&outcome).unwrap();
    }

    #[test]
    fn links_and_strangers_are_no_objects() {
        let folder = tempfile::tempdir().unwrap();
        let store = FsStore::create(folder.path()).unwrap();
        fs::create_dir(folder.path().join(LOST_AND_FOUND)).unwrap();
        fs::write(folder.path().join(LOST_AND_FOUND).join("x"), b"").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let mut seen = Vec::new();
        store
            .list("", &mut |object| {
                seen.push(object.path);
                true
            })
            .unwrap();
        assert_eq!(seen, []);
        assert_eq!(store.list_folders("").unwrap(), Vec::<String>::new());
    }
}
