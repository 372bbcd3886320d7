//! What captured redo says about files.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_formats::{
    Lsn, SpaceId,
    redo::mariadb::{AbsolutePaths, FileOp, FileOpKind, hidden_bytes},
};

use crate::error::{Error, Result};

/// Tablespaces that captured redo says were created or deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileNotes {
    /// Created since the capture began: all of their pages are in the redo.
    pub created: BTreeSet<SpaceId>,
    /// Dropped or discarded since.
    pub deleted: BTreeSet<SpaceId>,
    /// What can be known about deletions if the redo is encrypted.
    pub hidden: HiddenNotes,
}

/// Deletions and renames of tablespaces in encrypted redo: that they happened, and how long their records
/// are, which follows from the ids and paths that they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenNotes {
    /// By length: where the first record of each length is.
    deleted: BTreeMap<usize, Lsn>,
    /// Lengths of the records.
    renamed: BTreeSet<usize>,
}

impl HiddenNotes {
    fn note(&mut self, lsn: Lsn, kind: FileOpKind, bytes: usize) {
        match kind {
            FileOpKind::Delete => drop(self.deleted.entry(bytes).or_insert(lsn)),
            FileOpKind::Rename => drop(self.renamed.insert(bytes)),
            FileOpKind::Create | FileOpKind::Modify | FileOpKind::Checkpoint => {}
        }
    }

    /// Whether nothing was deleted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deleted.is_empty()
    }

    /// Whether a record before `end` can be about the deletion of `space`, whose file's path now has
    /// `path_bytes` bytes; the file may have been renamed since. `None` stands for any path.
    #[must_use]
    pub fn may_have_deleted(&self, space: SpaceId, path_bytes: Option<usize>, end: Option<Lsn>) -> bool {
        let in_time = |lsn: Lsn| end.is_none_or(|end| lsn < end);
        let any = self.deleted.values().any(|&lsn| in_time(lsn));
        let Some(path_bytes) = path_bytes.filter(|_| any) else { return any };
        let paths = self.paths_before(space, path_bytes);
        let lengths = paths.into_iter().map(|path_bytes| hidden_bytes(space, path_bytes));
        lengths.filter_map(|bytes| self.deleted.get(&bytes)).any(|&lsn| in_time(lsn))
    }

    /// Whether a record can say that `space`, whose file's path now has `path_bytes` bytes, got this path by
    /// a rename. `None` stands for any path.
    #[must_use]
    pub fn may_have_renamed(&self, space: SpaceId, path_bytes: Option<usize>) -> bool {
        match path_bytes {
            Some(path_bytes) => self.paths_before(space, path_bytes).len() > 1,
            None => !self.renamed.is_empty(),
        }
    }

    /// The lengths that the path can have had, according to the renames.
    fn paths_before(&self, space: SpaceId, path_bytes: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::from([path_bytes]);
        let mut open = vec![path_bytes];
        while let Some(to) = open.pop() {
            // The path before, a zero, the path after.
            let other = hidden_bytes(space, to + 1);
            let before = self.renamed.iter().filter_map(|bytes| bytes.checked_sub(other));
            open.extend(before.filter(|from| *from > 0 && found.insert(*from)));
        }
        found
    }
}

/// Collects notes while the redo is walked.
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
            FileOp::Hidden { kind, bytes } => self.notes.hidden.note(lsn, kind, bytes),
            FileOp::Unknown { kind } => self.unknown = Some((lsn, kind)),
            FileOp::Rename { .. } | FileOp::Modify { .. } | FileOp::Checkpoint { .. } => {}
        }
    }

    /// Fails if there was a record that recovery would refuse, or one of unknown meaning.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(deleted: &[(u64, &str)], renamed: &[(&str, &str)], space: SpaceId) -> HiddenNotes {
        let mut notes = HiddenNotes::default();
        for (lsn, path) in deleted {
            notes.note(Lsn(*lsn), FileOpKind::Delete, hidden_bytes(space, path.len()));
        }
        for (from, to) in renamed {
            let bytes = from.len() + 1 + to.len();
            notes.note(Lsn(1), FileOpKind::Rename, hidden_bytes(space, bytes));
        }
        notes
    }

    /// A deletion counts for each tablespace whose record would have the same length, if it is before the
    /// given end.
    #[test]
    fn deletions_are_told_by_their_length() {
        const SPACE: SpaceId = SpaceId(300);
        let found = notes(&[(10, "./db/t.ibd"), (20, "./db/t.ibd")], &[], SPACE);
        let deleted = |space, path: &str, end| {
            found.may_have_deleted(space, Some(path.len()), Option::<u64>::map(end, Lsn))
        };
        assert!(deleted(SPACE, "./db/t.ibd", None) && deleted(SPACE, "./db/u.ibd", Some(11)));
        assert!(!deleted(SPACE, "./db/t.ibd", Some(10)));
        assert!(!deleted(SPACE, "./db/tt.ibd", None));
        // An id that takes a byte less, and a path that is a byte longer.
        assert!(!deleted(SpaceId(3), "./db/t.ibd", None) && deleted(SpaceId(3), "./db/tt.ibd", None));
        assert!(found.may_have_deleted(SpaceId(7), None, Some(Lsn(11))));
        assert!(!found.may_have_deleted(SpaceId(7), None, Some(Lsn(10))));
        assert!(notes(&[], &[("./db/t.ibd", "./db/u.ibd")], SPACE).is_empty());
    }

    /// A table that was deleted under another name is found through its renames, however many.
    #[test]
    fn deletions_under_other_names_are_found() {
        const SPACE: SpaceId = SpaceId(9);
        let renamed = [("./db/a.ibd", "./db/bcd.ibd"), ("./db/bcd.ibd", "./other/efghij.ibd")];
        let found = notes(&[(10, "./db/a.ibd")], &renamed, SPACE);
        let deleted = |path: &str| found.may_have_deleted(SPACE, Some(path.len()), None);
        assert!(deleted("./other/efghij.ibd") && deleted("./db/bcd.ibd") && deleted("./db/a.ibd"));
        assert!(
            found.may_have_renamed(SPACE, Some("./db/bcd.ibd".len())) && found.may_have_renamed(SPACE, None)
        );
        assert!(!found.may_have_renamed(SPACE, Some("./db/a_table_with_a_name_that_nobody_took.ibd".len())));
        assert!(!deleted("./db/a_table_with_a_name_that_nobody_took.ibd"));
        // Renames back and forth come to an end.
        let circle = notes(&[], &[("./db/a.ibd", "./db/b.ibd"), ("./db/b.ibd", "./db/a.ibd")], SPACE);
        assert!(!circle.may_have_deleted(SPACE, Some(10), None));
    }
}
