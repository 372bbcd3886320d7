//! A server that is away: since when nothing is archived, and how much of what it had committed may be missing.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::Archiver;

/// A server that was away when its archiver ended. What it committed and the archive lacks, it committed less than
/// `behind_s` before `since`, or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Away {
    /// Since when nothing has come from it, in microseconds since 1970, by the archiver's clock.
    pub since: u64,
    /// How many seconds before that the last archived transaction was committed, by the server's clock, rounded
    /// up. `None`: nothing is archived, or it was committed later, so that the clocks must differ.
    pub behind_s: Option<u64>,
}

impl Away {
    fn new(since: Timestamp, last_at: Option<u64>) -> Self {
        let since = u64::try_from(since.as_microsecond()).unwrap_or_default();
        let behind_us = last_at.and_then(|last_at| since.checked_sub(last_at));
        Self { since, behind_s: behind_us.map(|us| us.div_ceil(1_000_000)) }
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = i64::try_from(self.since).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
        write!(f, "nothing has come from the server since {:.0}", since.unwrap_or_default())?;
        match self.behind_s {
            Some(seconds) => write!(
                f,
                ", and what is archived ends {seconds} s before that: if the server is lost, so is what it \
                 committed after"
            ),
            None => write!(f, ", and how long before that the archive ends is unknown"),
        }
    }
}

impl Archiver<'_> {
    /// Notes that the server is away, since its last stream ended.
    pub(super) fn is_away(&mut self) {
        self.away_since.get_or_insert(self.heard_until);
    }

    /// The server, if it is away, with what is durable by now.
    pub(super) fn away(&self) -> Option<Away> {
        self.away_since.map(|since| Away::new(since, self.report.last_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_never_too_few() {
        let since = Timestamp::from_microsecond(1_764_424_987_300_000).unwrap();
        let away = |last_at| Away::new(since, last_at);
        assert_eq!(away(Some(1_764_424_986_000_000)).behind_s, Some(2));
        assert_eq!(away(Some(1_764_424_987_300_000)).behind_s, Some(0));
        assert_eq!((away(None).behind_s, away(Some(1_764_424_988_000_000)).behind_s), (None, None));
        assert_eq!(
            away(Some(1_764_424_986_000_000)).to_string(),
            "nothing has come from the server since 2025-11-29T14:03:07Z, and what is archived ends 2 s before \
             that: if the server is lost, so is what it committed after"
        );
    }
}
