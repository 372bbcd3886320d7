//! Room in undo tablespaces of MariaDB for pages that were cut off while they were backed up.
//!
//! A file that was copied behind its truncation is short, and the redo has changes of before, of pages behind its end. A
//! server that reads all redo before it applies any knows of the truncation by then and passes them over. One that has not
//! the memory for that applies what it has read so far, writes such a page, and dies: "Trying to write .. outside the
//! bounds of the file" (seen on 10.11.19). So the file is as long as the redo needs it, by a hole; recovery cuts it
//! off when it comes to the truncation.
//!
//! All redo is read once more for that. Encrypted redo does not tell which pages it is of: a restore fails if it comes to
//! that there, and memory for all of the redo (`--prepare-memory`) is all that can be done about it.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use holdfast_formats::{Lsn, SpaceId, redo::mariadb::MtrWalker};
use holdfast_repo::format::item::{FileRole, Item};

use super::{
    opened::Opened,
    redo::{RedoLayout, each_piece},
    target::io_failed,
};
use crate::{error::Result, event::Cancel, physical::CapturedRedo};

/// Of a file, the server uses whole extents only: 4 MiB at most, of pages of 64 KiB.
const EXTENT_BYTES_MAX: u64 = 4 << 20;

/// The undo tablespaces that were written.
#[derive(Default)]
pub(super) struct UndoFiles(BTreeMap<SpaceId, UndoFile>);

struct UndoFile {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    page_bytes: u64,
    /// How long the redo needs it.
    needed_bytes: u64,
}

impl UndoFiles {
    /// Takes note of a file, if it is one of these.
    pub(super) fn note(&mut self, opened: &Opened, item: &Item, file: &File, path: &Path) -> Result<()> {
        let (CapturedRedo::MariaDb { encrypted: false, .. }, FileRole::UndoTablespace, Some(tablespace)) =
            (&opened.redo, item.role, item.tablespace)
        else {
            return Ok(());
        };
        let file = UndoFile {
            file: file.try_clone().map_err(|error| io_failed("open", path, error))?,
            path: path.to_owned(),
            size_bytes: item.size_bytes,
            page_bytes: item.page_size.bytes() as u64,
            needed_bytes: 0,
        };
        self.0.insert(tablespace.space, file);
        Ok(())
    }

    /// Makes those longer that are too short for the redo in `file`.
    pub(super) fn make_room(mut self, layout: &RedoLayout, file: &File, cancel: &Cancel) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let walker = MtrWalker::linear(false);
        each_piece(layout, file, cancel, &mut |piece, done| {
            let walked = walker.walk_pages(piece, Lsn(done), |space, page| {
                if let Some(undo) = self.0.get_mut(&space) {
                    undo.needed_bytes = undo.needed_bytes.max((u64::from(page.0) + 1) * undo.page_bytes);
                }
            });
            Ok(walked.bytes)
        })?;
        for undo in self.0.values().filter(|undo| undo.needed_bytes > undo.size_bytes) {
            let bytes = undo.needed_bytes.next_multiple_of(EXTENT_BYTES_MAX);
            let make = || {
                undo.file.set_len(bytes)?;
                undo.file.sync_all()
            };
            make().map_err(|error| io_failed("make longer", &undo.path, error))?;
        }
        Ok(())
    }
}
