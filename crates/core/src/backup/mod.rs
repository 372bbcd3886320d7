//! Backs up a running server into a repository.
//!
//! [`run_to`] is the outline: reach the server → begin a run in each repository → capture into their writers
//! → complete each. The manifest is written last. Until the run's outcome exists there is no backup, and
//! whatever was stored is garbage that a later prune removes, or that the next run adopts.

use std::sync::Arc;

use holdfast_pipe::Headroom;
use holdfast_repo::{Kind, LogName, Repo};

use crate::{
    error::Result,
    event::{Cancel, Listener},
    source::{Captured, Source},
    taking::{Destinations, Writers, identity, only},
    watch::Watch,
};

mod complete;
pub(crate) mod forecast;
mod reach;
mod report;
mod sink;
mod tee;

use tee::Tee;

pub use crate::taking::BackupOptions;
pub use report::BackupReport;

pub(crate) use reach::{Judge, Reached, server as reach};

/// Takes a backup into one repository.
pub fn run(
    repo: &Arc<Repo>,
    options: &BackupOptions,
    listener: &dyn Listener,
    cancel: &Cancel,
) -> Result<BackupReport> {
    only(run_to(std::slice::from_ref(repo), options, listener, cancel))
}

/// Takes one backup into several repositories; the server is read only once. Returns for each whether it has
/// the backup. A failure in one repository does not affect the others.
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

fn reach_and_run(
    repos: &[Arc<Repo>],
    options: &BackupOptions,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<Vec<Result<BackupReport>>> {
    watch.phase("reach");
    let reached = reach::server(options, watch, cancel, &Err)?;
    let options = &options.leading_to(reached.identity());
    let log = LogName { source: reached.name.clone(), kind: Kind::Physical };
    let admit = |repo: &Arc<Repo>| {
        reached.refuse_repository_inside(repo)?;
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
    Ok(capture.into(repos, &log, admitted, &|| reach::still_supported(options, watch, cancel)))
}

/// Takes a backup of what `source` sends, into the history `log`. The caller must make sure of the source's
/// identity, that it is supported, and that there is room: none of this is checked here. Options for
/// connecting to a server are ignored.
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

/// Like [`of_source`], but into several repositories.
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
    let taken = capture.into(repos, log, admitted, &|| Ok(()));
    repos.iter().zip(taken).map(|(repo, it)| it.map_err(|error| error.at(repo))).collect()
}

/// The source and the settings of a capture.
struct Capture<'a> {
    source: &'a mut dyn Source,
    /// What the compressing threads leave to the source.
    headroom: Arc<Headroom>,
    options: &'a BackupOptions,
    watch: &'a Watch<'a>,
    cancel: &'a Cancel,
}

impl Capture<'_> {
    /// Captures into each repository that `admitted` the backup. `before_end` is a last check once everything
    /// is captured.
    fn into(
        self,
        repos: &[Arc<Repo>],
        log: &LogName,
        admitted: Vec<Result<Vec<String>>>,
        before_end: &dyn Fn() -> Result<()>,
    ) -> Vec<Result<BackupReport>> {
        let Self { source, headroom, options, watch, cancel } = self;
        let destinations =
            Destinations { log, part: None, is_imported: false, headroom, options, watch, cancel };
        let capture = |writers: &Writers<'_>| {
            let tee = Tee::new(writers);
            let captured = writers.while_giving(
                || options.hold_up_max,
                options.silence_max,
                || source.capture(&tee, watch, cancel),
            )?;
            watch.phase("complete");
            before_end()?;
            Ok(captured)
        };
        destinations.take(repos, admitted, capture, |publication, stored, captured: &Captured| {
            complete::publish(publication, stored, captured.clone())
        })
    }
}
