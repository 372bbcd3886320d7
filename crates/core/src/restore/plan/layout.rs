//! Where each item of a backup goes.
//!
//! Everything comes home: files that the source kept outside of its data directory go into the target, unless
//! a mapping names another place for them. So a restored server can open nothing of the source's,
//! not even on the source's own host.
//!
//! - MariaDB: a table with DATA DIRECTORY becomes an ordinary one: its file goes where its `.isl` was, the
//!   `.isl` is dropped, and the captured redo is rewritten to say so ([`crate::restore::redo`]). Encrypted redo
//!   cannot be: recovery opens such a file where it was, so it is restored there (`--map`) or not at all. That
//!   is so of tables with an `.isl` only. The redo names files behind a link, as of a whole schema, by their
//!   place in the data directory.
//! - MySQL: the dictionary remembers absolute paths, and the server finds a moved file by its space id when
//!   it scans its data directory ("is moved to"). A general tablespace must not be in a subdirectory of it,
//!   but may be directly in it. Verified on 9.7.4: general, undo and DATA DIRECTORY tablespaces were
//!   recovered from there, and used after that; also under another file name, which files get that would
//!   otherwise have the same one.
//! - A file of another engine behind a link becomes an ordinary file in the link's place.

use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use holdfast_formats::{Flavor, SpaceId, tablespace::is_shared};
use holdfast_repo::format::item::{FileRole, Item, ItemPath, ItemType};

use super::paths::join;
use crate::error::{Error, ErrorKind, Result};
use crate::foreign_files::is_foreign;
use crate::real_path::real_path;
use crate::restore::{
    opened::Opened,
    options::RestoreOptions,
    part::TablePart,
    target::names::{MARKER, PARTIAL, REDO_MARIADB, REDO_MYSQL_DIR, REPORT, is_of_a_restore},
};

/// MySQL: prefix of the paths, in a backup, of files from outside of the data directory.
const OUTSIDE: &[u8] = b"#outside/";
/// Sorts after all of those.
const OUTSIDE_LAST: &[u8] = b"#outside0";

/// What to do instead of mapping a file into the target.
pub(super) const IN_THE_TARGET: &str =
    "without a mapping, files from outside go into the target by themselves";

/// One of the trees that a restore writes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Root {
    /// The target directory.
    Target,
    /// The place that this mapping names.
    Mapped(usize),
}

/// A place to put something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) root: Root,
    pub(crate) path: ItemPath,
}

impl Place {
    fn home(path: ItemPath) -> Self {
        Self { root: Root::Target, path }
    }
}

/// How the target leads to a file in a mapped place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pointer {
    /// An `.isl` file in the place of this path's `.ibd`; a link in that place while the server recovers,
    /// because the redo leads there.
    Isl { data: ItemPath, isl: ItemPath },
    /// An `.isl` file as well, but from the beginning: encrypted redo leads to the mapped place itself.
    IslOnly { isl: ItemPath },
    /// A link.
    Link(ItemPath),
    /// None: the server is told the directory (`innodb_directories`).
    Told,
}

/// What is done with an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A directory of the target.
    Directory(ItemPath),
    /// A file of the target. `held`: no server starts without it, so it gets its name last.
    File { place: Place, held: bool },
    /// A file in a mapped place.
    Mapped { place: Place, pointer: Pointer },
    /// Not restored, and why.
    Dropped(&'static str),
    /// Not in the part that was asked for.
    NotWanted,
    /// The captured redo, laid out on its own.
    Redo,
}

/// Decides item by item, and ensures that no two go to the same place.
pub(crate) struct Layout<'a> {
    flavor: Flavor,
    maps: &'a [(PathBuf, PathBuf)],
    /// The part of the backup to restore; `None`: all of it.
    part: Option<&'a TablePart>,
    /// Names at the top of the target that several files of the backup would have.
    contested: HashSet<Vec<u8>>,
    /// Files that encrypted redo names by where the source had them.
    fixed: HashSet<ItemPath>,
    /// Where the target and the mapped places really are: two mappings may lead to one.
    target: PathBuf,
    places: Vec<PathBuf>,
    taken: HashSet<PathBuf>,
}

impl<'a> Layout<'a> {
    pub(crate) fn new(flavor: Flavor, maps: &'a [(PathBuf, PathBuf)], target: &Path) -> Result<Self> {
        let (contested, fixed, taken) = Default::default();
        let places = maps.iter().map(|(_, to)| real_path(to)).collect::<Result<_>>()?;
        let target = real_path(target)?;
        Ok(Self { flavor, maps, part: None, contested, fixed, target, places, taken })
    }

    /// A layout for the items of a backup.
    pub(crate) fn of(opened: &Opened, options: &'a RestoreOptions) -> Result<Self> {
        let flavor = opened.server.version.flavor;
        let mut layout = Self::new(flavor, &options.maps, &options.target_dir)?;
        layout.part = options.part.as_ref();
        if flavor == Flavor::MariaDb && opened.redo_encrypted() {
            layout.fixed = fixed_files(opened)?;
        }
        let mut claims: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for item in opened.backup.items() {
            let item = item?;
            if item.path.as_bytes() > OUTSIDE_LAST {
                break;
            }
            if let Some(outside) = &item.outside
                && item.path.as_bytes().starts_with(OUTSIDE)
                && let Decision::File { place, .. } = layout.outside(&item, outside)?
            {
                *claims.entry(place.path.as_bytes().to_vec()).or_default() += 1;
            }
        }
        for (name, count) in claims {
            let path = ItemPath::new(name.clone()).map_err(|error| Error::damaged(error.to_string()))?;
            if count > 1 || opened.backup.find(&path)?.is_some() {
                layout.contested.insert(name);
            }
        }
        Ok(layout)
    }

    /// Decides on an item.
    pub(crate) fn decide(&mut self, item: &Item) -> Result<Decision> {
        if item.item_type != ItemType::CapturedRedo && is_of_a_restore(&item.path) {
            return Ok(Decision::Dropped("an earlier restore had left it on the source"));
        }
        if item.item_type != ItemType::CapturedRedo && is_foreign(item.path.as_bytes()) {
            return Ok(Decision::Dropped("it is of the source's filesystem or user, not of its server"));
        }
        match item.item_type {
            ItemType::CapturedRedo => return Ok(Decision::Redo),
            ItemType::Directory if item.path.as_bytes() == REDO_MYSQL_DIR.as_bytes() => {
                return Ok(Decision::Dropped("the redo log's directory is made again"));
            }
            ItemType::Directory => return Ok(Decision::Directory(item.path.clone())),
            ItemType::Table | ItemType::Definition => {
                return Err(Error::damaged(format!("{} belongs to a logical backup", item.path)));
            }
            ItemType::File => {}
        }
        if let Some(why) = never_restored(self.flavor, &item.path) {
            return Ok(Decision::Dropped(why));
        }
        if let Some(part) = self.part {
            if let Some(outside) = &item.outside
                && self.is_fixed(item)
            {
                return Err(not_in_part(item, outside));
            }
            let home = match &item.outside {
                Some(outside) => self.home_path(item, outside)?,
                None => item.path.clone(),
            };
            if !part.has(item, &home) {
                return Ok(Decision::NotWanted);
            }
        }
        let decision = match &item.outside {
            None => Decision::File { place: Place::home(item.path.clone()), held: is_held(item) },
            Some(outside) => self.outside(item, outside)?,
        };
        match &decision {
            Decision::File { place, .. } => self.take(place, item)?,
            Decision::Mapped { place, pointer } => {
                self.take(place, item)?;
                if let Pointer::Isl { data: path, .. } | Pointer::Link(path) = pointer {
                    self.take(&Place::home(path.clone()), item)?;
                }
            }
            Decision::Directory(_) | Decision::Dropped(_) | Decision::NotWanted | Decision::Redo => {}
        }
        Ok(decision)
    }

    fn outside(&self, item: &Item, outside: &[u8]) -> Result<Decision> {
        let mapped = if is_table(item) { self.mapped(outside)? } else { None };
        let innodb = matches!(item.role, FileRole::Tablespace);
        let fixed = self.is_fixed(item);
        let Some((place, to)) = mapped else {
            if fixed {
                return Err(cannot_move(item, outside).hinted(
                    "restore the whole backup into a directory, on a host where that path is free, and name \
                     it with --map: --map DIR=DIR, both the same",
                ));
            }
            let place = Place::home(self.home_path(item, outside)?);
            return Ok(Decision::File { place, held: is_held(item) });
        };
        if fixed && to.as_os_str().as_bytes() != outside {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "{} must be restored to {}, because the encrypted redo names that path",
                    item.path,
                    String::from_utf8_lossy(outside)
                ),
            )
            .hinted("map its directory to the same path"));
        }
        let pointer = match (self.flavor, innodb) {
            (Flavor::MySql, true) => Pointer::Told,
            (Flavor::MariaDb, true) => {
                let isl = isl_of(&item.path)?;
                if fixed { Pointer::IslOnly { isl } } else { Pointer::Isl { data: item.path.clone(), isl } }
            }
            (_, false) => Pointer::Link(item.path.clone()),
        };
        Ok(Decision::Mapped { place, pointer })
    }

    /// Whether recovery opens the file where the source had it, whatever is restored.
    fn is_fixed(&self, item: &Item) -> bool {
        item.role == FileRole::Tablespace && self.fixed.contains(&item.path)
    }

    /// The mapping that covers `outside`, if any: the longest wins.
    fn mapped(&self, outside: &[u8]) -> Result<Option<(Place, PathBuf)>> {
        let outside = Path::new(OsStr::from_bytes(outside));
        let covering = self
            .maps
            .iter()
            .enumerate()
            .filter_map(|(index, (from, to))| Some((index, to, outside.strip_prefix(from).ok()?, from)))
            .max_by_key(|(.., from)| from.as_os_str().len());
        let Some((index, to, below, _)) = covering else { return Ok(None) };
        let path = ItemPath::new(below.as_os_str().as_bytes())
            .map_err(|error| Error::damaged(format!("outside path {}: {error}", outside.display())))?;
        Ok(Some((Place { root: Root::Mapped(index), path }, to.join(below))))
    }

    /// Where a file from outside belongs in the target.
    fn home_path(&self, item: &Item, outside: &[u8]) -> Result<ItemPath> {
        let parts: Vec<&[u8]> = outside.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        let tail = |count: usize| {
            let tail = parts.get(parts.len().saturating_sub(count)..).unwrap_or_default().join(&b'/');
            ItemPath::new(tail)
                .map_err(|error| Error::damaged(format!("outside path of {}: {error}", item.path)))
        };
        // A server knows these by their ids, whatever their file names are, except for the extension.
        let top = || {
            let path = tail(1)?;
            match &item.tablespace {
                Some(tablespace) if self.contested.contains(path.as_bytes()) => {
                    numbered(&path, tablespace.space)
                }
                _ => Ok(path),
            }
        };
        let shared = item.tablespace.is_some_and(|tablespace| is_shared(self.flavor, tablespace.flags));
        let system = item.tablespace.is_some_and(|tablespace| tablespace.space == SpaceId::SYSTEM);
        match (self.flavor, item.role) {
            (Flavor::MySql, FileRole::UndoTablespace) if item.path.as_bytes().starts_with(OUTSIDE) => top(),
            (Flavor::MySql, FileRole::UndoTablespace | FileRole::SystemTablespace) => tail(1),
            (Flavor::MySql, FileRole::Tablespace) if shared => top(),
            (Flavor::MySql, FileRole::Tablespace) if system => tail(1),
            // `<schema>/<table>.ibd`, as the server wants it wherever it is.
            (Flavor::MySql, FileRole::Tablespace) if item.path.as_bytes().starts_with(b"#") => tail(2),
            _ => Ok(item.path.clone()),
        }
    }

    fn take(&mut self, place: &Place, item: &Item) -> Result<()> {
        let path = place.path.as_bytes();
        let ours = [MARKER, REPORT, REDO_MARIADB].map(str::as_bytes).contains(&path)
            || path.starts_with(REDO_MYSQL_DIR.as_bytes())
            || path.ends_with(PARTIAL.as_bytes());
        if place.root == Root::Target && ours {
            return Err(Error::damaged(format!("{} has a name that belongs to the restore", item.path)));
        }
        let goes_to = match place.root {
            Root::Target => join(&self.target, &place.path),
            Root::Mapped(map) => join(&self.places[map], &place.path),
        };
        if place.root != Root::Target && goes_to.starts_with(&self.target) {
            let text = format!("{} is mapped to {}, which is in the target", item.path, goes_to.display());
            return Err(Error::new(ErrorKind::Usage, text).hinted(IN_THE_TARGET));
        }
        if self.taken.contains(&goes_to) {
            let to = goes_to.display();
            let text = format!("{} and another file of the backup would both go to {to}", item.path);
            return Err(Error::failed(text)
                .hinted("files from outside the data directory can be mapped to another place with --map"));
        }
        self.taken.insert(goes_to);
        Ok(())
    }
}

/// Tables of MariaDB with an `.isl`: the redo names their files by the paths in those.
fn fixed_files(opened: &Opened) -> Result<HashSet<ItemPath>> {
    let mut fixed = HashSet::new();
    for item in opened.backup.items() {
        if let Some(stem) = item?.path.as_bytes().strip_suffix(b".isl") {
            let data = ItemPath::new([stem, b".ibd"].concat());
            fixed.insert(data.map_err(|error| Error::damaged(error.to_string()))?);
        }
    }
    Ok(fixed)
}

fn cannot_move(item: &Item, outside: &[u8]) -> Error {
    let was = String::from_utf8_lossy(outside);
    let text = format!(
        "{} was at {was}; the redo names that path, and cannot be rewritten because it is encrypted",
        item.path
    );
    Error::new(ErrorKind::Usage, text)
}

/// A part is recovered wherever there is room, maybe on the source's own host: recovery would roll back in the
/// file that the source has there.
fn not_in_part(item: &Item, outside: &[u8]) -> Error {
    cannot_move(item, outside).hinted(
        "no table can be taken out of this backup: restore the whole backup into a directory, on a host where \
         that path is free, with restore --map DIR=DIR, both the same",
    )
}

/// Whether a mapping can put the file elsewhere.
pub(super) fn is_table(item: &Item) -> bool {
    matches!(item.role, FileRole::Tablespace | FileRole::AriaTable | FileRole::TableFile)
}

/// Whether no server starts without the file. The redo, which is laid out on its own, is needed as well.
fn is_held(item: &Item) -> bool {
    let system = item.tablespace.is_some_and(|tablespace| tablespace.space == SpaceId::SYSTEM);
    system || matches!(item.role, FileRole::SystemTablespace | FileRole::AriaControl)
}

/// Why a file must not come back, even if a backup has it: it would make the restored server start by itself
/// what nobody asked for, or point outside.
fn never_restored(flavor: Flavor, path: &ItemPath) -> Option<&'static str> {
    let path = path.as_bytes();
    let top_level = !path.contains(&b'/');
    let info = |prefix: &[u8]| top_level && path.starts_with(prefix) && path.ends_with(b".info");
    if info(b"master") || info(b"relay-log") || info(b"multi-master") {
        return Some("a restored server does not start to replicate by itself");
    }
    if top_level && matches!(path, b"grastate.dat" | b"gvwstate.dat") {
        return Some("a restored server is not a member of the source's cluster");
    }
    if flavor == Flavor::MariaDb && path.ends_with(b".isl") {
        return Some("links to files outside are made again where --map asks for them");
    }
    None
}

/// `ts.ibd` as `ts-7.ibd`.
fn numbered(path: &ItemPath, space: SpaceId) -> Result<ItemPath> {
    let name = path.as_bytes();
    let end = name.iter().rposition(|byte| *byte == b'.').unwrap_or(name.len());
    let (stem, ending) = name.split_at(end);
    let name = [stem, format!("-{}", space.0).as_bytes(), ending].concat();
    ItemPath::new(name).map_err(|error| Error::damaged(format!("{path}: {error}")))
}

fn isl_of(data: &ItemPath) -> Result<ItemPath> {
    let path = data.as_bytes();
    let stem = path
        .strip_suffix(b".ibd")
        .ok_or_else(|| Error::damaged(format!("{data} was outside, and is not a table's .ibd file")))?;
    ItemPath::new([stem, b".isl"].concat()).map_err(|error| Error::damaged(format!("{data}: {error}")))
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_formats::{PageSize, tablespace::MYSQL_FLAG_SHARED};
    use holdfast_repo::format::item::{ItemMap, Tablespace};

    use super::*;
    use crate::logical::Selection;

    pub(crate) fn path(text: &str) -> ItemPath {
        ItemPath::new(text).unwrap()
    }

    pub(crate) fn item(text: &str, role: FileRole, flags: u32, outside: Option<&str>) -> Item {
        let space = matches!(role, FileRole::Tablespace | FileRole::UndoTablespace);
        Item {
            path: path(text),
            item_type: ItemType::File,
            role,
            mode: 0o640,
            size_bytes: 0,
            page_size: PageSize::DEFAULT_FILE,
            tablespace: space.then_some(Tablespace { space: SpaceId(7), flags }),
            outside: outside.map(|outside| outside.as_bytes().to_vec()),
            map: ItemMap::Inline(Vec::new()),
        }
    }

    fn layout(flavor: Flavor, maps: &[(PathBuf, PathBuf)]) -> Layout<'_> {
        Layout::new(flavor, maps, Path::new("/srv/target")).unwrap()
    }

    fn home(text: &str, held: bool) -> Decision {
        Decision::File { place: Place::home(path(text)), held }
    }

    /// Without a mapping every file is in the target, and the server finds it there.
    #[test]
    fn everything_comes_home() {
        let mut maria = layout(Flavor::MariaDb, &[]);
        let mut decide = |text, role, outside| maria.decide(&item(text, role, 0, outside)).unwrap();
        assert_eq!(decide("ibdata1", FileRole::SystemTablespace, None), home("ibdata1", true));
        assert_eq!(decide("aria_log_control", FileRole::AriaControl, None), home("aria_log_control", true));
        assert_eq!(decide("db/t.ibd", FileRole::Tablespace, Some("/fast/db/t.ibd")), home("db/t.ibd", false));
        assert_eq!(decide("db/y.MYD", FileRole::TableFile, Some("/x/y.MYD")), home("db/y.MYD", false));
        assert!(matches!(decide("db/t.isl", FileRole::Other, None), Decision::Dropped(_)));
        assert!(matches!(decide("master-eu.info", FileRole::Other, None), Decision::Dropped(_)));
        assert_eq!(decide("db/master.info", FileRole::Other, None), home("db/master.info", false));

        let mut mysql = layout(Flavor::MySql, &[]);
        let mut decide =
            |text, role, flags, outside| mysql.decide(&item(text, role, flags, outside)).unwrap();
        let shared = MYSQL_FLAG_SHARED;
        assert_eq!(decide("#1/ts", FileRole::Tablespace, shared, Some("/x/ts1.ibd")), home("ts1.ibd", false));
        assert_eq!(decide("#2/u", FileRole::UndoTablespace, 0, Some("/x/ux.ibu")), home("ux.ibu", false));
        assert_eq!(decide("#3", FileRole::Tablespace, 0, Some("/x/db/e.ibd")), home("db/e.ibd", false));
        assert_eq!(decide("a/e.ibd", FileRole::Tablespace, 0, Some("/x/b/e.ibd")), home("a/e.ibd", false));
    }

    /// A mapping puts a file elsewhere and makes the target lead there.
    #[test]
    fn mappings() {
        let maps = [("/fast".into(), "/srv/f".into()), ("/fast/shop".into(), "/srv/shop".into())];
        let mut maria = layout(Flavor::MariaDb, &maps);
        let decision =
            maria.decide(&item("db/t.ibd", FileRole::Tablespace, 0, Some("/fast/shop/db/t.ibd"))).unwrap();
        let pointer = Pointer::Isl { data: path("db/t.ibd"), isl: path("db/t.isl") };
        let place = Place { root: Root::Mapped(1), path: path("db/t.ibd") };
        assert_eq!(decision, Decision::Mapped { place, pointer });
        let decision = maria.decide(&item("db/y.MYD", FileRole::TableFile, 0, Some("/fast/y.MYD"))).unwrap();
        let place = Place { root: Root::Mapped(0), path: path("y.MYD") };
        assert_eq!(decision, Decision::Mapped { place, pointer: Pointer::Link(path("db/y.MYD")) });
        assert!(
            maria.decide(&item("db/u.ibd", FileRole::Tablespace, 0, Some("/fast/../etc/u.ibd"))).is_err()
        );

        let mut mysql = layout(Flavor::MySql, &maps);
        let decision = mysql
            .decide(&item("#1", FileRole::Tablespace, MYSQL_FLAG_SHARED, Some("/fast/ts1.ibd")))
            .unwrap();
        assert!(matches!(decision, Decision::Mapped { pointer: Pointer::Told, .. }));
    }

    /// Encrypted redo cannot be made to stay at home: a file that it names by its place goes there or nowhere,
    /// and no part of the backup is restored, whether that has the file or not.
    #[test]
    fn encrypted_redo() {
        fn fixed(maps: &[(PathBuf, PathBuf)]) -> Layout<'_> {
            Layout { fixed: HashSet::from([path("db/t.ibd")]), ..layout(Flavor::MariaDb, maps) }
        }
        let outside = item("db/t.ibd", FileRole::Tablespace, 0, Some("/fast/db/t.ibd"));
        let decide = |maps: &[(PathBuf, PathBuf)]| fixed(maps).decide(&outside);
        assert_eq!(decide(&[]).unwrap_err().kind(), ErrorKind::Usage);
        assert!(decide(&[("/fast".into(), "/srv".into())]).is_err());
        let decision = decide(&[("/fast".into(), "/fast".into())]).unwrap();
        assert!(matches!(decision, Decision::Mapped { pointer: Pointer::IslOnly { .. }, .. }));
        let other = item("db/y.MYD", FileRole::TableFile, 0, Some("/fast/y.MYD"));
        assert!(fixed(&[]).decide(&other).is_ok());
        for table in ["db.t", "db.other"] {
            let part = part_of(Flavor::MariaDb, table);
            let mut layout = Layout { part: Some(&part), ..fixed(&[]) };
            let error = layout.decide(&outside).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains("db/t.ibd was at /fast/db/t.ibd"), "{error}");
            assert!(error.hint().unwrap().contains("restore the whole backup"), "{error}");
        }
    }

    fn part_of(flavor: Flavor, table: &str) -> TablePart {
        let tables = vec![table.parse().unwrap()];
        TablePart::new(flavor, Selection { tables, ..Selection::default() })
    }

    /// Redo of any kind names a file behind a link by its place in the data directory: it comes home, or goes
    /// anywhere.
    #[test]
    fn encrypted_redo_and_links() {
        let behind = item("db/t.ibd", FileRole::Tablespace, 0, Some("/other/db/t.ibd"));
        let decision = layout(Flavor::MariaDb, &[]).decide(&behind).unwrap();
        assert_eq!(decision, home("db/t.ibd", false));
        let maps = [("/other".into(), "/srv".into())];
        let decision = layout(Flavor::MariaDb, &maps).decide(&behind).unwrap();
        assert!(matches!(decision, Decision::Mapped { pointer: Pointer::Isl { .. }, .. }));
    }

    /// In a part of a backup of MySQL, every tablespace from outside comes home: the dictionary remembers where
    /// it was, and recovery would open it there.
    #[test]
    fn parts_have_what_was_outside() {
        let part = part_of(Flavor::MySql, "db.b");
        let mut layout = Layout { part: Some(&part), ..layout(Flavor::MySql, &[]) };
        let mut decide = |at, outside| layout.decide(&item(at, FileRole::Tablespace, 0, outside)).unwrap();
        assert_eq!(decide("#outside/fast/db/a.ibd", Some("/fast/db/a.ibd")), home("db/a.ibd", false));
        assert_eq!(decide("db/b.ibd", None), home("db/b.ibd", false));
        assert_eq!(decide("db/c.ibd", None), Decision::NotWanted);
    }

    /// Files from outside that would have the same name get their tablespaces' numbers in it;
    /// files from inside keep theirs.
    #[test]
    fn equal_names() {
        let mut layout = layout(Flavor::MySql, &[]);
        layout.contested.extend([b"ts.ibd".to_vec(), b"u.ibu".to_vec(), b"undo_001".to_vec()]);
        for (at, role, flags, outside, expected) in [
            ("#outside/a/ts.ibd", FileRole::Tablespace, MYSQL_FLAG_SHARED, Some("/a/ts.ibd"), "ts-7.ibd"),
            ("#outside/a/u.ibu", FileRole::UndoTablespace, 0, Some("/a/u.ibu"), "u-7.ibu"),
            ("#outside/a/undo_001", FileRole::UndoTablespace, 0, Some("/a/undo_001"), "undo_001-7"),
            ("#outside/a/free.ibd", FileRole::Tablespace, MYSQL_FLAG_SHARED, Some("/a/free.ibd"), "free.ibd"),
            ("#outside/a/db/ts.ibd", FileRole::Tablespace, 0, Some("/a/db/ts.ibd"), "db/ts.ibd"),
            ("ts.ibd", FileRole::Tablespace, MYSQL_FLAG_SHARED, None, "ts.ibd"),
        ] {
            assert_eq!(layout.decide(&item(at, role, flags, outside)).unwrap(), home(expected, false));
        }
    }

    /// No item takes one of our names, or another item's place.
    #[test]
    fn collisions() {
        for name in [REDO_MARIADB, "#innodb_redo/#ib_redo0", "#innodb_redo/x"] {
            let error = layout(Flavor::MySql, &[]).decide(&item(name, FileRole::Other, 0, None));
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Damaged, "{name}");
        }
        for name in [MARKER, REPORT, "holdfast-restore.partial/x", "ibdata1.partial", "db/x.partial"] {
            let decision = layout(Flavor::MySql, &[]).decide(&item(name, FileRole::Other, 0, None));
            assert!(matches!(decision, Ok(Decision::Dropped(_))), "{name}: {decision:?}");
        }
        let mut layout = layout(Flavor::MySql, &[]);
        layout.decide(&item("#1", FileRole::UndoTablespace, 0, Some("/a/u.ibu"))).unwrap();
        let error = layout.decide(&item("#2", FileRole::UndoTablespace, 0, Some("/b/u.ibu"))).unwrap_err();
        assert!(error.to_string().contains("u.ibu"), "{error}");
    }
}
