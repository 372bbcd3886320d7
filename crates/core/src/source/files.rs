//! Files of a data directory: what there is, and how to know a file again.
//!
//! Identity is (space id, device, inode, birth time): the space id alone is kept by IMPORT TABLESPACE and given again
//! on a restored server, the inode number is given again within milliseconds (ext4: 4 of 5 times after rm and cp).

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use holdfast_formats::SpaceId;
use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::error::{Context, Error, Result};

/// Timestamps of files tick coarsely (4 ms on the kernels that were tried): a younger one may hide a later write.
pub(super) const CLOCK_TICK: Duration = Duration::from_millis(10);

/// The file itself, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    device: (u32, u32),
    inode: u64,
    birth: (i64, u32),
}

impl Inode {
    /// Of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        Ok(Self {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            birth: (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
        })
    }
}

/// A tablespace file as one incarnation of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey {
    /// From page 0; `None` while page 0 is not yet written.
    pub space: Option<SpaceId>,
    /// The file.
    pub inode: Inode,
}

/// Tells whether a file may have changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    settled: bool,
}

impl Signature {
    /// Of a file before it is read. Not settled if the file changed within the last clock tick.
    #[must_use]
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        let modified = UNIX_EPOCH
            + Duration::new(
                u64::try_from(metadata.mtime()).unwrap_or(0),
                u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
            );
        let settled = SystemTime::now().duration_since(modified).is_ok_and(|age| age >= CLOCK_TICK);
        Self {
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            settled,
        }
    }

    /// Whether `now` is of the same inode.
    #[must_use]
    pub fn same_inode(&self, now: &Self) -> bool {
        self.inode == now.inode
    }

    /// Whether a file with the signature `now` is surely as it was.
    #[must_use]
    pub fn unchanged(&self, now: &Self) -> bool {
        self.settled && Self { settled: true, ..*now } == *self
    }
}

/// Something in a data directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Relative to the data directory, `/` between parts.
    pub path: String,
    /// Where it really is.
    pub real: PathBuf,
    /// Whether it is reached through a link that leads out of the data directory.
    pub outside: bool,
    /// Size when it was listed.
    pub size_bytes: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Permission bits.
    pub mode: u16,
}

/// Everything below `datadir`, by path. Links are followed, so that a linked schema or table file is found; sockets,
/// pipes and devices are left out. `skip` tells which paths are not looked into.
pub fn walk(datadir: &Path, skip: &dyn Fn(&str) -> bool) -> Result<BTreeMap<String, Entry>> {
    let root =
        datadir.canonicalize().context(format_args!("open the data directory {}", datadir.display()))?;
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), root.clone(), false)];
    while let Some((prefix, dir, outside)) = todo.pop() {
        let listing = match std::fs::read_dir(&dir) {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !prefix.is_empty() => continue,
            Err(error) => return Err(unreadable(&dir, error)),
        };
        for entry in listing {
            let entry = entry.map_err(|error| unreadable(&dir, error))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                return Err(Error::failed(format!(
                    "{}: the name is not UTF-8, which no server writes",
                    entry.path().display()
                ))
                .hinted("move files that are not the server's out of the data directory"));
            };
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            if skip(&path) {
                continue;
            }
            let metadata = match std::fs::metadata(entry.path()) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if leads_nowhere(&entry.path()) {
                        return Err(Error::failed(format!("{path} is a link that leads nowhere from here"))
                            .hinted("what it stands for would be missing from the backup; see --path-map, or remove the link"));
                    }
                    continue; // dropped since the listing
                }
                Err(error) => return Err(unreadable(&entry.path(), error)),
            };
            if !metadata.is_dir() && !metadata.is_file() {
                continue;
            }
            let linked = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let (real, outside) = if linked {
                let Ok(real) = entry.path().canonicalize() else { continue };
                let leaves = !real.starts_with(&root);
                (real, outside || leaves)
            } else {
                (entry.path(), outside)
            };
            if metadata.is_dir() {
                if linked && root.starts_with(&real) {
                    continue; // a loop
                }
                todo.push((path.clone(), real.clone(), outside));
            }
            found.insert(
                path.clone(),
                Entry {
                    path,
                    real,
                    outside,
                    size_bytes: metadata.len(),
                    is_dir: metadata.is_dir(),
                    mode: u16::try_from(metadata.mode() & 0o777).unwrap_or(0o600),
                },
            );
        }
    }
    Ok(found)
}

/// Whether a link stays without its target; a table that is being dropped loses its file before its link.
fn leads_nowhere(link: &Path) -> bool {
    let dangles = || std::fs::symlink_metadata(link).is_ok() && !link.exists();
    dangles() && {
        std::thread::sleep(5 * CLOCK_TICK);
        dangles()
    }
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    let failure = Error::failed(format!("read {}", path.display())).caused_by(error);
    if denied {
        failure.hinted("run holdfast as the user that the server runs as, or as root; an AppArmor or SELinux profile can refuse too")
    } else {
        failure
    }
}

/// A file could not be opened or read.
pub(crate) fn read_failed(path: &Path, error: io::Error) -> Error {
    unreadable(path, error)
}

/// The last part of a path.
#[must_use]
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Bytes of a path, as stored.
#[must_use]
pub fn path_text(path: &Path) -> String {
    String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_made_again_under_its_name_is_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ibd");
        std::fs::write(&path, b"one").unwrap();
        let first = Inode::of(&File::open(&path).unwrap()).unwrap();
        assert_eq!(first, Inode::of(&File::open(&path).unwrap()).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::thread::sleep(CLOCK_TICK);
        std::fs::write(&path, b"two").unwrap();
        assert_ne!(first, Inode::of(&File::open(&path).unwrap()).unwrap());
    }

    #[test]
    fn a_signature_that_is_too_young_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"one").unwrap();
        let young = Signature::of(&std::fs::metadata(&path).unwrap());
        assert!(!young.unchanged(&Signature::of(&std::fs::metadata(&path).unwrap())));
        std::thread::sleep(2 * CLOCK_TICK);
        let settled = Signature::of(&std::fs::metadata(&path).unwrap());
        assert!(settled.unchanged(&Signature::of(&std::fs::metadata(&path).unwrap())));
        std::fs::write(&path, b"two").unwrap();
        assert!(!settled.unchanged(&Signature::of(&std::fs::metadata(&path).unwrap())));
    }

    #[test]
    fn links_that_lead_out_are_found_and_marked() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir_all(data.join("db")).unwrap();
        std::fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
        std::fs::write(dir.path().join("elsewhere/t.MYD"), b"x").unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere/t.MYD"), data.join("db/t.MYD")).unwrap();
        let found = walk(&data, &|_| false).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["db", "db/t.MYD"]);
        assert!(found["db/t.MYD"].outside && !found["db"].outside);
        std::os::unix::fs::symlink(dir.path().join("nowhere"), data.join("db/u.MYD")).unwrap();
        let error = walk(&data, &|_| false).unwrap_err().to_string();
        assert!(error.contains("db/u.MYD"), "{error}");
    }
}
