//! A backup of a running server into a repository.
//!
//! [`run_to`] is the outline: reach the server → begin a run in each repository → capture into their writers → complete
//! each. The manifest is the last thing written; until the run's outcome exists there is no backup, and whatever was stored is garbage that a
//! later prune removes, or that the next run adopts.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use holdfast_pipe::Headroom;
use holdfast_repo::{Kind, LogName, Repo, writer::WriterOptions};

use crate::{
    error::{Error, Result},
    event::{Cancel, Listener},
    source::{Captured, Source},
    taking::identity,
    watch::Watch,
};

mod branch;
mod complete;
pub(crate) mod forecast;
mod reach;
mod report;
mod sink;
mod tee;

use branch::{Branch, FirstCopy};
use tee::Tee;

pub use crate::taking::BackupOptions;
pub use report::BackupReport;

pub(crate) use reach::{Judge, Reached, server as reach};

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
    let watch = Watch::new(listener);
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
    watch: &Watch<'_>,
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
    let watch = Watch::new(listener);
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
    watch: &'a Watch<'a>,
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
            let writing = options.writing(Arc::clone(&headroom));
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
    watch: &Watch<'_>,
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
