//! What the redo only notes: bulk loads of indexes, pages of new ones, deletions of files, changes of encryption, and
//! allocations. Some bytes merely look like such a note.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use holdfast_formats::{
    Lsn, PageNo, SpaceId,
    redo::{
        encryption_change::EncryptionChangeFinder,
        file_delete::{FileDelete, FileDeleteFinder},
        index_load::{IndexChange, IndexLoadFinder},
        page_allocation::{AllocationByte, AllocationFinder},
        search::EncryptedBlock,
    },
};

use crate::error::{Error, Result};

/// How many tablespaces are told apart. Real ones are few; what merely looks like a record can name any
/// space.
const CHANGED_SPACES_MAX: usize = 1 << 18;
/// How many tablespaces can be deleted during one backup.
const DELETED_SPACES_MAX: usize = 1 << 20;

/// The newest LSN at which the redo notes each of many things, as far as these can be told apart.
#[derive(Clone, Debug)]
pub struct Newest<K> {
    known: BTreeMap<K, Lsn>,
    known_max: usize,
    /// The newest of all others.
    elsewhere: Option<Lsn>,
}

impl<K: Ord> Newest<K> {
    fn new(known_max: usize) -> Self {
        Self { known: BTreeMap::new(), known_max, elsewhere: None }
    }

    fn note(&mut self, key: K, lsn: Lsn) {
        if self.known.len() < self.known_max || self.known.contains_key(&key) {
            let newest = self.known.entry(key).or_insert(lsn);
            *newest = lsn.max(*newest);
        } else {
            self.elsewhere = self.elsewhere.max(Some(lsn));
        }
    }
}

/// Changes of encryption, which the redo only notes, by tablespace. Some only look like it.
pub type EncryptionChanges = Newest<SpaceId>;

impl EncryptionChanges {
    /// Where the newest of them in `space` is noted, precise to the block.
    #[must_use]
    pub fn newest(&self, space: SpaceId) -> Option<Lsn> {
        self.known.get(&space).copied().or(self.elsewhere)
    }
}

/// Where the redo notes something about an index for the first time and the last, precise to the block: the
/// record is not before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The first.
    pub first: Lsn,
    /// The newest.
    pub newest: Lsn,
}

/// What the redo notes about indexes, by tablespace and index: bulk loads, or pages created for those that are
/// younger than the capture. Some only look like it.
#[derive(Clone, Debug, Default)]
pub struct IndexNotes {
    known: BTreeMap<(SpaceId, u64), Seen>,
    /// The newest of all others.
    elsewhere: Option<Lsn>,
}

impl IndexNotes {
    fn note(&mut self, space: SpaceId, index_id: u64, lsn: Lsn) {
        let key = (space, index_id);
        if self.known.len() < NOTED_INDEXES_MAX || self.known.contains_key(&key) {
            let seen = self.known.entry(key).or_insert(Seen { first: lsn, newest: lsn });
            *seen = Seen { first: lsn.min(seen.first), newest: lsn.max(seen.newest) };
        } else {
            self.elsewhere = self.elsewhere.max(Some(lsn));
        }
    }

    /// The indexes noted in `space`, by id.
    pub fn of(&self, space: SpaceId) -> impl Iterator<Item = (u64, Seen)> {
        self.known.range((space, 0)..=(space, u64::MAX)).map(|((_, index_id), seen)| (*index_id, *seen))
    }

    /// Whether there may be a note about an index.
    #[must_use]
    pub fn may_have(&self, space: SpaceId, index_id: u64) -> bool {
        self.elsewhere.is_some() || self.known.contains_key(&(space, index_id))
    }

    /// Where the newest note is among the indexes that are too many to be told apart.
    #[must_use]
    pub fn elsewhere(&self) -> Option<Lsn> {
        self.elsewhere
    }
}

/// How many indexes are told apart.
const NOTED_INDEXES_MAX: usize = 1 << 18;

/// Pages allocated or freed in tablespaces that several tables share, in groups of four.
pub type Allocations = Newest<AllocationByte>;

impl Allocations {
    /// Whether none were too many to be told apart.
    pub(super) fn are_all_known(&self) -> bool {
        self.elsewhere.is_none()
    }

    /// Those in `space` since `since`. `None` if there are too many to be told apart.
    #[must_use]
    pub fn since(&self, space: SpaceId, since: Lsn) -> Option<Vec<AllocationByte>> {
        let byte = |descriptors, offset| AllocationByte { space, descriptors: PageNo(descriptors), offset };
        let of_space = self.known.range(byte(0, 0)..=byte(u32::MAX, u16::MAX));
        let found = of_space.filter(|(_, newest)| **newest >= since).map(|(byte, _)| *byte);
        self.elsewhere.is_none().then(|| found.collect())
    }
}

/// Together they cover 64 GiB in pages of 16 KiB.
const ALLOCATIONS_MAX: usize = 1 << 20;

/// All notes so far.
pub(super) struct Notes {
    pub(super) encryption_changes: EncryptionChanges,
    pub(super) index_loads: IndexNotes,
    pub(super) new_index_pages: IndexNotes,
    pub(super) allocations: Allocations,
    pub(super) deleted: DeletedSpaces,
}

impl Default for Notes {
    fn default() -> Self {
        Self {
            encryption_changes: Newest::new(CHANGED_SPACES_MAX),
            index_loads: IndexNotes::default(),
            new_index_pages: IndexNotes::default(),
            allocations: Newest::new(ALLOCATIONS_MAX),
            deleted: DeletedSpaces::default(),
        }
    }
}

impl Notes {
    pub(super) fn add(&mut self, found: Found) -> Result<()> {
        for change in found.of_indexes {
            match change {
                IndexChange::Load(load) => self.index_loads.note(load.space, load.index_id, load.lsn),
                IndexChange::NewPage(page) => self.new_index_pages.note(page.space, page.index_id, page.lsn),
            }
        }
        found
            .encryption_changes
            .into_iter()
            .for_each(|(space, lsn)| self.encryption_changes.note(space, lsn));
        found.allocated.into_iter().for_each(|(byte, lsn)| self.allocations.note(byte, lsn));
        found.deleted.into_iter().try_for_each(|deleted| self.deleted.note(deleted))
    }
}

/// Tablespaces whose file was deleted by the redo, as far as that can be told.
#[derive(Clone, Debug, Default)]
pub struct DeletedSpaces {
    certain: HashSet<SpaceId>,
    /// The highest of these.
    highest: Option<SpaceId>,
    /// By the last two parts of the paths that doubtful deletions name: the tablespace that they may be of instead;
    /// of several, the one that is least likely to exist.
    doubtful: HashMap<SpaceId, BTreeMap<Vec<u8>, SpaceId>>,
    doubtful_paths: usize,
}

impl DeletedSpaces {
    fn note(&mut self, FileDelete { space, path, or_of }: FileDelete) -> Result<()> {
        if let Some(other) = or_of.into_iter().min() {
            let paths = self.doubtful.entry(space).or_default();
            let before = paths.len();
            paths.entry(table_part(&path).to_vec()).and_modify(|it| *it = other.max(*it)).or_insert(other);
            self.doubtful_paths += paths.len() - before;
        } else {
            self.certain.insert(space);
            self.highest = self.highest.max(Some(space));
        }
        if self.certain.len() + self.doubtful_paths > DELETED_SPACES_MAX {
            return Err(Error::failed(format!(
                "more than {DELETED_SPACES_MAX} tablespaces were dropped during the backup, which is the limit"
            )));
        }
        Ok(())
    }

    /// Whether the file of a tablespace was deleted. A doubtful deletion is another tablespace's if that can exist,
    /// since the server counts upwards and `highest` is listed or a higher one was deleted; unless it names one of
    /// the `paths` that the tablespace is known by. These are compared by database and table: where a file is can
    /// be written in several ways.
    #[must_use]
    pub fn has(
        &self,
        space: SpaceId,
        highest: SpaceId,
        mut paths: impl Iterator<Item = impl AsRef<str>>,
    ) -> bool {
        let Some(doubtful) = self.doubtful.get(&space) else { return self.certain.contains(&space) };
        let highest = self.highest.map_or(highest, |deleted| highest.max(deleted));
        self.certain.contains(&space)
            || doubtful.values().any(|other| *other > highest)
            || paths.any(|path| doubtful.contains_key(table_part(path.as_ref().as_bytes())))
    }
}

/// The database and the table's file of a path.
fn table_part(path: &[u8]) -> &[u8] {
    let slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
    let before = slashes.map(|(at, _)| at + 1).nth(1);
    path.get(before.unwrap_or(0)..).unwrap_or_default()
}

/// What a piece of the redo notes.
#[derive(Default)]
pub(super) struct Found {
    of_indexes: Vec<IndexChange>,
    encryption_changes: Vec<(SpaceId, Lsn)>,
    deleted: Vec<FileDelete>,
    allocated: Vec<(AllocationByte, Lsn)>,
}

/// Searches the redo, piece by piece.
pub(super) struct Search<'a> {
    of_indexes: IndexLoadFinder,
    encryption_changes: EncryptionChangeFinder,
    deleted: FileDeleteFinder,
    allocated: AllocationFinder,
    /// The tablespaces whose allocations count.
    shared: &'a BTreeSet<SpaceId>,
}

impl<'a> Search<'a> {
    /// A search from `begin` on. No index that existed there has a higher id than `highest_index_id`.
    pub(super) fn new(begin: Lsn, highest_index_id: u64, shared: &'a BTreeSet<SpaceId>) -> Self {
        Self {
            of_indexes: IndexLoadFinder::new(begin, highest_index_id),
            encryption_changes: EncryptionChangeFinder::new(begin),
            deleted: FileDeleteFinder::new(begin),
            allocated: AllocationFinder::new(begin),
            shared,
        }
    }

    /// Searches the next whole blocks, and looks into the one that the log ends in for now.
    pub(super) fn search(&mut self, blocks: &[u8], partial: Option<&[u8]>) -> Result<Found, EncryptedBlock> {
        let mut found = Found::default();
        let shared = self.shared;
        let mut of_index = |change| found.of_indexes.push(change);
        let mut of_encryption = |space, lsn| found.encryption_changes.push((space, lsn));
        let mut of_file = |deleted| found.deleted.push(deleted);
        let mut of_page = |byte: AllocationByte, lsn| {
            if shared.contains(&byte.space) {
                found.allocated.push((byte, lsn));
            }
        };
        self.of_indexes.feed(blocks, &mut of_index)?;
        self.encryption_changes.feed(blocks, &mut of_encryption)?;
        self.deleted.feed(blocks, &mut of_file)?;
        self.allocated.feed(blocks, &mut of_page)?;
        if let Some(block) = partial {
            self.of_indexes.peek(block, &mut of_index)?;
            self.encryption_changes.peek(block, &mut of_encryption)?;
            self.deleted.peek(block, &mut of_file)?;
            self.allocated.peek(block, &mut of_page)?;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A doubtful deletion counts for the table that it names, wherever that is.
    #[test]
    fn doubtful_deletions_are_of_their_paths() {
        let mut deleted = DeletedSpaces::default();
        for (space, path, or_of) in [
            (7, "./db/t.ibd", vec![SpaceId(8967)]),
            (7, "/srv/more/db/u.ibd", vec![SpaceId(8967)]),
            (8, "./db/v.ibd", vec![]),
        ] {
            deleted.note(FileDelete { space: SpaceId(space), path: path.into(), or_of }).unwrap();
        }
        for (space, highest, paths, is_deleted) in [
            (7, 9000, &["db/t.ibd"][..], true),
            (7, 9000, &["x/t.ibd"], false),
            (7, 9000, &["x/t.ibd", "#outside/srv/more/db/u.ibd"], true),
            (7, 9000, &[], false),
            // No tablespace has such an id yet.
            (7, 8966, &["x/t.ibd"], true),
            (7, 8967, &["x/t.ibd"], false),
            (8, 9000, &["x/t.ibd"], true),
            (9, 9000, &["db/t.ibd"], false),
        ] {
            let has = deleted.has(SpaceId(space), SpaceId(highest), paths.iter().copied());
            assert_eq!(has, is_deleted, "{space} {highest} {paths:?}");
        }
        deleted.note(FileDelete { space: SpaceId(8967), path: Vec::new(), or_of: vec![] }).unwrap();
        assert!(!deleted.has(SpaceId(7), SpaceId(50), ["x/t.ibd"].into_iter()));
    }

    /// What looks like a record can name any space: memory stays bounded, and nothing is forgotten.
    #[test]
    fn more_spaces_than_can_be_told_apart_are_still_known() {
        let mut changes = EncryptionChanges::new(CHANGED_SPACES_MAX);
        changes.note(SpaceId(7), Lsn(50));
        changes.note(SpaceId(7), Lsn(40));
        assert_eq!((changes.newest(SpaceId(7)), changes.newest(SpaceId(8))), (Some(Lsn(50)), None));
        for space in 0..CHANGED_SPACES_MAX as u32 + 10 {
            changes.note(SpaceId(space), Lsn(100));
        }
        assert!(changes.known.len() <= CHANGED_SPACES_MAX);
        assert_eq!(changes.newest(SpaceId(7)), Some(Lsn(100)));
        assert_eq!(changes.newest(SpaceId(u32::MAX)), Some(Lsn(100)));

        let mut notes = IndexNotes::default();
        for (space, index_id, lsn) in [(7, 1, 50), (7, 1, 40), (7, 2, 60), (8, 3, 90)] {
            notes.note(SpaceId(space), index_id, Lsn(lsn));
        }
        let seen = |first, newest| Seen { first: Lsn(first), newest: Lsn(newest) };
        assert_eq!(notes.of(SpaceId(7)).collect::<Vec<_>>(), [(1, seen(40, 50)), (2, seen(60, 60))]);
        assert!(notes.may_have(SpaceId(8), 3) && !notes.may_have(SpaceId(8), 2));
        for index_id in 0..NOTED_INDEXES_MAX as u64 {
            notes.note(SpaceId(9), index_id, Lsn(100));
        }
        assert_eq!((notes.known.len(), notes.elsewhere()), (NOTED_INDEXES_MAX, Some(Lsn(100))));
        assert!(notes.may_have(SpaceId(8), 2));

        let byte = |space, offset| AllocationByte { space: SpaceId(space), descriptors: PageNo(0), offset };
        let mut allocations = Allocations::new(2);
        allocations.note(byte(7, 200), Lsn(50));
        allocations.note(byte(8, 300), Lsn(60));
        assert_eq!(allocations.since(SpaceId(7), Lsn(50)).unwrap(), [byte(7, 200)]);
        assert_eq!(allocations.since(SpaceId(7), Lsn(51)).unwrap(), []);
        allocations.note(byte(9, 300), Lsn(70));
        assert_eq!(allocations.since(SpaceId(7), Lsn(0)), None);
    }
}
