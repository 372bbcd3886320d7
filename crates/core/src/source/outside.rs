//! Files of the server itself that its options put outside the data directory: the system tablespace, undo
//! tablespaces, the Aria log. In a backup they are at the top of the data directory, where a restored server
//! without these options looks for them.

use std::{
    fs::DirEntry,
    io,
    path::{Path, PathBuf},
};

use super::{
    CaptureOptions, Role,
    files::{Entry, Stat, read_failed},
    tablespace::{Continues, TablespaceEntry},
};
use crate::{
    error::{Error, Result},
    server::ServerFacts,
};

/// The files found outside the data directory.
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
    /// Looks where the options point. `is_undo` recognises an undo tablespace by its name.
    pub(super) fn find(
        facts: &ServerFacts,
        options: &CaptureOptions,
        is_undo: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let inside = facts.resolved(Path::new(""));
        let real = |path: &Path| options.map_path(path).canonicalize().ok();
        // A link may lead to the data directory, and an option name what it leads to.
        let really = real(&inside);
        let is_inside = |dir: &Path| dir.starts_with(&inside) || really.is_some() && real(dir) == really;
        let is_outside = |dir: &PathBuf| !is_inside(dir);
        let is_file_outside = |file: &PathBuf| !file.parent().is_some_and(is_inside);
        let mut found = Self::default();
        for file in facts.system_files()?.into_iter().filter(is_file_outside) {
            let here = options.map_path(&file);
            found.system.push(entry(&here)?.ok_or_else(|| no_system_file(&here))?);
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

/// The error for a file of the system tablespace that cannot be seen here.
pub(super) fn no_system_file(path: &Path) -> Error {
    Error::failed(format!("{}: file of the system tablespace not found", path.display()))
        .hinted("the server uses it; it may be on a volume that this process cannot see: see --path-map")
}

/// Sets where in the system tablespace each of its files begins: only the first has a page 0 of its own. All
/// but the last have a fixed size.
pub(super) fn number_system_files(facts: &ServerFacts, tablespaces: &mut [TablespaceEntry]) -> Result<()> {
    let order = facts.system_file_names()?;
    let mut found: Vec<_> = tablespaces
        .iter_mut()
        .filter(|found| found.role == Role::System)
        .filter_map(|found| {
            let position = order.iter().position(|name| *name == found.entry.path)?;
            Some((position, found))
        })
        .collect();
    found.sort_by_key(|(position, _)| *position);
    let mut files = found.into_iter().map(|(_, found)| found);
    if files.len() != order.len() {
        return Err(Error::failed(format!(
            "the system tablespace has {} files ({}), and {} of them were found",
            order.len(),
            order.join(", "),
            files.len()
        ))
        .hinted(
            "check innodb_data_home_dir and innodb_data_file_path, and map the paths with --path-map if this \
             process sees them elsewhere",
        ));
    }
    let Some(first) = files.next() else { return Ok(()) };
    let page_size = u64::from(facts.innodb.page_size).max(1);
    let mut first_page = first.entry.size_bytes / page_size;
    for file in files {
        file.continues = Some(Continues { first_file: first.entry.real.clone(), first_page });
        first_page += file.entry.size_bytes / page_size;
    }
    Ok(())
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
    let stat = match Stat::of(file) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_failed(file, error)),
    };
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    Ok(Some(Entry {
        path: name.to_owned(),
        real: file.to_owned(),
        outside: true,
        size_bytes: stat.size_bytes(),
        is_dir: false,
        mode: 0o660,
        stat,
    }))
}
