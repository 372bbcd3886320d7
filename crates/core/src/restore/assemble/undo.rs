//! Room in undo tablespaces of MariaDB for pages that were cut off while they were backed up.
//!
//! A file that was copied after its truncation is short, and the redo has earlier changes of pages beyond its
//! end. A server that reads all redo before it applies any knows of the truncation by then, and skips these
//! changes. A server without the memory for that applies what it has read so far, writes such a page, and
//! dies: "Trying to write .. outside the bounds of the file" (seen on 10.11.19). So the file is made as long
//! as the redo needs it, by a hole; recovery cuts it off when it comes to the truncation.
//!
//! This takes another pass over all redo. Encrypted redo does not tell which pages it changes: there, a
//! restore that comes to such a page fails, and memory for all of the
//! redo (`--prepare-memory`) is the only remedy.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use holdfast_formats::{Lsn, SpaceId, redo::mariadb::MtrWalker};
use holdfast_repo::format::item::{FileRole, Item};

use crate::restore::{
    opened::Opened,
    redo::{RedoLayout, each_piece},
    target::io_failed,
};
use crate::{captured_redo::CapturedRedo, error::Result, event::Cancel};

/// The server uses only whole extents of a file: at most 4 MiB, with pages of 64 KiB.
const EXTENT_BYTES_MAX: u64 = 4 << 20;

/// The undo tablespaces that were written.
#[derive(Default)]
pub(crate) struct UndoFiles(BTreeMap<SpaceId, UndoFile>);

struct UndoFile {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    page_bytes: u64,
    /// The length that the redo needs.
    needed_bytes: u64,
}

impl UndoFiles {
    /// Takes note of a file, if it is an undo tablespace that may need room.
    pub(crate) fn note(&mut self, opened: &Opened, item: &Item, file: &File, path: &Path) -> Result<()> {
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

    /// Makes the files longer that are too short for the redo in `file`.
    pub(crate) fn make_room(mut self, layout: &RedoLayout, file: &File, cancel: &Cancel) -> Result<()> {
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
            make().map_err(|error| io_failed("extend", &undo.path, error))?;
        }
        Ok(())
    }
}
