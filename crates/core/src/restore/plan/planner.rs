//! Decides, item by item, what a restore makes, replaces, keeps and removes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use holdfast_formats::{
    Flavor,
    tablespace::{COMPRESSION_ALGORITHMS, Geometry},
};
use holdfast_repo::format::item::{FileRole, Item, ItemPath, Tablespace};

use super::{
    layout::{Decision, Layout, Pointer, Root, is_table},
    mapped::MappedFile,
    paths::join,
};
use crate::{
    error::{Error, ErrorKind, Result},
    key_files::KeyFiles,
    real_path::real_path,
    restore::{
        done::LeftOut,
        keyring,
        opened::Opened,
        options::RestoreOptions,
        planned::{ExternalFile, PlannedPath},
        redo::RedoLayout,
        server_options,
        target::{
            Found, FoundKind,
            names::{MARKER, partial_of},
            survey::Survey,
        },
    },
};

/// Most directories that a hint names.
const SHOWN_MAX: usize = 5;

pub(super) struct Planner<'a> {
    pub(super) opened: &'a Opened,
    pub(super) options: &'a RestoreOptions,
    pub(super) survey: &'a Survey,
    pub(super) target: PathBuf,
    layout: Layout<'a>,
    files: u64,
    bytes: u64,
    /// By root: bytes that may have to be allocated.
    pub(super) growth: HashMap<Root, u64>,
    create: Vec<PlannedPath>,
    replace: Vec<PlannedPath>,
    external: Vec<ExternalFile>,
    /// Where the source had tables outside that no mapping covers.
    unmapped: BTreeSet<PathBuf>,
    dropped: Vec<LeftOut>,
    directories: Vec<(ItemPath, u16)>,
    held: Vec<ItemPath>,
    aria_logs: Vec<ItemPath>,
    pointers: Vec<(Pointer, PathBuf)>,
    mapped: Vec<MappedFile>,
    /// MariaDB: plugins that the server needs to read compressed pages.
    providers: BTreeSet<String>,
    /// Everything that may stay in the target: `true` for directories.
    keep: BTreeMap<ItemPath, bool>,
}

/// What was decided about all items.
pub(super) struct Decided {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) create: Vec<PlannedPath>,
    pub(super) replace: Vec<PlannedPath>,
    pub(super) external: Vec<ExternalFile>,
    pub(super) dropped: Vec<LeftOut>,
    pub(super) directories: Vec<(ItemPath, u16)>,
    pub(super) held: Vec<ItemPath>,
    pub(super) aria_logs: Vec<ItemPath>,
    pub(super) pointers: Vec<(Pointer, PathBuf)>,
    pub(super) mapped: Vec<MappedFile>,
    pub(super) server_options: Vec<String>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(opened: &'a Opened, options: &'a RestoreOptions, survey: &'a Survey) -> Result<Self> {
        Ok(Self {
            opened,
            options,
            survey,
            target: real_path(&options.target_dir)?,
            layout: Layout::of(opened, options)?,
            files: 0,
            bytes: 0,
            growth: HashMap::new(),
            create: Vec::new(),
            replace: Vec::new(),
            external: Vec::new(),
            unmapped: BTreeSet::new(),
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

    pub(super) fn add(&mut self, item: &Item) -> Result<()> {
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
                if is_table(item) {
                    self.unmapped.extend(was_outside(item).and_then(|was| Some(was.parent()?.to_owned())));
                }
                if held {
                    self.check_held(&place.path, &goes_to)?;
                    self.keep.insert(partial_of(&place.path)?, false);
                    self.held.push(place.path.clone());
                }
                if item.role == FileRole::AriaLog {
                    self.aria_logs.push(place.path.clone());
                }
                let partial = if held { self.survey.found.get(&partial_of(&place.path)?) } else { None };
                let found = partial.or_else(|| self.survey.found.get(&place.path)).copied();
                self.file(item, place.root, goes_to, found);
            }
            Decision::Mapped { place, pointer } => {
                let Root::Mapped(map) = place.root else {
                    return Err(Error::failed(format!("{} is mapped to nowhere", item.path)));
                };
                let goes_to = join(&self.options.maps[map].1, &place.path);
                let (opened, options, survey) = (self.opened, self.options, self.survey);
                let file = MappedFile::allow(goes_to.clone(), &pointer, opened, options, survey)?;
                let found = file.found;
                self.external(item, &goes_to);
                self.mapped.push(file);
                self.point(&pointer)?;
                self.pointers.push((pointer, goes_to.clone()));
                self.file(item, place.root, goes_to, found);
            }
        }
        Ok(())
    }

    /// Where files go that a mapping puts elsewhere.
    pub(super) fn mapped_paths(&self) -> impl Iterator<Item = &Path> {
        self.mapped.iter().map(|file| file.path.as_path())
    }

    /// A mapping that covers nothing may be misspelled, if a table that was to go there went into the target.
    /// If none did, it is for other backups.
    pub(super) fn refuse_unused_mappings(&self) -> Result<()> {
        if self.unmapped.is_empty() {
            return Ok(());
        }
        let mut maps = self.options.maps.iter().enumerate();
        let unused = maps.find(|(map, _)| !self.growth.contains_key(&Root::Mapped(*map)));
        let Some((_, (from, to))) = unused else { return Ok(()) };
        let (from, to) = (from.display(), to.display());
        let text =
            format!("nothing is mapped by {from}={to}: no table of the backup has a file below {from}");
        let dirs = self.unmapped.iter().take(SHOWN_MAX).map(|dir| dir.display().to_string());
        let dirs = dirs.collect::<Vec<_>>().join(", ");
        Err(Error::new(ErrorKind::Usage, text)
            .hinted(format!("leave it out, or correct it; no mapping covers the files that were in {dirs}")))
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

    /// Without its provider a server cannot recover or read a compressed table. If the file does not tell
    /// which provider that is, it can be any that the source had, to which it leaves new pages, or that its
    /// pages told: a source may have been started without it.
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
        if let Some(was) = was_outside(item) {
            self.external.push(ExternalFile { was: was.to_owned(), goes_to: goes_to.to_owned() });
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

    fn file(&mut self, item: &Item, root: Root, goes_to: PathBuf, found: Option<Found>) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(item.size_bytes);
        let reused = found.filter(is_reusable);
        let there = reused.map_or(0, |found| found.allocated_bytes);
        let growth = self.growth.entry(root).or_default();
        *growth = growth.saturating_add(item.size_bytes.saturating_sub(there));
        let planned = PlannedPath { path: goes_to, bytes: item.size_bytes };
        // What cannot be reused is deleted in the target, and listed so; elsewhere it just gives way.
        if reused.is_some() || (root != Root::Target && found.is_some()) {
            self.replace.push(planned)
        } else {
            self.create.push(planned)
        }
    }

    pub(super) fn redo(&mut self, redo: &RedoLayout) -> Result<()> {
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

    /// Nothing of what was planned is to be done.
    pub(super) fn leave_all(&mut self) {
        self.create.clear();
        self.replace.clear();
    }

    /// What is in the target and may not stay, the contents of a directory before it. Not what is in the
    /// place of a held file: setting aside has put an obstacle there, which must stay.
    /// And no keys: there may be no other copy.
    pub(super) fn delete(&self) -> Result<Vec<ItemPath>> {
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
            (!stays).then(|| path.clone())
        };
        // Path order puts a directory before its contents.
        let gone: Vec<_> = self.survey.found.iter().rev().filter_map(goes).collect();
        match gone.iter().rev().find(|path| self.survey.found.get(path).is_some_and(|found| found.is_fixed)) {
            Some(path) => Err(self.cannot_remove(path)),
            None => Ok(gone),
        }
    }

    fn cannot_remove(&self, path: &ItemPath) -> Error {
        let text = format!(
            "{} would be removed, since the backup has no such directory, but it is the root of a filesystem",
            join(&self.target, path).display()
        );
        Error::new(ErrorKind::Usage, text).hinted("unmount it first, or move what is there away")
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

    pub(super) fn finish(self) -> Decided {
        Decided {
            server_options: self.server_options(),
            files: self.files,
            bytes: self.bytes,
            create: self.create,
            replace: self.replace,
            external: self.external,
            dropped: self.dropped,
            directories: self.directories,
            held: self.held,
            aria_logs: self.aria_logs,
            pointers: self.pointers,
            mapped: self.mapped,
        }
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
pub(in crate::restore) fn is_reusable(found: &Found) -> bool {
    found.kind == FoundKind::File && found.links == 1
}

/// Where a file was that was outside of the source's data directory.
fn was_outside(item: &Item) -> Option<&Path> {
    Some(Path::new(OsStr::from_bytes(item.outside.as_deref()?)))
}
