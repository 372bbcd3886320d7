//! Which tablespaces may have been discarded, if the redo that would tell is encrypted.
//!
//! What must not be missed is explained in [`super::copy`]: recovery ignores the redo of a tablespace after a
//! deletion that is noted in it, and DISCARD notes one although IMPORT brings the same id back. Without the
//! key, the redo shows that there was a deletion, when it was, and how long its record is, which follows from
//! the id and the path, but not what was deleted. So
//!
//! - the ids of all tables are read once at the start, while definitions cannot change. DISCARD gives its
//!   table another id (verified on MariaDB 10.11.19 and 11.8.6), so a tablespace whose tables still have
//!   those ids was not discarded since;
//! - a deletion between the checkpoint and that time, or of a younger tablespace, is recognised by the length
//!   of its record. The records of other tablespaces can have the same length: these are taken for discarded,
//!   too, which costs a copy and never a row;
//! - a rename after an IMPORT makes recovery apply redo from before the DISCARD (`docs/guide/hot-backup.md`).
//!   If the redo is encrypted, nothing can prevent that: such a backup fails. If the tablespace is younger
//!   than the start, an IMPORT is recognised by a page without an LSN, which only an IMPORT leaves;
//! - of the tablespaces that may have been discarded between the checkpoint and the start, those are exempt
//!   whose page 0 says that it was last changed before the checkpoint: IMPORT writes 0 for the LSN of every
//!   page, and the next change its own (verified). Nobody writes to a tablespace that was discarded and not
//!   imported.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use holdfast_formats::{
    Flavor, Geometry, Lsn, SpaceId,
    page::is_zero,
    table_name::{TableFile, is_of_fulltext_index},
};

use holdfast_pipe::aligned::{ALIGNMENT, AlignedBuffer};

use crate::{
    server::{Session, SqlError, status::MariaDbLsns, tables},
    source::{
        page_reader::{PageReader, ReadMode},
        redo::mariadb::HiddenNotes,
        tablespace::TablespaceEntry,
    },
};

/// Where page 0 has its LSN, in every format.
const LSN_AT: usize = 16;

/// The ids of the tables in each tablespace.
pub(super) type Tables = BTreeMap<SpaceId, BTreeSet<u64>>;

/// The tables at the start of a capture.
pub(super) struct Baseline {
    tables: Tables,
    /// Where the redo ended when they were read. Tables that were deleted later were still there.
    lsn: Lsn,
    /// Where the captured redo begins.
    checkpoint: Lsn,
    mode: ReadMode,
}

impl Baseline {
    /// Reads the tables. Definitions must be blocked.
    pub(super) fn read(session: &mut Session, checkpoint: Lsn, mode: ReadMode) -> Result<Self, SqlError> {
        let tables = tables::mariadb_tables(session)?;
        Ok(Self { tables, lsn: MariaDbLsns::read(session)?.current, checkpoint, mode })
    }

    /// Whether a tablespace had tables at the start.
    pub(super) fn had(&self, space: SpaceId) -> bool {
        self.tables.contains_key(&space)
    }

    /// Whether `found`, whose table is closed, may have been imported and renamed since the checkpoint. `now`
    /// has the tables that exist now.
    pub(super) fn was_imported_and_renamed(
        &self,
        notes: &HiddenNotes,
        now: &Tables,
        space: SpaceId,
        found: &TablespaceEntry,
    ) -> bool {
        let path_bytes = (!found.entry.outside).then(|| "./".len() + found.entry.path.len());
        // Tables whose ids differ from those at the start were discarded.
        let was_discarded = || self.had(space) && self.tables.get(&space) != now.get(&space);
        notes.may_have_renamed(space, path_bytes) && (was_discarded() || self.has_pages_without_lsn(found))
    }

    /// Whether there is a page that an IMPORT wrote and that was not changed since. A file that cannot be
    /// read counts.
    fn has_pages_without_lsn(&self, found: &TablespaceEntry) -> bool {
        const PIECE_BYTES: usize = 1 << 20;
        let look = || -> io::Result<bool> {
            let mut buffer = AlignedBuffer::new(PIECE_BYTES);
            let reader = PageReader::open(&found.entry.real, self.mode)?;
            let mut page_bytes = None;
            // Reads to the end: a single page that is left like this is enough to lose rows.
            for offset in (0..).step_by(PIECE_BYTES) {
                let len = reader.read(offset, PIECE_BYTES, &mut buffer)?;
                let bytes = buffer.bytes(len);
                if page_bytes.is_none() {
                    let Ok(Some(geometry)) = Geometry::parse(Flavor::MariaDb, bytes) else { return Ok(true) };
                    page_bytes = Some(geometry.page_size().bytes());
                }
                let pages = page_bytes.map(|page_bytes| bytes.chunks_exact(page_bytes));
                let without = |page: &[u8]| page[LSN_AT..LSN_AT + 8] == [0; 8] && !is_zero(page);
                if pages.is_some_and(|mut pages| pages.any(without)) {
                    return Ok(true);
                }
                if len < PIECE_BYTES {
                    break;
                }
            }
            Ok(false)
        };
        look().unwrap_or(true)
    }

    /// What has changed since: `now` has the tables of a later moment, `notes` all deletions before it.
    pub(super) fn since(&self, notes: HiddenNotes, now: Tables) -> Changes<'_> {
        Changes { before: self, notes, now }
    }
}

/// What can be known about the time since the checkpoint.
pub(super) struct Changes<'a> {
    before: &'a Baseline,
    notes: HiddenNotes,
    now: Tables,
}

impl Changes<'_> {
    /// Whether a deletion in the redo can be that of `space`, whose file is `found`.
    pub(super) fn may_be_discarded(&self, space: SpaceId, found: &TablespaceEntry) -> bool {
        if self.notes.is_empty() {
            return false;
        }
        // The path as it is in the redo. A file elsewhere is named by its whole path, which may differ for
        // the server.
        let path_bytes = (!found.entry.outside).then(|| "./".len() + found.entry.path.len());
        match (self.before.tables.get(&space), self.now.get(&space)) {
            (None, _) => self.notes.may_have_deleted(space, path_bytes, None),
            (then, now) if then == now => {
                self.notes.may_have_deleted(space, path_bytes, Some(self.before.lsn))
                    && self.before.may_be_imported(found)
            }
            _ => true,
        }
    }
}

impl Baseline {
    /// Whether the file may have been imported: page 0 does not prove that it was last changed before the
    /// checkpoint.
    fn may_be_imported(&self, found: &TablespaceEntry) -> bool {
        let read = || -> io::Result<Option<u64>> {
            let mut buffer = AlignedBuffer::new(ALIGNMENT);
            let reader = PageReader::open(&found.entry.real, self.mode)?;
            let page = reader.read_again(0, ALIGNMENT, &mut buffer)?;
            let lsn = page.as_deref().and_then(|page| page.get(LSN_AT..LSN_AT + 8)?.try_into().ok());
            Ok(lsn.map(u64::from_be_bytes))
        };
        // A file that cannot be read is copied, and then fails the backup by its name.
        !matches!(read(), Ok(Some(lsn)) if lsn > 0 && Lsn(lsn) < self.checkpoint)
    }
}

/// Whether a tablespace can be discarded and imported at all: only one that holds a user's table, or a
/// partition, can.
pub(super) fn can_be_imported(found: &TablespaceEntry) -> bool {
    TableFile::from_path(&found.entry.path)
        .is_some_and(|file| !file.is_temporary() && !is_of_fulltext_index(&file.table))
}
