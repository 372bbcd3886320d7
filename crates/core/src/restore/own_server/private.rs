//! What no server but the recovering one may find: redo, and the log of Aria, in a directory below the target
//! that no other server looks into. Moving them is a rename within one filesystem; what a killed restore
//! leaves is deleted by the next.

use std::path::PathBuf;

use holdfast_formats::Flavor;
use holdfast_repo::format::item::ItemPath;

use crate::error::{Context, Result};
use crate::restore::{
    plan::Plan,
    target::{
        DIRECTORY_MODE, Tree, io_failed,
        names::{PRIVATE, REDO_MYSQL_DIR, own_path, partial_of, private_of},
    },
};

/// The control file of Aria's log.
pub(crate) const ARIA_CONTROL: &str = "aria_log_control";
const ARIA_LOG: &str = "aria_log.";

/// What only the recovering server may find.
pub(crate) struct Private<'a> {
    tree: &'a Tree,
    plan: &'a Plan,
    flavor: Flavor,
}

impl<'a> Private<'a> {
    /// Moves everything there.
    pub(crate) fn enter(
        tree: &'a Tree,
        plan: &'a Plan,
        flavor: Flavor,
        owner: Option<(u32, u32)>,
    ) -> Result<Self> {
        let this = Self { tree, plan, flavor };
        let mut directories = vec![own_path(PRIVATE)?];
        if flavor == Flavor::MySql {
            directories.push(private_of(&own_path(REDO_MYSQL_DIR)?)?);
        }
        for path in &directories {
            let make = || {
                tree.create_dir(path, DIRECTORY_MODE)?;
                owner.map_or(Ok(()), |owner| tree.give(path, owner))
            };
            make().map_err(|error| io_failed("make", tree.path_of(path), error))?;
        }
        for path in plan.redo.paths() {
            this.rename(&partial_of(path)?, &private_of(path)?)?;
        }
        for path in this.aria_control() {
            this.rename(&partial_of(path)?, &private_of(path)?)?;
        }
        for path in &plan.aria_logs {
            this.rename(path, &private_of(path)?)?;
        }
        Ok(this)
    }

    /// Moves back what the server has made of it, still under names with which no server starts.
    pub(crate) fn leave(self) -> Result<()> {
        match self.flavor {
            Flavor::MySql => {
                let redo = own_path(REDO_MYSQL_DIR)?;
                self.remove(&redo)?;
                self.rename(&private_of(&redo)?, &redo)?;
            }
            Flavor::MariaDb => {
                let redo = &self.plan.redo.path;
                self.rename(&private_of(redo)?, &partial_of(redo)?)?;
                for path in self.aria_control() {
                    self.rename(&private_of(path)?, &partial_of(path)?)?;
                }
            }
        }
        let listed = self.tree.list(PRIVATE.as_bytes());
        let listed = listed.map_err(|error| io_failed("list", self.tree.path().join(PRIVATE), error))?;
        for (name, _) in listed {
            let path = ItemPath::new(name.clone()).context("read the name of a log")?;
            if name.starts_with(ARIA_LOG.as_bytes()) {
                self.rename(&private_of(&path)?, &path)?;
            } else {
                self.remove(&private_of(&path)?)?;
            }
        }
        self.remove(&own_path(PRIVATE)?)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        self.tree.path().join(PRIVATE)
    }

    fn aria_control(&self) -> impl Iterator<Item = &ItemPath> {
        self.plan.held.iter().filter(|path| path.as_bytes() == ARIA_CONTROL.as_bytes())
    }

    fn rename(&self, from: &ItemPath, to: &ItemPath) -> Result<()> {
        self.tree.rename(from, to).map_err(|error| io_failed("rename", self.tree.path_of(from), error))
    }

    fn remove(&self, path: &ItemPath) -> Result<()> {
        self.tree.remove(path).map_err(|error| io_failed("remove", self.tree.path_of(path), error))
    }
}
