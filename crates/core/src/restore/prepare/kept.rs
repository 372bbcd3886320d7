//! Whether recovery has left every table its file. A server deletes files of tablespaces that were dropped, and says
//! nothing about it; if it takes the file of another table for one of those, no error tells.

use holdfast_formats::table_name::{TableFile, is_of_fulltext_index};
use holdfast_repo::format::item::{FileRole, ItemPath};

use crate::{
    error::{Error, Result},
    name_list::first_of,
    restore::{
        opened::Opened,
        options::RestoreOptions,
        plan::layout::{Decision, Layout},
        roots::Roots,
        target::io_failed,
    },
};

/// How many files an error names.
const NAMED_MAX: usize = 5;

/// Fails if a table's file that was restored is gone.
pub(super) fn require_files(opened: &Opened, options: &RestoreOptions, roots: &Roots) -> Result<()> {
    let mut layout = Layout::of(opened, options)?;
    let mut gone = Vec::new();
    for item in opened.backup.items() {
        let item = item?;
        let place = match layout.decide(&item)? {
            Decision::File { place, held: false } | Decision::Mapped { place, .. } => place,
            _ => continue,
        };
        if item.role != FileRole::Tablespace || may_go(&place.path) {
            continue;
        }
        let tree = roots.tree(place.root)?;
        let shown = tree.path_of(&place.path);
        if tree.look(&place.path).map_err(|error| io_failed("look at", &shown, error))?.is_none() {
            gone.push(shown.display().to_string());
        }
    }
    match gone.is_empty() {
        true => Ok(()),
        false => Err(Error::failed(format!(
            "recovery has removed files of tables that the backup has: {}",
            first_of(&gone, NAMED_MAX)
        ))
        .hinted("keep the backup, and report this: its rows are in those files, and restore --no-prepare gives them")),
    }
}

/// Whether recovery may remove a file: those of a statement that was at work, which it rolls back. Among them are those
/// of a full-text index that was being added to a table. No other tablespace ever had the name of one of those.
fn may_go(path: &ItemPath) -> bool {
    let file = std::str::from_utf8(path.as_bytes()).ok().and_then(TableFile::from_path);
    file.is_some_and(|file| file.is_temporary() || is_of_fulltext_index(&file.table))
}
