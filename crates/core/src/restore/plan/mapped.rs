//! Files that a mapping puts outside of the target: which of them may replace what is there.

use std::path::{Path, PathBuf};

use super::{layout::Pointer, leads::leads};
use crate::{
    error::{Error, ErrorKind, Result},
    real_path::real_path,
    restore::{
        opened::Opened,
        options::RestoreOptions,
        target::{
            Found, Tree,
            in_use::is_open_elsewhere,
            io_failed,
            survey::{Standing, Survey, changed},
        },
    },
};

/// A file in a mapped place.
pub(in crate::restore) struct MappedFile {
    pub(in crate::restore) path: PathBuf,
    /// What is there, and is replaced.
    pub(super) found: Option<Found>,
}

impl MappedFile {
    /// A file in a mapped place may exist already only if it is ours, or if it belongs to the data directory
    /// in the target, the user wants that replaced, and the redo is not encrypted. Nobody may use it.
    pub(super) fn allow(
        path: PathBuf,
        pointer: &Pointer,
        opened: &Opened,
        options: &RestoreOptions,
        survey: &Survey,
    ) -> Result<Self> {
        let found = Found::at(&path).map_err(|error| io_failed("look at", &path, error))?;
        if found.is_none() {
            return Ok(Self { path, found });
        }
        let own_marker = survey.own_marker();
        let ours = own_marker.is_some_and(|marker| marker.mapped.contains(&path));
        let redo_encrypted = opened.redo_encrypted();
        let is_of_target = || is_of_target(&path, pointer, &options.target_dir, survey);
        if !ours && (!options.delta || redo_encrypted || !is_of_target()?) {
            return Err(in_the_way(&path, pointer, redo_encrypted));
        }
        refuse_in_use(&path)?;
        Ok(Self { path, found })
    }

    /// Fails if what is there is not what was planned for.
    pub(in crate::restore) fn check(&self) -> Result<()> {
        let now = Found::at(&self.path).map_err(|error| io_failed("look at", &self.path, error))?;
        let is_unchanged = match (&now, &self.found) {
            (Some(now), Some(before)) => now.is_unchanged(before),
            (now, before) => now.is_none() && before.is_none(),
        };
        match is_unchanged {
            true => refuse_in_use(&self.path),
            false => Err(changed(&self.path)),
        }
    }
}

/// Whether the data directory in the target leads to this file.
fn is_of_target(goes_to: &Path, pointer: &Pointer, target: &Path, survey: &Survey) -> Result<bool> {
    if survey.standing == Standing::Free {
        return Ok(false);
    }
    let tree = Tree::open(target).map_err(|error| io_failed("open", target, error))?;
    let goes_to = real_path(goes_to)?;
    for path in leads(&tree, pointer).iter().chain(&survey.mapped) {
        if real_path(path)? == goes_to {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The error for a file in a mapped place. If the redo is encrypted, such a file is never replaced, and
/// mapping a table elsewhere may not be possible. MySQL's data directory leads to no file.
fn in_the_way(path: &Path, pointer: &Pointer, redo_encrypted: bool) -> Error {
    let error = Error::new(ErrorKind::Usage, format!("{} exists already", path.display()));
    error.hinted(match (redo_encrypted, pointer) {
        (true, _) => "move that file away: if the redo is encrypted, --delta does not replace mapped files",
        (false, Pointer::Told) => {
            "move that file away first, or map to a directory without it; --delta replaces it only if the report of \
             a restore, in the target, names it"
        }
        (false, _) => {
            "map to a directory without this file; --delta replaces it only if the data directory in the target \
             leads to it"
        }
    })
}

/// Refuses a file that another process has open.
fn refuse_in_use(path: &Path) -> Result<()> {
    match is_open_elsewhere(path).map_err(|error| io_failed("look at", path, error))? {
        false => Ok(()),
        true => Err(Error::failed(format!("another process has {} open", path.display()))
            .hinted("stop the server that uses it, or map to another directory")),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_repo::format::item::ItemPath;

    use super::*;

    /// No hint advises what would be refused.
    #[test]
    fn what_helps_if_a_mapped_file_exists() {
        let hint = |pointer: &Pointer, redo_encrypted| {
            in_the_way(Path::new("/x/t.ibd"), pointer, redo_encrypted).hint().unwrap().to_owned()
        };
        let link = Pointer::Link(ItemPath::new("db/t.MYD").unwrap());
        assert!(hint(&link, false).contains("--delta replaces it only"));
        assert!(hint(&Pointer::Told, false).contains("move that file away first"));
        for pointer in [link, Pointer::Told] {
            let hint = hint(&pointer, true);
            assert!(!hint.contains("--delta replaces it only") && !hint.contains("map to"));
        }
    }
}
