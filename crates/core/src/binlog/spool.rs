//! Segments that are durable on this host before the repository has them, so that an archiver can acknowledge
//! them without waiting for a store that is far away, or down.
//!
//! They are in a directory, below the repository's id and the source's name, under the names and with the
//! bytes that they will have in the repository.
//! They are sealed, so reading them here reveals no more than reading the repository.
//!
//! Invariants:
//! - A segment is removed only once the archive has what is in it: it was stored before any later run
//!   continued; or its own run's packs have it; or later runs have got further without it and without a gap.
//!   A segment to which none of this applies stays, and is reported.
//! - Only one process at a time uses the directory of an archive.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_formats::Gtids;
use holdfast_repo::{
    LogName, Repo, RunNo,
    format::names::Folder,
    log::{
        outcome::{Outcome, OutcomeType},
        run::Run,
        segment::{OBJECT_BYTES_MAX, SealedSegment, is_ended, is_followed, store_sealed, tail_of_sealed},
    },
    store::{Store, StoreError, fs::FsStore, read_all},
};

use super::{Archive, stored::stored_tail_after, stretch::Tail};
use crate::{
    error::{Context as _, Error, ErrorKind, Result},
    work_place::{Lock, lock},
};

/// Where segments are first made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// The directory; made if it does not exist.
    pub dir: PathBuf,
    /// With this many bytes that the repository does not have, the spool takes no more.
    pub bytes_max: u64,
}

/// The segments of one archive on this host.
pub(super) struct Spool {
    near: FsStore,
    dir: PathBuf,
    bytes: AtomicU64,
    bytes_max: u64,
    log: LogName,
    _lock: File,
}

/// What became of the segments that earlier runs left.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Sent on.
    pub(super) sent: u64,
    /// Removed, because the archive has come further without them.
    pub(super) needless: u64,
    /// Kept, because the archive has not, and they cannot become part of it any more.
    pub(super) late: u64,
    /// Where the last of those ends.
    pub(super) until: Option<Tail>,
}

impl Spool {
    pub(super) fn open(options: &SpoolOptions, repo: &Repo, log: &LogName) -> Result<Self> {
        let root = options.dir.join(repo.info().repository_id.to_string()).join(log.source.as_str());
        let failed = || format!("use {} as a spool", options.dir.display());
        let near = FsStore::create_keeping_folders(&root).context(failed())?;
        let held = match lock(&root, true)? {
            Lock::Ours(file) => file,
            Lock::Theirs | Lock::Gone => {
                let text = format!("another archiver of {} spools in {}", log.source, options.dir.display());
                return Err(Error::new(ErrorKind::Active, text));
            }
        };
        // Removes what was being written when an archiver was killed.
        near.sweep_uploads(Duration::ZERO).context(failed())?;
        let dir = root.join(log.folder(Folder::Segments));
        let spool = Self {
            near,
            dir,
            bytes: AtomicU64::new(0),
            bytes_max: options.bytes_max,
            log: log.clone(),
            _lock: held,
        };
        let bytes = spool.list()?.iter().map(|(_, bytes)| bytes).sum();
        spool.bytes.store(bytes, Ordering::Relaxed);
        Ok(spool)
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn failed(&self) -> String {
        format!("use {} as a spool", self.dir.display())
    }

    /// Whether it takes more.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < self.bytes_max
    }

    /// Makes a segment durable. Doing so again is harmless.
    pub(super) fn keep(&self, run: RunNo, segment: &SealedSegment) -> Result<(), StoreError> {
        let path = self.log.segment(run, segment.part());
        match self.near.create_if_absent(&path, segment.object()) {
            // Left by an attempt that failed in the end. Reading it back makes sure of it.
            Err(error) if error.is_exists() => {
                if read_all(&self.near, &path, OBJECT_BYTES_MAX)? != segment.object() {
                    return Err(error);
                }
            }
            kept => drop(kept?),
        }
        self.bytes.fetch_add(segment.object().len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Reads a segment as it is on this host.
    pub(super) fn read(&self, run: RunNo, part: u32) -> Result<Vec<u8>> {
        let object = read_all(&self.near, &self.log.segment(run, part), OBJECT_BYTES_MAX);
        object.context(self.failed())
    }

    /// Removes a segment that the archive has.
    pub(super) fn remove(&self, run: RunNo, part: u32) -> Result<()> {
        let path = self.log.segment(run, part);
        let removed = self.near.head(&path).and_then(|info| {
            self.near.delete(std::slice::from_ref(&path))?;
            let less = |bytes: u64| Some(bytes.saturating_sub(info.size_bytes));
            let _always = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            Ok(())
        });
        removed.context(self.failed())
    }

    /// Removes all segments of a run whose packs have them.
    pub(super) fn remove_run(&self, run: RunNo) -> Result<()> {
        for ((of, part), _) in self.list()? {
            if of == run {
                self.remove(run, part)?;
            }
        }
        Ok(())
    }

    /// How many segments it holds.
    pub(super) fn count(&self) -> Result<u64> {
        Ok(self.list()?.len() as u64)
    }

    fn list(&self) -> Result<Vec<((RunNo, u32), u64)>> {
        let folder = self.log.folder(Folder::Segments);
        let mut found = Vec::new();
        let listed = self.near.list(&folder, &mut |info| {
            let name = info.path.as_str().strip_prefix(&folder).unwrap_or_default();
            found.extend(Folder::Segments.parse(name).map(|key| (key, info.size_bytes)));
            true
        });
        listed.context(self.failed())?;
        found.sort_unstable();
        Ok(found)
    }

    /// Sends on what ended or dead runs have left. `next` has begun, so that no other run continues
    /// meanwhile, and it takes over what is stored.
    pub(super) fn send_left(&self, next: &Run) -> Result<Left> {
        let (repo, history) = (next.repo(), next.history());
        let mut left = Left::default();
        let all = self.list()?;
        for of_run in all.chunk_by(|((one, _), _), ((other, _), _)| one == other) {
            let run = of_run[0].0.0;
            let mut parts: Vec<u32> = of_run.iter().map(|((_, part), _)| *part).collect();
            let is_backup = |outcome: &Outcome| outcome.outcome_type == OutcomeType::Backup;
            if history.outcome(run).is_some_and(is_backup) {
                self.remove_run(run)?;
                continue;
            }
            if !is_followed(repo, history, run)? {
                let sent = self.send_run(next, run, &parts)?;
                left.sent += sent as u64;
                parts.drain(..sent);
            }
            self.judge(repo, run, &parts, &mut left)?;
        }
        // Segments that stay do not count: waiting for their room would be in vain.
        self.bytes.store(0, Ordering::Relaxed);
        Ok(left)
    }

    /// Stores and removes segments, up to the first that is missing, damaged,
    /// or in the repository already. Returns how many.
    fn send_run(&self, next: &Run, run: RunNo, parts: &[u32]) -> Result<usize> {
        let repo = next.repo();
        for (at, part) in parts.iter().enumerate() {
            let follows = parts[0] as usize + at == *part as usize;
            let Some(object) = self.whole(repo, run, *part).filter(|_| follows) else { return Ok(at) };
            match store_sealed(repo, &self.log, run, *part, &object) {
                Err(error) if error.is_exists() => return Ok(at),
                sent => sent?,
            }
            // If another process has taken the place of `next`, it may have taken over this run before that.
            if is_ended(repo, &self.log, next.no())? {
                return Ok(at);
            }
            self.remove(run, *part)?;
        }
        Ok(parts.len())
    }

    /// Reads a segment; `None` if it is missing or damaged.
    pub(super) fn whole(&self, repo: &Repo, run: RunNo, part: u32) -> Option<Vec<u8>> {
        let object = self.read(run, part).ok()?;
        tail_of_sealed(repo, &self.log, run, part, &object).is_ok().then_some(object)
    }

    /// Decides on the segments of a run whose place another has taken. Removes those whose contents the
    /// archive has by now, from this server or another, if everything that came since is there without a gap.
    /// A key that cannot read the archive cannot tell, so all segments stay.
    fn judge(&self, repo: &Arc<Repo>, run: RunNo, parts: &[u32], left: &mut Left) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let archive = self.archived_after(repo, run)?;
        let end = match archive {
            // What is stored under this run's own number came too late, like these.
            Some(_) => stored_tail_after(repo, &self.log, run)?,
            None => None,
        };
        for part in parts {
            let object = self.whole(repo, run, *part);
            let tail =
                object.map(|object| tail_of_sealed(repo, &self.log, run, *part, &object)).transpose()?;
            let tail = tail.as_ref().map(Tail::from_map).transpose()?;
            let has_come = match (&archive, &end, &tail) {
                (Some(archive), Some(end), Some(tail)) => has_come_to(archive, run, end, tail)?,
                _ => false,
            };
            if has_come {
                self.remove(run, *part)?;
                left.needless += 1;
            } else {
                left.late += 1;
                left.until = tail.or(left.until.take());
            }
        }
        Ok(())
    }

    /// The archive, if nothing is missing in what it has after a run;
    /// `None` as well if the key cannot read it.
    fn archived_after(&self, repo: &Arc<Repo>, run: RunNo) -> Result<Option<Archive>> {
        if !repo.can_read() {
            return Ok(None);
        }
        let archive = Archive::open(repo, &self.log.source)?;
        let mut after = archive.stretches().iter().filter(|archived| archived.recorded_by > run);
        Ok(after.all(|archived| archived.gap.is_none()).then_some(archive))
    }
}

/// Whether an archive that ends at `end` has, after `run`, everything before the end of a segment.
///
/// A MySQL GTID belongs to one transaction, but where GTIDs are optional they do not cover all transactions.
/// MariaDB's may be reused for other transactions: on a promoted replica that did not have the last ones, and
/// on a server that has lost the end of its binlog.
/// So in these cases the very place must be archived, from the same server.
fn has_come_to(archive: &Archive, run: RunNo, end: &Tail, segment: &Tail) -> Result<bool> {
    if let Some(has_come) = has_come_by_gtids(end, segment)? {
        return Ok(has_come);
    }
    let wanted = &segment.place;
    Ok(archive.stretches().iter().any(|archived| {
        archived.recorded_by > run
            && archived.stretch.server.is_same(&segment.server)
            && archived.stretch.file == wanted.file
            && (archived.stretch.begin..=archived.ends_at().position).contains(&wanted.position)
    }))
}

/// Whether the archive has come to the end of a segment, judged by MySQL's GTIDs; `None` if they do not suffice.
fn has_come_by_gtids(end: &Tail, segment: &Tail) -> Result<Option<bool>> {
    let (Some(Gtids::MySql(end)), Some(Gtids::MySql(gtids))) = (end.gtids()?, segment.gtids()?) else {
        return Ok(None);
    };
    if gtids.is_empty() {
        return Ok(None);
    }
    let has_named = end.contains_all(&gtids);
    Ok((!has_named || !segment.has_nameless).then_some(has_named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        binlog::stretch::{BinlogServer, LastEvent, Place},
        server::ServerVersion,
    };

    /// That another run has archived all GTIDs of a segment says nothing about transactions without one.
    #[test]
    fn transactions_without_names_are_not_told_by_gtids() {
        let tail = |last: u64, has_nameless: bool| {
            let server = BinlogServer {
                version: ServerVersion::parse("9.7.4").unwrap(),
                uuid: Some("u".to_owned()),
                server_id: 1,
                hostname: "h".to_owned(),
                port: 1,
            };
            Tail {
                server,
                place: Place { file: "binlog.000001".to_owned(), position: 100 },
                last: LastEvent { begin: 4, hash: String::new(), next_file: None },
                format: String::new(),
                gtids: Some(format!("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{last}")),
                logged: None,
                gap: None,
                has_nameless,
                last_at: None,
                last_transaction: None,
                open: None,
            }
        };
        let told =
            |end: u64, has_nameless| has_come_by_gtids(&tail(end, false), &tail(5, has_nameless)).unwrap();
        assert_eq!(told(4, false), Some(false));
        assert_eq!(told(5, false), Some(true));
        assert_eq!(told(4, true), Some(false));
        assert_eq!(told(5, true), None);
    }
}
