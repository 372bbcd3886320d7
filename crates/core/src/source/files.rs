//! Files of a data directory: how to list them, and how to recognise one again.
//!
//! The identity of a file is (space id, device, inode, birth time). The space id alone does not suffice:
//! IMPORT TABLESPACE keeps it, and a restored server assigns it again. Neither does the inode number, which
//! is reused within milliseconds (ext4: 4 of 5 times after rm and cp).

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use holdfast_formats::SpaceId;
use rustix::{
    fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx},
    process::{getegid, geteuid},
};

use crate::error::{Context, Error, Result};

/// File timestamps tick coarsely: a younger one may hide a later write. Every 4 ms on the kernels that were
/// tried, 10 on others, and later if the host does not let the virtual processor run that keeps the time.
pub(super) const CLOCK_TICK: Duration = Duration::from_millis(100);
/// How long a link may dangle.
const DANGLES_MAX: Duration = Duration::from_millis(50);

/// The file itself, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    device: (u32, u32),
    inode: u64,
    birth: (i64, u32),
}

impl Inode {
    /// Identifies an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::found(&statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?))
    }

    fn found(found: &Statx) -> Self {
        Self {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            birth: (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
        }
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

/// Tells whether a file may have changed since the signature was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    settled: bool,
}

impl Signature {
    /// Takes the signature of a file before it is read. Not settled if the file changed within the last clock
    /// tick.
    #[must_use]
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self {
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            modified,
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            settled: is_settled(modified),
        }
    }

    fn found(found: &Statx) -> Self {
        let modified = (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec.into());
        Self {
            inode: found.stx_ino,
            size_bytes: found.stx_size,
            modified,
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec.into()),
            settled: is_settled(modified),
        }
    }

    /// Whether `now` is a signature of the same inode.
    #[must_use]
    pub fn same_inode(&self, now: &Self) -> bool {
        self.inode == now.inode
    }

    /// Whether a file that now has the signature `now` is certainly unchanged.
    #[must_use]
    pub fn unchanged(&self, now: &Self) -> bool {
        self.settled && Self { settled: true, ..*now } == *self
    }
}

/// Whether a later change of a file with this modification time would certainly have given it another time.
fn is_settled((seconds, nanoseconds): (i64, i64)) -> bool {
    let modified = UNIX_EPOCH
        + Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanoseconds).unwrap_or(0));
    SystemTime::now().duration_since(modified).is_ok_and(|age| age >= clock_tick(nanoseconds))
}

/// How long after its modification time a file may have been changed without getting a newer one. Some file
/// systems store whole seconds only (ext4 with inodes of 128 bytes, as ext3 created them), some only every
/// second one.
pub(super) fn clock_tick(nanoseconds: i64) -> Duration {
    match nanoseconds {
        0 => Duration::from_secs(2),
        _ => CLOCK_TICK,
    }
}

/// What the kernel says about a file, in one answer.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// The file itself.
    pub inode: Inode,
    /// Tells whether the file has changed.
    pub signature: Signature,
    kind: FileType,
    mode: u16,
}

impl Stat {
    /// Looks at the file that `path` leads to.
    pub fn of(path: &Path) -> io::Result<Self> {
        Self::at(CWD, path.as_os_str())
    }

    fn at(dir: impl AsFd, name: &OsStr) -> io::Result<Self> {
        let found = statx(dir, name, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        Ok(Self {
            inode: Inode::found(&found),
            signature: Signature::found(&found),
            kind: FileType::from_raw_mode(found.stx_mode.into()),
            mode: found.stx_mode & 0o777,
        })
    }

    /// Its size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.signature.size_bytes
    }
}

/// A file or directory in a data directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Relative to the data directory, `/` between parts.
    pub path: String,
    /// Its real path.
    pub real: PathBuf,
    /// Whether it is reached through a link that leads out of the data directory.
    pub outside: bool,
    /// Size when it was listed.
    pub size_bytes: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Permission bits.
    pub mode: u16,
    /// What the kernel said about it when it was listed.
    pub stat: Stat,
}

/// Most threads that look at files; the kernel does the work.
const WALK_THREADS: usize = 4;
/// Fewer files than this are not worth a thread.
const FILES_PER_THREAD: usize = 1000;

/// A directory that is to be listed.
struct Below {
    prefix: String,
    dir: PathBuf,
    outside: bool,
    /// The directories that led to it.
    above: Vec<Inode>,
}

/// A directory that is being listed.
struct Listed {
    dir: PathBuf,
    handle: File,
    outside: bool,
    /// Itself, and the directories that led to it.
    above: Vec<Inode>,
}

/// A name in a directory that is being listed.
struct Name {
    listed: usize,
    path: String,
    name: OsString,
    linked: bool,
}

/// Decides, by a path and whether it is a directory, whether to leave it out.
pub type Skip<'a> = dyn Fn(&str, bool) -> bool + 'a;

/// Lists everything below `datadir`, by path. Links are followed, so that a linked schema or table file is
/// found. Sockets, pipes, devices and whatever `skip` selects are left out. No file is opened.
pub fn walk(datadir: &Path, skip: &Skip<'_>) -> Result<BTreeMap<String, Entry>> {
    let root =
        datadir.canonicalize().context(format_args!("open the data directory {}", datadir.display()))?;
    let mut found = BTreeMap::new();
    let mut level =
        vec![Below { prefix: String::new(), dir: root.clone(), outside: false, above: Vec::new() }];
    while !level.is_empty() {
        let mut listed = Vec::new();
        let mut names = Vec::new();
        for below in level.drain(..) {
            list(below, skip, &mut listed, &mut names)?;
        }
        for (name, stat) in names.iter().zip(stat_all(&listed, &names)) {
            let Some(Listed { dir, outside, above, .. }) = listed.get(name.listed) else { continue };
            let Some(entry) = look_at(&root, dir, *outside, name, stat)? else { continue };
            if entry.is_dir {
                if above.contains(&entry.stat.inode) {
                    continue; // a link that leads back
                }
                let (prefix, dir) = (entry.path.clone(), entry.real.clone());
                level.push(Below { prefix, dir, outside: entry.outside, above: above.clone() });
            }
            found.insert(entry.path.clone(), entry);
        }
    }
    Ok(found)
}

/// Adds the names in one directory.
fn list(below: Below, skip: &Skip<'_>, listed: &mut Vec<Listed>, names: &mut Vec<Name>) -> Result<()> {
    let Below { prefix, dir, outside, mut above } = below;
    let open =
        File::open(&dir).and_then(|handle| Ok((Inode::of(&handle)?, handle, std::fs::read_dir(&dir)?)));
    let (inode, handle, listing) = match open {
        Ok(open) => open,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !prefix.is_empty() => return Ok(()),
        Err(error) => return Err(unreadable(&dir, error)),
    };
    for entry in listing {
        let entry = entry.map_err(|error| unreadable(&dir, error))?;
        let name = entry.file_name();
        let Some(text) = name.to_str() else {
            return Err(Error::failed(format!(
                "{}: the file name is not UTF-8, so it is not a file of the server",
                entry.path().display()
            ))
            .hinted("move foreign files out of the data directory"));
        };
        let path = if prefix.is_empty() { text.to_owned() } else { format!("{prefix}/{text}") };
        let kind = entry.file_type().ok();
        let linked = kind.is_some_and(|kind| kind.is_symlink());
        let is_dir = if linked { entry.path().is_dir() } else { kind.is_some_and(|kind| kind.is_dir()) };
        if !skip(&path, is_dir) {
            names.push(Name { listed: listed.len(), path, name, linked });
        }
    }
    above.push(inode);
    listed.push(Listed { dir, handle, outside, above });
    Ok(())
}

/// Looks at all of the names, in order.
fn stat_all(listed: &[Listed], names: &[Name]) -> Vec<io::Result<Stat>> {
    let stat = |name: &Name| match listed.get(name.listed) {
        Some(listed) => Stat::at(&listed.handle, &name.name),
        None => Err(io::ErrorKind::NotFound.into()),
    };
    let threads = (names.len() / FILES_PER_THREAD).clamp(1, WALK_THREADS);
    if threads == 1 {
        return names.iter().map(stat).collect();
    }
    std::thread::scope(|scope| {
        let parts = names.chunks(names.len().div_ceil(threads));
        let parts: Vec<_> = parts
            .map(|part| (part, scope.spawn(move || part.iter().map(stat).collect::<Vec<_>>())))
            .collect();
        let done = parts.into_iter().flat_map(|(part, thread)| {
            // If a thread panicked, this one does its part.
            thread.join().unwrap_or_else(|_| part.iter().map(stat).collect())
        });
        done.collect()
    })
}

/// Looks at what a name stands for. `None` if that is not part of a backup.
fn look_at(
    root: &Path,
    dir: &Path,
    outside: bool,
    name: &Name,
    stat: io::Result<Stat>,
) -> Result<Option<Entry>> {
    let at = dir.join(&name.name);
    let stat = match stat {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if leads_nowhere(&at) {
                return Err(Error::failed(format!("{}: dangling symbolic link", name.path)).hinted(
                    "its target would be missing from the backup: map it with --path-map, or remove the link",
                ));
            }
            return Ok(None); // dropped since the listing
        }
        Err(error) => return Err(unreadable(&at, error)),
    };
    if !matches!(stat.kind, FileType::Directory | FileType::RegularFile) {
        return Ok(None);
    }
    let (real, outside) = if name.linked {
        let Ok(real) = at.canonicalize() else { return Ok(None) };
        let leaves = !real.starts_with(root);
        (real, outside || leaves)
    } else {
        (at, outside)
    };
    Ok(Some(Entry {
        path: name.path.clone(),
        real,
        outside,
        size_bytes: stat.size_bytes(),
        is_dir: stat.kind == FileType::Directory,
        mode: stat.mode,
        stat,
    }))
}

/// Whether a link keeps dangling. A table that is being dropped loses its file before its link.
fn leads_nowhere(link: &Path) -> bool {
    let dangles = || std::fs::symlink_metadata(link).is_ok() && !link.exists();
    dangles() && {
        std::thread::sleep(DANGLES_MAX);
        dangles()
    }
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    let failure = Error::failed(format!("read {}", path.display())).caused_by(error);
    if denied {
        let owner = whose(path).map_or_else(String::new, |owner| format!("{owner}; "));
        failure.hinted(format!(
            "{owner}run holdfast as the user that the server runs as, or as root; an AppArmor or SELinux profile can refuse too"
        ))
    } else {
        failure
    }
}

/// Tells who owns the file, or else the last directory on the way to it that can be seen.
fn whose(path: &Path) -> Option<String> {
    let above: Vec<&Path> = path.ancestors().collect();
    let seen = above.iter().rev().map_while(|at| Some((*at, std::fs::symlink_metadata(at).ok()?)));
    let (at, found) = seen.last()?;
    Some(format!(
        "{} belongs to uid {}, gid {}, mode {:04o}, and this is uid {}, gid {}",
        at.display(),
        found.uid(),
        found.gid(),
        found.mode() & 0o7777,
        geteuid().as_raw(),
        getegid().as_raw()
    ))
}

/// The error for a file that could not be opened or read.
pub(crate) fn read_failed(path: &Path, error: io::Error) -> Error {
    unreadable(path, error)
}

/// The last part of a path.
#[must_use]
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether a name is `prefix` followed by a number.
#[must_use]
pub fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// A path, as it is stored.
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

    /// A link that leads back, to whatever directory, is not followed forever. One that leads elsewhere is
    /// followed.
    #[test]
    fn links_that_lead_back_end_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("db/sub")).unwrap();
        std::fs::write(elsewhere.path().join("t.ibd"), b"t").unwrap();
        let links = [
            ("db/self", dir.path().join("db")),
            ("db/sub/up", dir.path().join("db")),
            ("top", dir.path().to_owned()),
            ("linked", elsewhere.path().to_owned()),
        ];
        for (name, to) in &links {
            std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink(elsewhere.path(), elsewhere.path().join("again")).unwrap();
        let found = walk(dir.path(), &|_, _| false).unwrap();
        let files: Vec<_> = found.values().filter(|entry| !entry.is_dir).map(|entry| &entry.path).collect();
        assert_eq!(files, ["linked/t.ibd"]);
    }

    #[test]
    fn who_may_read_is_told_of_where_the_way_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ibd");
        File::create(&path).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        let told = unreadable(&path, io::ErrorKind::PermissionDenied.into()).hint().unwrap().to_owned();
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let owner = format!("t.ibd belongs to uid {uid}, gid {gid}, mode 0640, and this is uid {uid}");
        assert!(told.contains(&owner), "{told}");
        // A path that does not exist stands in for a file below a directory that cannot be entered.
        let beyond = whose(&dir.path().join("closed/t.ibd")).unwrap();
        assert!(beyond.starts_with(&format!("{} belongs to", dir.path().display())), "{beyond}");
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
        // The file system may store whole seconds only.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let modified = |ago| std::fs::File::open(&path).unwrap().set_modified(UNIX_EPOCH + now - ago);
        for (ago, expected) in [(Duration::from_secs(1), false), (Duration::from_secs(3), true)] {
            modified(ago + Duration::from_nanos(now.subsec_nanos().into())).unwrap();
            let found = Signature::of(&std::fs::metadata(&path).unwrap());
            assert_eq!(found.unchanged(&found), expected, "{ago:?}");
        }
    }

    #[test]
    fn links_that_lead_out_are_found_and_marked() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir_all(data.join("db")).unwrap();
        std::fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
        std::fs::write(dir.path().join("elsewhere/t.MYD"), b"x").unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere/t.MYD"), data.join("db/t.MYD")).unwrap();
        let found = walk(&data, &|_, _| false).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["db", "db/t.MYD"]);
        assert!(found["db/t.MYD"].outside && !found["db"].outside);
        std::os::unix::fs::symlink(dir.path().join("nowhere"), data.join("db/u.MYD")).unwrap();
        let error = walk(&data, &|_, _| false).unwrap_err().to_string();
        assert!(error.contains("db/u.MYD"), "{error}");
    }
}
