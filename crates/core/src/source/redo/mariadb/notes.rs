//! What captured redo says about files.

use std::collections::BTreeSet;

use holdfast_formats::{
    Lsn, SpaceId,
    redo::mariadb::{AbsolutePaths, FileOp},
};

use crate::error::{Error, Result};

/// Tablespaces that captured redo says were created or deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileNotes {
    /// Created since the capture began: all of their pages are in the redo.
    pub created: BTreeSet<SpaceId>,
    /// Dropped or discarded since.
    pub deleted: BTreeSet<SpaceId>,
}

/// Collects them while the redo is walked.
#[derive(Default)]
pub(super) struct Notebook {
    pub(super) notes: FileNotes,
    pub(super) absolute_paths: AbsolutePaths,
    unknown: Option<(Lsn, u8)>,
}

impl Notebook {
    pub(super) fn note(&mut self, lsn: Lsn, op: FileOp<'_>) {
        self.absolute_paths.observe(op);
        match op {
            FileOp::Create { space, .. } => drop(self.notes.created.insert(space)),
            FileOp::Delete { space, .. } => drop(self.notes.deleted.insert(space)),
            FileOp::Unknown { kind } => self.unknown = Some((lsn, kind)),
            FileOp::Rename { .. } | FileOp::Modify { .. } | FileOp::Checkpoint { .. } => {}
        }
    }

    /// Fails if there was a record that recovery would refuse, or that means what is not known here.
    pub(super) fn check(&self) -> Result<()> {
        match self.unknown {
            None => Ok(()),
            Some((lsn, kind)) => {
                Err(Error::failed(format!("unknown file record 0x{kind:02x} in the redo log at LSN {lsn}"))
                    .hinted("this server writes a redo format that holdfast does not know"))
            }
        }
    }
}
