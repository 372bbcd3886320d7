//! Why a try to make a view failed: what to do next depends on it.

use crate::{
    error::{Error, ErrorKind},
    server::{Attempt, SqlCause, SqlError, code},
};

/// Why a try failed.
pub(super) enum Stopped {
    /// Another session blocks the lock that makes the view; a different lock may be granted.
    Refused(Error),
    /// Another session blocks a lock that every method needs.
    InTheWay(Error),
    /// A lock was held for as long as permitted.
    HeldTooLong(Error),
    /// A definition changed.
    Changed(Error),
    /// The account may not do this.
    Less(Error),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        match error.cause::<SqlError>().is_some_and(is_gone) {
            true => Self::Changed(error),
            false => Self::Failed(error),
        }
    }
}

impl From<SqlError> for Stopped {
    fn from(error: SqlError) -> Self {
        match error.cause() {
            SqlCause::Expired => Self::HeldTooLong(error.into()),
            _ if error.is_lock_timeout() => Self::InTheWay(not_granted(&error.to_string())),
            _ if is_gone(&error) => Self::Changed(error.into()),
            _ if error.is_denied() => Self::Less(error.into()),
            _ => Self::Failed(error.into()),
        }
    }
}

/// Whether a listed object is gone or was replaced: a table, a database, a view, a program, a trigger, an
/// event.
fn is_gone(error: &SqlError) -> bool {
    matches!(
        error.code(),
        Some(
            code::NO_SUCH_TABLE | code::NO_SUCH_SCHEMA | code::DEFINITION_CHANGED | 1347 | 1305 | 1360 | 1539
        )
    )
}

pub(super) fn not_granted(lock: &str) -> Error {
    Error::new(ErrorKind::Server, format!("{lock} was not granted in time")).hinted(
        "a long statement, transaction or change of a definition is in the way: see SHOW PROCESSLIST; \
         --lock-max allows a longer wait",
    )
}

pub(super) fn granted(attempt: Attempt, lock: &str) -> Result<(), Stopped> {
    match attempt {
        Attempt::Granted => Ok(()),
        Attempt::TimedOut => Err(Stopped::Refused(not_granted(lock))),
    }
}
