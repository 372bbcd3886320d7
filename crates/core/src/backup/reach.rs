//! Phase `reach`: connects, finds out what the server is and what we may do, refuses what would go wrong, and
//! finds its files.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use holdfast_formats::{Flavor, aria, redo};
use holdfast_pipe::Headroom;
use holdfast_repo::{Repo, SourceName};

use super::BackupOptions;
use crate::{
    error::{Context, Error, ErrorKind, Result},
    event::{Cancel, Event, Listener},
    key_files::KeyFiles,
    real_path::real_path,
    server::{
        Purpose, ServerFacts, ServerVersion, Session, TableInventory,
        facts::{Identity, grants},
        locks::stale,
    },
    size::ByteSize,
    source::{
        CaptureOptions, Source,
        attempt::{Stopped, Tries},
        files::{Skip, walk},
        mariadb::{self, MariaDbSource},
        mysql::{self, MySqlSource},
        options::map_path,
        spool,
    },
    taking::name,
};

/// Handles an error that does not prevent the next check. A backup passes it on; a caller that only wants to
/// know what is wrong records it.
pub(crate) type Judge<'a> = &'a dyn Fn(Error) -> Result<()>;

/// A server that can be backed up.
pub(crate) struct Reached {
    pub(crate) name: SourceName,
    facts: ServerFacts,
    session: Session,
    datadir: PathBuf,
    redo_dir: PathBuf,
    data_bytes: u64,
}

/// Connects, probes and refuses.
pub(crate) fn server(
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
    judge: Judge<'_>,
) -> Result<Reached> {
    let mut session = Session::open(&options.connect, Purpose::Control)?;
    grants::check_grants(&mut session).or_else(judge)?;
    let mut facts = ServerFacts::probe(&mut session)?;
    facts.refuse_unsupported().or_else(judge)?;
    if let Some(text) = untested(&facts.version) {
        listener.event(Event::Warning { text });
    }
    let tables = list_tables(&mut session, options, listener, cancel)?;
    tables.refuse_unsupported().or_else(judge)?;
    for text in tables.warnings() {
        listener.event(Event::Warning { text });
    }
    stale::warn_of_others(&mut session, &options.connect.run, listener)?;
    let here = |path: PathBuf| map_path(&options.path_map, &path);
    let datadir = match &options.datadir {
        Some(datadir) => datadir.clone(),
        None => here(facts.resolved(Path::new(""))),
    };
    let place_of = |dir: Option<&Path>| {
        let dir = dir.unwrap_or(Path::new(""));
        match &options.datadir {
            Some(datadir) if dir.is_relative() => datadir.join(dir),
            _ => here(facts.resolved(dir)),
        }
    };
    let redo_dir = place_of(facts.innodb.log_group_home_dir.as_deref());
    let redo_dir = match facts.flavor() {
        Flavor::MariaDb => redo_dir,
        Flavor::MySql => redo_dir.join(redo::mysql::DIRECTORY),
    };
    let aria_dir = facts.aria.as_ref().map(|aria| place_of(aria.log_dir_path.as_deref()));
    let data_bytes = readable_bytes(&datadir, &facts).or_else(|error| judge(error).map(|()| 0))?;
    for key in KeyFiles::of(&facts).found_in(&datadir) {
        let text = format!(
            "{} holds encryption keys, or gives access to them, so it is left out of the backup: keep a copy \
             apart from the data directory, a restore needs it",
            datadir.join(key).display()
        );
        listener.event(Event::Warning { text });
    }
    let aria_uuid = aria_dir.map(|dir| aria_uuid(&dir)).transpose();
    facts.identity.aria_uuid = aria_uuid.or_else(|error| judge(error).map(|()| None))?.flatten();
    let text = format!(
        "{} at {}: {} in {}",
        facts.version,
        facts.identity.hostname,
        ByteSize(data_bytes),
        datadir.display()
    );
    listener.event(Event::Note { text });
    let name = match &options.name {
        Some(name) => name.clone(),
        None => name::of_server(&facts.identity.hostname, facts.identity.port)?,
    };
    Ok(Reached { name, facts, session, datadir, redo_dir, data_bytes })
}

/// What to say of a server of a series that was only probed.
fn untested(version: &ServerVersion) -> Option<String> {
    (!version.is_tested()).then(|| {
        format!(
            "{version}: Holdfast was not tested with servers of this series; its files and locks were probed, \
             and nothing speaks against a backup. Before you rely on one, restore it and compare"
        )
    })
}

/// The uuid in Aria's control file.
fn aria_uuid(dir: &Path) -> Result<Option<String>> {
    let path = dir.join("aria_log_control");
    let control = fs::read(&path).context(format_args!("read {}", path.display()))?;
    Ok(aria::control_uuid(&control).map(|uuid| uuid.to_string()))
}

/// Checks again for tables of unsupported engines: one may have been created meanwhile.
pub(super) fn still_supported(
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<()> {
    let mut session = Session::open_patiently(&options.connect, Purpose::Control)?;
    list_tables(&mut session, options, listener, cancel)?.refuse_unsupported()
}

/// Lists the tables, as patiently as locks are requested: MariaDB cannot say what a table is while a statement
/// has it to itself, as `CREATE TABLE .. SELECT` has until its last row (verified on 10.11.19).
fn list_tables(
    session: &mut Session,
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<TableInventory> {
    let mut tries = Tries::new(options.locks.tries, options.locks.patience);
    loop {
        let error = match TableInventory::read(session) {
            Err(error) if error.is_lock_timeout() => error,
            listed => return Ok(listed?),
        };
        let hint = "a long change of a table's definition is in the way: see SHOW PROCESSLIST";
        let again = tries.after(Stopped::TryAgain(error.hinted(hint).into()))?;
        let text = format!("cannot list the tables yet: {}; trying again ({})", again.error, tries.count());
        listener.event(Event::Warning { text });
        again.wait(cancel)?;
    }
}

/// Size of everything below the data directory that a backup copies. Fails if the directory is missing or
/// unreadable.
fn readable_bytes(datadir: &Path, facts: &ServerFacts) -> Result<u64> {
    let skip: Box<Skip<'_>> = match facts.flavor() {
        Flavor::MariaDb => {
            let layout = mariadb::Layout::new(facts)?;
            Box::new(move |path, is_dir| layout.skips(path, is_dir))
        }
        Flavor::MySql => {
            let layout = mysql::Layout::new(facts)?;
            Box::new(move |path, is_dir| layout.skips(path, is_dir))
        }
    };
    let found = walk(datadir, &*skip).map_err(|error| {
        error.hinted("the data directory must be readable here; see --datadir and --path-map, and run as the server's user or root")
    })?;
    Ok(found
        .values()
        .filter(|entry| !entry.is_dir)
        .filter_map(|entry| fs::metadata(&entry.real).ok())
        .map(|metadata| metadata.len().min(metadata.blocks() * 512))
        .sum())
}

impl Reached {
    /// Refuses a repository in the data directory: it would be part of its own backups, and whoever replaces the
    /// data directory removes it.
    pub(crate) fn refuse_repository_inside(&self, repo: &Repo) -> Result<()> {
        refuse_inside(repo, &self.datadir)
    }

    /// The server's facts.
    pub(crate) fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// The session through which all this was found out.
    pub(crate) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The directory of its redo log, as this process sees it.
    pub(crate) fn redo_dir(&self) -> &Path {
        &self.redo_dir
    }

    /// The server's identity.
    pub(crate) fn identity(&self) -> &Identity {
        &self.facts.identity
    }

    /// Size of the data.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Size of the redo log.
    pub(super) fn redo_capacity_bytes(&self) -> u64 {
        self.facts.innodb.redo_size
    }

    /// How much the redo spool must leave free if the server writes to the same file system.
    pub(super) fn spool_reserve_bytes(&self, options: &BackupOptions) -> u64 {
        let binlog = self.facts.binlog.as_ref().and_then(|binlog| binlog.basename.parent());
        let binlog = binlog.map(|dir| map_path(&options.path_map, dir));
        let places = [&self.datadir, &self.redo_dir].into_iter().chain(&binlog);
        spool::reserve_bytes(options.spool_dir(), places.map(PathBuf::as_path))
    }

    /// The server as a source.
    pub(super) fn source(self, options: &BackupOptions, headroom: Arc<Headroom>) -> Result<Box<dyn Source>> {
        let spool_reserve_bytes = self.spool_reserve_bytes(options);
        let capture = CaptureOptions {
            allow_corrupt: options.allow_corrupt,
            datadir: self.datadir,
            redo_dir: self.redo_dir,
            path_map: options.path_map.clone(),
            parallel: options.readers(),
            locks: options.locks,
            read_bytes_per_s_max: options.read_bytes_per_s_max,
            headroom,
            spool_dir: options.spool_dir().to_owned(),
            redo_spool_max_bytes: options.redo_spool_max_bytes,
            spool_reserve_bytes,
        };
        let connect = options.connect.clone();
        Ok(match self.facts.flavor() {
            Flavor::MariaDb => Box::new(MariaDbSource::new(connect, self.facts, self.session, capture)),
            Flavor::MySql => Box::new(MySqlSource::new(connect, self.facts, self.session, capture)),
        })
    }
}

fn refuse_inside(repo: &Repo, datadir: &Path) -> Result<()> {
    let Some(root) = repo.store().local_root() else { return Ok(()) };
    if !real_path(root)?.starts_with(real_path(datadir)?) {
        return Ok(());
    }
    let text = format!("the repository {} is in the data directory {}", root.display(), datadir.display());
    Err(Error::new(ErrorKind::Usage, text).hinted(
        "move it out, best to another disk: it would be backed up into itself, and what replaces the data \
         directory would remove it",
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use holdfast_repo::{Protection, store::fs::FsStore};

    use super::*;

    /// However the directory is spelled.
    #[test]
    fn a_repository_in_the_data_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("data")).unwrap();
        symlink(at("data"), at("alias")).unwrap();
        for (root, is_refused) in
            [("data/repo", true), ("alias/a/b", true), ("data-repo", false), ("data/../repo", false)]
        {
            let store = Arc::new(FsStore::create(at(root)).unwrap());
            let repo = Repo::init(store, &Protection::None).unwrap();
            assert_eq!(refuse_inside(&repo, &at("data")).is_err(), is_refused, "{root}");
        }
    }
}
