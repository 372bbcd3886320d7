//! Damaged pages of the source: pages that are bad in every read, so not caught in the middle of a write.
//!
//! A damaged page fails the backup, unless the user wants whatever can be had: then the page is taken as it
//! was read, and the backup is marked wherever it is listed. A later backup without that option cannot share
//! such a page: it reads the page itself, and fails.

use std::{
    collections::{BTreeMap, HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::Mutex,
};

use holdfast_formats::{Flavor, page::page_index_id, table_name::TableFile};
use holdfast_pipe::lock::lock;
use serde::Serialize;

use crate::{
    error::{Error, Result},
    event::{Event, Listener},
    server::{ConnectOptions, Purpose, Session, SqlError},
    source::files::{Entry, Inode},
};

/// What to do about a page that is bad in every read.
pub(super) const BAD_ON_THE_SOURCE: &str =
    "the page is bad on the source itself; run CHECK TABLE there, and see the server's error log";
/// More than this is not a damaged page or two, but a disk or a copy that is beyond saving.
const PAGES_MAX: usize = 10_000;
/// This many are reported to the listener one by one; the rest are in the report.
const TOLD_MAX: usize = 20;

/// A page that was taken into the backup as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedPage {
    /// The path of the file in the backup.
    pub path: String,
    /// Its number in the tablespace.
    pub page: u64,
    /// Its table, known by the name of the file or by the index.
    pub table: Option<String>,
    /// Its index, if the page names one and the server knows it.
    pub index: Option<String>,
}

impl std::fmt::Display for DamagedPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {} of {}", self.page, self.path)?;
        match (&self.table, &self.index) {
            (Some(table), Some(index)) => write!(f, " (table {table}, index {index})"),
            (Some(table), None) => write!(f, " (table {table})"),
            (None, _) => Ok(()),
        }
    }
}

impl DamagedPage {
    /// The same page under the name that its file has in the end.
    fn at(&self, path: &str) -> Self {
        let table = table_of(path).or_else(|| self.table.clone());
        Self { path: path.to_owned(), table, ..self.clone() }
    }
}

/// The table that a file belongs to, if its name tells.
fn table_of(path: &str) -> Option<String> {
    TableFile::from_path(path).map(|file| format!("{}.{}", file.database, file.table))
}

/// Finds the index that an id belongs to.
pub(super) trait Indexes: Sync {
    /// Its table, as the server's dictionary names it (`shop/orders`), and its own name.
    fn find(&self, id: u64) -> Option<(String, String)>;
}

/// Asks the server, over a new session each time: such pages are few, and hours apart.
pub(super) struct OfServer<'a>(pub(super) &'a ConnectOptions);

impl Indexes for OfServer<'_> {
    fn find(&self, id: u64) -> Option<(String, String)> {
        // A page is reported even if no name can be found for it.
        let mut session = Session::open(self.0, Purpose::Control).ok()?;
        index_name(&mut session, id).ok().flatten()
    }
}

fn index_name(session: &mut Session, id: u64) -> Result<Option<(String, String)>, SqlError> {
    let prefix = match session.flavor() {
        Flavor::MariaDb => "INNODB_SYS_",
        Flavor::MySql => "INNODB_",
    };
    let row = session.row(&format!(
        "SELECT t.NAME AS table_name, i.NAME AS index_name FROM information_schema.{prefix}INDEXES i
         JOIN information_schema.{prefix}TABLES t ON t.TABLE_ID = i.TABLE_ID WHERE i.INDEX_ID = {id}"
    ))?;
    row.map(|row| Ok((row.text("table_name")?.to_owned(), row.text("index_name")?.to_owned()))).transpose()
}

/// The damaged pages of one capture.
pub(super) struct Damage<'a> {
    is_taken: bool,
    indexes: &'a dyn Indexes,
    listener: &'a dyn Listener,
    /// By inode: another file may take the name while the server writes.
    found: Mutex<BTreeMap<Inode, OfFile>>,
    hasher: RandomState,
}

/// The damaged pages of a file, with the hashes of what was read.
#[derive(Default)]
struct OfFile {
    now: Vec<(DamagedPage, u64)>,
    /// Those of the previous copy, by page number. A page with the same bytes need not be watched for that
    /// long again, perhaps under a lock.
    before: BTreeMap<u64, (DamagedPage, u64)>,
}

impl<'a> Damage<'a> {
    /// No damaged pages yet. If `is_taken`, a damaged page does not fail the backup.
    pub(super) fn new(is_taken: bool, indexes: &'a dyn Indexes, listener: &'a dyn Listener) -> Self {
        Self { is_taken, indexes, listener, found: Mutex::default(), hasher: RandomState::new() }
    }

    /// Begins a copy of a file, possibly another one.
    pub(super) fn file_begins(&self, entry: &Entry) {
        if let Some(file) = self.found().get_mut(&entry.stat.inode) {
            file.before.extend(file.now.drain(..).map(|(page, hash)| (page.page, (page, hash))));
        }
    }

    /// Whether an earlier copy of the file took the page with the same bytes; if so, it counts for this copy,
    /// too.
    pub(super) fn again(&self, entry: &Entry, page: u64, bytes: &[u8]) -> bool {
        let mut found = self.found();
        let Some(file) = found.get_mut(&entry.stat.inode) else { return false };
        match file.before.get(&page) {
            Some((known, hash)) if *hash == self.hasher.hash_one(bytes) => {
                let page = DamagedPage { path: entry.path.clone(), ..known.clone() };
                file.now.push((page, *hash));
                true
            }
            _ => false,
        }
    }

    /// Records a damaged page of a file, or fails if it may not be taken.
    pub(super) fn page(&self, entry: &Entry, page: u64, bytes: &[u8], reads: u32) -> Result<()> {
        let path = &entry.path;
        let index = page_index_id(bytes).and_then(|id| self.indexes.find(id));
        let of_index = || index.as_ref().map(|(table, _)| table.replacen('/', ".", 1));
        let table = table_of(path).or_else(of_index);
        let page = DamagedPage { path: path.clone(), page, table, index: index.map(|(_, name)| name) };
        if !self.is_taken {
            return Err(Error::failed(format!(
                "{page} is damaged: its checksum was still wrong after {reads} more reads"
            ))
            .hinted(format!(
                "{BAD_ON_THE_SOURCE}. --allow-corrupt backs it up anyway, and marks the backup as damaged"
            )));
        }
        let mut found = self.found();
        let count: usize = found.values().map(|file| file.now.len()).sum();
        if count >= PAGES_MAX {
            return Err(Error::failed(format!("more than {PAGES_MAX} pages are damaged, the last: {page}")));
        }
        if count < TOLD_MAX {
            let text = format!("{page} is damaged, and backed up as it is");
            self.listener.event(Event::Warning { text });
        }
        let hash = self.hasher.hash_one(bytes);
        found.entry(entry.stat.inode).or_default().now.push((page, hash));
        Ok(())
    }

    /// The damaged pages that are in the backup, under the names that it has for their files: what was copied
    /// may have been renamed or removed since. `paths` is called only if there are any.
    pub(super) fn pages<'p>(&self, paths: impl FnOnce() -> HashMap<Inode, &'p str>) -> Vec<DamagedPage> {
        let found = self.found();
        if found.is_empty() {
            return Vec::new();
        }
        let paths = paths();
        let mut pages = BTreeMap::new();
        for (inode, OfFile { now, .. }) in &*found {
            let Some(path) = paths.get(inode) else { continue };
            pages.extend(now.iter().map(|(page, _)| ((path, page.page), page.at(path))));
        }
        pages.into_values().collect()
    }

    fn found(&self) -> std::sync::MutexGuard<'_, BTreeMap<Inode, OfFile>> {
        lock(&self.found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{event::Silent, source::files::Stat};

    /// A new file, under its name in the backup.
    fn file(path: &str) -> Entry {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = Stat::of(file.path()).unwrap();
        let (real, path) = (file.path().to_owned(), path.to_owned());
        Entry { path, real, outside: false, size_bytes: 0, is_dir: false, mode: 0o640, stat }
    }

    struct Known;

    impl Indexes for Known {
        fn find(&self, id: u64) -> Option<(String, String)> {
            (id == 157).then(|| ("shop/orders".to_owned(), "by_day".to_owned()))
        }
    }

    fn index_page(id: u64) -> Vec<u8> {
        let mut page = vec![0_u8; 16384];
        page[24..26].copy_from_slice(&17855_u16.to_be_bytes());
        page[66..74].copy_from_slice(&id.to_be_bytes());
        page
    }

    /// A page is named by the file if that tells the table, else by the index, else by file and number alone.
    #[test]
    fn a_damaged_page_fails_the_backup_by_name() {
        let damage = Damage::new(false, &Known, &Silent);
        for (path, id, name) in [
            ("shop/o@0023x.ibd", 157, "page 7 of shop/o@0023x.ibd (table shop.o#x, index by_day) is damaged"),
            ("shop/a.ibd", 1, "page 7 of shop/a.ibd (table shop.a) is damaged"),
            ("general.ibd", 157, "page 7 of general.ibd (table shop.orders, index by_day) is damaged"),
            ("ibdata1", 1, "page 7 of ibdata1 is damaged"),
        ] {
            let error = damage.page(&file(path), 7, &index_page(id), 9).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }

    /// A file that is copied again counts as in its latest copy. The number of pages that are taken is
    /// limited.
    #[test]
    fn damaged_pages_are_kept_in_mind_if_they_are_wanted() {
        let damage = Damage::new(true, &Known, &Silent);
        let (a, b) = (file("shop/a.ibd"), file("shop/b.ibd"));
        damage.page(&a, 3, &index_page(1), 9).unwrap();
        damage.page(&b, 4, &index_page(1), 9).unwrap();
        damage.file_begins(&a);
        let pages = || {
            let found = damage.found();
            let pages = found.values().flat_map(|file| &file.now).map(|(page, _)| page.page);
            pages.collect::<BTreeSet<u64>>()
        };
        assert_eq!(pages(), BTreeSet::from([4]));
        // A page that is equal in the next copy is known; one that differs has to be looked at.
        assert!(!damage.again(&a, 3, &index_page(2)) && !damage.again(&a, 5, &index_page(1)));
        assert_eq!(pages(), BTreeSet::from([4]));
        assert!(damage.again(&a, 3, &index_page(1)));
        assert_eq!(pages(), BTreeSet::from([3, 4]));
        damage.file_begins(&a);
        // Another file that takes its name, as when tables are swapped, has no bearing on it.
        damage.file_begins(&file("shop/b.ibd"));
        assert_eq!(pages(), BTreeSet::from([4]));
        for page in 1..PAGES_MAX {
            damage.page(&a, page as u64, &index_page(1), 9).unwrap();
        }
        assert!(damage.page(&a, 0, &index_page(1), 9).is_err());
    }
}
