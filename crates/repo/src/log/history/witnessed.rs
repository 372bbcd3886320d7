//! Compares a history with what was seen of its log before.

use super::History;
use crate::{
    error::RepoError,
    repo::Repo,
    store::exists,
    witness::{Seen, SetBack},
};

/// Compares `history`, which was just read, with what was seen before, and notes what is seen now.
pub(super) fn compare(repo: &Repo, history: &History) -> Result<(), RepoError> {
    let (witness, log) = (repo.witness(), history.log());
    if let Some(seen) = witness.before(log)
        && let Some(set_back) = set_back(repo, history, seen)?
    {
        witness.note(log, Err(set_back));
        return Ok(());
    }
    // An outcome by a key that was removed since may yet turn out to be worth nothing.
    let newest = history.outcomes().iter().rev().find(|outcome| !outcome.author.yields_to_what_follows);
    if let Some(newest) = newest {
        witness.note(log, Ok(Seen { run: newest.run, outcome: newest.hash }));
    }
    Ok(())
}

fn set_back(repo: &Repo, history: &History, seen: Seen) -> Result<Option<SetBack>, RepoError> {
    let run = seen.run;
    if history.is_lost(run) {
        return Ok(None);
    }
    match history.outcome(run) {
        Some(outcome) if outcome.hash == seen.outcome => Ok(None),
        Some(_) => Ok(Some(SetBack { run, is_replaced: true })),
        // That it is missing or damaged shows in the history itself.
        None if history.next_run() > run => Ok(None),
        // A listing may lag behind.
        None if exists(&**repo.store(), &history.log().outcome(run))? => Ok(None),
        None => Ok(Some(SetBack { run, is_replaced: false })),
    }
}
