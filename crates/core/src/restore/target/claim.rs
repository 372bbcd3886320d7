//! Checks whether the target may be written to, and claims it.
//!
//! Invariants:
//! - Nothing is written into a directory that holds anything, unless an interrupted restore of the same
//!   backup left it, or the user asked for a delta and it is a data directory.
//! - No server runs on it: none of its files is locked by another process, and the locks that a server takes
//!   on its own files are taken first. The server of a restore that was killed is given time to end.
//! - The marker is durable before anything else changes, and is removed last; it is locked, so that two
//!   restores never work on one target.
//! - What is there when the marker is locked is what was planned for.
//! - Before the final names are given, with which a server can be started, the marker says so, and what the
//!   files are then. From there on no restore writes to them without a delta.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_repo::format::item::ItemPath;
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Found, FoundKind, Tree, create_durably, io_failed,
    names::{MARKER, NEW_MARKER, REPORT, own_path, partial_of},
};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::restore::{backup_id::BackupId, report::RestoreReport};

/// Files that a server locks with `fcntl` as long as it runs, by their usual names. The system tablespace may
/// have another name, or be elsewhere; MySQL locks every tablespace that it has open.
const SERVER_LOCKS: [&str; 2] = ["ibdata1", "aria_log_control"];
/// What only a data directory has.
const DATA_DIRECTORY_SIGNS: [&str; 6] =
    ["ibdata1", "ibdata1.partial", "mysql.ibd", "aria_log_control", MARKER, REPORT];
/// Content of what takes the place of a file set aside, for anyone who looks into it.
/// Much shorter than any such file.
const OBSTACLE: &str = "holdfast: the restore into this directory is not complete; run it again\n";
/// How long to wait for the server of a restore that was killed. It is killed too, and holds its locks until
/// the system has all of its memory back.
const SERVER_ENDS_MAX: Duration = Duration::from_secs(30);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// A report tells no secrets, and monitoring may want to read it.
const REPORT_MODE: u16 = 0o644;
/// Longest file of ours that is read.
const OWN_BYTES_MAX: u64 = 64 << 20;

/// What the marker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub(crate) backup: BackupId,
    /// Files in mapped places that are the interrupted restore's own. It has none before it sets files aside.
    #[serde(default)]
    pub(crate) mapped: Vec<PathBuf>,
    /// Directories of mapped places that it has made.
    #[serde(default)]
    pub(crate) made: Vec<PathBuf>,
    /// Whether what was there before is still as it was: a server can be started on it, and it is nobody's
    /// leftover.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) untouched: bool,
    /// Nothing was missing but final names and the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) named: Option<Named>,
}

/// A restore before the final names are given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) report: RestoreReport,
    /// Names that disappear when the final ones are given.
    unnamed: Vec<String>,
    /// [`state_of`] the files.
    state: String,
}

impl Marker {
    pub(crate) fn new(backup: BackupId, made: Vec<PathBuf>) -> Self {
        Self { backup, mapped: Vec::new(), made, untouched: false, named: None }
    }
}

impl Named {
    fn is_complete(&self, found: &BTreeMap<ItemPath, Found>) -> bool {
        let names: BTreeSet<String> = found.keys().map(ToString::to_string).collect();
        !self.unnamed.iter().any(|name| names.contains(name))
    }
}

/// Tells whether any file was written to, made or removed in between, whatever their names are. `but`: names
/// of files that do not count.
fn state_of(found: &BTreeMap<ItemPath, Found>, but: &[ItemPath]) -> String {
    let is_own = |path: &ItemPath| is_marker(path) || path.as_bytes() == REPORT.as_bytes();
    let counts = |(path, found): &(&ItemPath, &Found)| {
        found.kind == FoundKind::File && !is_own(path) && !but.contains(path)
    };
    let files = found.iter().filter(counts).map(|(_, found)| (found.modified_ns, found.size_bytes));
    let mut files: Vec<_> = files.collect();
    files.sort_unstable();
    let mut hash = blake3::Hasher::new();
    for (modified_ns, size_bytes) in files {
        hash.update(&modified_ns.to_le_bytes()).update(&size_bytes.to_le_bytes());
    }
    hash.finalize().to_string()
}

/// What is in the target before anything is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing, or not even the directory.
    Free,
    /// What an interrupted restore of the same backup left.
    Ours,
    /// The same, complete except for its report, and not used since.
    Complete,
    /// A data directory, or what a restore of another backup left.
    Other,
}

/// The target as it was found.
pub(crate) struct Survey {
    pub(crate) standing: Standing,
    /// Everything in it.
    pub(crate) found: BTreeMap<ItemPath, Found>,
    pub(crate) marker: Option<Marker>,
    /// Files in mapped places that belong to it, as those say who restored it.
    pub(crate) mapped: Vec<PathBuf>,
    /// Its owner, where it exists.
    pub(crate) owner: Option<(u32, u32)>,
}

impl Survey {
    /// The marker, if it is this restore's.
    pub(crate) fn own_marker(&self) -> Option<&Marker> {
        self.marker.as_ref().filter(|_| matches!(self.standing, Standing::Ours | Standing::Complete))
    }
}

/// Looks at the target, and refuses one that must not be touched. Changes nothing.
pub(crate) fn survey(target: &Path, delta: bool, backup: &BackupId) -> Result<Survey> {
    let tree = match Tree::open(target) {
        Ok(tree) => tree,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (found, marker, mapped) = Default::default();
            return Ok(Survey { standing: Standing::Free, found, marker, mapped, owner: None });
        }
        Err(error) => return Err(io_failed("open", target, error)),
    };
    let owner = Some(tree.owner().map_err(|error| io_failed("look at", target, error))?);
    let walk = || tree.walk().map_err(|error| io_failed("list", target, error));
    let mut found = walk()?;
    let marker: Option<Marker> = read(&tree, MARKER)?;
    let touched = marker.as_ref().filter(|marker| !marker.untouched);
    let mut mapped = touched.map_or_else(Vec::new, |marker| marker.mapped.clone());
    // Somebody else's report, or none, tells nothing.
    let report: Option<RestoreReport> = read(&tree, REPORT).ok().flatten();
    mapped.extend(report.into_iter().flat_map(|report| report.mapped));
    if marker.is_none() && found.keys().all(is_marker) {
        return Ok(Survey { standing: Standing::Free, found, marker, mapped, owner });
    }
    let is_ours = marker.as_ref().is_some_and(|marker| marker.backup == *backup && !marker.untouched);
    if !is_ours {
        let what = marker.as_ref().map(|marker| format!("holds an unfinished restore of {}", marker.backup));
        refuse_unless(delta, &found, target, what)?;
    }
    let path = own_path(MARKER)?;
    if found.contains_key(&path) {
        if tree.is_locked(&path).map_err(|error| io_failed("look at", tree.path_of(&path), error))? {
            return Err(another_restore(target));
        }
        if wait_for_its_server(&tree, &found)? {
            found = walk()?;
        }
    }
    ServerLocks::take(&tree, &found, &[])?;
    let named = marker.as_ref().filter(|_| is_ours).and_then(|marker| marker.named.as_ref());
    let standing = match named.filter(|named| named.is_complete(&found)) {
        // What is complete is somebody's data.
        Some(_) if delta => Standing::Other,
        Some(named) if named.state == state_of(&found, &[]) => Standing::Complete,
        Some(_) => return Err(used_since(target)),
        None if is_ours => Standing::Ours,
        None => Standing::Other,
    };
    Ok(Survey { standing, found, marker, mapped, owner })
}

fn is_marker(path: &ItemPath) -> bool {
    [MARKER, NEW_MARKER].map(str::as_bytes).contains(&path.as_bytes())
}

fn used_since(target: &Path) -> Error {
    let text = format!(
        "the restore into {} was interrupted when only its report was missing, and the directory was used since",
        target.display()
    );
    Error::new(ErrorKind::Usage, text).hinted(format!(
        "to keep what is there, remove {MARKER}; to make it into the backup again, use --delta"
    ))
}

/// The error if something is no longer as it was planned for.
pub(crate) fn changed(path: &Path) -> Error {
    Error::failed(format!("{} has changed since it was looked at", path.display()))
        .hinted("run the restore again: it looks again, and says what it will do")
}

fn another_restore(target: &Path) -> Error {
    Error::new(ErrorKind::Active, format!("another restore is writing to {}", target.display()))
}

/// Waits until no file is locked any more, but not for ever: another server may have been started. Returns
/// whether any was.
fn wait_for_its_server(tree: &Tree, found: &BTreeMap<ItemPath, Found>) -> Result<bool> {
    let begin = Instant::now();
    let mut has_waited = false;
    while locked(tree, found)?.is_some() && begin.elapsed() < SERVER_ENDS_MAX {
        has_waited = true;
        sleep(LOOK_AGAIN_AFTER);
    }
    Ok(has_waited)
}

/// A file that another process has a lock on. The marker is left out: another restore is no server.
fn locked<'a>(tree: &Tree, found: &'a BTreeMap<ItemPath, Found>) -> Result<Option<&'a ItemPath>> {
    let files = found.iter().filter(|(_, found)| found.kind == FoundKind::File).map(|(path, _)| path);
    for path in files.filter(|path| path.as_bytes() != MARKER.as_bytes()) {
        if tree.is_locked(path).map_err(|error| io_failed("look at", tree.path_of(path), error))? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn refuse_unless(
    delta: bool,
    found: &BTreeMap<ItemPath, Found>,
    target: &Path,
    what: Option<String>,
) -> Result<()> {
    let refused = |why: &str, hint: &str| {
        Err(Error::new(ErrorKind::Usage, format!("{} {why}", target.display())).hinted(hint))
    };
    let known = |sign: &str| found.keys().any(|path| path.as_bytes() == sign.as_bytes());
    let is_data_directory = DATA_DIRECTORY_SIGNS.into_iter().any(known);
    match (delta, is_data_directory) {
        (true, true) => Ok(()),
        (false, true) => refused(
            what.as_deref().unwrap_or("is not empty"),
            "name another directory, or use --delta to make what is there into the backup",
        ),
        (false, false) => refused(what.as_deref().unwrap_or("is not empty"), "name another directory"),
        (true, false) => refused(
            "does not look like a data directory, and --delta would delete what is in it",
            "name the data directory itself, or an empty directory",
        ),
    }
}

/// What one of our own files says. One that was being written when the power failed says nothing.
fn read<T: DeserializeOwned>(tree: &Tree, name: &str) -> Result<Option<T>> {
    let path = own_path(name)?;
    let failed = |error| io_failed("read", tree.path_of(&path), error);
    let Some(file) = tree.open_file(&path).map_err(failed)? else { return Ok(None) };
    let mut text = String::new();
    file.take(OWN_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(serde_json::from_str(&text).ok())
}

/// A claimed target.
pub(crate) struct Claim {
    pub(crate) tree: Tree,
    marker: Marker,
    /// The marker's file. Closing it would give up the lock.
    file: File,
    server_locks: Option<ServerLocks>,
}

impl Claim {
    /// Makes the target if it does not exist, and puts the marker into it. Fails if the target is not as it
    /// was found. `held` are the files without which no server starts.
    pub(crate) fn take(target: &Path, marker: Marker, survey: &Survey, held: &[ItemPath]) -> Result<Self> {
        create_durably(target)?;
        let tree = Tree::open(target).map_err(|error| io_failed("open", target, error))?;
        let server_locks = Some(ServerLocks::take(&tree, &survey.found, held)?);
        let path = own_path(MARKER)?;
        let failed = |error| io_failed("write", tree.path_of(&path), error);
        let (file, is_new) = match tree.open_file(&path).map_err(failed)? {
            Some(file) => (file, false),
            None => (tree.create_file(&path, 0o600).map_err(failed)?, true),
        };
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => {
                return Err(another_restore(target));
            }
            Err(error) => return Err(failed(error.into())),
        }
        // Whoever had the lock before may have replaced or removed it.
        if !tree.is_at(&file, &path).map_err(failed)? {
            return Err(another_restore(target));
        }
        if !is_as_found(&tree, &file, survey).map_err(|error| io_failed("look at", target, error))? {
            if is_new {
                tree.remove(&path).map_err(failed)?;
            }
            return Err(changed(target));
        }
        let mapped = survey.own_marker().map_or_else(Vec::new, |marker| marker.mapped.clone());
        let marker = Marker { untouched: survey.standing == Standing::Other, mapped, ..marker };
        let mut claim = Self { tree, marker, file, server_locks };
        claim.write()?;
        Ok(claim)
    }

    /// Puts a new marker in the place of the one that is there, in one step.
    fn write(&mut self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.marker).context("write the marker")?;
        let (path, new) = (own_path(MARKER)?, own_path(NEW_MARKER)?);
        let writing = || {
            self.tree.remove(&new)?;
            let mut file = self.tree.create_file(&new, 0o600)?;
            fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.write_all(&text)?;
            file.sync_all()?;
            self.tree.rename(&new, &path)?;
            self.tree.sync_dir(None)?;
            Ok(file)
        };
        self.file = writing().map_err(|error| io_failed("write", self.tree.path_of(&path), error))?;
        Ok(())
    }

    /// Says in the marker that everything is durable, and that nothing is missing but the report and final
    /// names: those in `unnamed` disappear, and what is in the places of `held` is replaced.
    pub(crate) fn record(
        &mut self,
        report: &RestoreReport,
        unnamed: &[ItemPath],
        held: &[ItemPath],
    ) -> Result<()> {
        let found = self.tree.walk().map_err(|error| io_failed("list", self.tree.path(), error))?;
        let unnamed = unnamed.iter().map(ToString::to_string).collect();
        self.marker.named = Some(Named { report: report.clone(), unnamed, state: state_of(&found, held) });
        self.write()
    }

    /// Sets aside the files without which no server starts, and in place of those in `held` puts something
    /// that no server accepts: without a system tablespace, MariaDB would make a new one. From here on no
    /// server starts, and its locks are not needed: they are on files that are to be written, and closing any
    /// such file would give them up anyway. From here on the files in `mapped` are the restore's own, too.
    pub(crate) fn set_aside(
        &mut self,
        held: &[ItemPath],
        redo: &ItemPath,
        mapped: Vec<PathBuf>,
    ) -> Result<()> {
        for path in held.iter().chain([redo]) {
            let partial = partial_of(path)?;
            let failed = |error| io_failed("set aside", self.tree.path_of(path), error);
            let found = self.tree.look(path).map_err(failed)?;
            let Some(found) = found else { continue };
            let aside = self.tree.look(&partial).map_err(failed)?;
            if found.kind == FoundKind::File && aside.is_none() {
                self.tree.rename(path, &partial).map_err(failed)?;
            } else if found.kind != FoundKind::Directory {
                // What was set aside before is the restore's own; this one was made by somebody else since.
                self.tree.remove(path).map_err(failed)?;
            }
        }
        for path in held {
            self.block(path).map_err(|error| io_failed("write", self.tree.path_of(path), error))?;
        }
        self.tree.sync_dir(None).map_err(|error| io_failed("write", self.tree.path(), error))?;
        self.server_locks = None;
        let marker = Marker { untouched: false, mapped, ..self.marker.clone() };
        if marker == self.marker {
            return Ok(());
        }
        self.marker = marker;
        self.write()
    }

    /// Puts an obstacle in place of a file, unless something is there, so that whatever opens it rejects it.
    fn block(&self, path: &ItemPath) -> io::Result<()> {
        if self.tree.look(path)?.is_some() {
            return Ok(());
        }
        let mut file = self.tree.create_file(path, 0o600)?;
        file.write_all(OBSTACLE.as_bytes())?;
        file.sync_all()
    }

    /// Writes into the target what it is.
    pub(crate) fn write_report(&self, report: &RestoreReport, owner: Option<(u32, u32)>) -> Result<()> {
        let (tree, path) = (&self.tree, own_path(REPORT)?);
        let text = serde_json::to_vec_pretty(report).context("write the report")?;
        let write = || {
            tree.remove(&path)?;
            let mut file = tree.create_file(&path, REPORT_MODE)?;
            file.write_all(&text)?;
            file.sync_all()?;
            owner.map_or(Ok(()), |owner| tree.give(&path, owner))
        };
        write().map_err(|error| io_failed("write", tree.path_of(&path), error))
    }

    /// Takes the marker back, if nothing was changed: what was found is as it was.
    pub(crate) fn take_back(mut self, survey: &Survey) -> Result<()> {
        match survey.marker.clone() {
            Some(before) => {
                self.marker = before;
                self.write()
            }
            None => self.release(),
        }
    }

    /// Removes the marker: the restore is complete.
    pub(crate) fn release(self) -> Result<()> {
        let path = own_path(MARKER)?;
        let failed = |error| io_failed("remove", self.tree.path_of(&path), error);
        self.tree.remove(&path).map_err(failed)?;
        self.tree.sync_dir(None).map_err(failed)
    }
}

/// Whether the target is as it was found, apart from the marker, which is open in `file`. Opens no other
/// file: closing one would give up the locks on it.
fn is_as_found(tree: &Tree, file: &File, survey: &Survey) -> io::Result<bool> {
    let mut text = String::new();
    file.take(OWN_BYTES_MAX).read_to_string(&mut text)?;
    let marker: Option<Marker> = serde_json::from_str(&text).ok();
    let now = tree.walk()?;
    let others = |found: &BTreeMap<ItemPath, Found>| {
        found
            .iter()
            .filter(|(path, _)| !is_marker(path))
            .map(|(path, found)| (path.clone(), *found))
            .collect()
    };
    let (now, before): (Vec<_>, Vec<_>) = (others(&now), others(&survey.found));
    let is_same = |((path, now), (old_path, before)): (&(ItemPath, Found), &(ItemPath, Found))| {
        path == old_path && now.is_unchanged(before)
    };
    Ok(marker == survey.marker && now.len() == before.len() && now.iter().zip(&before).all(is_same))
}

/// The locks of a running server, held by us.
struct ServerLocks {
    #[expect(dead_code, reason = "closing the files gives the locks up")]
    files: Vec<File>,
}

impl ServerLocks {
    /// Checks all files in `found`, because that server's files may have any names; then takes the locks on
    /// `held` and on the files that servers usually lock.
    fn take(tree: &Tree, found: &BTreeMap<ItemPath, Found>, held: &[ItemPath]) -> Result<Self> {
        let is_running = |path: &ItemPath| {
            let dir = tree.path().display();
            Err(Error::failed(format!("a server is running on {dir}: it holds the lock on {path}"))
                .hinted("stop it, or restore into another directory"))
        };
        // Must come before we hold any lock: closing a file gives up the locks on it, by whichever name it
        // was opened.
        if let Some(path) = locked(tree, found)? {
            return is_running(path);
        }
        let usual = SERVER_LOCKS.into_iter().map(own_path).collect::<Result<Vec<_>>>()?;
        let names: BTreeSet<&ItemPath> = usual.iter().chain(held).collect();
        let mut files = Vec::new();
        for path in names {
            let failed = |error| io_failed("lock", tree.path_of(path), error);
            // Anything but a file of that name is no server's.
            let is_file = tree.look(path).map_err(failed)?.is_some_and(|found| found.kind == FoundKind::File);
            let Some(file) = (if is_file { tree.open_file(path).map_err(failed)? } else { None }) else {
                continue;
            };
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => files.push(file),
                Err(Errno::AGAIN | Errno::ACCESS) => return is_running(path),
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(Self { files })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn id(run: u64) -> BackupId {
        BackupId { repository: "ab".into(), source: "db1".into(), kind: "physical".into(), run }
    }

    fn marker(run: u64) -> Marker {
        Marker::new(id(run), Vec::new())
    }

    fn claim(dir: &Path, held: &[ItemPath]) -> Claim {
        Claim::take(dir, marker(1), &survey(dir, true, &id(1)).unwrap(), held).unwrap()
    }

    fn standing(dir: &Path, delta: bool, run: u64) -> Result<Standing> {
        survey(dir, delta, &id(run)).map(|survey| survey.standing)
    }

    /// Only free directories, our own leftovers, and data directories with `delta` are touched.
    #[test]
    fn what_may_be_touched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(matches!(standing(&at("absent"), false, 1), Ok(Standing::Free)));
        fs::create_dir_all(at("empty/lost+found")).unwrap();
        assert!(matches!(standing(&at("empty"), false, 1), Ok(Standing::Free)));

        fs::create_dir(at("home")).unwrap();
        fs::write(at("home/thesis.txt"), "years of work").unwrap();
        for delta in [false, true] {
            assert_eq!(standing(&at("home"), delta, 1).unwrap_err().kind(), ErrorKind::Usage);
        }
        assert!(standing(&at("home/thesis.txt"), true, 1).is_err());

        fs::create_dir(at("data")).unwrap();
        fs::write(at("data/ibdata1"), "pages").unwrap();
        assert!(standing(&at("data"), false, 1).is_err());
        assert!(matches!(standing(&at("data"), true, 1), Ok(Standing::Other)));

        drop(claim(&at("ours"), &[]));
        let found = survey(&at("ours"), false, &id(1)).unwrap();
        assert_eq!((found.standing, found.marker), (Standing::Ours, Some(marker(1))));
        let error = standing(&at("ours"), false, 2).unwrap_err();
        assert!(error.to_string().contains("unfinished restore of db1/physical #1"), "{error}");
        assert!(matches!(standing(&at("ours"), true, 2), Ok(Standing::Other)));
        // The power failed while the marker was written: nothing else was done yet.
        fs::write(at("ours").join(MARKER), "{").unwrap();
        assert!(matches!(standing(&at("ours"), false, 1), Ok(Standing::Free)));
        fs::write(at("ours/x"), "").unwrap();
        assert!(standing(&at("ours"), false, 1).is_err());
    }

    /// Set aside, the system files are kept for reuse; a file that a server made in their place since is not.
    #[test]
    fn setting_aside() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ibdata1"), "old").unwrap();
        let held = [ItemPath::new("ibdata1").unwrap(), ItemPath::new("aria_log_control").unwrap()];
        let mut claim = claim(dir.path(), &held);
        let redo = ItemPath::new("ib_logfile0").unwrap();
        claim.set_aside(&held, &redo, Vec::new()).unwrap();
        fs::write(dir.path().join("ibdata1"), "made by a server").unwrap();
        fs::write(dir.path().join("ib_logfile0"), "made by a server").unwrap();
        claim.set_aside(&held, &redo, Vec::new()).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("ibdata1.partial"), "old");
        for held in ["ibdata1", "aria_log_control"] {
            assert_eq!(read(held), OBSTACLE);
        }
        assert!(!dir.path().join("ib_logfile0").exists());
        claim.release().unwrap();
        assert!(!dir.path().join(MARKER).exists());
    }

    const LOCK: &str = "HOLDFAST_TEST_LOCK";

    /// Not a test by itself: holds the lock on a file until its standard input ends. A process has no quarrel
    /// with locks of its own.
    #[test]
    #[ignore = "a process for the tests of this module"]
    fn holds_a_lock() {
        let file = File::options().write(true).open(std::env::var(LOCK).unwrap()).unwrap();
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        writeln!(io::stdout(), "{LOCK}").unwrap();
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    fn lock(path: &Path) -> Child {
        let (_, here) = module_path!().split_once("::").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{here}::holds_a_lock"), "--ignored", "--nocapture"])
            .env(LOCK, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(LOCK)));
        child
    }

    /// The server of a restore that was killed ends a little later than it; one that runs stays.
    #[test]
    fn who_has_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        drop(claim(&at("ours"), &[]));
        fs::write(at("ours/ibdata1"), "pages").unwrap();

        let mut dying = lock(&at("ours/ibdata1"));
        let ends = std::thread::spawn(move || {
            sleep(Duration::from_millis(300));
            drop(dying.stdin.take());
            dying.wait().unwrap();
        });
        assert!(matches!(standing(&at("ours"), false, 1), Ok(Standing::Ours)));
        ends.join().unwrap();

        let mut other = lock(&at("ours").join(MARKER));
        assert_eq!(standing(&at("ours"), false, 1).unwrap_err().kind(), ErrorKind::Active);
        other.kill().unwrap();
        other.wait().unwrap();

        fs::create_dir(at("data")).unwrap();
        fs::write(at("data/ibdata1"), "pages").unwrap();
        let mut server = lock(&at("data/ibdata1"));
        let error = standing(&at("data"), true, 1).unwrap_err().to_string();
        assert!(error.contains("a server is running on"), "{error}");
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
