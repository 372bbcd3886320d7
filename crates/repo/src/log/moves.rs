//! Where chunks are now: follows the moves of all prunes, including those that ended after reading began
//! (`docs/reference/repository.md` section 13).
//!
//! A reader takes no lock. The data it needs stays in place for the grace; after that it is where prunes
//! have moved it. So when something is missing, the outcomes are read again, and only what they do
//! not explain is really missing.

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

/// The moves of all prunes that concern what stood when reading began, as of the last look. Can be shared
/// between threads.
#[derive(Debug)]
pub struct Moves {
    /// As of the last look.
    history: Mutex<History>,
    prunes: RwLock<Arc<Prunes>>,
}

impl Moves {
    /// Starts from `history`; `prunes` are its prunes.
    #[must_use]
    pub fn new(history: &History, prunes: Prunes) -> Self {
        Self { history: Mutex::new(history.clone()), prunes: RwLock::new(Arc::new(prunes)) }
    }

    /// The prunes as of the last look.
    #[must_use]
    pub fn prunes(&self) -> Arc<Prunes> {
        Arc::clone(&read(&self.prunes))
    }

    /// Calls `read` with the current place of `chunk`, which is given as stored or as it was at some time
    /// since. If something is missing, checks whether it was moved meanwhile, and tries again.
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

    /// Reads the outcomes again. Returns whether there are prunes that `known`, which the
    /// caller went by, does not have.
    ///
    /// A caller that repeats this until it returns `false` comes to an end:
    /// each `true` takes another prune that has ended.
    pub fn look_again(&self, repo: &Repo, known: &Arc<Prunes>) -> Result<bool, RepoError> {
        let mut history = lock(&self.history);
        if !Arc::ptr_eq(&self.prunes(), known) {
            return Ok(true);
        }
        let next = history.next_run();
        let renewed =
            history.renewed(repo).and_then(|renewed| Ok((renewed.prunes_since(repo, known)?, renewed)));
        let (prunes, renewed) = match renewed {
            Ok(renewed) => renewed,
            // A damaged history explains nothing: what is missing stays missing.
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
