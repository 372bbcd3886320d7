//! Filing: what archivers have left in segments goes into packs. An archiver with an operator's key does this for
//! runs that died right before its own. One with a writer's key cannot read them and continues after them, so they
//! stay until somebody who can read files them.
//!
//! Only runs after which the archive has continued are filed: a spool may still have more of the others.

use std::sync::Arc;

use holdfast_repo::{
    LogName, Repo, RunNo,
    data::writer::WriterOptions,
    log::{
        history::History,
        run::{Run, RunOptions},
    },
};

use super::{
    read::Unreadable,
    recorder::Recorder,
    run::ArchiveRun,
    stored::{last_archived, readable_tail, unfiled},
    stretch::Tail,
};
use crate::error::{Error, ErrorKind, Result};

/// What was filed, or would be.
#[derive(Debug, Default)]
pub struct Filed {
    /// The runs whose segments are in packs now.
    pub runs: Vec<RunNo>,
    /// The run that has them; `None` if nothing was filed.
    pub into: Option<RunNo>,
    /// Bytes of their events, once they are filed.
    pub bytes: u64,
    /// Runs whose segments stay, because they cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// Finds the runs of an archive that died, and after which it has continued without taking over their segments.
/// Every role can; one that cannot read does not look into them.
pub fn plan_filing(repo: &Arc<Repo>, log: &LogName) -> Result<Filed> {
    plan(repo, &History::read(repo, log)?)
}

fn plan(repo: &Arc<Repo>, history: &History) -> Result<Filed> {
    let runs = unfiled(repo, history)?.due;
    if !repo.can_read() {
        return Ok(Filed { runs, ..Filed::default() });
    }
    let mut filed = Filed::default();
    for run in runs {
        match readable_tail(repo, history, run)? {
            (_, Some(problem)) => filed.unreadable.push(Unreadable::of(run, &problem)),
            (Some(_), None) => filed.runs.push(run),
            (None, None) => {}
        }
    }
    Ok(filed)
}

/// Files the segments that [`plan_filing`] finds, or those of as many runs as one should hold. Asks an
/// archiver that is at work for room, and waits.
///
/// # Errors
/// The key cannot read.
pub fn file_segments(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &RunOptions,
    writer: WriterOptions,
) -> Result<Filed> {
    if !repo.can_read() {
        return Err(Error::new(ErrorKind::Key, "filing the segments of an archive takes an operator's key"));
    }
    let history = History::read(repo, log)?;
    let mut filed = plan(repo, &history)?;
    if filed.runs.is_empty() {
        return Ok(filed);
    }
    let run = Run::begin_filing(repo, &history, options)?;
    // An archiver may have taken some of them over since.
    let there = unfiled(repo, run.history())?.due;
    filed.runs.retain(|run| there.contains(run));
    let tail = last_archived(run.history(), run.no()).and_then(|last| last.tail.clone());
    let mut run = ArchiveRun::of(run, writer)?;
    let Some(tail) = tail.filter(|_| !filed.runs.is_empty()) else {
        run.give_up("there was nothing to file");
        filed.runs.clear();
        return Ok(filed);
    };
    match run.file(&filed.runs) {
        Ok(count) => filed.runs.truncate(count),
        Err(error) => {
            run.give_up(&error.to_string());
            return Err(error);
        }
    }
    // The archive ends where it did.
    let mut recorder = Recorder::at(&Tail::from_map(&tail)?)?;
    if let Some(mut ended) = run.finish(&mut recorder)? {
        filed.into = Some(ended.run);
        filed.bytes = ended.bytes;
        ended.wait();
    }
    Ok(filed)
}
