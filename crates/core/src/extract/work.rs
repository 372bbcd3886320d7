//! The working directory of an extraction: `holdfast-extract-<16 hex>` in a directory of the user's choice.
//!
//! Invariants:
//! - It belongs to this user, nobody else can write to it, and one process at a time works in it. The lock
//!   file ensures that; a process that dies releases it.
//! - It is removed when the extraction ends, however it ends, unless it holds rows that a load has begun
//!   with. The same command reuses these, if the target reports that it is being loaded from them: a load
//!   continues with the very chunks that it began with. Nobody else uses or removes them.
//! - Anything else that a killed process left is removed by the next process that works in the same place.
//!
//! If we are root, the recovering server runs as another user. That user may pass through the directory, but
//! sees only what is given to it. The rows are in a repository of their own, whose key lies next to it and is
//! removed with it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use holdfast_repo::{Password, Protection, Repo, format::hex::to_hex, keys::KdfParams, store::fs::FsStore};

use super::report::Taken;
use crate::{
    error::{Context, Error, ErrorKind, Result},
    work_place::{LOCK, Lock, abandoned, is_ours, lock},
};

const PREFIX: &str = "holdfast-extract-";
/// The restored files.
const DATA: &str = "data";
/// The repository with the rows.
const ROWS: &str = "rows";
const KEY: &str = "key";
/// Marks the rows as complete, and says what they are.
const READY: &str = "ready.json";
/// Marks that a load may have begun with the rows.
const BEGUN: &str = "begun";
/// Attempts to lock the directory, which may be removed between its creation and the lock.
const TRIES_MAX: usize = 10;
/// Others may pass through, to reach what is given to them.
const MODE: u32 = 0o711;
const MODE_OURS: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A working directory that this process holds.
pub(super) struct WorkDir {
    path: PathBuf,
    is_kept: bool,
    /// Held as long as the directory is.
    _lock: File,
}

impl WorkDir {
    /// Locks the directory for work of this identity in `place`, and removes what nobody needs there.
    /// `wanted` is the repository of an unfinished load; if it is the one in this directory, it is reused.
    pub(super) fn take(
        place: &Path,
        identity: &str,
        wanted: Option<&str>,
    ) -> Result<(WorkDir, Option<Taken>)> {
        let made = fs::create_dir_all(place).context(format_args!("make {}", place.display()));
        made?;
        let hash = blake3::hash(identity.as_bytes());
        let path = place.join(format!("{PREFIX}{}", to_hex(&hash.as_bytes()[..8])));
        let mut tries = 0..TRIES_MAX;
        let lock = loop {
            match make(&path).and_then(|()| lock(&path, true)) {
                Ok(Lock::Ours(lock)) => break lock,
                Ok(Lock::Theirs) => {
                    let text = format!("another process works in {}", path.display());
                    let hint =
                        "it extracts the same tables, or removes what a killed process left: wait for it";
                    return Err(Error::new(ErrorKind::Active, text).hinted(hint));
                }
                // Another process has just removed it, as something that a killed process left.
                Ok(Lock::Gone) if tries.next().is_some() => {}
                Ok(Lock::Gone) => return Err(Error::failed(format!("lock {}: it is gone", path.display()))),
                Err(error) => return Err(error),
            }
        };
        let mut work = WorkDir { path, is_kept: false, _lock: lock };
        let taken = work.ready(identity, wanted)?;
        match taken {
            Some(_) => work.is_kept = true,
            None => work.empty()?,
        }
        sweep(place, &work.path);
        Ok((work, taken))
    }

    /// An empty directory to restore into, which nobody enters but its owner, our server's user.
    pub(super) fn new_data(&self) -> Result<PathBuf> {
        let path = self.path.join(DATA);
        remove(&path)?;
        let made = DirBuilder::new().mode(MODE_OURS).create(&path);
        made.context(format_args!("make {}", path.display()))?;
        Ok(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the restored files.
    pub(super) fn remove_data(&self) -> Result<()> {
        remove(&self.path.join(DATA))
    }

    /// Creates a repository for the rows.
    pub(super) fn new_rows(&self) -> Result<Arc<Repo>> {
        let path = self.path.join(ROWS);
        remove(&path)?;
        let failed = |what: &str| format!("{what} {}", path.display());
        DirBuilder::new().mode(MODE_OURS).create(&path).context(failed("make"))?;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).context("draw a key")?;
        let key = to_hex(&bytes);
        let key_path = self.path.join(KEY);
        remove(&key_path)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        let written = options.open(&key_path).and_then(|mut file| file.write_all(key.as_bytes()));
        written.context(format_args!("write {}", key_path.display()))?;
        let password = password(key)?;
        let store = FsStore::create(path.join("repository")).context(failed("make"))?;
        // The key already has the strength that a slow derivation would add to a typed password.
        let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
        Ok(Arc::new(Repo::init(Arc::new(store), &protection).context(failed("make"))?))
    }

    /// Opens the repository of a complete extraction.
    pub(super) fn rows(&self) -> Result<Arc<Repo>> {
        let path = self.path.join(ROWS).join("repository");
        let failed = || format!("open {}", path.display());
        let key_path = self.path.join(KEY);
        let key = fs::read_to_string(&key_path).context(format_args!("read {}", key_path.display()))?;
        let store = FsStore::open(&path).context(failed())?;
        Ok(Arc::new(Repo::open(Arc::new(store), Some(&password(key)?)).context(failed())?))
    }

    /// Marks the rows as complete.
    pub(super) fn set_ready(&self, taken: &Taken) -> Result<()> {
        let path = self.path.join(READY);
        let partial = self.path.join("ready.partial");
        let text = serde_json::to_vec(taken).context("describe what was extracted")?;
        let write = || {
            remove(&partial).map_err(io::Error::other)?;
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(FILE_MODE).open(&partial)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        };
        write().context(format_args!("write {}", path.display()))
    }

    /// Marks that a load is about to begin with the rows: from here on they are needed, whatever happens to
    /// us.
    pub(super) fn set_begun(&self) -> Result<()> {
        let path = self.path.join(BEGUN);
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(FILE_MODE);
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let written = options.open(&path).and_then(|file| file.sync_all());
        let written = written.and_then(|()| File::open(&self.path)?.sync_all());
        written.context(format_args!("write {}", path.display()))
    }

    /// The complete extraction in this directory, if a load was begun with it that continues with the
    /// repository `wanted`. If that cannot be determined now, this fails and nothing is removed: the load has
    /// nothing else to continue with.
    fn ready(&mut self, identity: &str, wanted: Option<&str>) -> Result<Option<Taken>> {
        let Some(wanted) = wanted else { return Ok(None) };
        let path = self.path.join(READY);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.context(format_args!("read {}", path.display())),
        };
        let taken = text.and_then(|text| {
            let taken: Taken =
                serde_json::from_slice(&text).context(format_args!("read {}", path.display()))?;
            let is_wanted =
                taken.identity == identity && self.rows()?.info().repository_id.to_string() == wanted;
            Ok(is_wanted.then_some(taken))
        });
        taken.map_err(|error| {
            self.is_kept = true;
            error.also_hinted(format_args!(
                "an unfinished load may need the rows in {}: if you have dropped what it created, remove the \
                 directory",
                self.path.display()
            ))
        })
    }

    /// Removes everything in it except the lock.
    fn empty(&self) -> Result<()> {
        // First the marks that the rest is complete and needed: what a process killed after that leaves is
        // swept later.
        remove(&self.path.join(READY))?;
        remove(&self.path.join(BEGUN))?;
        let listing = || format!("list {}", self.path.display());
        for entry in fs::read_dir(&self.path).context(listing())? {
            let entry = entry.context(listing())?;
            if entry.file_name() != LOCK {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Leaves the directory for the next process.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Removes the directory, and reports a failure to do so.
    pub(super) fn remove(mut self) -> Result<()> {
        self.is_kept = true;
        self.empty()?;
        remove(&self.path)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if !self.is_kept {
            // The failure that led here is the one to report.
            drop(self.empty().and_then(|()| remove(&self.path)));
        }
    }
}

fn password(key: String) -> Result<Password> {
    Password::new(key).ok_or_else(|| Error::failed("the key of the extracted rows is empty"))
}

/// Creates the working directory, unless it exists.
fn make(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(MODE).create(path) {
        Ok(()) => {
            // Independent of the umask.
            let mode = fs::set_permissions(path, fs::Permissions::from_mode(MODE));
            mode.context(format_args!("make {}", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => refuse_foreign(path),
        Err(error) => Err(Error::failed(format!("make {}", path.display())).caused_by(error)),
    }
}

/// Refuses a directory that another user has created, or can write to.
fn refuse_foreign(path: &Path) -> Result<()> {
    if is_ours(path).context(format_args!("look at {}", path.display()))? {
        return Ok(());
    }
    let text = format!("{} is not a directory that only this user can write to", path.display());
    Err(Error::failed(text).hinted("remove it, or name another place to work in with --work-dir"))
}

/// Removes what killed processes left in `place`, except what a load may have begun with. Failures are
/// ignored.
fn sweep(place: &Path, ours: &Path) {
    for (path, lock) in abandoned(place, PREFIX, Some(ours)) {
        let work = WorkDir { is_kept: path.join(BEGUN).exists(), path, _lock: lock };
        drop(work);
    }
}

/// Removes a file, or a directory with everything in it; does not follow links.
fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::failed(format!("remove {}", path.display())).caused_by(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others may pass through the directory, but not see what is restored there.
    #[test]
    fn what_is_restored_is_for_one_user() {
        let place = tempfile::tempdir().unwrap();
        let (work, _) = WorkDir::take(place.path(), "tables", None).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let data = work.new_data().unwrap();
        fs::write(data.join("ibdata1"), "pages").unwrap();
        assert_eq!((mode(work.path()), mode(&data)), (0o711, 0o700));
        assert_eq!(fs::read_dir(work.new_data().unwrap()).unwrap().count(), 0);
    }
}
