//! Copies many files, on several threads, into one inventory. What to copy when is up to the flavor.

use std::{cmp::Reverse, time::Instant};

use holdfast_formats::{Lsn, redo::page_allocation::AllocationByte};

use super::{
    Role,
    context::CopyContext,
    files::Entry,
    inventory::{Amend, Before, Inventory, Spaces},
    plain::{Manner, PlainFile},
    rewritten::Rewritten,
    tablespace::TablespaceEntry,
    workers::{Buffers, on_threads},
};
use crate::{error::Result, points::point_of};

/// Copies files and records the copies.
pub(super) struct Copier<'a> {
    /// Where pages go, and what all copies share.
    pub(super) context: CopyContext<'a>,
    /// What has been copied so far.
    pub(super) inventory: Inventory,
    /// Reader threads.
    pub(super) parallel: usize,
    /// MySQL: whether there has been a moment without changes of definitions since the redo is followed.
    pub(super) had_quiet: bool,
    /// Where the server's redo had got to before the first copy. What is captured may be far behind that for a
    /// while, since it begins at a checkpoint.
    pub(super) began: Lsn,
}

impl Copier<'_> {
    /// Copies tablespaces, the largest first. `spaces` was read from the server after the files were found,
    /// and before this call.
    pub(super) fn tablespaces(&mut self, mut found: Vec<TablespaceEntry>, spaces: &Spaces) -> Result<()> {
        found.sort_by_key(|found| Reverse(found.entry.size_bytes));
        let context = &self.context;
        let copied = on_threads(found, self.parallel, |found, buffers| {
            point_of("backup.file.before_copy", &found.entry.real);
            // Behind the server's own LSN, which only makes a copy look older than it is.
            let began = context.redo.captured().max(self.began);
            let copied = context.tablespace(&found, buffers)?;
            Ok(copied.map(|copied| (found, copied, began)))
        })?;
        for (found, copied, began) in copied.into_iter().flatten() {
            // What the server said concerns the file that existed then. IMPORT TABLESPACE replaces it by
            // another with the same id.
            let is_the_file = copied.key.inode == found.entry.stat.inode;
            let space = found.space(copied.key.space).filter(|_| is_the_file);
            let space = space.and_then(|space| spaces.get(&space)).cloned();
            self.inventory.add_tablespace(
                self.context.sink,
                &found.entry.path,
                copied,
                Before { lsn: began, space, after_quiet: self.had_quiet },
            )?;
        }
        Ok(())
    }

    /// Ends the copies that stay open until the end of the capture because their files may grow. Call this
    /// once the position is known: by then, each file has everything that its tablespace has at that
    /// position.
    pub(super) fn end_what_grew(&self) -> Result<()> {
        self.inventory.unended().try_for_each(|(file, unended)| self.context.end_tablespace(file, unended))
    }

    /// Adds the pages that copies lack, as told by `allocated`. A copy whose file no longer exists lacks them
    /// still.
    pub(super) fn amend(
        &mut self,
        amend: Vec<Amend>,
        allocated: impl Fn(&Amend) -> Result<Vec<AllocationByte>> + Sync,
    ) -> Result<()> {
        let context = &self.context;
        let amended = on_threads(amend, self.parallel, |amend, buffers| {
            let size_bytes = context.amend(&amend.found, &amend.copied, &allocated(&amend)?, buffers)?;
            Ok(size_bytes.map(|size_bytes| (amend, size_bytes)))
        })?;
        for (amend, size_bytes) in amended.into_iter().flatten() {
            self.inventory.amended(amend, size_bytes);
        }
        Ok(())
    }

    /// Copies other files, and returns a summary of them.
    pub(super) fn files(&mut self, files: Vec<PlainFile>) -> Result<Rewritten> {
        let (rewritten, began) = (Rewritten::of(&files), Instant::now());
        let context = &self.context;
        let copies = on_threads(files, self.parallel, |file, buffers| {
            Ok(context.plain(&file, buffers)?.map(|copy| (file.entry.path, copy)))
        })?;
        let mut unfinished = Vec::new();
        for (path, copy) in copies.into_iter().flatten() {
            self.inventory.add_file(&path, copy.copied);
            unfinished.extend(copy.unfinished);
        }
        // A single wait serves all of them, since a lock may be held.
        on_threads(unfinished, self.parallel, |file, buffers| context.finish(file, buffers))?;
        Ok(rewritten.in_time(began.elapsed()))
    }

    /// Copies the part of a growing file that its copy does not have. Copies the whole file if there is no
    /// copy, or if it has been replaced by another file. See [`CopyContext::grow`].
    pub(super) fn grown(
        &mut self,
        entry: &Entry,
        role: Role,
        margin_bytes: u64,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Self { context, inventory, .. } = self;
        if let Some(copied) = inventory.file_mut(&entry.path) {
            if context.grow(entry, copied, margin_bytes, buffers)? {
                return Ok(());
            }
            inventory.forget(context.sink, |path| path == entry.path)?;
        }
        self.files(vec![PlainFile { entry: entry.clone(), role, manner: Manner::Growing }]).map(drop)
    }
}
