//! One try to stop the world for a moment: it succeeds, fails for good, or may be tried again.

use crate::{
    error::{Error, ErrorKind},
    server::{Attempt, SqlCause, SqlError},
};

/// Why a try did not succeed.
pub(super) enum Stopped {
    /// A lock was not to be had: everything is released, another try makes sense.
    TryAgain(Error),
    /// A lock was held for as long as it may be: the same, if there is less to do next time.
    HeldTooLong(Error),
    /// For good.
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
            _ => Self::Failed(error.into()),
        }
    }
}

/// A lock that was not granted in time ends the try.
pub(super) fn granted(attempt: Attempt, lock: &str) -> Result<(), Stopped> {
    match attempt {
        Attempt::Granted => Ok(()),
        Attempt::TimedOut => Err(Stopped::TryAgain(
            Error::new(ErrorKind::Server, format!("{lock} was not granted in time"))
                .hinted("a long statement or transaction is in the way: see SHOW PROCESSLIST; --lock-max allows a longer wait"),
        )),
    }
}
