//! Moves the finished files to their places, those without which no server starts last.

use holdfast_repo::format::item::ItemPath;

use super::{
    super::{
        done::Written,
        target::{
            FoundKind, Tree, io_failed,
            names::{PRIVATE, own_path, partial_of, private_of},
        },
    },
    plan::{Plan, is_removed},
};
use crate::{
    error::{Context, Result},
    points::point,
};

/// Removes what an interrupted restore left; not the obstacles in place of the files without which no server
/// starts.
pub(super) fn clear(target: &Tree, plan: &Plan) -> Result<()> {
    let aside = plan.held.iter().chain([&plan.redo]).map(partial_of).collect::<Result<Vec<_>>>()?;
    // Path order puts a directory before its contents.
    let found = plan.survey.found.keys().rev().filter(|path| is_removed(path, &plan.held));
    for path in found.chain(&aside) {
        target.remove(path).map_err(|error| io_failed("remove", target.path_of(path), error))?;
    }
    Ok(())
}

/// The number and size of the files.
pub(super) fn measure(new_dir: &Tree) -> Result<Written> {
    let mut written = Written::default();
    let found = new_dir.walk().map_err(|error| io_failed("list", new_dir.path(), error))?;
    for found in found.values().filter(|found| found.kind == FoundKind::File) {
        written.files += 1;
        written.bytes += found.size_bytes;
        written.bytes_written += found.allocated_bytes;
    }
    Ok(written)
}

/// Makes everything durable.
pub(super) fn make_durable(new_dir: &Tree) -> Result<Written> {
    new_dir.sync_all().map_err(|error| io_failed("write", new_dir.path(), error))?;
    let written = measure(new_dir)?;
    point("rebuild.durable");
    Ok(written)
}

/// Moves everything.
pub(super) fn run(target: &Tree, plan: &Plan) -> Result<()> {
    let move_to = |path: &ItemPath| {
        let moved = target.rename(&private_of(path)?, path);
        moved.map_err(|error| io_failed("rename a file to", target.path_of(path), error))
    };
    let listed = target
        .list(PRIVATE.as_bytes())
        .map_err(|error| io_failed("list", target.path().join(PRIVATE), error))?;
    for (name, _) in listed {
        let path = ItemPath::new(name).context("read the name of a file")?;
        if !plan.held.contains(&path) {
            move_to(&path)?;
            point("rebuild.moved");
        }
    }
    let sync = || target.sync_dir(None).map_err(|error| io_failed("write", target.path(), error));
    sync()?;
    // In order of names, ibdata1 before ibdata2.
    for path in plan.held.iter().rev() {
        move_to(path)?;
        point("rebuild.named");
    }
    let directory = own_path(PRIVATE)?;
    target.remove(&directory).map_err(|error| io_failed("remove", target.path_of(&directory), error))?;
    sync()
}
