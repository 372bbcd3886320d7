//! The turn of a backup with hooks: on one host, one of a source at a time, whatever it goes to.
//!
//! The repository says which backups are active, but only between their hooks.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

/// A lock that ends with this value, or with the process however that ends.
pub(crate) struct Turn {
    path: PathBuf,
    _lock: File,
}

impl Turn {
    /// Takes the turn of what `name` stands for; `None` if another process has it.
    pub(crate) fn take(directory: &Path, name: &str) -> io::Result<Option<Self>> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = directory.join(name);
        loop {
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // Whoever had it may have removed the file since it was opened: then this lock excludes nobody.
            let (held, there) = (file.metadata()?, fs::metadata(&path));
            match there {
                Ok(there) if (there.dev(), there.ino()) == (held.dev(), held.ino()) => {
                    return Ok(Some(Self { path, _lock: file }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // What stays there is empty, and locks nothing.
        let _gone = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_a_turn_at_a_time_and_it_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let turns = dir.path().join("a/turns");
        let take = |name| Turn::take(&turns, name).unwrap();
        let first = take("db1");
        assert!(first.is_some() && take("db1").is_none() && take("db2").is_some());
        drop(first);
        assert!(fs::read_dir(&turns).unwrap().next().is_none());
        // What a killed process has left is no lock.
        fs::write(turns.join("db1"), "").unwrap();
        assert!(take("db1").is_some());
    }
}
