//! How the target leads to files in mapped places: `.isl` files, and links.
//!
//! A MariaDB table with DATA DIRECTORY has an `.isl` file in the place of its `.ibd`, with the path in it. Recovery,
//! however, opens what the redo names, which after relocation is the `.ibd` itself; so while the server recovers there
//! is a link in that place.

use std::{
    ffi::OsStr,
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use holdfast_repo::format::item::ItemPath;

use crate::error::Result;
use crate::restore::{
    plan::{Plan, layout::Pointer},
    roots::Roots,
    target::{Tree, io_failed},
};

/// Where the data directory in the target leads now instead of having the file itself. What cannot be read leads
/// nowhere.
pub(crate) fn leads(tree: &Tree, pointer: &Pointer) -> Vec<PathBuf> {
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

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// What a server needs, whether it recovers now or is started by the user.
    BeforeRecovery,
    /// What replaces the links that recovery needed.
    AfterRecovery,
}

/// Makes the pointers that are due at this time.
pub(crate) fn write(plan: &Plan, roots: &Roots, when: When) -> Result<()> {
    let tree = roots.target();
    for (pointer, goes_to) in &plan.pointers {
        let (link, isl) = match (pointer, when) {
            (Pointer::Link(path) | Pointer::Isl { data: path, .. }, When::BeforeRecovery) => {
                (Some(path), None)
            }
            (Pointer::IslOnly { isl }, When::BeforeRecovery) => (None, Some(isl)),
            (Pointer::Isl { data, isl }, When::AfterRecovery) => {
                tree.remove(data).map_err(|error| io_failed("remove", tree.path_of(data), error))?;
                (None, Some(isl))
            }
            (Pointer::Told, _) | (Pointer::Link(_) | Pointer::IslOnly { .. }, When::AfterRecovery) => {
                continue;
            }
        };
        if let Some(path) = link {
            let link = || {
                tree.create_parent(path)?;
                tree.remove(path)?;
                tree.link(goes_to, path)
            };
            link().map_err(|error| io_failed("link", tree.path_of(path), error))?;
        }
        if let Some(path) = isl {
            let write = || {
                tree.create_parent(path)?;
                tree.remove(path)?;
                let mut file = tree.create_file(path, ISL_MODE)?;
                file.write_all(goes_to.as_os_str().as_bytes())?;
                file.sync_all()
            };
            write().map_err(|error| io_failed("write", tree.path_of(path), error))?;
        }
    }
    Ok(())
}

const ISL_MODE: u16 = 0o640;
/// More than a path can have.
const ISL_BYTES_MAX: u64 = 8 << 10;
