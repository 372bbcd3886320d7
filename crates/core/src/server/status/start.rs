//! A server's start, and its clock.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::values::Status;
use crate::server::{Session, SqlError};

/// The server's clock, in whole seconds. Events in its binlog carry times of this clock.
pub fn clock(session: &mut Session) -> Result<Timestamp, SqlError> {
    let seconds = session.number("SELECT UNIX_TIMESTAMP()")?;
    Timestamp::from_second(seconds).map_err(|_| SqlError::unexpected("a time that is none"))
}

/// Distinguishes one start of a server from another.
#[derive(Clone, Copy, Debug)]
pub struct ServerStart {
    uptime: Duration,
    /// Just before the query, and just after the answer.
    asked: (Instant, Instant),
    /// The session that queried it.
    connection_id: u64,
}

impl ServerStart {
    /// The server reports whole seconds, and its clock may be adjusted slightly in between.
    const TOLERANCE: Duration = Duration::from_secs(2);

    /// Queries the server. Needs no privilege.
    pub fn read(session: &mut Session) -> Result<ServerStart, SqlError> {
        let before = Instant::now();
        let uptime = Status::read(session, "Uptime")?.number("Uptime").map(Duration::from_secs)?;
        Ok(ServerStart { uptime, asked: (before, Instant::now()), connection_id: session.connection_id() })
    }

    /// Whether the server was restarted before the query of `later`. Session ids start over at each start.
    #[must_use]
    pub fn is_before(&self, later: &ServerStart) -> bool {
        later.connection_id < self.connection_id
            || later.uptime + Self::TOLERANCE
                < self.uptime + later.asked.0.saturating_duration_since(self.asked.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_shows() {
        let now = Instant::now();
        let asked = |connection_id, uptime_s, later_s| ServerStart {
            uptime: Duration::from_secs(uptime_s),
            asked: (now + Duration::from_secs(later_s), now + Duration::from_secs(later_s)),
            connection_id,
        };
        let begun = asked(7, 100, 0);
        assert!(!begun.is_before(&asked(9, 160, 60)));
        assert!(!begun.is_before(&asked(7, 158, 60)), "clocks differ");
        assert!(begun.is_before(&asked(9, 3, 60)));
        let slow = ServerStart {
            asked: (now + Duration::from_secs(60), now + Duration::from_secs(90)),
            ..asked(9, 160, 0)
        };
        assert!(!begun.is_before(&slow), "a slow answer is none of another start");
        assert!(asked(9, 1, 0).is_before(&asked(4, 1, 1)));
    }
}
