//! Holds keep backups from being dropped by any expire, whatever its rules, until they are
//! released or the hold ends by itself.
//!
//! Holds and releases are runs of the log, so their order among expires is that of run numbers:
//! an expire decides inside its run and knows all holds before it, and none can come
//! between its decision and its outcome.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use thiserror::Error;

use crate::{
    error::RepoError,
    format::names::{LogName, RunNo},
    log::{
        history::History,
        outcome::Intent,
        run::{BeginError, Ending, FinishError, Run, RunOptions},
    },
    repo::Repo,
};

/// Bytes of a reason, at most: it is shown in one line.
pub const REASON_BYTES_MAX: usize = 1024;

/// When a hold is to end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At this time.
    At(Timestamp),
    /// This long after now, by the store's clock.
    For(Duration),
}

/// The terms of a new hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldTerms {
    /// When it ends by itself; `None`: only by a release.
    pub until: Option<Until>,
    /// For people; may be empty.
    pub reason: String,
}

/// Why no hold was placed or ended.
#[derive(Debug, Error)]
pub enum HoldError {
    /// The backup does not stand.
    #[error("{log} has no backup {run}")]
    NoSuchBackup {
        /// The log.
        log: LogName,
        /// The run that was named.
        run: RunNo,
    },
    /// There is nothing to release.
    #[error("backup {run} of {log} is not held")]
    NotHeld {
        /// The log.
        log: LogName,
        /// The run that was named.
        run: RunNo,
    },
    /// A hold never cuts short another one, which its author may not know of.
    #[error("backup {run} of {log} is already held, and for longer")]
    HeldLonger {
        /// The log.
        log: LogName,
        /// The run that was named.
        run: RunNo,
    },
    /// The hold would have ended before it began.
    #[error("a hold cannot end at {until}: by the repository's clock it is already {now:.0}")]
    Past {
        /// The end that was requested.
        until: Timestamp,
        /// The store's clock.
        now: Timestamp,
    },
    /// The end is beyond the calendar.
    #[error("a hold cannot last that long: leave out its end to hold until released")]
    TooLong,
    /// The reason cannot be shown in one line.
    #[error("the reason must be one line of at most {REASON_BYTES_MAX} bytes")]
    Reason,
    /// The run could not begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The run could not end.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// The repository failed.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

/// Holds backups. Returns the run, and when the hold ends by itself.
///
/// A backup that is already held gets the new terms; terms that would end its hold sooner are an error.
pub fn hold(
    repo: &Arc<Repo>,
    log: &LogName,
    backups: &[RunNo],
    terms: &HoldTerms,
    options: &RunOptions,
) -> Result<(RunNo, Option<Timestamp>), HoldError> {
    if terms.reason.len() > REASON_BYTES_MAX || terms.reason.contains(char::is_control) {
        return Err(HoldError::Reason);
    }
    change(repo, log, options, &mut |history, now| {
        let until = match terms.until {
            None => None,
            Some(Until::At(until)) if until <= now => return Err(HoldError::Past { until, now }),
            Some(Until::At(until)) => Some(until),
            Some(Until::For(span)) => Some(now.checked_add(span).map_err(|_| HoldError::TooLong)?),
        };
        for run in backups.iter().copied() {
            let log = log.clone();
            if !history.stands(run) {
                return Err(HoldError::NoSuchBackup { log, run });
            }
            if history.hold(run, now).is_some_and(|hold| hold.ends_after(until)) {
                return Err(HoldError::HeldLonger { log, run });
            }
        }
        let ending = Ending::Hold { backups: backups.to_vec(), until, reason: terms.reason.clone() };
        Ok((ending, until))
    })
}

/// Releases backups from their holds. While it is not known what is held, also those that are not.
pub fn release(
    repo: &Arc<Repo>,
    log: &LogName,
    backups: &[RunNo],
    options: &RunOptions,
) -> Result<RunNo, HoldError> {
    let done = change(repo, log, options, &mut |history, now| {
        let is_known = history.uncertain_hold().is_none();
        for run in backups.iter().copied() {
            let log = log.clone();
            if !history.stands(run) {
                return Err(HoldError::NoSuchBackup { log, run });
            }
            if is_known && history.hold(run, now).is_none() {
                return Err(HoldError::NotHeld { log, run });
            }
        }
        Ok((Ending::Release { backups: backups.to_vec() }, None))
    });
    done.map(|(run, _)| run)
}

type Decided = Result<(Ending, Option<Timestamp>), HoldError>;

/// Decides before a run begins, so that a mistake costs none, and again inside the run,
/// when nothing can come between.
fn change(
    repo: &Arc<Repo>,
    log: &LogName,
    options: &RunOptions,
    decide: &mut dyn FnMut(&History, Timestamp) -> Decided,
) -> Result<(RunNo, Option<Timestamp>), HoldError> {
    let history = History::read(repo, log)?;
    decide(&history, repo.now()?)?;
    let mut run = Run::begin_as(Intent::Hold, repo, &history, options)?;
    match decide(run.history(), repo.now()?) {
        Ok((ending, until)) => Ok((run.finish(ending)?.run, until)),
        Err(error) => {
            run.abandon("the backups to hold or release had changed")?;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        format::{names::Kind, refs::BackupRefs},
        keys::Protection,
        log::{outcome, run::PartCounts},
        ops::{
            expire::{ExpireError, ExpireRequest, Rules, expire},
            retention::{Reason, RetentionPolicy},
        },
        store::mem::{ManualClock, MemStore},
    };

    const HOUR: Duration = Duration::from_secs(3600);

    struct World {
        repo: Arc<Repo>,
        log: LogName,
        clock: ManualClock,
    }

    impl World {
        /// A repository with this many backups.
        fn of(backups: u64) -> Self {
            let clock = ManualClock::default();
            let store = Arc::new(MemStore::with_clock(clock.clone()));
            let repo = Arc::new(Repo::init(store, &Protection::None).unwrap());
            let log = LogName { source: "db1".parse().unwrap(), kind: Kind::Physical };
            let world = Self { repo, log, clock };
            (0..backups).for_each(|_| world.backup());
            world
        }

        fn backup(&self) {
            let mut run = Run::begin(&self.repo, &self.log, &options()).unwrap();
            let refs = run.write_backup_refs(&BackupRefs::default()).unwrap();
            let ending = Ending::Backup { head: b"{}".to_vec(), refs, parts: PartCounts::default() };
            run.finish(ending).unwrap();
        }

        fn hold(&self, backups: &[u64], until: Option<Until>) -> Result<RunNo, HoldError> {
            let terms = HoldTerms { until, reason: "audit".to_owned() };
            hold(&self.repo, &self.log, &runs(backups), &terms, &options()).map(|(run, _)| run)
        }

        fn release(&self, backup: u64) -> Result<RunNo, HoldError> {
            release(&self.repo, &self.log, &runs(&[backup]), &options())
        }

        fn drop_named(&self, backup: u64) -> Result<(), ExpireError> {
            let request = ExpireRequest::Exactly(runs(&[backup]));
            expire(&self.repo, &self.log, &request, &options()).map(drop)
        }

        fn history(&self) -> History {
            History::read(&self.repo, &self.log).unwrap()
        }
    }

    fn options() -> RunOptions {
        RunOptions { renew_every: None, ..RunOptions::of_this_process() }
    }

    fn runs(numbers: &[u64]) -> Vec<RunNo> {
        numbers.iter().copied().map(RunNo).collect()
    }

    #[test]
    fn what_is_held_is_dropped_neither_by_rules_nor_by_name() {
        let world = World::of(3);
        world.hold(&[1], None).unwrap();
        assert!(matches!(world.drop_named(1), Err(ExpireError::Held { run: RunNo(1), .. })));
        let policy = RetentionPolicy { last: 1, ..RetentionPolicy::default() };
        let request = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
        let plan = expire(&world.repo, &world.log, &request, &options()).unwrap();
        assert_eq!(plan.dropped, [RunNo(2)]);
        assert_eq!(plan.kept[0].reasons, [Reason::Held]);
        world.release(1).unwrap();
        assert!(matches!(world.release(1), Err(HoldError::NotHeld { .. })));
        world.drop_named(1).unwrap();
        assert!(matches!(world.hold(&[3, 1], None), Err(HoldError::NoSuchBackup { run: RunNo(1), .. })));
        assert!(world.history().hold(RunNo(3), Timestamp::now()).is_none(), "all or none");
    }

    /// The newest outcome, a hold, is lost: its number is not given out again, and nothing is dropped until
    /// it has been declared again what is held.
    #[test]
    fn a_hold_that_may_be_lost_is_not_forgotten() {
        let world = World::of(3);
        world.hold(&[1], None).unwrap();
        let pruning = crate::ops::prune::PruneOptions::default();
        crate::ops::prune::sweep(&world.repo, &world.history(), &pruning).unwrap();
        world.repo.store().delete(&[world.log.outcome(RunNo(4))]).unwrap();
        world.clock.advance(HOUR);
        let policy = RetentionPolicy { last: 1, ..RetentionPolicy::default() };
        let request = ExpireRequest::ByRules(Rules::by_age(policy, TimeZone::UTC));
        let by_rules = || expire(&world.repo, &world.log, &request, &options());
        // The next run ends it, as the hold that it was.
        let run = Run::begin(&world.repo, &world.log, &options()).unwrap();
        assert_eq!(run.no(), RunNo(5));
        run.abandon("test").unwrap();
        assert!(matches!(by_rules(), Err(ExpireError::MayBeHeld { run: RunNo(4), .. })));
        // Nor is what rules have chosen elsewhere.
        let chosen = ExpireRequest::Chosen(runs(&[1, 2]));
        let as_chosen = || expire(&world.repo, &world.log, &chosen, &options());
        assert!(matches!(as_chosen(), Err(ExpireError::MayBeHeld { run: RunNo(4), .. })));
        world.hold(&[1], None).unwrap();
        assert_eq!(by_rules().unwrap().dropped, [RunNo(2)]);
        assert_eq!(as_chosen().unwrap().dropped, [], "one is held, the other is gone");
    }

    /// Whoever holds nothing says so by a release.
    #[test]
    fn a_release_settles_what_is_held() {
        let world = World::of(3);
        assert!(matches!(world.release(1), Err(HoldError::NotHeld { .. })));
        world.hold(&[1], None).unwrap();
        world.release(1).unwrap();
        world.repo.store().delete(&[world.log.outcome(RunNo(5))]).unwrap();
        world.clock.advance(HOUR);
        Run::begin(&world.repo, &world.log, &options()).unwrap().abandon("test").unwrap();
        assert_eq!(world.history().uncertain_hold(), Some(RunNo(5)));
        world.release(2).unwrap();
        assert_eq!(world.history().uncertain_hold(), None);
    }

    #[test]
    fn a_hold_ends_by_the_clock_of_the_store_and_is_not_cut_short() {
        let world = World::of(2);
        world.hold(&[1], Some(Until::For(HOUR * 48))).unwrap();
        assert!(matches!(world.hold(&[1], Some(Until::For(HOUR))), Err(HoldError::HeldLonger { .. })));
        world.clock.advance(HOUR * 47);
        assert!(matches!(world.drop_named(1), Err(ExpireError::Held { .. })));
        world.hold(&[1], Some(Until::For(HOUR * 2))).unwrap();
        world.clock.advance(HOUR);
        assert!(matches!(world.drop_named(1), Err(ExpireError::Held { .. })), "the later hold counts");
        world.clock.advance(HOUR);
        assert!(matches!(world.release(1), Err(HoldError::NotHeld { .. })));
        world.drop_named(1).unwrap();
        let past = Until::At(world.clock.now().try_into().unwrap());
        assert!(matches!(world.hold(&[2], Some(past)), Err(HoldError::Past { .. })));
        assert!(matches!(world.hold(&[2], Some(Until::For(Duration::MAX))), Err(HoldError::TooLong)));
    }

    #[test]
    fn while_an_expire_runs_nothing_can_be_held() {
        let world = World::of(2);
        let mut run = Run::begin_as(Intent::Expire, &world.repo, &world.history(), &options()).unwrap();
        assert!(matches!(world.hold(&[1], None), Err(HoldError::Begin(BeginError::Active(_)))));
        run.finish(Ending::Expire { dropped: runs(&[1]) }).unwrap();
        assert!(matches!(world.hold(&[1], None), Err(HoldError::NoSuchBackup { .. })));
    }

    #[test]
    fn an_expire_that_was_thought_dead_drops_nothing_that_was_held_since() {
        let world = World::of(2);
        let mut frozen = Run::begin_as(Intent::Expire, &world.repo, &world.history(), &options()).unwrap();
        world.clock.advance(HOUR);
        world.hold(&[1], None).unwrap();
        let woken = frozen.finish(Ending::Expire { dropped: runs(&[1]) });
        assert!(matches!(woken, Err(FinishError::Lost { .. })), "{woken:?}");
        assert!(world.history().stands(RunNo(1)));
    }

    #[test]
    fn a_reason_is_one_line() {
        let world = World::of(1);
        for reason in ["two\nlines", "\u{1b}[2J", &"x".repeat(REASON_BYTES_MAX + 1)] {
            let terms = HoldTerms { until: None, reason: reason.to_owned() };
            let refused = hold(&world.repo, &world.log, &runs(&[1]), &terms, &options());
            assert!(matches!(refused, Err(HoldError::Reason)));
        }
        assert_eq!(world.history().next_run(), RunNo(2), "a mistake costs no run");
    }

    /// Signed by a key that may sign them, but not what may be written;
    /// the last is how an earlier version sees a hold.
    #[test]
    fn outcomes_that_make_no_sense_are_damage() {
        let lies: [(&str, Value); 9] = [
            ("names nothing", json!({"type": "hold"})),
            ("names nothing", json!({"type": "release", "backups": []})),
            ("no hold", json!({"type": "release", "backups": [1], "until": "2099-01-01T00:00:00Z"})),
            ("no hold", json!({"type": "expire", "dropped": [1], "until": "2099-01-01T00:00:00Z"})),
            ("not of holds", json!({"type": "expire", "dropped": [1], "backups": [1]})),
            ("itself", json!({"type": "hold", "backups": [3]})),
            ("later", json!({"type": "hold", "backups": [1, 4]})),
            ("not a time", json!({"type": "hold", "backups": [1], "until": "tomorrow"})),
            ("of no known type", json!({"type": "embargo", "backups": [1]})),
        ];
        for (what, mut public) in lies {
            let world = World::of(2);
            let previous = serde_json::to_value(world.history().last_hash()).unwrap();
            let common = json!({"run": 3, "at": "2026-11-21T00:00:00Z", "host": "h", "previous": previous});
            public.as_object_mut().unwrap().extend(common.as_object().unwrap().clone());
            let json = serde_json::to_vec(&public).unwrap();
            let bytes = outcome::encode_raw(&world.repo, &world.log, RunNo(3), &json, None).unwrap();
            world.repo.store().create_if_absent(&world.log.outcome(RunNo(3)), &bytes).unwrap();
            let read = History::read(&world.repo, &world.log);
            assert!(matches!(read, Err(RepoError::History { .. })), "{what}: {public}");
            let mut damaged = Vec::new();
            let rest = History::salvage(&world.repo, &world.log, &mut |run, _| damaged.push(run)).unwrap();
            assert_eq!((damaged, rest.standing().count()), (runs(&[3]), 2), "{what}");
        }
    }
}
