//! The locks by which a running server is noticed, and kept away.
//!
//! Invariant: no server runs on the target. None of its files is locked by another process, and the locks that
//! a server takes on its own files are taken first. The server of a restore that was killed is given time to
//! end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    thread::sleep,
    time::{Duration, Instant},
};

use holdfast_repo::format::item::ItemPath;
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
};

use super::{
    Found, FoundKind, Tree, io_failed,
    names::{MARKER, own_path},
};
use crate::error::{Error, Result};

/// Files that a server locks with `fcntl` as long as it runs, by their usual names. The system tablespace may
/// have another name, or be elsewhere; MySQL locks every tablespace that it has open.
const SERVER_LOCKS: [&str; 2] = ["ibdata1", "aria_log_control"];
/// How long to wait for the server of a restore that was killed. It is killed too, and holds its locks until
/// the system has all of its memory back.
const SERVER_ENDS_MAX: Duration = Duration::from_secs(30);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The locks of a running server, held by us.
pub(in crate::restore) struct ServerLocks {
    #[expect(dead_code, reason = "closing the files gives the locks up")]
    files: Vec<File>,
}

impl ServerLocks {
    /// Checks all files in `found`, because that server's files may have any names; then takes the locks on
    /// `held` and on the files that servers usually lock.
    pub(in crate::restore) fn take(
        tree: &Tree,
        found: &BTreeMap<ItemPath, Found>,
        held: &[ItemPath],
    ) -> Result<Self> {
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

/// Waits until no file is locked any more, but not for ever: another server may have been started. Returns
/// whether any was.
pub(in crate::restore) fn wait_for_its_server(
    tree: &Tree,
    found: &BTreeMap<ItemPath, Found>,
) -> Result<bool> {
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
