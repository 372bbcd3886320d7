//! What says that a restore is not complete: the marker, and how far the restore has come by it.
//!
//! Invariant: before the final names are given, with which a server can be started, the marker says so, and
//! what the files are then. From there on no restore writes to them without a delta.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use holdfast_repo::format::item::ItemPath;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Found, FoundKind, Tree, io_failed,
    names::{MARKER, NEW_MARKER, REPORT, own_path},
};
use crate::{
    error::Result,
    restore::{backup_id::BackupId, report::RestoreReport},
};

/// Longest file of ours that is read.
const OWN_BYTES_MAX: u64 = 64 << 20;

/// What the marker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::restore) struct Marker {
    pub(in crate::restore) backup: BackupId,
    /// Files in mapped places that are the interrupted restore's own. It has none before it sets files aside.
    #[serde(default)]
    pub(in crate::restore) mapped: Vec<PathBuf>,
    /// Directories of mapped places that it has made.
    #[serde(default)]
    pub(in crate::restore) made: Vec<PathBuf>,
    /// Whether what was there before is still as it was: a server can be started on it, and it is nobody's
    /// leftover.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::restore) untouched: bool,
    /// Nothing was missing but final names and the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::restore) named: Option<Named>,
}

/// A restore before the final names are given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::restore) struct Named {
    pub(in crate::restore) report: RestoreReport,
    /// Names that disappear when the final ones are given.
    pub(in crate::restore) unnamed: Vec<String>,
    /// [`state_of`] the files.
    pub(in crate::restore) state: String,
}

impl Marker {
    pub(in crate::restore) fn new(backup: BackupId, made: Vec<PathBuf>) -> Self {
        Self { backup, mapped: Vec::new(), made, untouched: false, named: None }
    }
}

impl Named {
    pub(in crate::restore) fn is_complete(&self, found: &BTreeMap<ItemPath, Found>) -> bool {
        let names: BTreeSet<String> = found.keys().map(ToString::to_string).collect();
        !self.unnamed.iter().any(|name| names.contains(name))
    }
}

/// Tells whether any file was written to, made or removed in between, whatever their names are. `but`: names
/// of files that do not count.
pub(in crate::restore) fn state_of(found: &BTreeMap<ItemPath, Found>, but: &[ItemPath]) -> String {
    let is_own = |path: &ItemPath| is_marker(path) || path.as_bytes() == REPORT.as_bytes();
    let counts = |(path, found): &(&ItemPath, &Found)| {
        found.kind == FoundKind::File && !is_own(path) && !but.contains(path)
    };
    let files = found.iter().filter(counts).map(|(_, found)| (found.modified_ns, found.size_bytes));
    let mut files: Vec<_> = files.collect();
    files.sort_unstable();
    let mut hash = blake3::Hasher::new();
    for (modified_ns, size_bytes) in files {
        hash.update(&modified_ns.to_le_bytes()).update(&size_bytes.to_le_bytes());
    }
    hash.finalize().to_string()
}

/// Whether a restore puts its marker there.
pub(in crate::restore) fn is_marker(path: &ItemPath) -> bool {
    [MARKER, NEW_MARKER].map(str::as_bytes).contains(&path.as_bytes())
}

/// What one of our own files says. One that was being written when the power failed says nothing.
pub(in crate::restore) fn read<T: DeserializeOwned>(tree: &Tree, name: &str) -> Result<Option<T>> {
    let path = own_path(name)?;
    let failed = |error| io_failed("read", tree.path_of(&path), error);
    let Some(file) = tree.open_file(&path).map_err(failed)? else { return Ok(None) };
    read_open(&file).map_err(failed)
}

/// What one of our own files says that is open.
pub(in crate::restore) fn read_open<T: DeserializeOwned>(file: &File) -> io::Result<Option<T>> {
    let mut text = String::new();
    file.take(OWN_BYTES_MAX).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text).ok())
}
