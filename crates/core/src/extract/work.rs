//! The working directory of an extraction: `holdfast-extract-<16 hex>` in a directory of the user's.
//!
//! Invariants:
//! - It is this user's, nobody else can write to it, and one process at a time works in it: the lock file says so, and is let
//!   go by whoever dies.
//! - It goes when the extraction ends, however it ends, unless it holds rows that a load has begun with. Those are taken up by
//!   the same command, if the target says that it is being loaded from them: a load goes on with the very chunks it was begun
//!   with. Nobody else uses or removes them.
//! - Anything else that a killed process left is removed by the next that is given the same place to work in.
//!
//! The server that recovers runs as another user where we are root, so it may pass through, but sees only what is given to
//! it; rows are in a repository of its own, with a key that is beside it and goes with it.

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
/// Says that the rows are complete, and what they are.
const READY: &str = "ready.json";
/// Says that a load may have been begun with the rows.
const BEGUN: &str = "begun";
/// A directory may be removed between the moments at which it is made and locked.
const TRIES_MAX: usize = 10;
/// Others may pass through, to what is given to them.
const MODE: u32 = 0o711;
const MODE_OURS: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A working directory that is ours.
pub(super) struct WorkDir {
    path: PathBuf,
    is_kept: bool,
    /// Held as long as we are.
    _lock: File,
}

impl WorkDir {
    /// Takes the directory for work of this identity in `place`, and removes what nobody needs there. `wanted`: the repository
    /// that an unfinished load loads from; if it is the one here, it is taken up.
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
                    let hint = "it extracts the same, or removes what a killed process left: wait for it";
                    return Err(Error::new(ErrorKind::Active, text).hinted(hint));
                }
                // Somebody has just removed it, who took it for what a killed process left.
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

    /// Where a restore goes.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join(DATA)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the restored files.
    pub(super) fn remove_data(&self) -> Result<()> {
        remove(&self.data())
    }

    /// A new repository for rows.
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
        // The key has all the strength that a slow derivation would give a word.
        let protection = Protection::Password { password: &password, kdf: KdfParams::MINIMUM };
        Ok(Arc::new(Repo::init(Arc::new(store), &protection).context(failed("make"))?))
    }

    /// The repository of an extraction that is ready.
    pub(super) fn rows(&self) -> Result<Arc<Repo>> {
        let path = self.path.join(ROWS).join("repository");
        let failed = || format!("open {}", path.display());
        let key_path = self.path.join(KEY);
        let key = fs::read_to_string(&key_path).context(format_args!("read {}", key_path.display()))?;
        let store = FsStore::open(&path).context(failed())?;
        Ok(Arc::new(Repo::open(Arc::new(store), Some(&password(key)?)).context(failed())?))
    }

    /// Notes that all rows are there.
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

    /// Notes that a load is about to begin with the rows: from here on they are needed, whatever becomes of us.
    pub(super) fn set_begun(&self) -> Result<()> {
        let path = self.path.join(BEGUN);
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(FILE_MODE);
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let written = options.open(&path).and_then(|file| file.sync_all());
        let written = written.and_then(|()| File::open(&self.path)?.sync_all());
        written.context(format_args!("write {}", path.display()))
    }

    /// What is ready here, if a load was begun with it that goes on with this repository. Where that cannot be told for now,
    /// nothing is taken for it, and nothing removed: the load has nothing else to go on with.
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
                "an unfinished load may need the rows in {}: who has dropped what it has made removes the directory",
                self.path.display()
            ))
        })
    }

    /// Removes everything in it but the lock.
    fn empty(&self) -> Result<()> {
        // First what says that the rest is whole, and that it is needed: whoever is killed behind that leaves what is swept.
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

    /// Leaves it for the next process.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Removes it, and says if that fails.
    pub(super) fn remove(mut self) -> Result<()> {
        self.is_kept = true;
        self.empty()?;
        remove(&self.path)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if !self.is_kept {
            // The failure that brings us here is what is told.
            drop(self.empty().and_then(|()| remove(&self.path)));
        }
    }
}

fn password(key: String) -> Result<Password> {
    Password::new(key).ok_or_else(|| Error::failed("the key of the extracted rows is empty"))
}

/// Makes the working directory, if it is not there.
fn make(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(MODE).create(path) {
        Ok(()) => {
            // Whatever the mask is.
            let mode = fs::set_permissions(path, fs::Permissions::from_mode(MODE));
            mode.context(format_args!("make {}", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => refuse_foreign(path),
        Err(error) => Err(Error::failed(format!("make {}", path.display())).caused_by(error)),
    }
}

/// A directory that somebody else has made, or can write to, is not worked in.
fn refuse_foreign(path: &Path) -> Result<()> {
    if is_ours(path).context(format_args!("look at {}", path.display()))? {
        return Ok(());
    }
    let text = format!("{} is not a directory that only this user can write to", path.display());
    Err(Error::failed(text).hinted("remove it, or name another place to work in with --work-dir"))
}

/// Removes what killed processes left in `place`: not what a load may have been begun with. What cannot be removed stays.
fn sweep(place: &Path, ours: &Path) {
    for (path, lock) in abandoned(place, PREFIX, Some(ours)) {
        let work = WorkDir { is_kept: path.join(BEGUN).exists(), path, _lock: lock };
        drop(work);
    }
}

/// Removes a file, or a directory with all that is in it; follows no links.
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
