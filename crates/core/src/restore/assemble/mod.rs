//! Writes the files: from chunks straight into place.
//!
//! Pages are taken in *windows*: as many as the memory allows, from however many files they belong to. Within
//! a window they are fetched in the order in which they are stored, so each chunk is read and decoded once
//! however scattered its pages are, and several threads write what they have decoded. Pages already in the
//! target are read and hashed first, and only those that differ are fetched.
//!
//! Writeback is started early, and complete files are synced while the next are written. No server starts on
//! these files yet, see [`super::target::claim`].

mod file;
mod syncer;
mod undo;
mod window;

use std::fs::File;

use holdfast_repo::format::{
    columns::PageEntry,
    item::{Item, ItemPath, leaf_count},
    page_map::PAGES_PER_LEAF,
};

#[cfg(test)]
pub(super) use self::window::least_bytes;
use self::{
    file::{DIRECT_FILE_BYTES_MIN, FileSpec, TargetFile},
    undo::UndoFiles,
    window::{Progress, Window},
};
use super::{
    done::Written,
    opened::Opened,
    options::RestoreOptions,
    plan::{
        Plan, is_reusable,
        layout::{Decision, Layout, Place, Root},
    },
    redo::{REDO_MODE, relocate, split},
    roots::Roots,
    target::{io_failed, names::partial_of},
};
use crate::{
    error::Result,
    event::{Cancel, Event, Listener},
    points::point,
};

/// Writes every file of the backup.
pub(super) fn run(
    opened: &Opened,
    plan: &Plan,
    roots: &Roots,
    options: &RestoreOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<Written> {
    delete(plan, roots, cancel)?;
    point("restore.deleted");
    directories(plan, roots)?;
    point("restore.directories.made");
    let total = plan.shown.bytes.saturating_add(plan.redo.captured_bytes);
    let progress = Progress::new(listener, cancel, total);
    let mut assembly = Assembly {
        opened,
        roots,
        options,
        window: Window::new(opened, options)?,
        undo: UndoFiles::default(),
        progress: &progress,
        written: Written { deleted: plan.delete.len() as u64, ..Written::default() },
    };
    let mut layout = Layout::of(opened, options)?;
    for item in opened.backup.items() {
        let item = item?;
        match layout.decide(&item)? {
            Decision::File { place, held } => assembly.file(&item, &place, held)?,
            Decision::Mapped { place, .. } => assembly.file(&item, &place, false)?,
            Decision::Directory(_) | Decision::Dropped(_) | Decision::NotWanted | Decision::Redo => {}
        }
    }
    let redo = assembly.redo(plan)?;
    assembly.flush()?;
    point("restore.files.written");
    let paths_changed = relocate(&plan.redo, &redo, cancel)?;
    if paths_changed > 0 {
        let text =
            format!("{paths_changed} redo records that named paths outside the target now name paths in it");
        listener.event(Event::Note { text });
    }
    assembly.undo.make_room(&plan.redo, &redo, cancel)?;
    let sync_redo = || {
        redo.sync_all().map_err(|error| io_failed("write", roots.target().path_of(&plan.redo.path), error))
    };
    sync_redo()?;
    split(&plan.redo, &redo, roots.target(), cancel)?;
    // Splitting it has made it shorter.
    sync_redo()?;
    assembly.window.finish()?;
    point("restore.files.durable");
    let Assembly { mut written, .. } = assembly;
    written.bytes = plan.shown.bytes;
    (written.bytes_written, written.bytes_kept) = progress.finish();
    Ok(written)
}

fn delete(plan: &Plan, roots: &Roots, cancel: &Cancel) -> Result<()> {
    let tree = roots.target();
    for path in &plan.delete {
        cancel.check()?;
        tree.remove(path).map_err(|error| io_failed("remove", tree.path_of(path), error))?;
    }
    Ok(())
}

fn directories(plan: &Plan, roots: &Roots) -> Result<()> {
    let tree = roots.target();
    let failed = |path: &ItemPath, error| io_failed("make", tree.path_of(path), error);
    for (path, mode) in &plan.directories {
        tree.create_dir(path, *mode).map_err(|error| failed(path, error))?;
    }
    tree.create_parent(&plan.redo.path).map_err(|error| failed(&plan.redo.path, error))
}

struct Assembly<'a> {
    opened: &'a Opened,
    roots: &'a Roots,
    options: &'a RestoreOptions,
    window: Window<'a>,
    undo: UndoFiles,
    progress: &'a Progress<'a>,
    written: Written,
}

impl Assembly<'_> {
    fn file(&mut self, item: &Item, place: &Place, held: bool) -> Result<()> {
        let path = if held { partial_of(&place.path)? } else { place.path.clone() };
        let tree = self.roots.tree(place.root)?;
        let shown = tree.path_of(&path);
        let failed = |error| io_failed("make", &shown, error);
        if place.root != Root::Target {
            tree.create_parent(&path).map_err(failed)?;
        }
        let found = tree.look(&path).map_err(failed)?;
        let reused = match found {
            Some(found) if is_reusable(&found) => tree.open_file(&path).map_err(failed)?,
            Some(_) => {
                tree.remove(&path).map_err(failed)?;
                None
            }
            None => None,
        };
        let is_new = reused.is_none();
        let file = match reused {
            Some(file) => file,
            None => {
                if found.is_none() {
                    tree.create_parent(&path).map_err(failed)?;
                }
                tree.create_file(&path, item.mode).map_err(failed)?
            }
        };
        self.written.files += 1;
        self.written.files_reused += u64::from(!is_new);
        self.undo.note(self.opened, item, &file, &shown)?;
        let direct = match item.size_bytes >= DIRECT_FILE_BYTES_MIN {
            true => tree.open_direct(&path).map_err(failed)?,
            false => None,
        };
        let spec = FileSpec {
            shown,
            page_bytes: item.page_size.bytes(),
            base: 0,
            data_bytes: item.size_bytes,
            size_bytes: item.size_bytes,
            mode: item.mode,
            is_new,
            sparse: self.options.sparse,
            tablespace_of: item.tablespace.map(|_| self.opened.server.version.flavor),
        };
        self.pages(item, TargetFile::begin(file, direct, spec)?)
    }

    /// The redo's pages follow its header, in a file that is always made anew.
    fn redo(&mut self, plan: &Plan) -> Result<File> {
        let tree = self.roots.target();
        let path = partial_of(&plan.redo.path)?;
        let shown = tree.path_of(&path);
        let failed = |error| io_failed("make", &shown, error);
        tree.remove(&path).map_err(failed)?;
        let file = tree.create_file(&path, REDO_MODE).map_err(failed)?;
        let direct = tree.open_direct(&path).map_err(failed)?;
        let second = file.try_clone().map_err(failed)?;
        let item = &self.opened.redo_item;
        let spec = FileSpec {
            shown,
            page_bytes: item.page_size.bytes(),
            base: plan.redo.data_offset,
            data_bytes: item.size_bytes,
            size_bytes: plan.redo.file_bytes,
            mode: REDO_MODE,
            is_new: true,
            // Zeros within it are few, and the rest of the file is a hole.
            sparse: true,
            tablespace_of: None,
        };
        let target = TargetFile::begin(file, direct, spec)?;
        target.write_header(&plan.redo.header)?;
        self.pages(item, target)?;
        Ok(second)
    }

    fn pages(&mut self, item: &Item, file: TargetFile) -> Result<()> {
        let mut file = self.window.add_file(file, self.progress)?;
        for leaf in 0..leaf_count(item.page_count()) {
            self.progress.check()?;
            let entries = self.opened.backup.leaf(item, leaf)?;
            let first = leaf * u64::from(PAGES_PER_LEAF);
            if self.window.is_full(entries.len()) {
                file = self.window.turn(file, self.progress)?;
            }
            let mut page = first;
            for run in entries.chunk_by(same_kind) {
                match run.first() {
                    Some(PageEntry::Stored(_)) => self.window.want(file, page, run),
                    Some(kind) => {
                        let bytes = self.window.file(file)?.zeros(
                            page,
                            run.len() as u64,
                            *kind == PageEntry::Hole,
                        )?;
                        self.progress.kept(bytes);
                    }
                    None => {}
                }
                page += run.len() as u64;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.window.flush(self.progress)
    }
}

fn same_kind(a: &PageEntry, b: &PageEntry) -> bool {
    match (a, b) {
        (PageEntry::Stored(_), PageEntry::Stored(_)) => true,
        (a, b) => a == b,
    }
}
