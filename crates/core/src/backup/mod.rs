//! A backup of a running server into a repository.
//!
//! [`run`] is the outline: reach the server → begin a run → capture into the writer → complete. The manifest is the
//! last thing written; until the run's outcome exists there is no backup, and whatever was stored is garbage that a
//! later prune removes, or that the next run adopts.

use std::{path::PathBuf, sync::Arc, time::Duration};

use holdfast_pipe::{Compression, Headroom};
use holdfast_repo::{
    Kind, LogName, Repo, SourceName,
    hooks::Hooks,
    item::ItemPath,
    run::{Run, RunOptions},
    writer::{BackupWriter, WriteError, WriterOptions},
};

use crate::{
    error::{Context, Error, Result},
    event::{Cancel, Event, Listener},
    points::point,
    server::ConnectOptions,
    source::{Source, copy::BUFFERS_BYTES},
};

mod complete;
pub(crate) mod forecast;
pub(crate) mod identity;
mod kept;
mod reach;
mod report;
mod sink;

pub use report::{BackupReport, PhaseTime, REPORT_SCHEMA, StageTime};

pub(crate) use complete::object;
pub(crate) use identity::NEW_IDENTITY;
pub(crate) use kept::{foundation, open as kept_maps};
pub(crate) use reach::{Judge, Reached, default_name, human, server as reach};
pub(crate) use report::{Watch, ms};

/// What the user decides.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// How to reach the server.
    pub connect: ConnectOptions,
    /// The history that the backup belongs to; `None`: host and port of the server.
    pub name: Option<SourceName>,
    /// The data directory, where it is elsewhere for this process than for the server.
    pub datadir: Option<PathBuf>,
    /// Where this process sees paths of the server: its prefix, ours.
    pub path_map: Vec<(PathBuf, PathBuf)>,
    /// Reader threads; fewer where their buffers would take more than half of the memory.
    pub parallel: usize,
    /// How chunks are made smaller.
    pub compression: Compression,
    /// Threads that compress.
    pub compress_threads: usize,
    /// Threads that seal.
    pub encrypt_threads: usize,
    /// Memory for everything that grows.
    pub memory_bytes: usize,
    /// A pack is closed when it has so many stored bytes.
    pub pack_target_bytes: u64,
    /// Of the data, how much may be stored again although unchanged.
    pub max_rewrite_fraction: f64,
    /// Longest time that commits, or writes to tables of other engines, may be blocked in one try.
    pub lock_max: Duration,
    /// Longest time that DDL may be blocked in one try.
    pub ddl_lock_max: Duration,
    /// Longest time to wait for a lock in one try.
    pub lock_wait: Duration,
    /// Tries to take the locks.
    pub lock_tries: u32,
    /// Most bytes to read each second; never bounds the redo, nor what is read under a lock.
    pub read_bytes_per_s_max: Option<u64>,
    /// Where the redo spool goes; `None`: the system's directory for temporary files that survive a restart.
    pub spool_dir: Option<PathBuf>,
    /// Most redo that may be captured.
    pub redo_spool_max_bytes: u64,
    /// Where a key that cannot read backups keeps the page maps of its last one, to build the next on it; `None`: nowhere,
    /// and everything is stored each time.
    pub cache_dir: Option<PathBuf>,
    /// Builds on no earlier backup: everything is stored, and damage of theirs is not shared.
    pub full: bool,
    /// The server may be another than the one that the backups of this name are of, and is from now on.
    pub new_identity: bool,
    /// Pages that are damaged on the source are taken as they are, and the backup is marked: else it fails.
    pub allow_corrupt: bool,
    /// Words that the user attaches.
    pub tags: Vec<String>,
    /// How the run presents itself and keeps its lease.
    pub run: RunOptions,
}

impl BackupOptions {
    /// What an expert would choose on this host.
    #[must_use]
    pub fn new(connect: ConnectOptions) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            connect,
            name: None,
            datadir: None,
            path_map: Vec::new(),
            parallel: threads.clamp(1, 4),
            compression: Compression::default(),
            compress_threads: threads,
            encrypt_threads: 1,
            memory_bytes: 256 << 20,
            pack_target_bytes: WriterOptions::default().pack_target_bytes,
            max_rewrite_fraction: 0.05,
            lock_max: Duration::from_secs(2),
            ddl_lock_max: Duration::from_secs(30),
            lock_wait: Duration::from_secs(2),
            lock_tries: 3,
            read_bytes_per_s_max: None,
            spool_dir: None,
            redo_spool_max_bytes: 64 << 30,
            cache_dir: None,
            full: false,
            new_identity: false,
            allow_corrupt: false,
            tags: Vec::new(),
            run: RunOptions::of_this_process(),
        }
    }
}

impl BackupOptions {
    /// Threads that read.
    fn readers(&self) -> usize {
        self.parallel.clamp(1, (self.memory_bytes / 2 / BUFFERS_BYTES).max(1))
    }
}

/// Takes a backup.
pub fn run(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<BackupReport> {
    reach_and_run(repo, options, listener, cancel).map_err(|error| error.at(repo))
}

fn reach_and_run(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<BackupReport> {
    let watch = report::Watch::new(listener);
    watch.phase("reach");
    let reached = reach::server(options, &watch, &Err)?;
    let log = LogName { source: reached.name.clone(), kind: Kind::Physical };
    let is_another = identity::check(repo, &log, reached.identity(), options, &watch)?;
    forecast::room(repo, &log, &reached, options, &watch)?;
    let headroom = Arc::new(Headroom::beside_server());
    let mut source = reached.source(options, Arc::clone(&headroom))?;
    let flags = if is_another { vec![identity::NEW_IDENTITY.to_owned()] } else { Vec::new() };
    let capture = Capture { source: &mut *source, headroom, flags, options, watch: &watch, cancel };
    capture.in_run(repo, &log, &|| reach::still_supported(options))
}

/// Takes a backup of what `source` sends, into the history `log`. It is not asked who it is, what of it is supported,
/// or whether there is room for it: whoever made it knows. Of `options`, what says how to reach a server does not
/// matter.
pub fn of_source(
    repo: &Arc<Repo>,
    log: &LogName,
    source: &mut dyn Source,
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<BackupReport> {
    let watch = report::Watch::new(listener);
    let capture =
        Capture { source, headroom: Arc::default(), flags: Vec::new(), options, watch: &watch, cancel };
    capture.in_run(repo, log, &|| Ok(())).map_err(|error| error.at(repo))
}

/// What is captured, and how.
struct Capture<'a> {
    source: &'a mut dyn Source,
    /// What the threads that compress leave to the source.
    headroom: Arc<Headroom>,
    flags: Vec<String>,
    options: &'a BackupOptions,
    watch: &'a report::Watch<'a>,
    cancel: &'a Cancel,
}

impl Capture<'_> {
    /// A whole run: it ends as a backup or as nothing. `before_end` has a last word when everything is stored.
    fn in_run(
        self,
        repo: &Arc<Repo>,
        log: &LogName,
        before_end: &dyn Fn() -> Result<()>,
    ) -> Result<BackupReport> {
        let mut run = Run::begin(repo, log, &self.options.run)?;
        point("backup.run.begun");
        let result = self.complete(&mut run, before_end);
        // What another has ended may miss its base by now: that is not what went wrong.
        let result = result.map_err(|error| run.lost().map_or(error, Error::from));
        if let Err(error) = &result {
            // Frees the source for the next run at once; should it fail, the lease runs out by itself.
            drop(run.abandon(&error.to_string()));
        }
        result
    }

    fn complete(self, run: &mut Run, before_end: &dyn Fn() -> Result<()>) -> Result<BackupReport> {
        let Self { source, headroom, flags, options, watch, cancel } = self;
        let local = kept::open(run.repo(), run.log(), options)?;
        let foundation = kept::foundation(run, local.as_ref(), options, watch);
        let beginning = complete::Beginning { base: foundation.base, flags };
        let writer =
            BackupWriter::new(run, &foundation, writer_options(options, headroom)).map_err(write_failed)?;
        let captured = source.capture(&sink::WriterSink::new(&writer), watch, cancel);
        let captured = captured.map_err(|error| writer.failure().map_or(error, write_failed))?;
        watch.phase("complete");
        before_end()?;
        let meters = Arc::clone(writer.meters());
        let finished = writer.finish(run).map_err(write_failed)?;
        point("backup.data.durable");
        cancel.check()?;
        if meters.base_unreadable.units() > 0 && local.is_some() {
            let text = "parts of the page maps that were kept of the last backup are lost or damaged: their pages were stored anew";
            watch.event(Event::Warning { text: text.to_owned() });
        } else if meters.base_unreadable.units() > 0 {
            let text = "parts of the base backup could not be read and were stored anew; run holdfast check --read-data";
            watch.event(Event::Warning { text: text.to_owned() });
        }
        if meters.adopted_unreadable.units() > 0 {
            let text = "parts of what an unfinished run had stored could not be read and were stored anew: is the storage sound?";
            watch.event(Event::Warning { text: text.to_owned() });
        }
        complete::publish(run, beginning, captured, finished, &meters, local.as_deref(), options, watch)
    }
}

pub(crate) fn writer_options(options: &BackupOptions, headroom: Arc<Headroom>) -> WriterOptions {
    WriterOptions {
        compression: options.compression,
        compress_threads: options.compress_threads,
        encrypt_threads: options.encrypt_threads,
        memory_bytes: options.memory_bytes.saturating_sub(options.readers() * BUFFERS_BYTES),
        pack_target_bytes: options.pack_target_bytes,
        max_rewrite_fraction: options.max_rewrite_fraction,
        headroom,
        hooks: Hooks::new(point),
        ..WriterOptions::default()
    }
}

pub(crate) fn write_failed(error: WriteError) -> Error {
    match error {
        WriteError::Repo(error) => error.into(),
        error => Error::failed("write to the repository").caused_by(error),
    }
}

/// The path of an item that has these names.
pub(crate) fn item_path<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<ItemPath> {
    ItemPath::of_names(names).context("name what is stored")
}
