//! Copies backups to another repository.
//!
//! A copy is an ordinary run of the target's log: sealed for the target's keys, signed by the key at hand,
//! and built on the target's newest backup. Its outcome records what it is a copy of ([`CopyOf`]), by which
//! it is recognized later.
//!
//! Invariants:
//! - Every page that is stored was read, opened and decompressed, and has the
//!   hash that the source's page map names.
//! - A page is taken, unread, from the backup of the target that the copy builds on only if that backup is a
//!   copy of one that stands in the source, the source's page maps have the same hash for both, and the key
//!   at hand may build on it: no hash in the source tells what a writer's key has put into the target.
//! - Copies are in the order in which the backups were taken: nothing older than the newest is ever copied,
//!   so that "latest" stays the latest.
//! - A backup that the target has, but needs packs there that are missing or that a check has found damaged,
//!   does not pass for one that is there, with a key that can tell.
//! - An item of a type that this version does not know fails the copy, with the item's name.

use std::{path::PathBuf, sync::Arc, time::Instant};

use holdfast_pipe::meter::Meter;
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::{
    data::{
        local_maps::LocalMaps,
        reader::{Backup, ChunkSource, ITEM_CACHE_BYTES, catalog},
        writer::{BackupWriter, Expected, Foundation, WriteError, WriterOptions},
    },
    error::{Damage, RepoError},
    format::{
        columns::CHUNK_BYTES_MAX,
        item::ItemPath,
        manifest::{Head, Totals},
        names::{LogName, RunNo, SourceName},
    },
    interrupt::Interrupt,
    keys::KeyId,
    log::{
        history::History,
        outcome::{CopyOf, Outcome},
        run::{BeginError, Ending, FinishError, Run, RunOptions, stored_outcome},
    },
    ops::stored::Stored,
    repo::Repo,
    steps::Steps,
};

mod files;
mod tables;
mod window;

/// Options of a copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// How the runs in the target present themselves.
    pub run: RunOptions,
    /// How chunks are compressed in the target, and how packs are written. The
    /// memory for this is a part of `memory_bytes`.
    pub writer: WriterOptions,
    /// Chunks whose pages are all new in the target stay compressed as they are, whatever their codec.
    pub keep_chunks: bool,
    /// Threads that read, open and verify; fewer if the memory does not suffice for all of them.
    pub threads: usize,
    /// Memory for buffers and caches of both sides.
    pub memory_bytes: usize,
    /// Directory in which a key that cannot read the target keeps the
    /// page maps of the last backup that it added.
    pub cache_dir: Option<PathBuf>,
    /// Ends the copy early, with [`RepoError::Interrupted`].
    pub interrupt: Interrupt,
    /// Is told how far the copy is.
    pub steps: Steps,
}

impl Default for CopyOptions {
    fn default() -> Self {
        let writer = WriterOptions::default();
        Self {
            run: RunOptions::of_this_process(),
            threads: writer.compress_threads,
            memory_bytes: writer.memory_bytes,
            writer,
            keep_chunks: true,
            cache_dir: None,
            interrupt: Interrupt::default(),
            steps: Steps::default(),
        }
    }
}

/// Copies the files of one backup.
struct Files<'a> {
    from: &'a Backup,
    /// The backup of the source that the writer's base is a copy of.
    twin: Option<&'a Backup>,
    writer: &'a BackupWriter,
    budget: &'a Budget,
    keep_chunks: bool,
    bytes_read: &'a Meter,
    interrupt: &'a Interrupt,
    steps: &'a Steps,
}

/// How the memory is divided.
struct Budget {
    /// For items and leaves of the source.
    maps_bytes: usize,
    /// For pages that are fetched together, with what the writer holds until it has them.
    window_bytes: usize,
    threads: usize,
    writer_bytes: usize,
}

impl CopyOptions {
    fn budget(&self) -> Budget {
        let eighth = self.memory_bytes / 8;
        let threads = self.threads.clamp(1, (eighth * 2 / window::THREAD_BYTES).max(1));
        let window_bytes = eighth.max(window::BYTES_MIN);
        // Two backups of the source are open at a time; they share what is known of its packs.
        let fixed = catalog::CACHE_BYTES + 2 * ITEM_CACHE_BYTES;
        let reading = fixed + eighth + window_bytes + threads * window::THREAD_BYTES;
        let writer_bytes = self.memory_bytes.saturating_sub(reading).max(eighth);
        Budget { maps_bytes: eighth, window_bytes, threads, writer_bytes }
    }
}

/// Why a backup was not copied.
#[derive(Debug, Error)]
pub enum CopyError {
    /// The source could not be read.
    #[error(transparent)]
    From(#[from] RepoError),
    /// The target could not be read or written.
    #[error(transparent)]
    To(RepoError),
    /// The writer failed for another reason.
    #[error(transparent)]
    Write(WriteError),
    /// The run in the target could not begin.
    #[error(transparent)]
    Begin(BeginError),
    /// The run in the target could not end.
    #[error(transparent)]
    Finish(FinishError),
    /// This version does not know the type of an item.
    #[error("{path}: this version cannot copy items of this kind")]
    Unknown {
        /// The item.
        path: ItemPath,
    },
    /// The backup is older than the newest in the target: copies are kept in order.
    #[error(
        "{log} {run} is older than backup {newest}, the newest in the other repository: \
         backups are copied in order"
    )]
    Older {
        /// The log in the source.
        log: LogName,
        /// The backup to be copied.
        run: RunNo,
        /// The newest backup in the target.
        newest: RunNo,
    },
    /// The target has the backup, but has lost some of it.
    #[error(
        "backup {there} of {log}, which is this backup, is damaged: it needs data that is damaged or gone"
    )]
    ThereDamaged {
        /// The log in the target.
        log: LogName,
        /// The backup in the target.
        there: RunNo,
    },
    /// The backup does not stand.
    #[error("{log} has no backup {run}")]
    NoSuchBackup {
        /// The log in the source.
        log: LogName,
        /// The backup to be copied.
        run: RunNo,
    },
    /// The target is the same repository as the source.
    #[error("both are the same repository, or one is a replica of the other: {id}")]
    SameRepository {
        /// The id of the repository.
        id: String,
    },
}

impl From<WriteError> for CopyError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Repo(error) => Self::To(error),
            error => Self::Write(error),
        }
    }
}

/// What to do with a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Copy it.
    Copy,
    /// Nothing: the target has it, as this backup.
    IsThere(RunNo),
    /// Nothing before a repair: the target has it, as this backup, but has lost some of it.
    ThereDamaged(RunNo),
    /// Nothing: the target's newest backup, this one, is younger.
    Older(RunNo),
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// It was copied now.
    Now(CopyReport),
    /// The target had it already, as this backup.
    WasThere(RunNo),
}

/// What a copy did. Stored as the report of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// Number of the backup in the target.
    pub backup: u64,
    /// The backup there that it built on.
    pub base: Option<u64>,
    /// Whether the base was known to be a copy, so that equal pages were not read.
    pub compared_by_maps: bool,
    /// Plain bytes of pages that were read and verified.
    pub bytes_read: u64,
    /// Wall time.
    pub total_ms: u64,
    /// Totals of the backup.
    pub totals: Totals,
}

/// Copies backups of one log to a log of another repository.
pub struct Copier<'a> {
    from: &'a Arc<Repo>,
    history: &'a History,
    to: &'a Arc<Repo>,
    log: LogName,
    /// History of the log in the target, as last read.
    there: History,
    /// Reads the chunks of the source, once something was copied.
    source: Option<Arc<ChunkSource>>,
    options: CopyOptions,
}

impl<'a> Copier<'a> {
    /// Copies backups that stand in `history` of `from` to the log of the
    /// same kind under the name `source` in `to`.
    pub fn new(
        from: &'a Arc<Repo>,
        history: &'a History,
        to: &'a Arc<Repo>,
        source: SourceName,
        options: CopyOptions,
    ) -> Result<Self, CopyError> {
        let log = LogName { source, kind: history.log().kind };
        let id = from.info().repository_id;
        if id == to.info().repository_id {
            return Err(CopyError::SameRepository { id: id.to_string() });
        }
        let there = History::read(to, &log).map_err(CopyError::To)?;
        Ok(Self { from, history, to, log, there, source: None, options })
    }

    /// The log in the target.
    #[must_use]
    pub fn log(&self) -> &LogName {
        &self.log
    }

    /// The history of the log in the target, read again.
    pub fn there(&mut self) -> Result<&History, CopyError> {
        self.there.refresh(self.to).map_err(CopyError::To)?;
        Ok(&self.there)
    }

    /// The writer's key, other than the one at hand, that alone vouches for the verdict, as of the last reading of
    /// the target. That a backup is itself, and no copy, needs nobody to vouch for it.
    #[must_use]
    pub fn word_of(&self, verdict: Verdict) -> Option<KeyId> {
        let outcome = match verdict {
            Verdict::Copy => None,
            Verdict::IsThere(run) | Verdict::ThereDamaged(run) => {
                self.there.outcome(run).filter(|outcome| outcome.copy_of.is_some())
            }
            Verdict::Older(newest) => self.there.outcome(newest),
        };
        let by_others = outcome.filter(|outcome| !self.to.may_build_on(&outcome.author));
        by_others.map(|outcome| outcome.author.key_id)
    }

    /// What to do with each of `runs`, as the target is now. Reads the refs of those that are there, with a
    /// key that can.
    pub fn plan(&mut self, runs: &[RunNo]) -> Result<Vec<(RunNo, Verdict)>, CopyError> {
        self.there()?;
        let mut stored = None;
        let verdict = |run: &RunNo| {
            let verdict = self.verdict(self.backup(*run)?, &self.there);
            Ok((*run, self.looked_at(verdict, &self.there, &mut stored)?))
        };
        runs.iter().map(verdict).collect()
    }

    /// The verdict after a look at what is stored of a backup that is there. A key that cannot read refs has only
    /// the outcome to go by.
    fn looked_at<'t>(
        &'t self,
        verdict: Verdict,
        there: &'t History,
        stored: &mut Option<Stored<'t>>,
    ) -> Result<Verdict, CopyError> {
        let Verdict::IsThere(run) = verdict else { return Ok(verdict) };
        if !self.to.can_read() {
            return Ok(verdict);
        }
        let stored = match stored {
            Some(stored) => stored,
            None => stored.insert(Stored::look(self.to, there).map_err(CopyError::To)?),
        };
        match stored.has_all_of(run).map_err(CopyError::To)? {
            true => Ok(verdict),
            false => Ok(Verdict::ThereDamaged(run)),
        }
    }

    fn backup(&self, run: RunNo) -> Result<&'a Outcome, CopyError> {
        let no_such = || CopyError::NoSuchBackup { log: self.history.log().clone(), run };
        self.history.outcome(run).filter(|_| self.history.stands(run)).ok_or_else(no_such)
    }

    fn verdict(&self, backup: &Outcome, there: &History) -> Verdict {
        verdict(self.from, self.history, backup, self.to, there)
    }

    /// Copies backup `run`, unless the target has it.
    pub fn copy(&mut self, run: RunNo) -> Result<Copied, CopyError> {
        let backup = self.backup(run)?;
        // Checked before anything begins in the target: most backups
        // that a copy is asked for are there already.
        self.there()?;
        if let Some(copied) = self.decided(backup, &self.there)? {
            return Ok(copied);
        }
        let begun = Run::begin_on(self.to, self.there.clone(), &self.options.run);
        let mut to = begun.map_err(CopyError::Begin)?;
        let copied = match self.decided(backup, to.history()) {
            Ok(None) => self.copy_in(&mut to, backup),
            // Another run has copied it first.
            Ok(Some(there)) => {
                to.abandon("the backup to be copied was there").map_err(CopyError::Finish)?;
                return Ok(there);
            }
            Err(error) => Err(error),
        };
        // If another has ended this run, its base may be missing by now: such an error is not the cause.
        let copied = copied.map_err(|error| to.lost().map_or(error, CopyError::Finish));
        if let Err(error) = &copied {
            // Frees the source for the next run at once. If this fails, the lease expires by itself.
            drop(to.abandon(&error.to_string()));
        }
        copied.map(Copied::Now)
    }

    fn decided(&self, backup: &Outcome, there: &History) -> Result<Option<Copied>, CopyError> {
        match self.looked_at(self.verdict(backup, there), there, &mut None)? {
            Verdict::Copy => Ok(None),
            Verdict::IsThere(run) => Ok(Some(Copied::WasThere(run))),
            Verdict::ThereDamaged(there) => Err(CopyError::ThereDamaged { log: self.log.clone(), there }),
            Verdict::Older(newest) => {
                Err(CopyError::Older { log: self.history.log().clone(), run: backup.run, newest })
            }
        }
    }

    fn copy_in(&mut self, to: &mut Run, backup: &Outcome) -> Result<CopyReport, CopyError> {
        let begun = Instant::now();
        let budget = self.options.budget();
        self.options.steps.phase("copy");
        let local = self.local()?;
        let foundation = match (&local, self.to.can_read()) {
            (_, true) => Foundation::newest_of(self.to, to.history(), backup.part),
            (Some(local), false) => Foundation::remembered(to.history(), Arc::clone(local)),
            (None, false) => Foundation::default(),
        };
        let source = match &self.source {
            Some(source) => source,
            None => {
                let source = ChunkSource::new(Arc::clone(self.from), self.history, budget.maps_bytes)?;
                self.source.insert(Arc::new(source))
            }
        };
        let source = Arc::clone(source);
        let from = Backup::open_with(Arc::clone(&source), self.history, backup.run)?;
        let twin = self.twin_of(to.history(), foundation.base, source)?;
        let totals = from.head().totals;
        let expected =
            Expected { files: totals.files, chunks: totals.bytes.div_ceil(CHUNK_BYTES_MAX as u64) };
        let memory_bytes = budget.writer_bytes;
        let writer = WriterOptions { memory_bytes, expected, ..self.options.writer.clone() };
        let writer = BackupWriter::new(to, &foundation, writer)?;
        let bytes_read = Meter::default();
        let files = Files {
            from: &from,
            twin: twin.as_ref(),
            writer: &writer,
            budget: &budget,
            keep_chunks: self.options.keep_chunks,
            bytes_read: &bytes_read,
            interrupt: &self.options.interrupt,
            steps: &self.options.steps,
        };
        let given = files.give();
        // The writer's own error is the cause, whichever call reports it.
        given.map_err(|error| match error {
            CopyError::Write(WriteError::Stopped) => writer.take_failure().map_or(error, CopyError::from),
            error => error,
        })?;
        let data = writer.finish(to)?;
        self.options.interrupt.check()?;
        let report = CopyReport {
            backup: to.no().0,
            base: foundation.base.map(|base| base.0),
            compared_by_maps: twin.is_some(),
            bytes_read: bytes_read.bytes(),
            total_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            totals: data.totals,
        };
        let origin = backup.origin(self.from, self.history.log());
        to.write_report(&self.report(backup, &origin, &report)?).map_err(CopyError::To)?;
        let head = Head {
            run: to.no().0,
            source: self.log.source.to_string(),
            totals: data.totals,
            roots: data.roots,
            base: foundation.base.map(|base| base.0),
            ..from.head().clone()
        };
        let head = head.encode().map_err(|_| self.not_json(backup, "manifest head"))?;
        to.set_copy_of(origin);
        if backup.imported {
            to.set_imported();
        }
        to.set_part(backup.part);
        let ending = Ending::Backup { head: head.clone(), refs: data.refs, parts: data.parts };
        let ended = to.finish(ending);
        if let (Some(local), Some(outcome)) = (local, stored_outcome(&ended)) {
            // Page maps that are not kept are stored anew by the next copy; this copy stands all the same.
            let _ = local.commit(outcome, &head);
        }
        ended.map(|_| report).map_err(CopyError::Finish)
    }

    /// The page maps kept for the target, for a key that cannot read them there.
    fn local(&self) -> Result<Option<Arc<LocalMaps>>, CopyError> {
        match &self.options.cache_dir {
            Some(directory) if !self.to.can_read() => {
                let local = LocalMaps::open(directory, self.to, &self.log).map_err(CopyError::To)?;
                Ok(Some(Arc::new(local)))
            }
            _ => Ok(None),
        }
    }

    /// The backup of the source that the target's `base` is a copy of, if it stands and can be read.
    fn twin_of(
        &self,
        there: &History,
        base: Option<RunNo>,
        source: Arc<ChunkSource>,
    ) -> Result<Option<Backup>, CopyError> {
        let Some(base) = base.and_then(|base| there.outcome(base)) else { return Ok(None) };
        let origin = base.origin(self.to, &self.log);
        let log = self.history.log();
        let twin = self.history.standing().find(|outcome| outcome.origin(self.from, log).is_same(&origin));
        let Some(twin) = twin else { return Ok(None) };
        match Backup::open_with(source, self.history, twin.run) {
            Ok(twin) => Ok(Some(twin)),
            // All pages are read and compared instead.
            Err(error) if error.is_of_the_object() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The report of the copy: what the source's run measured, and what the copy did.
    fn report(&self, backup: &Outcome, origin: &CopyOf, copy: &CopyReport) -> Result<Vec<u8>, CopyError> {
        let taken = match self.history.report(self.from, backup.run) {
            Ok(json) => serde_json::from_slice(&json).unwrap_or_default(),
            Err(error) if error.is_damage() => Map::new(),
            Err(error) => return Err(error.into()),
        };
        let not_json = |_| self.not_json(backup, "report");
        let mut report: Map<String, Value> = taken;
        report.insert("copy_of".to_owned(), serde_json::to_value(origin).map_err(not_json)?);
        report.insert("copy".to_owned(), serde_json::to_value(copy).map_err(not_json)?);
        serde_json::to_vec(&report).map_err(not_json)
    }

    fn not_json(&self, backup: &Outcome, what: &str) -> CopyError {
        let what = format!("its {what} cannot be written as JSON");
        RepoError::damaged(self.history.log().outcome(backup.run), Damage::Unknown { what }).into()
    }
}

/// What to do with `backup`, of `history` in `from`, given the history `there` of a log of `to`. Does not check that
/// an existing copy is undamaged.
#[must_use]
pub fn verdict(from: &Repo, history: &History, backup: &Outcome, to: &Repo, there: &History) -> Verdict {
    let origin = backup.origin(from, history.log());
    let origin_there = |outcome: &Outcome| outcome.origin(to, there.log());
    if let Some(same) = there.standing().rev().find(|outcome| origin_there(outcome).is_same(&origin)) {
        return Verdict::IsThere(same.run);
    }
    let Some(newest) = there.standing().next_back() else { return Verdict::Copy };
    let origin_of_newest = origin_there(newest);
    // Runs of one log are in order, whatever their clocks said.
    let is_older = match known_as(from, history, &origin_of_newest) {
        Some(run) => backup.run < run,
        None => is_older(&origin, &origin_of_newest),
    };
    if is_older { Verdict::Older(newest.run) } else { Verdict::Copy }
}

/// The run as which `history` has, or had, the backup `origin`: outcomes stay.
fn known_as(from: &Repo, history: &History, origin: &CopyOf) -> Option<RunNo> {
    let is_same = |outcome: &&Outcome| outcome.copy_of.as_ref().is_some_and(|of| of.is_same(origin));
    let copy = || history.outcomes().iter().rev().find(is_same);
    let own = match origin.repository == from.info().repository_id {
        true => history.outcome(RunNo(origin.run)).filter(|outcome| outcome.hash == origin.outcome),
        false => None,
    };
    own.or_else(copy).map(|outcome| outcome.run)
}

/// Whether the backup `origin` was taken before `other`, which the source does not know. A repository that
/// was reset to an old state gives out numbers again; then only the times tell.
fn is_older(origin: &CopyOf, other: &CopyOf) -> bool {
    match (origin.repository, &origin.source) == (other.repository, &other.source) {
        true => origin.run < other.run && origin.at <= other.at,
        false => origin.at < other.at,
    }
}
