//! Working directories in a shared place such as `/var/tmp`. A lock file in each shows whether a process
//! still works there. The kernel releases the lock when that process dies, so that the next process can
//! remove what was left.
//!
//! Invariants:
//! - Only directories of this user that nobody else can write to are removed: anyone can create a directory
//!   with a name like ours.
//! - Only the holder of its lock removes a directory. A directory without a lock file is just being created.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock},
    process::geteuid,
};

use crate::error::{Context, Result};

/// The lock file.
pub(crate) const LOCK: &str = "lock";
const LOCK_MODE: u32 = 0o600;
const OTHERS_WRITE: u32 = 0o022;

/// Outcome of an attempt to lock.
pub(crate) enum Lock {
    /// Held as long as the file is open.
    Ours(File),
    /// Another process holds it.
    Theirs,
    /// The locked directory no longer exists.
    Gone,
}

/// Locks a working directory whose name other processes know. `create`: even if it has no lock file yet.
pub(crate) fn lock(dir: &Path, create: bool) -> Result<Lock> {
    let path = dir.join(LOCK);
    let failed = || format!("lock {}", path.display());
    let mut options = File::options();
    options.write(true).create(create).mode(LOCK_MODE);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let file = match options.open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lock::Gone),
        Err(error) => return Err(error).context(failed()),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Lock::Theirs),
        Err(error) => return Err(error).context(failed()),
    }
    // The previous holder may have removed it.
    let ours = file.metadata().context(failed())?;
    match fs::symlink_metadata(&path) {
        Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(Lock::Ours(file)),
        Ok(_) => Ok(Lock::Gone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Lock::Gone),
        Err(error) => Err(error).context(failed()),
    }
}

/// Locks a working directory that we have just created, under a name that nobody else uses.
pub(crate) fn lock_new(dir: &Path) -> io::Result<File> {
    // The file is locked before it gets its name, so that a search for abandoned directories never sees it
    // unlocked.
    let unlocked = dir.join("unlocked");
    let lock = File::options().write(true).create_new(true).mode(LOCK_MODE).open(&unlocked)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(&unlocked, dir.join(LOCK))?;
    Ok(lock)
}

/// Whether this is a directory that belongs to this user and that nobody else can write to.
pub(crate) fn is_ours(path: &Path) -> io::Result<bool> {
    let meta = fs::symlink_metadata(path)?;
    Ok(meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & OTHERS_WRITE == 0)
}

/// Directories in `place` with this prefix that killed processes left, each with its lock; without the one
/// that we are using.
pub(crate) fn abandoned(
    place: &Path,
    prefix: &str,
    in_use: Option<&Path>,
) -> impl Iterator<Item = (PathBuf, File)> {
    fs::read_dir(place).into_iter().flatten().flatten().filter_map(move |entry| {
        let path = entry.path();
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        if !is_named || in_use == Some(&path) || !is_ours(&path).unwrap_or(false) {
            return None;
        }
        match lock(&path, false) {
            Ok(Lock::Ours(lock)) => Some((path, lock)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::fs::PermissionsExt,
        thread::sleep,
        time::{Duration, Instant},
    };

    use super::*;

    const PREFIX: &str = "holdfast-test-";

    fn found(place: &Path) -> Vec<PathBuf> {
        let mut found: Vec<_> = abandoned(place, PREFIX, None).map(|(path, _)| path).collect();
        found.sort();
        found
    }

    /// A child process that another test is just starting briefly shares our open files, and so the locks.
    fn assert_found(place: &Path, wanted: &[&Path]) {
        let began = Instant::now();
        while found(place) != wanted && began.elapsed() < Duration::from_secs(60) {
            sleep(Duration::from_millis(5));
        }
        assert_eq!(found(place), wanted);
    }

    /// Released directories count as abandoned; those in use, and those that may belong to others, do not.
    #[test]
    fn what_was_left() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let dir = place.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(0o711)).unwrap();
            dir
        };
        let (new, known) = (make("holdfast-test-new"), make("holdfast-test-known"));
        let held = lock_new(&new).unwrap();
        let Ok(Lock::Ours(also_held)) = lock(&known, true) else { panic!("not locked") };
        assert!(matches!(lock(&new, true), Ok(Lock::Theirs)));
        drop(lock_new(&make("another-name")).unwrap());
        make("holdfast-test-without-lock");
        let open = make("holdfast-test-open-to-all");
        drop(lock_new(&open).unwrap());
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(
            place.path().join("another-name"),
            place.path().join("holdfast-test-link"),
        )
        .unwrap();
        assert!(found(place.path()).is_empty());

        drop(held);
        assert_found(place.path(), &[&new]);
        assert_eq!(abandoned(place.path(), PREFIX, Some(&new)).count(), 0);
        drop(also_held);
        assert_found(place.path(), &[&known, &new]);
        fs::remove_dir_all(&known).unwrap();
        assert!(matches!(lock(&known, false), Ok(Lock::Gone)));
    }
}
