//! Files of the server itself that its options put outside the data directory: the system tablespace, undo tablespaces,
//! the Aria log. In a backup they lie at the top of the data directory, where a restored server without these options
//! looks for them.

use std::{
    fs::DirEntry,
    io,
    path::{Path, PathBuf},
};

use super::{
    CaptureOptions,
    files::{Entry, read_failed},
};
use crate::{error::Result, server::ServerFacts};

/// What there is outside.
#[derive(Debug, Default)]
pub(super) struct OutsideFiles {
    /// Files of the system tablespace.
    pub(super) system: Vec<Entry>,
    /// Undo tablespaces.
    pub(super) undo: Vec<Entry>,
    /// Aria's control file and logs.
    pub(super) aria: Vec<Entry>,
}

impl OutsideFiles {
    /// Looks where the options point to. `is_undo` knows an undo tablespace by its name.
    pub(super) fn find(
        facts: &ServerFacts,
        options: &CaptureOptions,
        is_undo: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let inside = facts.resolved(Path::new(""));
        let is_outside = |path: &PathBuf| !path.starts_with(&inside);
        let mut found = Self::default();
        for file in facts.system_files()?.into_iter().filter(is_outside) {
            found.system.extend(entry(&options.map_path(&file))?);
        }
        if let Some(dir) = Some(facts.undo_dir()).filter(is_outside) {
            found.undo = list(&options.map_path(&dir), is_undo)?;
        }
        if let Some(dir) = facts.aria_log_dir().filter(is_outside) {
            found.aria = list(&options.map_path(&dir), |name| {
                name == "aria_log_control" || name.starts_with("aria_log.")
            })?;
        }
        Ok(found)
    }
}

fn list(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Entry>> {
    let failed = |error: io::Error| read_failed(dir, error);
    let is_wanted = |found: &DirEntry| found.file_name().to_str().is_some_and(&wanted);
    let mut entries = Vec::new();
    for found in std::fs::read_dir(dir).map_err(failed)? {
        let found = found.map_err(failed)?;
        if is_wanted(&found) {
            entries.extend(entry(&found.path())?);
        }
    }
    Ok(entries)
}

fn entry(file: &Path) -> Result<Option<Entry>> {
    let metadata = match std::fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_failed(file, error)),
    };
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    Ok(Some(Entry {
        path: name.to_owned(),
        real: file.to_owned(),
        outside: true,
        size_bytes: metadata.len(),
        is_dir: false,
        mode: 0o660,
    }))
}
