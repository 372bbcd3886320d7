//! Where what is restored goes, as paths of this host.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use holdfast_repo::format::item::ItemPath;

pub(super) fn join(dir: &Path, path: &ItemPath) -> PathBuf {
    dir.join(OsStr::from_bytes(path.as_bytes()))
}
