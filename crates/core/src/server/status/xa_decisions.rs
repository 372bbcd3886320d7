//! Decisions about XA branches on MySQL, which its log positions do not wait for.

use super::values::Status;
use crate::server::{Session, SqlError};

/// `XA COMMIT` and `XA ROLLBACK` on a server. MySQL has them in its binlog before InnoDB has carried them out, and
/// `performance_schema.log_status`, which waits for every other commit in between, does not wait for them: a binlog
/// position that was read meanwhile is ahead of the data (verified on 9.7.4 with
/// `binlog_group_commit_sync_delay`). So what is read counts only if none was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XaDecisions {
    /// How many have begun since the server started.
    begun: u64,
    /// How many are being executed.
    under_way: u64,
}

impl XaDecisions {
    /// Queries the server. Needs `PROCESS`.
    pub fn read(session: &mut Session) -> Result<Self, SqlError> {
        // In this order: one that begins in between has not been counted, and will differ in the next reading.
        let status = Status::read(session, "Com_xa_%")?;
        let begun = status.number::<u64>("Com_xa_commit")? + status.number::<u64>("Com_xa_rollback")?;
        let under_way = session.number(
            "SELECT COUNT(*) FROM information_schema.processlist \
             WHERE info RLIKE '^([[:space:]]|/[*].*[*]/)*xa[[:space:]]+(commit|rollback)'",
        )?;
        Ok(Self { begun, under_way })
    }

    /// Whether none was under way between two readings.
    #[must_use]
    pub fn are_none_until(self, later: Self) -> bool {
        self.under_way == 0 && self.begun == later.begun
    }
}
