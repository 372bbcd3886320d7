//! Checks whether the target may be written to.
//!
//! Invariant: nothing is written into a directory that holds anything, unless an interrupted restore of the
//! same backup left it, or the user asked for a delta and it is a data directory. Nor while a server runs on
//! it ([`super::server_locks`]).

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use holdfast_repo::format::item::ItemPath;

use super::{
    Found, Tree, io_failed,
    marker::{Marker, is_marker, read, state_of},
    names::{MARKER, REPORT, own_path},
    server_locks::{ServerLocks, wait_for_its_server},
};
use crate::{
    data_directory::SIGNS,
    error::{Error, ErrorKind, Result},
    restore::{backup_id::BackupId, report::RestoreReport},
};

/// What a restore leaves in a data directory, besides the signs of any.
const SIGNS_OF_A_RESTORE: [&str; 3] = ["ibdata1.partial", MARKER, REPORT];

/// What is in the target before anything is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::restore) enum Standing {
    /// Nothing, or not even the directory.
    Free,
    /// What an interrupted restore of the same backup left.
    Ours,
    /// A restore of the same backup, complete except for its report, and not used since.
    Complete,
    /// A data directory, or what a restore of another backup left.
    Other,
}

/// The target as it was found.
pub(in crate::restore) struct Survey {
    pub(in crate::restore) standing: Standing,
    /// Everything in it.
    pub(in crate::restore) found: BTreeMap<ItemPath, Found>,
    pub(in crate::restore) marker: Option<Marker>,
    /// Files in mapped places that belong to it, as those say who restored it.
    pub(in crate::restore) mapped: Vec<PathBuf>,
    /// Its owner, where it exists.
    pub(in crate::restore) owner: Option<(u32, u32)>,
}

impl Survey {
    /// The marker, if it is this restore's.
    pub(in crate::restore) fn own_marker(&self) -> Option<&Marker> {
        self.marker.as_ref().filter(|_| matches!(self.standing, Standing::Ours | Standing::Complete))
    }
}

/// Looks at the target, and refuses one that must not be touched. Changes nothing.
pub(in crate::restore) fn survey(target: &Path, delta: bool, backup: &BackupId) -> Result<Survey> {
    let tree = match Tree::open(target) {
        Ok(tree) => tree,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (found, marker, mapped) = Default::default();
            return Ok(Survey { standing: Standing::Free, found, marker, mapped, owner: None });
        }
        Err(error) => return Err(io_failed("open", target, error)),
    };
    let owner = Some(tree.owner().map_err(|error| io_failed("look at", target, error))?);
    let walk = || tree.walk().map_err(|error| io_failed("list", target, error));
    let mut found = walk()?;
    let marker: Option<Marker> = read(&tree, MARKER)?;
    let touched = marker.as_ref().filter(|marker| !marker.untouched);
    let mut mapped = touched.map_or_else(Vec::new, |marker| marker.mapped.clone());
    // Somebody else's report, or none, tells nothing.
    let report: Option<RestoreReport> = read(&tree, REPORT).ok().flatten();
    mapped.extend(report.into_iter().flat_map(|report| report.mapped));
    if marker.is_none() && found.keys().all(is_marker) {
        return Ok(Survey { standing: Standing::Free, found, marker, mapped, owner });
    }
    let is_ours = marker.as_ref().is_some_and(|marker| marker.backup == *backup && !marker.untouched);
    if !is_ours {
        let what = marker.as_ref().map(|marker| format!("holds an unfinished restore of {}", marker.backup));
        refuse_unless(delta, &found, target, what)?;
    }
    let path = own_path(MARKER)?;
    if found.contains_key(&path) {
        if tree.is_locked(&path).map_err(|error| io_failed("look at", tree.path_of(&path), error))? {
            return Err(another_restore(target));
        }
        if wait_for_its_server(&tree, &found)? {
            found = walk()?;
        }
    }
    ServerLocks::take(&tree, &found, &[])?;
    let named = marker.as_ref().filter(|_| is_ours).and_then(|marker| marker.named.as_ref());
    let standing = match named.filter(|named| named.is_complete(&found)) {
        // What is complete is somebody's data.
        Some(_) if delta => Standing::Other,
        Some(named) if named.state == state_of(&found, &[]) => Standing::Complete,
        Some(_) => return Err(used_since(target)),
        None if is_ours => Standing::Ours,
        None => Standing::Other,
    };
    Ok(Survey { standing, found, marker, mapped, owner })
}

fn refuse_unless(
    delta: bool,
    found: &BTreeMap<ItemPath, Found>,
    target: &Path,
    what: Option<String>,
) -> Result<()> {
    let refused = |why: &str, hint: &str| {
        Err(Error::new(ErrorKind::Usage, format!("{} {why}", target.display())).hinted(hint))
    };
    let known = |sign: &str| found.keys().any(|path| path.as_bytes() == sign.as_bytes());
    let is_data_directory = SIGNS.into_iter().chain(SIGNS_OF_A_RESTORE).any(known);
    match (delta, is_data_directory) {
        (true, true) => Ok(()),
        (false, true) => refused(
            what.as_deref().unwrap_or("is not empty"),
            "name another directory, or use --delta to make what is there into the backup",
        ),
        (false, false) => refused(what.as_deref().unwrap_or("is not empty"), "name another directory"),
        (true, false) => refused(
            "does not look like a data directory, and --delta would delete what is in it",
            "name the data directory itself, or an empty directory",
        ),
    }
}

fn used_since(target: &Path) -> Error {
    let text = format!(
        "the restore into {} was interrupted when only its report was missing, and the directory was used since",
        target.display()
    );
    Error::new(ErrorKind::Usage, text).hinted(format!(
        "to keep what is there, remove {MARKER}; to make it into the backup again, use --delta"
    ))
}

/// The error if something is no longer as it was planned for.
pub(in crate::restore) fn changed(path: &Path) -> Error {
    Error::failed(format!("{} has changed since it was looked at", path.display()))
        .hinted("run the restore again: it looks again, and says what it will do")
}

pub(in crate::restore) fn another_restore(target: &Path) -> Error {
    Error::new(ErrorKind::Active, format!("another restore is writing to {}", target.display()))
}
