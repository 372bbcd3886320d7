//! Where chunks are now: through the moves of all prunes, also of those that ended since reading began
//! (`docs/reference/repository.md` section 13).
//!
//! A reader takes no lock. What it needs stays where it is for the grace, and longer than that it is moved on: so when
//! something is missing the outcomes are read again, and only what they do not explain is really missing.

use std::sync::{Arc, Mutex, RwLock};

use holdfast_pipe::lock::{lock, read, write};

use crate::{
    error::RepoError,
    format::names::ChunkRef,
    log::{
        history::{History, Prunes},
        outcome::{Outcome, OutcomeType},
    },
    repo::Repo,
};

/// What prunes have moved, as of the last look. Shared between threads.
#[derive(Debug)]
pub struct Moves {
    /// As of the last look.
    history: Mutex<History>,
    prunes: RwLock<Arc<Prunes>>,
}

impl Moves {
    /// As `history` has them; `prunes` are its prunes.
    #[must_use]
    pub fn new(history: &History, prunes: Prunes) -> Self {
        Self { history: Mutex::new(history.clone()), prunes: RwLock::new(Arc::new(prunes)) }
    }

    /// As of the last look.
    #[must_use]
    pub fn prunes(&self) -> Arc<Prunes> {
        Arc::clone(&read(&self.prunes))
    }

    /// Calls `read` with the place of `chunk`, which is given as stored or as it was at some time since. Where
    /// something is missing, looks whether it has moved meanwhile, and tries again.
    pub fn follow<T>(
        &self,
        repo: &Repo,
        chunk: ChunkRef,
        read: &mut dyn FnMut(ChunkRef) -> Result<T, RepoError>,
    ) -> Result<T, RepoError> {
        loop {
            let known = self.prunes();
            match read(known.resolve(chunk)) {
                Err(error) if error.is_missing() && self.look_again(repo, &known)? => {}
                done => return done,
            }
        }
    }

    /// Reads the outcomes again. Whether there are prunes that `known`, what the caller went by, does not have.
    ///
    /// Whoever asks until it says no comes to an end: each time another prune has ended.
    pub fn look_again(&self, repo: &Repo, known: &Arc<Prunes>) -> Result<bool, RepoError> {
        let mut history = lock(&self.history);
        if !Arc::ptr_eq(&self.prunes(), known) {
            return Ok(true);
        }
        let next = history.next_run();
        let renewed = history.renewed(repo).and_then(|renewed| Ok((renewed.prunes(repo)?, renewed)));
        let (prunes, renewed) = match renewed {
            Ok(renewed) => renewed,
            // It explains nothing then: what is missing is.
            Err(RepoError::Damaged { .. } | RepoError::History { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let is_new = |outcome: &Outcome| {
            outcome.run >= next && matches!(outcome.outcome_type, OutcomeType::Prune | OutcomeType::Repair)
        };
        let has_moved = renewed.outcomes().iter().any(is_new);
        *history = renewed;
        if has_moved {
            *write(&self.prunes) = Arc::new(prunes);
        }
        Ok(has_moved)
    }
}
