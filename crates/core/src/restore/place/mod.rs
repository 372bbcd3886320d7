//! Gives the files to their owner and makes them durable. Once the recovery has been judged, or if it is left
//! to the user's server, also gives the files without which no server starts their final names.
//!
//! From then on the target is what was judged, or a crash image that a server can recover: to exactly the
//! backup's position, and without leaving the target. The marker stays until the whole restore is done.

pub(super) mod pointers;

use holdfast_repo::format::item::ItemPath;

use super::{
    opened::Opened,
    options::RestoreOptions,
    plan::{
        Plan,
        layout::{Decision, Layout, Pointer},
    },
    roots::Roots,
    target::{io_failed, names::partial_of},
};
use crate::{error::Result, points::point};

/// Gives everything to its owner and makes it durable, under names with which no server starts.
pub(super) fn make_durable(
    opened: &Opened,
    plan: &Plan,
    roots: &Roots,
    options: &RestoreOptions,
) -> Result<()> {
    pointers::write(plan, roots, pointers::When::BeforeRecovery)?;
    if let Some(owner) = plan.owner {
        give_all(opened, roots, options, owner)?;
    }
    roots.sync_names()?;
    point("restore.names.durable");
    Ok(())
}

/// Gives the files without which no server starts their final names,
/// the first file of the system tablespace last.
pub(super) fn give_names(plan: &Plan, roots: &Roots) -> Result<()> {
    let tree = roots.target();
    let failed = |path: &ItemPath, error| io_failed("rename a file to", tree.path_of(path), error);
    // A recovering MySQL server has left its own redo, under the right names.
    for path in plan.redo.paths().rev() {
        let partial = partial_of(path)?;
        if tree.look(&partial).map_err(|error| failed(path, error))?.is_some() {
            tree.rename(&partial, path).map_err(|error| failed(path, error))?;
            point("restore.file.named");
        }
    }
    roots.sync_names()?;
    // `held` is in order of names, ibdata1 before ibdata2.
    for path in plan.held.iter().rev() {
        tree.rename(&partial_of(path)?, path).map_err(|error| failed(path, error))?;
        point("restore.file.named");
    }
    roots.sync_names()?;
    point("restore.files.named");
    Ok(())
}

fn give_all(opened: &Opened, roots: &Roots, options: &RestoreOptions, owner: (u32, u32)) -> Result<()> {
    let tree = roots.target();
    let found = tree.walk().map_err(|error| io_failed("list", tree.path(), error))?;
    for path in found.keys() {
        tree.give(path, owner)
            .map_err(|error| io_failed("change the owner of", tree.path_of(path), error))?;
    }
    tree.give_root(owner).map_err(|error| io_failed("change the owner of", tree.path(), error))?;
    if options.maps.is_empty() {
        return Ok(());
    }
    let mut layout = Layout::of(opened, options)?;
    for item in opened.backup.items() {
        if let Decision::Mapped { place, .. } = layout.decide(&item?)? {
            let tree = roots.tree(place.root)?;
            tree.give(&place.path, owner)
                .map_err(|error| io_failed("change the owner of", tree.path_of(&place.path), error))?;
        }
    }
    // The server makes new files beside these. What was there before is not the restore's to give away.
    roots.give_made(owner)
}

/// Gives away the pointers that were made since. What a server made belongs to its user already.
pub(super) fn give_new(plan: &Plan, roots: &Roots) -> Result<()> {
    let Some(owner) = plan.owner else { return Ok(()) };
    let tree = roots.target();
    let isl = plan.pointers.iter().filter_map(|(pointer, _)| match pointer {
        Pointer::Isl { isl, .. } => Some(isl),
        Pointer::IslOnly { .. } | Pointer::Link(_) | Pointer::Told => None,
    });
    for path in isl.filter(|path| matches!(tree.look(path), Ok(Some(_)))) {
        tree.give(path, owner)
            .map_err(|error| io_failed("change the owner of", tree.path_of(path), error))?;
    }
    Ok(())
}
