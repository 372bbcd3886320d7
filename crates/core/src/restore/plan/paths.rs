//! Where what is restored goes, as paths of this host.

use std::path::{Path, PathBuf};

use holdfast_repo::format::item::ItemPath;

use crate::{error::Result, restore::target::io_failed};

/// The target as an absolute path, whether it exists or not.
pub(in crate::restore) fn absolute(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => std::path::absolute(path).map_err(|error| io_failed("find", path, error)),
    }
}

pub(super) fn join(dir: &Path, path: &ItemPath) -> PathBuf {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    dir.join(OsStr::from_bytes(path.as_bytes()))
}
