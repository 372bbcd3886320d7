//! What a restore will do, before it does anything.

pub(super) mod layout;
pub(super) mod recovery;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use holdfast_formats::{
    Flavor,
    tablespace::{COMPRESSION_ALGORITHMS, Geometry},
};
use holdfast_repo::format::{
    columns::PageEntry,
    item::{FileRole, Item, ItemPath, Tablespace, leaf_count},
};
use serde::Serialize;

use super::{
    backup_id::BackupId,
    done::LeftOut,
    keyring,
    opened::Opened,
    options::RestoreOptions,
    redo::{RedoLayout, RestOfRedo, lay_out},
    server_options,
    target::{
        Found, FoundKind, LOST_AND_FOUND, Room, Tree,
        claim::{Standing, Survey, survey},
        io_failed,
        names::{MARKER, partial_of},
    },
};
use layout::{Decision, Layout, Place, Pointer, Root};

use crate::{
    error::{Error, ErrorKind, Result},
    event::Cancel,
    key_files::KeyFiles,
    server::{ServerVersion, programs::ServerBinary},
    size::ByteSize,
};

/// Room for what no plan knows: directories, the marker, the server's small files.
pub(super) const ROOM_EXTRA_BYTES: u64 = 16 << 20;
/// Temporary tablespaces and logs that a recovering server makes.
const ROOM_PREPARE_BYTES: u64 = 64 << 20;

/// How the target was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreMode {
    /// The target is absent or empty.
    Fresh,
    /// An interrupted restore of the same backup is completed.
    Continue,
    /// The data directory there is made into the backup.
    Delta,
}

/// A file, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedPath {
    /// Absolute.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// A file that the source kept outside of its data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExternalFile {
    /// Where it was.
    pub was: PathBuf,
    /// Where it goes.
    pub goes_to: PathBuf,
}

/// Disk space in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedRoom {
    /// The directory, or the existing one above it.
    pub path: PathBuf,
    /// The most that the restore takes there; the least, if a server is to make the files of rows.
    pub needed_bytes: u64,
    /// Free there, for the user who restores.
    pub free_bytes: u64,
}

/// A user and a group, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedOwner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// How the server will recover the files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedPrepare {
    /// The program.
    pub program: PathBuf,
    /// Its version.
    pub version: ServerVersion,
    /// Its buffer pool.
    pub buffer_pool_bytes: u64,
    /// The least time that it takes: this long if the pages that the redo changes fit the buffer pool.
    pub least_ms: u64,
}

/// Rows that a server will load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedRows {
    /// How many tables there are.
    pub tables: u64,
    /// How many rows.
    pub rows: u64,
    /// Their size.
    pub bytes: u64,
}

/// What a restore will do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestorePlan {
    /// The backup.
    pub backup: BackupId,
    /// The server it was taken from.
    pub server_version: ServerVersion,
    /// Where it goes.
    pub target_dir: PathBuf,
    /// How the target was found.
    pub mode: RestoreMode,
    /// The owner of everything restored; `None` if we may not set it, and everything stays ours.
    pub owner: Option<PlannedOwner>,
    /// Files of the backup.
    pub files: u64,
    /// Their size; holes count.
    pub bytes: u64,
    /// A logical backup: its rows. It has no files; what a server makes of them is not known before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<PlannedRows>,
    /// Redo that recovery will go through.
    pub redo_bytes: u64,
    /// Files to be made.
    pub create: Vec<PlannedPath>,
    /// Existing files that get the backup's content; pages that are right stay.
    pub replace: Vec<PlannedPath>,
    /// What is in the target and does not belong to the backup.
    pub delete: Vec<PathBuf>,
    /// Files that the source kept outside of its data directory.
    pub external: Vec<ExternalFile>,
    /// Files of the backup that are not restored, and why.
    pub dropped: Vec<LeftOut>,
    /// Disk space, by place.
    pub room: Vec<PlannedRoom>,
    /// The recovery; `None` if the first start of the restored server is to do it.
    pub prepare: Option<PlannedPrepare>,
    /// Options that a server needs on these files, besides those of its own configuration.
    pub server_options: Vec<String>,
}

/// The plan, and what else carrying it out needs.
pub(super) struct Plan {
    pub(super) shown: RestorePlan,
    pub(super) survey: Survey,
    /// The owner of everything restored, if we may set it.
    pub(super) owner: Option<(u32, u32)>,
    pub(super) redo: RedoLayout,
    /// Directories of the target, in order.
    pub(super) directories: Vec<(ItemPath, u16)>,
    /// Files without which no server starts.
    pub(super) held: Vec<ItemPath>,
    /// Logs of Aria, which only the recovering server may find.
    pub(super) aria_logs: Vec<ItemPath>,
    pub(super) pointers: Vec<(Pointer, PathBuf)>,
    /// What to remove; the contents of a directory come before it.
    pub(super) delete: Vec<ItemPath>,
    /// Files in mapped places.
    pub(super) mapped: Vec<PathBuf>,
    /// Directories of mapped places that are not there yet, or that this restore made before it was interrupted.
    pub(super) made: Vec<PathBuf>,
    pub(super) binary: Option<ServerBinary>,
}

/// Plans; changes nothing.
pub(super) fn make(opened: &Opened, options: &RestoreOptions, cancel: &Cancel) -> Result<Plan> {
    check_options(options)?;
    let binary = match options.prepare {
        true => Some(find_binary(&opened.server.version, options).map_err(without_prepare)?),
        false => None,
    };
    let survey = survey(&options.target_dir, options.delta, &opened.id)?;
    let redo = lay_out(&opened.redo, &opened.redo_item, options.redo_file_bytes_max)?;
    let flavor = opened.server.version.flavor;
    let mut planner = Planner::new(opened, options, &survey)?;
    for item in opened.backup.items() {
        cancel.check()?;
        planner.add(&item?)?;
    }
    planner.redo(&redo)?;
    let delete = planner.delete()?;
    let room = planner.room(&redo, &delete, cancel)?;
    let buffer_pool = recovery::buffer_pool_bytes(options, redo.captured_bytes);
    let server_options = planner.server_options();
    let target_dir = absolute(&options.target_dir)?;
    let owner = owner_of(options, &survey);
    let shown = RestorePlan {
        backup: opened.id.clone(),
        server_version: opened.server.version.clone(),
        mode: match &survey.standing {
            Standing::Free => RestoreMode::Fresh,
            Standing::Ours(_) => RestoreMode::Continue,
            Standing::Other => RestoreMode::Delta,
        },
        owner: owner.map(|(uid, gid)| PlannedOwner { uid, gid }),
        files: planner.files,
        bytes: planner.bytes,
        rows: None,
        redo_bytes: redo.captured_bytes,
        create: std::mem::take(&mut planner.create),
        replace: std::mem::take(&mut planner.replace),
        delete: delete.iter().map(|path| join(&target_dir, path)).collect(),
        external: std::mem::take(&mut planner.external),
        dropped: std::mem::take(&mut planner.dropped),
        room,
        prepare: binary.as_ref().map(|binary| PlannedPrepare {
            program: binary.path.clone(),
            version: binary.version.clone(),
            buffer_pool_bytes: buffer_pool,
            least_ms: recovery::least_ms(flavor, redo.captured_bytes),
        }),
        server_options,
        target_dir,
    };
    let Planner { directories, held, aria_logs, pointers, mapped, .. } = planner;
    Ok(Plan {
        shown,
        owner,
        redo,
        directories,
        held,
        aria_logs,
        pointers,
        delete,
        made: made(&options.maps, &mapped, &survey.standing),
        mapped,
        binary,
        survey,
    })
}

/// The owner of everything restored, if we may set it.
pub(super) fn owner_of(options: &RestoreOptions, survey: &Survey) -> Option<(u32, u32)> {
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| owner(options.owner, survey.owner, options.server_user))
}

/// Root restores for others: a server that runs as a user of its own cannot start on what belongs to root.
fn owner(
    named: Option<(u32, u32)>,
    of_target: Option<(u32, u32)>,
    server_user: Option<(u32, u32)>,
) -> (u32, u32) {
    const ROOT: u32 = 0;
    let somebodys = of_target.filter(|(uid, _)| *uid != ROOT);
    named.or(somebodys).or(server_user).or(of_target).unwrap_or((ROOT, ROOT))
}

/// Directories of the mapped places that are the restore's own; others belong to somebody else, and stay so.
fn made(maps: &[(PathBuf, PathBuf)], mapped: &[PathBuf], standing: &Standing) -> Vec<PathBuf> {
    let before = match standing {
        Standing::Ours(marker) => marker.made.as_slice(),
        Standing::Free | Standing::Other => &[],
    };
    let is_below = |dir: &Path| maps.iter().any(|(_, to)| dir.starts_with(to));
    let needed: BTreeSet<&Path> =
        mapped.iter().flat_map(|path| path.ancestors().skip(1).take_while(|dir| is_below(dir))).collect();
    let is_ours = |dir: &&Path| dir.symlink_metadata().is_err() || before.iter().any(|made| made == *dir);
    needed.into_iter().filter(is_ours).map(Path::to_owned).collect()
}

pub(super) fn check_options(options: &RestoreOptions) -> Result<()> {
    for (from, to) in &options.maps {
        if !from.is_absolute() || !to.is_absolute() {
            let text = format!("mapping {}={} needs absolute paths", from.display(), to.display());
            return Err(Error::new(ErrorKind::Usage, text));
        }
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let is_ours = |owner| owner == (user.as_raw(), group.as_raw());
    if !user.is_root() && options.owner.is_some_and(|owner| !is_ours(owner)) {
        return Err(Error::new(ErrorKind::Usage, "only root can give the restored files to another user"));
    }
    let target = absolute(&options.target_dir)?;
    if let Some((_, to)) = options.maps.iter().find(|(_, to)| to.starts_with(&target)) {
        let text = format!("a mapping leads to {}, which is in the target", to.display());
        return Err(Error::new(ErrorKind::Usage, text)
            .hinted("without a mapping, files from outside go into the target by themselves"));
    }
    Ok(())
}

/// The server program that works on the files of a server of this version.
pub(super) fn find_binary(wanted: &ServerVersion, options: &RestoreOptions) -> Result<ServerBinary> {
    let binary = ServerBinary::find(options.server_binary.as_deref(), wanted, &options.search_path)?;
    if binary.version.flavor != wanted.flavor {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{} is {}, but the backup is from {wanted}", binary.path.display(), binary.version),
        ));
    }
    if !options.allow_version {
        binary.require(wanted)?;
    }
    Ok(binary)
}

fn without_prepare(error: Error) -> Error {
    error.also_hinted("or use --no-prepare: the server that is started on the files recovers them then")
}

/// The target as an absolute path, whether it exists or not.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => std::path::absolute(path).map_err(|error| io_failed("find", path, error)),
    }
}

fn join(dir: &Path, path: &ItemPath) -> PathBuf {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    dir.join(OsStr::from_bytes(path.as_bytes()))
}

struct Planner<'a> {
    opened: &'a Opened,
    options: &'a RestoreOptions,
    survey: &'a Survey,
    target: PathBuf,
    layout: Layout<'a>,
    files: u64,
    bytes: u64,
    /// By root: bytes that may have to be allocated.
    growth: HashMap<Root, u64>,
    create: Vec<PlannedPath>,
    replace: Vec<PlannedPath>,
    external: Vec<ExternalFile>,
    dropped: Vec<LeftOut>,
    directories: Vec<(ItemPath, u16)>,
    held: Vec<ItemPath>,
    aria_logs: Vec<ItemPath>,
    pointers: Vec<(Pointer, PathBuf)>,
    mapped: Vec<PathBuf>,
    /// MariaDB: plugins that the server needs to read compressed pages.
    providers: BTreeSet<String>,
    /// Everything that may stay in the target: `true` for directories.
    keep: BTreeMap<ItemPath, bool>,
}

impl<'a> Planner<'a> {
    fn new(opened: &'a Opened, options: &'a RestoreOptions, survey: &'a Survey) -> Result<Self> {
        Ok(Self {
            opened,
            options,
            survey,
            target: absolute(&options.target_dir).unwrap_or_else(|_| options.target_dir.clone()),
            layout: Layout::of(opened, options)?,
            files: 0,
            bytes: 0,
            growth: HashMap::new(),
            create: Vec::new(),
            replace: Vec::new(),
            external: Vec::new(),
            dropped: Vec::new(),
            directories: Vec::new(),
            held: Vec::new(),
            aria_logs: Vec::new(),
            pointers: Vec::new(),
            mapped: Vec::new(),
            providers: BTreeSet::new(),
            keep: BTreeMap::new(),
        })
    }

    fn add(&mut self, item: &Item) -> Result<()> {
        let decision = self.layout.decide(item)?;
        if decision != Decision::NotWanted {
            self.note_providers(item);
        }
        match decision {
            Decision::Redo | Decision::NotWanted => {}
            Decision::Dropped(why) => {
                self.dropped.push(LeftOut { path: item.path.to_string(), why: why.to_owned() })
            }
            Decision::Directory(path) => {
                self.keep_with_parents(&path, true)?;
                self.directories.push((path, item.mode));
            }
            Decision::File { place, held } => {
                self.keep_with_parents(&place.path, false)?;
                let goes_to = join(&self.target, &place.path);
                self.external(item, &goes_to);
                if held {
                    self.check_held(&place.path, &goes_to)?;
                    self.keep.insert(partial_of(&place.path)?, false);
                    self.held.push(place.path.clone());
                }
                if item.role == FileRole::AriaLog {
                    self.aria_logs.push(place.path.clone());
                }
                self.file(item, &place, goes_to, held)?;
            }
            Decision::Mapped { place, pointer } => {
                let Root::Mapped(map) = place.root else {
                    return Err(Error::failed(format!("{} is mapped to nowhere", item.path)));
                };
                let goes_to = join(&self.options.maps[map].1, &place.path);
                self.check_mapped(&goes_to)?;
                self.external(item, &goes_to);
                self.mapped.push(goes_to.clone());
                self.point(&pointer)?;
                self.pointers.push((pointer, goes_to.clone()));
                self.file(item, &place, goes_to, false)?;
            }
        }
        Ok(())
    }

    /// Whatever is in the place of a held file is set aside, or gives way to an obstacle, in one step. A
    /// directory could not, and no server has one there.
    fn check_held(&self, path: &ItemPath, goes_to: &Path) -> Result<()> {
        match self.survey.found.get(path).map(|found| found.kind) {
            Some(FoundKind::Directory) => {
                let text = format!("{} is a directory, but the backup has a file there", goes_to.display());
                Err(Error::new(ErrorKind::Usage, text).hinted("is this the data directory? if so, remove it"))
            }
            _ => Ok(()),
        }
    }

    /// Without its provider a server cannot recover or read a compressed table. If the file does not tell which
    /// provider that is, it can be any that the source had, to which it leaves new pages, or that its pages told:
    /// a source may have been started without it.
    fn note_providers(&mut self, item: &Item) {
        let server = &self.opened.server;
        let geometry = |tablespace: Tablespace| {
            Geometry::new(server.version.flavor, tablespace.space, tablespace.flags).ok()
        };
        let Some(geometry) = item.tablespace.and_then(geometry).filter(Geometry::page_compressed) else {
            return;
        };
        let told = geometry.compression_algorithm();
        for algorithm in &COMPRESSION_ALGORITHMS[1..] {
            let provider = format!("provider_{algorithm}");
            let had = || server.plugins.iter().any(|plugin| plugin.name == provider);
            let seen = || self.opened.compressed_with.iter().any(|name| name == algorithm);
            if told == Some(*algorithm) || told.is_none() && (had() || seen()) {
                self.providers.insert(provider);
            }
        }
    }

    fn external(&mut self, item: &Item, goes_to: &Path) {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        if let Some(outside) = &item.outside {
            let was = PathBuf::from(OsStr::from_bytes(outside));
            self.external.push(ExternalFile { was, goes_to: goes_to.to_owned() });
        }
    }

    fn point(&mut self, pointer: &Pointer) -> Result<()> {
        match pointer {
            Pointer::Isl { isl, .. } if self.options.prepare => self.keep_with_parents(isl, false),
            Pointer::Isl { data, .. } => Err(Error::new(
                ErrorKind::Usage,
                format!("{data} can be mapped to another place only after recovery"),
            )
            .hinted("leave out --no-prepare, or --map")),
            Pointer::IslOnly { isl } => self.keep_with_parents(isl, false),
            Pointer::Link(path) => self.keep_with_parents(path, false),
            Pointer::Told => Ok(()),
        }
    }

    /// A file in a mapped place may exist already only if it is ours, or if the user wants it replaced and
    /// the redo is not encrypted.
    fn check_mapped(&self, goes_to: &Path) -> Result<()> {
        let ours = match &self.survey.standing {
            Standing::Ours(marker) => marker.mapped.iter().any(|path| path == goes_to),
            Standing::Free | Standing::Other => false,
        };
        let exists = goes_to.symlink_metadata().is_ok();
        let redo_encrypted = self.opened.redo_encrypted();
        if !exists || ours || (self.options.delta && !redo_encrypted) {
            return Ok(());
        }
        Err(in_the_way(goes_to, redo_encrypted))
    }

    fn file(&mut self, item: &Item, place: &Place, goes_to: PathBuf, held: bool) -> Result<()> {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(item.size_bytes);
        let found = match place.root {
            Root::Target if held => {
                let partial = partial_of(&place.path)?;
                self.survey.found.get(&partial).or_else(|| self.survey.found.get(&place.path)).copied()
            }
            Root::Target => self.survey.found.get(&place.path).copied(),
            Root::Mapped(_) => None,
        };
        let reused = found.filter(is_reusable);
        let there = reused.map_or(0, |found| found.allocated_bytes);
        let growth = self.growth.entry(place.root).or_default();
        *growth = growth.saturating_add(item.size_bytes.saturating_sub(there));
        let planned = PlannedPath { path: goes_to, bytes: item.size_bytes };
        if reused.is_some() {
            self.replace.push(planned)
        } else {
            self.create.push(planned)
        }
        Ok(())
    }

    fn redo(&mut self, redo: &RedoLayout) -> Result<()> {
        self.create.push(PlannedPath { path: join(&self.target, &redo.path), bytes: redo.file_bytes });
        // Always made anew: an existing file is removed. Its directory stays.
        self.keep_with_parents(&redo.path, false)?;
        self.keep.remove(&redo.path);
        Ok(())
    }

    fn keep_with_parents(&mut self, path: &ItemPath, directory: bool) -> Result<()> {
        let bytes = path.as_bytes();
        for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let parent = ItemPath::new(&bytes[..at]).map_err(|error| Error::damaged(error.to_string()))?;
            if self.keep.insert(parent, true) == Some(false) {
                return Err(Error::damaged(format!("{path} is in a directory that is a file")));
            }
        }
        if self.keep.insert(path.clone(), directory).is_some_and(|before| before != directory) {
            return Err(Error::damaged(format!("{path} is a file and a directory")));
        }
        Ok(())
    }

    /// What is in the target and may not stay, the contents of a directory before it. Not what is in the
    /// place of a held file: setting aside has put an obstacle there, which must stay.
    /// And no keys: there may be no other copy.
    fn delete(&self) -> Result<Vec<ItemPath>> {
        let keys = self.keys()?;
        let has_keys = |path: &ItemPath| {
            let inside = keys.iter().filter_map(|key| key.as_bytes().strip_prefix(path.as_bytes()));
            inside.into_iter().any(|rest| matches!(rest, [] | [b'/', ..]))
        };
        let goes = |(path, found): (&ItemPath, &Found)| {
            let stays = match self.keep.get(path) {
                _ if self.held.contains(path) => true,
                Some(true) => found.kind == FoundKind::Directory,
                Some(false) => found.kind == FoundKind::File && found.links == 1,
                None if has_keys(path) => true,
                None => path.as_bytes() == MARKER.as_bytes() && found.kind == FoundKind::File,
            };
            (!stays && path.as_bytes() != LOST_AND_FOUND).then(|| path.clone())
        };
        // Path order puts a directory before its contents.
        Ok(self.survey.found.iter().rev().filter_map(goes).collect())
    }

    /// Files in the target with keys of the source, or of the server whose data directory the target was.
    fn keys(&self) -> Result<Vec<ItemPath>> {
        let of_source = KeyFiles::of(&self.opened.server);
        let of_target = keyring::below(&self.target)?;
        let has_keys = |path: &&ItemPath| {
            let of_source = std::str::from_utf8(path.as_bytes()).is_ok_and(|path| of_source.contains(path));
            of_source || of_target.as_ref() == Some(*path)
        };
        Ok(self.survey.found.keys().filter(has_keys).cloned().collect())
    }

    fn room(&self, redo: &RedoLayout, delete: &[ItemPath], cancel: &Cancel) -> Result<Vec<PlannedRoom>> {
        let mut rooms: BTreeMap<u64, (PlannedRoom, Vec<Root>)> = BTreeMap::new();
        let mut growth = self.growth.clone();
        let own = growth.entry(Root::Target).or_default();
        // The server makes a log of its own size before it drops the captured one.
        let own_redo = if self.options.prepare { self.opened.server.innodb.redo_size } else { 0 };
        let prepare = if self.options.prepare { ROOM_PREPARE_BYTES } else { 0 };
        let moved = redo.rest.iter().map(RestOfRedo::moved_bytes).max().unwrap_or(0);
        *own = [redo.captured_bytes, moved, own_redo, prepare, ROOM_EXTRA_BYTES]
            .into_iter()
            .fold(*own, u64::saturating_add);
        for (root, bytes) in growth {
            let path = match root {
                Root::Target => &self.target,
                Root::Mapped(map) => &self.options.maps[map].1,
            };
            let (existing, room) = room_at(path)?;
            let entry = rooms.entry(room.device).or_insert_with(|| {
                (PlannedRoom { path: existing, needed_bytes: 0, free_bytes: room.free_bytes }, Vec::new())
            });
            entry.0.needed_bytes = entry.0.needed_bytes.saturating_add(bytes);
            entry.1.push(root);
        }
        let freed: u64 = delete
            .iter()
            .filter_map(|path| self.survey.found.get(path))
            .filter(|found| found.links == 1)
            .fold(0, |sum, found| sum.saturating_add(found.allocated_bytes));
        for (room, roots) in rooms.values_mut() {
            if roots.contains(&Root::Target) {
                room.needed_bytes = room.needed_bytes.saturating_sub(freed);
            }
            if room.needed_bytes > room.free_bytes {
                // Sizes count holes; the page maps know how many there are.
                let holes = self.hole_bytes(roots, cancel)?;
                room.needed_bytes = room.needed_bytes.saturating_sub(holes);
            }
            if room.needed_bytes > room.free_bytes {
                return Err(too_little(room));
            }
        }
        Ok(rooms.into_values().map(|(room, _)| room).collect())
    }

    fn hole_bytes(&self, roots: &[Root], cancel: &Cancel) -> Result<u64> {
        let mut layout = Layout::of(self.opened, self.options)?;
        let mut bytes = 0_u64;
        for item in self.opened.backup.items() {
            cancel.check()?;
            let item = item?;
            let root = match layout.decide(&item)? {
                Decision::File { place, .. } | Decision::Mapped { place, .. } => place.root,
                _ => continue,
            };
            if !roots.contains(&root) {
                continue;
            }
            let is_hole = |entry: &&PageEntry| match entry {
                PageEntry::Hole => true,
                PageEntry::Zero => self.options.sparse,
                PageEntry::Stored(_) => false,
            };
            for leaf in 0..leaf_count(item.page_count()) {
                let holes = self.opened.backup.leaf(&item, leaf)?.iter().filter(is_hole).count();
                bytes = bytes.saturating_add((holes as u64).saturating_mul(item.page_size.bytes() as u64));
            }
        }
        Ok(bytes)
    }

    fn server_options(&self) -> Vec<String> {
        let mut options = server_options::format_options(&self.opened.server);
        options.extend(self.providers.iter().map(|provider| format!("--plugin-load-add={provider}")));
        let told: Vec<_> = self
            .pointers
            .iter()
            .filter(|(pointer, _)| *pointer == Pointer::Told)
            .filter_map(|(_, goes_to)| {
                self.options.maps.iter().map(|(_, to)| to).find(|to| goes_to.starts_with(to))
            })
            .map(|to| to.display().to_string())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        if self.opened.server.version.flavor == Flavor::MySql && !told.is_empty() {
            options.push(format!("--innodb-directories={}", told.join(";")));
        }
        options
    }
}

/// Whether a file can be corrected in place: a file with several names belongs to somebody else as well.
pub(super) fn is_reusable(found: &Found) -> bool {
    found.kind == FoundKind::File && found.links == 1
}

/// The error for a file in a mapped place. If the redo is encrypted, such a file is never replaced, and
/// mapping a table elsewhere may not be possible.
fn in_the_way(path: &Path, redo_encrypted: bool) -> Error {
    let error = Error::new(ErrorKind::Usage, format!("{} exists already", path.display()));
    error.hinted(match redo_encrypted {
        true => "move that file away: if the redo is encrypted, --delta does not replace mapped files",
        false => "map to a directory without this file, or use --delta to replace it",
    })
}

/// The error for a filesystem that is too full.
pub(super) fn too_little(room: &PlannedRoom) -> Error {
    Error::failed(format!(
        "{} has {} free, and the restore needs {}",
        room.path.display(),
        ByteSize(room.free_bytes),
        ByteSize(room.needed_bytes)
    ))
    .hinted("make room, or restore into another filesystem")
}

/// Room at `path`, or where it will be made.
pub(super) fn room_at(path: &Path) -> Result<(PathBuf, Room)> {
    let failed = |error| io_failed("look at", path, error);
    for existing in path.ancestors() {
        match Tree::open(existing) {
            Ok(tree) => return Ok((tree.path().to_owned(), tree.room().map_err(failed)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(std::io::ErrorKind::NotFound.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owner that a user names counts first, then the existing one, then the usual one; root only if a
    /// user names it, or if there is no other.
    #[test]
    fn whose_it_will_be() {
        let (dba, mysql, root) = (Some((7, 8)), Some((101, 102)), Some((0, 0)));
        assert_eq!(owner(dba, mysql, mysql), (7, 8));
        assert_eq!(owner(root, mysql, mysql), (0, 0));
        assert_eq!(owner(None, dba, mysql), (7, 8));
        assert_eq!(owner(None, None, mysql), (101, 102));
        assert_eq!(owner(None, root, mysql), (101, 102));
        assert_eq!(owner(None, root, None), (0, 0));
        assert_eq!(owner(None, None, None), (0, 0));
    }

    /// No hint advises what would be refused.
    #[test]
    fn what_helps_if_a_mapped_file_exists() {
        let hint =
            |redo_encrypted| in_the_way(Path::new("/x/t.ibd"), redo_encrypted).hint().unwrap().to_owned();
        assert!(hint(false).contains("use --delta"));
        assert!(!hint(true).contains("use --delta") && !hint(true).contains("map to"));
    }
}
