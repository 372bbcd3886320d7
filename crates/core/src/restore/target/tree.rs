//! An open directory, and what is below it.

use std::{
    collections::BTreeMap,
    ffi::{CStr, OsStr},
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
};

use holdfast_repo::format::item::ItemPath;
use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Statx, StatxAttributes, StatxFlags, Uid,
        chownat, fchown, fstatvfs, mkdirat, openat2, readlinkat, renameat, statat, statx, symlinkat, syncfs,
        unlinkat,
    },
    io::Errno,
    process::{FlockType, fcntl_getlk},
};

use super::io_error::io_failed;
use crate::{error::Error, foreign_files::is_foreign};

/// An open directory.
pub(in crate::restore) struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

/// Something below a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::restore) struct Found {
    pub(in crate::restore) kind: FoundKind,
    pub(in crate::restore) size_bytes: u64,
    /// Bytes that it really takes on disk.
    pub(in crate::restore) allocated_bytes: u64,
    /// How many names the file has. A file with several names must not be changed in place:
    /// it belongs to somebody else as well.
    pub(in crate::restore) links: u64,
    /// When it was last written to, in nanoseconds.
    pub(super) modified_ns: i128,
    /// Of a directory: whether it cannot be removed, because it is the root of a filesystem, or has
    /// `lost+found` as if it were. Only [`Tree::walk`] tells.
    pub(in crate::restore) is_fixed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::restore) enum FoundKind {
    File,
    Directory,
    /// A link, socket, pipe or device: never followed and never written to, only removed.
    Other,
}

impl Found {
    fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FoundKind::File,
            FileType::Directory => FoundKind::Directory,
            _ => FoundKind::Other,
        };
        #[allow(clippy::unnecessary_cast, reason = "narrower on other architectures")]
        let (links, modified_s) = (stat.st_nlink as u64, stat.st_mtime as i128);
        Self {
            kind,
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            allocated_bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            links,
            modified_ns: modified_s * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
            is_fixed: false,
        }
    }

    /// What is at a path of this host; `None` if nothing. A link is not followed.
    pub(in crate::restore) fn at(path: &Path) -> io::Result<Option<Self>> {
        match rustix::fs::lstat(path) {
            Ok(stat) => Ok(Some(Self::of(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether nobody has written to it in between. Anything else may change by itself: to open a file of an
    /// image for writing, as taking locks does, makes overlayfs copy it.
    pub(in crate::restore) fn is_unchanged(&self, since: &Self) -> bool {
        let told = |found: &Self| (found.kind, found.size_bytes, found.modified_ns);
        told(self) == told(since)
    }
}

/// Room in a filesystem, for the user who restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::restore) struct Room {
    pub(in crate::restore) free_bytes: u64,
    /// Tells filesystems apart.
    pub(in crate::restore) device: u64,
}

impl Tree {
    /// Opens an existing directory. The last part of `path` may be a link: it is the user's.
    pub(in crate::restore) fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let root = File::open(&path)?;
        if !root.metadata()?.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        Ok(Self { root: root.into(), path })
    }

    /// Where it is.
    pub(in crate::restore) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of something below it, to be named in a message or handed to a server.
    pub(in crate::restore) fn path_of(&self, path: &ItemPath) -> PathBuf {
        self.path.join(OsStr::from_bytes(path.as_bytes()))
    }

    fn resolve(&self, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        loop {
            let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
            match openat2(&self.root, OsStr::from_bytes(path), flags, mode, resolve) {
                // A rename elsewhere in the tree, or a signal.
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    /// The directory that contains `path`, and the last part of `path`.
    fn parent<'a>(&self, path: &'a ItemPath) -> io::Result<(OwnedFd, &'a OsStr)> {
        let bytes = path.as_bytes();
        let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&bytes[..slash], &bytes[slash + 1..]),
            None => (&b"."[..], bytes),
        };
        let parent = self.resolve(parent, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok((parent, OsStr::from_bytes(name)))
    }

    /// Makes a directory, and missing ones above it. An existing one is fine.
    pub(in crate::restore) fn create_dir(&self, path: &ItemPath, mode: u16) -> io::Result<()> {
        let bytes = path.as_bytes();
        let ends = bytes.iter().enumerate().filter_map(|(at, byte)| (*byte == b'/').then_some(at));
        for end in ends.chain([bytes.len()]) {
            let above = ItemPath::new(&bytes[..end]).map_err(io::Error::other)?;
            // Directories above get the usual mode; the server needs to search them, others do not.
            let mode = if end == bytes.len() { mode } else { DIRECTORY_MODE };
            let (parent, name) = self.parent(&above)?;
            let mode = permissions(mode | OWNER_OF_DIRECTORY);
            let made = mkdirat(&parent, name, mode);
            if let Err(error) = made
                && error != Errno::EXIST
            {
                return Err(error.into());
            }
            let directory =
                self.resolve(above.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            if made.is_ok() {
                // The process's umask has removed bits.
                rustix::fs::fchmod(directory, mode)?;
            }
        }
        Ok(())
    }

    /// Makes the directory that contains `path`.
    pub(in crate::restore) fn create_parent(&self, path: &ItemPath) -> io::Result<()> {
        match path.as_bytes().iter().rposition(|byte| *byte == b'/') {
            Some(slash) => {
                let parent = ItemPath::new(&path.as_bytes()[..slash]).map_err(io::Error::other)?;
                self.create_dir(&parent, DIRECTORY_MODE)
            }
            None => Ok(()),
        }
    }

    /// Makes a file. Nothing of that name may exist.
    pub(in crate::restore) fn create_file(&self, path: &ItemPath, mode: u16) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = permissions(mode | OWNER_OF_FILE);
        let file = self.resolve(path.as_bytes(), flags, mode)?;
        rustix::fs::fchmod(&file, mode)?;
        Ok(file.into())
    }

    /// Opens a regular file for reading and writing; `None` if there is none.
    pub(in crate::restore) fn open_file(&self, path: &ItemPath) -> io::Result<Option<File>> {
        // Without waiting for a writer, should it be a pipe.
        let file: File = match self.resolve(path.as_bytes(), OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) => file.into(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("is not a regular file"));
        }
        Ok(Some(file))
    }

    /// Whether an open file is the one at `path`.
    pub(in crate::restore) fn is_at(&self, file: &File, path: &ItemPath) -> io::Result<bool> {
        let (parent, name) = self.parent(path)?;
        match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let open = rustix::fs::fstat(file)?;
                Ok((stat.st_dev, stat.st_ino) == (open.st_dev, open.st_ino))
            }
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether another process has a lock on a file. A file that we may not read counts as unlocked: it
    /// belongs to no server that we could run beside.
    pub(in crate::restore) fn is_locked(&self, path: &ItemPath) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        match self.resolve(path.as_bytes(), flags, Mode::empty()) {
            Ok(file) => Ok(fcntl_getlk(&file, &FlockType::WriteLock.into())?.is_some()),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a regular file once more, for writing past the page cache; `None` where that is not supported.
    pub(in crate::restore) fn open_direct(&self, path: &ItemPath) -> io::Result<Option<File>> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::DIRECT;
        match self.resolve(path.as_bytes(), flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is at `path`; `None` if nothing.
    pub(in crate::restore) fn look(&self, path: &ItemPath) -> io::Result<Option<Found>> {
        let found = self
            .parent(path)
            .and_then(|(parent, name)| Ok(statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?));
        match found {
            Ok(stat) => Ok(Some(Found::of(&stat))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Everything below that may be a server's, each directory before its contents. Links are not followed.
    pub(in crate::restore) fn walk(&self) -> io::Result<BTreeMap<ItemPath, Found>> {
        let mut found: BTreeMap<_, Found> = BTreeMap::new();
        let mut todo = vec![Vec::new()];
        while let Some(directory) = todo.pop() {
            let listed = match self.list(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.is_empty() => continue,
                listed => listed?,
            };
            for (name, what) in listed {
                let path = if directory.is_empty() { name } else { [&directory, &b"/"[..], &name].concat() };
                if is_foreign(&path) {
                    let around = ItemPath::new(directory.clone()).ok();
                    if let Some(around) = around.and_then(|around| found.get_mut(&around)) {
                        around.is_fixed = true;
                    }
                    continue;
                }
                if what.kind == FoundKind::Directory {
                    todo.push(path.clone());
                }
                found.insert(ItemPath::new(path).map_err(io::Error::other)?, what);
            }
        }
        Ok(found)
    }

    /// The contents of the directory at `path`, by name, without what a running server removes meanwhile.
    pub(in crate::restore) fn list(&self, path: &[u8]) -> io::Result<Vec<(Vec<u8>, Found)>> {
        let opened: &[u8] = if path.is_empty() { b"." } else { path };
        let fd = self.resolve(opened, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                match statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => {
                        let what = Found::of(&stat);
                        let is_fixed =
                            what.kind == FoundKind::Directory && is_mounted(&fd, entry.file_name())?;
                        found.push((name.to_vec(), Found { is_fixed, ..what }));
                    }
                    Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(found)
    }

    /// Renames something, replacing what has the new name.
    pub(in crate::restore) fn rename(&self, from: &ItemPath, to: &ItemPath) -> io::Result<()> {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        Ok(renameat(&from_parent, from_name, &to_parent, to_name)?)
    }

    /// Removes what is at `path`, whatever it is; a directory must be empty. It is fine if nothing is there.
    pub(in crate::restore) fn remove(&self, path: &ItemPath) -> io::Result<()> {
        let Some(found) = self.look(path)? else { return Ok(()) };
        let flags = if found.kind == FoundKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let (parent, name) = self.parent(path)?;
        match unlinkat(&parent, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a link at `path` that leads to the absolute path `to`.
    pub(in crate::restore) fn link(&self, to: &Path, path: &ItemPath) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(symlinkat(to, &parent, name)?)
    }

    /// Where the link at `path` leads.
    pub(in crate::restore) fn read_link(&self, path: &ItemPath) -> io::Result<PathBuf> {
        let (parent, name) = self.parent(path)?;
        let to = readlinkat(&parent, name, Vec::new())?;
        Ok(OsStr::from_bytes(to.as_bytes()).into())
    }

    /// Makes everything that was written to its filesystem durable.
    pub(in crate::restore) fn sync_all(&self) -> io::Result<()> {
        Ok(syncfs(&self.root)?)
    }

    /// The same for filesystems that are mounted below it.
    pub(in crate::restore) fn sync_mounted(&self) -> io::Result<()> {
        for (path, _) in self.walk()?.iter().filter(|(_, found)| found.is_fixed) {
            let mounted = self.resolve(path.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            syncfs(mounted)?;
        }
        Ok(())
    }

    /// Makes the names in a directory durable; `None` is the tree's own.
    pub(in crate::restore) fn sync_dir(&self, path: Option<&ItemPath>) -> io::Result<()> {
        let bytes = path.map_or(&b"."[..], ItemPath::as_bytes);
        let directory = self.resolve(bytes, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(rustix::fs::fsync(directory)?)
    }

    /// Gives something below to an owner; a link itself, not what it leads to.
    pub(in crate::restore) fn give(&self, path: &ItemPath, owner: (u32, u32)) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let (uid, gid) = ids(owner);
        Ok(chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Gives the directory itself to an owner.
    pub(in crate::restore) fn give_root(&self, owner: (u32, u32)) -> io::Result<()> {
        let (uid, gid) = ids(owner);
        Ok(fchown(&self.root, Some(uid), Some(gid))?)
    }

    /// The owner of the directory.
    pub(in crate::restore) fn owner(&self) -> io::Result<(u32, u32)> {
        let stat = rustix::fs::fstat(&self.root)?;
        Ok((stat.st_uid, stat.st_gid))
    }

    /// Room in its filesystem.
    pub(in crate::restore) fn room(&self) -> io::Result<Room> {
        let stat = fstatvfs(&self.root)?;
        let device = rustix::fs::fstat(&self.root)?.st_dev;
        Ok(Room { free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize), device })
    }
}

/// Whether a filesystem is mounted at a directory. A kernel before Linux 5.8 does not say so; there, the device
/// tells, except if a directory of the same filesystem is mounted.
fn is_mounted(parent: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let look = |at: &OwnedFd, name: &CStr, flags| statx(at, name, flags, StatxFlags::BASIC_STATS);
    let found = match look(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        found => found?,
    };
    if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    let above = look(parent, c"", AtFlags::EMPTY_PATH)?;
    let device = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor);
    Ok(device(&found) != device(&above))
}

fn ids((uid, gid): (u32, u32)) -> (Uid, Gid) {
    (Uid::from_raw(uid), Gid::from_raw(gid))
}

/// Mode of directories that the backup does not list.
pub(in crate::restore) const DIRECTORY_MODE: u16 = 0o750;
/// We must be able to write what we make.
const OWNER_OF_DIRECTORY: u16 = 0o700;
const OWNER_OF_FILE: u16 = 0o600;

fn permissions(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode) & 0o777)
}

/// Makes a directory, and all above it, if missing, and makes the names that may be new durable. Only the
/// directory's owner and group may enter it; whoever that will be may have to pass through those above. An
/// unreadable directory above is not synced, because we can have made nothing there;
/// and some filesystems do not sync directories.
pub(in crate::restore) fn create_durably(path: &Path) -> Result<(), Error> {
    let made = path.ancestors().take_while(|above| !above.is_dir()).count();
    let make = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        match DirBuilder::new().mode(DIRECTORY_MODE.into()).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        }
    };
    make().map_err(|error| io_failed("make", path, error))?;
    let path = path.canonicalize().map_err(|error| io_failed("open", path, error))?;
    for parent in path.ancestors().skip(1).take(made.max(1)) {
        let sync = || File::open(parent)?.sync_all();
        match sync() {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => {}
            synced => synced.map_err(|error| io_failed("write", parent, error))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    fn path(text: &str) -> ItemPath {
        ItemPath::new(text).unwrap()
    }

    fn tree() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        (dir, tree)
    }

    /// A link planted anywhere on the way, or in the place itself, is an error, and what it leads to stays as
    /// it is.
    #[test]
    fn planted_links() {
        let (dir, tree) = tree();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("t.ibd"), "theirs").unwrap();
        symlink(elsewhere.path(), dir.path().join("db")).unwrap();
        symlink(elsewhere.path().join("t.ibd"), dir.path().join("t.ibd")).unwrap();
        symlink(elsewhere.path().join("new"), dir.path().join("new")).unwrap();

        assert!(tree.create_file(&path("db/u.ibd"), 0o640).is_err());
        assert!(tree.create_dir(&path("db/sub"), 0o750).is_err());
        assert!(tree.create_dir(&path("db"), 0o750).is_err());
        assert!(tree.create_file(&path("new"), 0o640).is_err());
        assert!(tree.open_file(&path("t.ibd")).is_err());
        assert!(tree.open_file(&path("db/t.ibd")).is_err());
        assert!(tree.remove(&path("db/t.ibd")).is_err());
        assert_eq!(tree.look(&path("t.ibd")).unwrap().unwrap().kind, FoundKind::Other);
        assert_eq!(tree.walk().unwrap().len(), 3);

        tree.remove(&path("t.ibd")).unwrap();
        tree.remove(&path("db")).unwrap();
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
        assert_eq!(fs::read(elsewhere.path().join("t.ibd")).unwrap(), b"theirs");
    }

    /// Whatever the manifest says, no file gets a set-uid bit, and none is unreadable.
    #[test]
    fn modes() {
        let (dir, tree) = tree();
        tree.create_file(&path("f"), 0o7777).unwrap();
        tree.create_file(&path("g"), 0).unwrap();
        tree.create_dir(&path("a/b"), 0o7000).unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("f") & 0o7000, 0);
        assert_eq!(mode("g"), 0o600);
        assert_eq!(mode("a/b"), 0o700);
        assert_eq!(mode("a") & 0o7027, 0);
    }

    /// A pipe in the place of a file does not make the restore wait, and is not written to.
    #[test]
    fn pipes() {
        let (dir, tree) = tree();
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("p"), FileType::Fifo, permissions(0o600), 0)
            .unwrap();
        assert!(tree.open_file(&path("p")).is_err());
        tree.remove(&path("p")).unwrap();
        assert!(tree.look(&path("p")).unwrap().is_none());
    }

    /// Directories come before what is in them; `lost+found` and what is hidden are not ours.
    #[test]
    fn walking() {
        let (dir, tree) = tree();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        fs::create_dir(dir.path().join(".ssh")).unwrap();
        fs::write(dir.path().join(".ssh/key"), "").unwrap();
        tree.create_dir(&path("a/b"), 0o750).unwrap();
        let file = tree.create_file(&path("a/b/c"), 0o640).unwrap();
        file.set_len(1 << 20).unwrap();
        fs::hard_link(dir.path().join("a/b/c"), dir.path().join("d")).unwrap();
        tree.create_dir(&path("schema"), 0o750).unwrap();
        fs::create_dir(dir.path().join("schema/lost+found")).unwrap();
        let found = tree.walk().unwrap();
        let names: Vec<_> = found.keys().map(ToString::to_string).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "d", "schema"]);
        let fixed = found.iter().filter(|(_, found)| found.is_fixed).map(|(path, _)| path.to_string());
        assert_eq!(fixed.collect::<Vec<_>>(), ["schema"]);
        let c = found[&path("a/b/c")];
        assert_eq!((c.kind, c.size_bytes, c.allocated_bytes, c.links), (FoundKind::File, 1 << 20, 0, 2));
        assert!(tree.open_file(&path("a")).is_err());
        assert!(tree.open_file(&path("nothing/here")).unwrap().is_none());
        assert_eq!(tree.room().unwrap().device, fs::metadata(dir.path()).unwrap().dev());
    }

    /// A server makes and removes files of its own while somebody checks whether one runs.
    #[test]
    fn walking_beside_a_server() {
        let (dir, tree) = tree();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::create_dir_all(dir.path().join("db")).unwrap();
                    fs::write(dir.path().join("db/#sql-1.frm"), "").unwrap();
                    fs::remove_dir_all(dir.path().join("db")).unwrap();
                    fs::write(dir.path().join("ibtmp1"), "").unwrap();
                    fs::remove_file(dir.path().join("ibtmp1")).unwrap();
                }
            });
            let failed = (0..3000).find_map(|_| tree.walk().err());
            is_over.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }
}
