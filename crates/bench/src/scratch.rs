//! The working directory of a run, and the data directories that are kept between runs.
//!
//! Only one run at a time can hold the lock on the directory.
//! A run removes what it has created; leftovers of a killed run are removed by the next.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// The locked directory of this run.
pub(crate) struct Scratch {
    cache: PathBuf,
    work: PathBuf,
    logs: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Opens the cache, or the named directory instead, removes leftovers of other runs and checks the free
    /// space.
    pub(crate) fn open(dir: Option<&Path>, bytes_needed: u64) -> Result<Scratch> {
        let cache = match dir {
            Some(dir) => dir.to_path_buf(),
            None => cache_dir()?,
        };
        fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
        let cache = cache.canonicalize()?;
        let lock = File::create(cache.join("lock"))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another run works in {}", cache.display());
        }
        let work = cache.join("work");
        if work.exists() {
            fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
        }
        let logs = work.join("logs");
        fs::create_dir_all(&logs)?;
        let space = rustix::fs::statvfs(&cache)?;
        let free_bytes = space.f_bavail * space.f_frsize;
        ensure!(
            free_bytes > bytes_needed,
            "{} MB are needed in {}, {} MB are free\nhint: name another directory with --work-dir, or less data with --size-mib.",
            bytes_needed / 1_000_000,
            cache.display(),
            free_bytes / 1_000_000
        );
        Ok(Scratch { cache, work, logs, _lock: lock })
    }

    /// The parent of the kept data directories.
    pub(crate) fn datasets(&self) -> PathBuf {
        self.cache.join("datasets")
    }

    /// The output of the last command.
    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }

    /// The directory that contains everything of this run.
    pub(crate) fn path(&self) -> &Path {
        &self.work
    }

    /// Removes paths of this machine from `text`, since results are read on other machines.
    pub(crate) fn without_paths(&self, text: &str) -> String {
        text.replace(&*self.work.to_string_lossy(), "$WORK")
    }

    /// Creates a directory that is removed when it is dropped.
    pub(crate) fn dir(&self, prefix: &str) -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix(prefix).tempdir_in(&self.work)?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.work).ok();
    }
}

/// `HOLDFAST_BENCH_CACHE`, or a directory that all clones share.
/// It is on a real disk, which temporary directories often are not.
fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("HOLDFAST_BENCH_CACHE") {
        return Ok(dir.into());
    }
    let home = env::var_os("HOME").context("neither HOLDFAST_BENCH_CACHE nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/holdfast/bench"))
}
