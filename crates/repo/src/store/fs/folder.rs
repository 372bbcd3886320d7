//! Folders of the store, opened without following links.
//!
//! Somebody who can write to the store could put a link in the place of a folder, and what is made, read or deleted
//! by its name would be somewhere else. The root may be reached through links, since its owner has named it; below
//! it, none is followed.

use std::{
    fs::{File, Metadata},
    io,
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Uid, fchown, linkat, mkdirat, open, openat,
        renameat_with, statat, unlinkat,
    },
    io::Errno,
};

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Flags with which a link is not followed.
const ENTRY: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// A folder at or below the root.
pub(super) struct Folder(OwnedFd);

/// An entry of a folder: a file or another folder.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) is_file: bool,
}

impl Entry {
    /// Folders sort where the names below them do.
    fn sort_key(&self) -> impl Iterator<Item = u8> + '_ {
        self.name.bytes().chain((!self.is_file).then_some(b'/'))
    }
}

impl Folder {
    /// Opens the folder `path` below `root`.
    pub(super) fn open(root: &Path, path: &str) -> io::Result<Self> {
        // A missing root says nothing about what is in it.
        let mut folder = open(root, FOLDER, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => io::Error::other("the directory of the repository does not exist"),
            other => other.into(),
        })?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            folder = openat(&folder, name, FOLDER | ENTRY, Mode::empty())?;
        }
        Ok(Self(folder))
    }

    /// As [`open`](Self::open); `None` if there is no such folder, but nothing, a link, or something else.
    pub(super) fn find(root: &Path, path: &str) -> io::Result<Option<Self>> {
        match Self::open(root, path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            folder => folder.map(Some),
        }
    }

    /// Files and folders, in the order of object names. Links and other kinds of entries are skipped.
    pub(super) fn entries(&self) -> io::Result<Vec<Entry>> {
        let readable = openat(&self.0, ".", OFlags::RDONLY | OFlags::DIRECTORY | ENTRY, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in Dir::new(readable)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            let file_type = match entry.file_type() {
                FileType::Unknown => match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno.into()),
                },
                known => known,
            };
            if file_type.is_file() || file_type.is_dir() {
                entries.push(Entry { name: name.to_owned(), is_file: file_type.is_file() });
            }
        }
        entries.sort_by(|a, b| a.sort_key().cmp(b.sort_key()));
        Ok(entries)
    }

    /// Metadata of the entry of this name, even if it is a link.
    pub(super) fn metadata(&self, name: &str) -> io::Result<Metadata> {
        File::from(openat(&self.0, name, OFlags::PATH | ENTRY, Mode::empty())?).metadata()
    }

    /// Opens a file for reading. Anything else counts as not found, and is not
    /// waited for, as a FIFO would be.
    pub(super) fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | ENTRY;
        let file = match openat(&self.0, name, flags, Mode::empty()) {
            // A link or a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Err(io::ErrorKind::NotFound.into()),
            file => File::from(file?),
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Creates a file, which must not exist, to be written to.
    pub(super) fn create(&self, name: &str, more: OFlags) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | ENTRY | more;
        Ok(File::from(openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// Gives a file the name `new` in the folder `to`, unless that is taken.
    pub(super) fn rename_no_replace(&self, name: &str, to: &Folder, new: &str) -> io::Result<()> {
        match renameat_with(&self.0, name, &to.0, new, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.link_no_replace(name, to, new),
            renamed => Ok(renamed?),
        }
    }

    /// As [`rename_no_replace`](Self::rename_no_replace), where only links are not made if a name is taken. NFS repeats
    /// a request whose answer was lost, so the name may be taken by the file itself.
    fn link_no_replace(&self, name: &str, to: &Folder, new: &str) -> io::Result<()> {
        match linkat(&self.0, name, &to.0, new, AtFlags::empty()) {
            Err(Errno::EXIST) if self.is_same_file(name, to, new)? => {}
            linked => linked?,
        }
        self.remove_file(name)
    }

    /// Whether two names are of one file.
    fn is_same_file(&self, name: &str, to: &Folder, other: &str) -> io::Result<bool> {
        let file = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let other = statat(&to.0, other, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((file.st_dev, file.st_ino) == (other.st_dev, other.st_ino))
    }

    /// Makes a folder, which must not exist.
    pub(super) fn make_folder(&self, name: &str) -> io::Result<()> {
        Ok(mkdirat(&self.0, name, Mode::RWXU)?)
    }

    /// Gives away a folder that was just made. Its owner could have put another in its place, so only an
    /// empty one is given. If that is refused (by a file system of another host that does not know our
    /// root), the folder stays as it is.
    pub(super) fn give_folder(&self, made: &str, user: Uid, group: Gid) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | ENTRY;
        let Ok(folder) = openat(&self.0, made, flags, Mode::empty()) else { return };
        let is_empty = Dir::read_from(&folder).is_ok_and(|entries| {
            entries.flatten().all(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
        });
        if is_empty {
            let _kept = fchown(&folder, Some(user), Some(group));
        }
    }

    /// Removes a file; one that is gone already counts as removed.
    pub(super) fn remove_file(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.0, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Removes a folder, which must be empty.
    pub(super) fn remove_folder(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A request to link that is carried out and, since its answer is lost, repeated, finds the name taken by its
    /// own file.
    #[test]
    fn a_name_that_an_own_link_has_taken_is_ones_own() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), "").unwrap();
        let file = |name: &str| root.path().join(name);
        fs::write(file("temporary"), b"x").unwrap();
        fs::hard_link(file("temporary"), file("object")).unwrap();
        folder.link_no_replace("temporary", &folder, "object").unwrap();
        assert!(!file("temporary").exists());
        fs::write(file("temporary"), b"x").unwrap();
        let taken = folder.link_no_replace("temporary", &folder, "object").unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert!(file("temporary").exists());
    }
}
