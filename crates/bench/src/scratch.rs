//! Where a run works, and where data directories are kept between runs.
//!
//! One run at a time: the lock says whose the directory is. A run removes what it has made; what a killed one left is removed
//! by the next.

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
    /// Opens the cache, or the directory named instead, removes what is left in it of other runs and checks its space.
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

    /// Where data directories are kept.
    pub(crate) fn datasets(&self) -> PathBuf {
        self.cache.join("datasets")
    }

    /// What the last command printed.
    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }

    /// The directory that everything of this run is in.
    pub(crate) fn path(&self) -> &Path {
        &self.work
    }

    /// `text` without the paths of this machine: a result is read on others.
    pub(crate) fn without_paths(&self, text: &str) -> String {
        text.replace(&*self.work.to_string_lossy(), "$WORK")
    }

    /// A new directory that goes when it is dropped.
    pub(crate) fn dir(&self, prefix: &str) -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix(prefix).tempdir_in(&self.work)?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.work).ok();
    }
}

/// `HOLDFAST_BENCH_CACHE`, or a directory that all clones share. On a real disk: temporary directories often are none.
fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("HOLDFAST_BENCH_CACHE") {
        return Ok(dir.into());
    }
    let home = env::var_os("HOME").context("neither HOLDFAST_BENCH_CACHE nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/holdfast/bench"))
}
