//! Whether recovery has left every table its file. A server deletes files of tablespaces that were dropped, and says
//! nothing about it; if it takes the file of another table for one of those, no error tells.

use holdfast_repo::format::item::FileRole;

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
/// How names of tables begin that a statement makes for the time that it takes: recovery may drop those.
const INTERMEDIATE: &[u8] = b"#sql";

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
        let name = place.path.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if item.role != FileRole::Tablespace || name.starts_with(INTERMEDIATE) {
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
