//! Outcomes as they are in the store, and which of them count.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    error::{Damage, RepoError},
    format::{
        hash::ObjectHash,
        names::{Folder, LogName, RunNo},
    },
    log::outcome::{self, LostOutcome, OUTCOME_BYTES_MAX, Outcome},
    repo::{Looked, Repo},
    store::{ObjectInfo, ahead::in_order, read_listed},
};

/// How far after the last whole outcome an object may be and still be of a run. Anybody who can write to the
/// store can make up names; at most this many runs are looked for because of them.
const FORESEEN: u64 = 1_000;
/// How far after the last whole outcome another one may be: up to this many before it may have been lost together.
const FORESEEN_WHOLE: u64 = 1_000_000;

/// The last run of which something may be stored if `next` is the number after the last outcome.
pub(crate) fn foreseen_from(next: RunNo) -> RunNo {
    RunNo(next.0.saturating_add(FORESEEN))
}

/// Outcomes as they are in the store, each judged by itself.
pub(super) struct ReadOutcomes {
    pub(super) outcomes: BTreeMap<RunNo, Result<Outcome, RepoError>>,
    /// Outcomes with numbers that no run can have.
    pub(super) strangers: BTreeSet<RunNo>,
}

impl ReadOutcomes {
    /// Reads them from `begin` on. Errors are those of the store;
    /// what is wrong with an outcome is kept in its place.
    pub(super) fn read(repo: &Repo, log: &LogName, begin: RunNo) -> Result<Self, RepoError> {
        let listed = repo.list_folder(log, Folder::Outcomes)?;
        let listed: Vec<(RunNo, ObjectInfo)> =
            listed.into_iter().map(|((run, _), info)| (run, info)).filter(|(run, _)| *run >= begin).collect();
        // Anybody who can write to the store can make up signers: one look for all of them.
        let looked = Looked::default();
        let fetch = |(run, info): &(RunNo, ObjectInfo)| {
            let read = read_listed(&**repo.store(), info, OUTCOME_BYTES_MAX)
                .map_err(RepoError::from)
                .and_then(|bytes| {
                    outcome::meet_signer(repo, log, *run, &bytes, &looked)?;
                    outcome::parse(repo, log, *run, &bytes, info.created_at)
                });
            match read {
                Err(error) if !error.is_of_the_object() => Err(error),
                read => Ok(read),
            }
        };
        let mut outcomes = BTreeMap::new();
        in_order(repo.store().reads_at_once(), &listed, fetch, |(run, _), read| {
            outcomes.insert(*run, read);
            Ok(())
        })?;
        let mut last = begin.0.saturating_sub(1);
        let mut strangers = BTreeSet::new();
        outcomes.retain(|run, read| {
            let within = if read.is_ok() { FORESEEN_WHOLE } else { FORESEEN };
            let is_foreseen = run.0 <= last.saturating_add(within);
            if !is_foreseen {
                strangers.insert(*run);
            } else if read.is_ok() {
                last = run.0;
            }
            is_foreseen
        });
        Ok(Self { outcomes, strangers })
    }

    /// Decides which outcomes count, from the newest to the oldest, since later
    /// ones decide about earlier ones.
    ///
    /// An outcome that a repair has found lost does not count, whatever is stored there now, and neither does
    /// what a repair says that is lost itself. An outcome signed by a key that was removed since does not
    /// count if the next one names another before it: the key's holder may have put it there.
    pub(super) fn weigh(&self) -> Weighed {
        let mut weighed = Weighed::default();
        // The outcome after this one, and the hash that it names.
        let mut after: Option<(RunNo, ObjectHash)> = None;
        for (run, outcome) in self.outcomes.iter().rev() {
            let next = RunNo(run.0.saturating_add(1));
            let named = match weighed.lost.get(&next) {
                Some(lost) => lost.before,
                None => after.filter(|(after, _)| *after == next).map(|(_, named)| named),
            };
            after = None;
            let Ok(outcome) = outcome else { continue };
            if weighed.lost.contains_key(run) {
                continue;
            }
            if outcome.author.yields_to_what_follows && named.is_some_and(|named| named != outcome.hash) {
                weighed.displaced.insert(*run);
                continue;
            }
            weighed.lost.extend(outcome.lost.iter().map(|lost| (RunNo(lost.run), *lost)));
            after = Some((*run, outcome.previous));
        }
        weighed
    }

    /// Whether a repair has found an outcome before `begin` lost.
    pub(super) fn mends_before(&self, begin: RunNo) -> bool {
        let read = self.outcomes.values().filter_map(|outcome| outcome.as_ref().ok());
        read.flat_map(|outcome| &outcome.lost).any(|lost| lost.run < begin.0)
    }
}

/// The outcomes that count for nothing.
#[derive(Default)]
pub(super) struct Weighed {
    /// Outcomes that repairs have found lost.
    pub(super) lost: BTreeMap<RunNo, LostOutcome>,
    /// Outcomes signed by a key removed since, where the next outcome names another in their place.
    pub(super) displaced: BTreeSet<RunNo>,
}

/// The stretches of runs from `begin` up to, not including, `end` that are not known.
pub(super) fn gaps(begin: RunNo, end: RunNo, is_known: impl Fn(&RunNo) -> bool) -> Vec<(RunNo, RunNo)> {
    let mut gaps: Vec<(RunNo, RunNo)> = Vec::new();
    for run in (begin.0..end.0).map(RunNo).filter(|run| !is_known(run)) {
        match gaps.last_mut() {
            Some((_, last)) if last.0 + 1 == run.0 => *last = run,
            _ => gaps.push((run, run)),
        }
    }
    gaps
}

/// Reports missing outcomes to `each`, one stretch at a time.
pub(super) fn tell_missing(log: &LogName, gaps: Vec<(RunNo, RunNo)>, each: &mut dyn FnMut(RunNo, RepoError)) {
    for (first, last) in gaps {
        let damage = match first == last {
            true => Damage::Missing,
            false => Damage::AllMissing { last },
        };
        each(first, RepoError::damaged(log.outcome(first), damage));
    }
}
