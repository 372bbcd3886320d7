//! The trees that a restore writes into: the target, and the places that mappings name.

use std::{
    collections::BTreeSet,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use holdfast_repo::format::item::ItemPath;

use super::{
    options::RestoreOptions,
    plan::{Plan, layout::Root},
    target::{FoundKind, Tree, create_durably, io_failed},
};
use crate::error::{Error, Result};

/// Open trees.
pub(super) struct Roots {
    target: Tree,
    mapped: Vec<Option<Mapped>>,
}

/// A place that a mapping names. It may hold more than what is restored.
struct Mapped {
    tree: Tree,
    /// Directories in it that the restored files are in.
    directories: BTreeSet<ItemPath>,
    /// Those among them that the restore makes.
    made: BTreeSet<ItemPath>,
    /// Whether it makes the place itself.
    is_made: bool,
}

impl Roots {
    /// Opens the target, and makes and opens the mapped places that are used.
    pub(super) fn open(plan: &Plan, options: &RestoreOptions) -> Result<Self> {
        let path = &options.target_dir;
        let target = Tree::open(path).map_err(|error| io_failed("open", path, error))?;
        let mut mapped = Vec::new();
        for (_, to) in &options.maps {
            let below =
                plan.mapped.iter().filter_map(|file| file.path.strip_prefix(to).ok()).collect::<Vec<_>>();
            if below.is_empty() {
                mapped.push(None);
                continue;
            }
            create_durably(to)?;
            let tree = Tree::open(to).map_err(|error| io_failed("open", to, error))?;
            let item_path = |path: &Path| ItemPath::new(path.as_os_str().as_bytes()).ok();
            let directories =
                below.into_iter().flat_map(|path| path.ancestors().skip(1)).filter_map(item_path).collect();
            let made = plan.made.iter().filter_map(|dir| item_path(dir.strip_prefix(to).ok()?)).collect();
            let is_made = plan.made.contains(to);
            mapped.push(Some(Mapped { tree, directories, made, is_made }));
        }
        Ok(Self { target, mapped })
    }

    pub(super) fn target(&self) -> &Tree {
        &self.target
    }

    pub(super) fn tree(&self, root: Root) -> Result<&Tree> {
        match root {
            Root::Target => Ok(&self.target),
            Root::Mapped(map) => self
                .mapped
                .get(map)
                .and_then(Option::as_ref)
                .map(|mapped| &mapped.tree)
                .ok_or_else(|| Error::failed("a mapped place was not made")),
        }
    }

    /// Where it writes.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let mapped = self.mapped.iter().flatten().map(|mapped| mapped.tree.path());
        [self.target.path()].into_iter().chain(mapped).map(Path::to_owned).collect()
    }

    /// Gives away the directories that were made in mapped places.
    pub(super) fn give_made(&self, owner: (u32, u32)) -> Result<()> {
        for Mapped { tree, made, is_made, .. } in self.mapped.iter().flatten() {
            for path in made {
                tree.give(path, owner)
                    .map_err(|error| io_failed("change the owner of", tree.path_of(path), error))?;
            }
            if *is_made {
                tree.give_root(owner)
                    .map_err(|error| io_failed("change the owner of", tree.path(), error))?;
            }
        }
        Ok(())
    }

    /// Makes durable what a server has written. InnoDB does that itself, and so does Aria for what its log
    /// covers; for tables of other engines nobody does.
    pub(super) fn sync_contents(&self) -> Result<()> {
        let trees = [&self.target].into_iter().chain(self.mapped.iter().flatten().map(|mapped| &mapped.tree));
        for tree in trees {
            tree.sync_all().map_err(|error| io_failed("write", tree.path(), error))?;
        }
        self.target.sync_mounted().map_err(|error| io_failed("write", self.target.path(), error))
    }

    /// Makes the names in all directories durable. The files are durable already:
    /// whoever wrote them has synced them.
    pub(super) fn sync_names(&self) -> Result<()> {
        let found = self.target.walk().map_err(|error| io_failed("list", self.target.path(), error))?;
        let directories = found.iter().filter(|(_, found)| found.kind == FoundKind::Directory);
        sync(&self.target, directories.map(|(path, _)| path))?;
        self.mapped.iter().flatten().try_for_each(|mapped| sync(&mapped.tree, mapped.directories.iter()))
    }
}

fn sync<'a>(tree: &Tree, directories: impl Iterator<Item = &'a ItemPath>) -> Result<()> {
    for path in directories.map(Some).chain([None]) {
        tree.sync_dir(path).map_err(|error| io_failed("write", tree.path(), error))?;
    }
    Ok(())
}
