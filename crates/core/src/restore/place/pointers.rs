//! How the target leads to files in mapped places: `.isl` files, and links.
//!
//! A MariaDB table with DATA DIRECTORY has an `.isl` file in the place of its `.ibd`, with the path in it.
//! Recovery, however, opens what the redo names, which after relocation is the `.ibd` itself; so while the
//! server recovers there is a link in that place.

use std::{io::Write, os::unix::ffi::OsStrExt};

use crate::error::Result;
use crate::restore::{
    plan::{Plan, layout::Pointer},
    roots::Roots,
    target::io_failed,
};

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
