//! What has been copied so far, and what a rescan of the data directory means for it.
//!
//! Tablespaces are identified by their [`FileKey`], so a renamed one is recognised, and a new one under an
//! old name is not mistaken for it. Other files are identified by path and
//! [signature](super::files::Signature).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io,
};

use holdfast_formats::{Flavor, Lsn, SpaceId, tablespace::Geometry};

use super::{
    FileId, Sink,
    files::{Entry, FileKey, Inode, Stat, read_failed},
    plain::CopiedFile,
    tablespace::{CopiedTablespace, TablespaceEntry, Unended},
    workers::on_threads,
};
use crate::{
    error::{Error, Result},
    server::{ServerFacts, tables::TablespaceRow},
};

/// Fails if two files would have the same path in the backup: one of them would be lost.
pub(super) fn each_path_once(found: &[TablespaceEntry]) -> Result<()> {
    let mut paths = BTreeMap::new();
    for TablespaceEntry { entry, .. } in found {
        if let Some(other) = paths.insert(&entry.path, &entry.real) {
            let (one, other) = (entry.real.display(), other.display());
            return Err(Error::failed(format!(
                "{one} and {other} would both be {} in the backup",
                entry.path
            ))
            .hinted("information_schema shows which one the server uses; move the other away"));
        }
    }
    Ok(())
}

/// Keeps only the server's own name of a file, if that is among those found. A hard link to a table's file,
/// or a file seen through a link from one schema directory to another, is just another name. `names` returns
/// the server's names; it is called only if some file has several.
pub(super) fn keep_the_servers_names(
    found: &mut Vec<TablespaceEntry>,
    others: &mut BTreeMap<String, Entry>,
    names: impl FnOnce() -> Result<BTreeSet<String>>,
) -> Result<()> {
    let mut count: HashMap<Inode, u32> = HashMap::with_capacity(found.len());
    for file in &*found {
        *count.entry(file.entry.stat.inode).or_default() += 1;
    }
    // Under a name that is not a tablespace's it would be copied unchecked, and under the lock whenever it
    // has changed.
    others.retain(|_, entry| entry.is_dir || !count.contains_key(&entry.stat.inode));
    if count.values().all(|count| *count == 1) {
        return Ok(());
    }
    let names = names()?;
    let is_known = |file: &TablespaceEntry| names.contains(&file.entry.path);
    let known: BTreeSet<_> =
        found.iter().filter(|file| is_known(file)).map(|file| file.entry.stat.inode).collect();
    found.retain(|file| !known.contains(&file.entry.stat.inode) || is_known(file));
    Ok(())
}

/// Everything copied so far.
#[derive(Default)]
pub struct Inventory {
    tablespaces: HashMap<FileKey, Held>,
    files: BTreeMap<String, CopiedFile>,
    directories: BTreeSet<String>,
    /// `myisam_use_mmap`: a store into a page that is already mapped and dirty shows in no timestamp.
    myisam_is_mapped: bool,
}

struct Held {
    copied: CopiedTablespace,
    path: String,
    before: Before,
    lacks: Option<Lacks>,
}

/// Pages that a copy may lack and that the redo does not hold either: they were allocated, or freed, since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacks {
    /// The redo from here on tells which.
    pub since: Lsn,
    /// What applies to the copy once it has them.
    pub then: Before,
}

/// A copy that is to receive the pages it lacks.
pub struct Amend {
    /// The file.
    pub found: TablespaceEntry,
    /// Its copy.
    pub copied: CopiedTablespace,
    /// The pages it lacks.
    pub lacks: Lacks,
}

/// What the server said about a tablespace just before its copy began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// The server had logged more than this: anything that the copy may lack is later.
    pub lsn: Lsn,
    /// The server's row for the tablespace, if it had one.
    pub space: Option<TablespaceRow>,
    /// MySQL: whether [there had been a moment](super::copier::Copier::had_quiet) without changes of definitions, or
    /// the file was unchanged when there had been.
    pub after_quiet: bool,
}

/// The tablespaces that the server lists.
pub type Spaces = BTreeMap<SpaceId, TablespaceRow>;

/// A tablespace file that exists, to be judged.
pub struct Found<'a> {
    /// The space id from its page 0. `None` while that is not yet written, and for files without a page 0 of
    /// their own.
    pub space: Option<SpaceId>,
    /// The file.
    pub entry: &'a TablespaceEntry,
    /// The copy of this very incarnation, if there is one.
    pub copy: Option<Copied<'a>>,
}

/// A copy of a tablespace file.
#[derive(Clone, Copy)]
pub struct Copied<'a> {
    /// The copy.
    pub file: &'a CopiedTablespace,
    /// What the server said about the tablespace before the copy.
    pub before: &'a Before,
    /// Pages that it is known to lack since an earlier rescan.
    pub lacks: Option<&'a Lacks>,
}

/// What to do about a tablespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The redo makes the copy good, if there is one.
    Keep,
    /// The redo makes the copy good, except for these pages.
    Amend(Lacks),
    /// Pages may have been written without redo: copy it again.
    CopyAgain,
    /// Pages may have been written without redo, and the redo does not help: copy it again while nobody may write to
    /// it.
    CopyClosed,
}

/// What to do about the tablespaces, now that their names cannot change.
#[derive(Default)]
pub struct Rescan {
    /// To be copied: new, another incarnation than the one that was copied, or judged so.
    pub copy: Vec<TablespaceEntry>,
    /// How many were copied under another name.
    pub renamed: u64,
    /// How many copied files no longer exist.
    pub gone: u64,
    /// To be copied while nobody may write to them; with their spaces.
    pub copy_closed: Vec<(TablespaceEntry, Option<SpaceId>)>,
    /// Copied, except for some pages.
    pub amend: Vec<Amend>,
    /// Files with two names: the first that was found, and the second.
    second_names: Vec<[String; 2]>,
}

impl Rescan {
    /// Fails if a file has two names although no rename is under way: the server does not tell which is
    /// right.
    pub fn refuse_second_names(&self) -> Result<()> {
        match self.second_names.first() {
            None => Ok(()),
            Some([one, other]) => Err(Error::failed(format!(
                "{one} and {other} are two names of one file, and the server uses at most one of them"
            ))
            .hinted("remove the name that no table uses from the data directory")),
        }
    }
}

impl Inventory {
    /// An empty inventory for this server.
    #[must_use]
    pub fn of(facts: &ServerFacts) -> Self {
        Self { myisam_is_mapped: facts.sql.myisam_use_mmap, ..Self::default() }
    }

    /// Records a copied tablespace.
    pub fn add_tablespace(
        &mut self,
        sink: &dyn Sink,
        path: &str,
        copied: CopiedTablespace,
        before: Before,
    ) -> Result<()> {
        let held = Held { copied, path: path.to_owned(), before, lacks: None };
        match self.tablespaces.insert(held.copied.key, held) {
            // Two names of one file, seen during its rename: one copy is enough.
            Some(before) => sink.file_gone(before.copied.file),
            None => Ok(()),
        }
    }

    /// Records a copy of another file.
    pub fn add_file(&mut self, path: &str, copied: CopiedFile) {
        self.files.insert(path.to_owned(), copied);
    }

    /// Fails unless each of `spaces` was copied, or if any tablespace was copied twice: recovery would take
    /// either copy. One that is missing may be gone: `again` lists those that there are now, and is called only if
    /// there is such a one.
    pub fn holds_all<'a>(
        &self,
        spaces: impl Iterator<Item = &'a TablespaceRow>,
        again: impl FnOnce() -> Result<Spaces>,
    ) -> Result<()> {
        let mut held = BTreeMap::new();
        let mut unwritten = BTreeSet::new();
        for (key, copy) in &self.tablespaces {
            let Some(space) = key.space else {
                unwritten.insert(copy.path.as_str());
                continue;
            };
            if let Some(other) = held.insert(space, &copy.path) {
                return Err(Error::failed(format!(
                    "tablespace {space} has two files: {other} and {}",
                    copy.path
                ))
                .hinted(
                    "if one was put there for a discarded table, import that table, or move its file out of the data \
                     directory",
                ));
            }
        }
        // Page 0 of a new tablespace may be in the buffer pool only.
        let is_new = |row: &TablespaceRow| unwritten.contains(format!("{}.ibd", row.name).as_str());
        let missing: Vec<_> = spaces.filter(|row| !held.contains_key(&row.space) && !is_new(row)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let again = again()?;
        match missing.into_iter().find(|row| again.contains_key(&row.space)) {
            None => Ok(()),
            Some(row) => Err(Error::failed(format!(
                "tablespace {} ({}) is listed by the server, and no file of it was found",
                row.space, row.name
            ))
            .hinted(
                "the file may be outside the data directory, where this process cannot see it: see --path-map",
            )),
        }
    }

    /// The paths that the backup has for the files that were copied.
    pub(super) fn paths(&self) -> HashMap<Inode, &str> {
        let tablespaces = self.tablespaces.iter().map(|(key, held)| (key.inode, held.path.as_str()));
        let others = self.files.iter().map(|(path, copied)| (copied.inode, path.as_str()));
        tablespaces.chain(others).collect()
    }

    /// The paths of the tablespaces that were copied.
    pub(super) fn tablespace_paths(&self) -> impl Iterator<Item = &str> {
        self.tablespaces.values().map(|held| held.path.as_str())
    }

    /// Records that a copy has received the pages it lacked, and is now `size_bytes` long.
    pub(super) fn amended(&mut self, amend: Amend, size_bytes: u64) {
        let Some(held) = self.tablespaces.get_mut(&amend.copied.key) else { return };
        if let Some(unended) = &mut held.copied.unended {
            unended.is_now(size_bytes);
        }
        (held.before, held.lacks) = (amend.lacks.then, None);
    }

    /// Fails if a copy still lacks pages: its file disappeared although nobody could drop it.
    pub(super) fn lacks_nothing(&self) -> Result<()> {
        match self.tablespaces.values().find(|held| held.lacks.is_some()) {
            None => Ok(()),
            Some(held) => Err(Error::failed(format!("{}: was replaced although DDL was blocked", held.path))),
        }
    }

    /// Files whose page 0 was all zeros when they were copied.
    pub(super) fn unwritten(&self) -> impl Iterator<Item = &TablespaceEntry> {
        self.tablespaces.values().filter_map(|held| held.copied.unwritten.as_ref())
    }

    /// Drops the copies of those files at `paths`, and returns the files, so that they are copied again.
    pub(super) fn forget_unwritten(
        &mut self,
        sink: &dyn Sink,
        paths: &BTreeSet<String>,
    ) -> Result<Vec<TablespaceEntry>> {
        let is_meant = |held: &Held| held.copied.unwritten.is_some() && paths.contains(&held.path);
        let forgotten: Vec<_> = self.tablespaces.extract_if(|_, held| is_meant(held)).collect();
        let mut found = Vec::with_capacity(forgotten.len());
        for (_, held) in forgotten {
            sink.file_gone(held.copied.file)?;
            found.extend(held.copied.unwritten);
        }
        Ok(found)
    }

    /// MariaDB: whether page 0 of the system tablespace was copied before it said how pages are encrypted,
    /// and a further file of the tablespace, which may have encrypted pages, was copied later.
    #[must_use]
    pub fn lacks_encryption_of_system(&self) -> bool {
        let says = |space| {
            let of_space = self.tablespaces.iter().filter(move |(key, _)| key.space == space);
            of_space.map(|(_, held)| held.copied.says_encryption)
        };
        // Of the files without a space id, only further files say anything.
        says(None).any(|says| says) && says(Some(SpaceId(0))).any(|says| !says)
    }

    /// The copies that have yet to be ended.
    pub(super) fn unended(&self) -> impl Iterator<Item = (FileId, &Unended)> {
        self.tablespaces.values().filter_map(|held| Some((held.copied.file, held.copied.unended.as_ref()?)))
    }

    /// Drops the copies of the selected files, so that they are copied again if they still exist.
    pub fn forget(&mut self, sink: &dyn Sink, which: impl Fn(&str) -> bool) -> Result<()> {
        // Hardly any, and perhaps under a lock: all others stay where they are.
        let forgotten: Vec<String> = self.files.keys().filter(|path| which(path)).cloned().collect();
        let mut forgotten = forgotten.iter().filter_map(|path| self.files.remove(path));
        forgotten.try_for_each(|copied| sink.file_gone(copied.file))
    }

    /// Drops the copies of the selected tablespaces, which are gone.
    pub(super) fn forget_tablespaces(&mut self, sink: &dyn Sink, which: impl Fn(&str) -> bool) -> Result<()> {
        let mut forgotten = self.tablespaces.extract_if(|_, held| which(&held.path));
        forgotten.try_for_each(|(_, held)| sink.file_gone(held.copied.file))
    }

    /// The copy of the file at `path`.
    pub fn file_mut(&mut self, path: &str) -> Option<&mut CopiedFile> {
        self.files.get_mut(path)
    }

    /// Whether `entry`, as listed, is certainly unchanged since its copy.
    #[must_use]
    pub fn has_unchanged(&self, entry: &Entry) -> bool {
        let is_mapped = self.myisam_is_mapped && entry.path.ends_with(".MYD");
        let copied = self.files.get(&entry.path).filter(|_| !is_mapped);
        copied.is_some_and(|copied| copied.signature.unchanged(&entry.stat.signature))
    }

    /// Whether `entry` is the inode that was copied, changed or not.
    #[must_use]
    pub fn has_same_file(&self, entry: &Entry) -> bool {
        self.files.get(&entry.path).is_some_and(|copied| copied.signature.same_inode(&entry.stat.signature))
    }

    /// Sends the directories in `entries` that were not sent yet.
    pub fn add_directories<'a>(
        &mut self,
        sink: &dyn Sink,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Result<()> {
        for entry in entries.filter(|entry| entry.is_dir) {
            if self.directories.insert(entry.path.clone()) {
                sink.directory(&entry.path, entry.mode)?;
            }
        }
        Ok(())
    }

    /// Drops the copies of files and directories that are no longer `present`.
    pub fn drop_vanished(&mut self, sink: &dyn Sink, present: &BTreeMap<String, Entry>) -> Result<()> {
        let gone: Vec<String> =
            self.files.keys().filter(|path| !present.contains_key(*path)).cloned().collect();
        for path in gone {
            if let Some(copied) = self.files.remove(&path) {
                sink.file_gone(copied.file)?;
            }
        }
        for path in self.directories.iter().filter(|path| !present.contains_key(*path)) {
            sink.directory_gone(path)?;
        }
        self.directories.retain(|path| present.contains_key(path));
        Ok(())
    }

    /// Compares the copies of tablespaces with the files that exist `now`. Renames and drops copies in the
    /// sink; returns what must be copied. `judge` decides about each file that exists, including those
    /// without a copy. A file that is certainly the one copied, by its name and times, is not opened; the
    /// others are, by up to `threads` threads.
    pub fn rescan(
        &mut self,
        flavor: Flavor,
        sink: &dyn Sink,
        now: Vec<TablespaceEntry>,
        threads: usize,
        judge: &dyn Fn(&Found<'_>) -> Verdict,
    ) -> Result<Rescan> {
        let mut result = Rescan::default();
        let mut kept = HashMap::new();
        let mut moves = Vec::new();
        let mut names: HashMap<FileKey, String> = HashMap::with_capacity(now.len());
        let keys = self.keys_of(flavor, &now, threads)?;
        for (found, key) in now.into_iter().zip(keys) {
            let Some(key) = key else { continue };
            if let Some(first) = names.get(&key) {
                result.second_names.push([first.clone(), found.entry.path]);
                continue;
            }
            names.insert(key, found.entry.path.clone());
            let held = self.tablespaces.remove(&key);
            let copy = held.as_ref().map(|held| Copied {
                file: &held.copied,
                before: &held.before,
                lacks: held.lacks.as_ref(),
            });
            let verdict = judge(&Found { space: key.space, entry: &found, copy });
            let mut held = match (verdict, held) {
                (Verdict::Keep, Some(held)) => held,
                (Verdict::Amend(lacks), Some(held)) => {
                    let copied = held.copied.clone();
                    result.amend.push(Amend { found: found.clone(), copied, lacks: lacks.clone() });
                    Held { lacks: Some(lacks), ..held }
                }
                (verdict, held) => {
                    if let Some(held) = held {
                        sink.file_gone(held.copied.file)?;
                    }
                    match verdict {
                        Verdict::CopyClosed => result.copy_closed.push((found, key.space)),
                        Verdict::Keep | Verdict::Amend(_) | Verdict::CopyAgain => result.copy.push(found),
                    }
                    continue;
                }
            };
            if held.path != found.entry.path {
                result.renamed += 1;
                moves.push((held.copied.file, found.entry.path.clone()));
                held.path.clone_from(&found.entry.path);
            }
            if let Some(unwritten) = &mut held.copied.unwritten {
                *unwritten = found;
            }
            kept.insert(key, held);
        }
        for (_, held) in self.tablespaces.drain() {
            result.gone += 1;
            sink.file_gone(held.copied.file)?;
        }
        // Names may have been swapped: move all out of the way first.
        for (file, _) in &moves {
            sink.file_renamed(*file, &format!("#moving/{}", file.0))?;
        }
        for (file, path) in &moves {
            sink.file_renamed(*file, path)?;
        }
        self.tablespaces = kept;
        Ok(result)
    }

    /// MySQL: records that all copies were judged since there was a moment without changes of definitions, as if
    /// they had begun after it.
    pub(super) fn were_judged_after_quiet(&mut self) {
        self.tablespaces.values_mut().for_each(|held| held.before.after_quiet = true);
    }
}

/// Fewer files than this are not worth a thread.
const FILES_PER_THREAD: usize = 100;

impl Inventory {
    /// Which incarnation of which space each of these files is. `None` for a file that vanished.
    fn keys_of(
        &self,
        flavor: Flavor,
        found: &[TablespaceEntry],
        threads: usize,
    ) -> Result<Vec<Option<FileKey>>> {
        let by_path: HashMap<&str, &Held> =
            self.tablespaces.values().map(|held| (held.path.as_str(), held)).collect();
        let known = |found: &TablespaceEntry| {
            let Stat { inode, signature, .. } = &found.entry.stat;
            let Held { copied, .. } = by_path.get(found.entry.path.as_str())?;
            let same = copied.key.inode == *inode && copied.signature.unchanged(signature);
            // While page 0 is not written, the space is unknown.
            (same && copied.key.space.is_some()).then_some(copied.key)
        };
        let mut keys: Vec<_> = found.iter().map(known).collect();
        let unknown: Vec<_> =
            keys.iter().zip(found).enumerate().filter(|(_, (key, _))| key.is_none()).collect();
        let unknown: Vec<_> = unknown.into_iter().map(|(at, (_, found))| (at, found)).collect();
        let threads = (unknown.len() / FILES_PER_THREAD).clamp(1, threads.max(1));
        for (at, key) in on_threads(unknown, threads, |(at, found), _| Ok((at, key_of(flavor, found)?)))? {
            if let Some(place) = keys.get_mut(at) {
                *place = key;
            }
        }
        Ok(keys)
    }
}

/// Which incarnation of which space a file is. `None` if it vanished.
fn key_of(flavor: Flavor, found: &TablespaceEntry) -> Result<Option<FileKey>> {
    let entry = &found.entry;
    let read = || -> io::Result<FileKey> {
        use std::os::unix::fs::FileExt;
        let file = File::open(&entry.real)?;
        let mut prefix = [0; 1024];
        let mut len = 0;
        while len < prefix.len() {
            match file.read_at(&mut prefix[len..], len as u64)? {
                0 => break,
                n => len += n,
            }
        }
        // Only the first file begins with a page that names the tablespace.
        let geometry = match found.continues {
            None => Geometry::parse(flavor, &prefix[..len]).ok().flatten(),
            Some(_) => None,
        };
        Ok(FileKey { space: geometry.map(|g| g.space_id()), inode: Inode::of(&file)? })
    };
    match read() {
        Ok(key) => Ok(Some(key)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(read_failed(&entry.real, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread::sleep};

    use super::*;
    use crate::source::{
        FileId, FileSpec, Pages, Role,
        files::{CLOCK_TICK, Signature, walk},
    };

    struct Nowhere;

    impl Sink for Nowhere {
        fn file_begin(&self, _: FileSpec) -> Result<FileId> {
            Ok(FileId(0))
        }
        fn pages(&self, _: FileId, _: Pages<'_>) -> Result<()> {
            Ok(())
        }
        fn file_end(&self, _: FileId, _: u64) -> Result<()> {
            Ok(())
        }
        fn file_renamed(&self, _: FileId, _: &str) -> Result<()> {
            Ok(())
        }
        fn file_gone(&self, _: FileId) -> Result<()> {
            Ok(())
        }
        fn directory(&self, _: &str, _: u16) -> Result<()> {
            Ok(())
        }
        fn directory_gone(&self, _: &str) -> Result<()> {
            Ok(())
        }
        fn is_drained(&self) -> Result<bool> {
            Ok(true)
        }
    }

    /// A file that is the one copied, by its name and times, is not opened: here it disappears after the
    /// listing without being missed. A file that was written to is opened.
    #[test]
    fn only_new_and_changed_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["same.ibd", "changed.ibd"] {
            fs::write(dir.path().join(name), [0; 100]).unwrap();
        }
        sleep(2 * CLOCK_TICK);
        let list = || -> Vec<_> {
            let found = walk(dir.path(), &|_, _| false).unwrap();
            found.into_values().map(|entry| TablespaceEntry::new(entry, Role::Tablespace)).collect()
        };
        let mut inventory = Inventory::default();
        for (n, found) in (1..).zip(list()) {
            let file = File::open(&found.entry.real).unwrap();
            let key = FileKey { space: Some(SpaceId(n)), inode: Inode::of(&file).unwrap() };
            let signature = Signature::of(&file.metadata().unwrap());
            let copied = CopiedTablespace {
                file: FileId(n.into()),
                key,
                signature,
                says_encryption: false,
                unended: None,
                unwritten: None,
            };
            let before = Before { lsn: Lsn(1), space: None, after_quiet: false };
            inventory.add_tablespace(&Nowhere, &found.entry.path, copied, before).unwrap();
        }
        fs::write(dir.path().join("changed.ibd"), [1; 100]).unwrap();
        let now = list();
        for found in &now {
            fs::remove_file(&found.entry.real).unwrap();
        }
        let keep = |_: &Found<'_>| Verdict::Keep;
        let rescan = inventory.rescan(Flavor::MariaDb, &Nowhere, now, 2, &keep).unwrap();
        assert_eq!((rescan.copy.len(), rescan.gone), (0, 1));
        let kept: Vec<_> = inventory.tablespaces.values().map(|held| held.path.as_str()).collect();
        assert_eq!(kept, ["same.ibd"]);
    }
}
