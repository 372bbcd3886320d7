//! Which files outside of the target belong to the data directory in it.

use std::{ffi::OsStr, io::Read, os::unix::ffi::OsStrExt, path::PathBuf};

use holdfast_repo::format::item::ItemPath;

use super::layout::Pointer;
use crate::restore::target::Tree;

/// More than a path can have.
const ISL_BYTES_MAX: u64 = 8 << 10;

/// Where the data directory in the target leads now instead of having the file itself. What cannot be read
/// leads nowhere.
pub(super) fn leads(tree: &Tree, pointer: &Pointer) -> Vec<PathBuf> {
    let (link, isl) = match pointer {
        Pointer::Isl { data, isl } => (Some(data), Some(isl)),
        Pointer::IslOnly { isl } => (None, Some(isl)),
        Pointer::Link(path) => (Some(path), None),
        Pointer::Told => (None, None),
    };
    let of_link = |path: &ItemPath| Some(tree.path_of(path).parent()?.join(tree.read_link(path).ok()?));
    let of_isl = |path: &ItemPath| {
        let mut text = Vec::new();
        tree.open_file(path).ok()??.take(ISL_BYTES_MAX).read_to_end(&mut text).ok()?;
        Some(tree.path().join(OsStr::from_bytes(text.trim_ascii_end())))
    };
    link.and_then(of_link).into_iter().chain(isl.and_then(of_isl)).collect()
}
