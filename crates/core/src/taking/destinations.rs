//! One backup into one or several repositories: the source is read once, and each repository gets the backup
//! whole or not at all.

use std::{sync::Arc, thread, time::Instant};

use holdfast_pipe::Headroom;
use holdfast_repo::{
    LogName, Repo,
    data::writer::WriterOptions,
    log::outcome::{Outcome, Part},
};

use super::{
    BackupOptions, Publication, Writers,
    branch::{self, Branch, FirstCopy, Stored},
};
use crate::{
    error::{Error, Result},
    event::Cancel,
    watch::Watch,
};

/// What a backup has in common in all repositories that get it.
pub(crate) struct Destinations<'a> {
    pub(crate) log: &'a LogName,
    /// The part of the server that it contains.
    pub(crate) part: Option<Part>,
    /// Whether it is another tool's dump.
    pub(crate) is_imported: bool,
    /// What the compressing threads leave to the server.
    pub(crate) headroom: Arc<Headroom>,
    pub(crate) options: &'a BackupOptions,
    pub(crate) watch: &'a Watch<'a>,
    pub(crate) cancel: &'a Cancel,
}

impl Destinations<'_> {
    /// Executes a whole run in each repository that `admitted` it, with the flags that the backup has there.
    /// Each run ends as a backup or as nothing. `capture` hands everything to the writers; `publish` makes a
    /// backup of it, in one repository after the other.
    pub(crate) fn take<T: Sync, R: Send>(
        &self,
        repos: &[Arc<Repo>],
        admitted: Vec<Result<Vec<String>>>,
        capture: impl FnOnce(&Writers<'_>) -> Result<T>,
        publish: impl Fn(Publication<'_>, Stored<'_>, &T) -> Result<(R, Outcome)> + Sync,
    ) -> Vec<Result<R>> {
        let share = admitted.iter().filter(|it| it.is_ok()).count().max(1);
        let wait_until = Instant::now() + branch::HOUSEKEEPING_MAX;
        let begin = |(repo, flags): (_, Result<Vec<String>>)| {
            let writing = self.options.writing(Arc::clone(&self.headroom));
            let writing = WriterOptions { memory_bytes: writing.memory_bytes / share, ..writing };
            Branch::begin(self, repo, flags?, writing, wait_until)
        };
        let branches: Vec<Result<Branch>> = repos.iter().zip(admitted).map(begin).collect();
        let (captured, failures) = into_all(&branches, capture);
        let first = FirstCopy::default();
        let complete = |(branch, failure): (Result<Branch>, Option<Error>)| -> Result<R> {
            let branch = branch?;
            match (failure, &captured) {
                (Some(failure), _) => Err(branch.abandon(failure)),
                (None, Ok(captured)) => branch
                    .complete(self, &first, |publication, stored| publish(publication, stored, captured)),
                (None, Err(error)) => Err(branch.abandon(error.again())),
            }
        };
        // In parallel, so that a slow store does not delay publication in the others.
        thread::scope(|scope| {
            let complete = &complete;
            let branches = branches.into_iter().zip(failures);
            let threads: Vec<_> = branches.map(|branch| scope.spawn(move || complete(branch))).collect();
            let lost = |_| Err(Error::failed("a thread of the backup ended unexpectedly"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
        })
    }
}

/// Captures into all `branches` that have begun. Returns for each branch why it failed meanwhile, if it did.
fn into_all<T>(
    branches: &[Result<Branch>],
    capture: impl FnOnce(&Writers<'_>) -> Result<T>,
) -> (Result<T>, Vec<Option<Error>>) {
    let begun = || branches.iter().filter_map(|branch| branch.as_ref().ok());
    if begun().next().is_none() {
        let none = Error::failed("there is no repository to write to");
        return (Err(none), branches.iter().map(|_| None).collect());
    }
    let writers = Writers::new(begun().map(|branch| &branch.writer));
    let captured = capture(&writers);
    let mut failures = writers.into_failures().into_iter();
    let failures = branches.iter().map(|branch| branch.as_ref().ok().and_then(|_| failures.next().flatten()));
    (captured, failures.collect())
}

/// The result for a single repository.
pub(crate) fn only<R>(taken: Vec<Result<R>>) -> Result<R> {
    taken.into_iter().next().unwrap_or_else(|| Err(Error::failed("there is no repository to write to")))
}
