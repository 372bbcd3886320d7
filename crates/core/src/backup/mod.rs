//! A backup of a running server into a repository.
//!
//! [`run_to`] is the outline: reach the server → begin a run in each repository → capture into their writers → complete
//! each. The manifest is the last thing written; until the run's outcome exists there is no backup, and whatever was stored is garbage that a
//! later prune removes, or that the next run adopts.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use holdfast_pipe::{Compression, Headroom};
use holdfast_repo::{
    Kind, LogName, Repo, SourceName, hooks::Hooks, item::ItemPath, run::RunOptions, writer::WriterOptions,
};

use crate::{
    error::{Context, Error, Result},
    event::{Cancel, Listener},
    points::point,
    server::ConnectOptions,
    source::{Captured, Source, copy::BUFFERS_BYTES},
};

mod branch;
mod complete;
pub(crate) mod forecast;
pub(crate) mod identity;
mod kept;
mod reach;
mod report;
mod sink;
mod tee;

use branch::{Branch, FirstCopy};
use tee::Tee;

pub use report::{BackupReport, PhaseTime, REPORT_SCHEMA, StageTime};

pub(crate) use complete::{keep_maps, object};
pub(crate) use identity::NEW_IDENTITY;
pub(crate) use kept::{foundation, open as kept_maps};
pub(crate) use reach::{Judge, Reached, default_name, human, server as reach};
pub(crate) use report::{Watch, ms, stage_times};

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
    /// Longest time, in all, that one of several repositories may hold up the backup to the others.
    pub hold_up_max: Duration,
    /// Words that the user attaches.
    pub tags: Vec<String>,
    /// How the run presents itself and keeps its lease.
    pub run: RunOptions,
}

/// How long a server of ours may be locked: nobody else waits for it.
pub(crate) const PRIVATE_LOCK_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

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
            hold_up_max: Duration::from_secs(600),
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
    only(run_to(std::slice::from_ref(repo), options, listener, cancel))
}

/// Takes one backup into several repositories: the server is read once. Returns for each whether it has the backup; what
/// keeps one from it does not keep the others.
pub fn run_to(
    repos: &[Arc<Repo>],
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Vec<Result<BackupReport>> {
    let watch = report::Watch::new(listener);
    match reach_and_run(repos, options, &watch, cancel) {
        Ok(taken) => repos.iter().zip(taken).map(|(repo, it)| it.map_err(|error| error.at(repo))).collect(),
        Err(error) => repos.iter().map(|_| Err(error.again())).collect(),
    }
}

/// The one backup of one repository.
fn only(taken: Vec<Result<BackupReport>>) -> Result<BackupReport> {
    taken.into_iter().next().unwrap_or_else(|| Err(Error::failed("there is no repository to write to")))
}

fn reach_and_run(
    repos: &[Arc<Repo>],
    options: &BackupOptions,
    watch: &report::Watch<'_>,
    cancel: &Cancel,
) -> Result<Vec<Result<BackupReport>>> {
    watch.phase("reach");
    let reached = reach::server(options, watch, &Err)?;
    let log = LogName { source: reached.name.clone(), kind: Kind::Physical };
    let admit = |repo: &Arc<Repo>| {
        let is_another = identity::check(repo, &log, reached.identity(), options, watch)?;
        forecast::room(repo, &log, &reached, options, watch)?;
        Ok(if is_another { vec![identity::NEW_IDENTITY.to_owned()] } else { Vec::new() })
    };
    let admitted: Vec<Result<Vec<String>>> = repos.iter().map(admit).collect();
    if admitted.iter().all(Result::is_err) {
        return Ok(admitted.into_iter().filter_map(Result::err).map(Err).collect());
    }
    let headroom = Arc::new(Headroom::beside_server());
    let mut source = reached.source(options, Arc::clone(&headroom))?;
    let capture = Capture { source: &mut *source, headroom, options, watch, cancel };
    Ok(capture.in_runs(repos, &log, admitted, &|| reach::still_supported(options)))
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
    only(of_source_to(std::slice::from_ref(repo), log, source, options, listener, cancel))
}

/// The same, into several repositories.
pub fn of_source_to(
    repos: &[Arc<Repo>],
    log: &LogName,
    source: &mut dyn Source,
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Vec<Result<BackupReport>> {
    let watch = report::Watch::new(listener);
    let capture = Capture { source, headroom: Arc::default(), options, watch: &watch, cancel };
    let admitted = repos.iter().map(|_| Ok(Vec::new())).collect();
    let taken = capture.in_runs(repos, log, admitted, &|| Ok(()));
    repos.iter().zip(taken).map(|(repo, it)| it.map_err(|error| error.at(repo))).collect()
}

/// What is captured, and how.
struct Capture<'a> {
    source: &'a mut dyn Source,
    /// What the threads that compress leave to the source.
    headroom: Arc<Headroom>,
    options: &'a BackupOptions,
    watch: &'a report::Watch<'a>,
    cancel: &'a Cancel,
}

impl Capture<'_> {
    /// A whole run in each repository that `admitted` it, with the flags that the backup has there: it ends as a backup
    /// or as nothing. `before_end` has a last word when everything is captured.
    fn in_runs(
        self,
        repos: &[Arc<Repo>],
        log: &LogName,
        admitted: Vec<Result<Vec<String>>>,
        before_end: &dyn Fn() -> Result<()>,
    ) -> Vec<Result<BackupReport>> {
        let Self { source, headroom, options, watch, cancel } = self;
        let share = admitted.iter().filter(|it| it.is_ok()).count().max(1);
        let begin = |(repo, flags): (_, Result<Vec<String>>)| {
            let writing = writer_options(options, Arc::clone(&headroom));
            let writing = WriterOptions { memory_bytes: writing.memory_bytes / share, ..writing };
            Branch::begin(repo, log, flags?, writing, options, watch)
        };
        let branches: Vec<Result<Branch>> = repos.iter().zip(admitted).map(begin).collect();
        let (captured, failures) = capture(source, &branches, options, watch, cancel);
        let captured = captured.and_then(|captured| {
            watch.phase("complete");
            before_end()?;
            Ok(captured)
        });
        let first = FirstCopy::default();
        let complete = |(branch, failure): (Result<Branch>, Option<Error>)| -> Result<BackupReport> {
            let branch = branch?;
            match (failure, &captured) {
                (Some(failure), _) => Err(branch.abandon(failure)),
                (None, Ok(captured)) => branch.complete(captured.clone(), &first, options, watch, cancel),
                (None, Err(error)) => Err(branch.abandon(error.again())),
            }
        };
        // Side by side, so that one whose store has become slow does not keep the others from being published.
        thread::scope(|scope| {
            let complete = &complete;
            let branches = branches.into_iter().zip(failures);
            let threads: Vec<_> = branches.map(|branch| scope.spawn(move || complete(branch))).collect();
            let lost = |_| Err(Error::failed("a thread of the backup ended without a word"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
        })
    }
}

/// Captures into all `branches` that have begun. Returns, for each of all, why it has failed meanwhile, if it has.
fn capture(
    source: &mut dyn Source,
    branches: &[Result<Branch>],
    options: &BackupOptions,
    watch: &report::Watch<'_>,
    cancel: &Cancel,
) -> (Result<Captured>, Vec<Option<Error>>) {
    let begun = || branches.iter().filter_map(|branch| branch.as_ref().ok());
    if begun().next().is_none() {
        let none = Error::failed("there is no repository to write to");
        return (Err(none), branches.iter().map(|_| None).collect());
    }
    let tee = Tee::new(begun().map(|branch| &branch.writer));
    let captured = thread::scope(|scope| {
        let (running, ended) = mpsc::channel();
        let tee = &tee;
        scope.spawn(move || tee.watch(&ended, options.hold_up_max));
        let captured = source.capture(tee, watch, cancel);
        drop(running);
        captured
    });
    let mut failures = tee.into_failures().into_iter();
    let failures = branches.iter().map(|branch| branch.as_ref().ok().and_then(|_| failures.next().flatten()));
    (captured, failures.collect())
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

/// The path of an item that has these names.
pub(crate) fn item_path<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<ItemPath> {
    ItemPath::of_names(names).context("name what is stored")
}
