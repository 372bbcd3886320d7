//! Claims the target for one restore.
//!
//! Invariants:
//! - The marker is durable before anything else changes, and is removed last; it is locked, so that two
//!   restores never work on one target.
//! - What is there when the marker is locked is what was planned for.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use holdfast_repo::format::item::ItemPath;
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
};

use super::{
    Found, FoundKind, Tree, create_durably, io_failed,
    marker::{Marker, Named, is_marker, read_open, state_of},
    names::{MARKER, NEW_MARKER, REPORT, own_path, partial_of},
    server_locks::ServerLocks,
    survey::{Standing, Survey, another_restore, changed},
};
use crate::{
    error::{Context, Result},
    restore::report::RestoreReport,
};

/// Content of what takes the place of a file set aside, for anyone who looks into it.
/// Much shorter than any such file.
const OBSTACLE: &str = "holdfast: the restore into this directory is not complete; run it again\n";
/// A report tells no secrets, and monitoring may want to read it.
const REPORT_MODE: u16 = 0o644;

/// A claimed target.
pub(in crate::restore) struct Claim {
    pub(in crate::restore) tree: Tree,
    marker: Marker,
    /// The marker's file. Closing it would give up the lock.
    file: File,
    server_locks: Option<ServerLocks>,
}

impl Claim {
    /// Makes the target if it does not exist, and puts the marker into it. Fails if the target is not as it
    /// was found. `held` are the files without which no server starts.
    pub(in crate::restore) fn take(
        target: &Path,
        marker: Marker,
        survey: &Survey,
        held: &[ItemPath],
    ) -> Result<Self> {
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
    pub(in crate::restore) fn record(
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
    pub(in crate::restore) fn set_aside(
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
    pub(in crate::restore) fn write_report(
        &self,
        report: &RestoreReport,
        owner: Option<(u32, u32)>,
    ) -> Result<()> {
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
    pub(in crate::restore) fn take_back(mut self, survey: &Survey) -> Result<()> {
        match survey.marker.clone() {
            Some(before) => {
                self.marker = before;
                self.write()
            }
            None => self.release(),
        }
    }

    /// Removes the marker: the restore is complete.
    pub(in crate::restore) fn release(self) -> Result<()> {
        let path = own_path(MARKER)?;
        let failed = |error| io_failed("remove", self.tree.path_of(&path), error);
        self.tree.remove(&path).map_err(failed)?;
        self.tree.sync_dir(None).map_err(failed)
    }
}

/// Whether the target is as it was found, apart from the marker, which is open in `file`. Opens no other
/// file: closing one would give up the locks on it.
fn is_as_found(tree: &Tree, file: &File, survey: &Survey) -> io::Result<bool> {
    let marker: Option<Marker> = read_open(file)?;
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

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader, Read},
        process::{Child, Command, Stdio},
        thread::sleep,
        time::Duration,
    };

    use super::*;
    use crate::{
        error::ErrorKind,
        restore::{backup_id::BackupId, target::survey::survey},
    };

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
