//! How an attempt to take the locks ends, and whether another follows.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, ErrorKind, Result},
    event::{Cancel, Event},
    server::{Attempt, SqlCause, SqlError},
};

/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often a pause checks for cancellation.
const LOOK_AT_CANCEL: Duration = Duration::from_millis(100);

/// Why an attempt ended without a position.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// A lock was not granted, or was lost. Everything is released; another attempt makes sense.
    TryAgain(Error),
    /// A lock was held for as long as allowed. Everything is released; another attempt makes sense if it has
    /// less to do.
    HeldTooLong(Error),
    /// The attempt failed for good.
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<SqlError> for Stopped {
    fn from(error: SqlError) -> Self {
        match error.cause() {
            SqlCause::Expired => Self::HeldTooLong(error.into()),
            // Neither the copied files nor the redo follower depend on the session.
            SqlCause::Lost => Self::TryAgain(error.into()),
            _ if error.is_interrupted() => Self::TryAgain(error.into()),
            _ => Self::Failed(error.into()),
        }
    }
}

/// Ends the attempt if a lock was not granted in time.
pub(crate) fn granted(attempt: Attempt, lock: &str) -> Result<(), Stopped> {
    match attempt {
        Attempt::Granted => Ok(()),
        Attempt::TimedOut => Err(Stopped::TryAgain(
            Error::new(ErrorKind::Server, format!("{lock} was not granted in time"))
                .hinted("a long statement or transaction is in the way: see SHOW PROCESSLIST; --lock-max allows a longer wait"),
        )),
    }
}

/// Counts a backup's attempts to take its locks, and decides whether another may follow.
///
/// Locks that were held too long cost the server something each time, so these attempts are limited in
/// number. A lock that is not being requested costs nothing: while another session is in the way, attempts
/// continue, with growing pauses, until the patience runs out.
pub(crate) struct Tries {
    max: u32,
    patience: Duration,
    count: u32,
    held: u32,
    first_refused_at: Option<Instant>,
}

/// Another attempt.
#[derive(Debug)]
pub(crate) struct Again {
    /// Why the last attempt ended.
    pub(crate) error: Error,
    /// Whether the last attempt held its locks for as long as allowed.
    pub(crate) was_held: bool,
    pause: Duration,
}

impl Again {
    /// The warning for the user, after `tries` attempts have ended.
    pub(crate) fn told(&self, tries: u32) -> Event {
        Event::Warning { text: format!("{}; everything was released, trying again ({tries})", self.error) }
    }

    /// Waits before the next attempt.
    pub(crate) fn wait(&self, cancel: &Cancel) -> Result<()> {
        let until = Instant::now() + self.pause;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            cancel.check()?;
            thread::sleep(left.min(LOOK_AT_CANCEL));
        }
        cancel.check()
    }
}

impl Tries {
    pub(crate) fn new(max: u32, patience: Duration) -> Self {
        Self { max, patience, count: 0, held: 0, first_refused_at: None }
    }

    /// How many attempts have ended.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Decides whether another attempt follows one that ended like this; returns the error if not.
    pub(crate) fn after(&mut self, stopped: Stopped) -> Result<Again> {
        self.count += 1;
        let (error, was_held) = match stopped {
            Stopped::Failed(error) => return Err(error),
            Stopped::TryAgain(error) => (error, false),
            Stopped::HeldTooLong(error) => (error, true),
        };
        let pause = Duration::from_secs(1).saturating_mul(1 << (self.count - 1).min(16)).min(PAUSE_MAX);
        self.held += u32::from(was_held);
        let is_over = match was_held {
            true => self.held >= self.max,
            false => {
                let waited = self.first_refused_at.get_or_insert_with(Instant::now).elapsed();
                self.count - self.held >= self.max && waited + pause >= self.patience
            }
        };
        if is_over { Err(error) } else { Ok(Again { error, was_held, pause }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Stopped {
        granted(Attempt::TimedOut, "a lock").unwrap_err()
    }

    #[test]
    fn tries_that_were_held_too_long_are_counted_and_refused_ones_waited_for() {
        let held = || Stopped::HeldTooLong(Error::failed("slow"));
        let mut patient = Tries::new(2, Duration::from_secs(600));
        assert!(patient.after(held()).unwrap().was_held);
        patient.after(held()).unwrap_err();

        let mut patient = Tries::new(2, Duration::from_secs(600));
        let pauses: Vec<u64> = (0..8).map(|_| patient.after(refused()).unwrap().pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);

        // One kind does not use up the tries of the other.
        assert!(patient.after(held()).unwrap().was_held);
        patient.after(refused()).unwrap();
        patient.after(held()).unwrap_err();

        let mut hasty = Tries::new(2, Duration::ZERO);
        hasty.after(refused()).unwrap();
        hasty.after(refused()).unwrap_err();
        Tries::new(2, Duration::from_secs(600)).after(Stopped::Failed(Error::failed("gone"))).unwrap_err();
    }

    #[test]
    fn what_was_lost_with_a_session_is_asked_for_again() {
        for (cause, again) in [
            (SqlCause::Lost, true),
            (SqlCause::Refused(1317), true),
            (SqlCause::Refused(1927), true),
            (SqlCause::Refused(1142), false),
            (SqlCause::Protocol, false),
        ] {
            let stopped = Stopped::from(SqlError::new(cause.clone(), "why"));
            assert_eq!(matches!(stopped, Stopped::TryAgain(_)), again, "{cause:?}");
        }
    }
}
